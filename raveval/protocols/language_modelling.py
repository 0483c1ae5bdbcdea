"""Language modelling: how well the model predicts a text.

Whole documents are scored in rolling windows, each token exactly once, nothing cut off; the record
keeps the window and what the first token was conditioned on, because the numbers depend on both. A
task whose examples have a context and one continuation (LAMBADA) scores the continuation alone and
also whether it is the greedy one.
"""

from __future__ import annotations

import pyarrow as pa

from raveval.engines import Capability
from raveval.protocols import Ask, Record, TaskSettings, missing, scored
from raveval.types import (
    Answers,
    ChoiceScores,
    DocumentScore,
    Example,
    ScoreChoices,
    ScoreDocument,
    Status,
)

ANSWER_VERSION = 1
SCORE_VERSION = 2
PREFERS_CHAT = False
NEEDS = frozenset({Capability.SCORE})
METRICS = ("perplexity", "entropy")
COLUMNS = (
    pa.field("logprob_nats", pa.float64()),
    pa.field("entropy_nats", pa.float64()),
    pa.field("n_tokens", pa.int64()),
    pa.field("n_words", pa.int64()),
    pa.field("n_words_whitespace", pa.int64()),
    pa.field("n_bytes", pa.int64()),
    pa.field("n_chars", pa.int64()),
    pa.field("is_greedy", pa.bool_()),
    pa.field("n_windows", pa.int32()),
    pa.field("window_tokens", pa.int32()),
    pa.field("first_token_context", pa.string()),
)


async def answer(example: Example, ask: Ask, settings: TaskSettings) -> Answers:
    """Ask for the log-likelihood of the document, or of the continuation of its context."""
    if not example.continuations:
        return (await ask(ScoreDocument(example.id, example.text)),)
    request = ScoreChoices(
        example.id, example.prompt, example.continuations, may_truncate=settings.may_truncate
    )
    return (await ask(request),)


def score(
    example: Example, answers: Answers, settings: TaskSettings
) -> tuple[Status, str | None, Record]:
    """Set the sums beside the sizes of the original text."""
    reply = answers[0]
    sizes = {
        "n_words": example.n_words,
        "n_words_whitespace": example.n_words_whitespace,
        "n_bytes": example.n_bytes,
        "n_chars": example.n_chars,
    }
    if isinstance(reply, DocumentScore):
        return (
            Status.OK,
            None,
            {
                **sizes,
                "logprob_nats": reply.logprob_nats,
                "entropy_nats": reply.entropy_nats,
                "n_tokens": reply.n_tokens,
                "n_windows": reply.n_windows,
                "window_tokens": reply.window_tokens,
                "first_token_context": reply.first_token_context,
            },
        )
    if isinstance(reply, ChoiceScores):
        return (
            *scored(answers),
            {
                **sizes,
                "logprob_nats": reply.logprob_nats[0],
                "n_tokens": reply.n_tokens[0],
                "is_greedy": reply.is_greedy[0],
            },
        )
    return missing(reply)


def derive(records: pa.Table) -> pa.Table:
    """Return the records as they are: nothing follows from the columns together."""
    return records


def tally(records: pa.Table) -> dict[str, int]:
    """Return nothing: the metrics count all that there is to say."""
    return {}
