"""Counts how often each rating, or each combination of them, occurs: exact, and as strict JSON.

A table's keys are ordinals: the doubles numbered in their order, so that keys are whole numbers,
sort as the ratings do and lose nothing; 0 stands for a missing rating. From the counts every sum is
an integer in units of 2^-1074, and nothing depends on the order of the rows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from raveval.metrics._exact import SCALE_BITS, Doubles, Integers
from raveval.metrics._state import Counts, StateReader

MISSING = 0
"""The ordinal of a missing rating; no rating has it."""

_SIGN = 1 << 63
_MASK = (1 << 64) - 1
_MOST_CELLS = 1 << 22  # a dense table of so many counts costs less than sorting the rows


def ordinal(value: float) -> int:
    """Return the number of a canonical double (no -0.0) in the order of all; NaN is missing.

    >>> ordinal(-1.5) < ordinal(0.0) < ordinal(2.0), ordinal(float("nan"))
    (True, 0)
    """
    if value != value:
        return MISSING
    bits: int = struct.unpack("<Q", struct.pack("<d", value))[0]
    return bits ^ _MASK if bits & _SIGN else bits | _SIGN


def number(key: int) -> float:
    """Return the double of an ordinal; NaN for a missing one.

    >>> number(ordinal(-1.5))
    -1.5
    """
    if key == MISSING:
        return float("nan")
    bits = key ^ _SIGN if key & _SIGN else key ^ _MASK
    value: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
    return value


def whole(value: float) -> int:
    """Return a finite double in units of 2^-1074.

    >>> whole(1.0) == 2**1074
    True
    """
    numerator, denominator = value.as_integer_ratio()
    return (numerator << SCALE_BITS) // denominator


def count_ratings(*columns: Doubles) -> Counts:
    """Return how often each combination of canonical ratings occurs, side by side in the columns.

    >>> sorted(count_ratings(np.array([1.0, 1.0, np.nan])).values())
    [1, 2]
    """
    codes: Integers = np.zeros(len(columns[0]), np.int64)
    keys: list[tuple[int, ...]] = [()]
    counts = np.array([len(codes)])
    for values in columns:
        found = pa.array(values).dictionary_encode()  # NaN is a value like others here
        ordinals = [ordinal(value) for value in found.dictionary.to_pylist()]
        codes = codes * len(ordinals) + found.indices.to_numpy()
        cells, counts, codes = _cells(codes, len(keys) * len(ordinals))
        places = (divmod(cell, len(ordinals)) for cell in cells.tolist())
        keys = [(*keys[before], ordinals[here]) for before, here in places]
    return dict(zip(keys, counts.tolist(), strict=True))


def _cells(codes: Integers, n_codes: int) -> tuple[Integers, Integers, Integers]:
    """Return the codes that occur, how often each does, and the place of each row's among them."""
    if n_codes > _MOST_CELLS:
        cells, places, counts = np.unique(codes, return_inverse=True, return_counts=True)
        return cells, counts, places
    dense = np.bincount(codes, minlength=n_codes)
    cells = np.flatnonzero(dense)
    place_of = np.zeros(n_codes, np.int64)
    place_of[cells] = np.arange(len(cells))
    return cells, dense[cells], place_of[codes]


def check_ratings(key: str, table: Iterable[Sequence[int]], read: StateReader) -> None:
    """Refuse keys that no canonical rating has.

    Raises:
        DataError: there is such a key.
    """
    for cell in table:
        for part in cell:
            if part > _MASK or ordinal(number(part) + 0.0) != part:
                raise read.fail(f"{key}: {part} stands for no rating")
