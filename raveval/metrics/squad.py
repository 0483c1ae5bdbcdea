r"""SQuAD v1.1: exact match and F1 of short answers, with the official semantics to the last bit.

Estimands: the probability that an answer equals one of its references (`exact_match`), and the
expected overlap with the nearest one (`f1`), both after normalisation. Unit: fraction in [0, 1]
(the official script prints percent); higher is better; `n` counts questions.

Normalisation, in order: lower case; the 32 ASCII punctuation characters deleted; the words a, an,
the replaced by a space (a word ends where Python's `\b` says so: an accented letter continues it,
an en dash ends it); split at Unicode white space. There is no Unicode normalisation, and text is
lower cased by Python's own tables: a state records their version and is refused under another one.

Formulas: exact match compares the tokens; F1 is 2PR/(P+R) of the multiset overlap, 0 where there is
none, so two empty texts match exactly with F1 0; both are the best over the references (official
evaluation script v1.1, Rajpurkar et al., EMNLP 2016). The mean is taken from exact counts of
2s/(lp+lg), the same number without the script's rounding, which sums in the order of the file.

Intervals: Wilson for exact match; for F1 the normal one of a mean, from the exact sample variance,
cut to [0, 1]; where all scores are equal, Wilson's, which is conservative for scores in [0, 1].
Undefined with the reason "n=0".

A null prediction is a question without an answer: it scores 0, as in the official script, and is
counted. A question without references has no score in v1.1: it is left out and counted; the metric
`squad2` is the one for questions that may have no answer.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from math import gcd, lcm
from typing import NamedTuple

import pyarrow as pa

from raveval.errors import DataError
from raveval.metrics import Json, Metric
from raveval.metrics import _intervals as intervals
from raveval.metrics._columns import list_of, required
from raveval.metrics._state import (
    Counts,
    StateReader,
    add_counts,
    read_state,
    tally,
    write_counts,
    write_state,
)
from raveval.types import Estimate

PREDICTION = pa.field("prediction", pa.string())
REFERENCES = pa.field("references", list_of(pa.string()), nullable=False)

TEXT_TABLES = unicodedata.unidata_version
"""Version of the character tables of this interpreter, which decide what a word and a case is."""

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_DELETE_PUNCTUATION = str.maketrans("", "", string.punctuation)


class Score(NamedTuple):
    """Scores of one answer; `f1` is rounded exactly as the official script rounds it."""

    exact: bool
    f1: float


class Match(NamedTuple):
    """Scores of one answer, exactly: F1 is the reduced fraction numerator / denominator."""

    exact: bool
    numerator: int
    denominator: int


@lru_cache(maxsize=1024)  # the references of a question often repeat each other
def tokens(text: str) -> tuple[str, ...]:
    """Return the words that count, in order.

    >>> tokens("The twenty-one  Naïve cats.")
    ('twentyone', 'naïve', 'cats')
    """
    return tuple(_ARTICLES.sub(" ", text.lower().translate(_DELETE_PUNCTUATION)).split())


def overlap(a: Sequence[str], b: Sequence[str]) -> int:
    """Return the size of the multiset intersection.

    >>> overlap(["to", "be", "to"], ["to", "to", "to", "do"])
    2
    """
    remaining: dict[str, int] = {}
    for token in b:
        remaining[token] = remaining.get(token, 0) + 1
    shared = 0
    for token in a:
        left = remaining.get(token, 0)
        if left:
            remaining[token] = left - 1
            shared += 1
    return shared


def f1_rounded(shared: int, n_predicted: int, n_reference: int) -> float:
    """Return F1 by the official script's own expression, up to 3 ulp from the exact fraction."""
    if shared == 0:
        return 0.0
    precision = 1.0 * shared / n_predicted
    recall = 1.0 * shared / n_reference
    return (2 * precision * recall) / (precision + recall)


def score(prediction: str | None, references: Sequence[str]) -> Score:
    """Return exact match and F1 of one answer, the best over its references.

    Raises:
        DataError: there are no references.

    >>> score("the cat", ["A cat!", "dog"])
    Score(exact=True, f1=1.0)
    """
    if not references:
        raise DataError("references is empty: SQuAD v1.1 has no score without a reference")
    if prediction is None:
        return Score(False, 0.0)
    predicted = tokens(prediction)
    exact, best = False, 0.0
    for reference in map(tokens, references):
        exact = exact or predicted == reference
        shared = overlap(predicted, reference)
        best = max(best, f1_rounded(shared, len(predicted), len(reference)))
    return Score(exact, best)


