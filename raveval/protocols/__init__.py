"""What a protocol is: how a model is questioned, and how its answers become a record.

Each module of this package with a public name is one protocol; the file's name is its key. `answer`
is a coroutine, so that an adaptive recipe reads like the paper's pseudo-code while the engine's
batch stays full; `score` is pure, so that rescoring is calling it again on stored answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol

import pyarrow as pa

from raveval.engines import Capability
from raveval.types import (
    Answers,
    ChoiceScores,
    Completion,
    Example,
    Failure,
    Reply,
    Request,
    Sampling,
    Status,
)

Ask = Callable[[Request], Awaitable[Reply]]
"""Sends a request to a model: the one under evaluation, or the judge where `grade` asks."""

Record = Mapping[str, Any]
"""One example's row: the common columns and those of its protocol."""

COMMON_COLUMNS: tuple[pa.Field, ...] = (
    pa.field("id", pa.string(), nullable=False),
    pa.field("row_key", pa.uint64(), nullable=False),
    pa.field("group", pa.string()),
    pa.field("cluster", pa.string()),
    pa.field("status", pa.string(), nullable=False),
    pa.field("message", pa.string()),
)


@dataclass(frozen=True, slots=True)
class Grading:
    """How often a judge is asked.

    Attributes:
        n_samples: verdicts wanted of each response in absolute grading.
        max_attempts: how often one verdict is asked for at most, where none can be read.
        max_tie_rounds: how often a tie is drawn again at most, in ranking.
    """

    n_samples: int = 3
    max_attempts: int = 5
    max_tie_rounds: int = 10


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """What a protocol may know of a task beside its examples; all of it moves numbers.

    `scoring` is the primary one of multiple choice; `no_answer` is what the model says when a
    question has no answer (SQuAD 2); `seed` is the run's. `judge_sampling` and `judge_chat` (ask in
    chat turns) are those of the judge that grades another model's answers; `sampling` is always
    that of the model under evaluation.
    """

    sampling: Sampling
    scoring: str = "raw"
    no_answer: str | None = None
    may_truncate: bool = False
    seed: int = 0
    grading: Grading = Grading()
    judge_sampling: Sampling | None = None
    judge_chat: bool = False

    def sampling_seed(self, example_id: str, purpose: str) -> int:
        """Return a 31-bit seed derived from the run's seed, the example and the purpose."""
        text = f"{self.seed}\x00{example_id}\x00{purpose}"
        return int.from_bytes(blake2b(text.encode(), digest_size=4).digest(), "big") >> 1


class EvaluationProtocol(Protocol):
    """The shape of a protocol module.

    `ANSWER_VERSION` is raised when other questions are asked: replies are then not reused.
    `SCORE_VERSION` is raised when the same replies give other records: they are scored again.
    `PREFERS_CHAT`: the model is asked in chat turns where it has a template, unless a run says
    otherwise.
    """

    ANSWER_VERSION: int
    SCORE_VERSION: int
    PREFERS_CHAT: bool
    NEEDS: frozenset[Capability]
    COLUMNS: tuple[pa.Field, ...]
    METRICS: tuple[str, ...]

    async def answer(self, example: Example, ask: Ask, settings: TaskSettings) -> Answers:
        """Question the model about one example."""
        ...

    def score(
        self, example: Example, answers: Answers, settings: TaskSettings
    ) -> tuple[Status, str | None, Record]:
        """Turn the answers into a status, a message where one is needed, and columns."""
        ...

    def derive(self, records: pa.Table) -> pa.Table:
        """Return the records with those columns filled in that follow from the others."""
        ...

    def tally(self, records: pa.Table) -> Mapping[str, int]:
        """Return counts over all records for the report, also of examples that are missing."""
        ...


class GradedProtocol(EvaluationProtocol, Protocol):
    """A protocol whose answers a judge grades, in a second pass over the committed replies.

    `score` is given the candidate's replies, then the judge's, in one tuple.
    `GRADE_VERSION` is raised when a judge is asked otherwise: its verdicts are then not reused.
    `BASELINE_METRICS` are attached beside `METRICS` where a run names a baseline.
    """

    GRADE_VERSION: int
    BASELINE_METRICS: tuple[str, ...]

    async def grade(
        self, example: Example, answers: Answers, ask: Ask, settings: TaskSettings
    ) -> Answers:
        """Question the judge about the answers to one example."""
        ...


def missing(reply: Reply) -> tuple[Status, str | None, Record]:
    """Return what `score` gives for an example without a usable reply.

    Raises:
        TypeError: the reply is of a kind that the protocol never asks for.
    """
    if not isinstance(reply, Failure):
        raise TypeError(f"unexpected {type(reply).__name__} in the stored replies")
    return reply.status, reply.message, {}


def scored(answers: Answers) -> tuple[Status, str | None]:
    """Return OK, or TRUNCATED and how many tokens a prompt lost at most."""
    n_cut = max(
        (r.n_truncated_tokens for r in answers if isinstance(r, Completion | ChoiceScores)),
        default=0,
    )
    if not n_cut:
        return Status.OK, None
    return Status.TRUNCATED, f"{n_cut} tokens were cut off the beginning of the prompt"


def schema(columns: tuple[pa.Field, ...]) -> pa.Schema:
    """Return the schema of a protocol's records: the common columns, then its own."""
    return pa.schema([*COMMON_COLUMNS, *columns])
