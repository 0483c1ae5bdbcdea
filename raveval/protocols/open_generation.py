"""Open generation: the model answers an instruction in its own words, a judge grades the answer.

The candidate is asked once. In a second pass a judge, another model, gives the answer scores from 1
to 5 by a rubric, as in absolute grading (Prometheus, arXiv 2310.08491): several samples, whose
exact mean is the rating. Where another run's answer to the same example is the baseline, the judge
also picks the better of the two, in both orders, as in relative grading (Prometheus 2, arXiv
2405.01535); response a is the candidate's.

What counts as what:

- An answer is shown to the judge as it stands, an empty one too (it is counted, not missing).
- An example is scored where at least one sample has a verdict. One without any is UNJUDGED, or has
  the status of the judge's failure: the message then says that it was the judge's.
- Orders without a verdict are null, and left out of what needs them; the rating stands.
- Two answers that are equal, but for white space around them, are a tie in both orders without
  being asked about: the judge may not call a tie, so its choice would be noise, or a lean to a
  place. They are counted (`same_as_baseline`).
- Only the candidate's prompt may lose its beginning, where the task allows it. A judge that does
  not see all of what it grades by is no judge: its prompt is then OVERLONG.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from raveval import judging
from raveval.engines import Capability
from raveval.judging import HIGHEST, LOWEST
from raveval.judging.material import grounds_from
from raveval.protocols import (
    Ask,
    Record,
    TaskSettings,
    absolute_grading,
    missing,
    relative_grading,
    scored,
)
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
from raveval.types import Answers, Completion, Example, Failure, Generate, Status

ANSWER_VERSION = 1
GRADE_VERSION = 1
SCORE_VERSION = 2
PREFERS_CHAT = True
NEEDS = frozenset({Capability.GENERATE})
METRICS = ("rating",)
BASELINE_METRICS = ("win_rate",)
COLUMNS = (
    pa.field("response", pa.string()),
    pa.field("finish_reason", pa.string()),
    pa.field("n_output_tokens", pa.int32()),
    pa.field("rating", pa.list_(pa.int32())),
    pa.field("feedback", pa.list_(pa.string())),
    pa.field("baseline", pa.string()),
    pa.field("verdict", pa.string()),
    pa.field("verdict_swapped", pa.string()),
    pa.field("verdict_feedback", pa.string()),
    pa.field("verdict_feedback_swapped", pa.string()),
    pa.field("n_attempts", pa.int32()),
    pa.field("refused", pa.list_(pa.string())),
    pa.field("judge_failures", pa.list_(pa.string())),
    pa.field("scale_lowest", pa.float64()),
    pa.field("scale_highest", pa.float64()),
)

BASELINE = "baseline"
"""The field of an example that holds another run's answer to it."""

_ORDERS = ("given", "swapped")


async def answer(example: Example, ask: Ask, settings: TaskSettings) -> Answers:
    """Ask the candidate for one completion."""
    seed = settings.sampling_seed(example.id, "answer")
    sampling = dataclasses.replace(settings.sampling, seed=seed)
    return (await ask(Generate(example.id, example.prompt, sampling, settings.may_truncate)),)


async def grade(example: Example, answers: Answers, ask: Ask, settings: TaskSettings) -> Answers:
    """Ask the judge for all samples of the rating, and for both orders beside a baseline."""
    candidate = _candidate(answers)
    if isinstance(candidate, Failure):
        return ()
    if settings.judge_sampling is None:
        raise ValueError("the task has no judge_sampling")
    grounds, sampling = grounds_from(example.fields), settings.judge_sampling

    def question(text: str) -> Generate:
        return Generate(example.id, judging.as_prompt(text, in_turns=settings.judge_chat), sampling)

    single = question(grounds.absolute(candidate.text))
    asked = [
        ask_verdict(single, str(index), ask, settings, absolute_grading.read)
        for index in range(settings.grading.n_samples)
    ]
    baseline = example.fields.get(BASELINE)
    if baseline is not None and not _is_same(candidate.text, baseline):
        pairs = ((candidate.text, baseline), (baseline, candidate.text))
        asked += [
            ask_verdict(
                question(grounds.relative(*pair)), order, ask, settings, relative_grading.read
            )
            for order, pair in zip(_ORDERS, pairs, strict=True)
        ]
    return tuple(reply for replies in await asyncio.gather(*asked) for reply in replies)


