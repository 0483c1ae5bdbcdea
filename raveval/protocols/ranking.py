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
from typing import Any

import pyarrow as pa

from raveval.engines import Capability
from raveval.protocols import Ask, Record, TaskSettings, missing
from raveval.protocols._grading import Asked, ask_verdict, status_of, unjudged, verdicts
from raveval.protocols.absolute_grading import read
from raveval.types import Answers, Example, Failure, Prompt, Reply, Status

ANSWER_VERSION = 1
SCORE_VERSION = 1
ASKS_A_JUDGE = True
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
)

Round = tuple[Asked[int], Asked[int]]


async def answer(example: Example, ask: Ask, settings: TaskSettings) -> Answers:
    """Score both responses; score both again while they tie."""
    prompts: tuple[Prompt, Prompt] = (example.prompt, example.second_prompt or "")
    replies = list[Reply]()
    for index in range(1 + settings.grading.max_tie_rounds):
        asked = await asyncio.gather(
            *(
                ask_verdict(example, prompt, f"{side}{index}", ask, settings, read)
                for side, prompt in zip("ab", prompts, strict=True)
            )
        )
        replies += [reply for each in asked for reply in each]
        a, b = (next(iter(verdicts(tuple(each), read).values())) for each in asked)
        is_tie = a.value is not None and a.value == b.value
        if not is_tie or example.preferred == "tie":
            break
    return tuple(replies)


def score(
    example: Example, answers: Answers, settings: TaskSettings
) -> tuple[Status, str | None, Record]:
    """Return the scores of every round and the verdict of the last one."""
    if not answers or (isinstance(answers[0], Failure) and not answers[0].label):
        return missing(answers[0])
    rounds = _rounds(answers)
    columns = _columns(example, rounds)
    for index, (a, b) in enumerate(rounds):
        if a.value is None or b.value is None:
            failure = a.failure or b.failure
            return missing(failure) if failure else (Status.UNJUDGED, unjudged((a, b)), columns)
        if a.value != b.value or (index == 0 and example.preferred == "tie"):
            columns["verdict"] = _verdict(a.value, b.value)
            return status_of(answers), None, columns
    message = f"equal scores in {len(rounds)} draws"
    return Status.UNRESOLVED, message, columns


def _rounds(answers: Answers) -> list[Round]:
    asked = verdicts(answers, read)
    n_rounds = 1 + max(int(purpose[1:]) for purpose in asked)
    return [(asked[f"a{index}"], asked[f"b{index}"]) for index in range(n_rounds)]


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
        "n_attempts": sum(len(each.refused) + (each.value is not None) for each in everything),
        "refused": [reason for each in everything for reason in each.refused],
    }


def derive(records: pa.Table) -> pa.Table:
    """Return the records as they are: nothing follows from the columns together."""
    return records
