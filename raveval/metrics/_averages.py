"""Unweighted means over groups: macro averages, in which each group counts once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from raveval.metrics._intervals import NO_METHOD, Z95, undefined, without_interval
from raveval.types import Estimate

GUARANTEED = "guaranteed"
"""The interval of bounds that hold for certain, of the very examples that were measured."""

_NOT_AVERAGED = ("perplexity",)
"""Units of estimates whose mean over groups means nothing."""


_FEW = 10
"""Of fewer groups the intervals are combined; of more the errors, as a mean of many is normal."""


def macro_averages(
    groups: Mapping[str, Mapping[str, Estimate]],
    *,
    notes: Mapping[str, int] = MappingProxyType({}),
    group_notes: Iterable[Mapping[str, int]] = (),
) -> dict[str, Estimate]:
    """Return the unweighted mean over groups of each estimate; `n` counts the groups.

    Each group counts once, however many examples it has. Undefined where it is in any group, as
    leaving that group out would be another number. Perplexities have none: their mean means
    nothing. The interval takes the groups as independent: the normal one ("normal95") from ten
    groups on; of fewer the distances of each group's own ends are combined ("mover95": Zou and
    Donner, Statistics in Medicine 27 (2008) 1693-1702), since their skewness adds up with the
    number of groups while that of the mean goes away.

    Groups that share clusters are not independent: there is no interval then. That they do is seen
    from the metrics' notes of all examples and of each group, by the number of clusters.
    """
    n_clusters = sum(each.get("clusters", 0) for each in group_notes)
    are_independent = n_clusters <= notes.get("clusters", 0)
    names = next(iter(groups.values()), {})
    found = {name: [estimates[name] for estimates in groups.values()] for name in names}
    means = {
        name: _macro(each) for name, each in found.items() if each[0].unit not in _NOT_AVERAGED
    }
    if are_independent:
        return means
    return {name: without_interval(mean, "groups share clusters") for name, mean in means.items()}


def _macro(groups: Sequence[Estimate]) -> Estimate:
    n, first = len(groups), groups[0]
    n_undefined = sum(group.value is None for group in groups)
    if n_undefined:
        return undefined(
            f"undefined in {n_undefined} of {n} groups",
            unit=first.unit,
            n=n,
            higher_is_better=first.higher_is_better,
        )
    value = math.fsum(group.value for group in groups if group.value is not None) / n
    mean = Estimate(value, first.unit, n, higher_is_better=first.higher_is_better)
    if any(group.interval == GUARANTEED for group in groups):
        # Such bounds say nothing about other examples.
        return replace(mean, no_interval=NO_METHOD)
    errors = [group.stderr for group in groups if group.stderr is not None]
    if len(errors) == n:
        mean = replace(mean, stderr=math.hypot(*errors) / n)
    if n < _FEW:
        return _combined(mean, groups)
    if not mean.stderr:
        n_lacking = n - len(errors)
        why = _none_in(n_lacking, groups) if n_lacking else "no spread"
        return replace(mean, no_interval=why)
    low, high = value - Z95 * mean.stderr, value + Z95 * mean.stderr
    if first.unit == "fraction":
        low, high = max(0.0, low), min(1.0, high)
    return replace(mean, low=low, high=high, interval="normal95")


def _combined(mean: Estimate, groups: Sequence[Estimate]) -> Estimate:
    n, value = len(groups), mean.value or 0.0
    below = [g.value - g.low for g in groups if g.value is not None and g.low is not None]
    above = [g.high - g.value for g in groups if g.value is not None and g.high is not None]
    if len(below) < n or len(above) < n:
        return replace(mean, no_interval=_none_in(n - min(len(below), len(above)), groups))
    low, high = value - math.hypot(*below) / n, value + math.hypot(*above) / n
    return replace(mean, low=low, high=high, interval="mover95")


def _none_in(n_lacking: int, groups: Sequence[Estimate]) -> str:
    """Return why a mean has no interval, some of the groups having none."""
    if all(group.no_interval == NO_METHOD for group in groups):
        return NO_METHOD
    return f"none in {n_lacking} of {len(groups)} groups"
