"""The one line that says how far a run is: done of total, missing, tokens per second, time left.

On a terminal it is redrawn in place; elsewhere a new line is said at most every ten seconds. Until
there is something to count, others say what is waited for, or what is being made.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Self

from raveval.periodic import periodically

_SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """Counts finished examples and says so; a context manager."""

    def __init__(self, n_examples: int, *, say: Callable[[str], None]) -> None:
        self._n_examples = n_examples
        self._say = say
        self._redraws = sys.stderr.isatty()
        self._n_done = self._n_missing = self._n_tokens = 0
        self._first_done: float | None = None
        self._n_at_first = 0
        self._started = self._last_said = time.monotonic()

    def __enter__(self) -> Self:
        """Start the clock."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the last line standing."""
        if self._redraws and self._n_done:
            sys.stderr.write("\n")

    def add(self, n_examples: int, *, n_missing: int, n_tokens: int) -> None:
        """Count a finished shard."""
        self._n_done += n_examples
        self._n_missing += n_missing
        self._n_tokens += n_tokens
        now = time.monotonic()
        if self._first_done is None:
            self._first_done, self._n_at_first = now, self._n_done
        if self._redraws:
            sys.stderr.write(f"\r\x1b[2K{self.line(now)}")
            sys.stderr.flush()
        elif now - self._last_said >= _SECONDS_BETWEEN_LINES or self._n_done == self._n_examples:
            self._last_said = now
            self._say(self.line(now))

    def line(self, now: float) -> str:
        """Return the progress line as of `now` (monotonic seconds)."""
        elapsed = max(now - self._started, 1e-9)
        parts = [f"{self._n_done}/{self._n_examples} examples"]
        if self._n_missing:
            parts.append(f"{self._n_missing} missing")
        parts.append(f"{self._n_tokens / elapsed:,.0f} tokens/s")
        left = self._seconds_left(now)
        if left is not None and self._n_done < self._n_examples:
            parts.append(f"{_clock(left)} left")
        return ", ".join(parts)

    def _seconds_left(self, now: float) -> float | None:
        """Estimate from the time since the first shard: loading the model is over by then."""
        if self._first_done is None or self._n_done == self._n_at_first:
            return None
        rate = (self._n_done - self._n_at_first) / max(now - self._first_done, 1e-9)
        return (self._n_examples - self._n_done) / rate


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


@contextlib.contextmanager
def still_at(work: str, *, say: Callable[[str], None]) -> Iterator[None]:
    """Say every ten seconds that a piece of work goes on; one that is quick is not spoken of."""
    started = time.monotonic()

    def tell() -> None:
        say(f"still {work}, for {_clock(time.monotonic() - started)} now")

    with periodically(tell, seconds=_SECONDS_BETWEEN_LINES):
        yield


def waiting_words(
    resources: Mapping[str, float],
    total: Mapping[str, float],
    free: Mapping[str, float],
    seconds: float,
) -> str:
    """Say what a run is waiting for whose first replica is not ready yet.

    What is taken may be taken by other work; on a Ray of our own it is a replica that loads.
    """
    needed = {"CPU": resources["num_cpus"], "GPU": resources["num_gpus"]}
    taken = {key: total.get(key, 0.0) - free.get(key, 0.0) for key in needed}
    words = f"no replica is ready after {seconds:.0f} s: "
    if all(taken[key] >= amount for key, amount in needed.items()):
        words += "one is loading the model, unless other work has what it needs"
    else:
        words += "none has a place yet"
    return (
        f"{words} ({needed['CPU']:g} CPUs and {needed['GPU']:g} GPUs each; of the cluster's "
        f"{total.get('CPU', 0):g} and {total.get('GPU', 0):g}, {free.get('CPU', 0):g} and "
        f"{free.get('GPU', 0):g} are free)"
    )
