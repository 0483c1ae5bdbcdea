"""Questions that every replica answers at its start, so that one unlike the others is found.

What an engine says of itself (dtype, versions, context) is compared as it is. The rest shows in its
answers: other weights under the same name, another tokenizer, another or a second BOS, another chat
template, kernels that compute something else. Each question is one log-likelihood, of a plain text
and of the same words behind chat turns; the counts of tokens have to be equal, the log-likelihoods
within what the dtype leaves open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from raveval.engines import Capability, Engine, EngineDied
from raveval.errors import RunError
from raveval.types import ChoiceScores, Failure, Message, ScoreChoices
from raveval.worker.watch import Watched

_WORDS = (
    " Miners once took canaries below ground: the birds fell silent first when the air was bad."
)
_QUESTIONS = {
    "plain text": ScoreChoices("canary in plain text", "Why canaries?\n\nAnswer:", (_WORDS,)),
    "chat turns": ScoreChoices(
        "canary in chat turns",
        (Message("system", "Answer in one sentence."), Message("user", "Why canaries?")),
        (_WORDS.lstrip(),),
    ),
}
TOKEN_NATS = {"float32": 2e-4}
"""How far two replicas may differ per token: on other cores float32 adds in another order."""
HALF_TOKEN_NATS = 0.02
"""The same in half precision; a checkpoint's next step, or a missing BOS, is further away."""


def ask(engine: Watched) -> dict[str, Any]:
    """Return what an engine answers, by question; empty where it cannot score.

    Raises:
        RunError: it died, or hangs.
    """
    if Capability.SCORE not in engine.capabilities:
        return {}
    with ThreadPoolExecutor(1, "canary") as thread:  # an actor may run a loop in this one
        try:
            return thread.submit(lambda: asyncio.run(engine.unless_it_hangs(_all(engine)))).result()
        except EngineDied as exc:
            raise RunError(f"the engine did not survive its first question: {exc}") from exc


async def _all(engine: Watched) -> dict[str, Any]:
    return {name: await _one(engine, question) for name, question in _QUESTIONS.items()}


async def _one(engine: Engine, question: ScoreChoices) -> dict[str, Any]:
    try:
        reply: object = await engine.reply(question)
    except EngineDied:
        raise
    except Exception as exc:  # noqa: BLE001 - the examples will meet it, and are counted
        return {"refused": type(exc).__name__}
    if isinstance(reply, ChoiceScores):
        return {
            "logprob_nats": reply.logprob_nats[0],
            "n_tokens": reply.n_tokens[0],
            "n_prompt_tokens": reply.n_prompt_tokens,
        }
    return {"refused": str(reply.status) if isinstance(reply, Failure) else type(reply).__name__}


def disagreement(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], *, dtype: object
) -> str | None:
    """Say in words how two replicas' answers differ; None where they agree."""
    for name in ours:
        a, b = dict(ours[name]), dict(theirs.get(name, {}))
        nats = a.pop("logprob_nats", 0.0), b.pop("logprob_nats", 0.0)
        for key in ("refused", "n_tokens", "n_prompt_tokens"):
            if a.get(key) != b.get(key):
                return f"asked in {name}, {key} is {a.get(key)}, there it is {b.get(key)}"
        allowed = TOKEN_NATS.get(str(dtype), HALF_TOKEN_NATS) * a.get("n_tokens", 0)
        if not abs(nats[0] - nats[1]) <= allowed:
            return (
                f"asked in {name}, the log-likelihood of {a['n_tokens']} tokens is {nats[0]:.4f} "
                f"nats, there it is {nats[1]:.4f}; {allowed:.4f} are allowed"
            )
    return None
