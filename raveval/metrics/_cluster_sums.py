"""Exact sums by cluster, in sorted arrays: what clustered errors are made of.

A sum is an integer in units of 2^-exponent, one exponent for a whole column: 0 where all values are
whole, so that counts cost eight bytes each, and as large as the finest double needs otherwise.
Which exponent a column has at the moment is a matter of its history; the numbers are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from raveval.metrics import Contribution, Json
from raveval.metrics._exact import (
    N_EXPONENTS,
    ROWS_AT_ONCE,
    SCALE_BITS,
    WORD_BITS,
    Doubles,
    Integers,
    decompose,
    word_sums,
)
from raveval.metrics._state import StateReader, write_integer

Keys = NDArray[np.uint64]
Wholes = NDArray[Any]
"""Integers: int64 where they surely fit, Python's where not."""

_EXACT = 2.0**53  # doubles below it add exactly where they are whole
_FITS = 1 << 62  # the sum of two such integers fits in int64
_MOST_KEY = (1 << 64) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """One exact sum for each cluster: value = wholes * 2^-exponent."""

    wholes: Wholes
    exponent: int = 0

    def at(self, exponent: int) -> Wholes:
        """Return the integers in a unit that is as fine or finer."""
        if exponent == self.exponent:
            return self.wholes
        return self.wholes.astype(object) << (exponent - self.exponent)


@dataclass(frozen=True, slots=True, eq=False)
class ClusterSums:
    """The sums of x and of u in each cluster; shape `(n_clusters,)`, keys ascending."""

    keys: Keys
    x: Column
    u: Column

    def __len__(self) -> int:
        return len(self.keys)

    def __add__(self, other: ClusterSums) -> ClusterSums:
        """Return the sums of both; neither is changed."""
        if not len(self) or not len(other):
            return self if len(self) else other
        keys = np.union1d(self.keys, other.keys)
        places = [np.searchsorted(keys, each.keys) for each in (self, other)]
        x = _added(self.x, other.x, places, len(keys))
        return ClusterSums(keys, x, _added(self.u, other.u, places, len(keys)))

    @override
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ClusterSums):
            return NotImplemented
        return bool(
            np.array_equal(self.keys, other.keys)
            and _is_equal(self.x, other.x)
            and _is_equal(self.u, other.u)
        )

    __hash__ = None  # type: ignore[assignment]

    def scaled(self) -> tuple[list[int], list[int], int, int]:
        """Return the sums of x and of u, and the bits of their units."""
        return self.x.wholes.tolist(), self.u.wholes.tolist(), self.x.exponent, self.u.exponent

    def write(self) -> Json:
        """Return rows of key and both sums, in units of 2^-1074 with the zeros trimmed."""
        x, u, x_bits, u_bits = self.scaled()
        return [
            [key, _written(x_sum, x_bits), _written(u_sum, u_bits)]
            for key, x_sum, u_sum in zip(self.keys.tolist(), x, u, strict=True)
        ]


EMPTY = ClusterSums(
    np.empty(0, np.uint64), Column(np.empty(0, np.int64)), Column(np.empty(0, np.int64))
)


def sum_by(keys: Keys, of_row: Integers, contribution: Contribution) -> ClusterSums:
    """Return the sums of a contribution; `of_row` says at which of the distinct keys a row is."""
    order = np.argsort(keys)
    rank = np.empty(len(keys), np.int64)
    rank[order] = np.arange(len(keys))
    places = rank[of_row]
    x, u = (_column(places, values, len(keys)) for values in contribution)
    return ClusterSums(keys[order], x, u)


def read_sums(read: StateReader, name: str) -> ClusterSums:
    """Return the sums that `write` made.

    Raises:
        DataError: other content, or keys that are out of order.
    """
    rows = read.content[name]
    if not isinstance(rows, list):
        raise read.fail(f"{name}: expected a list of rows, found {type(rows).__name__}")
    keys, x, u = list[int](), list[int](), list[int]()
    for row in rows:
        if not (isinstance(row, list) and len(row) == 3 and type(row[0]) is int):
            raise read.fail(f"{name}: expected rows of key and two sums, found {row!r:.80}")
        pair = StateReader(f"{read.where}.{name}", {"x": row[1], "u": row[2]})
        if not (keys[-1] if keys else -1) < row[0] <= _MOST_KEY:
            raise read.fail(f"{name}: the cluster {row[0]} is no key, or out of order")
        keys.append(row[0])
        x.append(pair.integer("x"))
        u.append(pair.integer("u"))
    return ClusterSums(np.array(keys, np.uint64), _coarsest(x), _coarsest(u))


def _column(places: Integers, values: Doubles, n: int) -> Column:
    """Return the exact sums of the values at each place."""
    with np.errstate(over="ignore"):  # then they are not small
        is_small = float(np.abs(values).sum()) < _EXACT
    if is_small and bool((values == np.rint(values)).all()):
        return Column(np.bincount(places, values, n).astype(np.int64))
    mantissa, shift = decompose(values)
    lowest = int(min(shift[mantissa != 0].min(initial=SCALE_BITS), SCALE_BITS))
    totals = [0] * n
    for start in range(0, len(values), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        groups, of_row = np.unique(places[rows] * N_EXPONENTS + shift[rows], return_inverse=True)
        words = word_sums(mantissa[rows], of_row, len(groups)).tolist()
        for group, (low, high) in zip(groups.tolist(), words, strict=True):
            place, of_group = divmod(group, N_EXPONENTS)
            total = low + (high << WORD_BITS)
            if total:
                totals[place] += total << (of_group - lowest)
    return Column(np.array(totals, object), SCALE_BITS - lowest)


def _added(a: Column, b: Column, places: list[NDArray[np.int64]], n: int) -> Column:
    exponent = max(a.exponent, b.exponent)
    is_small = exponent == 0 and a.wholes.dtype == b.wholes.dtype == np.int64
    total = np.zeros(n, np.int64 if is_small else object)
    for place, each in zip(places, (a, b), strict=True):
        total[place] += each.at(exponent)
    if is_small and len(total) and int(np.abs(total).max()) >= _FITS:
        total = total.astype(object)
    return Column(total, exponent)


def _is_equal(a: Column, b: Column) -> bool:
    exponent = max(a.exponent, b.exponent)
    return bool(np.array_equal(a.at(exponent), b.at(exponent)))


def _written(whole: int, exponent: int) -> Json:
    mantissa, shift = write_integer(whole)
    return [mantissa, shift + SCALE_BITS - exponent] if mantissa else [0, 0]


def _coarsest(sums: list[int]) -> Column:
    """Return sums in units of 2^-1074 in the coarsest unit that holds them all."""
    zeros = min(((s & -s).bit_length() - 1 for s in sums if s), default=SCALE_BITS)
    exponent = max(SCALE_BITS - zeros, 0)
    wholes = [s >> (SCALE_BITS - exponent) for s in sums]
    is_small = exponent == 0 and all(abs(whole) < _FITS for whole in wholes)
    return Column(np.array(wholes, np.int64 if is_small else object), exponent)
