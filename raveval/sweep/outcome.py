"""What became of a checkpoint of a sweep, and what its process and the sweep say of it alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from raveval.sweep.checkpoints import Checkpoint

EXIT_WAITS_FOR_JUDGE = 4
SIDE_BY_SIDE = "--side-by-side"
"""Has a checkpoint's process take its tasks side by side, not one after the other."""


class State(StrEnum):
    """What became of a checkpoint."""

    DONE = "done"  # answered, and graded where a judge is needed
    UNCHANGED = "unchanged"  # done by an earlier sweep; nothing was to do
    KEPT = "kept"  # done by an earlier sweep; its weights are gone, or are not asked for now
    IMPORTED = "imported"  # another tool evaluated it; the numbers are those of its file
    ANSWERED = "answered"  # waits for the judge
    STOPPED = "stopped"  # ended early, on purpose: it was shown to be worse than the best
    FAILED = "failed"

    @property
    def words(self) -> str:
        """The state as a reader of a report should see it."""
        known = {State.ANSWERED: "waits for the judge", State.STOPPED: "stopped early"}
        return known.get(self, self.value)

    @property
    def is_done(self) -> bool:
        """Whether there are numbers of all that was asked."""
        return self in (State.DONE, State.UNCHANGED, State.KEPT, State.IMPORTED)

    @property
    def is_answered(self) -> bool:
        """Whether everything that no judge grades is done."""
        return self.is_done or self is State.ANSWERED


@dataclass(frozen=True, slots=True)
class Progress:
    """How many of a task's examples are done: scored, or counted as missing."""

    n_done: int
    n_examples: int

    @property
    def n_left(self) -> int:
        """The examples that are not done: not asked yet, or never."""
        return self.n_examples - self.n_done


@dataclass(frozen=True, slots=True)
class Outcome:
    """A checkpoint's run and what became of it.

    `message` says why it failed, was stopped, or was kept; `progress` how far each task of a
    stopped one is.
    """

    checkpoint: Checkpoint
    state: State
    message: str = ""
    seconds: float = 0.0
    progress: Mapping[str, Progress] = field(default_factory=dict)


def anew(reason: str, directory: str | Path) -> str:
    """Return why a checkpoint's run cannot go on, and what to delete to evaluate it once more.

    `reason` speaks of a run, whose output is another if its user says so; in a sweep it is not.
    """
    return (
        f"{reason}. In a sweep: delete {directory} and sweep again to evaluate this checkpoint anew"
    )
