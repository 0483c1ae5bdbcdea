"""One shard, start to finish, in plain async Python: no Ray, no files.

`answer_examples` questions an engine about some examples at once and turns whatever goes wrong with
one of them into a value; `grade_examples` lets a judge grade the answers; `score_examples` turns
what is stored of both into records; `shard_states` turns records into metric states by group. What
a shard means is written here; where shards run is not.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from raveval import registry
from raveval.engines import Engine, EngineDied
from raveval.errors import ConfigError, RavevalError, RunError, raised_at
from raveval.metrics import Json, Metric
from raveval.metrics._clusters import clustered
from raveval.protocols import (
    Ask,
    EvaluationProtocol,
    GradedProtocol,
    Record,
    TaskSettings,
    schema,
)
from raveval.types import (
    Answers,
    ChoiceScores,
    Completion,
    DocumentScore,
    Example,
    Failure,
    Reply,
    Request,
    Status,
    Usage,
)


class Stage(StrEnum):
    """Which model is asked: the one under evaluation, or the judge of its answers."""

    ANSWER = "answer"
    GRADE = "grade"


POOLED = ""
"""The group under which a task's states over all examples stand."""

REPLY_COLUMNS = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("row_key", pa.uint64(), nullable=False),
        pa.field("index", pa.int32(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("reply", pa.string(), nullable=False),
    ]
)
"""Stored replies: one row per reply, its fields as JSON (doubles round-trip exactly)."""

OnEach = Callable[[], None]
"""Is told of each example that is done, whatever came of it."""

_METRIC_PARTS = tuple(
    part for part in (*Metric.__annotations__, *vars(Metric)) if not part.startswith("_")
)
_REPLIES = (Completion, ChoiceScores, DocumentScore, Failure)
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in _REPLIES}


def load_protocol(name: str) -> EvaluationProtocol:
    """Return the protocol of that name.

    Raises:
        ConfigError: no such protocol.
    """
    return cast("EvaluationProtocol", registry.load("protocols", name))


def graded(protocol: EvaluationProtocol) -> GradedProtocol | None:
    """Return the protocol as one whose answers a judge grades; None where none does."""
    return cast("GradedProtocol", protocol) if hasattr(protocol, "grade") else None


def load_metric(name: str) -> Metric[Any]:
    """Return the metric family of that name, with intervals that know clusters.

    Raises:
        ConfigError: no such metric, or a module whose METRIC is none.
    """
    metric = registry.load("metrics", name).METRIC
    lacking = [part for part in _METRIC_PARTS if not hasattr(metric, part)]
    if lacking:
        raise ConfigError(
            f"metric {name!r}: its METRIC is no metric: it has no `{lacking[0]}` (what a metric "
            "is stands in raveval/metrics/__init__.py; raveval.metrics.Means makes simple ones)"
        )
    return clustered(metric)


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """What must be known of a task to evaluate any shard of it, beside the examples.

    `verdict_fingerprint` is that of what the judge says; None where no judge grades the answers.
    """

    protocol: str
    settings: TaskSettings
    metrics: tuple[str, ...]
    reply_fingerprint: str
    score_fingerprint: str
    verdict_fingerprint: str | None = None

    @property
    def is_graded(self) -> bool:
        """Whether a judge grades the answers."""
        return self.verdict_fingerprint is not None


async def answer_examples(
    examples: Sequence[Example], engine: Engine, task: TaskSpec, *, on_each: OnEach | None = None
) -> list[Answers]:
    """Question `engine` about all examples at once; the answers come back in their order.

    Args:
        examples: what to ask.
        engine: whom.
        task: how.
        on_each: called as soon as an example waits for nothing any more.

    Raises:
        EngineDied: the engine is gone; nothing of this shard is known.
    """
    protocol = load_protocol(task.protocol)

    def answer(index: int, ask: Ask) -> Awaitable[Answers]:
        return protocol.answer(examples[index], ask, task.settings)

    return await _question(len(examples), engine, answer, on_each)


