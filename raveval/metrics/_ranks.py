"""Correlations of counted pairs as exact ratios, from integers alone.

Everything is a function of how often each pair of ratings occurs. Ranks, concordant and discordant
pairs are integers, and Pearson's sums are integers in the unit of the last bit of the ratings, so
each coefficient is the square root of an exact fraction, taken once.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from raveval.metrics._exact import Doubles, Integers, decompose, pair_moments, root
from raveval.metrics._joint_counts import Run

_DENSE = 1 << 16
"""Tables up to this size are summed whole, larger ones only where they are filled."""

_FILLED = 8  # or where one cell in eight is filled
_FEW_CELLS = 1 << 12
_FEW_COUNTS = 16
_INT64 = 1 << 62  # a product below it fits, with room for one addition
_LOW_BITS = 32


@dataclass(frozen=True, slots=True)
class Axis:
    """One side of the table: the distinct ratings, and how many pairs have each.

    Attributes:
        values: ascending; shape `(n_values,)`.
        totals: pairs with each value.
        before: pairs with a lower value.
        of_cell: the index of each cell's value; shape `(n_cells,)`.
    """

    values: Doubles
    totals: Integers
    before: Integers
    of_cell: Integers

    @property
    def centred_ranks(self) -> Integers:
        """Twice the mid-rank of each value, less its mean over all pairs: whole numbers."""
        return 2 * self.before + self.totals - int(self.totals.sum())

    @property
    def n_untied(self) -> int:
        """Ordered pairs of examples that differ here: n^2 - sum(totals^2)."""
        return int(self.totals.sum()) ** 2 - exact_dot(self.totals, self.totals)


@dataclass(frozen=True, slots=True)
class Cells:
    """The filled cells of the table of pairs, ascending by x and then by y.

    Attributes:
        x, y: both sides.
        counts: pairs in each cell, shape `(n_cells,)`; at least 1.
        by_y: the cells in the order of y and then of x.
        first_rows: where each cell starts in the run the table was made of.
    """

    x: Axis
    y: Axis
    counts: Integers
    by_y: Integers
    first_rows: Integers

    @property
    def n(self) -> int:
        """Pairs of ratings."""
        return int(self.counts.sum())

    @property
    def is_constant(self) -> bool:
        """Whether either side has one value only."""
        return len(self.x.values) < 2 or len(self.y.values) < 2

    @property
    def is_finite(self) -> bool:
        """Whether no rating is infinite."""
        ends = (*self.x.values[[0, -1]], *self.y.values[[0, -1]]) if len(self.counts) else ()
        return bool(np.isfinite(ends).all())


def tabulate(run: Run) -> Cells:
    """Return the table of pairs, whatever their clusters."""
    is_first = np.ones(len(run), np.bool_)
    is_first[1:] = run.pairs[1:] != run.pairs[:-1]
    first_rows = np.flatnonzero(is_first)
    counts = np.add.reduceat(run.counts, first_rows) if len(run) else run.counts
    pairs = run.pairs[first_rows]
    x = _axis(pairs.real, np.arange(len(pairs)), counts)
    by_y = np.argsort(pairs.imag, kind="stable")
    return Cells(x, _axis(pairs.imag, by_y, counts), counts, by_y, first_rows)


def _axis(values: Doubles, order: Integers, counts: Integers) -> Axis:
    ordered = values[order]
    is_first = np.ones(len(values), np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    starts = np.flatnonzero(is_first)
    totals = np.add.reduceat(counts[order], starts) if len(starts) else counts
    of_cell = np.empty(len(values), np.int64)
    of_cell[order] = np.cumsum(is_first) - 1
    return Axis(ordered[starts], totals, np.cumsum(totals) - totals, of_cell)


def exact_dot(a: Integers, b: Integers) -> int:
    """Return the sum of products of integers, with no limit of 64 bits.

    >>> exact_dot(np.array([2**40, 1]), np.array([2**40, -1])) == 2**80 - 1
    True
    """
    if not len(a):
        return 0
    if int(np.abs(a).max()) * int(np.abs(b).max()) >= _INT64:
        return int((a.astype(object) * b.astype(object)).sum())
    products = a * b
    high, low = products >> _LOW_BITS, products & ((1 << _LOW_BITS) - 1)
    return (int(high.sum()) << _LOW_BITS) + int(low.sum())


def signed_root(numerator: int, square: int) -> float:
    """Return numerator / sqrt(square), the fraction taken exactly and rounded once."""
    size = root(Fraction(numerator * numerator, square))
    return size if numerator >= 0 else -size


def pearson(cells: Cells) -> float:
    """Return Pearson's correlation; the ratings are finite, and neither side is constant.

    It does not change with the unit of either side, so the ratings are integers in the unit of
    their last bit, and their common offset costs no digits.
    """
    if len(cells.counts) > _FEW_CELLS and len(np.unique(cells.counts)) <= _FEW_COUNTS:
        return _pearson_by_count(cells)
    x, y = _in_last_bits(cells.x.values), _in_last_bits(cells.y.values)
    x_totals, y_totals = cells.x.totals.astype(object), cells.y.totals.astype(object)
    products = x[cells.x.of_cell] * y[cells.y.of_cell] * cells.counts.astype(object)
    return _pearson(
        cells.n,
        x=(x * x_totals).sum(),
        y=(y * y_totals).sum(),
        xx=(x * x * x_totals).sum(),
        yy=(y * y * y_totals).sum(),
        xy=products.sum(),
    )


def _pearson(n: int, *, x: int, y: int, xx: int, yy: int, xy: int) -> float:
    return signed_root(n * xy - x * y, (n * xx - x * x) * (n * yy - y * y))


def _in_last_bits(values: Doubles) -> NDArray[np.object_]:
    """Return finite doubles as integers of any size, in the unit of the smallest last bit."""
    mantissas, shifts = decompose(values)
    lowest = int(shifts[mantissas != 0].min(initial=int(shifts.max())))
    pairs = zip(mantissas.tolist(), shifts.tolist(), strict=True)
    return np.array([m << max(0, s - lowest) for m, s in pairs], object)


def _pearson_by_count(cells: Cells) -> float:
    """Return the same from the sums over the cells of each count: for many cells of few counts."""
    x, y = cells.x.values[cells.x.of_cell], cells.y.values[cells.y.of_cell]
    total = [0] * 5
    for count in np.unique(cells.counts).tolist():
        found = pair_moments(x[cells.counts == count], y[cells.counts == count])
        sums = (found.x, found.y, found.xx, found.yy, found.xy)
        total = [a + count * b for a, b in zip(total, sums, strict=True)]
    return _pearson(cells.n, **dict(zip(("x", "y", "xx", "yy", "xy"), total, strict=True)))


def spearman(cells: Cells) -> float:
    """Return Spearman's correlation, that of the mid-ranks; neither side is constant."""
    x, y = cells.x.centred_ranks, cells.y.centred_ranks
    if cells.n**2 >= _INT64:
        x, y = x.astype(object), y.astype(object)
    xy = exact_dot(cells.counts * x[cells.x.of_cell], y[cells.y.of_cell])
    return signed_root(xy, exact_dot(x * cells.x.totals, x) * exact_dot(y * cells.y.totals, y))


