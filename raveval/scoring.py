"""From stored replies to a committed receipt: the second half of every shard, with no model.

A worker calls it after its engine has answered, `raveval score` calls it on a finished run, and a
resumed run calls it where a process died between the two commits.
"""

from __future__ import annotations

from raveval.evaluate import TaskSpec, read_replies, score_examples, shard_states, usage_of
from raveval.store import Receipt, Replies, RunDirectory
from raveval.types import Shard


def score_shard(directory: RunDirectory, shard: Shard, task: TaskSpec, replies: Replies) -> Receipt:
    """Score a shard's replies and commit its records, then its receipt."""
    examples = directory.read_examples(shard.task, shard.start, shard.stop)
    answers = read_replies(replies.table, examples)
    records = score_examples(examples, answers, task)
    usage = usage_of(answers, engine_seconds=replies.engine_seconds)
    receipt = Receipt(
        shard=shard,
        reply_fingerprint=task.reply_fingerprint,
        score_fingerprint=task.score_fingerprint,
        engine=replies.engine,
        states=shard_states(records, task.metrics, usage),
    )
    directory.commit_scores(receipt, records)
    return receipt
