"""Many bootstrap replicates of kappa and alpha at once, in floating point.

The formulas are those of `_agreement_table`, with each sum over rows weighted by how often a
replicate holds the row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from raveval.metrics import Replicator
from raveval.metrics._agreement_table import Distance, Level
from raveval.metrics._exact import Doubles, Integers

Statistic = Callable[["Replicates"], Doubles]
"""A coefficient of each replicate, NaN where it is undefined."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that two raters rated.

    Attributes:
        indices: those of the rows among all records.
        first, second: the category of each rater, from 0; shape `(n_rows,)`.
        positions: of the categories, ascending from 0 to 1.
    """

    indices: Integers
    first: Integers
    second: Integers
    positions: Doubles


@dataclass(frozen=True, slots=True)
class Replicates:
    """Replicates of the same rows.

    Attributes:
        rows: all of them.
        weights: how often each replicate holds each row, shape `(n_replicates, n_rows)`.
        of_first, of_second: how often each rater uses each category, shape
            `(n_replicates, n_categories)`.
    """

    rows: Rows
    weights: Doubles
    of_first: Doubles
    of_second: Doubles

    @property
    def n(self) -> Doubles:
        """Rows in each replicate."""
        n: Doubles = self.weights.sum(axis=1)
        return n


def rows_of(x: Doubles, y: Doubles) -> Rows:
    """Return the rows of two ratings, those without a NaN; infinite ones have no positions."""
    indices = np.flatnonzero(~(np.isnan(x) | np.isnan(y)))
    both = np.concatenate((x[indices], y[indices]))
    values, codes = np.unique(both, return_inverse=True)
    return Rows(indices, codes[: len(indices)], codes[len(indices) :], _positions(values))


def _positions(values: Doubles) -> Doubles:
    """Return distinct values on a scale from 0 to 1; NaN where that has no meaning."""
    if len(values) < 2 or not np.isfinite(values[[0, -1]]).all():
        return np.full(len(values), np.nan)
    # So that their range is a double.
    scaled = np.ldexp(values, -math.frexp(float(np.abs(values[[0, -1]]).max()))[1])
    positions: Doubles = (scaled - scaled[0]) / (scaled[-1] - scaled[0])
    return positions


def coefficients(rows: Rows, statistics: Mapping[str, Statistic]) -> Replicator:
    """Return what makes replicates of each of the statistics."""

    def estimates(weights: Integers) -> Mapping[str, Doubles]:
        of_rows = weights[:, rows.indices].astype(np.float64)
        n_categories = len(rows.positions)
        replicates = Replicates(
            rows,
            of_rows,
            _totals(of_rows, rows.first, n_categories),
            _totals(of_rows, rows.second, n_categories),
        )
        with np.errstate(invalid="ignore"):  # 0 / 0 in a replicate without a row
            return {name: statistic(replicates) for name, statistic in statistics.items()}

    return estimates


def _totals(weights: Doubles, codes: Integers, n_codes: int) -> Doubles:
    """Return the sums of the weights of each code."""
    order = np.argsort(codes, kind="stable")
    totals = np.zeros((len(weights), n_codes))
    if len(codes):
        present, starts = np.unique(codes[order], return_index=True)
        totals[:, present] = np.add.reduceat(weights[:, order], starts, axis=1)
    return totals


def kappa(distance: Distance) -> Statistic:
    """Return Cohen's kappa with a distance."""

    def statistic(replicates: Replicates) -> Doubles:
        rows, f, s = replicates.rows, replicates.of_first, replicates.of_second
        seen = (replicates.weights * _apart(rows, rows.positions, distance)).sum(axis=1)
        by_chance = _apart_by_chance(f, s, rows.positions, distance)
        is_constant = ((f > 0) | (s > 0)).sum(axis=1) < 2
        return 1 - _quotient(replicates.n * seen, np.where(is_constant, 0.0, by_chance))

    return statistic


def alpha(level: Level) -> Statistic:
    """Return Krippendorff's alpha of two raters."""

    def statistic(replicates: Replicates) -> Doubles:
        used = replicates.of_first + replicates.of_second
        # The ordinal distance is the squared difference of mid-ranks, those of the replicate.
        positions = replicates.rows.positions
        if level == "ordinal":
            positions = (np.cumsum(used, axis=1) - used / 2) / used.sum(axis=1, keepdims=True)
        distance: Distance = "nominal" if level == "nominal" else "quadratic"
        seen = 2 * (replicates.weights * _apart(replicates.rows, positions, distance)).sum(axis=1)
        by_chance = _apart_by_chance(used, used, positions, distance)
        is_constant = (used > 0).sum(axis=1) < 2
        factor = 2 * replicates.n - 1
        return 1 - factor * _quotient(seen, np.where(is_constant, 0.0, by_chance))

    return statistic


def _apart(rows: Rows, positions: Doubles, distance: Distance) -> Doubles:
    """Return the distance of the two ratings of each row."""
    if distance == "nominal":
        return np.asarray(rows.first != rows.second, np.float64)
    apart = np.abs(positions[..., rows.first] - positions[..., rows.second])
    return np.asarray(apart if distance == "linear" else apart**2, np.float64)


def _apart_by_chance(f: Doubles, s: Doubles, positions: Doubles, distance: Distance) -> Doubles:
    """Return the sum of the distances of all ratings of one kind from all of the other."""
    n_first, n_second = f.sum(axis=1), s.sum(axis=1)
    if distance == "nominal":
        return np.asarray(n_first * n_second - (f * s).sum(axis=1), np.float64)
    if distance == "linear":  # the pairs on different sides of each step, times its width
        below_first, below_second = np.cumsum(f, axis=1)[:, :-1], np.cumsum(s, axis=1)[:, :-1]
        apart = below_first * (n_second[:, None] - below_second)
        apart += below_second * (n_first[:, None] - below_first)
        return np.asarray((apart * np.diff(positions)).sum(axis=1), np.float64)
    centre = ((f + s) * positions).sum(axis=1) / (n_first + n_second)
    centred = positions - centre[:, None]
    squares = n_second * (f * centred**2).sum(axis=1) + n_first * (s * centred**2).sum(axis=1)
    products = (f * centred).sum(axis=1) * (s * centred).sum(axis=1)
    return np.asarray(squares - 2 * products, np.float64)


def _quotient(seen: Doubles, by_chance: Doubles) -> Doubles:
    """Return seen / by_chance; NaN where nothing differs by chance."""
    quotient = np.full(len(seen), np.nan)
    np.divide(seen, by_chance, out=quotient, where=by_chance > 0)
    return quotient
