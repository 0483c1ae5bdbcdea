"""SQuAD v2.0: exact match and F1 where a question may have no answer.

Estimands, unit, direction, normalisation and intervals are those of `squad`. What differs
(official evaluation script v2.0, Rajpurkar et al., ACL 2018): a question without references has no
answer, and an empty prediction is right; references that normalise to nothing are dropped, and
where none is left the empty text is the only one; where either side has no token, F1 is the exact
match.

Every number comes three times: over all questions, over those with an answer
(`*_has_answer`: at least one reference) and over those without (`*_no_answer`). `n` counts the
questions of each. Undefined with the reason "n=0".

A null prediction scores 0, also where abstaining would be right, and is counted: silence is no
answer. The official script leaves such questions out of the numbers instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from raveval.metrics import Contribution, Json, Metric, Ratio, squad
from raveval.metrics._answers import (
    PREDICTION,
    REFERENCES,
    TEXT_TABLES,
    AnswerCounts,
    Answers,
    Match,
    check_text_tables,
    read_answer_counts,
    read_answers,
)
from raveval.metrics._exact import Booleans
from raveval.metrics._matching import Rule, matches
from raveval.metrics._state import read_state, write_state
from raveval.metrics.squad import Score
from raveval.types import Estimate

_KINDS = ("", "_has_answer", "_no_answer")


def _effective(references: Sequence[str]) -> Sequence[str]:
    return [r for r in references if squad.tokens(r)] or [""]


def score(prediction: str | None, references: Sequence[str]) -> Score:
    """Return exact match and F1 of one answer; no references mean that there is no answer.

    >>> score("", [])
    Score(exact=True, f1=1.0)
    """
    effective = _effective(references)
    exact, f1 = squad.score(prediction, effective)
    return Score(exact, 1.0) if exact else Score(exact, f1)


def match(prediction: str | None, references: Sequence[str]) -> Match:
    """Return the same as `score`, with F1 exact."""
    found = squad.match(prediction, _effective(references))
    return Match(True, 1, 1) if found.exact else found


RULE = Rule(match, drops_empty=True)


def _kinds(answers: Answers) -> Mapping[str, Booleans]:
    """Return which questions are of each kind; the kinds are named by the estimates' suffixes."""
    has_answer = answers.n_references() > 0
    members = (np.ones_like(has_answer), has_answer, ~has_answer)
    return dict(zip(_KINDS, members, strict=True))


@dataclass(frozen=True, slots=True)
class Squad2State:
    """Counts of scores of both kinds of question, and how many had no prediction (scored 0)."""

    has_answer: AnswerCounts = field(default_factory=AnswerCounts)
    no_answer: AnswerCounts = field(default_factory=AnswerCounts)
    n_unanswered: int = 0


class Squad2:
    """Exact match and F1 of SQuAD v2.0, over all questions and by whether there is an answer."""

    name = "squad2"
    version = 2
    columns: tuple[pa.Field, ...] = (PREDICTION, REFERENCES)
    needs: tuple[str, ...] = ("prediction", "references")
    optional: tuple[str, ...] = ()
    ratios: Mapping[str, Ratio] = {
        f"{score}{kind}": Ratio() for score in ("exact_match", "f1") for kind in _KINDS
    }

    def init(self) -> Squad2State:
        """Return the state of no questions."""
        return Squad2State()

    def update(self, state: Squad2State, records: pa.Table) -> Squad2State:
        """Add questions; empty references mean no answer, a null prediction scores 0."""
        answers = read_answers(records)
        n_before = state.has_answer.n + state.no_answer.n
        found, kinds = matches(answers, RULE, n_before=n_before), _kinds(answers)
        added = Squad2State(
            found.counts(kinds["_has_answer"]),
            found.counts(kinds["_no_answer"]),
            n_unanswered=answers.predictions.null_count,
        )
        return self.merge(state, added)

    def merge(self, a: Squad2State, b: Squad2State) -> Squad2State:
        """Add the counts."""
        return Squad2State(
            a.has_answer + b.has_answer,
            a.no_answer + b.no_answer,
            a.n_unanswered + b.n_unanswered,
        )

    def compute(self, state: Squad2State) -> Mapping[str, Estimate]:
        """Return `exact_match` and `f1`, of all questions and of each kind."""
        parts = {
            "": state.has_answer + state.no_answer,
            "_has_answer": state.has_answer,
            "_no_answer": state.no_answer,
        }
        return {
            **{f"exact_match{kind}": counts.exact_match() for kind, counts in parts.items()},
            **{f"f1{kind}": counts.f1() for kind, counts in parts.items()},
        }

    def notes(self, state: Squad2State) -> Mapping[str, int]:
        """Return how many questions have no prediction."""
        return {"unanswered": state.n_unanswered} if state.n_unanswered else {}

    def contributions(self, records: pa.Table) -> Mapping[str, Contribution]:
        """Return both scores of each question, for all questions and for each kind."""
        answers = read_answers(records)
        return matches(answers, RULE).contributions(_kinds(answers))

    def encode(self, state: Squad2State) -> Json:
        """Return the counts, and the version of the character tables they rest on."""
        body = {
            "text_tables": TEXT_TABLES,
            "has_answer": state.has_answer.write(),
            "no_answer": state.no_answer.write(),
            "n_unanswered": state.n_unanswered,
        }
        return write_state(self.name, self.version, body)

    def decode(self, content: Json) -> Squad2State:
        """Return the state of `encode`."""
        keys = ("text_tables", "has_answer", "no_answer", "n_unanswered")
        read = read_state(content, self.name, self.version, keys)
        check_text_tables(read)
        return Squad2State(
            read_answer_counts(read, "has_answer"),
            read_answer_counts(read, "no_answer"),
            read.count("n_unanswered"),
        )


METRIC: Metric[Squad2State] = Squad2()
