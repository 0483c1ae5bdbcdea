"""Paired statistics: how two runs differ on the same examples. Arrays in, numbers out.

Run A is the baseline, B the other one; a difference is B - A. What each example adds to a ratio is
known for both runs, so what they have in common cancels, as it does not in a comparison of two
intervals. The unit is the example, or the cluster of examples where they come in clusters.

Three methods, each with its test and its interval:

- Scores of 0 and 1: McNemar's exact test and Newcombe's interval (`raveval.comparison.mcnemar`).
- Other ratios of sums, and any other statistic: bootstrap. Examples are drawn with replacement,
  both runs' scores together. The interval is the percentile one, expanded for small samples by the
  ratio of Student's to the normal quantile and by sqrt(n / (n - 1)) (Hesterberg, The American
  Statistician 69 (2015) 371-386); p is twice the share of replicates on the other side of zero,
  with one added to both counts, expanded alike. So p resolves 2 / (replicates + 1) and is never 0,
  and an interval that leaves out zero goes with p < .05.
- Clusters: Student's t on the influence of each cluster, G - 1 degrees of freedom, G of them. A
  bootstrap of few clusters gives intervals that are too narrow.

No method may claim more than its data can: m units that differ, all in one direction, are 2^(1-m)
under the null hypothesis by symmetry alone, and no p is below that. Nor is there an interval or a
t test where no spread is seen, or one that is rounding: that is no proof that there is none.

Perplexities are exponentials of ratios: their test is on the logarithm, where errors are nearly
symmetric. In the bootstrap the difference itself has the same sign and the same p; for clusters the
interval of the difference is by the delta method.

On one machine the same runs give the same bits. Elsewhere the last digits of bootstraps may differ:
they are drawn by numpy and added up by its matrix product, which keep no stream and no order across
versions and processors. A number beyond the largest double is none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from raveval.comparison.mcnemar import SMALLEST_P, Fourfold, mcnemar, newcombe
from raveval.metrics import Contribution, Ratio
from raveval.metrics._bootstrap import count_replicates
from raveval.metrics._exact import Doubles, Integers
from raveval.metrics._intervals import Z95, student95

N_REPLICATES = 10_000
"""Of a ratio of sums; p then resolves 0.0002."""

MCNEMAR, BOOTSTRAP, CLUSTER_T = "mcnemar-exact", "paired-bootstrap", "cluster-t"
"""The tests."""

_MOST_CELLS = 4096
"""Beyond so many distinct pairs, sums of neighbours in the fixed random order are drawn instead."""

_LEAST_KNOWN = 0.95
"""Share of the replicates that must have a value."""

_Z80 = 0.8416212335729143
_ROUNDING = 1e-12
"""What is smaller, relative to the numbers that it is a difference of, is rounding."""

_LARGE = 2.0**900
_DOWN = 2.0**-100
"""Larger contributions are scaled down, so that their sums are doubles."""


class PairedContributions(NamedTuple):
    """What each example adds to both runs' ratio, row by row."""

    a: Contribution
    b: Contribution


@dataclass(frozen=True, slots=True)
class Inference:
    """What can be said of a difference.

    Attributes:
        n_units: independent units it rests on, examples or clusters.
        n_differing: those in which the runs differ in any example.
        p, test: two-sided, and by which test; p is 1 where no unit differs.
        low, high, interval: 95 % interval and how it was made; None where none can be given.
        stderr: standard error of the difference, by the delta method or over the replicates.
        n_replicates: of the bootstrap; None for other methods.
        reason: why there is no test.
    """

    n_units: int
    n_differing: int
    p: float | None = None
    test: str | None = None
    low: float | None = None
    high: float | None = None
    interval: str | None = None
    stderr: float | None = None
    n_replicates: int | None = None
    reason: str | None = None


def entering(pairs: PairedContributions) -> NDArray[np.bool_]:
    """Return which examples add anything to the ratio in both runs."""
    in_a, in_b = ((x != 0) | (u != 0) for x, u in pairs)
    both: NDArray[np.bool_] = in_a & in_b
    return both


def kept(pairs: PairedContributions, mask: NDArray[np.bool_]) -> PairedContributions:
    """Return the pairs that a mask keeps."""
    return PairedContributions(*(Contribution(x[mask], u[mask]) for x, u in pairs))


