"""Times functions in a way that other processes disturb little, and finds what else to measure."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil


def replicas_below(process: psutil.Process) -> list[psutil.Process]:
    """Return the replicas among the processes that one has started, by Ray's name of them."""
    below = process.children(recursive=True)
    return [each for each in below if "MapWorker" in "".join(each.cmdline()[:1])]


def cpu_seconds(run: Callable[[], object], *, repetitions: int = 5) -> float:
    """Return the least CPU time of this process that a call took, after one to warm up."""
    run()
    times = []
    for _ in range(repetitions):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)
