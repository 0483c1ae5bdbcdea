"""Short answers and their exact scores, in columns: what both versions of SQuAD are made of.

The semantics are not here: `squad` and `squad2` say what an answer is worth.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import gcd, lcm
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raveval.metrics import Contribution, Json
from raveval.metrics import _intervals as intervals
from raveval.metrics._columns import list_of, required
from raveval.metrics._exact import Booleans, Integers
from raveval.metrics._state import Counts, StateReader, add_counts, write_counts
from raveval.types import Estimate

PREDICTION = pa.field("prediction", pa.string())
REFERENCES = pa.field("references", list_of(pa.string()), nullable=False)

TEXT_TABLES = unicodedata.unidata_version
"""Version of the character tables of this interpreter, which decide what a word and a case is."""


class Match(NamedTuple):
    """Scores of one answer, exactly: F1 is the reduced fraction numerator / denominator."""

    exact: bool
    numerator: int
    denominator: int


class Answers(NamedTuple):
    """Columns of predictions (null where there is none) and of lists of references."""

    predictions: pa.StringArray
    references: pa.ListArray

    def n_references(self) -> Integers:
        """Return how many references each answer has."""
        lengths: Integers = pc.list_value_length(self.references).to_numpy().astype(np.int64)
        return lengths

    def take(self, rows: Integers) -> Answers:
        """Return some of the answers."""
        return Answers(self.predictions.take(rows), self.references.take(rows))


def read_answers(records: pa.Table) -> Answers:
    """Return the columns of predictions and of references.

    Raises:
        DataError: a column is missing or of another type; references is or holds a null.
    """
    return Answers(required(records, PREDICTION), required(records, REFERENCES))


@dataclass(frozen=True, slots=True)
class Matches:
    """The `Match` of each answer, in columns of shape `(n,)`."""

    exact: Booleans
    numerator: Integers
    denominator: Integers

    def counts(self, chosen: Booleans) -> AnswerCounts:
        """Return how often each pair of scores occurs among the answers chosen."""
        # A text has fewer than 2^31 bytes and so fewer than 2^30 words: one key holds all three.
        exact, numerator, denominator = (
            column[chosen].astype(np.uint64)
            for column in (self.exact, self.numerator, self.denominator)
        )
        keys, counts = np.unique(numerator << 33 | denominator << 1 | exact, return_counts=True)
        columns = (keys & 1, keys >> 33, keys >> 1 & (1 << 32) - 1)
        cells = zip(*(column.tolist() for column in columns), strict=True)
        return AnswerCounts(dict(zip(cells, counts.tolist(), strict=True)))

    def contributions(self, kinds: Mapping[str, Booleans]) -> Mapping[str, Contribution]:
        """Return what each answer adds to both scores of each kind, given which are of the kind."""
        exact, f1 = self.exact.astype(np.float64), self.numerator / self.denominator
        found = {}
        for kind, chosen in kinds.items():
            u = chosen.astype(np.float64)
            found[f"exact_match{kind}"] = Contribution(exact * u, u)
            found[f"f1{kind}"] = Contribution(f1 * u, u)
        return found


@dataclass(frozen=True, slots=True)
class AnswerCounts:
    """How often each pair of scores occurs: (exact, numerator, denominator of F1) → count."""

    cells: Counts = field(default_factory=dict)

    def __add__(self, other: AnswerCounts) -> AnswerCounts:
        """Return the counts of both sets of questions together."""
        return AnswerCounts(add_counts(self.cells, other.cells))

    @property
    def n(self) -> int:
        """Questions scored."""
        return sum(self.cells.values())

    def exact_match(self) -> Estimate:
        """Return the share of exact matches."""
        n_exact = sum(count for (exact, _, _), count in self.cells.items() if exact)
        return intervals.proportion(n_exact, self.n)

    def f1(self) -> Estimate:
        """Return the mean F1, from the exact sums of the scores and of their squares."""
        n = self.n
        if n == 0:
            return intervals.undefined("n=0", unit="fraction", higher_is_better=True)
        mean, mean_square = self._power_sum(1) / n, self._power_sum(2) / n
        value, stderr = float(mean), intervals.mean_stderr(mean, mean_square, n)
        if stderr:
            half_width = intervals.student95(n - 1) * stderr
            low, high = max(0.0, value - half_width), min(1.0, value + half_width)
        else:  # no spread was seen, which is no proof that there is none
            low, high = intervals.wilson(mean, n)
        return Estimate(
            value,
            "fraction",
            n,
            stderr=stderr,
            low=low,
            high=high,
            interval="t95" if stderr else "wilson95",
            higher_is_better=True,
        )

    def _power_sum(self, power: int) -> Fraction:
        """Return the sum of F1 ** power; denominators are few, so one common one is cheap."""
        by_denominator: dict[int, int] = {}
        for (_, numerator, denominator), count in self.cells.items():
            base = denominator**power
            by_denominator[base] = by_denominator.get(base, 0) + count * numerator**power
        common = lcm(*by_denominator)
        total = sum(sum_ * (common // base) for base, sum_ in by_denominator.items())
        return Fraction(total, common)

    def write(self) -> Json:
        """Return the cells as JSON."""
        return write_counts(self.cells)


def read_answer_counts(read: StateReader, key: str) -> AnswerCounts:
    """Return the counts that `AnswerCounts.write` made, checked.

    Raises:
        DataError: a cell is no pair of scores.
    """
    cells = read.counts(key, width=3)
    for exact, numerator, denominator in cells:
        is_reduced = gcd(numerator, denominator) == 1
        if exact > 1 or not is_reduced or not 0 <= numerator <= denominator:
            raise read.fail(f"{key}: {[exact, numerator, denominator]} is no pair of scores")
    return AnswerCounts(cells)


def check_text_tables(read: StateReader) -> None:
    """Refuse a state that was made with the character tables of another Python.

    Raises:
        DataError: with both versions.
    """
    found = read.content["text_tables"]
    if found != TEXT_TABLES:
        raise read.fail(
            f"made with Unicode tables {found!r}, this Python has {TEXT_TABLES!r}, and words may "
            "differ"
        )
