"""Where shards run: actors of a Ray cluster, each with one loaded model.

The dataset's rows are shard descriptors, one to a block; an actor answers several shards at once so
that its engine is never short of work, commits each shard's files itself, and yields one small row
for the progress line. Ray decides where and restarts what dies; what counts is on disk.

No evaluation happens here. No other module imports Ray, but for the client of its job server.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from raveval import errors, registry
from raveval.attendance import attended
from raveval.errors import RavevalError, ResourceError, RunError, StoreError
from raveval.evaluate import Stage
from raveval.progress import waiting_words
from raveval.store import RunDirectory
from raveval.types import Shard
from raveval.worker import ShardWorker, WorkerSpec

_MAX_SHARDS_IN_FLIGHT = 128  # an actor's queue; with tiny shards it bounds examples in flight
_SLOTS = 256  # of an engine that does not say
_ROLE = {Stage.ANSWER: "", Stage.GRADE: "judge "}


@dataclass(frozen=True, slots=True)
class Placement:
    """How many replicas, on what.

    None for CPUs or GPUs: as many as divide the cluster evenly; where the engine is a client of a
    model elsewhere, one CPU and no GPU. None for examples in flight: half as many again as the
    engine answers side by side. `autoscaling`: nodes come when they are asked for, so that
    what does not fit now is waited for.
    """

    replicas: int
    cpus_per_replica: float | None
    gpus_per_replica: float | None
    shard_size: int
    examples_in_flight: int | None
    address: str | None
    section: str = "run"
    autoscaling: bool = False


@dataclass(frozen=True, slots=True)
class ShardDone:
    """What the progress line hears of a finished shard."""

    n_examples: int
    n_missing: int
    n_tokens: int


class _Replica(ShardWorker):
    """A worker under the name that Ray gives it, which stays when its process is replaced."""

    def __init__(self, spec: WorkerSpec, n_replicas: int, examples_in_flight: int) -> None:
        import ray

        super().__init__(
            spec,
            replica=ray.get_runtime_context().get_actor_id(),
            n_replicas=n_replicas,
            examples_in_flight=examples_in_flight,
        )


def execute(
    shards: Sequence[tuple[int, Shard]],
    spec: WorkerSpec,
    placement: Placement,
    *,
    say: Callable[[str], None],
) -> Iterator[ShardDone]:
    """Run shards on the cluster; each is committed to its run directory before it is yielded.

    A shard stands beside the index of its run among those of `spec`.

    Raises:
        ResourceError: the cluster cannot hold the replicas asked for.
        RavevalError: no replica could load the model, or one loaded what is unlike the others; the
            message is the engine's own.
        RunError: the pipeline broke; committed shards stay.
    """
    with cluster(placement.address):
        import ray.data
        import ray.exceptions

        nodes = _nodes()
        resources = _resources(placement, nodes, devices_per_replica=_devices(spec))
        say(
            f"starting {placement.replicas} {_ROLE[spec.stage]}replica"
            f"{'s' * (placement.replicas > 1)} of {spec.model.title} on {spec.engine} "
            f"({resources['num_cpus']:g} CPUs, "
            f"{resources['num_gpus']:g} GPUs each{_room(nodes, resources)})"
        )
        rows = [{"run": run, **asdict(shard)} for run, shard in shards]
        n_replicas = min(placement.replicas, len(rows))
        in_flight = placement.examples_in_flight
        if in_flight is None:
            in_flight = examples_in_flight(spec, on_gpu=resources["num_gpus"] > 0)
        concurrency = shards_in_flight(in_flight, placement.shard_size, len(rows) / n_replicas)
        dataset = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            _Replica,
            batch_size=1,
            fn_constructor_kwargs={
                "spec": spec,
                "n_replicas": n_replicas,
                "examples_in_flight": in_flight,
            },
            compute=ray.data.ActorPoolStrategy(
                size=n_replicas,
                max_concurrent_calls_per_actor=concurrency,
                max_tasks_in_flight_per_actor=concurrency + 2,
            ),
            **resources,
        )
        try:
            with attended(
                RunDirectory(spec.runs[0].directory),
                spec.runs[0].session,
                n_replicas=n_replicas,
                waiting=partial(_waiting_words, resources),
                say=say,
            ):
                for batch in dataset.iter_batches(
                    batch_size=None, prefetch_batches=0, batch_format="pyarrow"
                ):
                    for row in batch.to_pylist():
                        if row["error"]:
                            raise _error(row["error_kind"], row["error"])
                        yield ShardDone(row["n_examples"], row["n_missing"], row["n_tokens"])
        except ray.exceptions.RayError as exc:
            raise _error("RunError", str(exc)) from exc
        finally:
            # A replica that could not start holds what it was given until it sees this.
            with contextlib.suppress(OSError, StoreError):
                for run in spec.runs:
                    RunDirectory(run.directory).end_session(run.session)


@contextlib.contextmanager
def cluster(address: str | None) -> Iterator[None]:
    """Use the cluster at hand, connect to one, or start a quiet one here and end it afterwards.

    Raises:
        ResourceError: there is no cluster at the address.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray Data's own books fall over a dataset they forgot; what replicas say is always fetched.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    import ray
    import ray.data

    is_ours = not ray.is_initialized()
    if is_ours:
        _connect(address or os.environ.get("RAY_ADDRESS"))
    try:
        for handler in logging.getLogger("ray.data").handlers:
            if isinstance(handler, logging.StreamHandler):
                handler.setLevel(logging.CRITICAL)  # the file beside it keeps everything
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        # Loading a model can outlast Ray's own limit; a worker watches its engine instead.
        context.execution_no_progress_timeout_s = -1
        yield
    finally:
        if is_ours:
            ray.shutdown()


