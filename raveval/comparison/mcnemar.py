"""McNemar's test and Newcombe's interval: two shares of right answers on the same examples.

Only examples that one run gets right and the other wrong (the discordant ones) say which run is
better. If neither is, each of them is a fair coin: the test is binomial, exact and two-sided, twice
the smaller tail. The interval squares and adds the distances of both shares from their Wilson
limits, less what the correlation of the runs takes away (method 10 of Newcombe, Statistics in
Medicine 17 (1998) 2635-2650), and so holds near 0 and 1 and where no example is discordant.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

from scipy import special

from raveval.metrics._intervals import Interval, wilson

SMALLEST_P = 2.0**-1000
"""Stands for any smaller one: no p-value is 0."""


class Fourfold(NamedTuple):
    """How many examples are right in both runs, in one of them only, in none."""

    both: int
    only_a: int
    only_b: int
    neither: int


def mcnemar(only_a: int, only_b: int) -> float:
    """Return the p-value of McNemar's exact two-sided test.

    >>> round(mcnemar(60, 34), 4)  # of 1000 examples; an unpaired z test says .080
    0.0095
    """
    n, least = only_a + only_b, min(only_a, only_b)
    if 2 * least == n:
        return 1.0
    tail = special.betainc(n - least, least + 1, 0.5)  # P(at most `least` of n fair coins)
    return min(1.0, max(2 * float(tail), SMALLEST_P))


def newcombe(table: Fourfold) -> Interval:
    """Return the 95 % interval of the difference of two paired proportions, B - A.

    >>> [round(end, 4) for end in newcombe(Fourfold(59, 16, 6, 80))]
    [-0.1186, -0.0046]
    """
    n = sum(table)
    n_a, n_b = table.both + table.only_a, table.both + table.only_b
    (low_a, high_a), (low_b, high_b) = (wilson(Fraction(k, n), n) for k in (n_a, n_b))
    a, b = n_a / n, n_b / n
    phi = _correlation(table)
    below = _square_and_add(b - low_b, high_a - a, phi)
    above = _square_and_add(high_b - b, a - low_a, phi)
    return Interval(max(-1.0, b - a - below), min(1.0, b - a + above))


def _correlation(table: Fourfold) -> float:
    """Return the phi coefficient of both runs' scores, towards 0 by half a pair where positive."""
    both, only_a, only_b, neither = table
    margins = (both + only_a) * (only_b + neither) * (both + only_b) * (only_a + neither)
    if margins == 0:
        return 0.0
    excess: float = both * neither - only_a * only_b
    if excess > 0:
        excess = max(excess - sum(table) / 2, 0.0)
    return excess / math.sqrt(margins)


def _square_and_add(a: float, b: float, phi: float) -> float:
    return math.sqrt(max(0.0, a * a - 2 * phi * a * b + b * b))
