"""The bootstrap, without touching a row: from count tables.

Where a statistic is a function of a count table, resampling n rows with replacement is drawing a
multinomial table of n: `count_replicates` draws the tables, the same distribution as the ordinary
bootstrap, at a cost that depends on cells and not on rows. With one cell for each cluster it draws
clusters. `bootstrapped` turns the statistic's replicates into an error and an interval, by the one
rule for when they make any.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from raveval.metrics._exact import Doubles, Integers
from raveval.metrics._intervals import Interval

N_REPLICATES = 2000
"""At this number each end of a percentile interval varies by 1.5 % of its width, one deviation."""

SEED = 0x5EED_0F_2000
"""Of the replicates: fixed, so that with one numpy an interval is a function of the counts alone.

numpy does not promise the same stream in all of its versions (NEP 19). A golden test pins a draw,
so that a change is noticed, and raises the versions of the metrics that draw.
"""

_NUMBERS_AT_ONCE = 1 << 20
"""Bounds the memory of a chunk: 8 MiB of counts, and as much of drawn rows."""

_ROWS_PER_CELL = 16
"""Below this, drawing the rows one by one is cheaper than a binomial number for each cell."""

_QUANTILES = (0.025, 0.975)

LEAST_UNITS = 4
"""Examples or clusters from which on replicates say anything; of 3, one draw in 9 is one thrice."""

NO_SPREAD = 1e-9
"""Of an error times the root of n, which is of order 1 where there is any spread: rounding dust."""

_MOST_UNDEFINED = 0.05
"""Share of the replicates that may be undefined; with more, what the others say is no interval."""


class Bootstrapped(NamedTuple):
    """What replicates say of a statistic: their standard deviation and their percentiles."""

    stderr: float
    low: float
    high: float


def count_replicates(
    counts: Integers, *, n_replicates: int = N_REPLICATES, seed: int = SEED
) -> Iterator[Integers]:
    """Yield bootstrap replicates of a count table, a chunk of them at a time.

    Args:
        counts: shape `(n_cells,)`, not negative; their sum n is how many rows each replicate has.
        n_replicates: replicates in all chunks together.
        seed: of the draw. With the same counts it gives the same replicates.

    Yields:
        Arrays of shape `(rows, n_cells)`, each row a resampled table with the sum n.

    Raises:
        ValueError: there is nothing to draw from.
    """
    counts = np.ascontiguousarray(counts, np.int64)
    n = int(counts.sum())
    if n == 0 or int(counts.min()) < 0:
        raise ValueError("a bootstrap needs counts that are not negative and not all zero")
    rng = np.random.Generator(np.random.PCG64(seed))
    draws_rows = n <= _ROWS_PER_CELL * len(counts)
    row_size = max(n, len(counts)) if draws_rows else len(counts)
    chunk = max(1, _NUMBERS_AT_ONCE // row_size)
    draw = _draw_rows if draws_rows else _draw_cells
    for start in range(0, n_replicates, chunk):
        yield draw(rng, counts, min(chunk, n_replicates - start))


def percentile95(values: Doubles) -> Interval:
    """Return the 2.5 % and 97.5 % quantiles of a statistic over replicates.

    NaN stands for a replicate in which the statistic is undefined; such ones are left out.

    Raises:
        ValueError: it is undefined in all of them.

    >>> percentile95(np.arange(1001.0))
    Interval(low=25.0, high=975.0)
    """
    known = values[~np.isnan(values)]
    if not len(known):
        raise ValueError("no replicate has a value")
    low, high = np.quantile(known, _QUANTILES)
    return Interval(float(low), float(high))


def bootstrapped(replicates: Doubles, n_units: int) -> Bootstrapped | str:
    """Return the error and the interval that replicates make, or why they make none.

    They make none with fewer than `LEAST_UNITS` drawn, with more than one replicate in 20
    undefined, or without spread, which is no proof that there is none.

    Args:
        replicates: the statistic of each; NaN where it is undefined.
        n_units: examples or clusters that were drawn.
    """
    is_undefined = np.isnan(replicates)
    if n_units < LEAST_UNITS:
        return f"n<{LEAST_UNITS}"
    if is_undefined.mean() > _MOST_UNDEFINED:
        return "replicates undefined"
    stderr = float(replicates[~is_undefined].std(ddof=1))
    if stderr * math.sqrt(n_units) <= NO_SPREAD:
        return "no spread"
    return Bootstrapped(stderr, *percentile95(replicates))


def _draw_rows(rng: np.random.Generator, counts: Integers, n_rows: int) -> Integers:
    """Draw as the definition says: n rows with replacement, and count the cells they are in."""
    n_cells = len(counts)
    cell_of_row = np.repeat(np.arange(n_cells), counts)
    drawn = cell_of_row[rng.integers(0, len(cell_of_row), (n_rows, len(cell_of_row)))]
    drawn += np.arange(0, n_rows * n_cells, n_cells)[:, None]
    return np.bincount(drawn.ravel(), minlength=n_rows * n_cells).reshape(n_rows, n_cells)


def _draw_cells(rng: np.random.Generator, counts: Integers, n_rows: int) -> Integers:
    """Draw each cell's count, given those before it."""
    # numpy subtracts the cells' probabilities from 1 as it goes and gives the last cell the rest.
    # With the largest one there, the rest never nears the rounding errors of the subtraction.
    order = np.arange(len(counts))
    largest = int(counts.argmax())
    order[[largest, -1]] = order[[-1, largest]]
    n = int(counts.sum())
    drawn = rng.multinomial(n, counts[order] / n, size=n_rows)
    return drawn[:, order]
