"""Whose turn it is in an engine, how much waits for it, and what each shard in flight costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass


class Gate:
    """Lets shards in together, as long as there is room for another example; or one alone.

    What counts is the examples that wait for an answer, not the shards that wait for their slowest
    one: else the engine idles while a few long answers hold the places of all that are done.
    """

    def __init__(self, room: int) -> None:
        """Make room for so many examples; the shard that takes the last place comes in whole."""
        self._n_free = room
        self._freed = asyncio.Event()
        self._queue = asyncio.Lock()  # first come, first served
        self._changed = asyncio.Condition()
        self._n_inside = 0
        self._alone = False

    @asynccontextmanager
    async def shared(self, n_examples: int) -> AsyncIterator[Callable[[], None]]:
        """Be inside with others.

        Yields:
            What gives one example's place to others, to be called when it is answered; those that
            are left are given back at the end.
        """
        async with self._queue:
            while self._n_free <= 0:
                self._freed.clear()
                await self._freed.wait()
            self._n_free -= n_examples
        n_held = n_examples

        def leave() -> None:
            nonlocal n_held
            n_held -= 1
            self._free(1)

        try:
            async with self._with_others():
                yield leave
        finally:
            self._free(n_held)

    def _free(self, n_examples: int) -> None:
        self._n_free += n_examples
        if self._n_free > 0:
            self._freed.set()

    @asynccontextmanager
    async def _with_others(self) -> AsyncIterator[None]:
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
