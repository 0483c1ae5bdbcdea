"""The bootstrap, without touching a row: from count tables, and from weights hashed from keys.

Two ways, for two kinds of statistic. Where a statistic is a function of a count table, resampling n
rows with replacement is drawing a multinomial table of n: `count_replicates` draws the tables, the
same distribution as the ordinary bootstrap, at a cost that depends on cells and not on rows.

Where rows must stay apart (two runs over the same examples, sums of anything), `poisson_weights`
says how often each row enters each replicate: independent Poisson(1) numbers (Hanley and MacGibbon,
Computer Methods and Programs in Biomedicine 83 (2006) 57-60), a function of the row's key and the
replicate alone. Weighted integer sums merge like any state; keyed by example, two runs are paired;
keyed by cluster, whole clusters are resampled, also when they straddle shards.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from raveval.metrics._exact import Doubles, Integers
from raveval.metrics._intervals import Interval

Keys = NDArray[np.uint64]
Weights = NDArray[np.uint8]

N_REPLICATES = 2000
"""At this number each end of a percentile interval varies by 1.5 % of its width, one deviation."""

SEED = 0x5EED_0F_2000
"""Of the replicates: fixed, so that an interval is a function of the counts alone."""

_NUMBERS_AT_ONCE = 1 << 20
"""Bounds the memory of a chunk: 8 MiB of counts, and as much of drawn rows."""

_ROWS_PER_CELL = 16
"""Below this, drawing the rows one by one is cheaper than a binomial number for each cell."""

_QUANTILES = (0.025, 0.975)

_GAMMA = 0x9E3779B97F4A7C15  # 2^64 divided by the golden ratio, made odd
_MASK = (1 << 64) - 1
_WEIGHTS_PER_WORD = 4  # 16 bits each

_OF_65536 = (24109, 24110, 12055, 4017, 1005, 201, 34, 4, 1)
"""How many of 2^16 equally likely numbers stand for the weights 0, 1, …, 8.

Poisson(1) probabilities rounded so that mean and variance are exactly 1.
"""

_WEIGHT_OF = np.repeat(np.arange(len(_OF_65536), dtype=np.uint8), _OF_65536)


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


def poisson_weights(keys: Keys, first_replicate: int, n_replicates: int) -> Weights:
    """Return how often each key enters each of the replicates: independent Poisson(1) numbers.

    A weight depends on its key and its replicate's number only: not on the other keys, the range
    asked for, the machine or the run. It is at most 8.

    Args:
        keys: shape `(n,)`; a hash of what is drawn (an example, a cluster). Equal keys enter
            together.
        first_replicate: number of the first replicate, from 0.
        n_replicates: how many.

    Returns:
        Shape `(n, n_replicates)`; ask for as many keys and replicates at once as memory allows.

    >>> poisson_weights(np.array([7, 7, 8], np.uint64), 0, 6).tolist()
    [[2, 1, 1, 1, 2, 1], [2, 1, 1, 1, 2, 1], [0, 1, 1, 2, 2, 1]]
    """
    first_word, skipped = divmod(first_replicate, _WEIGHTS_PER_WORD)
    n_words = -(-(skipped + n_replicates) // _WEIGHTS_PER_WORD)
    # A stream of its own for each key: the key mixed is where its counter starts.
    starts = _mix(keys.astype(np.uint64) + np.uint64(_GAMMA))
    steps = [(word * _GAMMA) & _MASK for word in range(first_word, first_word + n_words)]
    words = _mix(starts[:, None] + np.array(steps, np.uint64))
    halves = words.astype("<u8", copy=False).view("<u2")  # the low 16 bits come first
    weights: Weights = _WEIGHT_OF[halves[:, skipped : skipped + n_replicates]]
    return weights


def _mix(words: Keys) -> Keys:
    """Return the words with every bit spread over all 64 (the finaliser of SplitMix64)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


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
