"""Run directories made by hand: records of any content, of runs that are finished or not."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from raveval.evaluate import load_protocol, shard_states
from raveval.fingerprint import digest
from raveval.protocols import schema
from raveval.store import Attempt, Receipt, RunDirectory, shards_of
from raveval.types import Shard, Usage, row_key

Row = Mapping[str, Any]

REPLY = {
    "model": {"weights": "w"},
    "engine": {"name": "scripted"},
    "dtype": "float32",
    "max_model_len": 100,
    "protocol": {"name": "p", "version": 1},
    "num_fewshot": 0,
    "seed": 1234,
    "sampling": {"temperature": 0.0, "stop": ["x"]},
    "examples": "e",
}
SCORE = {"protocol": 1, "scoring": "raw", "no_answer": None, "metrics": {"m": 1}, "clusters": 1}


def choice(id: str, is_correct: bool | None, **columns: Any) -> Row:
    """A record of multiple choice with two choices; None is an example that failed."""
    if is_correct is None:
        return {"id": id, "status": "failed", **columns}
    logprobs = [-1.0, -2.0] if is_correct else [-2.0, -1.0]
    return {"id": id, "gold": 0, "scoring": "raw", "logprob_nats": logprobs, **columns}


def document(id: str, logprob_nats: float, n_tokens: int, **columns: Any) -> Row:
    """A record of language modelling; every token is a word of five bytes."""
    sizes = {"n_words": 10, "n_bytes": 50, "n_chars": 50}
    return {"id": id, "logprob_nats": logprob_nats, "n_tokens": n_tokens, **sizes, **columns}


def write_run(
    path: str | Path,
    tasks: Mapping[str, Sequence[Row]],
    *,
    protocol: str = "multiple_choice",
    metrics: Sequence[str] = ("accuracy",),
    shard_size: int = 7,
    reply: Mapping[str, Any] | None = None,
    score: Mapping[str, Any] | None = None,
    unfinished: Collection[int] = (),
    judge: str | None = None,
) -> str:
    """Write a run of these records, in their order, without some of the shards.

    `judge` is the directory of the model that graded the answers; another one has other weights.
    """
    directory = RunDirectory(path)
    entries = {}
    for name, rows in tasks.items():
        asked = {**REPLY, "n_examples": len(rows), **(reply or {})}
        scored = {**SCORE, **(score or {})}
        fingerprint = digest([asked, scored])
        entries[name] = {
            "protocol": protocol,
            "metrics": list(metrics),
            "n_examples": len(rows),
            "row_key_sum": sum(row_key(row["id"]) for row in rows) % 2**64,
            "num_fewshot": 0,
            "version": 1,
            "provenance": {},
            "shard_size": shard_size,
            "reply": asked,
            "verdict": judge and {"judge": {"model": {"weights": digest(judge)}}},
            "score": scored,
            "score_fingerprint": fingerprint,
        }
        for shard in shards_of(name, len(rows), shard_size):
            if shard.index not in unfinished:
                table = _records(protocol, rows[shard.start : shard.stop])
                states = shard_states(table, metrics, Usage())
                directory.commit_scores(Receipt(shard, "r", fingerprint, {}, states), table)
    directory.write_manifest({"model": directory.name, "judge": judge, "tasks": entries})
    return str(path)


def _records(protocol: str, rows: Sequence[Row]) -> pa.Table:
    common = {"status": "ok", "message": None}
    full = [{**common, "row_key": row_key(row["id"]), **row} for row in rows]
    return pa.Table.from_pylist(full, schema=schema(load_protocol(protocol).COLUMNS))


def begun(directory: RunDirectory, shard: Shard, *, session: str) -> Attempt:
    """Take up a shard as a replica does: the note is there, an answer is not."""
    attempt = directory.next_attempt(shard, session=session)
    directory.note(shard, attempt)
    return attempt