def address() -> str:
    """Return where other processes reach the cluster that this one uses."""
    import ray

    return str(ray.get_runtime_context().gcs_address)


def _connect(address: str | None) -> None:
    """Connect to the cluster at an address; without one start a Ray of our own.

    Raises:
        ResourceError: there is no cluster at the address, or none starts here.
    """
    import ray

    # "local": a Ray that somebody else started on this machine is not ours to use.
    local = {"address": "local", "include_dashboard": False, "num_cpus": _local_cpus()}
    settings = {"address": address} if address else local
    _check_reachable(address)
    try:
        with _native_messages_held_back(), _sigterm_kept():
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **settings)
        _keep_token_private()
    except Exception as exc:  # of any kind: a machine that is too busy is a bare one
        what = f"run.address: no Ray cluster at {address}" if address else "Ray does not start here"
        raise ResourceError(f"{what}: {exc}") from exc


@contextlib.contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Set the process's own handler of SIGTERM again; Ray takes the signal for itself."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and handler not in (None, signal.SIG_DFL):
        signal.signal(signal.SIGTERM, handler)


def _keep_token_private() -> None:
    """Close the file of the token by which Ray's processes trust each other; Ray leaves it open."""
    token = Path.home() / ".ray" / "auth_token"
    with contextlib.suppress(OSError):
        if token.stat().st_uid == os.getuid():
            token.chmod(0o600)


def _check_reachable(address: str | None) -> None:
    """Refuse host:port where nothing listens; Ray itself would try for minutes, in silence."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as exc:
        raise ResourceError(
            f"run.address: nothing answers at {address}: {exc}. Start a cluster there, or leave "
            "the address out to run on this machine"
        ) from exc


@contextlib.contextmanager
def _native_messages_held_back() -> Iterator[None]:
    """Hold back what Ray's native code writes to stderr; let it out where starting Ray fails.

    Its level can only be lowered by a variable that it announces on stderr each time.
    """
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(kept, held.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def examples_in_flight(spec: WorkerSpec, *, on_gpu: bool) -> int:
    """Return how many examples wait in a replica: half as many again as are answered at a time."""
    module = registry.load("engines", spec.engine)
    slots = module.slots(spec.options, on_gpu=on_gpu) if hasattr(module, "slots") else _SLOTS
    return math.ceil(1.5 * slots)


def shards_in_flight(examples_in_flight: int, shard_size: int, n_each: float) -> int:
    """Return how many shards a replica is given at a time.

    Four times what its examples in flight fill: most of the shards under way wait for their slowest
    example, or for the storage. But no more than its part of all, `n_each`, so that the replica
    that is ready first does not take what others could do.

    >>> shards_in_flight(96, 32, 1000), shards_in_flight(96, 32, 4.5), shards_in_flight(1, 32, 9)
    (12, 5, 4)
    """
    n = 4 * math.ceil(examples_in_flight / shard_size)
    return max(2, min(n, math.ceil(n_each), _MAX_SHARDS_IN_FLIGHT))


def _waiting_words(resources: Mapping[str, float], seconds: float) -> str:
    """Say what is waited for, as long as no replica has loaded the model."""
    import ray

    return waiting_words(resources, ray.cluster_resources(), ray.available_resources(), seconds)


def check_room(spec: WorkerSpec, placement: Placement) -> None:
    """Refuse replicas that the cluster at hand cannot hold.

    Raises:
        ResourceError: what they need, and what there is.
    """
    _resources(placement, _nodes(), devices_per_replica=_devices(spec))


def _nodes() -> list[Mapping[str, float]]:
    """Return what each living node of the cluster has."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _local_cpus() -> int:
    return len(os.sched_getaffinity(0))


