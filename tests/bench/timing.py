"""Times functions in a way that other processes disturb little."""

from __future__ import annotations

import time
from collections.abc import Callable


def cpu_seconds(run: Callable[[], object], *, repetitions: int = 5) -> float:
    """Return the least CPU time of this process that a call took, after one to warm up."""
    run()
    times = []
    for _ in range(repetitions):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)
