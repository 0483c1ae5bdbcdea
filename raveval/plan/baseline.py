"""Another run's answers to the same instructions, as what a judge compares new answers with."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from raveval.errors import DataError, MismatchError
from raveval.protocols.open_generation import BASELINE
from raveval.store import RunDirectory, shards_of
from raveval.types import Example, Shard

_ASKED = ("instruction", "context", "before_response")
"""Fields that say what is asked for: what a judge is shown, beside rubric, reference, answers."""


def with_baseline(
    examples: Sequence[Example], directory: str, *, task: str
) -> tuple[tuple[Example, ...], dict[str, str]]:
    """Return the examples with a run's answers to them, and what a reader must know of those.

    The runs may have asked with other prompts (a chat template, say); what is asked for, the
    judge's instruction, has to be the same.

    Raises:
        DataError: no run there, or it is not finished.
        MismatchError: it does not have the task, or not one of the examples.
    """
    run = RunDirectory(directory)
    where = f"evaluate.baseline: {directory}"
    manifest = run.read_manifest()
    if manifest is None:
        raise DataError(f"{where}: no run of raveval there (no run.json)")
    entry = manifest["tasks"].get(task)
    if entry is None or entry.get("verdict") is None:
        graded = [name for name, each in manifest["tasks"].items() if each.get("verdict")]
        raise MismatchError(
            f"{where}: has no answers to task {task!r}; its tasks with a judge: "
            f"{', '.join(graded) or 'none'}"
        )
    n_examples = entry["n_examples"]
    instructions = {e.id: e.fields for e in run.read_examples(task, 0, n_examples)}
    answers = dict(_answers(run, task, n_examples, entry["shard_size"]))
    for example in examples:
        known = instructions.get(example.id)
        if known is None or _asked(known) != _asked(example.fields):
            what = "is not in it" if known is None else "asks for something else there"
            raise MismatchError(
                f"{where}: example {example.id!r} of task {task!r} {what}; a baseline is a run "
                "on the same data"
            )
    n_missing = sum(answers.get(example.id) is None for example in examples)
    return tuple(_beside(example, answers.get(example.id)) for example in examples), {
        "baseline": directory,
        "baseline_model": str(manifest["model"]),
        **({"baseline_missing": str(n_missing)} if n_missing else {}),
    }


def _answers(
    run: RunDirectory, task: str, n_examples: int, shard_size: int
) -> Iterator[tuple[str, str | None]]:

    def records_of(shard: Shard) -> pa.Table:
        if run.read_receipt(shard) is None:
            raise DataError(
                f"evaluate.baseline: {run.path}: shard {shard.index} of task {task!r} is not done; "
                "run it to its end first"
            )
        return run.read_records(shard)

    for records in run.over(shards_of(task, n_examples, shard_size), records_of):
        yield from zip(records["id"].to_pylist(), records["response"].to_pylist(), strict=True)


def _asked(fields: Mapping[str, str]) -> list[str | None]:
    return [fields.get(key) for key in _ASKED]


def _beside(example: Example, answer: str | None) -> Example:
    if answer is None:
        return example
    return dataclasses.replace(example, fields={**example.fields, BASELINE: answer})
