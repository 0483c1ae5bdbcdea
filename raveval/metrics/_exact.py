"""Exact sums: doubles and their products added as integers, so that order never matters.

Every finite double is an integer multiple of 2^-1074. A sum of doubles is therefore kept as a
Python integer in that unit, a sum of products of two doubles in the unit 2^-2148; adding such
integers is associative and commutative to the last bit, and the one rounding happens when the end
result becomes a double again.

Mantissas and their products are added in 32-bit words, one table of word sums for each power of
two, and a table becomes one integer at its end. That takes neither an integer object for each row
nor a number beyond 64 bits, and puts no condition on the range of the doubles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from raveval.metrics import _kernels as kernels

Booleans = kernels.Booleans
Doubles = kernels.Doubles
Integers = kernels.Integers

SCALE_BITS = 1074
"""An exact sum `s` of doubles stands for s * 2^-1074."""

_MANTISSA_BITS = 52
WORD_BITS = 32
ROWS_AT_ONCE = 1 << 20  # 2^20 words below 2^32 stay below the 2^53 that bincount adds exactly
N_EXPONENTS = 1 << 11
N_PRODUCT_SHIFTS = 2 * N_EXPONENTS


def decompose(values: Doubles) -> tuple[Integers, Integers]:
    """Split finite doubles into signed mantissas and shifts: value = mantissa * 2^(shift - 1074).

    >>> mantissa, shift = decompose(np.array([1.0, -0.5]))
    >>> [m * 2.0 ** (s - 1074) for m, s in zip(mantissa.tolist(), shift.tolist())]
    [1.0, -0.5]
    """
    bits = np.ascontiguousarray(values, np.float64).view(np.int64)
    is_large = kernels.is_worthwhile(len(bits))
    parts = kernels.decompose(bits) if is_large else plain_decompose(bits)
    if parts is None:
        raise ValueError("an exact sum takes finite values only")
    return parts


def plain_decompose(bits: Integers) -> tuple[Integers, Integers] | None:
    """Return mantissas and shifts by numpy alone; None if not all values are finite."""
    exponent = (bits >> _MANTISSA_BITS) & (N_EXPONENTS - 1)
    if bool((exponent == N_EXPONENTS - 1).any()):
        return None
    fraction = bits & ((1 << _MANTISSA_BITS) - 1)
    is_normal = exponent > 0  # subnormal numbers have no implicit leading bit
    magnitude = fraction | (is_normal.astype(np.int64) << _MANTISSA_BITS)
    return np.where(bits < 0, -magnitude, magnitude), exponent - is_normal


def exact_sum(values: Doubles) -> int:
    """Return the sum of finite doubles, exactly, in units of 2^-1074.

    >>> exact_sum(np.array([1e308, 1.0, -1e308])) == 2**1074
    True
    """
    total = 0
    for start in range(0, len(values), ROWS_AT_ONCE):
        part = np.ascontiguousarray(values[start : start + ROWS_AT_ONCE], np.float64)
        bits = part.view(np.int64)
        is_large = kernels.is_worthwhile(len(bits))
        table = kernels.sum_doubles(bits, N_EXPONENTS) if is_large else plain_sum_doubles(bits)
        if table is None:
            raise ValueError("an exact sum takes finite values only")
        total += fold(table)
    return total


def plain_sum_doubles(bits: Integers) -> Integers | None:
    """Return the sums of the mantissas' words by shift; None if not all values are finite."""
    parts = plain_decompose(bits)
    if parts is None:
        return None
    mantissa, shift = parts
    return word_sums(mantissa, shift, N_EXPONENTS)


def word_sums(mantissas: Integers, places: Integers, n_places: int) -> Integers:
    """Return the sums of the words at each place, the lower ones first; shape `(n_places, 2)`.

    Exact for at most ROWS_AT_ONCE mantissas.
    """
    low, high = mantissas & ((1 << WORD_BITS) - 1), mantissas >> WORD_BITS
    sums = [np.bincount(places, word, minlength=n_places) for word in (low, high)]
    return np.stack(sums, axis=1).astype(np.int64)


def fold(table: Integers) -> int:
    """Return the integer of a table of word sums: row s, column k counts 2^(s + 32 k).

    >>> fold(np.array([[1, 0], [0, -1]]))
    -8589934591
    """
    total = 0
    for shift in np.flatnonzero(table.any(axis=1)).tolist():
        row = 0
        for word in reversed(table[shift].tolist()):
            row = (row << WORD_BITS) + word
        total += row << shift
    return total


def exact_integer_sum(values: Integers) -> int:
    """Return the sum of integers, with no limit of 64 bits.

    >>> exact_integer_sum(np.array([2**62, 2**62, 2**62])) == 3 * 2**62
    True
    """
    low, high = values & ((1 << WORD_BITS) - 1), values >> WORD_BITS
    return int(low.sum()) + (int(high.sum()) << WORD_BITS)


