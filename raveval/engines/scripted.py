"""An engine without a model, for tests of everything around one: it answers from a function.

By default replies are pseudo-random but fixed: a digest of the request's content decides them, so
they are the same on any machine, in any order and for any sharding. Numbers look like a model's:
log-probabilities are negative, lengths agree with the texts, a long prompt is refused as overlong.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import inspect
import json
import random
import re
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from raveval.engines import Capability, Engine, EngineDied
from raveval.errors import ConfigError, ModelError
from raveval.types import (
    ChoiceScores,
    Completion,
    DocumentScore,
    Failure,
    Generate,
    ModelRef,
    Prompt,
    Reply,
    Request,
    ScoreChoices,
    ScoreDocument,
    Status,
)

OPERATIONAL = frozenset({"latency_seconds"})

Script = Callable[[Request], Reply | Awaitable[Reply]]

_TOKEN = re.compile(r"\s?\S{1,4}|\s")


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of this engine.

    Attributes:
        script: "package.module:function", given a request, returns a reply or a coroutine of one;
            empty for the fixed pseudo-random replies.
        latency_seconds: how long each reply takes.
        max_model_len: context, where the model gives none.
        seed: another seed is another model.
        by_model: whether another name of the model is another model too, and one that is no
            model is refused.
    """

    script: str = ""
    latency_seconds: float = 0.0
    max_model_len: int = 4096
    seed: int = 0
    by_model: bool = False


@dataclass(frozen=True, slots=True)
class ScriptedEncoder:
    """Counts tokens: pieces of at most four characters, with the white space before them."""

    max_model_len: int
    length_source: str = "given"
    has_chat_template: bool = True
    commit: str | None = None

    def size(self, request: Request) -> int:
        """Return the tokens a request needs, output included; a document at most one window."""
        if isinstance(request, Generate):
            return count_tokens(request.prompt) + request.sampling.max_output_tokens
        if isinstance(request, ScoreDocument):
            return min(count_tokens(request.text) + 2, self.max_model_len)
        contexts = [request.context, request.unconditional_context or ""]
        longest = max(map(count_tokens, request.continuations), default=0)
        return max(map(count_tokens, contexts)) + longest + 1


def count_tokens(text: Prompt) -> int:
    """Count the tokens of a text or of chat turns (one more for each turn's role).

    >>> count_tokens("Hello, world")
    4
    """
    if isinstance(text, str):
        return sum(1 for _ in _TOKEN.finditer(text))
    return sum(1 + count_tokens(turn.content) for turn in text)


def encoder(model: ModelRef, options: Options) -> ScriptedEncoder:
    """Return the counter of tokens; the model's own length wins over the option's.

    Raises:
        ModelError: `by_model`, and the model is a path without one.
    """
    if (
        options.by_model
        and model.path is not None
        and not (Path(model.path) / "config.json").is_file()
    ):
        raise ModelError(f"{model.path}: no model here (no config.json)")
    return ScriptedEncoder(model.max_model_len or options.max_model_len)


def start(model: ModelRef, options: Options) -> Engine:
    """Return the engine; there is nothing to load but the script.

    Raises:
        ConfigError: the script is not an importable function.
    """
    counts = encoder(model, options)

    seed = f"{options.seed} {model.name}" if options.by_model else options.seed

    def fixed(request: Request) -> Reply:
        return default_reply(request, seed=seed, max_model_len=counts.max_model_len)

    script = _load(options.script) if options.script else fixed
    return ScriptedEngine(script, options, max_model_len=counts.max_model_len)


class ScriptedEngine:
    """Answers each request from its script."""

    capabilities = frozenset(Capability)

    def __init__(self, script: Script, options: Options, *, max_model_len: int) -> None:
        self._script = script
        self._options = options
        self._max_model_len = max_model_len
        self._is_open = True

    async def reply(self, request: Request) -> Reply:
        """Answer one request; what the script raises is raised here.

        Raises:
            EngineDied: the engine is closed.
        """
        if self._options.latency_seconds:
            await asyncio.sleep(self._options.latency_seconds)
        if not self._is_open:
            raise EngineDied("the engine is closed")
        reply = self._script(request)
        return await reply if inspect.isawaitable(reply) else reply

    def describe(self) -> dict[str, str | int | None]:
        """Return what moves numbers."""
        return {
            "engine": "scripted",
            "script": self._options.script,
            "seed": self._options.seed,
            "max_model_len": self._max_model_len,
        }

    async def close(self) -> None:
        """Refuse what comes later."""
        self._is_open = False


