"""How far a run is, from its files alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from raveval.evaluate import TaskSpec
from raveval.passes import task_spec
from raveval.scoring import stored
from raveval.store import Lost, RunDirectory, shards_of
from raveval.types import Shard


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """How far a task is; `by_status` counts the examples of its finished shards.

    `n_shards_to_grade` are answered, and wait for the judge.
    """

    n_shards: int
    n_shards_done: int
    n_examples: int
    by_status: Mapping[str, int]
    n_shards_to_grade: int = 0


@dataclass(frozen=True, slots=True)
class RunStatus:
    """How far a run is; `driver` says which process is at work on it, None where none is.

    `lost` are the processes of replicas that died or could not start, oldest first.
    """

    directory: str
    model: str
    complete: bool
    driver: str | None
    tasks: Mapping[str, TaskStatus]
    lost: Sequence[Lost] = ()

    @property
    def is_running(self) -> bool:
        """Whether a driver is at work on the run."""
        return self.driver is not None


def status(directory: str | Path) -> RunStatus:
    """Say how far a run is, from its files alone.

    Raises:
        DataError: no run there.
    """
    run_directory = RunDirectory(directory)
    manifest = run_directory.manifest()
    driver = run_directory.holder()  # before the shards: one that ends now leaves them complete
    tasks = {}
    for name, entry in manifest["tasks"].items():
        shards = shards_of(name, entry["n_examples"], entry["shard_size"])
        wanted = entry["score_fingerprint"]
        found = list(
            run_directory.over(shards, partial(run_directory.finished, score_fingerprint=wanted))
        )
        receipts = [receipt for receipt in found if receipt is not None]
        by_status: Counter[str] = Counter()
        for receipt in receipts:
            by_status.update(receipt.states.by_status)
        spec = task_spec(entry)
        missing = [shard for shard, receipt in zip(shards, found, strict=True) if receipt is None]
        to_grade = run_directory.over(
            missing if spec.is_graded else (), partial(_is_answered, run_directory, spec)
        )
        tasks[name] = TaskStatus(
            len(shards),
            len(receipts),
            entry["n_examples"],
            dict(sorted(by_status.items())),
            sum(to_grade),
        )
    complete = all(task.n_shards == task.n_shards_done for task in tasks.values())
    lost = tuple(run_directory.lost().values())
    return RunStatus(str(directory), manifest["model"], complete, driver, tasks, lost)


def _is_answered(directory: RunDirectory, spec: TaskSpec, shard: Shard) -> bool:
    return stored(directory, shard, spec)[0] is not None