def sum_products(a: Integers, b: Integers, a_shift: Integers, b_shift: Integers) -> int:
    """Return the sum of a * 2^a_shift * b * 2^b_shift, exactly."""
    total = 0
    for start in range(0, len(a), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        parts = (a[rows], b[rows], a_shift[rows], b_shift[rows])
        is_large = kernels.is_worthwhile(len(parts[0]))
        add = kernels.sum_products if is_large else plain_sum_products
        total += fold(add(*parts, N_PRODUCT_SHIFTS))
    return total


def plain_sum_products(
    a: Integers, b: Integers, a_shift: Integers, b_shift: Integers, n_shifts: int
) -> Integers:
    """Return the sums of the products' words by shift, by numpy alone; at most 2^20 rows."""
    mask, bits = np.uint64((1 << WORD_BITS) - 1), np.uint64(WORD_BITS)
    u, v = np.abs(a).view(np.uint64), np.abs(b).view(np.uint64)
    u0, u1, v0, v1 = u & mask, u >> bits, v & mask, v >> bits
    # Schoolbook multiplication; no sum reaches 2^64.
    low = u0 * v0
    middle = u0 * v1 + (low >> bits)
    other = u1 * v0 + (middle & mask)
    high = u1 * v1 + (middle >> bits) + (other >> bits)
    words = np.stack([low & mask, other & mask, high & mask, high >> bits]).astype(np.float64)
    signed = np.where((a < 0) != (b < 0), -words, words)
    shift = a_shift + b_shift
    sums = [np.bincount(shift, word, minlength=n_shifts) for word in signed]
    return np.stack(sums, axis=1).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Moments:
    """Exact sums of pairs (x, u) of a double and a count, enough for sum(x) / sum(u) and its error.

    Attributes:
        n: pairs.
        x, xu: sums of x and of x * u, in units of 2^-1074.
        xx: sum of x * x, in units of 2^-2148.
        u, uu: sums of u and of u * u.
    """

    n: int = 0
    x: int = 0
    u: int = 0
    xx: int = 0
    xu: int = 0
    uu: int = 0

    def __add__(self, other: Moments) -> Moments:
        """Return the moments of both sets of pairs together."""
        return Moments(
            self.n + other.n,
            self.x + other.x,
            self.u + other.u,
            self.xx + other.xx,
            self.xu + other.xu,
            self.uu + other.uu,
        )

    def ratio(self) -> Fraction:
        """Return sum(x) / sum(u), exactly.

        Raises:
            ZeroDivisionError: the counts sum to zero.
        """
        return Fraction(self.x, self.u << SCALE_BITS)

    def residual_squares(self) -> Fraction:
        """Return the sum over pairs of (x - R u)^2 with R = sum(x) / sum(u), exactly.

        Raises:
            ZeroDivisionError: the counts sum to zero.
        """
        over_uu = self.xx * self.u**2 - 2 * self.x * self.u * self.xu + self.x**2 * self.uu
        return Fraction(over_uu, self.u**2 << (2 * SCALE_BITS))


def moments(x: Doubles, u: Integers) -> Moments:
    """Return the exact moments of finite doubles `x` paired with counts `u`."""
    if not len(x):
        return Moments()
    m, shift = decompose(x)
    counts = np.ascontiguousarray(u, np.int64)
    unshifted = np.zeros(len(counts), np.int64)
    return Moments(
        n=len(x),
        x=exact_sum(x),
        u=exact_integer_sum(counts),
        xx=sum_products(m, m, shift, shift),
        xu=sum_products(m, counts, shift, unshifted),
        uu=sum_products(counts, counts, unshifted, unshifted),
    )


def value_moments(x: Doubles) -> Moments:
    """Return the exact moments of finite doubles `x` that count once each.

    >>> value_moments(np.array([1.0, 3.0])) == moments(np.array([1.0, 3.0]), np.array([1, 1]))
    True
    """
    if not len(x):
        return Moments()
    n, total, (m, shift) = len(x), exact_sum(x), decompose(x)
    return Moments(n=n, x=total, u=n, xx=sum_products(m, m, shift, shift), xu=total, uu=n)


@dataclass(frozen=True, slots=True)
class PairMoments:
    """Exact sums of pairs (x, y) of doubles, enough for their covariance and correlation.

    Attributes:
        n: pairs.
        x, y: sums, in units of 2^-1074.
        xx, yy, xy: sums of products, in units of 2^-2148.
    """

    n: int = 0
    x: int = 0
    y: int = 0
    xx: int = 0
    yy: int = 0
    xy: int = 0

    def __add__(self, other: PairMoments) -> PairMoments:
        """Return the moments of both sets of pairs together."""
        return PairMoments(
            self.n + other.n,
            self.x + other.x,
            self.y + other.y,
            self.xx + other.xx,
            self.yy + other.yy,
            self.xy + other.xy,
        )


def pair_moments(x: Doubles, y: Doubles) -> PairMoments:
    """Return the exact moments of finite doubles `x` paired with finite doubles `y`.

    >>> moments = pair_moments(np.array([1.0, 3.0]), np.array([2.0, 0.5]))
    >>> moments.xy / 2 ** (2 * SCALE_BITS)
    3.5
    """
    if not len(x):
        return PairMoments()
    (mx, x_shift), (my, y_shift) = decompose(x), decompose(y)
    return PairMoments(
        n=len(x),
        x=exact_sum(x),
        y=exact_sum(y),
        xx=sum_products(mx, mx, x_shift, x_shift),
        yy=sum_products(my, my, y_shift, y_shift),
        xy=sum_products(mx, my, x_shift, y_shift),
    )


def root(square: Fraction) -> float:
    """Return the square root of an exact number, taken on integers with guard bits.

    Raises:
        OverflowError: the root is beyond the largest double.

    >>> root(Fraction(1, 4))
    0.5
    """
    numerator, denominator = square.numerator, square.denominator
    missing_bits = 2 * 64 + denominator.bit_length() - numerator.bit_length()
    half_shift = max(0, missing_bits // 2 + 1)
    return math.isqrt((numerator << (2 * half_shift)) // denominator) / (1 << half_shift)
