"""The accuracies that lm-eval printed for sixteen Pythia models, zero- and five-shot.

A cell holds a proportion p and its standard error, not n; n follows from sqrt(p(1-p) / (n-1)).
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from raveval.metrics import _intervals as intervals

PROPORTIONS = ("acc", "acc_norm", "pct_stereotype")


class Cell(NamedTuple):
    where: str
    task: str
    p: float
    stderr: float

    @property
    def n(self) -> int:
        return round(self.p * (1 - self.p) / self.stderr**2 + 1)


def cells_of(path: Path) -> Iterator[Cell]:
    for task, numbers in json.loads(path.read_text("utf-8"))["results"].items():
        for name in PROPORTIONS:
            if name in numbers:
                where = f"{path.name} {task} {name}"
                yield Cell(where, task, numbers[name], numbers[f"{name}_stderr"])


@pytest.fixture(scope="module")
def cells(shared_data: Path) -> list[Cell]:
    paths = sorted((shared_data / "pythia_evals").glob("*/*/*.json"))
    assert len(paths) == 32
    return [cell for path in paths for cell in cells_of(path)]


def test_every_cell_is_a_whole_number_of_examples(cells: list[Cell]):
    assert len(cells) == 4416
    for cell in cells:
        unrounded = cell.p * (1 - cell.p) / cell.stderr**2 + 1
        assert unrounded == pytest.approx(cell.n, rel=1e-10), cell
        assert cell.p * cell.n == pytest.approx(round(cell.p * cell.n), abs=1e-8), cell
    sizes = {(cell.task, cell.n) for cell in cells}
    assert len(sizes) == len({task for task, _ in sizes}), "a task has one size in all files"
    assert {n for task, n in sizes if task == "sciq"} == {1000}
    assert {n for task, n in sizes if task == "wsc"} == {104}


def test_our_standard_errors_are_the_printed_ones(cells: list[Cell]):
    """The values bit by bit; the errors to 13 digits, as lm-eval added up to 10^4 rounded squares.

    The largest relative difference is 5e-14; ours is the correctly rounded one, but for one unit.
    """
    for cell in cells:
        estimate = intervals.proportion(round(cell.p * cell.n), cell.n)
        assert estimate.value == cell.p, cell
        assert estimate.stderr == pytest.approx(cell.stderr, rel=1e-13, abs=0), cell
