"""Opens a finished run for export: its results, and beside them what was asked and answered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from raveval.errors import DataError
from raveval.evaluate import Stage, read_replies
from raveval.lm_eval.terms import BOUNDARY, Term, boundary_chars, in_their_terms, terms_of
from raveval.store import RunDirectory, shards_of
from raveval.types import Answers, Estimate, Example, Results, Shard, TaskResults

OUTPUT_TYPES: Mapping[str, str] = {
    "multiple_choice": "multiple_choice",
    "question_answering": "generate_until",
    "language_modelling": "loglikelihood_rolling",
}
"""What lm-eval calls our protocols; those of judges have no counterpart."""

CONTINUATION = "loglikelihood"
"""What it calls language modelling where a continuation of a context is scored."""


class Part(NamedTuple):
    """A shard: its examples, their records (with the column `BOUNDARY`) and raw answers.

    `start` is the place of the first one in the run; `answers` is None where the replies are gone.
    """

    start: int
    examples: list[Example]
    records: pa.Table
    answers: list[Answers] | None


@dataclass(frozen=True)
class FinishedTask:
    """One task of a finished run; `entry` is what run.json says of it."""

    name: str
    entry: Mapping[str, Any]
    results: TaskResults
    files: RunDirectory

    @property
    def metrics(self) -> list[str]:
        """The task's metric families."""
        return list(self.entry["metrics"])

    @property
    def shards(self) -> list[Shard]:
        """The task's shards, in order."""
        return shards_of(self.name, self.entry["n_examples"], self.entry["shard_size"])

    def examples(self, shard: Shard) -> list[Example]:
        """Return what was asked in a shard."""
        return self.files.read_examples(self.name, shard.start, shard.stop)

    def parts(self) -> Iterator[Part]:
        """Yield everything that is known of the task, a shard at a time."""
        for shard in self.shards:
            examples = self.examples(shard)
            found = self.files.read_replies(
                shard, fingerprint=self.entry["reply_fingerprint"], stage=Stage.ANSWER
            )
            answers = None if found is None else read_replies(found.table, examples)
            records = _with_boundary(self.files.read_records(shard), examples)
            yield Part(shard.start, examples, records, answers)

    @cached_property
    def records(self) -> pa.Table:
        """The records of the whole task, with the column `BOUNDARY`."""
        tables = [
            _with_boundary(self.files.read_records(shard), self.examples(shard))
            for shard in self.shards
        ]
        return pa.concat_tables(tables)

    @cached_property
    def output_type(self) -> str | None:
        """What lm-eval calls the way in which the task is asked; None where it has no word."""
        if self.results.protocol == "language_modelling" and self.shards:
            first = self.files.read_examples(self.name, 0, 1)[0]
            if first.continuations:
                return CONTINUATION
        return OUTPUT_TYPES.get(self.results.protocol)

    @property
    def terms(self) -> tuple[Term, ...]:
        """lm-eval's metrics of the task."""
        if self.output_type is None:
            return ()
        return terms_of(self.output_type, self.metrics)

    def estimates(self) -> dict[str, Estimate]:
        """Return the task's numbers by lm-eval's names, means over its groups among them."""
        pooled = self.results.metrics
        found = in_their_terms(pooled, self.terms, self.metrics, self.records)
        renamed = {term.estimate: term.name for term in self.terms if term.is_renaming}
        macro = self.results.macro.items()
        return found | {f"macro_{renamed.get(name, name)}": value for name, value in macro}

    def group_estimates(self, group: str) -> dict[str, Estimate]:
        """Return the numbers of one of the task's groups by lm-eval's names."""
        mask = pa.array([each == group for each in self.records["group"].to_pylist()])
        own = self.results.groups[group]
        return in_their_terms(own, self.terms, self.metrics, self.records.filter(mask))


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A finished run: what run.json and results.json say of it."""

    files: RunDirectory
    manifest: Mapping[str, Any]
    results: Results

    @property
    def tasks(self) -> list[FinishedTask]:
        """The run's tasks, in order."""
        entries = self.manifest["tasks"]
        return [
            FinishedTask(name, entries[name], found, self.files)
            for name, found in self.results.tasks.items()
        ]


def open_finished(directory: str | Path) -> FinishedRun:
    """Return a finished run.

    Raises:
        DataError: no run there, one that is not finished, or one that was itself imported.
    """
    from raveval import runner

    files = RunDirectory(directory)
    manifest = files.read_manifest()
    if manifest is None:
        raise DataError(f"{directory}: no run of raveval here (no run.json)")
    if "imported" in manifest:
        file = manifest["imported"]["file"]
        raise DataError(f"{directory}: was itself imported, from {file}; use that file")
    results = runner.load_results(directory)
    new = [name for name in manifest["tasks"] if name not in results.tasks]
    if new:
        raise DataError(
            f"{directory}: results.json lacks the task {new[0]!r}; run the run to its end first"
        )
    return FinishedRun(files, manifest, results)


def _with_boundary(records: pa.Table, examples: list[Example]) -> pa.Table:
    """Return the records with the column that `acc_norm` needs."""
    boundaries = {example.id: boundary_chars(example.continuations) for example in examples}
    column = [boundaries[id] for id in records["id"].to_pylist()]
    return records.append_column(BOUNDARY, pa.array(column, pa.int32()))
