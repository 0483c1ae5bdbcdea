"""How far correlations would vary over other examples: influences, and bootstrap replicates.

An influence says how a coefficient moves when a cell of the table gets a little more weight: the
derivative of the coefficient by the cell's share of the pairs. Influences average to zero over the
pairs, and the delta method's standard error is the root of their mean square over n; summed up by
cluster first, it is the error among clusters. For tau-b and tau-c this is the closed form of Brown
and Benedetti (JASA 72 (1977) 309-315).

Replicates are the coefficients of many resampled tables at once, in floating point: they make the
ends of an interval, never a value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from raveval.metrics._bootstrap import count_replicates
from raveval.metrics._exact import Booleans, Doubles, Integers
from raveval.metrics._joint_counts import Run, cluster_keys
from raveval.metrics._ranks import Axis, Cells

_NUMBERS_AT_ONCE = 1 << 20  # bounds the memory of resampled rows: 8 MiB


def pearson_influence(cells: Cells, value: float) -> Doubles:
    """Return the influence of each cell on Pearson's correlation `value` of finite ratings."""
    x = _standardised(cells.x)[cells.x.of_cell]
    y = _standardised(cells.y)[cells.y.of_cell]
    return x * y - value / 2 * (x * x + y * y)


def spearman_influence(cells: Cells, value: float) -> Doubles:
    """Return the influence of each cell on Spearman's correlation `value`.

    More weight on a cell adds its own product of ranks to their covariance, and shifts the ranks of
    all others, down where they are below it and up where they are above.
    """
    n, i, j = cells.n, cells.x.of_cell, cells.y.of_cell
    x, y = cells.x.centred_ranks / (2 * n), cells.y.centred_ranks / (2 * n)  # in [-1/2, 1/2]
    x_variance = math.fsum(cells.x.totals * x * x) / n
    y_variance = math.fsum(cells.y.totals * y * y) / n
    covariance = (
        (x[i] * y[j])
        + _shift(np.bincount(i, cells.counts * y[j]) / n)[i]
        + _shift(np.bincount(j, cells.counts * x[i]) / n)[j]
    )
    x_own = (x * x + 2 * _shift(cells.x.totals * x / n)) / x_variance
    y_own = (y * y + 2 * _shift(cells.y.totals * y / n)) / y_variance
    return covariance / math.sqrt(x_variance * y_variance) - value / 2 * (x_own[i] + y_own[j])


def _shift(products: Doubles) -> Doubles:
    """Return half of what is above each value less what is below it."""
    through = np.cumsum(products)
    shift: Doubles = (through[-1] - through - (through - products)) / 2
    return shift


def tau_b_influence(cells: Cells, difference: Integers, value: float) -> Doubles:
    """Return the influence of each cell on tau-b `value`, from the result of `concordance`."""
    n = cells.n
    x_untied, y_untied = cells.x.n_untied / n**2, cells.y.n_untied / n**2
    x_own = (1 - cells.x.totals / n) / x_untied
    y_own = (1 - cells.y.totals / n) / y_untied
    own = x_own[cells.x.of_cell] + y_own[cells.y.of_cell]
    return 2 * difference / n / math.sqrt(x_untied * y_untied) - value * own


def tau_c_influence(cells: Cells, difference: Integers, value: float) -> Doubles:
    """Return the influence of each cell on tau-c `value`, from the result of `concordance`.

    The number of distinct ratings, which tau-c is scaled by, counts as known.
    """
    m = min(len(cells.x.values), len(cells.y.values))
    return 2 * (m / (m - 1) * difference / cells.n - value)


def standard_error(cells: Cells, influence: Doubles) -> float:
    """Return the delta method's standard error over independent pairs."""
    return math.sqrt(math.fsum(cells.counts * influence**2)) / cells.n


def clustered_error(run: Run, cells: Cells, influence: Doubles) -> float:
    """Return the same over independent clusters, of which there are at least two.

    With the factor G / (G - 1) for G clusters (CR1), as for the estimates that are ratios of sums.
    """
    keys, cluster_of_row = np.unique(cluster_keys(run), return_inverse=True)
    sums = np.bincount(cluster_of_row, run.counts * influence[_cell_of_row(run, cells)])
    return math.sqrt(len(keys) / (len(keys) - 1) * math.fsum(sums**2)) / cells.n


def resampled_pairs(cells: Cells) -> Iterator[Doubles]:
    """Yield tables of n pairs drawn with replacement, shape `(n_tables, n_cells)`."""
    for tables in count_replicates(cells.counts):
        yield tables.astype(np.float64)


