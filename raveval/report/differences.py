"""How a comparison of runs looks: the table, the lines below it, Markdown, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

import raveval
from raveval.metrics._headline import HEADLINE
from raveval.report.numbers import direction, interval_text, plain, value_text
from raveval.report.render import escaped, markdown_table, print_cells, print_line
from raveval.report.tables import AUXILIARY, Column, Table
from raveval.types import Estimate

if TYPE_CHECKING:
    from rich.console import Console

    from raveval.comparison import Comparison, Difference, Pairing

_POINTS = "pp"
"""Differences of percentages are percentage points; a difference of 2 % would be ambiguous."""


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print the table of differences, what is compared above it, and how to read it below."""
    for line in _header_lines(comparison):
        print_line(console, line)
    print_cells(difference_table(comparison), console)
    for line in _remark_lines(comparison):
        print_line(console, line)


def comparison_to_markdown(comparison: Comparison) -> str:
    """Return the same as Markdown."""
    parts = [_header_lines(comparison), _remark_lines(comparison)]
    header, remarks = ("\n".join(f"- {escaped(line)}" for line in lines) for lines in parts)
    return f"{header}\n\n{markdown_table(difference_table(comparison))}\n\n{remarks}\n"


def comparison_to_json(comparison: Comparison) -> str:
    """Return everything as strict JSON: fractions, not percents; what is undefined is null.

    Raises:
        ValueError: a number is not finite.
    """
    content = {
        **asdict(comparison),
        "family": {
            "adjustment": "holm",
            "tests": [
                {"task": d.task, "run": d.run, "metric": d.metric} for d in comparison.family
            ],
        },
        "raveval_version": raveval.__version__,
    }
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def comparison_to_csv(comparison: Comparison) -> str:
    """Return one row for each difference, numbers as in the JSON; undefined ones are empty."""
    from raveval.comparison import Difference

    sheet = io.StringIO()
    columns = [field.name for field in fields(Difference)]
    writer = csv.DictWriter(sheet, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(difference) for difference in comparison.differences)
    return sheet.getvalue()


def difference_table(comparison: Comparison) -> Table:
    """Return a row for each estimate, in the family first, then as a report orders them."""
    has_runs = len(comparison.runs) > 1
    columns = [Column("Task", "name")]
    if has_runs:
        columns.append(Column("Run", "name"))
    rows = []
    for pairing in comparison.pairings:
        labels = (plain(pairing.task), *([plain(pairing.run)] if has_runs else []))
        for difference in _ordered(comparison, pairing):
            rows.append((*labels, *_cells(difference)))
            labels = ("",) * len(labels)
    return Table([*columns, *_COLUMNS], rows)


_COLUMNS = (
    Column("Metric", "name"),
    Column("↑/↓", "text"),
    *(Column(title, "number") for title in ("Baseline", "Value", "Difference")),
    Column("95 % interval", "text"),
    *(Column(title, "number") for title in ("p", "p (Holm)", "Pairs", "Discordant")),
    Column("Detectable", "number"),
    Column("Test", "text"),
    Column("Verdict", "text"),
)


def difference_rows(
    differences: Sequence[Difference],
) -> tuple[tuple[Column, ...], list[tuple[str, ...]]]:
    """Return the columns of a table of differences, and the cells of each."""
    return _COLUMNS, [_cells(difference) for difference in differences]


def _ordered(comparison: Comparison, pairing: Pairing) -> list[Difference]:
    def rank(difference: Difference) -> tuple[bool, int]:
        name = difference.metric
        place = HEADLINE.index(name) if name in HEADLINE else len(HEADLINE)
        last = 1 + AUXILIARY.index(name) if name in AUXILIARY else 0
        return difference.p_holm is None, place + last

    of = (pairing.task, pairing.run)
    return sorted((d for d in comparison.differences if (d.task, d.run) == of), key=rank)


def _cells(d: Difference) -> tuple[str, ...]:
    discordant = "" if d.n_only_run is None else f"{d.n_only_baseline}/{d.n_only_run}"
    return (
        plain(d.metric),
        direction(_shown(d, d.value)),
        value_text(_shown(d, d.baseline)),
        value_text(_shown(d, d.value)),
        difference_text(d),
        _difference_interval_text(d),
        p_text(d.p),
        p_text(d.p_holm),
        "" if d.is_unpaired else str(d.n),
        discordant,
        _detectable_text(d),
        _test_text(d),
        _verdict_text(d),
    )


def _shown(d: Difference, value: float | None) -> Estimate:
    """Return one of the numbers of a row, to be written with the digits that its interval has."""
    return Estimate(
        value,
        d.unit,
        d.n,
        reason=d.reason if value is None else None,
        low=d.low,
        high=d.high,
        higher_is_better=d.higher_is_better,
    )


def difference_text(d: Difference) -> str:
    """Return a difference with its sign, of percentages in points; of perplexities the ratio."""
    if d.ratio is not None:
        return f"×{value_text(_shown_ratio(d, d.ratio))}"
    text = _in_points(value_text(_shown(d, d.difference)))
    return f"+{text}" if d.difference is not None and d.difference > 0 else text


