"""Reads a finished run of an evaluator attempt by attempt, and looks for what does not add up."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raveval.evaluate import Stage, TaskSpec, load_protocol, read_replies
from raveval.passes import task_spec
from raveval.store import RunDirectory, shards_of
from raveval.types import (
    Answers,
    Completion,
    Example,
    Failure,
    Generate,
    Reply,
    Request,
    Status,
    TaskResults,
)

Key = tuple[str, str]
"""The id of an example, and the label of an attempt: which verdict, which try."""


@dataclass(frozen=True)
class Attempt:
    """One question to the judge, and what is stored of its answer."""

    request: Generate
    reply: Completion | Failure


@dataclass(frozen=True)
class JudgedTask:
    """All that is on disk of one task; `problems` is what does not add up in it."""

    examples: dict[str, Example]
    attempts: dict[Key, Attempt]
    records: dict[str, dict[str, Any]]
    problems: list[str]


def read_task(output: Path, name: str, results: TaskResults) -> JudgedTask:
    """Return what is on disk of a task, every attempt with the question that the protocol asks."""
    directory = RunDirectory(output)
    manifest = directory.read_manifest()
    assert manifest is not None
    entry = manifest["tasks"][name]
    spec = task_spec(entry)
    examples: dict[str, Example] = {}
    attempts: dict[Key, Attempt] = {}
    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    for shard in shards_of(name, entry["n_examples"], entry["shard_size"]):
        asked = directory.read_examples(name, shard.start, shard.stop)
        stored = directory.read_replies(
            shard, fingerprint=spec.reply_fingerprint, stage=Stage.ANSWER
        )
        assert stored is not None, f"{name}: shard {shard.index} has no replies"
        for example, answers in zip(asked, read_replies(stored.table, asked), strict=True):
            examples[example.id] = example
            found, problem = asyncio.run(_asked_again(example, answers, spec))
            attempts |= {(example.id, label): attempt for label, attempt in found.items()}
            problems += [f"{name}: {example.id}: {problem}"] if problem else []
        rows += directory.read_records(shard).to_pylist()
    records = {row["id"]: row for row in rows}
    problems += [f"{name}: {problem}" for problem in _miscounted(results, rows, attempts)]
    if list(examples) != list(records) or len(examples) != entry["n_examples"]:
        problems.append(f"{name}: records are not those of the {entry['n_examples']} examples")
    return JudgedTask(examples, attempts, records, problems)


async def _asked_again(
    example: Example, answers: Answers, spec: TaskSpec
) -> tuple[dict[str, Attempt], str | None]:
    """Let the protocol ask its questions again, answered from what is stored, and compare."""
    stored = {reply.label: reply for reply in answers if isinstance(reply, Completion | Failure)}
    attempts: dict[str, Attempt] = {}

    async def ask(request: Request) -> Reply:
        assert isinstance(request, Generate)
        label = request.key.removeprefix(f"{example.id}#")
        reply = stored.get(label, Failure(Status.FAILED, "there is no stored answer"))
        attempts[label] = Attempt(request, reply)
        return reply

    again = await load_protocol(spec.protocol).answer(example, ask, spec.settings)
    if again != answers or len(attempts) != len(answers):
        return attempts, "the stored attempts are not those that the protocol asks for"
    return attempts, None


def _miscounted(
    results: TaskResults, rows: list[dict[str, Any]], attempts: dict[Key, Attempt]
) -> Iterator[str]:
    """Yield every sum that is not what it should be."""
    coverage, notes = results.coverage, results.notes
    statuses = Counter(row["status"] for row in rows)
    n_missing = sum(n for status, n in statuses.items() if not Status(status).is_scored)
    refused = Counter(reason for row in rows for reason in row["refused"] or ())
    answered = [each.reply for each in attempts.values() if isinstance(each.reply, Completion)]
    per_example = Counter(id for id, _ in attempts)
    n_read = sum(score is not None for row in rows for score in _verdicts(row))
    sums = {
        "examples by status": (dict(coverage.by_status), dict(statuses)),
        "attempted = scored + missing": (coverage.n_attempted, coverage.n_scored + n_missing),
        "rows": (coverage.n_attempted, len({row["id"] for row in rows})),
        "missing rows that say why": (
            n_missing,
            sum(bool(r["message"]) for r in rows if not Status(r["status"]).is_scored),
        ),
        "attempts": (notes["attempts"], len(attempts)),
        "attempts by example": ({r["id"]: r["n_attempts"] for r in rows}, dict(per_example)),
        "attempts = verdicts + refused + unanswered": (
            len(attempts),
            n_read + refused.total() + len(attempts) - len(answered),
        ),
        "refused by kind": (
            {name: n for name, n in notes.items() if name.startswith("refused_")},
            {f"refused_{reason.replace(' ', '_')}": n for reason, n in refused.items()},
        ),
        "tie rounds": (
            notes.get("tie_rounds", 0),
            sum((row.get("n_rounds") or 1) - 1 for row in rows),
        ),
        "prompt tokens": (
            results.usage.n_prompt_tokens,
            sum(reply.n_prompt_tokens for reply in answered),
        ),
        "output tokens": (
            results.usage.n_output_tokens,
            sum(reply.n_output_tokens for reply in answered),
        ),
    }
    for what, (reported, counted) in sums.items():
        if reported != counted:
            yield f"{what}: reported {reported}, counted {counted}"


def _verdicts(row: dict[str, Any]) -> list[int | None]:
    """Return the scores that a record holds; None for each that could not be read."""
    sides = ("rating",) if "rating" in row else ("scores_a", "scores_b")
    return [score for side in sides for score in row[side] or ()]
