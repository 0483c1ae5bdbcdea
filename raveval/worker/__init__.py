"""A replica: one loaded engine that answers or grades, scores and commits shards; without Ray.

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
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from raveval import registry
from raveval.engines import Capability, Engine, EngineDied
from raveval.errors import MismatchError, ModelError, RavevalError, ResourceError, RunError
from raveval.evaluate import (
    Stage,
    TaskSpec,
    answer_examples,
    grade_examples,
    load_protocol,
    read_replies,
    replies_table,
    usage_of,
)
from raveval.fingerprint import first_difference
from raveval.scoring import score_shard, stored, verdicts_fingerprint
from raveval.store import Attempt, Receipt, Replies, RunDirectory
from raveval.types import Answers, Example, Failure, ModelRef, Shard, Status
from raveval.worker.turns import Gate, SharedClock
from raveval.worker.watch import Watched

_AskSome = Callable[[Sequence[Example]], Awaitable[list[Answers]]]
_Outcome = dict[str, list[Any]]
_DEATHS_BEFORE_ISOLATION = 2
_DEATHS_BEFORE_QUARANTINE = 2


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """All that a replica is made of.

    Attributes:
        session: the driver's pass that this replica belongs to.
        stage: whether `model` answers, or grades what another one answered.
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
    stage: Stage = Stage.ANSWER


class ShardWorker:
    """A replica: one loaded engine that answers and commits several shards at once."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._directory = RunDirectory(spec.directory)
        self._gate = Gate()
        self._clock = SharedClock()
        self._refusal: Exception | None = None
        started = time.monotonic()
        try:
            self._engine = Watched(self._start(), spec.deadline_seconds)
            self._directory.report_worker(
                spec.session,
                {
                    "loaded": self._engine.describe(),
                    "load_seconds": time.monotonic() - started,
                    "stage": str(spec.stage),
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
            lacking = self._needs(task) - engine.capabilities
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

    def _needs(self, task: TaskSpec) -> frozenset[Capability]:
        if self._spec.stage is Stage.GRADE:
            return frozenset({Capability.GENERATE})
        return load_protocol(task.protocol).NEEDS

    async def __call__(self, batch: dict[str, Any]) -> AsyncIterator[_Outcome]:
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
            outcome = await self._finish(shard)
        except EngineDied:
            # Ray replaces a dead process; a live one with a dead engine would be given more work.
            os._exit(1)
        except Exception as exc:  # noqa: BLE001 - the driver raises it
            where = "" if self._refusal else f"task {shard.task!r}, shard {shard.index}: "
            yield _outcome(error=_words(exc, where), error_kind=type(exc).__name__)
            return
        yield outcome

    async def _finish(self, shard: Shard) -> _Outcome:
        """Do what this replica's stage has to do for a shard, unless it is done already."""
        task = self._spec.tasks[shard.task]
        done = self._directory.finished(shard, score_fingerprint=task.score_fingerprint)
        if done is not None:
            return _scored(done)  # committed by a process that died before Ray heard of it
        self._check_session()
        examples = self._directory.read_examples(shard.task, shard.start, shard.stop)
        replies, verdicts = stored(self._directory, shard, task)
        if replies is None:
            replies = await self._answered(shard, task, examples)
        if task.is_graded:
            if self._spec.stage is Stage.ANSWER:
                return _answered(read_replies(replies.table, examples))
            if verdicts is None:
                verdicts = await self._graded(shard, task, examples, replies)
        receipt = await asyncio.to_thread(
            score_shard, self._directory, shard, task, replies, verdicts
        )
        return _scored(receipt)

    async def _answered(self, shard: Shard, task: TaskSpec, examples: Sequence[Example]) -> Replies:
        """Have the candidate answer a shard, and commit that.

        Raises:
            RunError: this replica holds the judge, and what it should grade is gone.
        """
        if self._spec.stage is not Stage.ANSWER:
            raise RunError("its replies are gone; run the same command again")

        async def ask(some: Sequence[Example]) -> list[Answers]:
            return await answer_examples(some, self._engine, task)

        return await self._made(shard, task.reply_fingerprint, examples, ask)

    async def _graded(
        self, shard: Shard, task: TaskSpec, examples: Sequence[Example], replies: Replies
    ) -> Replies:
        """Have the judge grade a shard's replies, and commit that."""
        given = read_replies(replies.table, examples)
        answers = {example.id: each for example, each in zip(examples, given, strict=True)}

        async def ask(some: Sequence[Example]) -> list[Answers]:
            return await grade_examples(some, [answers[e.id] for e in some], self._engine, task)

        return await self._made(shard, verdicts_fingerprint(task, replies), examples, ask)

    async def _made(
        self, shard: Shard, fingerprint: str, examples: Sequence[Example], ask: _AskSome
    ) -> Replies:
        """Question the engine about a shard, and commit what it says."""
        with self._clock.running() as cost:
            answers = await self._answers(shard, examples, ask)
        made = Replies(
            table=replies_table(examples, answers),
            fingerprint=fingerprint,
            engine=self._engine.describe(),
            engine_seconds=cost.seconds,
        )
        self._check_session()
        self._directory.commit_replies(shard, made, stage=self._spec.stage)
        return made

    async def _answers(
        self, shard: Shard, examples: Sequence[Example], ask: _AskSome
    ) -> list[Answers]:
        """Ask all at once; a shard whose process died before is asked alone, one by one."""
        attempt = self._directory.begin(shard, session=self._spec.session)
        if attempt.n_deaths < _DEATHS_BEFORE_ISOLATION:
            async with self._gate.shared():
                return await self._engine.unless_it_hangs(ask(examples))
        async with self._gate.exclusive():
            answers: list[Answers] = []
            for example in examples:
                answers += await self._ask_alone(shard, example, attempt, ask)
            return answers

    async def _ask_alone(
        self, shard: Shard, example: Example, attempt: Attempt, ask: _AskSome
    ) -> list[Answers]:
        n_deaths = attempt.example_deaths.get(example.id, 0)
        if n_deaths >= _DEATHS_BEFORE_QUARANTINE:
            message = f"the engine's process died {n_deaths} times with this example alone in it"
            return [(Failure(Status.QUARANTINED, message),)]
        self._directory.note(shard, replace(attempt, in_flight=example.id))
        answers = await self._engine.unless_it_hangs(ask([example]))
        self._directory.note(shard, attempt)
        return answers

    def _check_session(self) -> None:
        """End a replica whose driver is gone: another one may hold the directory now."""
        if not self._directory.is_session(self._spec.session):
            os._exit(1)


def _scored(receipt: Receipt) -> _Outcome:
    """Return what the driver hears of a shard that is done."""
    states = receipt.states
    n_scored = sum(n for s, n in states.by_status.items() if Status(s).is_scored)
    usage = states.judge_usage or states.usage
    return _outcome(
        n_examples=states.n_rows,
        n_missing=states.n_rows - n_scored,
        n_tokens=usage.n_prompt_tokens + usage.n_output_tokens,
    )


def _answered(answers: Sequence[Answers]) -> _Outcome:
    """Return what the driver hears of a shard that waits for the judge."""
    usage = usage_of(answers)
    return _outcome(
        n_examples=len(answers),
        n_missing=sum(any(isinstance(r, Failure) for r in each) for each in answers),
        n_tokens=usage.n_prompt_tokens + usage.n_output_tokens,
    )


def _outcome(
    *,
    n_examples: int = 0,
    n_missing: int = 0,
    n_tokens: int = 0,
    error: str = "",
    error_kind: str = "",
) -> _Outcome:
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
