"""Many bootstrap replicates of correlations at once, in floating point.

With up to `MOST_CELLS` distinct pairs each replicate is the coefficient of what was drawn. With
more, tau-b and tau-c, which would take time for each two of them, are followed to first order:
their value for all pairs, and the mean influence of those that were drawn. There are then so many
pairs that the rest is small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from raveval.metrics import Replicator
from raveval.metrics import _correlation_errors as errors
from raveval.metrics import _ranks as ranks
from raveval.metrics._correlation_intervals import MOST_CELLS
from raveval.metrics._exact import Doubles, Integers
from raveval.metrics._joint_counts import Run, paired
from raveval.metrics._ranks import Cells

NAMES = ("pearson", "spearman", "kendall_tau_b", "kendall_tau_c")

TableEstimates = Callable[[Doubles], Mapping[str, Doubles]]
"""Estimates of tables of pairs, shape `(n_replicates, n_cells)`."""


def correlations(x: Doubles, y: Doubles) -> Replicator:
    """Return what makes replicates of the correlations of these pairs; one with a NaN is none."""
    rows = np.flatnonzero(~(np.isnan(x) | np.isnan(y)))
    pairs, cell_of_row, counts = np.unique(
        paired(x[rows], y[rows]), return_inverse=True, return_counts=True
    )
    cells = ranks.tabulate(Run(pairs, counts))
    if cells.is_constant:
        return lambda weights: {name: np.full(len(weights), np.nan) for name in NAMES}
    order = np.argsort(cell_of_row, kind="stable")
    starts = np.cumsum(counts) - counts
    is_small = len(counts) <= MOST_CELLS
    kendalls = _kendalls(cells) if is_small else _kendalls_to_first_order(cells)

    def estimates(weights: Integers) -> Mapping[str, Doubles]:
        tables = np.add.reduceat(weights[:, rows[order]], starts, axis=1).astype(np.float64)
        found = dict(kendalls(tables))
        found["spearman"] = errors.spearman_replicates(tables, cells)
        nothing = np.full(len(weights), np.nan)
        found["pearson"] = errors.pearson_replicates(tables, cells) if cells.is_finite else nothing
        return found

    return estimates


def _kendalls(cells: Cells) -> TableEstimates:
    signs = errors.orders(cells)
    return lambda tables: errors.kendall_replicates(tables, cells, signs)


def _kendalls_to_first_order(cells: Cells) -> TableEstimates:
    difference = ranks.concordance(cells)
    tau_b = ranks.kendall_tau_b(cells, difference)
    tau_c = ranks.kendall_tau_c(cells, difference)
    influences = {
        "kendall_tau_b": (tau_b, errors.tau_b_influence(cells, difference, tau_b)),
        "kendall_tau_c": (tau_c, errors.tau_c_influence(cells, difference, tau_c)),
    }

    def estimates(tables: Doubles) -> Mapping[str, Doubles]:
        n = tables.sum(axis=1)
        return {
            name: value + (tables * influence).sum(axis=1) / n
            for name, (value, influence) in influences.items()
        }

    return estimates
