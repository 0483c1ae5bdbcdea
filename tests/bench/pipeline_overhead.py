"""What is lost between the engines: a run on replicas that sleep, against a perfect schedule.

    python -m tests.bench.pipeline_overhead [--replicas 1 8 64] [--seconds S] [--slower K]

Each replica is an actor with the worker of a real run, and an engine of 64 slots in which requests
sleep (lognormal, median 0.3 s, sigma 0.7). Perfect is a list schedule of the same requests, in the
same order, over all slots at once, without any cost. Prints the efficiency, what the replicas' and
the driver's processes took of the CPUs for each shard, and how much memory they held on the way.

All replicas share this machine's cores, which they do not in a real cluster: what they need of them
grows with the replicas. Where that is more than there is, `--slower K` has requests sleep K times
as long, so that the work of one second is spread over K.
"""

from __future__ import annotations

import argparse
import heapq
import math
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import ray

from raveval import pipeline
from raveval.evaluate import TaskSpec
from raveval.protocols import TaskSettings
from raveval.store import RunDirectory, shards_of
from raveval.types import Example, ModelRef, Sampling
from raveval.worker import RunPart, WorkerSpec
from raveval.worker.watch import Patience
from tests.bench.sleeping_engine import Options, latency_seconds
from tests.bench.timing import replicas_below

TASK = TaskSpec("question_answering", TaskSettings(Sampling(16)), ("squad",), "r", "s")
MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Sample:
    """The driver and the replicas at one moment: CPU seconds so far, and bytes of their own."""

    n_done: int
    n_replicas: int
    driver_cpu_seconds: float
    driver_bytes: int
    replicas_cpu_seconds: float
    replicas_bytes: int


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--seconds", type=float, default=60.0, help="of a perfect schedule")
    parser.add_argument("--slower", type=float, default=1.0)
    parser.add_argument("--shard-size", type=int, default=32)
    parser.add_argument("--examples-in-flight", type=int, help="instead of the engine's own")
    given = parser.parse_args()
    for replicas in given.replicas:
        with tempfile.TemporaryDirectory(prefix="raveval-bench-") as folder:
            _measure(replicas, given, Path(folder))


def _measure(replicas: int, given: argparse.Namespace, folder: Path) -> None:
    (folder / "meeting").mkdir()
    options = Options(
        median_seconds=0.3 * given.slower, meeting=str(folder / "meeting"), n_replicas=replicas
    )
    mean = options.median_seconds * math.exp(options.sigma**2 / 2)
    n_slots = options.slots * replicas
    n = round(given.seconds * n_slots / mean)
    examples = [Example(id=f"{i}", prompt=f"q{i}?", references=("a",)) for i in range(n)]
    directory = RunDirectory(folder / "run")
    directory.begin_session("bench")
    directory.write_examples("t", examples, digest="d")
    perfect = _perfect_seconds((latency_seconds(e.id, options) for e in examples), n_slots)
    del examples
    spec = WorkerSpec(
        runs=(RunPart(str(directory.path), "bench", {"t": TASK}, None),),
        engine="tests.bench.sleeping_engine",
        options=options,
        model=ModelRef(id="sleeping"),
        patience=Patience(600.0, 2.0),
    )
    placement = pipeline.Placement(
        replicas, 1.0, 0.0, given.shard_size, given.examples_in_flight, address=None
    )
    ray.init(num_cpus=replicas, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        shards = [(0, shard) for shard in shards_of("t", n, given.shard_size)]
        samples, seconds = [], 0.0
        shown = max(len(shards) // 4, 1)
        for i, _ in enumerate(pipeline.execute(shards, spec, placement, say=print), 1):
            if i % shown == 0 or i == 1 or i == len(shards):
                samples.append(_sample(i))
            if i == len(shards):
                began = max(f.stat().st_mtime for f in (folder / "meeting").iterdir())
                seconds = time.time() - began
        _print(replicas, n, len(shards), perfect, seconds, samples, given)
    finally:
        ray.shutdown()


def _perfect_seconds(latencies: Iterator[float], n_slots: int) -> float:
    """Return when the last one ends, if each begins as soon as any slot is free."""
    ends = [0.0] * n_slots
    for seconds in latencies:
        heapq.heapreplace(ends, ends[0] + seconds)
    return max(ends)


def _sample(n_done: int) -> Sample:
    me = psutil.Process()
    others = replicas_below(me)
    cpu = [p.cpu_times() for p in others]
    mine = me.cpu_times()
    return Sample(
        n_done,
        len(others),
        mine.user + mine.system,
        me.memory_full_info().uss,
        sum(t.user + t.system for t in cpu),
        sum(p.memory_full_info().uss for p in others),
    )


def _print(
    replicas: int,
    n: int,
    n_shards: int,
    perfect: float,
    seconds: float,
    samples: list[Sample],
    given: argparse.Namespace,
) -> None:
    first = samples[0]
    last = [s for s in samples if s.n_replicas == replicas][-1]  # idle ones end before the run
    n_between = last.n_done - first.n_done
    driver = (last.driver_cpu_seconds - first.driver_cpu_seconds) / n_between
    worker = (last.replicas_cpu_seconds - first.replicas_cpu_seconds) / n_between
    print(
        f"{replicas} replicas, requests {given.slower:g} times as slow: {n} examples in {n_shards} "
        f"shards in {seconds:.1f} s, perfect {perfect:.1f} s: efficiency {perfect / seconds:.3f}; "
        f"{n_shards / seconds:.0f} shards/s, a shard takes {driver * 1e3:.1f} ms of the driver's "
        f"CPU and {worker * 1e3:.1f} ms of a replica's"
    )
    for sample in samples:
        print(
            f"  after {sample.n_done} shards: driver {sample.driver_bytes / MEBIBYTE:.0f} MiB, "
            f"{sample.n_replicas} replicas {sample.replicas_bytes / MEBIBYTE:.0f} MiB "
            f"({sample.replicas_bytes / MEBIBYTE / max(sample.n_replicas, 1):.0f} each)"
        )


if __name__ == "__main__":
    main()
