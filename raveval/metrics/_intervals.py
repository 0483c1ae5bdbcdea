"""Turns exact counts and moments into estimates with a standard error and a 95 % interval.

Every interval describes how the number would vary over other examples drawn like these; it says
nothing about the model's own randomness or about the choice of the benchmark.

`Estimate.interval` names how it was made. One name is one method, wherever it was used:

- "wilson95": Wilson's score interval of a proportion (Journal of the American Statistical
  Association 22 (1927) 209-212); also carried through a linear map.
- "tango95": of a mean of credits 1, 1/2 and 0, Tango's score interval of a difference of paired
  proportions (Statistics in Medicine 17 (1998) 891-908) carried over; Wilson's where none is 1/2.
- "t95": a mean ± Student's quantile at n - 1 degrees of freedom times its standard error.
- "delta-t95": the same for a ratio of sums, with the delta method's error; a perplexity's is the
  exponential of its logarithm's.
- "normal95": value ± 1.96 large-sample standard errors: the delta method's of kappa (Fleiss, Cohen
  and Everitt, Psychological Bulletin 72 (1969) 323-327) and of alpha, that of prediction-powered
  means, that of a mean over ten groups or more.
- "mover95": a weighted sum of independent numbers, from the distances between each and its own ends
  (MOVER: Zou and Donner, Statistics in Medicine 27 (2008) 1693-1702).
- "order95": of a median, from order statistics by the binomial distribution.
- "bonett95": of a standard deviation, on the scale of its logarithm (Bonett, Computational
  Statistics and Data Analysis 50 (2006) 775-782).
- "fisher-z95", "delta-z95", "brown-benedetti-z95": of a correlation, ± 1.96 errors on the scale of
  Fisher's z = atanh(r): with the error of normal ratings, 1 / sqrt(n - 3) (Fisher, Biometrika 10
  (1915) 507-521), with the delta method's, and with its closed form for Kendall's tau (Brown and
  Benedetti, Journal of the American Statistical Association 72 (1977) 309-315).
- "bootstrap95": the 2.5 % and 97.5 % percentiles of 2000 multinomial replicates.
- "cluster-wilson95", "cluster-t95", "cluster-bootstrap95": where examples have clusters. Wilson's
  at the effective number of examples (Korn and Graubard, Survey Methodology 24 (1998) 193-201);
  Student's quantile at one degree less than there are clusters, with the error among clusters;
  percentiles of replicates that draw whole clusters.
- "newcombe95", "expanded-bootstrap95": of a difference between two runs, as `raveval.comparison`
  says: Newcombe's for paired proportions, and bootstrap percentiles moved outwards for small n.
- "wald95", "unpaired-wald95": of a number that was imported, value ± 1.96 of the standard errors
  that came with it, cut to [0, 1] for a fraction; and of a difference between two such numbers.
- "guaranteed": no interval over other examples, but bounds that hold for certain for these.

An interval is None where the method claims nothing; a standard error of 0 has none: that no spread
was seen is no proof that there is none. `Estimate.no_interval` then says why:

- "n<2", "n<4", …, "clusters<4", "one cluster": too few examples, or clusters, for the method.
- "constant": all values are the same. "full agreement", "perfect correlation": the value is the
  largest there is (a correlation may be the smallest). "no spread": nothing varies otherwise.
- "not all in clusters": some examples have a cluster and others not. "groups share clusters": those
  of a macro average are not independent. "none in 2 of 5 groups": nor has the average one.
- "replicates undefined": more than one bootstrap replicate in 20.
- "overflow": an end lies beyond the largest double.
- "no method": an estimate that never has one. "no method for clusters": one that has none there.
- "no standard error": of a number that was imported, the file has none.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from raveval.metrics._exact import Moments, root
from raveval.types import Estimate

Z95 = 1.959963984540054
"""The 97.5 % quantile of the standard normal distribution."""

LARGEST = sys.float_info.max
"""The largest double: an end of an interval that would lie beyond is cut to it."""


NO_METHOD = "no method"
"""Why an estimate that never has an interval has none."""


class Interval(NamedTuple):
    """Both ends of an interval."""

    low: float
    high: float


class Stratum(NamedTuple):
    """A proportion `successes / n` that enters a sum with a weight."""

    weight: Fraction
    successes: int
    n: int


def undefined(
    reason: str, *, unit: str, n: int = 0, higher_is_better: bool | None = None
) -> Estimate:
    """Return the estimate that has no value."""
    return Estimate(None, unit, n, reason=reason, higher_is_better=higher_is_better)


def without_interval(estimate: Estimate, reason: str) -> Estimate:
    """Return the estimate without error and interval; `reason` says why a value has none."""
    why = None if estimate.value is None else reason
    return replace(estimate, stderr=None, low=None, high=None, interval=None, no_interval=why)


def student95(degrees: int) -> float:
    """Return the 97.5 % quantile of Student's distribution.

    >>> round(student95(10), 6)
    2.228139
    """
    from scipy.special import stdtrit  # a tenth of a second that most imports do not need

    return float(stdtrit(degrees, 0.975))


def wilson(proportion: Fraction, n: float) -> Interval:
    """Return Wilson's score interval of a proportion among `n` > 0 independent examples.

    Wilson, JASA 22 (1927) 209-212, without continuity correction. `n` need not be whole: it may be
    the number of independent examples that dependent ones are worth.
    """
    p, z2 = float(proportion), Z95 * Z95
    centre = p + z2 / (2 * n)
    half_width = Z95 * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    scale = 1 + z2 / n
    # At the ends of the range the formula gives 0 or 1 but for rounding.
    low = 0.0 if proportion == 0 else max(0.0, (centre - half_width) / scale)
    high = 1.0 if proportion == 1 else min(1.0, (centre + half_width) / scale)
    return Interval(low, high)


def mean_stderr(mean: Fraction, mean_square: Fraction, n: int) -> float | None:
    """Return the standard error of a mean from the sample variance; None for fewer than two."""
    return None if n < 2 else root((mean_square - mean * mean) / (n - 1))


def proportion(
    successes: int | Fraction, n: int, *, squares: int | Fraction | None = None
) -> Estimate:
    """Return the estimate of a share of `n` examples, with Wilson's interval.

    Args:
        successes: credits in [0, 1], summed; an integer where each is 0 or 1.
        squares: sum of the squared credits, where they are not all 0 or 1. The interval is then
            conservative: a credit with mean p varies at most as much as a success of probability p.
        n: examples.
    """
    if n == 0:
        return undefined("n=0", unit="fraction", higher_is_better=True)
    share = Fraction(successes) / n
    mean_square = share if squares is None else Fraction(squares) / n
    low, high = wilson(share, n)
    return Estimate(
        float(share),
        "fraction",
        n,
        stderr=mean_stderr(share, mean_square, n),
        low=low,
        high=high,
        interval="wilson95",
        higher_is_better=True,
    )


def normal(value: float, stderr: float, *, at_least: float, at_most: float) -> Interval:
    """Return value ± 1.96 standard errors, cut to the range the value can have."""
    return Interval(max(at_least, value - Z95 * stderr), min(at_most, value + Z95 * stderr))


def weighted_proportions(strata: Iterable[Stratum]) -> Interval:
    """Return the interval of a weighted sum of independent proportions, by Wilson and MOVER.

    The distances of each proportion from its own Wilson limits take the place of its standard
    error (Zou and Donner, Statistics in Medicine 27 (2008) 1693-1702). With a single stratum it is
    Wilson's interval times the weight. Weights are not negative.
    """
    value = below = above = 0.0
    for weight, successes, n in strata:
        w, p = float(weight), successes / n
        low, high = wilson(Fraction(successes, n), n)
        value += w * p
        below += (w * (p - low)) ** 2
        above += (w * (high - p)) ** 2
    return Interval(value - math.sqrt(below), value + math.sqrt(above))


def ratio_stderr(moments: Moments) -> float | None:
    """Return the standard error of sum(x) / sum(u) over independent pairs, by the delta method.

    It is sqrt(n / (n - 1) * sum((x - R u)^2)) / sum(u), from the exact sum of squared residuals;
    where every u is 1 that is the standard error of a mean. None for fewer than two pairs.

    Raises:
        OverflowError: it is beyond the largest double.
    """
    if moments.n < 2:
        return None
    factor = Fraction(moments.n, moments.n - 1)
    return root(factor * moments.residual_squares() / moments.u**2)


def ratio(moments: Moments, *, unit: str, higher_is_better: bool | None) -> Estimate:
    """Return the estimate of sum(x) / sum(u), with the delta method's interval.

    Its quantile is Student's at n - 1 degrees of freedom, since the error is estimated from the
    same n pairs. Where every x / u is the same the error is 0, and there is no interval: that no
    spread was seen is no proof that there is none. The sum of `u` is not zero.
    """
    try:
        value, stderr = float(moments.ratio()), ratio_stderr(moments)
    except OverflowError:
        return undefined("overflow", unit=unit, n=moments.n, higher_is_better=higher_is_better)
    point = Estimate(value, unit, moments.n, stderr=stderr, higher_is_better=higher_is_better)
    if not stderr:
        return replace(point, no_interval="n<2" if stderr is None else "constant")
    half_width = student95(moments.n - 1) * stderr
    low, high = value - half_width, value + half_width
    if math.isinf(low) or math.isinf(high):  # an interval without an end is none
        return replace(point, no_interval="overflow")
    return replace(point, low=low, high=high, interval="delta-t95")
