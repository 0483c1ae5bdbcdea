"""How far a run is, from its files alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from raveval.passes import task_spec
from raveval.scoring import stored
from raveval.store import RunDirectory, shards_of


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
    """How far a run is."""

    directory: str
    model: str
    complete: bool
    tasks: Mapping[str, TaskStatus]


def status(directory: str | Path) -> RunStatus:
    """Say how far a run is, from its files alone.

    Raises:
        DataError: no run there.
    """
    run_directory = RunDirectory(directory)
    manifest = run_directory.manifest()
    tasks = {}
    for name, entry in manifest["tasks"].items():
        shards = shards_of(name, entry["n_examples"], entry["shard_size"])
        wanted = entry["score_fingerprint"]
        found = [run_directory.finished(shard, score_fingerprint=wanted) for shard in shards]
        receipts = [receipt for receipt in found if receipt is not None]
        by_status: Counter[str] = Counter()
        for receipt in receipts:
            by_status.update(receipt.states.by_status)
        spec = task_spec(entry)
        missing = [shard for shard, receipt in zip(shards, found, strict=True) if receipt is None]
        tasks[name] = TaskStatus(
            len(shards),
            len(receipts),
            entry["n_examples"],
            dict(sorted(by_status.items())),
            sum(stored(run_directory, shard, spec)[0] is not None for shard in missing)
            if spec.is_graded
            else 0,
        )
    complete = all(task.n_shards == task.n_shards_done for task in tasks.values())
    return RunStatus(str(directory), manifest["model"], complete, tasks)
