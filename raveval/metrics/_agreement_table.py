"""Cohen's kappa and Krippendorff's alpha from counts, exact but for the last rounding.

Both are 1 - Do / De: the mean distance of the two ratings of a row, over the mean distance that
ratings would have if they were dealt out at random, each rater's own (kappa) or all of them
together (alpha). So 1 is full agreement, 0 that of chance, and less is disagreement. With distances
on a line both sums come from sorted positions in one pass, without a matrix of all categories.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Literal, NamedTuple

import numpy as np

from raveval.metrics import _intervals as intervals
from raveval.metrics._alpha_intervals import (
    CategoryCounts,
    UnitValues,
    with_rank_interval,
    with_value_interval,
    without_spread,
)
from raveval.metrics._exact import root
from raveval.types import Estimate

UNIT = "coefficient"

Distance = Literal["nominal", "linear", "quadratic"]
"""Of two positions x, y: 1 where they differ, |x - y|, or (x - y)^2."""

Level = Literal["nominal", "ordinal", "interval"]
"""Krippendorff's metrics: 1 where ratings differ, ranks between them squared, (x - y)^2."""


CellCounts = Mapping[tuple[int, int], int]
"""(position of the first rater's category, of the second's) → rows."""


class Units(NamedTuple):
    """Rows of several ratings each, counted by what they hold.

    Attributes:
        ratings: positions of the ratings of each kind of row, at least two, ascending.
        counts: rows of each kind.
    """

    ratings: list[tuple[int, ...]]
    counts: list[int]


class CategoryTable(NamedTuple):
    """How often the categories of two raters meet.

    Attributes:
        positions: those of all categories that occur, ascending from 0, in the largest unit that
            makes them whole; only the ratios of their distances matter.
        first, second: the category of each rater in each cell, as indices.
        counts: rows in each cell.
    """

    positions: list[int]
    first: list[int]
    second: list[int]
    counts: list[int]

    @property
    def n(self) -> int:
        """Rows in all cells."""
        return sum(self.counts)

    def marginals(self) -> tuple[list[int], list[int]]:
        """Return how often each rater uses each category."""
        of_first, of_second = [0] * len(self.positions), [0] * len(self.positions)
        for i, j, count in zip(self.first, self.second, self.counts, strict=True):
            of_first[i] += count
            of_second[j] += count
        return of_first, of_second

    def category_counts(self) -> CategoryCounts:
        """Return the cells as arrays."""
        return CategoryCounts(np.array(self.first), np.array(self.second), np.array(self.counts))

    def units(self) -> Units:
        """Return the cells as rows of two ratings."""
        cells = zip(self.first, self.second, strict=True)
        ratings = [tuple(sorted((self.positions[i], self.positions[j]))) for i, j in cells]
        return Units(ratings, self.counts)


