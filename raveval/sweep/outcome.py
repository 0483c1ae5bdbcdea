"""What became of a checkpoint of a sweep, and what its process and the sweep say of it alike."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from raveval.sweep.checkpoints import Checkpoint

EXIT_WAITS_FOR_JUDGE = 4


class State(StrEnum):
    """What became of a checkpoint."""

    DONE = "done"  # answered, and graded where a judge is needed
    UNCHANGED = "unchanged"  # done by an earlier sweep; nothing was to do
    KEPT = "kept"  # done by an earlier sweep; its weights are gone, or are not asked for now
    ANSWERED = "answered"  # waits for the judge
    FAILED = "failed"

    @property
    def words(self) -> str:
        """The state as a reader of a report should see it."""
        return "waits for the judge" if self is State.ANSWERED else self.value


@dataclass(frozen=True, slots=True)
class Outcome:
    """A checkpoint's run and what became of it; `message` says why it failed, or was kept."""

    checkpoint: Checkpoint
    state: State
    message: str = ""
    seconds: float = 0.0


def anew(reason: str, directory: str | Path) -> str:
    """Return why a checkpoint's run cannot go on, and what to delete to evaluate it once more.

    `reason` speaks of a run, whose output is another if its user says so; in a sweep it is not.
    """
    return (
        f"{reason}. In a sweep: delete {directory} and sweep again to evaluate this checkpoint anew"
    )