def _devices(spec: WorkerSpec) -> int | None:
    """Return over how many devices an engine spreads one model; None where it holds none itself."""
    if getattr(registry.load("engines", spec.engine), "IS_CLIENT", False):
        return None
    sizes = ("tensor_parallel_size", "pipeline_parallel_size")
    return math.prod(int(getattr(spec.options, size, 1)) for size in sizes)


def _resources(
    placement: Placement,
    nodes: Sequence[Mapping[str, float]],
    *,
    devices_per_replica: int | None,
) -> dict[str, float]:
    """Return what each replica gets, or refuse what no node has instead of waiting for ever."""
    total = {key: sum(node.get(key, 0.0) for node in nodes) for key in ("CPU", "GPU")}
    gpus = placement.gpus_per_replica
    if gpus is None:
        gpus = float(devices_per_replica or 0) if total["GPU"] else 0.0
    cpus = placement.cpus_per_replica
    if cpus is None:
        is_light = gpus > 0 or devices_per_replica is None  # the work is done elsewhere
        cpus = 1.0 if is_light else _most_cpus(nodes, placement.replicas)
    slots = sum(_fitting(node, cpus, gpus) for node in nodes)
    if slots < placement.replicas and not placement.autoscaling:
        raise ResourceError(
            f"{placement.section}.replicas: {placement.replicas} replicas of {cpus:g} CPUs and "
            f"{gpus:g} GPUs do not fit: {len(nodes)} node(s) with {total['CPU']:g} CPUs and "
            f"{total['GPU']:g} GPUs in all hold {slots}. Ask for fewer replicas, or for less for "
            "each; where nodes come when they are asked for, set run.autoscaling"
        )
    return {"num_cpus": cpus, "num_gpus": gpus}


def _most_cpus(nodes: Sequence[Mapping[str, float]], replicas: int) -> float:
    """Return the most CPUs that so many replicas can have each; on CPUs, threads are speed."""
    largest = int(max((node.get("CPU", 0.0) for node in nodes), default=0.0))
    for cpus in range(largest, 1, -1):
        if sum(_fitting(node, float(cpus), 0.0) for node in nodes) >= replicas:
            return float(cpus)
    return 1.0


def _fitting(node: Mapping[str, float], cpus: float, gpus: float) -> int:
    """Return how many replicas fit on a node."""
    limits = [
        math.floor(node.get(key, 0.0) / wanted + 1e-9)
        for key, wanted in (("CPU", cpus), ("GPU", gpus))
        if wanted
    ]
    return min(limits, default=0)


def _room(nodes: Sequence[Mapping[str, float]], resources: Mapping[str, float]) -> str:
    """Say how many replicas the nodes hold, where there is more than one node."""
    if len(nodes) == 1:
        return ""
    fitting = [_fitting(node, resources["num_cpus"], resources["num_gpus"]) for node in nodes]
    n_useful = sum(fit > 0 for fit in fitting)
    return f"; {n_useful} of {len(nodes)} nodes have room, for {sum(fitting)}"


def _error(kind: str, words: str) -> RavevalError:
    """Return what a replica said went wrong, as the error of ours that it was."""
    found = getattr(errors, kind, None)
    if isinstance(found, type) and issubclass(found, RavevalError):
        return found(words)
    return RunError(f"{words}\nWhat was committed is kept: run the same command again to go on")
