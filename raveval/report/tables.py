"""What a report says, as plain text: the tables, what is missing, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

import raveval
from raveval.metrics._headline import HEADLINE
from raveval.report.numbers import UNDEFINED, direction, interval_text, plain, value_text
from raveval.tasks import source_remarks
from raveval.types import Coverage, Estimate, Results, Status, TaskResults, Usage

AUXILIARY = (
    "accuracy_raw",
    "accuracy_per_token",
    "accuracy_per_char",
    "accuracy_per_byte",
    "accuracy_unconditional",
    "accuracy_tie_aware",
    "relative_improvement_per_example",
    "relative_improvement_per_n_choices",
    "probability_mass",
    "random_baseline",
    "most_frequent_index_share",
    "token_perplexity_finite",
)
"""Metrics that explain another one come last, in this order, after those that are no headline."""

N_GROUP_METRICS = 2

_MACRO = "macro_"
_MEANINGS = {
    "clusters": " (sets of dependent examples; intervals rest on them)",
    "without_cluster": " (examples in no cluster; with them there is no interval)",
}
"""What notes of more than one metric mean, after their count."""

_LONG_NUMBER = re.compile(r"\d+\.\d{4,}")

ADVICE: Mapping[Status, str] = {
    Status.INVALID: "nothing to ask or to score in them: look at these rows of the data",
    Status.OVERLONG: "they need a longer context: raise max_model_len, or use fewer shots",
    Status.UNJUDGED: "the judge gave no usable verdict: the counts of refusals say why (cut at max "
    "tokens: give it more); what it wrote is in verdicts/ of the run directory, an evaluator's in "
    "replies/",
    Status.UNRESOLVED: "still tied when the budget was spent: allow more rounds",
    Status.FAILED: "the engine refused them or broke on them: report.md says why; --retry-failed "
    "asks them again",
    Status.QUARANTINED: "the engine died or hung on them repeatedly: give a replica more memory or "
    "a smaller max_model_len, then --retry-failed asks them again",
}
"""What to do about examples that are missing, by kind."""

INTERVALS_COVER = "over other examples like these, not over seeds"

SCORED_WITH_A_REMARK: Mapping[Status, str] = {
    Status.UNPARSED: "without a usable answer (scored as incorrect)",
    Status.TRUNCATED: "scored on a shortened prompt",
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column: names stand left and may be folded, numbers stand right, text stands left."""

    title: str
    kind: Literal["name", "number", "text"]


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and cells, all of it plain text on one line."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]


_VALUE_COLUMNS = (
    Column("Metric", "name"),
    Column("↑/↓", "text"),
    Column("Value", "number"),
    Column("95 % interval", "text"),
)


def result_table(results: Results) -> Table:
    """Return the table that opens every report."""
    columns = (Column("Task", "name"), Column("n-shot", "number"), *_VALUE_COLUMNS)
    rows = [row for name, task in results.tasks.items() for row in _task_rows(name, task)]
    return Table((*columns, Column("Scored", "number")), rows)


def headline_table(results: Results) -> Table:
    """Return the same with the few numbers alone that each task is quoted by."""
    quoted = {
        name: replace(task, metrics={key: task.metrics[key] for key in quoted_names(task.metrics)})
        for name, task in results.tasks.items()
    }
    return result_table(replace(results, tasks=quoted))


def metric_table(metrics: Mapping[str, Estimate]) -> Table:
    """Return the table of metrics that belong to no task (`raveval measure`)."""
    rows = [(*_value_cells(name, value), str(value.n)) for name, value in _ordered(metrics)]
    return Table((*_VALUE_COLUMNS, Column("n", "number")), rows)


def missing_lines(results: Results) -> list[str]:
    """Return for each task with a remark what became of its examples, then what to do next.

    Where an engine broke, its own words about the first example stand there too.
    """
    lines = []
    for name, task in results.tasks.items():
        if counts(task.coverage, (*ADVICE, *SCORED_WITH_A_REMARK)):
            lines.append(f"{plain(name)}: {coverage_text(task.coverage)}")
        lines += [f"{plain(name)}: {plain(id)}: {plain(text)}" for id, text in _broken(task)]
    kinds = [
        kind
        for kind in ADVICE
        if any(counts(task.coverage, (kind,)) for task in results.tasks.values())
    ]
    return lines + [f"{kind}: {ADVICE[kind]}" for kind in kinds]


