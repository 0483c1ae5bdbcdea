"""Tells what replicas leave in the run directory while their driver waits for shards.

What is waited for, until one has loaded the model; and each one that dies or cannot start, in its
engine's last words, because Ray replaces what dies without a word.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from raveval.errors import StoreError
from raveval.periodic import periodically
from raveval.store import Lost, RunDirectory
from raveval.store.replicas import replica_of

Say = Callable[[str], None]

_SECONDS_BETWEEN_LOOKS = 3.0
_SECONDS_BETWEEN_SIGNS = 30.0


class _Attendant:
    """Looks into a run directory for what is new of the replicas of a session."""

    def __init__(
        self,
        directory: RunDirectory,
        session: str,
        *,
        n_replicas: int,
        waiting: Callable[[float], str],
        say: Say,
    ) -> None:
        self._directory = directory
        self._session = session
        self._n_replicas = n_replicas
        self._waiting = waiting
        self._say = say
        self._told: set[str] = set()
        self._idle: set[str] = set()
        self._is_loaded = False
        self._started = self._last_sign = time.monotonic()

    def look(self) -> None:
        """Tell what is new."""
        for name, lost in self._directory.lost(self._session, known=self._told).items():
            self._told.add(name)
            self._tell(name, lost)
        self._is_loaded = self._is_loaded or bool(self._directory.worker_reports(self._session))
        now = time.monotonic()
        if not self._is_loaded and now - self._last_sign >= _SECONDS_BETWEEN_SIGNS:
            self._last_sign = now
            self._say(self._waiting(now - self._started))

    def _tell(self, name: str, lost: Lost) -> None:
        if not lost.gave_up:
            self._say(f"{lost.in_words()}; another process takes its place")
            return
        self._idle.add(replica_of(name))
        n_left = self._n_replicas - len(self._idle)
        if n_left:  # else the run ends with these words
            others = f"the other {n_left}" if n_left > 1 else "the other one"
            self._say(f"{lost.in_words()}; the run goes on with {others}")


@contextlib.contextmanager
def attended(
    directory: RunDirectory,
    session: str,
    *,
    n_replicas: int,
    waiting: Callable[[float], str],
    say: Say,
) -> Iterator[None]:
    """Tell of the replicas of a session while the block runs.

    Args:
        directory: where they write.
        session: theirs.
        n_replicas: how many there are to be.
        waiting: says what is waited for, given the seconds since the block began.
        say: hears it.
    """
    attendant = _Attendant(directory, session, n_replicas=n_replicas, waiting=waiting, say=say)

    def look() -> None:
        with contextlib.suppress(OSError, StoreError):  # the next look may do better
            attendant.look()

    try:
        with periodically(look, seconds=_SECONDS_BETWEEN_LOOKS):
            yield
    finally:
        look()
