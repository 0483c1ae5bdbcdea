"""The page of one run: its numbers, pictures of them, what is missing, what it cost, settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import PurePath

import raveval
from raveval.report.html.page import (
    Block,
    Fields,
    Figures,
    Fold,
    Lines,
    Note,
    Page,
    Section,
    Source,
)
from raveval.report.html.run_figures import group_figures, headline_figures, table_figures
from raveval.report.numbers import plain
from raveval.report.render import markdown_table
from raveval.report.tables import (
    ADVICE,
    INTERVALS_COVER,
    SCORED_WITH_A_REMARK,
    Column,
    Table,
    counts,
    coverage_text,
    group_table,
    headline_table,
    macro_lines,
    note_lines,
    result_table,
    settings_fields,
    source_lines,
    usage_table,
)
from raveval.types import Results

INTERVAL_NOTE = f"Point: value. Bar: 95 % interval, {INTERVALS_COVER}."
HEAT_NOTE = (
    "Cells: examples with both values. Beside and above: each by itself. Framed: equal values."
)

_NO_LIMIT = 10_000


def run_page(results: Results) -> Page:
    """Return the report of a run as a page."""
    n_attempted = sum(task.coverage.n_attempted for task in results.tasks.values())
    n_missing = n_attempted - sum(task.coverage.n_scored for task in results.tasks.values())
    verdict = f"{n_attempted - n_missing} of {n_attempted} examples scored"
    return Page(
        title=model_name(results.model),
        facts=list(_facts(results)),
        verdict=f"{verdict}, {n_missing} missing" if n_missing else verdict,
        is_good=not n_missing,
        sections=list(_sections(results)),
    )


def model_name(model: str) -> str:
    """Return a hub id as it stands, and the last part of a path; of a model and of its adapter.

    >>> model_name("org/model"), model_name("/data/checkpoints/step_10")
    ('org/model', 'step_10')
    >>> model_name("org/model + /data/adapters/step_10")
    'org/model + step_10'
    """
    return " + ".join(map(_place_name, model.split(" + ")))


def _place_name(place: str) -> str:
    path = PurePath(place)
    is_path = path.is_absolute() or place.startswith((".", "~")) or len(path.parts) > 2
    return plain(path.name if is_path else place) or "a model"


def _facts(results: Results) -> Iterator[str]:
    yield from filter(None, (time_text(results.times.get("finished")),))
    yield f"raveval {raveval.__version__}"
    loaded = results.settings.get("loaded")
    first = loaded[0] if isinstance(loaded, list) and loaded else {}
    keys = ("engine", "device", "dtype")
    found = [str(first[key]) for key in keys if isinstance(first, Mapping) and key in first]
    yield from filter(None, (plain(", ".join(found)),))
    if model_name(results.model) != results.model:
        yield plain(results.model)


def time_text(stamp: object) -> str:
    """Return a time stamp for people; what is none is not shown.

    >>> time_text("2026-07-01T09:30:00+00:00"), time_text(None)
    ('2026-07-01 09:30 UTC', '')
    """
    try:
        moment = datetime.fromisoformat(str(stamp))
    except ValueError:
        return ""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _sections(results: Results) -> Iterator[Section]:
    yield Section("Results", list(_result_blocks(results)))
    missing = list(_missing_blocks(results))
    if missing:
        yield Section("Missing examples", missing)
    grouped = list(_group_blocks(results))
    if grouped:
        yield Section("By group", grouped)
    judged = [f for name, task in results.tasks.items() for f in table_figures(name, task)]
    if judged:
        yield Section("Ratings", [Figures(judged), Note(HEAT_NOTE)])
    yield Section("Cost", list(_cost_blocks(results)))
    yield Section("How it was made", list(_origin_blocks(results)))


def _result_blocks(results: Results) -> Iterator[Block]:
    brief = headline_table(results)
    yield brief
    remarks = [
        f"{plain(name)}: {coverage_text(task.coverage)}"
        for name, task in results.tasks.items()
        if counts(task.coverage, SCORED_WITH_A_REMARK)
    ]
    remarks += [*source_lines(results), *note_lines(results)]
    yield Figures(headline_figures(results))
    yield Note(INTERVAL_NOTE)
    if remarks:
        yield Fold("Notes on these numbers", [Lines(remarks)])
    yield Fold("All numbers", [result_table(results)])
    yield Fold("This table as Markdown", [Source(markdown_table(brief))])


def _missing_blocks(results: Results) -> Iterator[Block]:
    """Yield what is missing by kind with what to do about it, and the first example of each."""
    kinds = [
        (name, kind, count)
        for name, task in results.tasks.items()
        for kind, count in counts(task.coverage, ADVICE).items()
    ]
    if not kinds:
        return
    rows = [(plain(name), str(kind), str(count), ADVICE[kind]) for name, kind, count in kinds]
    columns = [Column("Task", "name"), Column("Kind", "text"), Column("Examples", "number")]
    yield Table([*columns, Column("What to do", "name")], rows)
    yield from _failure_blocks(results)


def _failure_blocks(results: Results) -> Iterator[Block]:
    firsts: list[tuple[str, ...]] = []
    others: list[tuple[str, ...]] = []
    for name, task in results.tasks.items():
        seen: set[str] = set()
        for example, text in task.failures.items():
            kind, _, message = text.partition(": ")
            row = (plain(name), plain(kind), plain(example), plain(message, limit=_NO_LIMIT))
            (others if kind in seen else firsts).append(row)
            seen.add(kind)
    columns = [Column(title, "name") for title in ("Task", "Kind", "Example", "Message")]
    if firsts:
        yield Note("The first example of each kind:")
        yield Table(columns, firsts)
    if others:
        yield Fold("More of them", [Table(columns, others)])
    yield Note("Every one stands with its message in the records of the run directory.")


def _group_blocks(results: Results) -> Iterator[Block]:
    shown = [figure for name, task in results.tasks.items() for figure in group_figures(name, task)]
    if shown:
        yield Figures(shown)
        yield Note(f"{INTERVAL_NOTE} Pooled: each example counts once. Macro: each group does.")
    for name, task in results.tasks.items():
        if task.groups:
            table = group_table(task.metrics, task.groups)
            yield Fold(f"{plain(name)} by group", [table, Lines(list(macro_lines(task.macro)))])


def _cost_blocks(results: Results) -> Iterator[Block]:
    yield usage_table(results)
    lines = []
    for key, whose in (("load_seconds", "the model"), ("judge_load_seconds", "the judge")):
        seconds = results.times.get(key)
        if isinstance(seconds, list) and seconds:
            each = ", ".join(f"{value:.1f} s" for value in seconds)
            lines.append(f"Loading {whose}: {each}{' (each replica)' if len(seconds) > 1 else ''}")
    lost = results.times.get("replicas_lost")
    if isinstance(lost, list):
        lines += [f"Lost: {plain(each)}" for each in lost]
    duration = _duration(results.times)
    if duration:
        lines.append(f"From start to end: {duration}")
    if lines:
        yield Lines(lines)


def _duration(times: Mapping[str, object]) -> str:
    try:
        ends = [datetime.fromisoformat(str(times.get(key))) for key in ("started", "finished")]
    except ValueError:
        return ""
    return f"{(ends[1] - ends[0]).total_seconds():.0f} s"


def _origin_blocks(results: Results) -> Iterator[Block]:
    yield Fold("Settings", [Fields(settings_fields(results))])
    columns = [Column("Task", "name"), Column("Protocol", "name"), Column("Version", "number")]
    columns += [Column("n-shot", "number"), Column("Replies", "name"), Column("Scores", "name")]
    rows = [
        (
            plain(name),
            plain(task.protocol),
            *("" if n is None else str(n) for n in (task.version, task.num_fewshot)),
            *(plain(results.fingerprints.get(name, {}).get(key, "")) for key in ("reply", "score")),
        )
        for name, task in results.tasks.items()
    ]
    yield Fold("Tasks and fingerprints", [Table(columns, rows)])
    sources = []
    for name, task in results.tasks.items():
        label = plain(name)
        for key, value in task.source.items():
            sources.append((label, plain(key), plain(value, limit=_NO_LIMIT)))
            label = ""
    if sources:
        titles = ("Task", "Of its examples", "")
        yield Fold(
            "Where examples come from", [Table([Column(t, "name") for t in titles], sources)]
        )
