"""Whose turn it is in an engine, and how much waits for it."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

from raveval.worker.turns import Gate


def run(scene: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scene, timeout=10))


async def settled() -> None:
    """Let everything go on that can."""
    for _ in range(10):
        await asyncio.sleep(0)


class Visitor:
    """A shard that goes in as soon as it may, and stays until it is told to go."""

    def __init__(self, gate: Gate, n_examples: int | None) -> None:
        self.is_inside = False
        self.leave: Callable[[], None] | None = None
        self._may_go = asyncio.Event()
        self.visit = asyncio.ensure_future(self._visit(gate, n_examples))

    async def _visit(self, gate: Gate, n_examples: int | None) -> None:
        async with AsyncExitStack() as stack:
            if n_examples is None:
                await stack.enter_async_context(gate.exclusive())
            else:
                self.leave = await stack.enter_async_context(gate.shared(n_examples))
            self.is_inside = True
            await self._may_go.wait()
        self.is_inside = False

    async def go(self) -> None:
        self._may_go.set()
        await self.visit


def test_shards_come_in_while_there_is_room_for_another_example() -> None:
    async def scene() -> None:
        gate = Gate(5)
        visitors = [Visitor(gate, 3) for _ in range(4)]
        await settled()
        assert [v.is_inside for v in visitors] == [True, True, False, False]
        leave = visitors[0].leave
        assert leave is not None
        leave()  # five wait: no room
        await settled()
        assert not visitors[2].is_inside
        leave()  # four wait
        await settled()
        assert [v.is_inside for v in visitors] == [True, True, True, False], "in their order"
        for visitor in visitors:
            await visitor.go()
        last = [Visitor(gate, 3) for _ in range(3)]
        await settled()
        assert [v.is_inside for v in last] == [True, True, False], "all places were given back"
        for visitor in last:
            await visitor.go()

    run(scene())


def test_what_is_cancelled_gives_its_places_back() -> None:
    async def scene() -> None:
        gate = Gate(2)
        inside, waiting, later = (Visitor(gate, 2) for _ in range(3))
        await settled()
        waiting.visit.cancel()
        inside.visit.cancel()
        await settled()
        assert later.is_inside
        await later.go()

    run(scene())


def test_one_that_is_alone_waits_for_those_inside_and_keeps_others_out() -> None:
    async def scene() -> None:
        gate = Gate(100)
        first = Visitor(gate, 1)
        await settled()
        alone = Visitor(gate, None)
        await settled()
        later = Visitor(gate, 1)
        await settled()
        assert (first.is_inside, alone.is_inside, later.is_inside) == (True, False, False)
        await first.go()
        await settled()
        assert (alone.is_inside, later.is_inside) == (True, False)
        await alone.go()
        await settled()
        assert later.is_inside
        await later.go()

    run(scene())