async def grade_examples(
    examples: Sequence[Example],
    answers: Sequence[Answers],
    judge: Engine,
    task: TaskSpec,
    *,
    on_each: OnEach | None = None,
) -> list[Answers]:
    """Let `judge` grade the answers to all examples at once; its replies come in their order.

    Args:
        examples: what was asked.
        answers: what the candidate said to each.
        judge: whom to ask.
        task: how.
        on_each: called as soon as an example waits for nothing any more.

    Raises:
        EngineDied: the engine is gone; nothing of this shard is known.
        ConfigError: no judge grades this protocol's answers.
    """
    protocol = graded(load_protocol(task.protocol))
    if protocol is None:
        raise ConfigError(f"protocol {task.protocol!r} has no answers for a judge to grade")

    def grade(index: int, ask: Ask) -> Awaitable[Answers]:
        return protocol.grade(examples[index], answers[index], ask, task.settings)

    return await _question(len(examples), judge, grade, on_each)


async def _question(
    n_examples: int,
    engine: Engine,
    recipe: Callable[[int, Ask], Awaitable[Answers]],
    on_each: OnEach | None,
) -> list[Answers]:
    """Follow a recipe for all examples at once; what goes wrong with one of them is a value."""

    async def ask(request: Request) -> Reply:
        try:
            reply: object = await engine.reply(request)
        except EngineDied:
            raise
        except Exception as exc:  # noqa: BLE001 - one question's fault must not cost the others
            return _broken(exc)
        if not isinstance(reply, _REPLIES):
            return Failure(Status.FAILED, f"the engine replied with {type(reply).__name__}")
        return _storable(reply)

    async def one(index: int) -> Answers:
        try:
            return await recipe(index, ask)
        except EngineDied:
            raise
        except Exception as exc:  # noqa: BLE001 - one example's fault must not end the shard
            return (_broken(exc),)
        finally:
            if on_each is not None:
                on_each()

    # A task group would hide EngineDied in an exception group; the first one raised is enough.
    asked = [asyncio.ensure_future(one(index)) for index in range(n_examples)]
    try:
        return list(await asyncio.gather(*asked))
    finally:
        for each in asked:
            each.cancel()


def _broken(exc: Exception) -> Failure:
    return Failure(Status.FAILED, _text(f"{type(exc).__name__}: {exc}"))


def _storable(reply: Reply) -> Reply:
    """Return a reply whose texts can be written: a server may cut an emoji's escapes in two."""
    if isinstance(reply, Completion):
        return replace(reply, text=_text(reply.text))
    return replace(reply, message=_text(reply.message)) if isinstance(reply, Failure) else reply


def _text(said: str) -> str:
    r"""Return a text with U+FFFD for each half of a surrogate pair that stands alone.

    >>> _text("a\ud83d"), _text("\ud83d\ude00") == "\U0001f600"
    ('a\ufffd', True)
    """
    return said.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def replies_table(examples: Sequence[Example], answers: Sequence[Answers]) -> pa.Table:
    """Return the answers as a table that `read_replies` gives back unchanged."""
    rows = [
        {
            "id": example.id,
            "row_key": example.row_key,
            "index": index,
            "kind": type(reply).__name__,
            "reply": json.dumps(asdict(reply), ensure_ascii=False),
        }
        for example, replies in zip(examples, answers, strict=True)
        for index, reply in enumerate(replies)
    ]
    return pa.Table.from_pylist(rows, schema=REPLY_COLUMNS)


def read_replies(table: pa.Table, examples: Sequence[Example]) -> list[Answers]:
    """Return the answers of `examples`, in their order, from a table of `replies_table`.

    Raises:
        KeyError: an example has no reply in the table.
    """
    by_id = _by_id(table)
    return [by_id[example.id] for example in examples]


def read_verdicts(table: pa.Table, examples: Sequence[Example]) -> list[Answers]:
    """Return a judge's replies as `read_replies` does; of what failed before it there are none."""
    by_id = _by_id(table)
    return [by_id.get(example.id, ()) for example in examples]


def _by_id(table: pa.Table) -> dict[str, Answers]:
    by_id: dict[str, list[Reply]] = {}
    for row in table.to_pylist():
        by_id.setdefault(row["id"], []).append(_reply(row["kind"], json.loads(row["reply"])))
    return {id: tuple(replies) for id, replies in by_id.items()}


