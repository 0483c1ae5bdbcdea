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
under the null hypothesis by symmetry alone, and no p is below that.

Perplexities are exponentials of ratios: their test is on the logarithm, where errors are nearly
symmetric. In the bootstrap the difference itself has the same sign and the same p; for clusters the
interval of the difference is by the delta method.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from raveval.comparison.mcnemar import SMALLEST_P, Agreement, mcnemar, newcombe
from raveval.metrics import Contribution, Ratio
from raveval.metrics._bootstrap import count_replicates
from raveval.metrics._exact import Doubles, Integers
from raveval.metrics._intervals import Z95

N_REPLICATES = 10_000
"""Of a ratio of sums; p then resolves 0.0002."""

_MOST_CELLS = 4096
"""Beyond so many distinct pairs, sums of neighbours in the fixed random order are drawn instead."""

_LEAST_KNOWN = 0.95
"""Share of the replicates that must have a value."""

_Z80 = 0.8416212335729143
_EQUAL = 1e-12
"""Relative difference of two replicates that is rounding."""


class Pairs(NamedTuple):
    """What each example adds to both runs' ratio, row by row."""

    a: Contribution
    b: Contribution


@dataclass(frozen=True, slots=True)
class Inference:
    """What can be said of a difference.

    Attributes:
        low, high, interval: 95 % interval and how it was made; None where no unit differs.
        p, test: two-sided, and by which test; p is 1 where no unit differs.
        stderr: standard error of the difference, by the delta method or over the replicates.
        n_units: independent units it rests on, examples or clusters.
        n_differing: those that differ between the runs.
        n_replicates: of the bootstrap; None for other methods.
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


def usable(pairs: Pairs) -> NDArray[np.bool_]:
    """Return which examples enter the ratio in both runs: those that add anything to either sum."""
    enters_a, enters_b = ((x != 0) | (u != 0) for x, u in pairs)
    both: NDArray[np.bool_] = enters_a & enters_b
    return both


def kept(pairs: Pairs, mask: NDArray[np.bool_]) -> Pairs:
    """Return the pairs that a mask keeps."""
    return Pairs(*(Contribution(x[mask], u[mask]) for x, u in pairs))


def summed(pairs: Pairs, clusters: Integers) -> Pairs:
    """Return the sums over each cluster; `clusters` numbers them from 0."""

    def sums(values: Doubles) -> Doubles:
        return np.bincount(clusters, values).astype(np.float64)

    return Pairs(*(Contribution(sums(x), sums(u)) for x, u in pairs))


def is_binary(pairs: Pairs, ratio: Ratio) -> bool:
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


def detectable(stderr: float) -> float:
    """Return the true difference that a comparison with this error shows in 80 % of all cases.

    >>> round(detectable(0.0145), 3)
    0.041
    """
    return (Z95 + _Z80) * stderr


def binary(pairs: Pairs) -> Inference:
    """Compare scores of 0 and 1; there is at least one pair."""
    table = agreement(pairs)
    n, n_differing = sum(table), table.only_a + table.only_b
    low, high = newcombe(table)
    squares = n_differing - (table.only_b - table.only_a) ** 2 / n
    return Inference(
        n_units=n,
        n_differing=n_differing,
        p=mcnemar(table.only_a, table.only_b),
        test="mcnemar_exact",
        low=low,
        high=high,
        interval="newcombe95",
        stderr=math.sqrt(squares / (n - 1) / n) if n > 1 else None,
    )


def agreement(pairs: Pairs) -> Agreement:
    """Count on how many examples both runs are right, or one of them."""
    right_a, right_b = pairs.a.x == 1, pairs.b.x == 1
    kinds = (right_a & right_b, right_a & ~right_b, ~right_a & right_b, ~right_a & ~right_b)
    return Agreement(*(int(kind.sum()) for kind in kinds))


def cluster_t(sums: Pairs, ratio: Ratio) -> Inference:
    """Compare ratios whose sums over each cluster are given."""
    n, n_differing = len(sums.a.x), _n_differing(sums)
    if n < 2:
        return Inference(n, n_differing, test="cluster_t")
    influence, logs = _influences(sums, ratio)
    stderr, stderr_of_test = _stderr(influence), _stderr(logs)
    if n_differing == 0 or stderr == 0:
        p = 1.0 if n_differing == 0 else None
        return Inference(n, n_differing, p=p, test="cluster_t", stderr=stderr)
    difference = ratio.value(_rate(sums.b)) - ratio.value(_rate(sums.a))
    t = ratio.scale * (_rate(sums.b) - _rate(sums.a)) / stderr_of_test
    half_width = float(special.stdtrit(n - 1, 0.975)) * stderr
    p = 2 * float(special.stdtr(n - 1, -abs(t)))
    return Inference(
        n_units=n,
        n_differing=n_differing,
        p=min(1.0, max(p, _least_p(n_differing))),
        test="cluster_t",
        low=difference - half_width,
        high=difference + half_width,
        interval="cluster-t95",
        stderr=stderr,
    )


def bootstrap(compared: Sequence[tuple[Pairs, Ratio]]) -> list[Inference]:
    """Compare ratios of sums over the same examples, all of them in the same replicates.

    An example that one of the runs cannot use for a ratio does not enter that ratio.
    """
    if not compared:
        return []
    masks = [usable(pairs) for pairs, _ in compared]
    columns = np.column_stack(
        [
            np.where(mask, values, 0.0)
            for (pairs, _), mask in zip(compared, masks, strict=True)
            for each in pairs
            for values in each
        ]
    )
    cells, counts = _cells(columns)
    parts = count_replicates(counts, n_replicates=N_REPLICATES)
    sums = np.concatenate([part.astype(np.float64) @ cells for part in parts])
    found = []
    for index, (pairs, ratio) in enumerate(compared):
        with np.errstate(all="ignore"):  # a replicate without a value is left out below
            x_a, u_a, x_b, u_b = sums[:, 4 * index : 4 * index + 4].T
            rates = [ratio.scale * x / u + ratio.shift for x, u in ((x_a, u_a), (x_b, u_b))]
            values = [np.exp(rate) if ratio.is_exponential else rate for rate in rates]
            differences, signed = values[1] - values[0], rates[1] - rates[0]
        is_equal = np.abs(signed) <= _EQUAL * (np.abs(rates[0]) + np.abs(rates[1]))
        signed[is_equal] = differences[is_equal] = 0.0
        entering = kept(pairs, masks[index])
        found.append(
            resampled(
                differences,
                signed,
                n_units=len(entering.a.x),
                n_differing=_n_differing(entering),
                stderr=_stderr(_influences(entering, ratio)[0]),
            )
        )
    return found


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
    test = "paired_bootstrap"
    if n_differing == 0:
        n_replicates = len(differences)
        return Inference(n_units, 0, p=1.0, test=test, stderr=0.0, n_replicates=n_replicates)
    known = np.isfinite(differences) & np.isfinite(signed)
    n_known = int(known.sum())
    if n_units < 2 or n_known < _LEAST_KNOWN * len(differences):
        return Inference(n_units, n_differing, test=test)
    expansion = math.sqrt(n_units / (n_units - 1))
    quantile = expansion * float(special.stdtrit(n_units - 1, 0.975))
    level = float(special.ndtr(-quantile))
    low, high = np.quantile(differences[known], (level, 1 - level))
    n_beyond = min(int((signed[known] <= 0).sum()), int((signed[known] >= 0).sum()))
    z = -float(special.ndtri(min(0.5, (n_beyond + 1) / (n_known + 1))))
    p = 2 * float(special.stdtr(n_units - 1, -z / expansion))
    return Inference(
        n_units=n_units,
        n_differing=n_differing,
        p=min(1.0, max(p, _least_p(n_differing))),
        test=test,
        low=float(low),
        high=float(high),
        interval="bootstrap95",
        stderr=float(np.std(differences[known], ddof=1)) if stderr is None else stderr,
        n_replicates=n_known,
    )


def _rate(sums: Contribution) -> float:
    return math.fsum(sums.x) / math.fsum(sums.u)


def _influences(pairs: Pairs, ratio: Ratio) -> tuple[Doubles, Doubles]:
    """Return what each unit moves the difference by, and what it moves that of the logarithms by.

    Both are the same where the estimate is no exponential.
    """
    parts = []
    for each in pairs:
        total, rate = math.fsum(each.u), _rate(each)
        linear = ratio.scale * (each.x - rate * each.u) / total
        parts.append((linear * (ratio.value(rate) if ratio.is_exponential else 1.0), linear))
    (value_a, linear_a), (value_b, linear_b) = parts
    return value_b - value_a, linear_b - linear_a


def _stderr(influence: Doubles) -> float:
    """Return the root of the summed squares, with n / (n - 1) for the sample; 0 for one unit."""
    n = len(influence)
    return math.sqrt(n / (n - 1) * math.fsum(influence**2)) if n > 1 else 0.0


def _n_differing(pairs: Pairs) -> int:
    return int(((pairs.a.x != pairs.b.x) | (pairs.a.u != pairs.b.u)).sum())


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
