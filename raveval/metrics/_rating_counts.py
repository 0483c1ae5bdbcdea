"""Counts how often each rating, or each combination of them, occurs: exact, and as strict JSON.

A table's keys are ordinals: the doubles numbered in their order, so that keys are whole numbers,
sort as the ratings do and lose nothing; 0 stands for a missing rating. From the counts every sum is
an integer in units of 2^-1074, and nothing depends on the order of the rows.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np
import pyarrow as pa

from raveval.metrics import _intervals as intervals
from raveval.metrics._exact import SCALE_BITS, Doubles, Integers, root
from raveval.metrics._state import Counts, StateReader
from raveval.types import Estimate

MISSING = 0
"""The ordinal of a missing rating; no rating has it."""

RATING_UNIT = "rating"
"""Unit of what is measured on the ratings' own scale."""

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
    ordinals: list[list[int]] = []
    for values in columns:
        found = pa.array(values).dictionary_encode()  # NaN is a value like others here
        ordinals.append([ordinal(value) for value in found.dictionary.to_pylist()])
        codes = codes * len(ordinals[-1]) + found.indices.to_numpy()
    shape = tuple(map(len, ordinals))
    if math.prod(shape) > _MOST_CELLS:
        cells, counts = np.unique(codes, return_counts=True)
    else:
        dense = np.bincount(codes, minlength=1)
        cells = np.flatnonzero(dense)
        counts = dense[cells]
    if not len(cells):
        return {}
    places = zip(*(part.tolist() for part in np.unravel_index(cells, shape)), strict=True)
    keys = (tuple(map(list.__getitem__, ordinals, place)) for place in places)
    return dict(zip(keys, counts.tolist(), strict=True))


def check_ratings(key: str, table: Iterable[Sequence[int]], read: StateReader) -> None:
    """Refuse keys that no canonical rating has.

    Raises:
        DataError: there is such a key.
    """
    for cell in table:
        for part in cell:
            if part > _MASK or ordinal(number(part) + 0.0) != part:
                raise read.fail(f"{key}: {part} stands for no rating")


def mean(
    values: Iterable[tuple[int, int]], *, unit: str, higher_is_better: bool | None
) -> Estimate:
    """Return the mean of values that occur so often, with Student's interval.

    There is no interval for fewer than two values, nor where all are equal: nothing then tells how
    far others would lie.

    Args:
        values: pairs of a value in units of 2^-1074 and its count.
        unit: of the estimate.
        higher_is_better: which way is better.
    """
    n = total = squares = 0
    for value, count in values:
        n += count
        total += count * value
        squares += count * value * value
    if n == 0:
        return intervals.undefined("n=0", unit=unit, higher_is_better=higher_is_better)
    try:
        centre = float(Fraction(total, n << SCALE_BITS))
        spread = n * squares - total * total
        variance = Fraction(spread, n * n * max(1, n - 1) << (2 * SCALE_BITS))
        return centred(
            centre,
            root(variance) if n > 1 else None,
            unit=unit,
            n=n,
            higher_is_better=higher_is_better,
        )
    except OverflowError:
        return intervals.undefined("overflow", unit=unit, n=n, higher_is_better=higher_is_better)


def centred(
    value: float, stderr: float | None, *, unit: str, n: int, higher_is_better: bool | None
) -> Estimate:
    """Return the estimate of a mean of `n` values, with Student's interval.

    None without a standard error, or where it is 0.

    Raises:
        OverflowError: an end of the interval is beyond the largest double.
    """
    if not stderr:
        return Estimate(value, unit, n, stderr=stderr, higher_is_better=higher_is_better)
    half_width = intervals.student95(n - 1) * stderr
    low, high = value - half_width, value + half_width
    if not np.isfinite([low, high]).all():
        raise OverflowError("the interval is beyond the largest double")
    return Estimate(
        value,
        unit,
        n,
        stderr=stderr,
        low=low,
        high=high,
        interval="t95",
        higher_is_better=higher_is_better,
    )
