"""Notices an engine that hangs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import TypeVar

from raveval.engines import Engine, EngineDied
from raveval.types import Reply, Request

Result = TypeVar("Result")


class Watched:
    """An engine, and when it last gave a sign of life: any reply to anyone is one."""

    def __init__(self, engine: Engine, deadline_seconds: float) -> None:
        self._engine = engine
        self._deadline_seconds = deadline_seconds
        self._n_waiting = 0
        self._last_sign = 0.0
        self.capabilities = engine.capabilities
        self.describe = engine.describe
        self.close = engine.close

    async def reply(self, request: Request) -> Reply:
        """Pass a request on."""
        if not self._n_waiting:
            self._last_sign = time.monotonic()  # it was idle until now
        self._n_waiting += 1
        try:
            return await self._engine.reply(request)
        finally:
            self._n_waiting -= 1
            self._last_sign = time.monotonic()

    def check(self) -> float:
        """Return after how many seconds to look again.

        Raises:
            EngineDied: requests wait, and there was no sign of life within the deadline.
        """
        silent = time.monotonic() - self._last_sign if self._n_waiting else 0.0
        if silent >= self._deadline_seconds:
            raise EngineDied(f"no reply for {silent:.0f} s")
        return self._deadline_seconds - silent + 0.01

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
