"""Speed of exact sums, moments and joint counts against sums in floating point, in one run.

    python -m tests.bench.exact_speed

A million doubles. `numpy.sum` and `math.fsum` round; scipy's `pearsonr` is what the five exact
moments of pairs are compared with. Times are CPU seconds, the least of several.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
from scipy.stats import pearsonr

from raveval.metrics import _exact as exact
from raveval.metrics import _kernels as kernels
from tests.bench.timing import cpu_seconds

N = 1_000_000


def show(title: str, functions: dict[str, Callable[[], object]]) -> None:
    """Print nanoseconds a row, and each time over that of the first function."""
    print(title)
    first = 0.0
    for name, function in functions.items():
        seconds = cpu_seconds(function)
        first = first or seconds
        print(f"  {name:<34} {seconds / N * 1e9:8.2f} ns a row   x{seconds / first:8.2f}")


def check(x: np.ndarray) -> None:
    """Fail where the exact sum is not the one that fsum rounds."""
    assert float(Fraction(exact.exact_sum(x), 1 << exact.SCALE_BITS)) == math.fsum(x)


def main() -> None:
    """Print three tables."""
    rng = np.random.default_rng(0)
    x, y = -rng.exponential(50, N), rng.normal(size=N)
    counts = rng.integers(1, 500, N)
    a, b = (rng.integers(0, 13, N).astype(np.uint8) for _ in range(2))
    bits = x.view(np.int64)
    mantissa, shift = exact.decompose(x)
    check(x)
    print(f"numba: {'used' if kernels.available() else 'absent'}")
    show(
        "sum of doubles",
        {
            "exact_sum": lambda: exact.exact_sum(x),
            "exact_sum, plain path": lambda: exact.plain_sum_doubles(bits),
            "math.fsum": lambda: math.fsum(x),
            "numpy.sum": lambda: x.sum(),
        },
    )
    show(
        "moments",
        {
            "pair_moments (x, y, xx, yy, xy)": lambda: exact.pair_moments(x, y),
            "moments (x, u, xx, xu, uu)": lambda: exact.moments(x, counts),
            "one sum of products, plain path": lambda: exact.plain_sum_products(
                mantissa, mantissa, shift, shift, exact.N_PRODUCT_SHIFTS
            ),
            "scipy.stats.pearsonr": lambda: pearsonr(x, y),
        },
    )
    show(
        "joint counts of 13 by 13 ratings",
        {
            "crosstab": lambda: kernels.crosstab(a, b),
            "crosstab, plain path": lambda: kernels.plain_crosstab(a, b),
            "numpy.unique of pairs": lambda: np.unique(
                (a.astype(np.int64) << 8) + b, return_counts=True
            ),
        },
    )


if __name__ == "__main__":
    main()