def category_table(cells: CellCounts) -> CategoryTable:
    """Return the table of cells, whose order does not matter."""
    ordered = sorted(cells)
    positions = sorted({position for cell in ordered for position in cell})
    index = {position: i for i, position in enumerate(positions)}
    unit = math.gcd(*(position - positions[0] for position in positions)) or 1
    return CategoryTable(
        [(position - positions[0]) // unit for position in positions],
        [index[first] for first, _ in ordered],
        [index[second] for _, second in ordered],
        [cells[cell] for cell in ordered],
    )


def kappa(table: CategoryTable, distance: Distance) -> Estimate:
    """Return Cohen's kappa, weighted by a distance, with its large-sample interval.

    The standard error is that of Fleiss, Cohen and Everitt (Psychological Bulletin 72 (1969)
    323-327): the delta method's. There is none for fewer than two rows, and no interval where it is
    0, as in full agreement: the formula would claim certainty.
    """
    n = table.n
    if n == 0:
        return _undefined("n=0", 0)
    of_first, of_second = table.marginals()
    to_second = _total_distances(table.positions, of_second, distance)
    to_first = _total_distances(table.positions, of_first, distance)
    by_chance = _dot(of_first, to_second)
    if by_chance == 0:
        return _undefined("constant", n)
    apart = _distances(table, distance)
    seen = n * _dot(table.counts, apart)
    value = float(1 - Fraction(seen, by_chance))
    point = Estimate(value, UNIT, n, higher_is_better=True)
    if n < 2:
        return replace(point, no_interval="n<2")
    # What each row adds to kappa, times n * by_chance, so that it is an integer.
    influences = [
        seen * (to_second[i] + to_first[j]) - n * by_chance * v
        for i, j, v in zip(table.first, table.second, apart, strict=True)
    ]
    total = _dot(table.counts, influences)
    squares = _dot(table.counts, [u * u for u in influences])
    stderr = root(Fraction(n * squares - total * total, n * by_chance**4))
    if stderr == 0:
        return replace(point, stderr=0.0, no_interval=without_spread(value))
    low, high = intervals.normal(value, stderr, at_least=-1.0, at_most=1.0)
    return replace(point, stderr=stderr, low=low, high=high, interval="normal95")


def alpha(table: CategoryTable, level: Level) -> Estimate:
    """Return Krippendorff's alpha of two raters, with the interval of `_alpha_intervals`.

    Source: Krippendorff, Content Analysis (4th edition 2019), chapter 12.
    """
    n = table.n
    if n == 0:
        return _undefined("n=0", 0)
    used = [a + b for a, b in zip(*table.marginals(), strict=True)]
    if len(used) == 1:
        return _undefined("constant", n)
    # The ordinal distance is the squared difference of mid-ranks.
    positions = _mid_ranks(used) if level == "ordinal" else table.positions
    distance: Distance = "nominal" if level == "nominal" else "quadratic"
    seen = 2 * _dot(table.counts, _distances(table._replace(positions=positions), distance))
    by_chance = _dot(used, _total_distances(positions, used, distance))
    value = float(1 - Fraction((2 * n - 1) * seen, by_chance))
    point = Estimate(value, UNIT, n, higher_is_better=True)
    if level != "interval":
        return with_rank_interval(point, table.category_counts(), is_nominal=level == "nominal")
    return with_value_interval(point, unit_values(table.units()))


def alpha_interval(units: Units) -> Estimate:
    """Return Krippendorff's alpha for rows of any number of ratings, with squared differences.

    Interval as for `alpha`; `n` counts the rows.
    """
    n = sum(units.counts)
    if n == 0:
        return _undefined("n=0", 0)
    size = total = squares = 0
    seen = Fraction(0)
    for ratings, count in zip(units.ratings, units.counts, strict=True):
        m, s1, s2 = len(ratings), sum(ratings), sum(r * r for r in ratings)
        size += count * m
        total += count * s1
        squares += count * s2
        seen += Fraction(count * (m * s2 - s1 * s1), m - 1)
    by_chance = size * squares - total * total
    if by_chance == 0:
        return _undefined("constant", n)
    value = float(1 - (size - 1) * seen / by_chance)
    point = Estimate(value, UNIT, n, higher_is_better=True)
    return with_value_interval(point, unit_values(units))


def _undefined(reason: str, n: int) -> Estimate:
    return intervals.undefined(reason, unit=UNIT, n=n, higher_is_better=True)


def _dot(a: Iterable[int], b: Iterable[int]) -> int:
    return sum(x * y for x, y in zip(a, b, strict=True))


def _distances(table: CategoryTable, distance: Distance) -> list[int]:
    """Return the distance of the two categories of each cell."""
    x = [table.positions[i] for i in table.first]
    y = [table.positions[j] for j in table.second]
    if distance == "nominal":
        return [int(a != b) for a, b in zip(x, y, strict=True)]
    power = 1 if distance == "linear" else 2
    return [abs(a - b) ** power for a, b in zip(x, y, strict=True)]


def _total_distances(
    positions: Sequence[int], weights: Sequence[int], distance: Distance
) -> list[int]:
    """Return the sum of the distances from each category to all, as often as these are used."""
    n = sum(weights)
    if distance == "nominal":
        return [n - weight for weight in weights]
    s1 = _dot(weights, positions)
    if distance == "quadratic":
        s2 = _dot(weights, [p * p for p in positions])
        return [n * p * p - 2 * p * s1 + s2 for p in positions]
    totals, below, sum_below = [], 0, 0
    for position, weight in zip(positions, weights, strict=True):
        # Twice the part below, as if it lay above, and the whole.
        totals.append(2 * (position * below - sum_below) + s1 - position * n)
        below += weight
        sum_below += weight * position
    return totals


def _mid_ranks(used: Sequence[int]) -> list[int]:
    """Return twice the mid-rank of each category, counted from 0."""
    ranks, below = [], 0
    for count in used:
        ranks.append(2 * below + count)
        below += count
    return ranks


def unit_values(units: Units) -> UnitValues:
    """Return what the interval of alpha is made of: alpha is the same on any linear scale."""
    lowest = min(ratings[0] for ratings in units.ratings)
    width = max(ratings[-1] for ratings in units.ratings) - lowest
    scaled = [[float(Fraction(r - lowest, width)) for r in ratings] for ratings in units.ratings]
    means = [sum(ratings) / len(ratings) for ratings in scaled]
    within = [sum((r - c) ** 2 for r in ratings) for ratings, c in zip(scaled, means, strict=True)]
    return UnitValues(
        np.array(units.counts),
        np.array([len(ratings) for ratings in scaled]),
        np.array(means),
        np.array(within),
        np.array([ratings[0] for ratings in scaled]),
        np.array([ratings[-1] for ratings in scaled]),
    )
