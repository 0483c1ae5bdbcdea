"""Unweighted means over groups: macro averages, in which each group counts once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from raveval.metrics._intervals import undefined
from raveval.types import Estimate

_NOT_AVERAGED = ("perplexity",)
"""Units of estimates whose mean over groups means nothing."""


def macro_averages(groups: Mapping[str, Mapping[str, Estimate]]) -> dict[str, Estimate]:
    """Return the unweighted mean over groups of each estimate; `n` counts the groups.

    Each group counts once, however many examples it has. Undefined where it is in any group, as
    leaving that group out would be another number. Perplexities have none: their mean means
    nothing. The interval combines those of the groups as independent ones (MOVER, Zou and Donner,
    Statistics in Medicine 27 (2008) 1693-1702).
    """
    names = next(iter(groups.values()), {})
    found = {name: [estimates[name] for estimates in groups.values()] for name in names}
    return {name: _macro(each) for name, each in found.items() if each[0].unit not in _NOT_AVERAGED}


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
    errors = [group.stderr for group in groups if group.stderr is not None]
    if len(errors) == n:
        mean = replace(mean, stderr=math.hypot(*errors) / n)
    below = [g.value - g.low for g in groups if g.value is not None and g.low is not None]
    above = [g.high - g.value for g in groups if g.value is not None and g.high is not None]
    if len(below) < n or len(above) < n:
        return mean
    low, high = value - math.hypot(*below) / n, value + math.hypot(*above) / n
    return replace(mean, low=low, high=high, interval="mover95")
