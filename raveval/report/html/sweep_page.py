"""The page of a sweep: curves over training, checkpoints in a table, and which changes are real."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import raveval
from raveval.report.html.page import Block, Figure, Figures, Fold, Lines, Note, Page, Section
from raveval.report.html.sweep_figures import (
    CURVE_NOTE,
    FOREST_NOTE,
    MOST_DIFFERENCES,
    checkpoint_figures,
    curve_figures,
    difference_figures,
    difference_note,
)
from raveval.report.numbers import UNDEFINED, plain
from raveval.report.sweeps import (
    BEST_NOTE,
    FROM_BEST,
    FROM_PREVIOUS,
    best_lines,
    change_table,
    missing_lines,
    remark_lines,
    sweep_table,
)
from raveval.report.tables import Column, Table
from raveval.types import Results, Usage

if TYPE_CHECKING:
    from raveval.comparison import Difference
    from raveval.sweep import SweepResults


_MOST_FIGURES = 12

COST_NOTE = (
    "Tokens and engine seconds are those of the model and of a judge together. A judge grades all "
    "checkpoints at once, after their own processes."
)


def sweep_page(results: SweepResults) -> Page:
    """Return the report of a sweep as a page."""
    n_done = sum(each.results is not None for each in results.checkpoints)
    verdict = f"{n_done} of {len(results.checkpoints)} checkpoints evaluated"
    if results.failed:
        verdict += f"; failed: {', '.join(plain(each.name) for each in results.failed)}"
    if results.stopped:
        verdict += f"; stopped early: {', '.join(plain(each.name) for each in results.stopped)}"
    waiting = [plain(each.name) for each in results.checkpoints if each.state == "answered"]
    if waiting:
        verdict += f"; waiting for the judge: {', '.join(waiting)}"
    steps = sorted({each.step for each in results.checkpoints if each.step is not None})
    facts = [f"raveval {raveval.__version__}"]
    if steps:
        span = f"s {steps[0]} to {steps[-1]}" if len(steps) > 1 else f" {steps[0]}"
        facts.insert(0, f"training step{span}")
    return Page("Sweep", facts, verdict, results.is_carried_out, list(_sections(results)))


def _sections(results: SweepResults) -> Iterator[Section]:
    yield Section("Results", list(_result_blocks(results)))
    missing = missing_lines(results)
    if missing or results.remarks:
        yield Section("What is missing", [Lines([*missing, *remark_lines(results)])])
    if results.from_previous:
        yield Section(FROM_PREVIOUS, list(_change_blocks(results.from_previous)))
    if results.from_best:
        blocks = list(_change_blocks(results.from_best))
        yield Section(FROM_BEST, [Lines(best_lines(results)), *blocks, Note(BEST_NOTE)])
    yield Section("Cost", [_cost_table(results), Note(COST_NOTE)])


def _result_blocks(results: SweepResults) -> Iterator[Block]:
    stepped = [each for each in results.checkpoints if each.step is not None]
    if len({each.step for each in stepped}) > 1:
        steps = [float(each.step or 0) for each in stepped]
        yield from _few_open(curve_figures(steps, [each.results for each in stepped]))
        yield Note(CURVE_NOTE)
    else:
        done = {each.name: each.results for each in results.checkpoints if each.results}
        if len(done) > 1:
            yield from _few_open(checkpoint_figures(done))
            yield Note(FOREST_NOTE)
    yield sweep_table(results)


def _few_open(figures: Sequence[Figure]) -> Iterator[Block]:
    """Yield the first figures, and the others for whoever wants them."""
    yield Figures(figures[:_MOST_FIGURES])
    rest = figures[_MOST_FIGURES:]
    if rest:
        yield Fold(f"{len(rest)} more figures", [Figures(rest)])


def _change_blocks(differences: tuple[Difference, ...]) -> Iterator[Block]:
    several = len({d.task for d in differences}) > 1
    figures = difference_figures(differences, lambda d: f"{d.task}: {d.run}" if several else d.run)
    yield Figures(figures)
    yield Note(difference_note(differences))
    if len(differences) > MOST_DIFFERENCES:
        yield Note(f"Drawn are the {MOST_DIFFERENCES} with the smallest p of {len(differences)}.")
    yield Fold("All of them as a table", [change_table(differences)])


def _cost_table(results: SweepResults) -> Table:
    rows = []
    for each in results.checkpoints:
        costs = (UNDEFINED,) * 3 if each.results is None else _costs(each.results)
        seconds = f"{each.seconds:.0f}" if each.seconds else ""
        rows.append((plain(each.name), each.state.words, *costs, seconds))
    numbers = ("Prompt tokens", "Output tokens", "Engine seconds", "Seconds of its process")
    columns = (Column("Checkpoint", "name"), Column("State", "text"))
    return Table([*columns, *(Column(title, "number") for title in numbers)], rows)


def _costs(results: Results) -> tuple[str, str, str]:
    tasks = results.tasks.values()
    used = sum((u for task in tasks for u in (task.usage, task.judge_usage) if u), Usage())
    return str(used.n_prompt_tokens), str(used.n_output_tokens), f"{used.engine_seconds:.1f}"
