"""Whose turn it is in an engine, and what each shard in flight costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass


class Gate:
    """Lets shards in together, or one alone."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._n_inside = 0
        self._alone = False

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Be inside with others."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._alone)
            self._n_inside += 1
        try:
            yield
        finally:
            async with self._changed:
                self._n_inside -= 1
                self._changed.notify_all()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Be inside alone."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._alone)
            self._alone = True  # from here on nobody enters; wait for those inside
            await self._changed.wait_for(lambda: self._n_inside == 0)
        try:
            yield
        finally:
            async with self._changed:
                self._alone = False
                self._changed.notify_all()


@dataclass(slots=True, eq=False)  # two of the same cost are still two
class Cost:
    """A shard's part of its replica's time."""

    seconds: float = 0.0


class SharedClock:
    """Splits a replica's time evenly among the shards in flight, so that their sum is its time."""

    def __init__(self) -> None:
        self._costs: list[Cost] = []
        self._last = 0.0

    @contextmanager
    def running(self) -> Iterator[Cost]:
        """Count a shard among those in flight; what it gives is whole once the block is done."""
        cost = Cost()
        self._settle()
        self._costs.append(cost)
        try:
            yield cost
        finally:
            self._settle()
            self._costs.remove(cost)

    def _settle(self) -> None:
        now = time.monotonic()
        for cost in self._costs:
            cost.seconds += (now - self._last) / len(self._costs)
        self._last = now
