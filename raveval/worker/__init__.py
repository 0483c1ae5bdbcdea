"""A replica: one loaded engine that answers or grades, scores and commits shards; without Ray.

What a shard goes through stands in `desk`. A replica serves one run, or several: a judge that
grades the answers of many checkpoints is loaded once. One whose engine is unlike the others' is
refused (`canary`). An engine that hangs is ended like one that died (`watch`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import tempfile
import threading
import time
import traceback
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from raveval import registry
from raveval.engines import Capability, Engine, EngineDied
from raveval.errors import (
    MismatchError,
    ModelError,
    RavevalError,
    ResourceError,
    RunError,
    StoreError,
)
from raveval.evaluate import Stage, TaskSpec, load_protocol
from raveval.fingerprint import first_difference
from raveval.store import RunDirectory
from raveval.types import ModelRef, Shard
from raveval.worker import canary
from raveval.worker.desk import Desk, Done, RunPart
from raveval.worker.notes import Notes, last_words
from raveval.worker.turns import Gate, SharedClock
from raveval.worker.watch import Patience, Watched

__all__ = ["RunPart", "ShardWorker", "WorkerSpec"]

_Outcome = dict[str, list[Any]]
_SECONDS_BETWEEN_LOOKS = 2.0
_SECONDS_FOR_LAST_WORDS = 30.0
_NOTHING = Done(n_examples=0, n_missing=0, n_tokens=0)


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """All that a replica is made of.

    Attributes:
        runs: the runs whose shards it is given.
        stage: whether `model` answers, or grades what another one answered.
        patience: how long the engine may answer nothing before it is taken to hang.
    """

    runs: tuple[RunPart, ...]
    engine: str
    options: Any
    model: ModelRef
    patience: Patience
    stage: Stage = Stage.ANSWER


class ShardWorker:
    """A replica: one loaded engine that answers and commits several shards at once."""

    def __init__(
        self,
        spec: WorkerSpec,
        *,
        replica: str | None = None,
        n_replicas: int = 1,
        examples_in_flight: int = 256,
    ) -> None:
        """Load the model.

        Where it cannot be loaded, but other replicas work or may come to, this does not return:
        what is not constructed is given no shards, and ends with the run.

        Args:
            spec: what the replica is made of.
            replica: a name that stays when the replica's process is replaced.
            n_replicas: how many there are to be.
            examples_in_flight: how many examples wait for an answer before another shard's are
                asked.
        """
        self._spec = spec
        self._examples_in_flight = examples_in_flight
        self._refusal: _Outcome | None = None
        self._notes = Notes(spec.runs, stage=spec.stage, replica=replica or uuid.uuid4().hex)
        try:
            self._load()
        except Exception as exc:  # noqa: BLE001 - told by the first call
            where = self._step_aside(exc, n_replicas)
            self._refusal = _outcome(error=_words(exc, where), error_kind=type(exc).__name__)

    def _load(self) -> None:
        spec, started = self._spec, time.monotonic()
        self._check_visible()
        self._notes.begin()
        engine = Watched(self._start(), spec.patience)
        report = {
            "loaded": engine.describe(),
            "canary": canary.ask(engine),
            "load_seconds": time.monotonic() - started,
            **self._notes.about,
        }
        self._notes.loaded(report)
        # Only now: of replicas that start at the same time the later ones see the others.
        self._check_alike(report)
        gate, clock = Gate(self._examples_in_flight), SharedClock()
        self._desks = [
            Desk(run, spec.stage, engine, gate, clock, on_answer=self._notes.answered)
            for run in spec.runs
        ]

    def _step_aside(self, exc: Exception, n_replicas: int) -> str:
        """Note why this replica cannot take part, and wait while others may do its work.

        One whose numbers would be unlike the others' is a fault that ends the run; so is one that
        worked before, because nobody else is given the shards that it was at work on.

        Returns:
            What to say before the reason, where nobody takes part.
        """
        if not self._notes.have_begun or isinstance(exc, MismatchError):
            return ""
        traceback.clear_frames(exc.__traceback__)  # what was loaded so far goes with them
        with contextlib.suppress(OSError, StoreError):  # then the first call tells it at once
            self._notes.cannot_start(exc)
            while not self._notes.is_replacement and self._notes.others_may_work(n_replicas):
                time.sleep(_SECONDS_BETWEEN_LOOKS)
                self._end_with_the_run()
            if n_replicas > 1 and not self._notes.is_replacement:
                node = self._notes.about["node"]
                return f"none of the {n_replicas} replicas can start; this one, on {node}: "
        return ""

    def _end_with_the_run(self) -> None:
        """End the process of a replica that waits for a run that is over, or another driver's.

        Raises:
            SystemExit: which Ray takes for an end that is meant, and reports to nobody.
        """
        if not all(RunDirectory(run.directory).is_session(run.session) for run in self._spec.runs):
            raise SystemExit

    def _check_visible(self) -> None:
        """Refuse a node on which the run directory is not the driver's.

        Raises:
            RunError: it is not.
        """
        for run in self._spec.runs:
            if not RunDirectory(run.directory).is_session(run.session):
                raise RunError(
                    f"node {socket.gethostname()} does not see the run directory {run.directory} "
                    "of its driver; put run.output on storage that all nodes share, a file system "
                    "or an object store"
                )

    def _start(self) -> Engine:
        """Load the model, or say why this replica cannot take part."""
        spec = self._spec
        first = spec.runs[0]
        reports = RunDirectory(first.directory).worker_reports(first.session)
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
        for run in self._spec.runs:
            for name, task in run.tasks.items():
                lacking = self._needs(task) - engine.capabilities
                if lacking:
                    raise ModelError(
                        f"task {name!r} needs an engine that can {min(lacking)}; "
                        f"{self._spec.engine} with these options cannot"
                    )
            expected = run.loaded or (reports[0]["loaded"] if reports else None)
            difference = first_difference(expected, engine.describe()) if expected else None
            if difference is not None:
                raise _unlike(run, *difference)
        return engine

    def _check_alike(self, report: Mapping[str, Any]) -> None:
        """Refuse an engine that answers otherwise than those of the other replicas do."""
        first = self._spec.runs[0]
        for other in RunDirectory(first.directory).worker_reports(first.session):
            difference = first_difference(other["loaded"], report["loaded"])
            if difference is not None:
                raise _unlike(first, *difference)
            words = canary.disagreement(
                report["canary"], other["canary"], dtype=report["loaded"].get("dtype")
            )
            if words is not None:
                raise MismatchError(
                    f"{first.directory}: this replica ({report['node']}, process "
                    f"{report['process']}) is unlike the one on {other['node']}, process "
                    f"{other['process']}: {words}. Do all nodes see the same checkpoint, and the "
                    "same versions of what reads it?"
                )

    def _needs(self, task: TaskSpec) -> frozenset[Capability]:
        if self._spec.stage is Stage.GRADE:
            return frozenset({Capability.GENERATE})
        return load_protocol(task.protocol).NEEDS

    async def __call__(self, batch: dict[str, Any]) -> AsyncIterator[_Outcome]:
        """Answer or grade, score and commit the shard that the batch's only row describes.

        What goes wrong is yielded as words: raised, Ray would bury them in a hundred lines, and in
        a constructor take them for a death and start anew.
        """
        shard = Shard(
            str(batch["task"][0]), *(int(batch[key][0]) for key in ("index", "start", "stop"))
        )
        if self._refusal is not None:
            yield self._refusal
            return
        try:
            done = await self._desks[int(batch["run"][0])].finish(shard)
        except EngineDied as exc:
            self._die(exc)
        except Exception as exc:  # noqa: BLE001 - the driver raises it
            where = f"task {shard.task!r}, shard {shard.index}: "
            yield _outcome(error=_words(exc, where), error_kind=type(exc).__name__)
            return
        yield _outcome(done)

    def _die(self, exc: EngineDied) -> NoReturn:
        """Leave the engine's last words, and end the process.

        Ray replaces a dead process; a live one with a dead engine would be given more work.
        """
        words = last_words(exc)

        def leave() -> None:
            with contextlib.suppress(Exception):  # whatever the storage does, this process ends
                for desk in self._desks:
                    desk.leave_words(words)
                self._notes.died(words, [desk.work() for desk in self._desks])

        thread = threading.Thread(target=leave, daemon=True)
        thread.start()
        thread.join(_SECONDS_FOR_LAST_WORDS)
        os._exit(1)


def _unlike(run: RunPart, key: str, old: object, new: object) -> MismatchError:
    return MismatchError(
        f"{run.directory}: the replies that are there were made with {key} {old!r}, this replica "
        f"({socket.gethostname()}) has {new!r}. Choose another output, or replicas that are alike"
    )


def _outcome(done: Done = _NOTHING, *, error: str = "", error_kind: str = "") -> _Outcome:
    """Return the row that tells the driver of a shard."""
    return {
        "n_examples": [done.n_examples],
        "n_missing": [done.n_missing],
        "n_tokens": [done.n_tokens],
        "error": [error],
        "error_kind": [error_kind],
    }


def _words(exc: Exception, where: str) -> str:
    """Return an error of ours or of the system as it stands, another one with its traceback."""
    if isinstance(exc, RavevalError):
        return f"{where}{exc}"
    if isinstance(exc, OSError):
        said = f"{where}{type(exc).__name__}: {exc}"
        if exc.errno == errno.ENOSPC and exc.filename is None:  # it may be either disk
            node = socket.gethostname()
            said += f". On node {node} make room for run.output, or in {tempfile.gettempdir()}"
        return said
    return where + "".join(traceback.format_exception(exc))
