"""Absolute grading: the model is an evaluator, and gives a response a score from 1 to 5.

Prometheus' evaluator protocol (arXiv 2310.08491, section 5.1): the judge sees an instruction, a
response, a rubric and mostly a reference answer, writes feedback, then a score. Several verdicts
are sampled, and their mean is the rating (an exact fraction: the samples are kept, never a rounded
mean). A verdict that cannot be read is asked for again, up to a budget; an example of which no
sample has a verdict is UNJUDGED, never a score of 0. Against reference ratings come correlations
and agreement; where a reference rater gave several, `reference_consistency` says how well that
rater agrees with itself.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa

from raveval.engines import Capability
from raveval.judging import HIGHEST, LOWEST, Verdict, read_score
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
from raveval.types import Answers, Completion, Example, Generate, Status

ANSWER_VERSION = 1
SCORE_VERSION = 2
PREFERS_CHAT = True
NEEDS = frozenset({Capability.GENERATE})
METRICS = ("correlation", "agreement", "rating", "reference_consistency")
COLUMNS = (
    pa.field("rating", pa.list_(pa.int32())),
    pa.field("reference_rating", pa.list_(pa.float64())),
    pa.field("feedback", pa.list_(pa.string())),
    pa.field("n_attempts", pa.int32()),
    pa.field("refused", pa.list_(pa.string())),
    pa.field("judge_failures", pa.list_(pa.string())),
    pa.field("scale_lowest", pa.float64()),
    pa.field("scale_highest", pa.float64()),
)


def read(reply: Completion) -> Verdict[int]:
    """Return the score that a judge's answer ends with."""
    is_cut = reply.finish_reason == "length"
    return read_score(reply.text, lowest=LOWEST, highest=HIGHEST, is_cut=is_cut)


async def answer(example: Example, ask: Ask, settings: TaskSettings) -> Answers:
    """Sample the verdicts, all at once."""
    question = Generate(example.id, example.prompt, settings.sampling, settings.may_truncate)
    samples = await asyncio.gather(
        *(
            ask_verdict(question, str(index), ask, settings, read)
            for index in range(settings.grading.n_samples)
        )
    )
    return tuple(reply for replies in samples for reply in replies)


def score(
    example: Example, answers: Answers, settings: TaskSettings
) -> tuple[Status, str | None, Record]:
    """Return the samples' scores; null where a sample has none."""
    whole = unanswered(answers)
    if whole is not None:
        return missing(whole)
    asked = list(verdicts(answers, read).values())
    columns = {**_columns(example, asked), "n_attempts": len(answers)}
    if any(each.value is not None for each in asked):
        return *scored(answers), columns
    failed = [each.failure for each in asked if each.failure is not None]
    if failed:
        return failed[0].status, failed[0].message, columns
    return Status.UNJUDGED, unjudged(asked), columns


def _columns(example: Example, asked: list[Asked[int]]) -> dict[str, Any]:
    return {
        "rating": [each.value for each in asked],
        "reference_rating": example.reference_ratings,
        "feedback": [each.feedback for each in asked],
        "refused": refusals(asked),
        "judge_failures": failures(asked),
        "scale_lowest": LOWEST,
        "scale_highest": HIGHEST,
    }


def derive(records: pa.Table) -> pa.Table:
    """Return the records as they are: nothing follows from the columns together."""
    return records


def tally(records: pa.Table) -> dict[str, int]:
    """Return how often the judge was asked, and how often in vain."""
    return count_attempts(records)
