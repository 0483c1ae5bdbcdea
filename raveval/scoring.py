"""From stored replies to a committed receipt: the second half of every shard, with no model.

A worker calls it after its engine has answered, `raveval score` calls it on a finished run, and a
resumed run calls it where a process died between the two commits.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from raveval.evaluate import (
    Stage,
    TaskSpec,
    load_metric,
    load_protocol,
    read_replies,
    read_verdicts,
    score_examples,
    shard_states,
    usage_of,
)
from raveval.fingerprint import digest, digest_each
from raveval.store import Receipt, Replies, RunDirectory
from raveval.types import Shard


def score_shard(
    directory: RunDirectory,
    shard: Shard,
    task: TaskSpec,
    replies: Replies,
    verdicts: Replies | None = None,
) -> Receipt:
    """Score a shard's replies, graded or not, and commit its records, then its receipt."""
    examples = directory.read_examples(shard.task, shard.start, shard.stop)
    answers = read_replies(replies.table, examples)
    usage = usage_of(answers, engine_seconds=replies.engine_seconds)
    judge_usage = None
    if verdicts is not None:
        graded = read_verdicts(verdicts.table, examples)
        judge_usage = usage_of(graded, engine_seconds=verdicts.engine_seconds)
        answers = [(*each, *grades) for each, grades in zip(answers, graded, strict=True)]
    records = score_examples(examples, answers, task)
    receipt = Receipt(
        shard=shard,
        reply_fingerprint=task.reply_fingerprint,
        score_fingerprint=task.score_fingerprint,
        engine=replies.engine,
        judge=None if verdicts is None else verdicts.engine,
        states=shard_states(
            records,
            task.metrics,
            usage,
            counts=load_protocol(task.protocol).tally(records),
            judge_usage=judge_usage,
        ),
    )
    directory.commit_scores(receipt, records)
    return receipt


def stored(
    directory: RunDirectory, shard: Shard, task: TaskSpec
) -> tuple[Replies | None, Replies | None]:
    """Return the replies of a shard and the verdicts on them, each None where there are none."""
    replies = directory.read_replies(shard, fingerprint=task.reply_fingerprint, stage=Stage.ANSWER)
    if replies is None or not task.is_graded:
        return replies, None
    wanted = verdicts_fingerprint(task, replies)
    return replies, directory.read_replies(shard, fingerprint=wanted, stage=Stage.GRADE)


def verdicts_fingerprint(task: TaskSpec, replies: Replies) -> str:
    """Return the hash of all that verdicts on these replies depend on, the replies included.

    Replies that were made again may differ in a word, and old verdicts are none on them.
    """
    columns = (replies.table[name].to_pylist() for name in ("id", "reply"))
    return digest([task.verdict_fingerprint, digest_each(zip(*columns, strict=True))])


def n_changed(before: pa.Table, after: pa.Table, task: TaskSpec) -> int:
    """Return how many examples of a shard have another status, or other values in its metrics.

    The values are those of the columns that a metric of the task reads. One that only either table
    has is a change of the layout, not of a verdict, and left out.
    """
    read = {field.name for name in task.metrics for field in load_metric(name).columns}
    names = [name for name in ("status", *sorted(read)) if name in before.column_names]
    names = [name for name in names if name in after.column_names]
    return sum(a != b for a, b in zip(_rows(before, names), _rows(after, names), strict=True))


def _rows(records: pa.Table, names: list[str]) -> list[tuple[Any, ...]]:
    return list(zip(*(records[name].to_pylist() for name in names), strict=True))
