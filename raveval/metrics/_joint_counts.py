"""Counts how often each pair of ratings occurs: the exact state behind every correlation.

Grids of ratings have a few hundred distinct pairs however many rows there are; continuous ratings
have as many as rows. Both are kept as rows sorted by pair, with their counts, in runs whose sizes
at least double: a run is merged with the next one only when it has grown to its order of size, so
that adding up k states of m rows in all costs O(m log k), whichever way they are added. Which runs
a state has at the moment is a matter of its history; what it holds, `consolidated`, is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import isfinite

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from typing_extensions import override

from raveval.metrics import Json
from raveval.metrics._exact import Doubles, Integers
from raveval.metrics._kernels import N_CODES, Bytes, crosstab
from raveval.metrics._state import StateReader

Points = NDArray[np.complex128]
"""Pairs (x, y) as x + iy: 16 bytes each that numpy sorts and compares by x, then by y."""

Keys = NDArray[np.uint64]
"""The keys of clusters, one for each row."""

NO_CLUSTER = 0
"""Stands for a row without a cluster; no cluster has this key."""

_MOST_ROWS = 1 << 53  # beyond what can be counted; their sum stays below 2^63 over any merges
_MOST_KEY = (1 << 64) - 1
_PROBED = 2048  # rows that tell whether a column is a grid, before all of it is looked at


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Distinct rows, ascending by pair and then by cluster, and how often each occurs.

    Attributes:
        pairs, counts: shape `(n_rows,)`; no NaN, no -0.0, no count of zero.
        clusters: the key of each row's cluster, NO_CLUSTER for none; None where no row has one.
    """

    pairs: Points
    counts: Integers
    clusters: Keys | None = None

    def __len__(self) -> int:
        return len(self.pairs)

    @override
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Run):
            return NotImplemented
        return (
            np.array_equal(self.pairs, other.pairs)
            and np.array_equal(self.counts, other.counts)
            and np.array_equal(cluster_keys(self), cluster_keys(other))
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def n(self) -> int:
        """Rows counted."""
        return int(self.counts.sum())


_EMPTY = Run(np.empty(0, np.complex128), np.empty(0, np.int64))


def cluster_keys(run: Run) -> Keys:
    """Return the key of each row's cluster, NO_CLUSTER where it has none."""
    return np.zeros(len(run), np.uint64) if run.clusters is None else run.clusters


@dataclass(frozen=True, slots=True, eq=False)
class JointCounts:
    """A multiset of pairs, with or without clusters.

    Attributes:
        runs: from the smallest to the largest, each at least twice as long as the one before.
    """

    runs: tuple[Run, ...] = ()

    def __add__(self, other: JointCounts) -> JointCounts:
        """Return the counts of both; neither is changed."""
        if not self.runs or not other.runs:
            return self if self.runs else other
        return JointCounts(tuple(_balanced(sorted((*self.runs, *other.runs), key=len))))

    @override
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, JointCounts):
            return NotImplemented
        return self.consolidated() == other.consolidated()

    __hash__ = None  # type: ignore[assignment]

    def consolidated(self) -> Run:
        """Return all of it as one run, which depends on what was counted alone."""
        return reduce(_merged, self.runs) if self.runs else _EMPTY


def count(x: Doubles, y: Doubles, clusters: Keys | None = None) -> JointCounts:
    """Return the counts of pairs of canonical doubles, none of them NaN.

    A row whose cluster is NO_CLUSTER has none.

    >>> counts = count(np.array([2.0, 1.0, 2.0]), np.array([5.0, 5.0, 5.0])).consolidated()
    >>> counts.pairs.tolist(), counts.counts.tolist()
    ([(1+5j), (2+5j)], [1, 2])
    """
    if not len(x):
        return JointCounts()
    if clusters is not None and not clusters.any():
        clusters = None
    if clusters is None and _may_be_grid(x) and _may_be_grid(y):
        (x_codes, x_values), (y_codes, y_values) = _codes(x), _codes(y)
        if len(x_values) <= N_CODES and len(y_values) <= N_CODES:
            return count_codes(
                x_codes.astype(np.uint8), y_codes.astype(np.uint8), x_values, y_values
            )
    return JointCounts((_run(paired(x, y), np.ones(len(x), np.int64), clusters),))


