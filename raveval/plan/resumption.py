"""Checks a plan against a run that is there already: what may go on, and what is another run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raveval.errors import MismatchError
from raveval.fingerprint import first_difference
from raveval.plan.task import PlannedTask, verdict_difference
from raveval.store import RunDirectory


def reconcile(
    directory: RunDirectory, planned: Sequence[PlannedTask], shard_size: int
) -> dict[str, int]:
    """Check tasks against a run that is already there, and return each one's shard size.

    The driver does so once more when it holds the directory: another may have been faster.

    A task keeps the shards it was begun with, whatever the config now says: their size moves no
    number, and finished ones stay finished. New tasks may join a run; none may vanish.

    Raises:
        MismatchError: what moves numbers differs; the message names the key.
    """
    manifest = directory.read_manifest()
    if manifest is None:
        return {task.name: shard_size for task in planned}
    if "imported" in manifest:
        raise MismatchError(f"{directory.path}: holds an imported run; choose another output")
    known: dict[str, Any] = manifest["tasks"]
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
        _check_verdict(directory, name, entry.get("verdict"), by_name[name].verdict)
    return {name: known[name]["shard_size"] if name in known else shard_size for name in by_name}


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
