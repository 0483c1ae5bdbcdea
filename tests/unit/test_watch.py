"""An engine that hangs is told from one that has much to do."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from raveval.engines import Capability, EngineDied
from raveval.types import (
    Completion,
    Generate,
    Message,
    Reply,
    Request,
    Sampling,
    ScoreChoices,
    ScoreDocument,
)
from raveval.worker.watch import Patience, Watched, tokens_asked

PATIENCE = Patience(seconds=100.0, tokens_per_second=2.0)
SHORT = Generate("short", "", Sampling(max_output_tokens=20))
LONG = Generate("long", "", Sampling(max_output_tokens=30_000))
ANSWER = Completion("a", "stop", 1, 1)


class Slow:
    """An engine that answers a request when it is told to."""

    capabilities = frozenset(Capability)

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[Reply]] = {}

    async def reply(self, request: Request) -> Reply:
        self._waiting[request.key] = asyncio.get_running_loop().create_future()
        return await self._waiting[request.key]

    def answer(self, request: Request) -> None:
        self._waiting[request.key].set_result(ANSWER)

    def describe(self) -> dict[str, str | int | None]:
        return {}

    async def close(self) -> None:
        return


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    now = 0.0

    def monotonic() -> float:
        return now

    def to(seconds: float) -> None:
        nonlocal now
        now = seconds

    monkeypatch.setattr("raveval.worker.watch.time.monotonic", monotonic)
    return to


async def asked(watched: Watched, *requests: Request) -> list[asyncio.Task[Any]]:
    """Ask for replies, and return once the engine has heard of all."""
    tasks = [asyncio.ensure_future(watched.reply(request)) for request in requests]
    await asyncio.sleep(0)
    return tasks


@pytest.mark.parametrize(("request_", "allowed"), [(SHORT, 110.0), (LONG, 15_100.0)])
def test_the_silence_that_is_allowed_grows_with_the_output_asked_for(
    clock: Callable[[float], None], request_: Request, allowed: float
) -> None:
    async def scene() -> None:
        watched = Watched(Slow(), PATIENCE)
        await asked(watched, request_)
        clock(allowed - 1.0)
        assert watched.check() == pytest.approx(1.01)
        clock(allowed)
        with pytest.raises(EngineDied, match=rf"no reply for {allowed:.0f} s, more than run\."):
            watched.check()

    asyncio.run(scene())


def test_a_document_of_half_a_million_tokens_may_take_hours(
    clock: Callable[[float], None],
) -> None:
    async def scene() -> None:
        watched = Watched(Slow(), Patience(1800.0, 2.0))
        await asked(watched, ScoreDocument("d", "word" * 500_000))
        clock(6 * 3600.0)
        watched.check()
        clock(8 * 3600.0)
        with pytest.raises(EngineDied):
            watched.check()

    asyncio.run(scene())


def test_the_longest_request_under_way_counts_and_no_other(clock: Callable[[float], None]) -> None:
    async def scene() -> None:
        engine = Slow()
        watched = Watched(engine, PATIENCE)
        _, long, _ = await asked(watched, SHORT, LONG, Generate("last", "", SHORT.sampling))
        clock(14_000.0)
        # Looking again comes in time for what is left once the long one is answered.
        assert watched.check() == pytest.approx(100.01)
        engine.answer(LONG)
        await long
        clock(14_109.0)
        assert watched.check() == pytest.approx(1.01)
        clock(14_110.0)
        with pytest.raises(EngineDied, match=r"no reply for 110 s.* 20 tokens of the longest"):
            watched.check()

    asyncio.run(scene())


def test_time_without_a_question_is_no_silence(clock: Callable[[float], None]) -> None:
    async def scene() -> None:
        engine = Slow()
        watched = Watched(engine, PATIENCE)
        clock(1e6)
        watched.check()
        (only,) = await asked(watched, SHORT)
        watched.check()
        engine.answer(SHORT)
        await only
        clock(2e6)
        watched.check()

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("request_", "n_tokens"),
    [
        (Generate("k", "x" * 80, Sampling(7)), 7 + 2),
        (Generate("k", (Message("system", "x" * 40), Message("user", "y" * 40)), Sampling(7)), 9),
        (ScoreChoices("k", "x" * 40, ("a" * 20, "b" * 60)), 2 * 1 + 2),
        (ScoreChoices("k", "x" * 40, ("a" * 20, "b" * 60), "z" * 80), 2 * (1 + 2) + 2 * 2),
        (ScoreDocument("k", "x" * 400), 10),
    ],
)
def test_what_is_asked_is_known_before_anything_is_encoded(
    request_: Request, n_tokens: float
) -> None:
    assert tokens_asked(request_) == n_tokens