def _broken(task: TaskResults) -> Iterator[tuple[str, str]]:
    """Yield the first example of each kind that an engine broke on, and what it said."""
    for kind in (Status.FAILED, Status.QUARANTINED):
        of_kind = (item for item in task.failures.items() if item[1].startswith(f"{kind}: "))
        yield from islice(of_kind, 1)


def source_lines(results: Results) -> Iterator[str]:
    """Say which numbers rest on a part of the data, or on shots from the data itself."""
    for name, task in results.tasks.items():
        for remark in source_remarks(task.source):
            yield f"{plain(name)}: {plain(remark)}"


def note_lines(results: Results) -> Iterator[str]:
    """Say what explains a task's numbers: ties, examples that one of its metrics cannot use."""
    for name, task in results.tasks.items():
        if task.notes:
            yield f"{plain(name)}: {note_texts(task.notes)}"


def note_texts(notes: Mapping[str, int]) -> str:
    """Return notes on one line; the numbers in their names with four digits, as values are.

    >>> note_texts({"rating_4.333333333333333": 2, "ties": 1})
    'rating_4.333 2, ties 1'
    >>> note_texts({"clusters": 48})
    'clusters 48 (sets of dependent examples; intervals rest on them)'
    """
    return ", ".join(
        f"{_LONG_NUMBER.sub(lambda found: f'{float(found[0]):.4g}', plain(name))} {count}"
        f"{_MEANINGS.get(name, '')}"
        for name, count in notes.items()
    )


def coverage_text(coverage: Coverage) -> str:
    """Return what became of the examples of a task, in words.

    >>> coverage_text(Coverage({"ok": 98, "overlong": 2}))
    '98 of 100 scored; 2 overlong'
    """
    missing = [f"{n} {kind}" for kind, n in counts(coverage, ADVICE).items()]
    remarks = [
        f"{n} {SCORED_WITH_A_REMARK[kind]}"
        for kind, n in counts(coverage, SCORED_WITH_A_REMARK).items()
    ]
    if not coverage.by_status:
        return "how many examples there were is not known"
    scored = f"{coverage.n_scored} of {coverage.n_attempted} scored"
    return "; ".join([scored, *missing, *remarks])


def counts(coverage: Coverage, kinds: Iterable[Status]) -> dict[Status, int]:
    """Return how many examples there are of each of these kinds, where there are any."""
    return {kind: coverage.by_status[kind] for kind in kinds if coverage.by_status.get(kind)}


def header_line(results: Results) -> str:
    """Return the line that says of what and how these numbers were made."""
    parts = [f"raveval {raveval.__version__}", f"model: {plain(results.model)}"]
    parts += [f"{plain(key)}: {plain(value)}" for key, value in _scalars(results.settings)]
    return "; ".join(dict.fromkeys(parts))


def settings_fields(results: Results) -> list[tuple[str, str]]:
    """Return the settings by dotted name; what several replicas loaded alike is said once."""
    return list(
        dict.fromkeys((plain(key), plain(value)) for key, value in _scalars(results.settings))
    )


