"""Counts pairs of ratings in bounded memory, by keeping only the first bits of each rating.

Where there are more distinct pairs than fit, each rating keeps the first L of the 64 bits of its
double: sign, exponent, then the mantissa from its highest bit. Cutting bits never swaps two
ratings, it only makes near ones equal, so the order of two examples in different cells is known.
L is the largest number of bits with which the distinct pairs still fit. It depends on the pairs
alone: with more pairs there are never more bits, and cutting twice is cutting to the fewer. So
sketches merge to the same bits in any order, although no edge is fixed beforehand.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from typing_extensions import override

from raveval.metrics._exact import Doubles
from raveval.metrics._joint_counts import JointCounts, Run, count_weighted

ALL_BITS = 64
MOST_CELLS = 1 << 20
"""Distinct pairs kept in the end: 24 MB."""


@dataclass(frozen=True, slots=True, eq=False)
class PairSketch:
    """Counts of pairs of ratings cut to their first `bits`.

    Between merges it may hold more cells and bits than `settled` leaves, which it compares by.

    Attributes:
        bits: kept of each rating; ALL_BITS where nothing was cut.
        joint: how often each pair of cut ratings occurs; no clusters.
        most_cells: distinct pairs kept in the end, at least 1.
    """

    bits: int = ALL_BITS
    joint: JointCounts = field(default_factory=JointCounts)
    most_cells: int = MOST_CELLS

    def __add__(self, other: PairSketch) -> PairSketch:
        """Return the sketch of both sets of pairs; neither is changed."""
        bits = min(self.bits, other.bits)
        joint = _cut_counts(self, bits) + _cut_counts(other, bits)
        total = PairSketch(bits, joint, self.most_cells)
        # Settling takes as long as there are cells: it is put off until there are twice as many.
        n_rows = sum(len(run) for run in joint.runs)
        return total.settled() if n_rows > 2 * self.most_cells else total

    @override
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PairSketch):
            return NotImplemented
        a, b = self.settled(), other.settled()
        return (a.bits, a.joint) == (b.bits, b.joint)

    __hash__ = None  # type: ignore[assignment]

    def settled(self) -> PairSketch:
        """Return the sketch with the most bits that fit; it depends on the pairs alone."""
        run = self.joint.consolidated()
        if len(run) <= self.most_cells:
            return self
        fits, fails = 1, self.bits  # with one bit all ratings are equal
        best = _cut_run(run, fits)
        while fails - fits > 1:
            bits = (fits + fails) // 2
            found = _cut_run(run, bits)
            if len(found) <= self.most_cells:
                fits, best = bits, found
            else:
                fails = bits
        return PairSketch(fits, JointCounts((best,)), self.most_cells)


def cut(values: Doubles, bits: int) -> Doubles:
    """Return the ratings with all but their first bits zero, which moves them towards zero.

    >>> cut(np.array([1.0, 1.75, -1.75, 3.0]), 13).tolist()
    [1.0, 1.5, -1.5, 3.0]
    """
    mask = np.uint64((1 << ALL_BITS) - (1 << (ALL_BITS - bits)))
    kept: Doubles = (values.view(np.uint64) & mask).view(np.float64) + 0.0  # -0.0 becomes 0.0
    return kept


def is_cut(run: Run, bits: int) -> bool:
    """Whether the ratings of a run have no more bits than these."""
    cut_run = _cut_run(run, bits)
    return np.array_equal(cut_run.pairs, run.pairs)


def _cut_counts(sketch: PairSketch, bits: int) -> JointCounts:
    if sketch.bits == bits:
        return sketch.joint
    total = JointCounts()
    for run in sketch.joint.runs:
        total = total + JointCounts((_cut_run(run, bits),))
    return total


def _cut_run(run: Run, bits: int) -> Run:
    x, y = (np.ascontiguousarray(side) for side in (run.pairs.real, run.pairs.imag))
    return count_weighted(cut(x, bits), cut(y, bits), run.counts)
