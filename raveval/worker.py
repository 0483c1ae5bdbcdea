"""A replica: one loaded engine that answers, scores and commits shards. It does not know of Ray.

A shard whose process died while its driver lived is taken up again; after two deaths it is asked
example by example with nothing else in the engine, and an example that was alone in the engine at
two deaths is quarantined: one poisonous row costs itself, not the run.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
import traceback
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from raveval import registry
from raveval.engines import EngineDied
from raveval.errors import RavevalError
from raveval.evaluate import TaskSpec, answer_examples, replies_table
from raveval.scoring import score_shard
from raveval.store import Attempt, Receipt, Replies, RunDirectory
from raveval.types import Answers, Example, Failure, ModelRef, Shard, Status

_DEATHS_BEFORE_ISOLATION = 2
_DEATHS_BEFORE_QUARANTINE = 2


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """All that a replica is made of."""

    directory: str
    session: str
    engine: str
    options: Any
    model: ModelRef
    tasks: Mapping[str, TaskSpec]
    deadline_seconds: float


class ShardWorker:
    """A replica: one loaded engine that answers and commits several shards at once."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._directory = RunDirectory(spec.directory)
        self._gate = _Gate()
        self._clock = _SharedClock()
        started = time.monotonic()
        try:
            self._engine = registry.load("engines", spec.engine).start(spec.model, spec.options)
        except Exception as exc:
            known = isinstance(exc, RavevalError)
            self._directory.report_worker(
                spec.session,
                {
                    "kind": type(exc).__name__ if known else "RunError",
                    "error": str(exc) if known else "".join(traceback.format_exception(exc)),
                    "node": socket.gethostname(),
                },
            )
            raise
        self._directory.report_worker(
            spec.session,
            {
                "loaded": self._engine.describe(),
                "load_seconds": time.monotonic() - started,
                "node": socket.gethostname(),
                "process": os.getpid(),
            },
        )

    async def __call__(self, batch: dict[str, Any]) -> AsyncIterator[dict[str, list[int]]]:
        """Answer, score and commit the shard that the batch's only row describes."""
        shard = Shard(
            str(batch["task"][0]), *(int(batch[key][0]) for key in ("index", "start", "stop"))
        )
        try:
            receipt = await self._finish(shard)
        except EngineDied:
            # Ray replaces a dead process; a live one with a dead engine would be given more work.
            os._exit(1)
        states = receipt.states
        n_scored = sum(n for s, n in states.by_status.items() if Status(s).is_scored)
        yield {
            "n_examples": [states.n_rows],
            "n_missing": [states.n_rows - n_scored],
            "n_tokens": [states.usage.n_prompt_tokens + states.usage.n_output_tokens],
        }

    async def _finish(self, shard: Shard) -> Receipt:
        task = self._spec.tasks[shard.task]
        done = self._directory.read_receipt(shard)
        if done is not None and done.score_fingerprint == task.score_fingerprint:
            return done  # committed by a process that died before Ray heard of it
        examples = self._directory.read_examples(shard.task, shard.start, shard.stop)
        replies = self._directory.read_replies(shard, fingerprint=task.reply_fingerprint)
        if replies is None:
            with self._clock.running() as cost:
                answers = await self._answers(shard, task, examples)
            replies = Replies(
                table=replies_table(examples, answers),
                fingerprint=task.reply_fingerprint,
                engine=self._engine.describe(),
                engine_seconds=cost.seconds,
            )
            self._directory.commit_replies(shard, replies)
        return await asyncio.to_thread(score_shard, self._directory, shard, task, replies)

    async def _answers(
        self, shard: Shard, task: TaskSpec, examples: Sequence[Example]
    ) -> list[Answers]:
        """Ask all at once; a shard whose process died before is asked alone, one by one."""
        attempt = self._directory.begin(shard, session=self._spec.session)
        if attempt.n_deaths < _DEATHS_BEFORE_ISOLATION:
            async with self._gate.shared():
                return await self._ask(task, examples)
        async with self._gate.exclusive():
            answers: list[Answers] = []
            for example in examples:
                answers += await self._ask_alone(shard, task, example, attempt)
            return answers

    async def _ask_alone(
        self, shard: Shard, task: TaskSpec, example: Example, attempt: Attempt
    ) -> list[Answers]:
        n_deaths = attempt.example_deaths.get(example.id, 0)
        if n_deaths >= _DEATHS_BEFORE_QUARANTINE:
            message = f"the engine's process died {n_deaths} times with this example alone in it"
            return [(Failure(Status.QUARANTINED, message),)]
        self._directory.note(shard, replace(attempt, in_flight=example.id))
        answers = await self._ask(task, [example])
        self._directory.note(shard, attempt)
        return answers

    async def _ask(self, task: TaskSpec, examples: Sequence[Example]) -> list[Answers]:
        return await answer_examples(
            examples, self._engine, task, deadline_seconds=self._spec.deadline_seconds
        )


class _Gate:
    """Lets shards in together, or one alone."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._n_inside = 0
        self._alone = False

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
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


@dataclass(slots=True)
class _Cost:
    seconds: float = 0.0


class _SharedClock:
    """Splits a replica's time evenly among the shards in flight, so that their sum is its time."""

    def __init__(self) -> None:
        self._costs: list[_Cost] = []
        self._last = 0.0

    @contextmanager
    def running(self) -> Iterator[_Cost]:
        cost = _Cost()
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