def default_reply(request: Request, *, seed: int | str = 0, max_model_len: int = 4096) -> Reply:
    """Return the fixed pseudo-random reply to a request; its key does not matter."""
    failure = _refusal(request, max_model_len)
    if failure is not None:
        return failure
    if isinstance(request, Generate):
        return _completion(request, seed, max_model_len)
    if isinstance(request, ScoreChoices):
        return _choice_scores(request, seed, max_model_len)
    return _document_score(request, seed, max_model_len)


def _refusal(request: Request, max_model_len: int) -> Failure | None:
    try:
        json.dumps(asdict(request), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return Failure(Status.INVALID, "not valid Unicode: a lone surrogate")
    if isinstance(request, ScoreDocument):
        return None if request.text else Failure(Status.INVALID, "empty document")
    if isinstance(request, ScoreChoices):
        if not request.continuations:
            return Failure(Status.INVALID, "there are no continuations to score")
        if "" in request.continuations:
            index = request.continuations.index("")
            return Failure(Status.INVALID, f"continuation {index} is empty")
    size = ScriptedEncoder(max_model_len).size(request)
    if size > max_model_len and not request.may_truncate:
        return Failure(Status.OVERLONG, f"needs {size} tokens, max_model_len is {max_model_len}")
    return None


def _completion(request: Generate, seed: int | str, max_model_len: int) -> Completion:
    """Answer in words of the prompt, so that some answers share words with the references."""
    sampling = request.sampling
    used = seed if sampling.temperature == 0 else (seed, sampling.seed)
    source = _source("generate", used, request.prompt, sampling.temperature)
    turns = request.prompt if isinstance(request.prompt, str) else request.prompt[-1].content
    words = turns.split() or ["nothing"]
    text = " ".join(source.choice(words) for _ in range(source.randint(1, 8)))
    found = [text.find(stop) for stop in sampling.stop if stop in text]
    text = text[: min(found)] if found else text
    pieces = _TOKEN.findall(text)
    is_whole = len(pieces) < sampling.max_output_tokens
    return Completion(
        text="".join(pieces[: sampling.max_output_tokens]),
        finish_reason="stop" if is_whole else "length",
        n_prompt_tokens=count_tokens(request.prompt),
        n_output_tokens=min(len(pieces) + 1, sampling.max_output_tokens),
        n_truncated_tokens=_excess(request, max_model_len),
    )


def _choice_scores(request: ScoreChoices, seed: int | str, max_model_len: int) -> ChoiceScores:
    n_tokens = tuple(count_tokens(continuation) for continuation in request.continuations)
    contexts = [request.context]
    if request.unconditional_context is not None:
        contexts.append(request.unconditional_context)
    sums = [
        tuple(
            -n * _source("score", seed, context, continuation).uniform(0.1, 4.0)
            for n, continuation in zip(n_tokens, request.continuations, strict=True)
        )
        for context in contexts
    ]
    n_excess = _excess(request, max_model_len)
    n_contexts = [count_tokens(context) for context in contexts]
    return ChoiceScores(
        logprob_nats=sums[0],
        unconditional_nats=sums[1] if len(sums) > 1 else None,
        n_tokens=n_tokens,
        is_greedy=tuple(total / n > -1.0 for total, n in zip(sums[0], n_tokens, strict=True)),
        n_context_tokens=n_contexts[0] - n_excess,
        n_prompt_tokens=sum(n * len(n_tokens) + sum(n_tokens) for n in n_contexts),
        n_truncated_tokens=n_excess,
    )


def _document_score(request: ScoreDocument, seed: int | str, max_model_len: int) -> DocumentScore:
    source = _source("document", seed, request.text)
    n_tokens = count_tokens(request.text)
    window = max_model_len - 1
    n_windows = -(-n_tokens // (window - 1))
    return DocumentScore(
        logprob_nats=-n_tokens * source.uniform(1.5, 4.0),
        entropy_nats=n_tokens * source.uniform(1.0, 3.5),
        n_tokens=n_tokens,
        n_windows=n_windows,
        window_tokens=window,
        first_token_context="bos",
        n_prompt_tokens=n_tokens + n_windows,
    )


def _excess(request: Generate | ScoreChoices, max_model_len: int) -> int:
    return max(ScriptedEncoder(max_model_len).size(request) - max_model_len, 0)


def _source(*content: Any) -> random.Random:
    """Return a generator that the content alone decides; `hash` would differ between processes."""
    text = json.dumps(content, default=asdict)
    return random.Random(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()))


def _load(name: str) -> Script:
    module, colon, function = name.partition(":")
    try:
        if not colon:
            raise AttributeError("there is no colon in it")
        script: Script = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as exc:
        raise ConfigError(
            f"engine scripted: script: {name!r} cannot be loaded: {exc}. Expected "
            f"'package.module:function'"
        ) from exc
    return script