def resampled_clusters(run: Run, cells: Cells) -> Iterator[Doubles]:
    """Yield tables of as many clusters as there are, drawn with replacement, of the same shape."""
    keys, cluster_of_row = np.unique(cluster_keys(run), return_inverse=True)
    rows_at_once = max(1, _NUMBERS_AT_ONCE // len(run))
    for draws in count_replicates(np.ones(len(keys), np.int64)):
        for start in range(0, len(draws), rows_at_once):
            weights = draws[start : start + rows_at_once, cluster_of_row] * run.counts
            yield np.add.reduceat(weights, cells.first_rows, axis=1).astype(np.float64)


def pearson_replicates(tables: Doubles, cells: Cells) -> Doubles:
    """Return Pearson's correlation of each table, NaN where a side is constant."""
    x = _standardised(cells.x)[cells.x.of_cell]
    y = _standardised(cells.y)[cells.y.of_cell]
    n, sx, sy = tables.sum(1), (tables * x).sum(1), (tables * y).sum(1)
    xy = n * (tables * (x * y)).sum(1) - sx * sy
    xx = n * (tables * (x * x)).sum(1) - sx * sx
    yy = n * (tables * (y * y)).sum(1) - sy * sy
    # A side that a replicate makes constant leaves a rounding error where 0 is meant.
    is_constant = ~(_has_two(tables, cells.x) & _has_two(tables, cells.y))
    return _quotients(xy, np.where(is_constant, 0.0, xx * yy))


def spearman_replicates(tables: Doubles, cells: Cells) -> Doubles:
    """Return Spearman's correlation of each table, NaN where a side is constant."""
    n = tables.sum(1, keepdims=True)
    x_totals, y_totals = _totals(tables, cells.x), _totals(tables, cells.y)
    x = 2 * np.cumsum(x_totals, axis=1) - x_totals - n
    y = 2 * np.cumsum(y_totals, axis=1) - y_totals - n
    xy = (tables * x[:, cells.x.of_cell] * y[:, cells.y.of_cell]).sum(1)
    return _quotients(xy, (x_totals * x * x).sum(1) * (y_totals * y * y).sum(1))


def orders(cells: Cells) -> Doubles:
    """Return for each two cells 1 if they are concordant, -1 if discordant, 0 if tied."""
    i, j = cells.x.of_cell, cells.y.of_cell
    signs: Doubles = np.sign((i[:, None] - i) * (j[:, None] - j)).astype(np.float64)
    return signs


def kendall_replicates(tables: Doubles, cells: Cells, signs: Doubles) -> dict[str, Doubles]:
    """Return tau-b and tau-c of each table, NaN where a side is constant; `signs` as by `orders`.

    tau-c is scaled by the distinct ratings of the data, not of each table.
    """
    # Sums of whole numbers, exact below 2^53, in whatever order the product adds them.
    difference = ((tables @ signs) * tables).sum(1)
    n2 = tables.sum(1) ** 2
    x_untied = n2 - (_totals(tables, cells.x) ** 2).sum(1)
    y_untied = n2 - (_totals(tables, cells.y) ** 2).sum(1)
    m = min(len(cells.x.values), len(cells.y.values))
    is_constant = (x_untied == 0) | (y_untied == 0)
    tau_c = np.where(is_constant, np.nan, m / (m - 1) * difference / n2)
    tau_b = _quotients(difference, x_untied * y_untied)
    return {"kendall_tau_b": tau_b, "kendall_tau_c": tau_c}


def _cell_of_row(run: Run, cells: Cells) -> Integers:
    lengths = np.diff(cells.first_rows, append=len(run))
    return np.repeat(np.arange(len(cells.counts)), lengths)


def _standardised(axis: Axis) -> Doubles:
    """Return each value less the mean, over the standard deviation; NaN where rounding hides it."""
    n = int(axis.totals.sum())
    largest = float(np.abs(axis.values).max())
    # Near 1, so that no square overflows or vanishes.
    values = np.ldexp(axis.values, -math.frexp(largest)[1])
    centred = values - math.fsum(axis.totals * values) / n
    spread = math.sqrt(math.fsum(axis.totals * centred**2) / n)
    standardised: Doubles = centred / spread if spread else np.full(len(values), np.nan)
    return standardised


def _totals(tables: Doubles, axis: Axis) -> Doubles:
    """Return how many pairs of each table have each value of a side."""
    order = np.argsort(axis.of_cell, kind="stable")
    starts = np.searchsorted(axis.of_cell[order], np.arange(len(axis.values)))
    totals: Doubles = np.add.reduceat(tables[:, order], starts, axis=1)
    return totals


def _has_two(tables: Doubles, axis: Axis) -> Booleans:
    several: Booleans = np.count_nonzero(_totals(tables, axis), axis=1) > 1
    return several


def _quotients(numerators: Doubles, squares: Doubles) -> Doubles:
    """Return numerator / sqrt(square), NaN where the square is zero."""
    roots = np.sqrt(np.where(squares > 0, squares, np.nan))
    quotients: Doubles = numerators / roots
    return quotients
