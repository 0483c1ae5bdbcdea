"""Ranking: the model is an evaluator that scores two responses one by one; the higher score wins.

Prometheus' ranking grading (arXiv 2310.08491, section 5.2): each response is scored by itself, at
temperature 1, so that the order in which they are shown cannot matter. While the scores are equal
both are drawn again, up to a budget of rounds; a tie that outlasts it is UNRESOLVED, and missing. A
score that cannot be read within its own budget makes the example UNJUDGED.

Where the person saw a tie too, the first draw decides and is not repeated: the judge is right where
it ties as well (the published code's rule). `accuracy_strict` has these examples in it,
`accuracy_without_human_ties` leaves them out.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pyarrow as pa

from raveval.engines import Capability
from raveval.protocols import Ask, Record, TaskSettings, missing, scored
from raveval.protocols._grading import (
    Asked,
    ask_verdict,
    count_attempts,
    failures,
    refusals,
    unanswered,
    unjudged,
    verdicts,
)
from raveval.protocols.absolute_grading import read
from raveval.types import Answers, Example, Generate, Reply, Status

ANSWER_VERSION = 1
SCORE_VERSION = 2
PREFERS_CHAT = True
NEEDS = frozenset({Capability.GENERATE})
METRICS = ("preference",)
COLUMNS = (
    pa.field("preferred", pa.string()),
    pa.field("verdict", pa.string()),
    pa.field("scores_a", pa.list_(pa.int32())),
    pa.field("scores_b", pa.list_(pa.int32())),
    pa.field("feedback_a", pa.list_(pa.string())),
    pa.field("feedback_b", pa.list_(pa.string())),
    pa.field("n_rounds", pa.int32()),
    pa.field("n_attempts", pa.int32()),
    pa.field("refused", pa.list_(pa.string())),
    pa.field("judge_failures", pa.list_(pa.string())),
)

Round = tuple[Asked[int], Asked[int]]


async def answer(example: Example, ask: Ask, settings: TaskSettings) -> Answers:
    """Score both responses; score both again while they tie."""
    a = Generate(example.id, example.prompt, settings.sampling, settings.may_truncate)
    b = dataclasses.replace(a, prompt=example.second_prompt or "")
    replies = list[Reply]()
    for index in range(1 + settings.grading.max_tie_rounds):
        asked = await asyncio.gather(
            *(
                ask_verdict(question, f"{side}{index}", ask, settings, read)
                for side, question in (("a", a), ("b", b))
            )
        )
        replies += [reply for each in asked for reply in each]
        scores = [next(iter(verdicts(tuple(each), read).values())) for each in asked]
        if not _is_drawn_again(example, *scores):
            break
    return tuple(replies)


def score(
    example: Example, answers: Answers, settings: TaskSettings
) -> tuple[Status, str | None, Record]:
    """Return the scores of every round and the verdict of the last one."""
    whole = unanswered(answers)
    if whole is not None:
        return missing(whole)
    rounds = _rounds(example, answers)
    columns = {**_columns(example, rounds), "n_attempts": len(answers)}
    a, b = rounds[-1]
    failure = a.failure or b.failure
    if failure is not None:
        return failure.status, failure.message, columns
    if a.value is None or b.value is None:
        return Status.UNJUDGED, unjudged((a, b)), columns
    if _is_drawn_again(example, a, b):
        # Fewer than allowed: scored again, by a parser that reads as equal what ended the draws.
        message = f"equal scores in {len(rounds)} of {1 + settings.grading.max_tie_rounds} draws"
        return Status.UNRESOLVED, message, columns
    columns["verdict"] = _verdict(a.value, b.value)
    return *scored(answers), columns


def _is_drawn_again(example: Example, a: Asked[int], b: Asked[int]) -> bool:
    """Whether these scores decide nothing; where the person saw a tie too, they do."""
    return a.value is not None and a.value == b.value and example.preferred != "tie"


def _rounds(example: Example, answers: Answers) -> list[Round]:
    """Return the rounds up to the one that decides, or all of them."""
    asked = verdicts(answers, read)
    n_rounds = 1 + max(int(purpose[1:]) for purpose in asked)
    rounds = list[Round]()
    for index in range(n_rounds):
        rounds.append((asked[f"a{index}"], asked[f"b{index}"]))
        if not _is_drawn_again(example, *rounds[-1]):
            break
    return rounds


def _verdict(a: int, b: int) -> str:
    if a == b:
        return "tie"
    return "a" if a > b else "b"


def _columns(example: Example, rounds: list[Round]) -> dict[str, Any]:
    everything = [each for pair in rounds for each in pair]
    return {
        "preferred": example.preferred,
        "verdict": None,
        "scores_a": [a.value for a, _ in rounds],
        "scores_b": [b.value for _, b in rounds],
        "feedback_a": [a.feedback for a, _ in rounds],
        "feedback_b": [b.feedback for _, b in rounds],
        "n_rounds": len(rounds),
        "refused": refusals(everything),
        "judge_failures": failures(everything),
    }


def derive(records: pa.Table) -> pa.Table:
    """Return the records as they are: nothing follows from the columns together."""
    return records


def tally(records: pa.Table) -> dict[str, int]:
    """Return how often the judge was asked, how often in vain, and how many ties were drawn again.

    `tie_rounds` counts draws of both scores after an example's first.
    """
    draws = [n for n in records["n_rounds"].to_pylist() if n]
    return {**count_attempts(records), "tie_rounds": sum(draws) - len(draws)}
