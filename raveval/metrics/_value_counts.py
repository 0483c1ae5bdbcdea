"""Mean, median and standard deviation of values that are counted, each with its interval.

Values are integers in units of 2^-1074 (`_rating_counts.whole`), so that all sums are exact.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from fractions import Fraction
from itertools import accumulate

from raveval.metrics import _intervals as intervals
from raveval.metrics._exact import SCALE_BITS, root
from raveval.types import Estimate

RATING_UNIT = "rating"
"""Unit of what is measured on the ratings' own scale."""

ValueCounts = Iterable[tuple[int, int]]
"""Pairs of a value and how often it occurs; a value may be there twice."""

_LARGEST = (2 - 2.0**-52) * 2.0**1023
_TAIL = 0.025


def mean(
    values: ValueCounts, *, higher_is_better: bool | None, at_least: float = -_LARGEST
) -> Estimate:
    """Return the mean, with Student's interval, cut to what values can be.

    There is no interval for fewer than two values, nor where all are equal: nothing then tells how
    far others would lie.
    """
    n = total = squares = 0
    for each, count in values:
        n += count
        total += count * each
        squares += count * each * each
    if n == 0:
        return _undefined("n=0", 0, higher_is_better)
    spread = Fraction(n * squares - total * total, n * n * max(1, n - 1) << (2 * SCALE_BITS))
    try:
        value, stderr = float(Fraction(total, n << SCALE_BITS)), root(spread) if n > 1 else None
    except OverflowError:
        return _undefined("overflow", n, higher_is_better)
    if not stderr:
        return Estimate(value, RATING_UNIT, n, stderr=stderr, higher_is_better=higher_is_better)
    half_width = intervals.student95(n - 1) * stderr
    return Estimate(
        value,
        RATING_UNIT,
        n,
        stderr=stderr,
        low=max(at_least, value - half_width),
        high=min(_LARGEST, value + half_width),
        interval="t95",
        higher_is_better=higher_is_better,
    )


def standard_deviation(values: ValueCounts) -> Estimate:
    """Return the standard deviation with divisor n - 1, with the delta method's normal interval.

    The variance of s^2 is (m4 - s^4 (n - 3) / (n - 1)) / n with m4 the fourth central moment, which
    assumes no shape of the distribution; no interval where that is 0.
    """
    counted = list(values)
    n = sum(count for _, count in counted)
    if n < 2:
        return _undefined("n<2", n, None)
    total = sum(count * value for value, count in counted)
    # n times the distance from the mean is an integer.
    powers = [sum(count * (n * value - total) ** k for value, count in counted) for k in (2, 4)]
    variance = Fraction(powers[0], n * n * (n - 1))
    fourth = Fraction(powers[1], n**5)
    of_variance = (fourth - variance**2 * Fraction(n - 3, n - 1)) / n
    try:
        value = root(variance / (1 << (2 * SCALE_BITS)))
        scale = 1 << (2 * SCALE_BITS)
        stderr = root(of_variance / (4 * variance) / scale) if variance else 0.0
    except OverflowError:
        return _undefined("overflow", n, None)
    if not stderr:
        return Estimate(value, RATING_UNIT, n, stderr=stderr)
    low, high = intervals.normal(value, stderr, at_least=0.0, at_most=_LARGEST)
    return Estimate(value, RATING_UNIT, n, stderr=stderr, low=low, high=high, interval="delta95")


def median(counts: Mapping[int, int], *, higher_is_better: bool | None) -> Estimate:
    """Return the median, the mean of the two middle values where there are two.

    The interval reaches from the k-th lowest to the k-th highest value, k the largest with a
    binomial probability of at most 2.5 % that fewer than k of n values lie on one side of the true
    median: it holds for any distribution, with at least 95 %. None below 6 values.
    """
    ordered = sorted(counts)
    up_to = list(accumulate(counts[value] for value in ordered))
    n = up_to[-1] if up_to else 0
    if n == 0:
        return _undefined("n=0", 0, higher_is_better)

    def at(rank: int) -> int:
        """The value at a rank that starts at 1."""
        return ordered[bisect_left(up_to, rank)]

    def double(numerator: int, denominator: int = 1) -> float:
        return float(Fraction(numerator, denominator << SCALE_BITS))

    value = double(at((n + 1) // 2) + at(n // 2 + 1), 2)
    k = _order_rank(n)
    if k == 0:
        return Estimate(value, RATING_UNIT, n, higher_is_better=higher_is_better)
    return Estimate(
        value,
        RATING_UNIT,
        n,
        low=double(at(k)),
        high=double(at(n + 1 - k)),
        interval="order95",
        higher_is_better=higher_is_better,
    )


def _order_rank(n: int) -> int:
    """Return the largest k with P(Binomial(n, 1/2) < k) at most 2.5 %; 0 where there is none.

    >>> _order_rank(5), _order_rank(6), _order_rank(100)
    (0, 1, 40)
    """
    from scipy.special import bdtr  # a tenth of a second that most imports do not need

    ranks = range(1, n // 2 + 1)
    return bisect_left(ranks, True, key=lambda k: bool(bdtr(k - 1, n, 0.5) > _TAIL))


def _undefined(reason: str, n: int, higher_is_better: bool | None) -> Estimate:
    return intervals.undefined(reason, unit=RATING_UNIT, n=n, higher_is_better=higher_is_better)