def count_codes(x: Bytes, y: Bytes, x_values: Doubles, y_values: Doubles) -> JointCounts:
    """Return the counts of pairs of codes below 256 that stand for distinct values.

    The codes `x` and `y` have shape `(n,)`; what each stands for may come in any order.
    """
    if not len(x):
        return JointCounts()
    table = crosstab(x, y).ravel()
    filled = np.flatnonzero(table)
    pairs = paired(x_values[filled // N_CODES], y_values[filled % N_CODES])
    return JointCounts((_run(pairs, table[filled], None),))


def count_weighted(x: Doubles, y: Doubles, counts: Integers) -> Run:
    """Return the counts of pairs that each occur as often as given, at least once."""
    return _run(paired(x, y), counts, None)


def paired(x: Doubles, y: Doubles) -> Points:
    """Return x + iy, without the arithmetic that would turn infinite parts into NaN."""
    pairs = np.empty(len(x), np.complex128)
    pairs.real, pairs.imag = x, y
    return pairs


def _may_be_grid(values: Doubles) -> bool:
    return len(np.unique(values[:_PROBED])) <= N_CODES


def _codes(values: Doubles) -> tuple[Integers, Doubles]:
    """Return a code for each value, and the value for each code."""
    encoded = pa.array(values).dictionary_encode()
    return encoded.indices.to_numpy(), encoded.dictionary.to_numpy()


def _balanced(runs: Sequence[Run]) -> Iterable[Run]:
    """Merge runs, given from the smallest, until each is twice as long as the one before."""
    carried = runs[0]
    for run in runs[1:]:
        if len(run) < 2 * len(carried):
            carried = _merged(carried, run)
        else:
            yield carried
            carried = run
    yield carried


def _merged(a: Run, b: Run) -> Run:
    clusters = None
    if a.clusters is not None or b.clusters is not None:
        clusters = np.concatenate((cluster_keys(a), cluster_keys(b)))
    return _run(np.concatenate((a.pairs, b.pairs)), np.concatenate((a.counts, b.counts)), clusters)


def _run(pairs: Points, counts: Integers, clusters: Keys | None) -> Run:
    """Return rows in order, equal ones as one."""
    # The stable sort finds the two sorted runs that a merge puts side by side: a linear merge.
    if clusters is None:
        order = np.argsort(pairs, kind="stable")
    else:
        order = np.lexsort((clusters, pairs))
        clusters = clusters[order]
    pairs, counts = pairs[order], counts[order]
    is_first = np.ones(len(pairs), np.bool_)
    is_first[1:] = pairs[1:] != pairs[:-1]
    if clusters is not None:
        is_first[1:] |= clusters[1:] != clusters[:-1]
    starts = np.flatnonzero(is_first)
    if len(starts) == len(pairs):
        return Run(pairs, counts, clusters)
    counts = np.add.reduceat(counts, starts)
    return Run(pairs[starts], counts, None if clusters is None else clusters[starts])


def write_run(run: Run) -> dict[str, Json]:
    """Return a run as columns of strict JSON; infinite ratings are the texts "inf" and "-inf"."""
    return {
        "rating": _write_doubles(run.pairs.real),
        "reference_rating": _write_doubles(run.pairs.imag),
        "cluster": [] if run.clusters is None else run.clusters.tolist(),
        "count": run.counts.tolist(),
    }


RUN_KEYS = ("rating", "reference_rating", "cluster", "count")


def read_run(read: StateReader) -> JointCounts:
    """Return the run of `write_run` from a state that has its keys.

    Raises:
        DataError: it is no such run.
    """
    x, y = _read_doubles(read, "rating"), _read_doubles(read, "reference_rating")
    counts = _read_integers(read, "count", most=_MOST_ROWS)
    clusters = _read_integers(read, "cluster", most=_MOST_KEY)
    if not (len(x) == len(y) == len(counts) and len(clusters) in (0, len(x))):
        raise read.fail("the columns have different lengths")
    if sum(counts) > _MOST_ROWS or (counts and min(counts) < 1):
        raise read.fail(f"count: each is at least 1, and they sum to at most {_MOST_ROWS}")
    if not counts:
        return JointCounts()
    if clusters and not any(clusters):
        raise read.fail("cluster: no row has one, so there is nothing to write")
    keys = np.array(clusters, np.uint64) if clusters else None
    run = Run(paired(np.array(x), np.array(y)), np.array(counts, np.int64), keys)
    if _run(run.pairs, run.counts, run.clusters) != run:
        raise read.fail("the rows are not in order, or one is there twice")
    return JointCounts((run,))


def _write_doubles(values: Doubles) -> list[Json]:
    return [value if isfinite(value) else str(value) for value in values.tolist()]


def _read_doubles(read: StateReader, key: str) -> list[float]:
    values = read.content[key]
    if not isinstance(values, list):
        raise read.fail(f"{key}: expected a list of numbers, found {type(values).__name__}")
    found = []
    for value in values:
        if value in ("inf", "-inf") and isinstance(value, str):
            found.append(float(value))
        elif type(value) is float and isfinite(value) and str(value) != "-0.0":
            found.append(value)
        else:
            raise read.fail(f"{key}: expected a number that is not -0.0, found {value!r:.80}")
    return found


def _read_integers(read: StateReader, key: str, *, most: int) -> list[int]:
    values = read.content[key]
    if not isinstance(values, list):
        raise read.fail(f"{key}: expected a list of whole numbers, found {type(values).__name__}")
    for value in values:
        if type(value) is not int or not 0 <= value <= most:
            raise read.fail(f"{key}: expected whole numbers in 0…{most}, found {value!r:.80}")
    return values
