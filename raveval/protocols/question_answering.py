"""Question answering: generate an answer, compare it with every accepted one.

The SQuAD recipe (Rajpurkar et al. 2016, arXiv 1606.05250, section 6.1): exact match and token F1
after the official script's normalisation, the best over all references. The output ends at the
task's stop strings; white space around it is not part of the answer. An empty answer is a wrong
one, not a missing one, unless the task says what "no answer" looks like (SQuAD 2).
"""

from __future__ import annotations

import dataclasses

import pyarrow as pa

from raveval.engines import Capability
from raveval.metrics import squad, squad2
from raveval.protocols import Ask, Record, TaskSettings, missing, scored
from raveval.types import Answers, Completion, Example, Generate, Status

ANSWER_VERSION = 1
SCORE_VERSION = 2
PREFERS_CHAT = False
NEEDS = frozenset({Capability.GENERATE})
METRICS = ("squad",)
COLUMNS = (
    pa.field("prediction", pa.string()),
    pa.field("references", pa.list_(pa.string())),
    pa.field("exact_match", pa.bool_()),
    pa.field("f1", pa.float64()),
    pa.field("finish_reason", pa.string()),
    pa.field("n_output_tokens", pa.int32()),
)


async def answer(example: Example, ask: Ask, settings: TaskSettings) -> Answers:
    """Ask for one completion."""
    sampling = dataclasses.replace(
        settings.sampling, seed=settings.sampling_seed(example.id, "answer")
    )
    return (await ask(Generate(example.id, example.prompt, sampling, settings.may_truncate)),)


def score(
    example: Example, answers: Answers, settings: TaskSettings
) -> tuple[Status, str | None, Record]:
    """Compare the completion with the references, as the official script does."""
    reply = answers[0]
    if not isinstance(reply, Completion):
        return missing(reply)
    prediction = reply.text.strip()
    is_no_answer = settings.no_answer is not None and (
        squad.tokens(prediction) == squad.tokens(settings.no_answer)
    )
    if is_no_answer:
        prediction = ""
    # A task that knows of "no answer" is scored by the rules of SQuAD 2, where that is an answer.
    official = squad if settings.no_answer is None else squad2
    found = official.score(prediction, example.references)
    status, message = scored(answers)
    if not prediction and not is_no_answer:
        status, message = Status.UNPARSED, "the model answered nothing"
    return (
        status,
        message,
        {
            "prediction": prediction,
            "references": example.references,
            "exact_match": found.exact,
            "f1": found.f1,
            "finish_reason": reply.finish_reason,
            "n_output_tokens": reply.n_output_tokens,
        },
    )


def derive(records: pa.Table) -> pa.Table:
    """Return the records as they are: nothing follows from the columns together."""
    return records


def tally(records: pa.Table) -> dict[str, int]:
    """Return nothing: the metrics count all that there is to say."""
    return {}
