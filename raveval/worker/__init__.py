"""A replica: one loaded engine that answers or grades, scores and commits shards; without Ray.

What a shard goes through stands in `desk`. A replica serves one run, or several: a judge that
grades the answers of many checkpoints is loaded once. One whose engine is unlike the others' is
refused (`canary`). An engine that hangs is ended like one that died (`watch`).
"""

from __future__ import annotations

import os
import socket
import time
import traceback
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raveval import registry
from raveval.engines import Capability, Engine, EngineDied
from raveval.errors import MismatchError, ModelError, RavevalError, ResourceError, RunError
from raveval.evaluate import Stage, TaskSpec, load_protocol
from raveval.fingerprint import first_difference
from raveval.store import RunDirectory
from raveval.types import ModelRef, Shard
from raveval.worker import canary
from raveval.worker.desk import Desk, Done, RunPart
from raveval.worker.turns import Gate, SharedClock
from raveval.worker.watch import Patience, Watched

__all__ = ["RunPart", "ShardWorker", "WorkerSpec"]

_Outcome = dict[str, list[Any]]
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

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._refusal: Exception | None = None
        started = time.monotonic()
        try:
            engine = Watched(self._start(), spec.patience)
            report = {
                "loaded": engine.describe(),
                "canary": canary.ask(engine),
                "load_seconds": time.monotonic() - started,
                "stage": str(spec.stage),
                "node": socket.gethostname(),
                "process": os.getpid(),
            }
            for run in spec.runs:
                RunDirectory(run.directory).report_worker(run.session, report)
            # Only now: of replicas that start at the same time the later ones see the others.
            self._check_alike(report)
            gate, clock = Gate(), SharedClock()
            self._desks = [Desk(run, spec.stage, engine, gate, clock) for run in spec.runs]
        except Exception as exc:  # noqa: BLE001 - told by the first call
            self._refusal = exc

    def _start(self) -> Engine:
        """Load the model, or say why this replica cannot take part."""
        spec = self._spec
        for run in spec.runs:
            if not RunDirectory(run.directory).is_session(run.session):
                raise RunError(
                    f"node {socket.gethostname()} does not see the run directory {run.directory} "
                    "of its driver; put run.output on storage that all nodes share, a file system "
                    "or an object store"
                )
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
        try:
            if self._refusal is not None:
                raise self._refusal
            done = await self._desks[int(batch["run"][0])].finish(shard)
        except EngineDied:
            # Ray replaces a dead process; a live one with a dead engine would be given more work.
            os._exit(1)
        except Exception as exc:  # noqa: BLE001 - the driver raises it
            where = "" if self._refusal else f"task {shard.task!r}, shard {shard.index}: "
            yield _outcome(error=_words(exc, where), error_kind=type(exc).__name__)
            return
        yield _outcome(done)


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
        return f"{where}{type(exc).__name__}: {exc}"
    return where + "".join(traceback.format_exception(exc))