def score(
    example: Example, answers: Answers, settings: TaskSettings
) -> tuple[Status, str | None, Record]:
    """Return the scores of the samples, null where one has none, and which answer is better."""
    candidate = _candidate(answers)
    if isinstance(candidate, Failure):
        return missing(candidate)
    graded = answers[1:]
    columns = {
        "response": candidate.text,
        "finish_reason": candidate.finish_reason,
        "n_output_tokens": candidate.n_output_tokens,
        "baseline": example.fields.get(BASELINE),
    }
    whole = unanswered(graded)
    if whole is not None:
        return whole.status, f"the judge: {whole.message}", columns
    samples = list(verdicts(_labelled(graded, is_order=False), absolute_grading.read).values())
    orders = verdicts(_labelled(graded, is_order=True), relative_grading.read)
    columns |= {
        "rating": [each.value for each in samples],
        "feedback": [each.feedback for each in samples],
        **_preference(candidate.text, example, orders),
        "n_attempts": len(graded),
        "refused": [*refusals(samples), *refusals(orders.values())],
        "judge_failures": [*failures(samples), *failures(orders.values())],
        "scale_lowest": LOWEST,
        "scale_highest": HIGHEST,
    }
    if any(each.value is not None for each in samples):
        return *scored(answers), columns
    failed = [each.failure for each in samples if each.failure is not None]
    if failed:
        return failed[0].status, f"the judge: {failed[0].message}", columns
    return Status.UNJUDGED, f"the judge: {unjudged(samples)}", columns


def _candidate(answers: Answers) -> Completion | Failure:
    """Return what the candidate made, which stands first.

    Raises:
        TypeError: it is of a kind that `answer` never asks for.
    """
    reply = answers[0] if answers else Failure(Status.FAILED, "there are no replies to it")
    if not isinstance(reply, Completion | Failure):
        raise TypeError(f"unexpected {type(reply).__name__} in the stored replies")
    return reply


def _is_same(response: str, baseline: str) -> bool:
    return response.strip() == baseline.strip()


def _labelled(graded: Answers, *, is_order: bool) -> Answers:
    """Return those of the judge's replies that are about the two orders, or the others."""
    return tuple(
        reply
        for reply in graded
        if isinstance(reply, Completion | Failure)
        and (reply.label.rpartition(".")[0] in _ORDERS) is is_order
    )


def _preference(
    response: str, example: Example, orders: Mapping[str, Asked[str]]
) -> dict[str, Any]:
    """Return which answer each order prefers, "a" being the candidate's."""
    baseline = example.fields.get(BASELINE)
    if baseline is not None and _is_same(response, baseline):
        return {"verdict": "tie", "verdict_swapped": "tie"}
    if not orders:
        return {}
    given, swapped = (orders[order] for order in _ORDERS)
    return {
        "verdict": relative_grading.RESPONSES.get(given.value or ""),
        "verdict_swapped": relative_grading.RESPONSES_SWAPPED.get(swapped.value or ""),
        "verdict_feedback": given.feedback,
        "verdict_feedback_swapped": swapped.feedback,
    }


def derive(records: pa.Table) -> pa.Table:
    """Return the records as they are: nothing follows from the columns together."""
    return records


def tally(records: pa.Table) -> dict[str, int]:
    """Return how often the judge was asked, how often in vain, and which answers are odd.

    An answer that was cut at its token limit is graded like any other; many of them say that
    `max_output_tokens` is too small.
    """
    responses = records["response"].to_pylist()
    pairs = zip(responses, records["baseline"].to_pylist(), strict=True)
    return {
        **count_attempts(records),
        "responses_cut_at_max_tokens": records["finish_reason"].to_pylist().count("length"),
        "empty_responses": sum(text is not None and not text.strip() for text in responses),
        "same_as_baseline": sum(
            text is not None and other is not None and _is_same(text, other)
            for text, other in pairs
        ),
    }