def _difference_interval_text(d: Difference) -> str:
    shown = _shown(d, d.difference) if d.ratio is None else _shown_ratio(d, d.ratio)
    return interval_text(shown)


def _detectable_text(d: Difference) -> str:
    if d.ratio is not None:
        known = d.ratio_detectable
        return "" if known is None else f"×{value_text(_shown_ratio(d, known))}"
    return "" if d.detectable is None else _in_points(value_text(_shown(d, d.detectable)))


def _shown_ratio(d: Difference, value: float) -> Estimate:
    return Estimate(value, "ratio", d.n, low=d.ratio_low, high=d.ratio_high)


def _in_points(text: str) -> str:
    return f"{text.removesuffix('%')}{_POINTS}" if text.endswith("%") else text


def p_text(p: float | None) -> str:
    """Return a p-value with two digits, or nothing."""
    return "" if p is None else f"{p:.2g}"


def test_kind(differences: Sequence[Difference]) -> str:
    """Return what kind of test differences rest on: paired by example or not."""
    kinds = {d.is_unpaired for d in differences if d.test is not None}
    words = {
        frozenset({True}): "an unpaired test",
        frozenset({True, False}): "a test, some unpaired,",
    }
    return words.get(frozenset(kinds), "a paired test")


def _test_text(d: Difference) -> str:
    if d.test == "cluster-t":
        return f"t, {d.n_units} clusters"
    if d.test == "paired-bootstrap":
        return f"bootstrap, {d.n_replicates}"
    if d.is_unpaired:
        return "z, unpaired"
    return "McNemar, exact" if d.test == "mcnemar-exact" else plain(d.test or "")


def _verdict_text(d: Difference) -> str:
    is_unadjusted = d.p is not None and d.p_holm is None and not d.is_identical
    return f"({d.verdict})" if is_unadjusted else str(d.verdict)


def _header_lines(comparison: Comparison) -> list[str]:
    runs = [("baseline", comparison.baseline), *(("run", run) for run in comparison.runs)]
    shown = [f"{label}: {plain(run.directory)} ({plain(run.model)})" for label, run in runs]
    return [f"raveval {raveval.__version__}", *shown]


def _remark_lines(comparison: Comparison) -> list[str]:
    lines = [plain(remark, limit=10_000) for remark in comparison.remarks]
    for pairing in comparison.pairings:
        lines += _pairing_lines(comparison, pairing)
    family = [_name(comparison, d) for d in comparison.family]
    if family:
        tests = "the one test" if len(family) == 1 else f"the {len(family)} tests"
        outside = any(d.p is not None and d.p_holm is None for d in comparison.differences)
        rest = "; p-values outside of it, and verdicts in brackets, are not" if outside else ""
        lines.append(f"p (Holm) is adjusted for {tests} of the family ({', '.join(family)}){rest}")
        lines.append(
            "Discordant: right in the baseline only / in the run only. Detectable: the true "
            "difference that such a comparison shows in 80 % of all cases, two-sided at 5 %"
        )
    if any(d.ratio is not None for d in comparison.differences):
        lines.append("×: value / baseline, of perplexities: errors are on their logarithm")
    return lines


def _name(comparison: Comparison, d: Difference) -> str:
    where = plain(d.task) if len(comparison.runs) == 1 else f"{plain(d.task)} in {plain(d.run)}"
    return f"{plain(d.metric)} of {where}"


def _pairing_lines(comparison: Comparison, pairing: Pairing) -> Iterator[str]:
    where = plain(pairing.task)
    if len(comparison.runs) > 1:
        where += f", {plain(pairing.run)}"
    counts = {
        f"scored only in {plain(comparison.baseline.directory)}": pairing.n_only_baseline,
        f"only in {plain(pairing.run)}": pairing.n_only_run,
        "in neither": pairing.n_neither,
    }
    clusters = ""
    if pairing.n_clusters is not None:
        clusters = f", in {pairing.n_clusters} clusters, which are the units"
    missing = "".join(f"; {n} {what}" for what, n in counts.items() if n)
    if missing:
        missing += "; all values are those of the pairs"
    if pairing.is_paired:
        yield f"{where}: {pairing.n_paired} examples paired{clusters}{missing}"
    else:
        yield f"{where}: compared by the two standard errors alone, which shows less than pairs do"
    found = [d for d in comparison.differences if (d.task, d.run) == (pairing.task, pairing.run)]
    tested = [d for d in found if d.p is not None]
    if tested and all(d.is_identical for d in tested):
        yield f"{where}: the runs have the same scores on every paired example"
    untested = [d for d in found if d.p is None and d.difference is not None]
    reasons = [f"{plain(d.metric)} ({plain(d.reason)})" for d in untested if d.reason]
    if reasons:
        yield f"{where}: no test of {', '.join(reasons)}"
    skipped = [plain(d.metric) for d in untested if not d.reason]
    if skipped:
        yield f"{where}: not tested: {', '.join(skipped)}; name them with --metrics to have them"
    other = [plain(d.metric) for d in found if d.verdict == "not comparable"]
    if other:
        yield (
            f"{where}: the runs count different tokens, so {', '.join(other)} cannot be compared; "
            "numbers per word, byte or character can"
        )
