"""The paired bootstrap: what replicates of a difference say, and how those of ratios are made.

The methods are those of `raveval.comparison.paired`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from raveval.comparison.delta import (
    ROUNDING,
    PairedContributions,
    differing,
    errors_of,
    kept,
    scaled_down,
)
from raveval.comparison.inference import (
    BOOTSTRAP,
    Inference,
    LogDifference,
    finite,
    least_p,
    with_interval,
)
from raveval.metrics import Ratio
from raveval.metrics._bootstrap import count_replicates
from raveval.metrics._exact import Booleans, Doubles, Integers
from raveval.metrics._intervals import student95

N_REPLICATES = 10_000
"""Of a ratio of sums; p then resolves 0.0002."""

_MOST_CELLS = 4096
"""Beyond so many distinct pairs, sums of neighbours in the fixed random order are drawn instead."""

_LEAST_KNOWN = 0.95
"""Share of the replicates that must have a value."""


def bootstrap(
    compared: Sequence[tuple[PairedContributions, Ratio, Booleans]],
) -> list[Inference]:
    """Compare ratios of sums over the same examples, all of them in the same replicates.

    The third of each says which examples enter that ratio.
    """
    if not compared:
        return []
    scaled = [(*scaled_down(pairs, ratio), mask) for pairs, ratio, mask in compared]
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
        errors = errors_of(used, ratio)
        found.append(
            resampled(
                differences,
                signed,
                n_units=len(used.a.x),
                n_differing=int(differing(used).sum()),
                stderr=errors.of_difference,
                log_stderr=errors.of_test if ratio.is_exponential else None,
            )
        )
    return found


def without_rounding(a: Doubles, b: Doubles) -> Doubles:
    """Return b - a, 0 where that is rounding."""
    differences: Doubles = np.where(_is_equal(a, b), 0.0, b - a)
    return differences


def _is_equal(a: Doubles, b: Doubles) -> Booleans:
    is_equal: Booleans = np.abs(b - a) <= ROUNDING * np.abs(a) + ROUNDING * np.abs(b)
    return is_equal


def resampled(
    differences: Doubles,
    signed: Doubles,
    *,
    n_units: int,
    n_differing: int,
    stderr: float | None,
    log_stderr: float | None = None,
) -> Inference:
    """Return what replicates of a difference say; NaN and infinities are such without a value.

    Args:
        differences: the difference in each replicate.
        signed: numbers of the same signs, for the test.
        n_units: units that were drawn in each replicate.
        n_differing: those of them that differ between the runs.
        stderr: of the difference; None for the one over the replicates.
        log_stderr: where `signed` is the difference of logarithms, its standard error.
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
        log_low, log_high = np.quantile(signed[known], (level, 1 - level)).tolist()
        spread = float(np.std(differences[known], ddof=1))
    n_beyond = min(int((signed[known] <= 0).sum()), int((signed[known] >= 0).sum()))
    z = -float(special.ndtri(min(0.5, (n_beyond + 1) / (n_known + 1))))
    p = 2 * float(special.stdtr(n_units - 1, -z / expansion))
    found = Inference(
        n_units=n_units,
        n_differing=n_differing,
        p=min(1.0, max(p, least_p(n_differing))),
        test=BOOTSTRAP,
        stderr=finite(spread if stderr is None else stderr),
        log=None if log_stderr is None else LogDifference(log_low, log_high, log_stderr),
        n_replicates=n_known,
    )
    if high - low <= ROUNDING * (abs(low) + abs(high)):
        return found
    return with_interval(found, low, high, "expanded-bootstrap95")


def _cells(rows: Doubles) -> tuple[Doubles, Integers]:
    """Return distinct rows and how often each stands there, or sums of neighbours, once each."""
    cells, counts = np.unique(rows, axis=0, return_counts=True)
    if len(cells) <= _MOST_CELLS:
        return cells, counts
    size = -(-len(rows) // _MOST_CELLS)
    blocks = np.add.reduceat(rows, np.arange(0, len(rows), size), axis=0)
    return blocks, np.ones(len(blocks), np.int64)
