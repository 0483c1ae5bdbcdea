"""Exact sums: doubles and their products added as integers, so that order never matters.

Every finite double is an integer multiple of 2^-1074. A sum of doubles is therefore kept as a
Python integer in that unit, a sum of products of two doubles in the unit 2^-2148; adding such
integers is associative and commutative to the last bit, and the one rounding happens when the end
result becomes a double again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
Integers = NDArray[np.int64]

SCALE_BITS = 1074
"""An exact sum `s` of doubles stands for s * 2^-1074."""

_MANTISSA_BITS = 52
_LOW_BITS = 32
_ROWS_AT_ONCE = 1 << 20  # 2^20 halves below 2^32 stay below the 2^53 that bincount adds exactly
_N_EXPONENTS = 1 << 11


def decompose(values: Doubles) -> tuple[Integers, Integers]:
    """Split finite doubles into signed mantissas and shifts: value = mantissa * 2^(shift - 1074).

    >>> mantissa, shift = decompose(np.array([1.0, -0.5]))
    >>> [m * 2.0 ** (s - 1074) for m, s in zip(mantissa.tolist(), shift.tolist())]
    [1.0, -0.5]
    """
    bits = np.ascontiguousarray(values, np.float64).view(np.int64)
    exponent = (bits >> _MANTISSA_BITS) & (_N_EXPONENTS - 1)
    if bool((exponent == _N_EXPONENTS - 1).any()):
        raise ValueError("an exact sum takes finite values only")
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
    for start in range(0, len(values), _ROWS_AT_ONCE):
        mantissa, shift = decompose(values[start : start + _ROWS_AT_ONCE])
        low = np.bincount(shift, mantissa & ((1 << _LOW_BITS) - 1))
        high = np.bincount(shift, mantissa >> _LOW_BITS)
        for s in np.flatnonzero((low != 0) | (high != 0)).tolist():
            total += (int(low[s]) + (int(high[s]) << _LOW_BITS)) << s
    return total


def exact_integer_sum(values: Integers) -> int:
    """Return the sum of integers, with no limit of 64 bits.

    >>> exact_integer_sum(np.array([2**62, 2**62, 2**62])) == 3 * 2**62
    True
    """
    return int(values.astype(object).sum()) if len(values) else 0


def _sum_shifted(mantissas: NDArray[np.object_], shifts: Integers) -> int:
    total = 0
    for shift in np.unique(shifts).tolist():
        total += int(mantissas[shifts == shift].sum()) << shift
    return total


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
    mantissa, shift = decompose(x)
    m, counts = mantissa.astype(object), u.astype(object)
    return Moments(
        n=len(x),
        x=exact_sum(x),
        u=exact_integer_sum(u),
        xx=_sum_shifted(m * m, 2 * shift),
        xu=_sum_shifted(m * counts, shift),
        uu=int((counts * counts).sum()),
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
