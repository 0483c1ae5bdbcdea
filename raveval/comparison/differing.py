"""Finds the rows in which two tables of the same columns differ."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import types as kinds

Booleans = NDArray[np.bool_]


def differing(a: pa.Table, b: pa.Table) -> Booleans:
    """Return in which rows the tables differ in any column; null is null, and NaN is NaN.

    >>> rows = pa.table({"x": [[1.0], [None], None]})
    >>> differing(rows, pa.table({"x": [[1.0], [2.0], []]})).tolist()
    [False, True, True]
    """
    differs = np.zeros(len(a), np.bool_)
    for name in a.column_names:
        differs |= _differs(_as_array(a[name]), _as_array(b[name]))
    return differs


def _as_array(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    if kinds.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array


def _differs(a: pa.Array, b: pa.Array) -> Booleans:
    if kinds.is_list(a.type) or kinds.is_large_list(a.type):
        return _lists_differ(a, b)
    is_null_a, is_null_b = _booleans(a.is_null()), _booleans(b.is_null())
    differs: Booleans = is_null_a != is_null_b
    if kinds.is_null(a.type) or kinds.is_null(b.type):
        return differs
    differs |= _booleans(pc.fill_null(pc.not_equal(a, b), False))
    if kinds.is_floating(a.type) and kinds.is_floating(b.type):
        both = pc.and_(pc.is_nan(a), pc.is_nan(b))
        differs &= ~_booleans(pc.fill_null(both, False))
    return differs


def _lists_differ(a: pa.Array, b: pa.Array) -> Booleans:
    lengths_a, lengths_b = (
        pc.fill_null(pc.list_value_length(each), -1).to_numpy(zero_copy_only=False)
        for each in (a, b)
    )
    differs: Booleans = lengths_a != lengths_b
    alike = np.flatnonzero(~differs & (lengths_a > 0))
    if len(alike):
        rows = pa.array(alike)
        of_items = _differs(a.take(rows).flatten(), b.take(rows).flatten())
        starts = np.cumsum(lengths_a[alike]) - lengths_a[alike]
        differs[alike] = np.logical_or.reduceat(of_items, starts)
    return differs


def _booleans(array: pa.Array) -> Booleans:
    values: Booleans = array.to_numpy(zero_copy_only=False)
    return values
