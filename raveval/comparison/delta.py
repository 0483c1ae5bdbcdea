"""Differences of two ratios of sums over the same examples, and their errors by the delta method.

Numbers may be as large as doubles are: sums are scaled down where they would not be numbers, and
errors are formed without a square that overflows.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from raveval.metrics import Contribution, Ratio
from raveval.metrics._exact import Booleans, Doubles

ROUNDING = 1e-12
"""What is smaller, relative to the numbers that it is a difference of, is rounding."""

_LARGE = 2.0**900
_DOWN = 2.0**-100
"""Larger contributions are scaled down, so that their sums are doubles."""


class PairedContributions(NamedTuple):
    """What each example adds to both runs' ratio, row by row."""

    a: Contribution
    b: Contribution


def entering(pairs: PairedContributions) -> Booleans:
    """Return which examples add anything to the ratio in both runs."""
    in_a, in_b = ((x != 0) | (u != 0) for x, u in pairs)
    both: Booleans = in_a & in_b
    return both


def kept(pairs: PairedContributions, mask: Booleans) -> PairedContributions:
    """Return the pairs that a mask keeps."""
    return PairedContributions(*(Contribution(x[mask], u[mask]) for x, u in pairs))


def differing(pairs: PairedContributions) -> Booleans:
    """Return in which examples the runs differ."""
    differs: Booleans = (pairs.a.x != pairs.b.x) | (pairs.a.u != pairs.b.u)
    return differs


class Errors(NamedTuple):
    """Standard errors by the delta method, 0 where they are rounding.

    `of_test` is that of the difference of the logarithms where the estimate is an exponential;
    `rounding` is what rounding may make of a difference on that scale.
    """

    of_difference: float
    of_test: float
    rounding: float


def errors_of(pairs: PairedContributions, ratio: Ratio) -> Errors:
    """Return the errors of a difference over independent pairs of sums."""
    moved, values, rounding = [], [], 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for each in pairs:
            total, rate = math.fsum(each.u), rate_of(each)
            moved.append(ratio.scale * (each.x - rate * each.u) / total)
            values.append(value_of(ratio, rate) if ratio.is_exponential else 1.0)
            rounding += ROUNDING * abs(ratio.scale) * math.fsum(np.abs(each.x)) / total
        of_test = _root_of_squares(moved[1] - moved[0])
        if of_test <= rounding:
            return Errors(0.0, 0.0, rounding)
        influence = moved[1] * values[1] - moved[0] * values[0]
        return Errors(_root_of_squares(influence), of_test, rounding)


def _root_of_squares(influence: Doubles) -> float:
    """Return the root of the summed squares, with n / (n - 1) for the sample; 0 for one unit."""
    n, largest = len(influence), float(np.abs(influence).max(initial=0.0))
    if n < 2 or largest == 0 or not math.isfinite(largest):
        return 0.0 if n < 2 else largest
    return largest * math.sqrt(n / (n - 1) * math.fsum((influence / largest) ** 2))


def rate_of(sums: Contribution) -> float:
    """Return the ratio of the sums."""
    return math.fsum(sums.x) / math.fsum(sums.u)


def value_of(ratio: Ratio, rate: float) -> float:
    """Return the estimate's value; infinity beyond the largest double."""
    try:
        return ratio.value(rate)
    except OverflowError:
        return math.inf


def difference_of(sums: PairedContributions, ratio: Ratio) -> float:
    """Return the difference of the estimates, which may be infinite or NaN."""
    return value_of(ratio, rate_of(sums.b)) - value_of(ratio, rate_of(sums.a))


def scaled_down(pairs: PairedContributions, ratio: Ratio) -> tuple[PairedContributions, Ratio]:
    """Return the same comparison with contributions whose sums are doubles."""
    largest = max(float(np.abs(each.x).max(initial=0.0)) for each in pairs)
    if largest <= _LARGE:
        return pairs, ratio
    smaller = (Contribution(each.x * _DOWN, each.u) for each in pairs)
    return PairedContributions(*smaller), replace(ratio, scale=ratio.scale / _DOWN)
