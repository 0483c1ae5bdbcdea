"""How a sweep looks: checkpoints and their numbers, what failed, and which changes are real."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from raveval.report.checkpoints import checkpoint_table
from raveval.report.differences import difference_rows, test_kind
from raveval.report.numbers import plain
from raveval.report.render import escaped, markdown_table, print_cells, print_line
from raveval.report.tables import Column, Table, coverage_text

if TYPE_CHECKING:
    from rich.console import Console

    from raveval.comparison import Difference
    from raveval.sweep import SweepResults, SweptCheckpoint
    from raveval.sweep.outcome import Progress

FROM_PREVIOUS = "Changes from the checkpoint before"
FROM_BEST = "Differences from the best checkpoint"
BEST_NOTE = (
    "The best checkpoint of a task was chosen by the same examples, so these differences are a "
    "little too large."
)

_MOST_CHARS = 1000
"""What a line of remarks and of reasons may have."""


def print_sweep(results: SweepResults, console: Console) -> None:
    """Print the table of checkpoints, what failed, and the changes from one to the next."""
    print_cells(sweep_table(results), console)
    if results.from_previous:
        how = f"{test_kind(results.from_previous)}, p adjusted by Holm's method"
        print_line(console, f"{FROM_PREVIOUS} ({how}):")
        print_cells(change_table(results.from_previous), console)
    for line in (*best_lines(results), *missing_lines(results), *remark_lines(results)):
        print_line(console, line)


def sweep_to_markdown(results: SweepResults) -> str:
    """Return report.md of a sweep."""
    parts = ["# Sweep", markdown_table(sweep_table(results))]
    for title, differences in (
        (FROM_PREVIOUS, results.from_previous),
        (FROM_BEST, results.from_best),
    ):
        if differences:
            parts += [f"## {title}", markdown_table(change_table(differences))]
            if title is FROM_BEST:
                parts += [
                    "\n".join(f"- {escaped(line)}" for line in best_lines(results)),
                    BEST_NOTE,
                ]
    lines = [*missing_lines(results), *remark_lines(results)]
    if lines:
        parts += ["## Remarks", "\n".join(f"- {escaped(line)}" for line in lines)]
    return "\n\n".join(parts) + "\n"


def best_lines(results: SweepResults) -> list[str]:
    """Say which checkpoint is the best of each task, and which are as good."""
    lines = []
    for task, (first, *others) in results.best.items():
        tied = f" (as good: {', '.join(map(plain, others))})" if others else ""
        lines.append(f"{plain(task)}: the best checkpoint is {plain(first)}{tied}")
    return lines


def sweep_table(results: SweepResults) -> Table:
    """Return a row for each checkpoint: what became of it, and the numbers its tasks are quoted by.

    The name of one without numbers stands with its state, such as "failed". One that was stopped
    early has none: it says how far it came.
    """
    labels = {each.name: _label(each) for each in results.checkpoints}
    return checkpoint_table(
        {labels[each.name]: each.results for each in results.checkpoints},
        {
            labels[each.name]: {
                task: f"{progress.n_done} of {progress.n_examples} done"
                for task, progress in each.progress.items()
            }
            for each in results.checkpoints
        },
    )


def _label(checkpoint: SweptCheckpoint) -> str:
    state = f" ({checkpoint.state.words})" if checkpoint.results is None else ""
    return checkpoint.name + state


def remark_lines(results: SweepResults) -> list[str]:
    """Return the sweep's remarks, fit to be shown."""
    return [plain(remark, limit=_MOST_CHARS) for remark in results.remarks]


def progress_text(progress: Progress) -> str:
    """Return how far a task of a checkpoint came that was stopped early."""
    return f"{progress.n_done} of {progress.n_examples} examples done, {progress.n_left} not asked"


def change_table(differences: Sequence[Difference]) -> Table:
    """Return a row for each difference, as `raveval compare` shows it."""
    columns, rows = difference_rows(differences)
    labelled = [
        (plain(d.task), plain(d.run), *row) for d, row in zip(differences, rows, strict=True)
    ]
    return Table([Column("Task", "name"), Column("Checkpoint", "name"), *columns], labelled)


def missing_lines(results: SweepResults) -> list[str]:
    """Say which checkpoints failed, wait, were stopped or left alone, and which examples lack."""
    lines = []
    for each in results.checkpoints:
        if each.results is None or each.message:
            said = (each.name, each.state.words, each.message)
            lines.append(": ".join(plain(text, limit=_MOST_CHARS) for text in said if text))
        lines += [
            f"{plain(each.name)}: {plain(task)}: {progress_text(progress)}"
            for task, progress in each.progress.items()
        ]
        if each.results is None:
            continue
        lines += [
            f"{plain(each.name)}: {plain(task)}: {coverage_text(found.coverage)}"
            for task, found in each.results.tasks.items()
            if found.coverage.n_scored < found.coverage.n_attempted
        ]
    return lines
