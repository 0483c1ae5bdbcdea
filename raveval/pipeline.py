"""Where shards run: actors of a Ray cluster, each with one loaded model.

The dataset's rows are shard descriptors, one to a block; an actor answers several shards at once so
that its engine is never short of work, commits each shard's files itself, and yields one small row
for the progress line. Ray decides where and restarts what dies; what counts is on disk.

No evaluation happens here, and no other module imports Ray.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from raveval import errors, registry
from raveval.engines import EngineDied
from raveval.errors import RavevalError, ResourceError, RunError
from raveval.evaluate import TaskSpec, answer_examples, replies_table
from raveval.scoring import score_shard
from raveval.store import Attempt, Receipt, Replies, RunDirectory
from raveval.types import Answers, Example, Failure, ModelRef, Shard, Status

_DEATHS_BEFORE_ISOLATION = 2
_DEATHS_BEFORE_QUARANTINE = 2
_MAX_SHARDS_IN_FLIGHT = 64


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


@dataclass(frozen=True, slots=True)
class Placement:
    """How many replicas, on what. None: as many CPUs and GPUs as divide the cluster evenly."""

    replicas: int
    cpus_per_replica: float | None
    gpus_per_replica: float | None
    shard_size: int
    examples_in_flight: int
    address: str | None


@dataclass(frozen=True, slots=True)
class ShardDone:
    """What the progress line hears of a finished shard."""

    n_examples: int
    n_missing: int
    n_tokens: int


def execute(
    shards: Sequence[Shard], spec: WorkerSpec, placement: Placement, *, say: Callable[[str], None]
) -> Iterator[ShardDone]:
    """Run shards on the cluster; each is committed to the run directory before it is yielded.

    Raises:
        ResourceError: the cluster cannot hold the replicas asked for.
        RavevalError: no replica could load the model; the message is the engine's own.
        RunError: the pipeline broke; committed shards stay.
    """
    with _cluster(placement.address):
        import ray.data

        resources = _resources(placement)
        say(
            f"starting {placement.replicas} replica{'s' * (placement.replicas > 1)} of "
            f"{spec.model.name} on {spec.engine} ({resources['num_cpus']:g} CPUs, "
            f"{resources['num_gpus']:g} GPUs each)"
        )
        concurrency = max(2, math.ceil(placement.examples_in_flight / placement.shard_size))
        concurrency = min(concurrency, _MAX_SHARDS_IN_FLIGHT)
        rows = [asdict(shard) for shard in shards]
        dataset = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            ShardWorker,
            batch_size=1,
            fn_constructor_kwargs={"spec": spec},
            compute=ray.data.ActorPoolStrategy(
                size=min(placement.replicas, len(rows)),
                max_concurrent_calls_per_actor=concurrency,
                max_tasks_in_flight_per_actor=2 * concurrency,
            ),
            **resources,
        )
        try:
            for batch in dataset.iter_batches(
                batch_size=None, prefetch_batches=0, batch_format="pyarrow"
            ):
                for row in batch.to_pylist():
                    yield ShardDone(row["n_examples"], row["n_missing"], row["n_tokens"])
        except ray.exceptions.RayError as exc:
            raise _translated(spec, exc) from exc


@contextmanager
def _cluster(address: str | None) -> Iterator[None]:
    """Connect to a cluster, or start a quiet one on this machine and end it afterwards."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    import logging

    import ray

    if ray.is_initialized():
        yield
        return
    target = address or os.environ.get("RAY_ADDRESS")
    local = {} if target else {"include_dashboard": False, "num_cpus": _local_cpus()}
    ray.init(
        address=target,
        log_to_driver=False,
        logging_level=logging.ERROR,
        **local,
    )
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    # Loading a model can outlast Ray's own limit; deadlines are kept per example instead.
    context.execution_no_progress_timeout_s = -1
    try:
        yield
    finally:
        ray.shutdown()


def _local_cpus() -> int:
    return len(os.sched_getaffinity(0))


def _resources(placement: Placement) -> dict[str, float]:
    """Return what each replica gets, or refuse what no node has instead of waiting for ever."""
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    total = {key: sum(node.get(key, 0.0) for node in nodes) for key in ("CPU", "GPU")}
    gpus = placement.gpus_per_replica
    if gpus is None:
        gpus = 1.0 if total["GPU"] else 0.0
    cpus = placement.cpus_per_replica
    if cpus is None:
        # On CPUs the engine's threads are the replica; on GPUs a few host threads suffice.
        cpus = 1.0 if gpus else max(1.0, math.floor(total["CPU"] / placement.replicas))
        cpus = min(cpus, max((node.get("CPU", 0.0) for node in nodes), default=cpus))
    slots = sum(_fitting(node, cpus, gpus) for node in nodes)
    if slots < placement.replicas:
        raise ResourceError(
            f"run.replicas: {placement.replicas} replicas of {cpus:g} CPUs and {gpus:g} GPUs do "
            f"not fit: {len(nodes)} node(s) with {total['CPU']:g} CPUs and {total['GPU']:g} GPUs "
            f"in all hold {slots}. Ask for fewer replicas, or for less for each"
        )
    return {"num_cpus": cpus, "num_gpus": gpus}


def _fitting(node: Mapping[str, float], cpus: float, gpus: float) -> int:
    """Return how many replicas fit on a node."""
    limits = [
        math.floor(node.get(key, 0.0) / wanted + 1e-9)
        for key, wanted in (("CPU", cpus), ("GPU", gpus))
        if wanted
    ]
    return min(limits)


def _translated(spec: WorkerSpec, exc: Exception) -> RavevalError:
    """Return what a replica said of its own failure rather than how Ray noticed it."""
    for report in RunDirectory(spec.directory).worker_reports(spec.session):
        if "error" in report:
            kind = getattr(errors, report["kind"], RunError)
            return kind(report["error"]) if issubclass(kind, RavevalError) else RunError(str(exc))
    return RunError(
        f"the pipeline broke: {str(exc).strip().splitlines()[-1]}. What was committed is kept: "
        "run the same command again to go on"
    )


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
