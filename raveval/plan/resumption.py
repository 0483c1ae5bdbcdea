"""Checks a plan against a run that is there already: what may go on, and what is another run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raveval.errors import MismatchError
from raveval.evaluate import Stage
from raveval.fingerprint import first_difference
from raveval.plan.task import PlannedTask, verdict_difference
from raveval.store import RunDirectory


def reconcile(
    directory: RunDirectory, planned: Sequence[PlannedTask], shard_sizes: Mapping[str, int]
) -> dict[str, int]:
    """Check tasks against a run that is already there, and return each one's shard size.

    `shard_sizes` are those of tasks that are new. A task of which nothing was made yet is new too,
    whatever run.json says: a checkpoint that could not be loaded binds nobody.

    The driver does so once more when it holds the directory: another may have been faster.

    A task keeps the shards it was begun with, whatever the config now says: their size moves no
    number, and finished ones stay finished. New tasks may join a run; none may vanish.

    Raises:
        MismatchError: what moves numbers differs; the message names the key.
    """
    manifest = directory.read_manifest()
    if manifest is None:
        return {task.name: shard_sizes[task.name] for task in planned}
    if "imported" in manifest:
        raise MismatchError(f"{directory.path}: holds an imported run; choose another output")
    known = {
        name: entry
        for name, entry in manifest["tasks"].items()
        if directory.has_made(name, stage=Stage.ANSWER)
    }
    by_name = {task.name: task for task in planned}
    for name, entry in known.items():
        if name not in by_name:
            raise MismatchError(
                f"{directory.path}: holds a run with the task {name!r}, which is not asked for "
                "now; add it, or choose another output"
            )
        difference = first_difference(entry["reply"], by_name[name].reply)
        if difference is not None:
            key, old, new = difference
            what = {"examples": "the examples (rows, prompts or shots)"}.get(key, key)
            raise MismatchError(
                f"{directory.path}: holds another run: {what} of task {name!r} was {old!r}, now "
                f"it is {new!r}. Choose another output, or set it back"
            )
        if directory.has_made(name, stage=Stage.GRADE):
            _check_verdict(directory, name, entry.get("verdict"), by_name[name].verdict)
    return {
        name: known[name]["shard_size"] if name in known else shard_sizes[name] for name in by_name
    }


def _check_verdict(
    directory: RunDirectory,
    task: str,
    old: Mapping[str, Any] | None,
    new: Mapping[str, Any] | None,
) -> None:
    """Refuse another judge, or another way of asking it, where verdicts may be there."""
    difference = verdict_difference(old, new)
    if difference is not None:
        what, before, now = difference
        raise MismatchError(
            f"{directory.path}: holds a run that is graded otherwise: {what} in task {task!r} was "
            f"{before!r}, now it is {now!r}. Choose another output, with run.answers_from: "
            f"{directory.path} to take over the answers, or set it back"
        )