def differing(pairs: PairedContributions) -> NDArray[np.bool_]:
    """Return in which examples the runs differ."""
    differs: NDArray[np.bool_] = (pairs.a.x != pairs.b.x) | (pairs.a.u != pairs.b.u)
    return differs


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
    pairs, ratio = _scaled_down(pairs, ratio)
    sums = PairedContributions(*(Contribution(*_sums(each, clusters)) for each in pairs))
    n = len(sums.a.x)
    # Examples may differ where sums do not; only sums that do speak for either run.
    n_differing = len(np.unique(clusters[differing(pairs)]))
    n_unequal = int(differing(sums).sum())
    if n_unequal == 0:
        return Inference(n, n_differing, p=1.0, test=CLUSTER_T, stderr=0.0)
    if n < 2:
        return Inference(n, n_differing, reason="fewer than 2 clusters")
    errors = _errors(sums, ratio)
    shift = ratio.scale * (_rate(sums.b) - _rate(sums.a))
    if errors.of_test == 0:
        if abs(shift) <= errors.rounding:
            return Inference(n, n_differing, p=1.0, test=CLUSTER_T, stderr=0.0)
        return Inference(n, n_differing, stderr=0.0, reason="no spread between clusters")
    if not (math.isfinite(shift) and math.isfinite(errors.of_test)):
        return Inference(n, n_differing, reason="overflow")
    p = 2 * float(special.stdtr(n - 1, -abs(shift / errors.of_test)))
    return _with_interval(
        Inference(
            n_units=n,
            n_differing=n_differing,
            p=min(1.0, max(p, _least_p(n_unequal))),
            test=CLUSTER_T,
            stderr=_finite(errors.of_difference),
        ),
        *_around(_difference(sums, ratio), student95(n - 1) * errors.of_difference),
        "cluster-t95",
    )


def bootstrap(
    compared: Sequence[tuple[PairedContributions, Ratio, NDArray[np.bool_]]],
) -> list[Inference]:
    """Compare ratios of sums over the same examples, all of them in the same replicates.

    The third of each says which examples enter that ratio.
    """
    if not compared:
        return []
    scaled = [(*_scaled_down(pairs, ratio), mask) for pairs, ratio, mask in compared]
    columns = np.column_stack(
        [
            np.where(mask, values, 0.0)
            for pairs, _, mask in scaled
            for each in pairs
            for values in each
        ]
    )
    cells, counts = _cells(columns)
    parts = count_replicates(counts, n_replicates=N_REPLICATES)
    sums = np.concatenate([part.astype(np.float64) @ cells for part in parts])
    found = []
    for index, (pairs, ratio, mask) in enumerate(scaled):
        with np.errstate(all="ignore"):  # a replicate without a value is left out below
            x_a, u_a, x_b, u_b = sums[:, 4 * index : 4 * index + 4].T
            rates = [ratio.scale * (x / u) + ratio.shift for x, u in ((x_a, u_a), (x_b, u_b))]
            values = [np.exp(rate) if ratio.is_exponential else rate for rate in rates]
            differences = np.where(_is_equal(*rates), 0.0, values[1] - values[0])
            signed = np.where(_is_equal(*rates), 0.0, rates[1] - rates[0])
        used = kept(pairs, mask)
        found.append(
            resampled(
                differences,
                signed,
                n_units=len(used.a.x),
                n_differing=int(differing(used).sum()),
                stderr=_errors(used, ratio).of_difference,
            )
        )
    return found


def without_rounding(a: Doubles, b: Doubles) -> Doubles:
    """Return b - a, 0 where that is rounding."""
    differences: Doubles = np.where(_is_equal(a, b), 0.0, b - a)
    return differences


def _is_equal(a: Doubles, b: Doubles) -> NDArray[np.bool_]:
    is_equal: NDArray[np.bool_] = np.abs(b - a) <= _ROUNDING * np.abs(a) + _ROUNDING * np.abs(b)
    return is_equal


def resampled(
    differences: Doubles,
    signed: Doubles,
    *,
    n_units: int,
    n_differing: int,
    stderr: float | None,
) -> Inference:
    """Return what replicates of a difference say; NaN and infinities are such without a value.

    Args:
        differences: the difference in each replicate.
        signed: numbers of the same signs, for the test.
        n_units: units that were drawn in each replicate.
        n_differing: those of them that differ between the runs.
        stderr: of the difference; None for the one over the replicates.
    """
    if n_differing == 0:
        n_replicates = len(differences)
        return Inference(n_units, 0, p=1.0, test=BOOTSTRAP, stderr=0.0, n_replicates=n_replicates)
    known = np.isfinite(differences) & np.isfinite(signed)
    n_known = int(known.sum())
    if n_units < 2:
        return Inference(n_units, n_differing, reason="n<2")
    if n_known < max(2, _LEAST_KNOWN * len(differences)):
        return Inference(n_units, n_differing, reason="too few replicates have a value")
    expansion = math.sqrt(n_units / (n_units - 1))
    quantile = expansion * student95(n_units - 1)
    level = float(special.ndtr(-quantile))
    with np.errstate(over="ignore", invalid="ignore"):  # numbers near the largest double
        low, high = np.quantile(differences[known], (level, 1 - level)).tolist()
        spread = float(np.std(differences[known], ddof=1))
    n_beyond = min(int((signed[known] <= 0).sum()), int((signed[known] >= 0).sum()))
    z = -float(special.ndtri(min(0.5, (n_beyond + 1) / (n_known + 1))))
    p = 2 * float(special.stdtr(n_units - 1, -z / expansion))
    found = Inference(
        n_units=n_units,
        n_differing=n_differing,
        p=min(1.0, max(p, _least_p(n_differing))),
        test=BOOTSTRAP,
        stderr=_finite(spread if stderr is None else stderr),
        n_replicates=n_known,
    )
    if high - low <= _ROUNDING * (abs(low) + abs(high)):
        return found
    return _with_interval(found, low, high, "expanded-bootstrap95")


