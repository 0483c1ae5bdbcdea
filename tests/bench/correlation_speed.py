"""Speed of the correlations against scipy's, in one run.

    python -m tests.bench.correlation_speed [MOST_ROWS]

Ours: all four coefficients with their intervals, from an Arrow table to estimates, by
`METRIC.update` and `METRIC.compute`, on ratings of 13 values as bytes and as doubles, and on
continuous ratings. The 2000 bootstrap replicates of Spearman's interval are a constant in it, also
given apart. scipy: `pearsonr`, `spearmanr` and `kendalltau` (tau-b, with no p-value of small
samples) of the same ratings, values alone; their columns are doubles, as it wants them.
Times are CPU seconds, the least of several.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import pyarrow as pa
from scipy import stats

from raveval.metrics import _kernels as kernels
from raveval.metrics.correlation import METRIC
from tests.bench.timing import cpu_seconds

N_VALUES = 13
MOST_ROWS = 10_000_000


def grid(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return two ratings of 13 values that agree somewhat."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=n)
    y = x + rng.normal(size=n)
    a, b = (np.clip(np.rint(6 + 2.5 * v), 0, N_VALUES - 1).astype(np.uint8) for v in (x, y))
    return a, b


def normal(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return two continuous ratings that agree somewhat."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=n)
    return x, x + rng.normal(size=n)


def scipys(x: np.ndarray, y: np.ndarray) -> Mapping[str, Callable[[], object]]:
    """Return scipy's functions on two columns."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    return {
        "pearsonr": lambda: stats.pearsonr(x, y),
        "spearmanr": lambda: stats.spearmanr(x, y),
        "kendalltau": lambda: stats.kendalltau(x, y, method="asymptotic"),
    }


def report(x: np.ndarray, y: np.ndarray, kinds: Mapping[str, type]) -> None:
    """Print ours from each kind of column, scipy's, and their ratios."""
    n = 5 if len(x) <= 1_000_000 else 2
    theirs = {name: cpu_seconds(call, repetitions=n) for name, call in scipys(x, y).items()}
    listed = "  ".join(f"{name} {seconds * 1e3:.4g}" for name, seconds in theirs.items())
    print(f"{len(x):>10,} rows, ms: scipy {listed}")
    for kind, dtype in kinds.items():
        table = pa.table({"rating": x.astype(dtype), "reference_rating": y.astype(dtype)})
        state = METRIC.update(METRIC.init(), table)
        update = cpu_seconds(partial(METRIC.update, METRIC.init(), table))
        compute = cpu_seconds(partial(METRIC.compute, state))
        ours = update + compute
        ratios = "  ".join(f"{name} {s / ours:.3g}x" for name, s in theirs.items())
        print(
            f"{kind:>10}: update {update * 1e3:.3g} + compute {compute * 1e3:.3g} ms; {ratios}; "
            f"all three {sum(theirs.values()) / ours:.3g}x "
            f"(by the update alone {sum(theirs.values()) / update:.3g}x)"
        )


def main() -> None:
    """Print all of it."""
    most = int(sys.argv[1]) if len(sys.argv) > 1 else MOST_ROWS
    print(f"numba: {'yes' if kernels.available() else 'no'}")
    sizes = [n for n in (10_000, 100_000, 1_000_000, 10_000_000) if n <= most]
    print(f"ratings of {N_VALUES} values")
    for n in sizes:
        report(*grid(n), {"bytes": np.uint8, "doubles": np.float64})
    print("continuous ratings")
    for n in sizes[:3]:
        report(*normal(n), {"doubles": np.float64})


if __name__ == "__main__":
    main()
