"""Finds the prompts that do not fit a model's context before the model is loaded."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from raveval.protocols import Ask, EvaluationProtocol, GradedProtocol, TaskSettings
from raveval.types import (
    Completion,
    Example,
    Failure,
    Generate,
    Prompt,
    Reply,
    Request,
    ScoreDocument,
    Status,
)

_SHORT_IN_A_ROW = 200
_Recipe = Callable[[Example, Ask], Awaitable[object]]


class Encoder(Protocol):
    """What an engine's module knows of a model's tokens without loading it."""

    max_model_len: int
    has_chat_template: bool
    commit: str | None

    def size(self, request: Request) -> int:
        """Return the tokens that a request needs, output included; 0 where nobody can say."""
        ...


def lengths(
    examples: Sequence[Example],
    protocol: EvaluationProtocol,
    settings: TaskSettings,
    encoder: Encoder,
) -> dict[str, int]:
    """Return the tokens that examples need, by id, found by asking a measuring stick.

    A token covers at least one byte, so short examples surely fit and are not encoded. Of the
    others the longest in bytes come first, and once many in a row need less than half of the
    context the rest is taken to fit: should one not, the engine still counts it as overlong.

    Raises:
        ConfigError: the engine's encoder has a `check`, and it refuses a request.
    """

    def answer(example: Example, ask: Ask) -> Awaitable[object]:
        return protocol.answer(example, ask, settings)

    return _lengths(examples, answer, encoder)


def verdict_lengths(
    examples: Sequence[Example],
    protocol: GradedProtocol,
    settings: TaskSettings,
    encoder: Encoder,
) -> dict[str, int]:
    """Return, as `lengths` does, the tokens that a judge needs where every answer is empty.

    Raises:
        ConfigError: as `lengths`.
    """
    nothing = (Completion("", "stop", n_prompt_tokens=0, n_output_tokens=0),)

    def grade(example: Example, ask: Ask) -> Awaitable[object]:
        return protocol.grade(example, nothing, ask, settings)

    return _lengths(examples, grade, encoder)


def _lengths(examples: Sequence[Example], recipe: _Recipe, encoder: Encoder) -> dict[str, int]:
    with ThreadPoolExecutor(1) as thread:  # a notebook's own loop already runs in this one
        return thread.submit(asyncio.run, _measured(examples, recipe, encoder)).result()


async def _measured(
    examples: Sequence[Example], recipe: _Recipe, encoder: Encoder
) -> dict[str, int]:
    check = getattr(encoder, "check", None)  # a server may lack what a sampling needs
    n_bytes = array("q")
    for example in examples:
        requests = await _requests(example, recipe)
        if check is not None:
            for request in requests:
                check(request)
        n_bytes.append(max(map(_upper_bound, requests), default=0))
    unsure = [at for at, most in enumerate(n_bytes) if most > encoder.max_model_len]
    unsure.sort(key=lambda at: -n_bytes[at])
    lengths: dict[str, int] = {}
    n_short = 0
    for at in unsure:
        if n_short >= _SHORT_IN_A_ROW:
            break
        example = examples[at]
        asked = _sized_apart(await _requests(example, recipe))
        lengths[example.id] = n_tokens = max(encoder.size(request) for request in asked)
        n_short = n_short + 1 if n_tokens <= encoder.max_model_len // 2 else 0
    return lengths


async def _requests(example: Example, recipe: _Recipe) -> list[Request]:
    """Return what would be asked about an example."""
    requests: list[Request] = []

    async def note(request: Request) -> Reply:
        requests.append(request)
        return Failure(Status.INVALID, "only measured")

    await recipe(example, note)
    return requests


def _sized_apart(requests: Sequence[Request]) -> list[Request]:
    """Return the requests without those that need as many tokens as one before them.

    A judge is asked the same prompt for each sample; only the seeds differ.
    """
    found: dict[object, Request] = {}
    for request in requests:
        decides: object = request
        if isinstance(request, Generate):
            decides = (request.prompt, request.sampling.max_output_tokens)
        found.setdefault(decides, request)
    return list(found.values())


def _upper_bound(request: Request) -> int:
    """Return more tokens than a plain request can need; chat turns add a template of its own."""
    if isinstance(request, ScoreDocument):
        return 0  # goes in windows, and always fits
    if isinstance(request, Generate):
        return _prompt_bytes(request.prompt) + request.sampling.max_output_tokens
    longest = max((len(text.encode()) for text in request.continuations), default=0)
    contexts = [request.context, request.unconditional_context or ""]
    return max(map(_prompt_bytes, contexts)) + longest


def _prompt_bytes(prompt: Prompt) -> int:
    if isinstance(prompt, str):
        return len(prompt.encode("utf-8", "surrogatepass")) + 8
    return sum(len(m.content.encode("utf-8", "surrogatepass")) + 64 for m in prompt) + 512


def overlong_message(
    task: str,
    too_long: Mapping[str, int],
    n_examples: int,
    max_model_len: int,
    *,
    role: str = "model",
) -> str:
    """Say which prompts do not fit the model or judge, and what to do."""
    id, n_tokens = max(too_long.items(), key=lambda pair: pair[1])
    needs = "before there is an answer in its prompt" if role == "judge" else "ask for fewer shots"
    shorter = "" if role == "judge" else f"{needs}, "
    already = f" {needs}" if role == "judge" else ""
    return (
        f"task {task!r}: {len(too_long)} of {n_examples} examples do not fit the {role}'s context "
        f"of {max_model_len} tokens; the longest, {id!r}, needs {n_tokens}{already}. Raise "
        f"max_model_len, {shorter}or set on_overlong: count to evaluate the others and count these "
        "as overlong"
    )
