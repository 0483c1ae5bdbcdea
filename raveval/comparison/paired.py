"""Paired statistics: how two runs differ on the same examples. Arrays in, numbers out.

Run A is the baseline, B the other one; a difference is B - A. What each example adds to a ratio is
known for both runs, so what they have in common cancels, as it does not in a comparison of two
intervals. The unit is the example, or the cluster of examples where they come in clusters.

Three methods, each with its test and its interval:

- Scores of 0 and 1: McNemar's exact test and Newcombe's interval (`raveval.comparison.mcnemar`).
- Other ratios of sums, and any other statistic: bootstrap (`raveval.comparison.resampling`).
  Examples are drawn with replacement, both runs' scores together. The interval is the percentile
  one, expanded for small samples by the ratio of Student's to the normal quantile and by
  sqrt(n / (n - 1)) (Hesterberg, The American Statistician 69 (2015) 371-386); p is twice the share
  of replicates on the other side of zero, with one added to both counts, expanded alike. So p
  resolves 2 / (replicates + 1) and is never 0, and an interval that leaves out zero goes with
  p < .05.
- Clusters: Student's t on the influence of each cluster, G - 1 degrees of freedom, G of them. A
  bootstrap of few clusters gives intervals that are too narrow.

No method may claim more than its data can: m units that differ, all in one direction, are 2^(1-m)
under the null hypothesis by symmetry alone, and no p is below that. Nor is there an interval or a
t test where no spread is seen, or one that is rounding: that is no proof that there is none.

Perplexities are exponentials of ratios: their test is on the logarithm, where errors are nearly
symmetric. So is the interval of their quotient. In the bootstrap the difference itself has the same
sign and the same p; for clusters the interval of the difference is by the delta method.

On one machine the same runs give the same bits. Elsewhere the last digits of bootstraps may differ:
they are drawn by numpy and added up by its matrix product, which keep no stream and no order across
versions and processors. A number beyond the largest double is none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from raveval.comparison.delta import (
    PairedContributions,
    difference_of,
    differing,
    errors_of,
    rate_of,
    scaled_down,
)
from raveval.comparison.inference import (
    CLUSTER_T,
    MCNEMAR,
    Inference,
    LogDifference,
    finite,
    least_p,
    with_interval,
)
from raveval.comparison.mcnemar import Fourfold, mcnemar, newcombe
from raveval.metrics import Contribution, Ratio
from raveval.metrics._exact import Doubles, Integers
from raveval.metrics._intervals import Z95, student95

_Z80 = 0.8416212335729143


def is_binary(pairs: PairedContributions, ratio: Ratio) -> bool:
    """Whether each example is right or wrong, and the estimate the share of right ones."""
    return ratio == Ratio() and all(
        bool(((x == 0) | (x == 1)).all() and (u == 1).all()) for x, u in pairs
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values adjusted for the family, in the order given.

    Holm, Scandinavian Journal of Statistics 6 (1979) 65-70: the chance that any of them is below
    .05 where nothing differs is at most 5 %, however they depend on each other.

    >>> [round(p, 2) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def detectable(stderr: float, *, n_clusters: int | None = None) -> float:
    """Return the true difference that a comparison with this error shows in 80 % of all cases.

    With clusters the test is Student's, whose power is that of the noncentral t distribution.

    >>> round(detectable(0.0145), 3), round(detectable(0.0145, n_clusters=3), 3)
    (0.041, 0.082)
    """
    if n_clusters is None:
        return (Z95 + _Z80) * stderr
    degrees = n_clusters - 1
    quantile = special.stdtrit(degrees, 0.975)
    return float(special.nctdtrinc(degrees, 0.2, quantile)) * stderr


class Quotient(NamedTuple):
    """An estimate over the baseline's, with the numbers that a difference has; None beyond doubles.

    The names are those of the same fields of a `Difference`.
    """

    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    ratio_detectable: float | None


def quotient(
    baseline: float, value: float, log: LogDifference, *, n_clusters: int | None = None
) -> Quotient:
    """Return how often the baseline goes into the value, from the difference of their logarithms.

    >>> quotient(20.0, 10.0, LogDifference(-1.0, -0.4, 0.15)).ratio
    0.5
    """
    ratio = finite(value / baseline) if baseline else None
    if not log.stderr > 0:
        return Quotient(ratio, None, None, None)
    least = detectable(log.stderr, n_clusters=n_clusters)
    return Quotient(ratio, *(finite(_exp(each)) for each in (log.low, log.high, least)))


def _exp(number: float) -> float:
    try:
        return math.exp(number)
    except OverflowError:
        return math.inf


def binary(pairs: PairedContributions) -> Inference:
    """Compare scores of 0 and 1; there is at least one pair."""
    table = fourfold(pairs)
    n, n_differing = sum(table), table.only_a + table.only_b
    low, high = newcombe(table)
    squares = n_differing - (table.only_b - table.only_a) ** 2 / n
    return Inference(
        n_units=n,
        n_differing=n_differing,
        p=mcnemar(table.only_a, table.only_b),
        test=MCNEMAR,
        low=low,
        high=high,
        interval="newcombe95",
        stderr=math.sqrt(squares / (n - 1) / n) if n > 1 else None,
    )


def fourfold(pairs: PairedContributions) -> Fourfold:
    """Count on how many examples both runs are right, or one of them."""
    right_a, right_b = pairs.a.x == 1, pairs.b.x == 1
    kinds = (right_a & right_b, right_a & ~right_b, ~right_a & right_b, ~right_a & ~right_b)
    return Fourfold(*(int(kind.sum()) for kind in kinds))


def cluster_t(pairs: PairedContributions, ratio: Ratio, clusters: Integers) -> Inference:
    """Compare ratios of sums over examples that come in clusters, numbered from 0 without a gap."""
    pairs, ratio = scaled_down(pairs, ratio)
    sums = PairedContributions(*(Contribution(*_sums(each, clusters)) for each in pairs))
    n = len(sums.a.x)
    # Examples may differ where sums do not; only sums that do speak for either run.
    n_differing = len(np.unique(clusters[differing(pairs)]))
    n_unequal = int(differing(sums).sum())
    if n_unequal == 0:
        return Inference(n, n_differing, p=1.0, test=CLUSTER_T, stderr=0.0)
    if n < 2:
        return Inference(n, n_differing, reason="fewer than 2 clusters")
    errors = errors_of(sums, ratio)
    shift = ratio.scale * (rate_of(sums.b) - rate_of(sums.a))
    if errors.of_test == 0:
        if abs(shift) <= errors.rounding:
            return Inference(n, n_differing, p=1.0, test=CLUSTER_T, stderr=0.0)
        return Inference(n, n_differing, stderr=0.0, reason="no spread between clusters")
    if not (math.isfinite(shift) and math.isfinite(errors.of_test)):
        return Inference(n, n_differing, reason="overflow")
    p = 2 * float(special.stdtr(n - 1, -abs(shift / errors.of_test)))
    quantile = student95(n - 1)
    log_ends = _around(shift, quantile * errors.of_test)
    return with_interval(
        Inference(
            n_units=n,
            n_differing=n_differing,
            p=min(1.0, max(p, least_p(n_unequal))),
            test=CLUSTER_T,
            stderr=finite(errors.of_difference),
            log=LogDifference(*log_ends, errors.of_test) if ratio.is_exponential else None,
        ),
        *_around(difference_of(sums, ratio), quantile * errors.of_difference),
        "cluster-t95",
    )


def _sums(each: Contribution, clusters: Integers) -> tuple[Doubles, Doubles]:
    """Return the sums over each cluster."""
    n = int(clusters.max(initial=-1)) + 1
    x, u = (np.bincount(clusters, values, n).astype(np.float64) for values in each)
    return x, u


def _around(middle: float, half_width: float) -> tuple[float, float]:
    return middle - half_width, middle + half_width
