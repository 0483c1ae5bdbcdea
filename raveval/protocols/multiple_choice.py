"""Multiple choice, classification and entailment: the continuation with the highest score wins.

Catwalk's ranked classification (arXiv 2312.10253, section 3): every choice is scored as a
continuation of the same context, and five scorings are kept side by side: the log-likelihood
`raw`, divided `per_token`, `per_char` or `per_byte` of the continuation, and `unconditional`, the
gain over the same continuation without the question. A task names its primary one. The number of
choices may differ from example to example. A tie or an unusable score picks nothing; it is never
index 0.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raveval.engines import Capability
from raveval.metrics import accuracy
from raveval.protocols import Ask, Record, TaskSettings, missing, scored
from raveval.types import Answers, ChoiceScores, Example, ScoreChoices, Status

ANSWER_VERSION = 1
SCORE_VERSION = 2
PREFERS_CHAT = False
NEEDS = frozenset({Capability.SCORE})
METRICS = ("accuracy",)
COLUMNS = (
    pa.field("gold", pa.int32()),
    pa.field("scoring", pa.string()),
    pa.field("predicted", pa.int32()),
    pa.field("is_correct", pa.bool_()),
    pa.field("logprob_nats", pa.list_(pa.float64())),
    pa.field("unconditional_nats", pa.list_(pa.float64())),
    pa.field("n_tokens", pa.list_(pa.int32())),
    pa.field("n_chars", pa.list_(pa.int32())),
    pa.field("n_bytes", pa.list_(pa.int32())),
    pa.field("is_greedy", pa.list_(pa.bool_())),
    pa.field("n_context_tokens", pa.int32()),
)


async def answer(example: Example, ask: Ask, settings: TaskSettings) -> Answers:
    """Ask for the log-likelihood of every choice."""
    request = ScoreChoices(
        key=example.id,
        context=example.prompt,
        continuations=example.continuations,
        unconditional_context=example.unconditional_prompt,
        may_truncate=settings.may_truncate,
    )
    return (await ask(request),)


def score(
    example: Example, answers: Answers, settings: TaskSettings
) -> tuple[Status, str | None, Record]:
    """Set the scores beside the lengths that the scorings divide by."""
    reply = answers[0]
    if not isinstance(reply, ChoiceScores):
        return missing(reply)
    lengths = {len(reply.logprob_nats), len(reply.n_tokens), len(reply.is_greedy)}
    if lengths != {len(example.continuations)}:
        raise ValueError(f"{len(example.continuations)} choices, but scores of {lengths}")
    columns: dict[str, Any] = {
        "gold": example.gold,
        "scoring": settings.scoring,
        "logprob_nats": reply.logprob_nats,
        "unconditional_nats": reply.unconditional_nats,
        "n_tokens": reply.n_tokens,
        "n_chars": tuple(len(text) for text in example.continuations),
        "n_bytes": tuple(len(text.encode()) for text in example.continuations),
        "is_greedy": reply.is_greedy,
        "n_context_tokens": reply.n_context_tokens,
    }
    return *scored(answers), columns


def derive(records: pa.Table) -> pa.Table:
    """Add the choice under the primary scoring; a tie chooses nothing and is not correct."""
    is_scored = pc.is_valid(records["logprob_nats"]).combine_chunks()
    predicted = accuracy.predicted(records.filter(is_scored))
    nothing = pa.nulls(len(records), pa.int32())
    everywhere = pc.replace_with_mask(nothing, is_scored, predicted)
    is_hit = pc.fill_null(pc.equal(everywhere, records["gold"].combine_chunks()), False)
    is_correct = pc.if_else(is_scored, is_hit, None)
    for name, column in (("predicted", everywhere), ("is_correct", is_correct)):
        place = records.schema.get_field_index(name)
        records = records.set_column(place, records.schema.field(place), column)
    return records


def tally(records: pa.Table) -> dict[str, int]:
    """Return nothing: the metrics count all that there is to say."""
    return {}