def match(prediction: str | None, references: Sequence[str]) -> Match:
    """Return the same as `score`, with F1 exact; there is at least one reference."""
    if prediction is None:
        return Match(False, 0, 1)
    predicted = tokens(prediction)
    exact, numerator, denominator = False, 0, 1
    for reference in map(tokens, references):
        if predicted == reference:
            exact = True
            if predicted:
                return Match(True, 1, 1)
        shared, size = overlap(predicted, reference), len(predicted) + len(reference)
        if 2 * shared * denominator > numerator * size:
            numerator, denominator = 2 * shared, size
    divisor = gcd(numerator, denominator)
    return Match(exact, numerator // divisor, denominator // divisor)


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
            low, high = intervals.normal(value, stderr, at_least=0.0, at_most=1.0)
        else:  # no spread was seen, which is no proof that there is none
            low, high = intervals.wilson(mean, n)
        return Estimate(
            value,
            "fraction",
            n,
            stderr=stderr,
            low=low,
            high=high,
            interval="normal95" if stderr else "wilson95",
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


def answers(records: pa.Table) -> tuple[list[str | None], list[list[str]]]:
    """Return the columns of predictions and of references.

    Raises:
        DataError: a column is missing or of another type; references is null.
    """
    predictions = required(records, PREDICTION).to_pylist()
    return predictions, required(records, REFERENCES).to_pylist()


@dataclass(frozen=True, slots=True)
class SquadState:
    """Counts of scores; questions without a prediction (scored 0), and without a reference."""

    scores: AnswerCounts = field(default_factory=AnswerCounts)
    n_unanswered: int = 0
    n_unreferenced: int = 0


class Squad:
    """Exact match and F1 of SQuAD v1.1."""

    name = "squad"
    version = 1
    columns: tuple[pa.Field, ...] = (PREDICTION, REFERENCES)
    needs: tuple[str, ...] = ("prediction", "references")
    optional: tuple[str, ...] = ()

    def init(self) -> SquadState:
        """Return the state of no questions."""
        return SquadState()

    def update(self, state: SquadState, records: pa.Table) -> SquadState:
        """Add questions; a null prediction is a question without an answer."""
        predictions, references = answers(records)
        asked = [(p, r) for p, r in zip(predictions, references, strict=True) if r]
        added = SquadState(
            AnswerCounts(tally(tuple(map(int, match(p, r))) for p, r in asked)),
            n_unanswered=sum(p is None for p, _ in asked),
            n_unreferenced=len(references) - len(asked),
        )
        return self.merge(state, added)

    def merge(self, a: SquadState, b: SquadState) -> SquadState:
        """Add the counts."""
        return SquadState(
            a.scores + b.scores,
            a.n_unanswered + b.n_unanswered,
            a.n_unreferenced + b.n_unreferenced,
        )

    def compute(self, state: SquadState) -> Mapping[str, Estimate]:
        """Return `exact_match` and `f1`."""
        if state.scores.n == 0 and state.n_unreferenced:
            missing = intervals.undefined("no references", unit="fraction", higher_is_better=True)
            return {"exact_match": missing, "f1": missing}
        return {"exact_match": state.scores.exact_match(), "f1": state.scores.f1()}

    def notes(self, state: SquadState) -> Mapping[str, int]:
        """Return how many questions have no answer, and how many no reference."""
        counts = {"unanswered": state.n_unanswered, "without_references": state.n_unreferenced}
        return {name: count for name, count in counts.items() if count}

    def encode(self, state: SquadState) -> Json:
        """Return the counts, and the version of the character tables they rest on."""
        body = {
            "text_tables": TEXT_TABLES,
            "scores": state.scores.write(),
            "n_unanswered": state.n_unanswered,
            "n_unreferenced": state.n_unreferenced,
        }
        return write_state(self.name, self.version, body)

    def decode(self, content: Json) -> SquadState:
        """Return the state of `encode`."""
        keys = ("text_tables", "scores", "n_unanswered", "n_unreferenced")
        read = read_state(content, self.name, self.version, keys)
        check_text_tables(read)
        return SquadState(
            read_answer_counts(read, "scores"),
            read.count("n_unanswered"),
            read.count("n_unreferenced"),
        )


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


METRIC: Metric[SquadState] = Squad()
