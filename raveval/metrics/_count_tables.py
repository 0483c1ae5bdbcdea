"""Turns counts of values, however many different ones, into tables small enough to be drawn.

Up to 13 different values are told apart (the means of three scores from 1 to 5 are 13); where there
are more, each stands with the nearest multiple of a round step. Counts stay exact.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from raveval.metrics._exact import Doubles, Integers
from raveval.types import Categories, CountTable

MOST_LABELS = 13

_ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)
_PROBED = 4096  # values that mostly tell whether there are many different ones
_SMALLEST_STEP = 1e-290


class _Side(NamedTuple):
    categories: Categories
    places: Integers


def distribution(values: Doubles, counts: Integers, *, name: str) -> CountTable:
    """Return how often each value occurs; `values` and `counts` have shape `(n,)`, none is NaN.

    >>> table = distribution(np.array([2.0, 1.0]), np.array([3, 4]), name="rating")
    >>> table.rows.labels, table.counts
    (('1', '2'), ((4,), (3,)))
    """
    side = _side(values, name)
    table = np.zeros((len(side.categories.labels), 1), np.int64)
    np.add.at(table[:, 0], side.places, counts)
    return CountTable(side.categories, None, _rows(table))


def joint(
    x: Doubles,
    y: Doubles,
    counts: Integers,
    *,
    names: tuple[str, str] = ("rating", "reference rating"),
) -> CountTable:
    """Return how often each pair occurs, x in rows and y in columns; shapes `(n,)`, no NaN."""
    rows, columns = _side(x, names[0]), _side(y, names[1])
    table = np.zeros((len(rows.categories.labels), len(columns.categories.labels)), np.int64)
    np.add.at(table, (rows.places, columns.places), counts)
    return CountTable(rows.categories, columns.categories, _rows(table))


def rating_tables(x: Doubles, y: Doubles, counts: Integers) -> dict[str, CountTable]:
    """Return the table of ratings x and reference ratings y, or none where there are no pairs."""
    return {"rating_by_reference_rating": joint(x, y, counts)} if len(counts) else {}


def _rows(table: Integers) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row) for row in table.tolist())


def _side(values: Doubles, name: str) -> _Side:
    """Return the categories of values and the place of each among them."""
    if len(np.unique(values[:_PROBED])) <= MOST_LABELS:
        distinct, places = np.unique(values, return_inverse=True)
        if len(distinct) <= MOST_LABELS:
            return _Side(Categories(name, tuple(map(_label, distinct.tolist()))), places)
    is_finite = np.isfinite(values)
    step = _step(values[is_finite])
    nearest = np.floor(values[is_finite] / step + 0.5).astype(np.int64)
    first, last = nearest.min().item(), nearest.max().item()
    below = ["-inf"] * int(np.isneginf(values).any())
    labels = [f"{number * step:.12g}" for number in range(first, last + 1)]
    above = ["inf"] * int(np.isposinf(values).any())
    places = np.where(values < 0, 0, len(below) + len(labels))  # of infinite ones
    places[is_finite] = nearest - first + len(below)
    return _Side(Categories(name, (*below, *labels, *above), step), places)


def _step(finite: Doubles) -> float:
    """Return the smallest round number of which at most MOST_LABELS - 1 cover the range.

    >>> _step(np.array([0.0, 1.0])), _step(np.array([1.0, 5.0]))
    (0.1, 0.5)
    """
    # Halved, so that the range of any two doubles is one, too.
    narrowest = max(2 * ((finite.max() / 2 - finite.min() / 2) / (MOST_LABELS - 2)), _SMALLEST_STEP)
    power = 10.0 ** math.floor(math.log10(narrowest))
    return next(digit * power for digit in _ROUND if digit * power >= narrowest)


def _label(value: float) -> str:
    return repr(value).removesuffix(".0")
