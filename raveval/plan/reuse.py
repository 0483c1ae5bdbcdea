"""Takes over the answers of another run, so that they can be graded again or otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from raveval.errors import DataError, MismatchError
from raveval.evaluate import Stage
from raveval.fingerprint import first_difference
from raveval.plan.task import PlannedTask
from raveval.store import RunDirectory
from raveval.types import Shard


def shard_sizes(source: str, planned: Sequence[PlannedTask]) -> dict[str, int]:
    """Return the shards' size in the run that answers are taken over from, for each task.

    Raises:
        DataError: no run there.
        MismatchError: its answers are to other questions, or another model's.
    """
    where = f"run.answers_from: {source}"
    known = RunDirectory(source).read_manifest()
    if known is None:
        raise DataError(f"{where}: no run of raveval there (no run.json)")
    sizes = {}
    for task in planned:
        theirs = known["tasks"].get(task.name)
        if theirs is None:
            raise MismatchError(f"{where}: has no task {task.name!r}; leave answers_from out")
        difference = first_difference(theirs["reply"], task.reply)
        if difference is not None:
            key, old, new = difference
            raise MismatchError(
                f"{where}: {key} of task {task.name!r} was {old!r} there, here it is {new!r}; "
                "answers can be taken over from a run that was asked the same of the same model"
            )
        sizes[task.name] = int(theirs["shard_size"])
    return sizes


def take_over(
    source: str,
    directory: RunDirectory,
    fingerprints: Mapping[str, str],
    shards: Sequence[Shard],
    *,
    say: Callable[[str], None],
) -> None:
    """Copy the replies that another run has and this one lacks; what failed there is asked again.

    Args:
        source: the directory of a run that `shard_sizes` accepted.
        directory: of the run to copy to.
        fingerprints: of the replies, by task.
        shards: of this run.
        say: hears how many were copied.
    """
    other = RunDirectory(source)

    def take(shard: Shard) -> bool:
        fingerprint = fingerprints[shard.task]
        if directory.read_replies(shard, fingerprint=fingerprint, stage=Stage.ANSWER) is not None:
            return False
        replies = other.read_replies(shard, fingerprint=fingerprint, stage=Stage.ANSWER)
        if replies is None or other.has_failures(shard, stage=Stage.ANSWER):
            return False
        directory.commit_replies(shard, replies, stage=Stage.ANSWER)
        return True

    n_taken = sum(directory.over(shards, take))
    if n_taken:
        say(f"{n_taken} of {len(shards)} shards are answered in {source}")
