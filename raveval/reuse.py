"""Takes over the answers of another run, so that they can be graded again or otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from raveval.errors import DataError, MismatchError
from raveval.evaluate import Stage
from raveval.fingerprint import first_difference
from raveval.store import RunDirectory
from raveval.types import Shard


def take_over(
    source: str,
    directory: RunDirectory,
    manifest: Mapping[str, Any],
    shards: Sequence[Shard],
    *,
    say: Callable[[str], None],
) -> None:
    """Copy the replies that another run has to the same questions and this one lacks.

    Raises:
        DataError: no run there.
        MismatchError: its answers are to other questions, or in other shards.
    """
    other = RunDirectory(source)
    where = f"run.answers_from: {source}"
    known = other.read_manifest()
    if known is None:
        raise DataError(f"{where}: no run of raveval there (no run.json)")
    for name, entry in manifest["tasks"].items():
        _check_same(where, name, known["tasks"].get(name), entry)
    n_taken = 0
    for shard in shards:
        fingerprint = manifest["tasks"][shard.task]["reply_fingerprint"]
        place = {"fingerprint": fingerprint, "stage": Stage.ANSWER}
        if directory.read_replies(shard, **place) is not None:
            continue
        replies = other.read_replies(shard, **place)
        if replies is not None:
            directory.commit_replies(shard, replies, stage=Stage.ANSWER)
            n_taken += 1
    say(f"{n_taken} of {len(shards)} shards are answered in {source}")


def _check_same(
    where: str, task: str, theirs: Mapping[str, Any] | None, ours: Mapping[str, Any]
) -> None:
    if theirs is None:
        raise MismatchError(f"{where}: has no task {task!r}; leave answers_from out")
    difference = first_difference(theirs["reply"], ours["reply"])
    if difference is None and theirs["shard_size"] != ours["shard_size"]:
        difference = ("shard_size", theirs["shard_size"], ours["shard_size"])
    if difference is not None:
        key, old, new = difference
        raise MismatchError(
            f"{where}: {key} of task {task!r} was {old!r} there, here it is {new!r}; answers can "
            "be taken over from a run that was asked the same of the same model"
        )
