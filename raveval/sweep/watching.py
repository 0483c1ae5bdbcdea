"""What a sweep that waits for checkpoints has seen of them: which are settled, and since when."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from raveval.sweep.checkpoints import Checkpoint
from raveval.sweep.outcome import Outcome, State
from raveval.weights import Stamp, fault_of, stamp_of

_TAKEN_UP_AGAIN = (State.FAILED, State.KEPT)


class Watch:
    """Says which checkpoints are due, look by look, and for how long there was nothing new.

    Attributes:
        unsettled: the names of those that were seen and are not whole.
    """

    def __init__(self) -> None:
        self.unsettled: list[str] = []
        self._seen: dict[str, Stamp] = {}
        self._tried: dict[str, Stamp] = {}
        self._last_news = time.monotonic()

    @property
    def idle_seconds(self) -> float:
        """How long ago something appeared, changed, or was evaluated."""
        return time.monotonic() - self._last_news

    def news(self) -> None:
        """Count what is idle from now on."""
        self._last_news = time.monotonic()

    def due(
        self, checkpoints: Sequence[Checkpoint], outcomes: Mapping[str, Outcome]
    ) -> list[Checkpoint]:
        """Return those that are to be evaluated: whole, and the same as at the last look.

        One that failed is due again when its files have changed since it was tried.
        """
        self.unsettled = []
        return [each for each in checkpoints if self._is_due(each, outcomes.get(each.name))]

    def _is_due(self, checkpoint: Checkpoint, outcome: Outcome | None) -> bool:
        if outcome is not None and outcome.state not in _TAKEN_UP_AGAIN:
            return False
        name, folder = checkpoint.name, Path(checkpoint.place)
        stamp, before = stamp_of(folder), self._seen.get(name)
        if stamp == self._tried.get(name):
            return False
        self._seen[name] = stamp
        if stamp != before:
            self.news()
        if stamp != before or fault_of(folder) is not None:
            self.unsettled.append(name)
            return False
        self._tried[name] = stamp
        return True