def _scalars(settings: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the settings that fit on a line; what is unset and plain lists stay in results.json."""
    for key, value in settings.items():
        if isinstance(value, list):  # what each replica loaded: mostly the same, said once
            for section in value:
                if isinstance(section, Mapping):
                    yield from _scalars(section, prefix)
        elif isinstance(value, Mapping):
            yield from _scalars(value, f"{prefix}{key}.")
        elif isinstance(value, str | int | float) and value != "":
            yield f"{prefix}{key}", value


def _task_rows(name: str, task: TaskResults) -> Iterator[tuple[str, ...]]:
    """Yield a task's rows; its name and shots stand on the first one only."""
    coverage = task.coverage
    scored = f"{coverage.n_scored}/{coverage.n_attempted}" if coverage.by_status else UNDEFINED
    labels = (plain(name), "" if task.num_fewshot is None else str(task.num_fewshot))
    for metric, value in _with_macro(task):
        if metric.startswith(_MACRO) and metric not in task.metrics:
            yield ("", "", *_value_cells(metric, value), f"{value.n} group{'s' * (value.n != 1)}")
            continue
        differs = value.value is not None and value.n not in (0, coverage.n_scored)
        rests_on = f"{scored} (n = {value.n})" if differs else scored
        yield (*labels, *_value_cells(metric, value), rests_on)
        labels = ("", "")


def _with_macro(task: TaskResults) -> Iterator[tuple[str, Estimate]]:
    """Yield a task's estimates, the unweighted mean over groups after those it is quoted by."""
    quoted = quoted_names(task.macro)
    for name, value in _ordered(task.metrics):
        yield name, value
        if name in quoted:
            yield f"{_MACRO}{name}", task.macro[name]


def _value_cells(name: str, value: Estimate) -> tuple[str, str, str, str]:
    return plain(name), direction(value), value_text(value), interval_text(value)


def _ordered(metrics: Mapping[str, Estimate]) -> list[tuple[str, Estimate]]:
    def rank(entry: tuple[str, Estimate]) -> int:
        name = entry[0]
        if name in HEADLINE:
            return HEADLINE.index(name)
        return len(HEADLINE) + (1 + AUXILIARY.index(name) if name in AUXILIARY else 0)

    return sorted(metrics.items(), key=rank)


def group_table(
    metrics: Mapping[str, Estimate], groups: Mapping[str, Mapping[str, Estimate]]
) -> Table:
    """Return the headline numbers of `metrics` by group."""
    shown = quoted_names(metrics)
    columns = [Column("Group", "name")]
    for name in shown:
        columns += [Column(plain(name), "number"), *_VALUE_COLUMNS[-1:], Column("n", "number")]
    rows = [
        [plain(group), *(cell for name in shown for cell in _group_cells(estimates.get(name)))]
        for group, estimates in groups.items()
    ]
    return Table(columns, rows)


def _group_cells(value: Estimate | None) -> tuple[str, str, str]:
    return (value_text(value), interval_text(value), str(value.n)) if value else ("", "", "")


def quoted_names(metrics: Mapping[str, Estimate]) -> list[str]:
    """Return the metrics a task is quoted by: its headline ones, or the first where it has none."""
    ordered = [name for name, _ in _ordered(metrics)]
    headline = [n for n in ordered if n in HEADLINE and n != "relative_improvement"]
    return (headline or ordered)[:N_GROUP_METRICS]


def macro_lines(macro: Mapping[str, Estimate]) -> Iterator[str]:
    """Say the unweighted means over groups that a task may be quoted by."""
    for name in quoted_names(macro):
        mean = macro[name]
        shown = " ".join(filter(None, (value_text(mean), interval_text(mean))))
        yield (
            f"{_MACRO}{plain(name)}: {shown}, the unweighted mean over {mean.n} "
            f"group{'s' * (mean.n != 1)}; {plain(name)} pools all examples"
        )


def usage_table(results: Results) -> Table:
    """Return what each task cost."""
    usages = [
        (plain(label), usage)
        for name, task in results.tasks.items()
        for label, usage in ((name, task.usage), (f"{name}: judge", task.judge_usage))
        if usage is not None
    ]
    if len(usages) > 1:
        usages.append(("all", sum((usage for _, usage in usages), Usage())))
    rows = [
        (
            name,
            str(use.n_prompt_tokens),
            str(use.n_output_tokens),
            f"{use.engine_seconds:.1f}",
            _rate_text(use),
        )
        for name, use in usages
    ]
    costs = ("Prompt tokens", "Output tokens", "Engine seconds", "Tokens per second")
    return Table((Column("Task", "name"), *(Column(cost, "number") for cost in costs)), rows)


def _rate_text(usage: Usage) -> str:
    n_tokens = usage.n_prompt_tokens + usage.n_output_tokens
    return f"{n_tokens / usage.engine_seconds:.0f}" if usage.engine_seconds > 0 else UNDEFINED
