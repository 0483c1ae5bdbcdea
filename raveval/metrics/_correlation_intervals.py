"""Chooses how far each correlation may be off: by formula, by replicates, or among clusters.

Which method an estimate gets depends on the counts alone; `correlation` says which and why.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from raveval.metrics import _correlation_errors as errors
from raveval.metrics._bootstrap import LEAST_UNITS, NO_SPREAD, bootstrapped
from raveval.metrics._exact import Doubles, Integers
from raveval.metrics._intervals import Z95, student95
from raveval.metrics._joint_counts import NO_CLUSTER, Run, cluster_keys
from raveval.metrics._ranks import Cells

MOST_CELLS = 2048
"""Distinct pairs up to which replicates are drawn: a second for so many, a tenth for a grid."""

MOST_PAIRS = 100_000
"""Pairs up to which they are resampled.

With more, a coefficient is normal on Fisher's scale to well within the 1.5 % of the width by which
2000 replicates let each end of an interval vary.
"""

MOST_CLUSTERED_ROWS = 1 << 16
"""Rows of cluster and pair up to which clusters are resampled."""


class Spread(NamedTuple):
    """How far an estimate may be off, by the method `interval`."""

    stderr: float
    low: float
    high: float
    interval: str


Coefficients = Mapping[str, float]


def spreads(
    run: Run, cells: Cells, values: Coefficients, difference: Integers
) -> Mapping[str, Spread | str]:
    """Return the spread of each coefficient, or why it has none; its interval holds the value.

    Args:
        run: all rows.
        cells: the table of them; neither side is constant.
        values: the coefficients by name; without "pearson" where a rating is infinite.
        difference: the result of `concordance`.
    """
    imperfect = {name: value for name, value in values.items() if abs(value) < 1}
    reason = f"n<{LEAST_UNITS}" if cells.n < LEAST_UNITS else _why_no_clusters(run)
    if reason:
        return dict.fromkeys(values, reason)
    if run.clusters is None:
        found = dict(_over_pairs(cells, imperfect, difference))
    else:
        found = dict(_over_clusters(run, cells, imperfect, difference))
    perfect = dict.fromkeys(values.keys() - imperfect.keys(), "perfect correlation")
    return {
        **perfect,
        **{name: _holding(found[name], value, cells.n) for name, value in imperfect.items()},
    }


def _holding(spread: Spread | str, value: float, n: int) -> Spread | str:
    """Return a spread whose interval holds the value; one that is dust or unknown is none."""
    if isinstance(spread, str):
        return spread
    if not spread.stderr * math.sqrt(n) > NO_SPREAD:
        return "no spread"
    low, high = max(-1.0, min(spread.low, value)), min(1.0, max(spread.high, value))
    return spread._replace(low=low, high=high)


def _why_no_clusters(run: Run) -> str | None:
    """Return why clusters do not tell how they vary; None where they do, or where there are none.

    Each row needs one, and they need to be enough.
    """
    if run.clusters is None:
        return None
    keys = np.unique(cluster_keys(run))
    if NO_CLUSTER in keys:
        return "not all in clusters"
    if len(keys) == 1:
        return "one cluster"
    return f"clusters<{LEAST_UNITS}" if len(keys) < LEAST_UNITS else None


def _over_pairs(
    cells: Cells, values: Coefficients, difference: Integers
) -> Iterator[tuple[str, Spread | str]]:
    if "pearson" in values:
        yield "pearson", _pearson(cells, values["pearson"])
    if "spearman" in values:
        yield from _spearman_over_pairs(cells, values["spearman"])
    for name, influence in _kendall_influences(cells, values, difference):
        yield name, _delta(cells, influence, values[name], "brown-benedetti-z95")


def _pearson(cells: Cells, value: float) -> Spread:
    """Return the wider of Fisher's interval and the delta method's.

    Fisher's error is right for normal ratings and too small on coarse scales, the delta method's is
    right for any of many ratings and too small for few.
    """
    fisher = _fisher(value, 1 / math.sqrt(cells.n - 3), "fisher-z95")
    delta = _delta(cells, errors.pearson_influence(cells, value), value, "delta-z95")
    # NaN, where rounding hides how a side varies, is not larger.
    return delta if delta.stderr > fisher.stderr else fisher


def _spearman_over_pairs(cells: Cells, value: float) -> Iterator[tuple[str, Spread | str]]:
    if cells.n <= MOST_PAIRS and len(cells.counts) <= MOST_CELLS:
        tables = errors.resampled_pairs(cells)
        replicates = [errors.spearman_replicates(each, cells) for each in tables]
        yield from _of_replicates("spearman", replicates, cells.n, "bootstrap95")
    else:
        influence = errors.spearman_influence(cells, value)
        yield "spearman", _delta(cells, influence, value, "delta-z95")


def _over_clusters(
    run: Run, cells: Cells, values: Coefficients, difference: Integers
) -> Iterator[tuple[str, Spread | str]]:
    if len(cells.counts) <= MOST_CELLS and len(run) <= MOST_CLUSTERED_ROWS:
        yield from _over_resampled_clusters(run, cells, values)
        return
    quantile = student95(len(np.unique(cluster_keys(run))) - 1)
    influences = dict(_kendall_influences(cells, values, difference))
    if "spearman" in values:
        influences["spearman"] = errors.spearman_influence(cells, values["spearman"])
    if "pearson" in values:
        influences["pearson"] = errors.pearson_influence(cells, values["pearson"])
    for name, influence in influences.items():
        stderr = errors.clustered_error(run, cells, influence)
        low, high = values[name] - quantile * stderr, values[name] + quantile * stderr
        is_known = math.isfinite(stderr)
        yield name, Spread(stderr, low, high, "cluster-t95") if is_known else "no spread"


def _over_resampled_clusters(
    run: Run, cells: Cells, values: Coefficients
) -> Iterator[tuple[str, Spread | str]]:
    signs = errors.orders(cells)
    replicates: dict[str, list[Doubles]] = {name: [] for name in values}
    for tables in errors.resampled_clusters(run, cells):
        found = errors.kendall_replicates(tables, cells, signs)
        found["spearman"] = errors.spearman_replicates(tables, cells)
        if "pearson" in values:
            found["pearson"] = errors.pearson_replicates(tables, cells)
        for name in values:
            replicates[name].append(found[name])
    n_clusters = len(np.unique(cluster_keys(run)))
    for name in values:
        yield from _of_replicates(name, replicates[name], n_clusters, "cluster-bootstrap95")


def _kendall_influences(
    cells: Cells, values: Coefficients, difference: Integers
) -> Iterator[tuple[str, Doubles]]:
    for name, influence in (
        ("kendall_tau_b", errors.tau_b_influence),
        ("kendall_tau_c", errors.tau_c_influence),
    ):
        if name in values:
            yield name, influence(cells, difference, values[name])


def _delta(cells: Cells, influence: Doubles, value: float, method: str) -> Spread:
    """Return the delta method's interval, made on the scale of atanh."""
    stderr = errors.standard_error(cells, influence)
    return _fisher(value, stderr / (1 - value * value), method)


def _fisher(value: float, stderr: float, method: str) -> Spread:
    """Return the interval that has the half-width 1.96 `stderr` on the scale of atanh."""
    z = math.atanh(value)
    low, high = math.tanh(z - Z95 * stderr), math.tanh(z + Z95 * stderr)
    return Spread((1 - value * value) * stderr, low, high, method)


def _of_replicates(
    name: str, replicates: Iterable[Doubles], n_units: int, method: str
) -> Iterator[tuple[str, Spread | str]]:
    found = bootstrapped(np.concatenate(tuple(replicates)), n_units)
    yield name, found if isinstance(found, str) else Spread(*found, method)
