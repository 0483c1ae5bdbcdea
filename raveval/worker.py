"""A replica: one loaded engine that answers, scores and commits shards. It does not know of Ray.

A shard whose process died while its driver lived is taken up again; after two deaths it is asked
example by example with nothing else in the engine, and an example that was alone in the engine at
two deaths is quarantined: one poisonous row costs itself, not the run. An engine that hangs is
ended like one that died.
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
from raveval.engines import Engine, EngineDied
from raveval.errors import MismatchError, ModelError, RavevalError, ResourceError, RunError
from raveval.evaluate import TaskSpec, answer_examples, load_protocol, replies_table
from raveval.fingerprint import first_difference
from raveval.scoring import score_shard
from raveval.store import Attempt, Receipt, Replies, RunDirectory
from raveval.types import Answers, Example, Failure, ModelRef, Reply, Request, Shard, Status

_DEATHS_BEFORE_ISOLATION = 2
_DEATHS_BEFORE_QUARANTINE = 2


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """All that a replica is made of.

    Attributes:
        session: the driver that this replica belongs to.
        deadline_seconds: an engine that answers nothing for so long is taken to hang.
        loaded: what the replies that are there already were made by; another engine is refused.
    """

    directory: str
    session: str
    engine: str
    options: Any
    model: ModelRef
    tasks: Mapping[str, TaskSpec]
    deadline_seconds: float
    loaded: Mapping[str, Any] | None


class ShardWorker:
    """A replica: one loaded engine that answers and commits several shards at once."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._directory = RunDirectory(spec.directory)
        self._gate = _Gate()
        self._clock = _SharedClock()
        self._refusal: Exception | None = None
        started = time.monotonic()
        try:
            self._engine = _Watched(self._start(), spec.deadline_seconds)
            self._directory.report_worker(
                spec.session,
                {
                    "loaded": self._engine.describe(),
                    "load_seconds": time.monotonic() - started,
                    "node": socket.gethostname(),
                    "process": os.getpid(),
                },
            )
        except Exception as exc:  # noqa: BLE001 - told by the first call
            self._refusal = exc

    def _start(self) -> Engine:
        """Load the model, or say why this replica cannot take part."""
        spec = self._spec
        if not self._directory.is_session(spec.session):
            raise RunError(
                f"node {socket.gethostname()} does not see the run directory {spec.directory} of "
                "its driver; put run.output on storage that all nodes share"
            )
        reports = self._directory.worker_reports(spec.session)
        module = registry.load("engines", spec.engine)
        for pause in (10.0, 30.0) if reports else ():
            # Another replica has loaded it: what a dead process held may not be free yet.
            try:
                return self._checked(module.start(spec.model, spec.options), reports)
            except (ResourceError, RunError):
                time.sleep(pause)
        return self._checked(module.start(spec.model, spec.options), reports)

    def _checked(self, engine: Engine, reports: Sequence[Mapping[str, Any]]) -> Engine:
        """Refuse an engine that cannot do what a task needs, or that is not what others are."""
        for name, task in self._spec.tasks.items():
            lacking = load_protocol(task.protocol).NEEDS - engine.capabilities
            if lacking:
                raise ModelError(
                    f"task {name!r} needs an engine that can {min(lacking)}; "
                    f"{self._spec.engine} with these options cannot"
                )
        expected = self._spec.loaded or (reports[0]["loaded"] if reports else None)
        difference = first_difference(expected, engine.describe()) if expected else None
        if difference is not None:
            key, old, new = difference
            raise MismatchError(
                f"{self._spec.directory}: the replies that are there were made with {key} {old!r}, "
                f"this replica ({socket.gethostname()}) has {new!r}. Choose another output, or "
                "replicas that are alike"
            )
        return engine

    async def __call__(self, batch: dict[str, Any]) -> AsyncIterator[dict[str, list[Any]]]:
        """Answer, score and commit the shard that the batch's only row describes.

        What goes wrong is yielded as words: raised, Ray would bury them in a hundred lines, and in
        a constructor take them for a death and start anew.
        """
        shard = Shard(
            str(batch["task"][0]), *(int(batch[key][0]) for key in ("index", "start", "stop"))
        )
        try:
            if self._refusal is not None:
                raise self._refusal
            receipt = await self._finish(shard)
        except EngineDied:
            # Ray replaces a dead process; a live one with a dead engine would be given more work.
            os._exit(1)
        except Exception as exc:  # noqa: BLE001 - the driver raises it
            where = "" if self._refusal else f"task {shard.task!r}, shard {shard.index}: "
            yield _outcome(error=_words(exc, where), error_kind=type(exc).__name__)
            return
        states = receipt.states
        n_scored = sum(n for s, n in states.by_status.items() if Status(s).is_scored)
        yield _outcome(
            n_examples=states.n_rows,
            n_missing=states.n_rows - n_scored,
            n_tokens=states.usage.n_prompt_tokens + states.usage.n_output_tokens,
        )

    async def _finish(self, shard: Shard) -> Receipt:
        task = self._spec.tasks[shard.task]
        done = self._directory.finished(shard, score_fingerprint=task.score_fingerprint)
        if done is not None:
            return done  # committed by a process that died before Ray heard of it
        self._check_session()
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
            self._check_session()
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
        answering = asyncio.ensure_future(answer_examples(examples, self._engine, task))
        try:
            while not answering.done():
                await asyncio.wait((answering,), timeout=self._engine.check())
            return answering.result()
        finally:
            answering.cancel()

    def _check_session(self) -> None:
        """End a replica whose driver is gone: another one may hold the directory now."""
        if not self._directory.is_session(self._spec.session):
            os._exit(1)


def _outcome(
    *,
    n_examples: int = 0,
    n_missing: int = 0,
    n_tokens: int = 0,
    error: str = "",
    error_kind: str = "",
) -> dict[str, list[Any]]:
    """Return the row that tells the driver of a shard."""
    return {
        "n_examples": [n_examples],
        "n_missing": [n_missing],
        "n_tokens": [n_tokens],
        "error": [error],
        "error_kind": [error_kind],
    }


def _words(exc: Exception, where: str) -> str:
    """Return an error of ours or of the system as it stands, another one with its traceback."""
    if isinstance(exc, RavevalError):
        return f"{where}{exc}"
    if isinstance(exc, OSError):
        return f"{where}{type(exc).__name__}: {exc}"
    return where + "".join(traceback.format_exception(exc))


class _Watched:
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


@dataclass(slots=True, eq=False)  # two of the same cost are still two
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