class _Errors(NamedTuple):
    """Standard errors by the delta method, 0 where they are rounding.

    `of_test` is that of the difference of the logarithms where the estimate is an exponential;
    `rounding` is what rounding may make of a difference on that scale.
    """

    of_difference: float
    of_test: float
    rounding: float


def _errors(pairs: PairedContributions, ratio: Ratio) -> _Errors:
    """Return the errors of a difference over independent pairs of sums."""
    moved, values, rounding = [], [], 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for each in pairs:
            total, rate = math.fsum(each.u), _rate(each)
            moved.append(ratio.scale * (each.x - rate * each.u) / total)
            values.append(_value(ratio, rate) if ratio.is_exponential else 1.0)
            rounding += _ROUNDING * abs(ratio.scale) * math.fsum(np.abs(each.x)) / total
        of_test = _root_of_squares(moved[1] - moved[0])
        if of_test <= rounding:
            return _Errors(0.0, 0.0, rounding)
        influence = moved[1] * values[1] - moved[0] * values[0]
        return _Errors(_root_of_squares(influence), of_test, rounding)


def _root_of_squares(influence: Doubles) -> float:
    """Return the root of the summed squares, with n / (n - 1) for the sample; 0 for one unit."""
    n, largest = len(influence), float(np.abs(influence).max(initial=0.0))
    if n < 2 or largest == 0 or not math.isfinite(largest):
        return 0.0 if n < 2 else largest
    return largest * math.sqrt(n / (n - 1) * math.fsum((influence / largest) ** 2))


def _rate(sums: Contribution) -> float:
    return math.fsum(sums.x) / math.fsum(sums.u)


def _value(ratio: Ratio, rate: float) -> float:
    try:
        return ratio.value(rate)
    except OverflowError:
        return math.inf


def _difference(sums: PairedContributions, ratio: Ratio) -> float:
    return _value(ratio, _rate(sums.b)) - _value(ratio, _rate(sums.a))


def _around(middle: float, half_width: float) -> tuple[float, float]:
    return middle - half_width, middle + half_width


def _with_interval(found: Inference, low: float, high: float, method: str) -> Inference:
    """Add an interval whose ends are numbers."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return found
    return replace(found, low=low, high=high, interval=method)


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _scaled_down(pairs: PairedContributions, ratio: Ratio) -> tuple[PairedContributions, Ratio]:
    """Return the same comparison with contributions whose sums are doubles."""
    largest = max(float(np.abs(each.x).max(initial=0.0)) for each in pairs)
    if largest <= _LARGE:
        return pairs, ratio
    smaller = (Contribution(each.x * _DOWN, each.u) for each in pairs)
    return PairedContributions(*smaller), replace(ratio, scale=ratio.scale / _DOWN)


def _sums(each: Contribution, clusters: Integers) -> tuple[Doubles, Doubles]:
    """Return the sums over each cluster."""
    n = int(clusters.max(initial=-1)) + 1
    x, u = (np.bincount(clusters, values, n).astype(np.float64) for values in each)
    return x, u


def _least_p(n_differing: int) -> float:
    return max(2.0 ** (1 - min(n_differing, 1000)), SMALLEST_P)


def _cells(rows: Doubles) -> tuple[Doubles, Integers]:
    """Return distinct rows and how often each stands there, or sums of neighbours, once each."""
    cells, counts = np.unique(rows, axis=0, return_counts=True)
    if len(cells) <= _MOST_CELLS:
        return cells, counts
    size = -(-len(rows) // _MOST_CELLS)
    blocks = np.add.reduceat(rows, np.arange(0, len(rows), size), axis=0)
    return blocks, np.ones(len(blocks), np.int64)
