"""Intervals of Krippendorff's alpha over rows drawn like these.

Rows are resampled from their counts, and the interval holds the middle 95 % of the replicates
("bootstrap95"). That costs time for each kind of row; with more than `MOST_RESAMPLED` kinds there
are at least as many rows, and the delta method's error says the same at once ("normal95"). Neither
has an interval where it would have no width: the rows then do not tell how far alpha may vary.
Replicates make none either for fewer than 4 rows, or where more than one in 20 is undefined.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from raveval.metrics import _intervals as intervals
from raveval.metrics._bootstrap import NO_SPREAD, bootstrapped, count_replicates
from raveval.metrics._exact import Doubles, Integers
from raveval.types import Estimate

MOST_RESAMPLED = 1 << 12
"""Kinds of rows up to which the bootstrap is used: less than a second."""


Statistic = Callable[[Integers], Doubles]
"""Alpha of replicates: of each row of counts, shape `(replicates, kinds)`."""


class CategoryCounts(NamedTuple):
    """Rows of two raters: the category of each, from 0 and in order, and how many rows."""

    first: Integers
    second: Integers
    counts: Integers


class UnitValues(NamedTuple):
    """Rows of several ratings on a scale from 0 to 1, one entry for each kind of row.

    Attributes:
        counts: rows.
        sizes: ratings in a row.
        means: of a row's ratings.
        within: sum of their squared distances from that mean.
        lowest, highest: of a row's ratings.
    """

    counts: Integers
    sizes: Integers
    means: Doubles
    within: Doubles
    lowest: Doubles
    highest: Doubles

    @property
    def between_pairs(self) -> Doubles:
        """Sum of squared differences over ordered pairs in a row, divided by the size less one."""
        distances: Doubles = 2 * self.sizes * self.within / (self.sizes - 1)
        return distances


def with_rank_interval(point: Estimate, table: CategoryCounts, *, is_nominal: bool) -> Estimate:
    """Return the estimate of nominal or ordinal alpha with its interval."""
    if len(table.counts) > MOST_RESAMPLED:
        return by_delta(point, rank_influences(table, is_nominal=is_nominal), table.counts)
    return by_bootstrap(point, rank_alpha(table, is_nominal=is_nominal), table.counts)


def with_value_interval(point: Estimate, units: UnitValues) -> Estimate:
    """Return the estimate of interval alpha with its interval."""
    if len(units.counts) > MOST_RESAMPLED:
        return by_delta(point, value_influences(units), units.counts)
    return by_bootstrap(point, value_alpha(units), units.counts)


def by_bootstrap(point: Estimate, statistic: Statistic, counts: Integers) -> Estimate:
    """Add percentiles of replicates, stretched to the value; NaN is an undefined replicate."""
    replicates = np.concatenate([statistic(chunk) for chunk in count_replicates(counts)])
    found = bootstrapped(replicates, int(counts.sum()))
    if point.value is None:
        return point
    if isinstance(found, str):
        return replace(point, no_interval=without_spread(point.value, found))
    return replace(
        point,
        stderr=found.stderr,
        low=min(found.low, point.value),
        high=max(found.high, point.value),
        interval="bootstrap95",
    )


def by_delta(point: Estimate, influences: Doubles, counts: Integers) -> Estimate:
    """Add the interval from what each row adds to the statistic; these sum to 0 over all rows."""
    n = int(counts.sum())
    stderr = float(np.sqrt((counts * influences**2).sum())) / n
    if point.value is None:
        return point
    if stderr * math.sqrt(n) <= NO_SPREAD:
        return replace(point, no_interval=without_spread(point.value))
    low, high = intervals.normal(point.value, stderr, at_least=-1.0, at_most=1.0)
    return replace(point, stderr=stderr, low=low, high=high, interval="normal95")


def without_spread(value: float, otherwise: str = "no spread") -> str:
    """Return why kappa or alpha has no interval: full agreement, or else another reason."""
    return "full agreement" if value == 1 else otherwise


def rank_alpha(table: CategoryCounts, *, is_nominal: bool) -> Statistic:
    """Return nominal or ordinal alpha of replicates; NaN where one category is left."""
    disagreement = _nominal_disagreement if is_nominal else _ordinal_disagreement
    both = np.concatenate([table.first, table.second])
    order = np.argsort(both, kind="stable")
    starts = np.flatnonzero(np.diff(both[order], prepend=-1))
    n = int(table.counts.sum())

    def alpha(counts: Integers) -> Doubles:
        used = np.add.reduceat(np.concatenate([counts, counts], axis=1)[:, order], starts, axis=1)
        values = 1 - (2 * n - 1) / (2 * n) * disagreement(table, counts / n, used / (2 * n))
        return np.where(used.max(axis=1) == 2 * n, np.nan, values)

    return alpha


def _nominal_disagreement(table: CategoryCounts, cells: Doubles, used: Doubles) -> Doubles:
    """Return Do / De with the distance 1."""
    seen = (cells * (table.first != table.second)).sum(axis=1)
    return _quotient(seen, (used * (1 - used)).sum(axis=1))


def _ordinal_disagreement(table: CategoryCounts, cells: Doubles, used: Doubles) -> Doubles:
    """Return Do / De with squared differences of mid-ranks."""
    ranks = np.cumsum(used, axis=1) - used / 2
    seen = (cells * (ranks[:, table.first] - ranks[:, table.second]) ** 2).sum(axis=1)
    centre = (used * ranks).sum(axis=1)
    return _quotient(seen, 2 * (used * (ranks - centre[:, None]) ** 2).sum(axis=1))


def value_alpha(units: UnitValues) -> Statistic:
    """Return interval alpha of replicates; NaN where one rating is left."""

    def alpha(counts: Integers) -> Doubles:
        sizes = (counts * units.sizes).sum(axis=1)
        centre = (counts * (units.sizes * units.means)).sum(axis=1) / sizes
        between = (counts * (units.sizes * (units.means - centre[:, None]) ** 2)).sum(axis=1)
        total = (counts * units.within).sum(axis=1) + between
        seen = (counts * units.between_pairs).sum(axis=1)
        is_drawn = counts > 0
        lowest = np.where(is_drawn, units.lowest, 1.0).min(axis=1)
        highest = np.where(is_drawn, units.highest, 0.0).max(axis=1)
        values = 1 - (sizes - 1) / sizes * _quotient(seen, 2 * total)
        return np.where(lowest == highest, np.nan, values)

    return alpha


def _quotient(seen: Doubles, by_chance: Doubles) -> Doubles:
    """Return seen / by_chance; NaN where nothing differs by chance."""
    quotient = np.full(len(seen), np.nan)
    np.divide(seen, by_chance, out=quotient, where=by_chance > 0)
    return quotient


def rank_influences(table: CategoryCounts, *, is_nominal: bool) -> Doubles:
    """Return what a row of each cell adds to nominal or ordinal Do / De, to first order."""
    return _nominal_influences(table) if is_nominal else _ordinal_influences(table)


def _nominal_influences(table: CategoryCounts) -> Doubles:
    used = _shares(table)
    by_chance = 1 - (used**2).sum()
    differs = table.first != table.second
    seen = _mean(differs, table.counts)
    # By chance two ratings are equal with sum(p^2); a row moves p towards its two categories.
    change = -(used[table.first] + used[table.second] - 2 * (used**2).sum())
    influences: Doubles = ((differs - seen) - seen / by_chance * change) / by_chance
    return influences


def _ordinal_influences(table: CategoryCounts) -> Doubles:
    used = _shares(table)
    ranks = np.cumsum(used) - used / 2
    apart = ranks[table.first] - ranks[table.second]
    seen = _mean(apart**2, table.counts)
    # The variance of mid-ranks is (1 - sum(p^3)) / 12, and De twice that.
    by_chance = (1 - (used**3).sum()) / 6
    change = -((used[table.first] ** 2 + used[table.second] ** 2) / 2 - (used**3).sum()) / 2
    # A row also moves the ranks of the categories above its own.
    pull = 2 * apart * table.counts / table.counts.sum()
    n_used = len(used)
    on_rank = np.bincount(table.first, pull, n_used) - np.bincount(table.second, pull, n_used)
    above = on_rank[::-1].cumsum()[::-1] - on_rank / 2
    moved = (above[table.first] + above[table.second]) / 2 - (on_rank * ranks).sum()
    influences: Doubles = (apart**2 - seen + moved - seen / by_chance * change) / by_chance
    return influences


def value_influences(units: UnitValues) -> Doubles:
    """Return what a row of each kind adds to Do / De, to first order."""
    n = units.counts.sum()
    centre = (units.counts * units.sizes * units.means).sum() / (units.counts * units.sizes).sum()
    around = 2 * (units.within + units.sizes * (units.means - centre) ** 2)
    by_chance = (units.counts * around).sum() / n
    seen = (units.counts * units.between_pairs).sum() / n
    influences: Doubles = (units.between_pairs - seen / by_chance * around) / by_chance
    return influences


def _shares(table: CategoryCounts) -> Doubles:
    """Return how often each category is used, as a share of all ratings."""
    n_used = int(max(table.first.max(), table.second.max())) + 1
    used = np.bincount(table.first, table.counts, n_used)
    used += np.bincount(table.second, table.counts, n_used)
    shares: Doubles = used / used.sum()
    return shares


def _mean(values: Doubles, counts: Integers) -> float:
    return float((values * counts).sum() / counts.sum())