def _reply(kind: str, fields: dict[str, Any]) -> Reply:
    if kind == "Failure":
        return Failure(**{**fields, "status": Status(fields["status"])})
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
    return cast("Reply", _KINDS[kind](**values))


def score_examples(
    examples: Sequence[Example], answers: Sequence[Answers], task: TaskSpec
) -> pa.Table:
    """Return one record per example, with the protocol's schema; pure.

    Where a judge grades, its replies stand after the candidate's.
    """
    protocol = load_protocol(task.protocol)
    rows = []
    for example, replies in zip(examples, answers, strict=True):
        status, message, columns = _score(protocol, example, replies, task.settings)
        rows.append(
            {
                "id": example.id,
                "row_key": example.row_key,
                "group": example.group,
                "cluster": example.cluster,
                "status": str(status),
                "message": message,
                **columns,
            }
        )
    return protocol.derive(pa.Table.from_pylist(rows, schema=schema(protocol.COLUMNS)))


def _score(
    protocol: EvaluationProtocol, example: Example, replies: Answers, settings: TaskSettings
) -> tuple[Status, str | None, Record]:
    """Score one example; a reply that cannot be scored costs that example, not the run."""
    try:
        return protocol.score(example, replies, settings)
    except Exception as exc:  # noqa: BLE001 - the reply's fault or the protocol's, it is counted
        return Status.FAILED, f"cannot be scored: {type(exc).__name__}: {exc}", {}


@dataclass(frozen=True, slots=True)
class ShardStates:
    """What a shard adds to the run: everything in it is a value that can be added.

    `states` holds encoded metric states by group and metric; the group `POOLED` is all examples.
    `row_key_sum` is modulo 2^64: with `n_rows` it betrays a lost or doubled row. `counts` are the
    protocol's, over all examples. `judge_usage` is what a judge cost; None where none grades.
    """

    n_rows: int
    row_key_sum: int
    by_status: Mapping[str, int]
    usage: Usage
    states: Mapping[str, Mapping[str, Json]]
    counts: Mapping[str, int] = field(default_factory=dict)
    judge_usage: Usage | None = None


def shard_states(
    records: pa.Table,
    metrics: Sequence[str],
    usage: Usage,
    *,
    counts: Mapping[str, int] | None = None,
    judge_usage: Usage | None = None,
) -> ShardStates:
    """Return the exact states of a shard's records, pooled and by group."""
    keys = records.column("row_key").to_pylist()
    statuses = Counter(records.column("status").to_pylist())
    is_scored = pa.array([Status(s).is_scored for s in records.column("status").to_pylist()])
    scored = records.filter(is_scored)
    groups = [group for group in pc.unique(records.column("group")).to_pylist() if group]
    tables = {POOLED: scored}
    for group in sorted(groups):
        tables[group] = scored.filter(pc.equal(scored.column("group"), group))
    return ShardStates(
        n_rows=records.num_rows,
        row_key_sum=sum(keys) % 2**64,
        by_status=dict(sorted(statuses.items())),
        usage=usage,
        states={
            group: {name: _encoded_state(name, table) for name in metrics}
            for group, table in tables.items()
        },
        counts=counts or {},
        judge_usage=judge_usage,
    )


def _encoded_state(name: str, records: pa.Table) -> Json:
    metric = load_metric(name)
    try:
        return metric.encode(metric.update(metric.init(), records))
    except RavevalError:
        raise
    except Exception as exc:
        raise RunError(
            f"metric {name!r} fails on these records: {raised_at(exc)}. The replies are kept: mend "
            "the metric, and run the same command again"
        ) from exc


def usage_of(answers: Sequence[Answers], *, engine_seconds: float = 0.0) -> Usage:
    """Return what the answers cost; tokens depend on the requests alone."""
    replies = [reply for each in answers for reply in each if not isinstance(reply, Failure)]
    return Usage(
        n_prompt_tokens=sum(reply.n_prompt_tokens for reply in replies),
        n_output_tokens=sum(r.n_output_tokens for r in replies if isinstance(r, Completion)),
        engine_seconds=engine_seconds,
    )