def concordance(cells: Cells) -> Integers:
    """Return for each cell the pairs concordant with one in it less the discordant ones.

    Summed over all pairs it is twice P - Q, Kendall's numerator.
    """
    n, counts, x, y = cells.n, cells.counts, cells.x, cells.y
    i, j = x.of_cell, y.of_cell
    before, x_before, y_before = _before(cells), x.before[i], y.before[j]
    # Lower in one coordinate, equal in the other.
    same_x = np.cumsum(counts) - counts - x_before
    same_y = np.empty_like(counts)
    in_order = counts[cells.by_y]
    same_y[cells.by_y] = np.cumsum(in_order) - in_order
    same_y -= y_before
    not_above = before + same_x + same_y + counts
    above = n - (x_before + x.totals[i]) - (y_before + y.totals[j]) + not_above
    crossed = (x_before - before - same_y) + (y_before - before - same_x)
    difference: Integers = before + above - crossed
    return difference


def kendall_tau_b(cells: Cells, difference: Integers) -> float:
    """Return tau-b from the result of `concordance`; neither side is constant."""
    return signed_root(exact_dot(cells.counts, difference), cells.x.n_untied * cells.y.n_untied)


def kendall_tau_c(cells: Cells, difference: Integers) -> float:
    """Return tau-c (Stuart) from the result of `concordance`; neither side is constant."""
    m = min(len(cells.x.values), len(cells.y.values))
    return m * exact_dot(cells.counts, difference) / (cells.n**2 * (m - 1))


def _before(cells: Cells) -> Integers:
    """Return for each cell the pairs that are lower in both coordinates."""
    shape = len(cells.x.values), len(cells.y.values)
    if shape[0] * shape[1] > max(_DENSE, _FILLED * len(cells.counts)):
        return _before_by_bits(cells)
    table = np.zeros((shape[0] + 1, shape[1] + 1), np.int64)
    table[cells.x.of_cell + 1, cells.y.of_cell + 1] = cells.counts
    sums: Integers = table.cumsum(0).cumsum(1)[cells.x.of_cell, cells.y.of_cell]
    return sums


def _before_by_bits(cells: Cells) -> Integers:
    """Return the same for large sparse tables: a merge count, one bit of the place at a time.

    The cells have places in the order of x, and among equal x against the order of y; they are
    lined up in the order of y, and among equal y against the order of places. Then a cell is lower
    in both coordinates exactly if its place is lower and it stands earlier. Two places differ first
    in one bit: for each bit from the highest, among cells whose places agree above it, those with
    a 1 add up the earlier ones with a 0, and each half goes on by itself.
    """
    n_cells, of_x = len(cells.counts), cells.x.of_cell
    starts = np.concatenate((np.flatnonzero(np.diff(of_x, prepend=-1)), [n_cells]))
    place = starts[of_x] + starts[of_x + 1] - 1 - np.arange(n_cells)
    # `by_y` has equal y in ascending order of x, hence of places.
    by_y_reversed = cells.by_y[::-1]
    y_reversed = cells.y.of_cell[by_y_reversed]
    line = by_y_reversed[np.argsort(y_reversed, kind="stable")]
    places, counts = place[line], cells.counts[line]
    found = np.zeros(n_cells, np.int64)
    here = np.arange(n_cells)
    for bit in range((n_cells - 1).bit_length() - 1, -1, -1):
        is_upper = (places >> bit) & 1 == 1
        start = (places >> (bit + 1)) << (bit + 1)
        # How many, and how many pairs, of the lower half stand before each cell in its block.
        n_lower = np.concatenate(([0], np.cumsum(~is_upper)))
        lower = np.concatenate(([0], np.cumsum(np.where(is_upper, 0, counts))))
        n_earlier = n_lower[:-1] - n_lower[start]
        upper = np.flatnonzero(is_upper)
        found[places[upper]] += lower[upper] - lower[start[upper]]
        target = np.where(is_upper, (1 << bit) + here - n_earlier, start + n_earlier)
        places_next, counts_next = np.empty_like(places), np.empty_like(counts)
        places_next[target], counts_next[target] = places, counts
        places, counts = places_next, counts_next
    before: Integers = found[place]
    return before
