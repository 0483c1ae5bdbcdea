"""How a report looks: on a terminal, in a pipe, and as report.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from raveval.report.numbers import plain
from raveval.report.tables import (
    ADVICE,
    INTERVALS_COVER,
    Table,
    counts,
    coverage_text,
    group_table,
    header_line,
    macro_lines,
    metric_table,
    missing_lines,
    note_lines,
    note_texts,
    result_table,
    source_lines,
    usage_table,
)
from raveval.types import Results, TaskResults

if TYPE_CHECKING:
    from rich.console import Console

    from raveval.measurement import Measurement

N_FAILURES_SHOWN = 5
NARROWEST_NAME = 12


def print_table(results: Results, console: Console) -> None:
    """Print the table and, in words below it, what is missing.

    Where the output is no terminal it is as wide as it needs to be: no number is ever cut off.
    """
    print_line(console, header_line(results))
    print_cells(result_table(results), console)
    lines = (source_lines, note_lines, missing_lines)
    for line in (line for say in lines for line in say(results)):
        print_line(console, line)


def print_measurement(measurement: Measurement, console: Console) -> None:
    """Print what predictions are worth (`raveval measure`), and what became of the rows."""
    print_cells(metric_table(measurement.metrics), console)
    if measurement.groups:
        print_cells(group_table(measurement.metrics, measurement.groups), console)
        for line in macro_lines(measurement.macro):
            print_line(console, line)
    remarks = filter(None, [note_texts(measurement.notes)])
    print_line(console, "; ".join((f"{measurement.n_rows} rows", *remarks)))


def print_cells(table: Table, console: Console) -> None:
    """Print one table, in the form that Markdown takes over as it stands."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(box=box.MARKDOWN, header_style="bold", highlight=False)
    for column in table.columns:
        shown.add_column(
            Text(column.title),
            justify="right" if column.kind == "number" else "left",
            overflow="fold",
            no_wrap=column.kind != "name",
        )
    for row in table.rows:
        shown.add_row(*(Text(cell) for cell in row))
    limitless = console.options.update(max_width=1_000_000)
    natural = console.measure(shown, options=limitless).maximum
    narrowest = natural - _foldable_chars(table)
    shown.width = min(natural, max(console.width, narrowest)) if console.is_terminal else natural
    console.print(shown, crop=False)


def _foldable_chars(table: Table) -> int:
    """Return by how much names may be folded; a terminal narrower still wraps whole lines."""
    widths = (
        max([len(column.title), *(len(row[index]) for row in table.rows)])
        for index, column in enumerate(table.columns)
        if column.kind == "name"
    )
    return sum(max(width - NARROWEST_NAME, 0) for width in widths)


def to_markdown(results: Results) -> str:
    """Return report.md: settings, the table, coverage and failures, groups, cost."""
    sections = [
        escaped(header_line(results)),
        markdown_table(result_table(results)),
        f"Intervals are {INTERVALS_COVER}.",
        *_coverage_section(results),
        *_group_sections(results),
        "## Cost\n\n" + markdown_table(usage_table(results)),
    ]
    if results.times:
        times = (f"{plain(key)}: {plain(value)}" for key, value in results.times.items())
        sections.append("\n".join(f"- {escaped(line)}" for line in times))
    return "\n\n".join(sections) + "\n"


def _coverage_section(results: Results) -> Iterator[str]:
    yield "## Coverage"
    lines = [
        f"- {escaped(plain(name))}: {coverage_text(task.coverage)}"
        for name, task in results.tasks.items()
    ]
    kinds = {kind for task in results.tasks.values() for kind in counts(task.coverage, ADVICE)}
    lines += [f"- *{kind}*: {ADVICE[kind]}" for kind in ADVICE if kind in kinds]
    lines += [f"- {escaped(line)}" for say in (source_lines, note_lines) for line in say(results)]
    yield "\n".join(lines)
    for name, task in results.tasks.items():
        if task.failures:
            yield _failures(name, task)


def _failures(name: str, task: TaskResults) -> str:
    shown = islice(task.failures.items(), N_FAILURES_SHOWN)
    lines = [f"- {escaped(plain(key))}: {escaped(plain(text))}" for key, text in shown]
    n_missing = task.coverage.n_attempted - task.coverage.n_scored
    if n_missing > len(lines):
        lines.append(f"- … {n_missing} in all; each is in the records of the run directory")
    return "\n".join([f"Missing examples of {escaped(plain(name))}:", "", *lines])


def _group_sections(results: Results) -> Iterator[str]:
    for name, task in results.tasks.items():
        if task.groups:
            macro = "\n".join(f"- {escaped(line)}" for line in macro_lines(task.macro))
            table = markdown_table(group_table(task.metrics, task.groups))
            yield f"## {escaped(plain(name))} by group\n\n{table}\n\n{macro}".rstrip()


def markdown_table(table: Table) -> str:
    """Return a table as Markdown has it, with every cell escaped."""
    titles = [column.title for column in table.columns]
    rules = ["---:" if column.kind == "number" else ":---" for column in table.columns]
    head, *body = [[escaped(cell) for cell in row] for row in (titles, *table.rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rules, *body))


_MARKUP = re.compile(
    r"[\\`*|<>&#~]"
    r"|(?<=\])\("  # of a link; a bracket alone is an interval
    r"|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])"  # emphasis; inside a word it is a name
)


def escaped(text: str) -> str:
    """Escape what Markdown or HTML would obey, and leave names and intervals readable."""
    return _MARKUP.sub(lambda found: f"\\{found[0]}", text)


def print_line(console: Console, line: str) -> None:
    """Print a line as it is: wrapped softly, with nothing in it taken for markup."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)
