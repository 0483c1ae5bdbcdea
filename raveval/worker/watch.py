"""Notices an engine that hangs: one that is silent for longer than what it was asked explains.

The silence that is allowed is `Patience.seconds`, and on top of it what the longest request under
way may take by itself: its output tokens at `Patience.tokens_per_second`, and what has to be read
for it at ten times that rate (four characters to a token). The longest one counts and not the sum:
an engine answers what waits side by side or one after the other, and any reply to anyone is a sign
of life, after which the silence begins anew. Nothing is encoded for it: a request's texts and the
most tokens of its output are known.

The questions that a replica is asked at its start (`canary`) are watched in the same way. Loading a
model is not: fetching and reading the weights may rightly take hours, and `pipeline` says every
half minute what is waited for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from raveval.engines import Engine, EngineDied
from raveval.types import Generate, Prompt, Reply, Request, ScoreChoices

Result = TypeVar("Result")

_CHARACTERS_PER_OUTPUT_TOKEN = 40  # read at once, at ten times the rate of what is written


@dataclass(frozen=True, slots=True)
class Patience:
    """How long an engine may answer nothing.

    Attributes:
        seconds: whatever was asked.
        tokens_per_second: the slowest rate at which one request's output is written; each token
            that the longest request asks for allows that much more.
    """

    seconds: float
    tokens_per_second: float

    def for_tokens(self, n_tokens: float) -> float:
        """Return the seconds of silence that are allowed while so many tokens are asked for.

        >>> Patience(seconds=1800.0, tokens_per_second=2.0).for_tokens(30_000)
        16800.0
        """
        return self.seconds + n_tokens / self.tokens_per_second


def tokens_asked(request: Request) -> float:
    """Return the output tokens that take as long as a request, reading its texts included.

    What belongs to several sequences (the context of each choice) is counted once for each: not
    every engine shares the work.

    >>> from raveval.types import Sampling
    >>> tokens_asked(Generate("key", "x" * 400, Sampling(max_output_tokens=16)))
    26.0
    """
    if isinstance(request, Generate):
        n_read = _n_characters(request.prompt)
        return request.sampling.max_output_tokens + n_read / _CHARACTERS_PER_OUTPUT_TOKEN
    if isinstance(request, ScoreChoices):
        contexts = [request.context]
        if request.unconditional_context is not None:
            contexts.append(request.unconditional_context)
        n_choices = len(request.continuations)
        n_read = n_choices * sum(map(_n_characters, contexts))
        n_read += len(contexts) * sum(map(len, request.continuations))
        return n_read / _CHARACTERS_PER_OUTPUT_TOKEN
    return len(request.text) / _CHARACTERS_PER_OUTPUT_TOKEN


def _n_characters(prompt: Prompt) -> int:
    turns: Iterable[str] = (
        (prompt,) if isinstance(prompt, str) else (turn.content for turn in prompt)
    )
    return sum(map(len, turns))


class Watched:
    """An engine, what it is asked, and when it last gave a sign of life."""

    def __init__(self, engine: Engine, patience: Patience) -> None:
        self._engine = engine
        self._patience = patience
        self._asked: list[float] = []  # tokens of the requests under way
        self._last_sign = 0.0
        self.capabilities = engine.capabilities
        self.describe = engine.describe
        self.close = engine.close

    async def reply(self, request: Request) -> Reply:
        """Pass a request on."""
        if not self._asked:
            self._last_sign = time.monotonic()  # it was idle until now
        n_tokens = tokens_asked(request)
        self._asked.append(n_tokens)
        try:
            return await self._engine.reply(request)
        finally:
            self._asked.remove(n_tokens)
            self._last_sign = time.monotonic()

    def check(self) -> float:
        """Return after how many seconds to look again.

        Raises:
            EngineDied: requests wait, and the engine was silent for longer than is allowed.
        """
        if not self._asked:
            return self._patience.seconds
        silent = time.monotonic() - self._last_sign
        longest = max(self._asked)
        allowed = self._patience.for_tokens(longest)
        if silent >= allowed:
            raise EngineDied(
                f"no reply for {silent:.0f} s, more than run.deadline_seconds "
                f"({self._patience.seconds:g}) and {longest:.0f} tokens of the longest request at "
                f"run.slowest_tokens_per_second ({self._patience.tokens_per_second:g}) explain; "
                "give a slow engine more seconds, or fewer tokens per second"
            )
        # Never later than that: the longest request may be answered, and the next silence shorter.
        return min(allowed - silent, self._patience.seconds) + 0.01

    async def unless_it_hangs(self, work: Awaitable[Result]) -> Result:
        """Wait for work that asks this engine.

        Raises:
            EngineDied: the engine hangs; the work is cancelled.
        """
        working = asyncio.ensure_future(work)
        try:
            while not working.done():
                await asyncio.wait((working,), timeout=self.check())
            return working.result()
        finally:
            working.cancel()
