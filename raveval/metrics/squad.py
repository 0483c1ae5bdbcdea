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

Intervals: Wilson for exact match; for F1 Student's of a mean, from the exact sample variance,
cut to [0, 1]; where all scores are equal, Wilson's, which is conservative for scores in [0, 1].
Undefined with the reason "n=0".

A null prediction is a question without an answer: it scores 0, as in the official script, and is
counted. A question without references has no score in v1.1: it is left out and counted; the metric
`squad2` is the one for questions that may have no answer.

What is below says what an answer is worth. Large tables go through a compiled kernel that gives the
same integers (`_matching`).
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import gcd
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from raveval.errors import DataError
from raveval.metrics import Contribution, Json, Metric, Ratio
from raveval.metrics import _intervals as intervals
from raveval.metrics._answers import (
    PREDICTION,
    REFERENCES,
    TEXT_TABLES,
    AnswerCounts,
    Match,
    check_text_tables,
    read_answer_counts,
    read_answers,
)
from raveval.metrics._matching import Rule, matches
from raveval.metrics._state import read_state, write_state
from raveval.types import Estimate

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_DELETE_PUNCTUATION = str.maketrans("", "", string.punctuation)


class Score(NamedTuple):
    """Scores of one answer; `f1` is rounded exactly as the official script rounds it."""

    exact: bool
    f1: float


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


RULE = Rule(match, drops_empty=False)


@dataclass(frozen=True, slots=True)
class SquadState:
    """Counts of scores; questions without a prediction (scored 0), and without a reference."""

    scores: AnswerCounts = field(default_factory=AnswerCounts)
    n_unanswered: int = 0
    n_unreferenced: int = 0


class Squad:
    """Exact match and F1 of SQuAD v1.1."""

    name = "squad"
    version = 2
    columns: tuple[pa.Field, ...] = (PREDICTION, REFERENCES)
    needs: tuple[str, ...] = ("prediction", "references")
    optional: tuple[str, ...] = ()
    ratios: Mapping[str, Ratio] = {"exact_match": Ratio(), "f1": Ratio()}

    def init(self) -> SquadState:
        """Return the state of no questions."""
        return SquadState()

    def update(self, state: SquadState, records: pa.Table) -> SquadState:
        """Add questions; a null prediction is a question without an answer."""
        answers = read_answers(records)
        is_counted = answers.n_references() > 0
        added = SquadState(
            matches(answers, RULE, n_before=state.scores.n).counts(is_counted),
            n_unanswered=int((is_counted & np.asarray(answers.predictions.is_null())).sum()),
            n_unreferenced=int((~is_counted).sum()),
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

    def contributions(self, records: pa.Table) -> Mapping[str, Contribution]:
        """Return both scores of each question; one without references adds nothing."""
        answers = read_answers(records)
        return matches(answers, RULE).contributions({"": answers.n_references() > 0})

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


METRIC: Metric[SquadState] = Squad()
