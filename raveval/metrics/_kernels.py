"""Loops over rows, compiled by numba where it is there: the same numbers, faster.

A kernel never gives another bit than the plain path beside it, so whether numba is installed, and
how large a table is, changes the time and nothing else. The loops are ordinary functions of this
file in the subset of Python that numba compiles; nothing is imported or compiled before the first
array that is large enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Booleans = NDArray[np.bool_]
Doubles = NDArray[np.float64]
Integers = NDArray[np.int64]
Int32s = NDArray[np.int32]
Bytes = NDArray[np.uint8]

ROWS_WORTH_COMPILING = 1 << 15
"""Rows from which on a kernel is used.

Loading numba and its cached code takes about half a second, in which the plain path adds up 10^7
doubles or ranks 10^5 examples. Tables this long are parts of a file that has many of them.
"""

N_CODES = 256
"""Values that a byte can stand for: the side of a crosstab."""

ITSELF, DIVIDED, SUBTRACTED = range(3)
"""What is compared between choices: a value, one divided by another, or their difference."""

_ROWS_WORTH_CALLING = 1 << 9  # from which on a kernel that is compiled beats numpy's many passes

_CELLS_AT_ONCE = 1 << 20  # bounds the memory of the plain crosstab
_FRACTION = (1 << 52) - 1
_IMPLICIT = 1 << 52
_NOT_FINITE = (1 << 11) - 1
_LOW = (1 << 32) - 1
_WORD = np.uint64(32)
_WORD_MASK = np.uint64(_LOW)


@cache
def available() -> bool:
    """Return whether numba can be imported and compiles."""
    try:
        import numba
    except ImportError:  # not installed, or not for this numpy
        return False
    return not numba.config.DISABLE_JIT


def is_worthwhile(n_rows: int) -> bool:
    """Return whether a table is long enough for a kernel, and there are any.

    Once a long one was met, kernels are there for shorter ones too: the groups of the same file.
    """
    is_loaded = _compiled.cache_info().currsize > 0
    return n_rows >= (_ROWS_WORTH_CALLING if is_loaded else ROWS_WORTH_COMPILING) and available()


def compiled(loop: Callable[..., Any], **options: bool) -> Callable[..., Any]:
    """Return a loop compiled by numba, from its cache where there is one; numba is available."""
    import numba

    try:
        kernel: Callable[..., Any] = numba.njit(cache=True, **options)(loop)
    except RuntimeError:  # neither the package's folder nor the user's cache can be written
        kernel = numba.njit(**options)(loop)
    return kernel


@cache
def _compiled(loop: Callable[..., Any]) -> Callable[..., Any]:
    return compiled(loop)


def crosstab(x: Bytes, y: Bytes) -> Integers:
    """Return how often each pair (x, y) occurs, as a table of 256 by 256.

    >>> crosstab(np.array([3, 3], np.uint8), np.array([1, 1], np.uint8))[3, 1]
    np.int64(2)
    """
    if len(x) != len(y):
        raise ValueError(f"a pair takes one of each: {len(x)} and {len(y)} values")
    if not is_worthwhile(len(x)):
        return plain_crosstab(x, y)
    return compiled_crosstab(x, y)


def plain_crosstab(x: Bytes, y: Bytes) -> Integers:
    """Return the table by numpy alone."""
    table = np.zeros(N_CODES * N_CODES, np.int64)
    for start in range(0, len(x), _CELLS_AT_ONCE):
        rows = slice(start, start + _CELLS_AT_ONCE)
        pairs = (x[rows].astype(np.uint16) << np.uint16(8)) | y[rows]
        table += np.bincount(pairs, minlength=N_CODES * N_CODES)
    return table.reshape(N_CODES, N_CODES)


def compiled_crosstab(x: Bytes, y: Bytes) -> Integers:
    """Return the table by the kernel."""
    tables = np.zeros((2, N_CODES, N_CODES), np.int64)
    _compiled(_crosstab_loop)(np.ascontiguousarray(x), np.ascontiguousarray(y), tables)
    table: Integers = tables.sum(axis=0)
    return table


def _crosstab_loop(x: Bytes, y: Bytes, tables: Integers) -> None:
    # Two tables in turn: where all rows fall into one cell, an addition waits for the one before.
    n = len(x) - len(x) % 2
    for i in range(0, n, 2):
        tables[0, x[i], y[i]] += 1
        tables[1, x[i + 1], y[i + 1]] += 1
    if n < len(x):
        tables[0, x[n], y[n]] += 1


def decompose(bits: Integers) -> tuple[Integers, Integers] | None:
    """Return the signed mantissas and shifts of doubles given as bits; None if not all finite."""
    mantissa, shift = np.empty(len(bits), np.int64), np.empty(len(bits), np.int64)
    is_finite = _compiled(_decompose_loop)(bits, mantissa, shift)
    return (mantissa, shift) if is_finite else None


def _decompose_loop(bits: Integers, mantissas: Integers, shifts: Integers) -> bool:
    for i in range(len(bits)):
        exponent = (bits[i] >> 52) & _NOT_FINITE
        mantissa = bits[i] & _FRACTION
        if exponent == _NOT_FINITE:
            return False
        if exponent > 0:
            mantissa |= _IMPLICIT
            exponent -= 1
        mantissas[i] = -mantissa if bits[i] < 0 else mantissa
        shifts[i] = exponent
    return True


def sum_doubles(bits: Integers, n_shifts: int) -> Integers | None:
    """Return the sums of the mantissas' 32-bit halves by shift; None if not all are finite.

    The table has shape `(n_shifts, 2)`, the lower halves first; they are never negative.
    """
    table = np.zeros((n_shifts, 2), np.int64)
    is_finite = _compiled(_sum_doubles_loop)(bits, table)
    return table if is_finite else None


def _sum_doubles_loop(bits: Integers, table: Integers) -> bool:
    for i in range(len(bits)):
        exponent = (bits[i] >> 52) & _NOT_FINITE
        mantissa = bits[i] & _FRACTION
        if exponent == _NOT_FINITE:
            return False
        if exponent > 0:
            mantissa |= _IMPLICIT
            exponent -= 1
        if bits[i] < 0:
            mantissa = -mantissa
        table[exponent, 0] += mantissa & _LOW
        table[exponent, 1] += mantissa >> 32
    return True


def sum_products(
    a: Integers, b: Integers, a_shift: Integers, b_shift: Integers, n_shifts: int
) -> Integers:
    """Return the sums of the 32-bit words of a * b by the sum of their shifts.

    The table has shape `(n_shifts, 4)`, the lowest words first; a negative product subtracts its
    words. At most 2^31 rows.
    """
    table = np.zeros((n_shifts, 4), np.int64)
    _compiled(_sum_products_loop)(a, b, a_shift, b_shift, table)
    return table


def _sum_products_loop(
    a: Integers, b: Integers, a_shift: Integers, b_shift: Integers, table: Integers
) -> None:
    for i in range(len(a)):
        u, v = np.uint64(abs(a[i])), np.uint64(abs(b[i]))
        u0, u1, v0, v1 = u & _WORD_MASK, u >> _WORD, v & _WORD_MASK, v >> _WORD
        # Schoolbook multiplication; no sum reaches 2^64.
        low = u0 * v0
        middle = u0 * v1 + (low >> _WORD)
        other = u1 * v0 + (middle & _WORD_MASK)
        high = u1 * v1 + (middle >> _WORD) + (other >> _WORD)
        sign = -1 if (a[i] < 0) != (b[i] < 0) else 1
        shift = a_shift[i] + b_shift[i]
        table[shift, 0] += sign * np.int64(low & _WORD_MASK)
        table[shift, 1] += sign * np.int64(other & _WORD_MASK)
        table[shift, 2] += sign * np.int64(high & _WORD_MASK)
        table[shift, 3] += sign * np.int64(high >> _WORD)


def find_best(
    starts: Integers,
    n_choices: Integers,
    gold: Integers,
    given: Doubles,
    other: Doubles | Int32s,
    operation: int,
) -> tuple[Integers, Booleans, Integers]:
    """Return the choices tied at each example's maximum, if the right one is in, and the first.

    What is compared is `given` itself, divided by `other` (nothing where that is not positive), or
    less `other`. All results are 0 for an example in which that is NaN for a choice.
    """
    n = len(starts)
    tied, predicted = np.zeros(n, np.int64), np.zeros(n, np.int64)
    gold_is_best = np.zeros(n, np.bool_)
    values = np.empty(int(n_choices.max(initial=0)))
    _compiled(_find_best_loop)(
        starts, n_choices, gold, given, other, operation, values, tied, gold_is_best, predicted
    )
    return tied, gold_is_best, predicted


def _find_best_loop(
    starts: Integers,
    n_choices: Integers,
    gold: Integers,
    given: Doubles,
    other: Doubles | Int32s,
    operation: int,
    values: Doubles,
    tied: Integers,
    gold_is_best: Booleans,
    predicted: Integers,
) -> None:
    for i in range(len(starts)):
        # Two passes without a jump that depends on the values: which choice is best is a matter of
        # chance, and a wrong guess of the processor takes longer than both.
        start, n = starts[i], n_choices[i]
        best, is_missing = -np.inf, False
        for j in range(n):
            value = given[start + j]
            if operation == DIVIDED:
                divisor = np.float64(other[start + j])
                value = value / divisor if divisor > 0 else np.nan
            elif operation == SUBTRACTED:
                value -= other[start + j]
            values[j] = value
            is_missing |= value != value
            best = value if value > best else best
        n_tied, first = 0, 0
        for j in range(n - 1, -1, -1):
            is_best = values[j] == best
            n_tied += is_best
            first = j if is_best else first
        if not is_missing:
            tied[i], predicted[i] = n_tied, first
            gold_is_best[i] = gold[i] >= 0 and values[gold[i]] == best


def sum_exponentials(
    starts: Integers, n_choices: Integers, values: Doubles, most: float
) -> Doubles:
    """Return the sum of exp(value) over each example, from the first to the last.

    NaN for an example with a value that is NaN or above `most`.
    """
    sums = np.empty(len(starts))
    _compiled(_sum_exponentials_loop)(starts, n_choices, values, most, sums)
    return sums


def _sum_exponentials_loop(
    starts: Integers, n_choices: Integers, values: Doubles, most: float, sums: Doubles
) -> None:
    for i in range(len(starts)):
        total = 0.0
        for j in range(starts[i], starts[i] + n_choices[i]):
            # The C library's exponential, which Python's is too.
            total += math.exp(values[j]) if values[j] <= most else np.nan
        sums[i] = total
