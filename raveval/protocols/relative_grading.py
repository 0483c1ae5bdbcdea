"""Relative grading: the model is an evaluator that sees two responses at once and picks one.

Prometheus 2's pairwise grading (arXiv 2405.01535, section 3): instruction, rubric and both
responses stand in one prompt, and the judge names A or B. Every pair is asked in both orders, so
that a judge that favours a place is seen: `position_consistency` is the share of pairs with the
same verdict in both, `accuracy_both_orders` counts only verdicts that survive. An example without a
readable verdict in the order of the data is UNJUDGED; one in the other order alone is kept, and
left out of what needs both.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping

import pyarrow as pa

from raveval.engines import Capability
from raveval.judging import Verdict, read_choice
from raveval.protocols import Ask, Record, TaskSettings, missing, scored
from raveval.protocols._grading import (
    ask_verdict,
    count_attempts,
    failures,
    refusals,
    unanswered,
    unjudged,
    verdicts,
)
from raveval.types import Answers, Completion, Example, Generate, Status

ANSWER_VERSION = 1
SCORE_VERSION = 2
PREFERS_CHAT = True
NEEDS = frozenset({Capability.GENERATE})
METRICS = ("preference",)
COLUMNS = (
    pa.field("preferred", pa.string()),
    pa.field("verdict", pa.string()),
    pa.field("verdict_swapped", pa.string()),
    pa.field("feedback", pa.string()),
    pa.field("feedback_swapped", pa.string()),
    pa.field("n_attempts", pa.int32()),
    pa.field("refused", pa.list_(pa.string())),
    pa.field("judge_failures", pa.list_(pa.string())),
)

RESPONSES: Mapping[str, str] = {"A": "a", "B": "b"}
RESPONSES_SWAPPED: Mapping[str, str] = {"A": "b", "B": "a"}
"""Which response a letter stands for, in the order of the data and in the other one."""


def read(reply: Completion) -> Verdict[str]:
    """Return the letter that a judge's answer ends with."""
    return read_choice(reply.text, is_cut=reply.finish_reason == "length")


async def answer(example: Example, ask: Ask, settings: TaskSettings) -> Answers:
    """Ask in both orders."""
    given = Generate(example.id, example.prompt, settings.sampling, settings.may_truncate)
    swapped = dataclasses.replace(given, prompt=example.second_prompt or "")
    asked = await asyncio.gather(
        ask_verdict(given, "given", ask, settings, read),
        ask_verdict(swapped, "swapped", ask, settings, read),
    )
    return tuple(reply for replies in asked for reply in replies)


def score(
    example: Example, answers: Answers, settings: TaskSettings
) -> tuple[Status, str | None, Record]:
    """Return which response each order prefers."""
    whole = unanswered(answers)
    if whole is not None:
        return missing(whole)
    asked = verdicts(answers, read)
    given, swapped = asked["given"], asked["swapped"]
    columns = {
        "preferred": example.preferred,
        "verdict": RESPONSES.get(given.value or ""),
        "verdict_swapped": RESPONSES_SWAPPED.get(swapped.value or ""),
        "feedback": given.feedback,
        "feedback_swapped": swapped.feedback,
        "n_attempts": len(answers),
        "refused": refusals((given, swapped)),
        "judge_failures": failures((given, swapped)),
    }
    if given.value is not None:
        return *scored(answers), columns
    if given.failure is not None:
        return given.failure.status, given.failure.message, columns
    return Status.UNJUDGED, unjudged((given,)), columns


def derive(records: pa.Table) -> pa.Table:
    """Return the records as they are: nothing follows from the columns together."""
    return records


def tally(records: pa.Table) -> dict[str, int]:
    """Return how often the judge was asked, and how often in vain."""
    return count_attempts(records)
