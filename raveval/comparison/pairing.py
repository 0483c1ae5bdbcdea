"""Reads what runs say of the same examples, and refuses runs that were not asked the same.

Run directories alone are read: run.json, receipts and records; no model, no engine. Two runs may
differ in the model and in the engine, and in nothing else that moves numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raveval import report
from raveval.errors import DataError, MismatchError
from raveval.evaluate import load_metric
from raveval.fingerprint import first_difference
from raveval.metrics._exact import Integers
from raveval.plan.task import verdict_difference
from raveval.store import RunDirectory, shards_of
from raveval.types import Results, Shard, Status

MAY_DIFFER = frozenset({"model", "engine", "dtype", "max_model_len"})
"""What two compared runs may differ in, of all that their replies depend on."""

_RESCORED = ("protocol", "metrics", "clusters")
"""What `raveval score` brings up to date, of all that scores depend on."""

_ALWAYS = ("id", "status", "cluster")

WINDOWS = ("n_windows", "window_tokens")
"""Columns that say how a document was scored: in how many windows, of how many tokens."""


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run directory and what its run.json says of each task.

    `imported` are the results of a run that was imported from another tool's files: it may have
    tasks of which there are no records, and which run.json does not know.
    """

    files: RunDirectory
    model: str
    tasks: Mapping[str, Mapping[str, Any]]
    imported: Results | None = None
    judge: str | None = None

    @property
    def name(self) -> str:
        """The directory, as it was given."""
        return self.files.path

    @property
    def names(self) -> list[str]:
        """The tasks of the run, with records or without."""
        return list(self.tasks if self.imported is None else self.imported.tasks)

    def shards(self, task: str) -> list[Shard]:
        """Return the shards of a task."""
        entry = self.tasks[task]
        return shards_of(task, entry["n_examples"], entry["shard_size"])

    def is_done(self, shard: Shard) -> bool:
        """Whether a shard is answered and scored as run.json says."""
        wanted = self.tasks[shard.task]["score_fingerprint"]
        return self.files.finished(shard, score_fingerprint=wanted) is not None

    def columns(self, task: str) -> list[str]:
        """Return the columns of a task's records that its metrics read, and who is who."""
        metrics = [load_metric(name) for name in self.tasks[task]["metrics"]]
        read = (name for metric in metrics for name in (*metric.needs, *metric.optional))
        return list(dict.fromkeys((*_ALWAYS, *read)))


def open_run(directory: str | Path) -> OpenRun:
    """Return a run that is there, finished or not.

    Raises:
        DataError: no run there.
    """
    files = RunDirectory(directory)
    manifest = files.read_manifest()
    if manifest is None:
        raise DataError(f"{files.path}: no run of raveval here (no run.json)")
    imported = None
    if "imported" in manifest:
        imported = report.from_json(files.read_text("results.json"))
    return OpenRun(
        files, manifest["model"], manifest["tasks"], imported, judge=manifest.get("judge")
    )


def check_finished(run: OpenRun, tasks: Sequence[str]) -> None:
    """Refuse a run of which a shard is missing.

    Raises:
        DataError: how far it is, and what to do.
    """
    for task in tasks:
        shards = run.shards(task)
        done = run.files.over(shards, run.is_done)
        missing = [shard for shard, is_done in zip(shards, done, strict=True) if not is_done]
        if not missing:
            continue
        n_done = len(shards) - len(missing)
        if run.imported is not None:
            remedy = "import it again"
        elif all(run.files.read_receipt(shard) is not None for shard in missing):
            remedy = f"`raveval score {run.name}` brings the other scores up to date"
        else:
            remedy = "start the run again to go on where it stopped"
        raise DataError(
            f"{run.name}: task {task!r} is not finished: {n_done} of {len(shards)} shards are "
            f"done; {remedy}"
        )


def check_comparable(a: OpenRun, b: OpenRun, task: str) -> None:
    """Refuse two runs that were asked or scored differently.

    Raises:
        MismatchError: the first key that differs, with both values.
    """
    asked_a, asked_b = (_asked(run.tasks[task]["reply"]) for run in (a, b))
    difference = first_difference(asked_a, asked_b)
    if difference is not None:
        key, old, new = difference
        what = {"examples": "examples (rows, prompts or shots)"}.get(key, key)
        raise MismatchError(
            f"{b.name}: not comparable with {a.name}: {what} of task {task!r} is {new!r} here, "
            f"{old!r} there. Evaluate both models with the same settings"
        )
    _check_judged_alike(a, b, task)
    difference = first_difference(a.tasks[task]["score"], b.tasks[task]["score"])
    if difference is not None:
        key, old, new = difference
        remedy = "Evaluate both models with the same settings"
        if key.split(".", 1)[0] in _RESCORED and None not in (old, new):
            remedy = f"`raveval score {a.name}` and `raveval score {b.name}` score both alike"
        raise MismatchError(
            f"{b.name}: not comparable with {a.name}: task {task!r} was scored with {key} = "
            f"{new!r} here, {old!r} there. {remedy}"
        )


def _check_judged_alike(a: OpenRun, b: OpenRun, task: str) -> None:
    """Refuse runs whose answers were graded by other judges, or against something else."""
    difference = verdict_difference(*(run.tasks[task].get("verdict") for run in (a, b)))
    if difference is not None:
        what, old, new = difference
        if what.startswith("judge.model.") and a.judge != b.judge:
            what, old, new = "the judge", a.judge, b.judge  # by name: weights have digests only
        raise MismatchError(
            f"{b.name}: not comparable with {a.name}: {what} in task {task!r} is {new!r} here, "
            f"{old!r} there. run.answers_from takes over the answers of a run, to have them graded "
            "like the other's"
        )


def _asked(reply: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in reply.items() if key not in MAY_DIFFER}


def read_records(run: OpenRun, shards: Sequence[Shard], columns: Sequence[str]) -> pa.Table:
    """Return those columns of the records of some shards, in the fixed order of their examples.

    Raises:
        DataError: a file is missing or cannot be read.
    """
    tables = list(run.files.over(shards, run.files.read_records))
    present = [name for name in columns if tables and name in tables[0].column_names]
    return pa.concat_tables([table.select(present) for table in tables]) if tables else pa.table({})


@dataclass(frozen=True, slots=True)
class Paired:
    """The records of two runs on the examples scored in both, row by row, and the others' counts.

    `clusters` numbers the cluster of each row from 0; None where no two rows share one. A row
    without a cluster is one of its own.
    """

    a: pa.Table
    b: pa.Table
    n_only_a: int
    n_only_b: int
    n_neither: int
    clusters: Integers | None

    @property
    def n_clusters(self) -> int | None:
        """How many clusters the paired examples are in; None where each stands for itself."""
        return None if self.clusters is None else int(self.clusters.max(initial=-1)) + 1


def pair(a: pa.Table, b: pa.Table, *, where: str) -> Paired:
    """Pair records of the same examples by id.

    Raises:
        DataError: the examples are not the same; `where` says of what.
    """
    place = pc.index_in(a["id"], value_set=b["id"].combine_chunks())
    if len(a) != len(b) or place.null_count:
        raise DataError(
            f"{where}: the records are not of the same examples ({len(a)} and {len(b)} rows, "
            f"{place.null_count} without a partner); `raveval score` makes them again"
        )
    b = b.take(place.combine_chunks())
    in_a, in_b = _is_scored(a), _is_scored(b)
    both = pa.array(in_a & in_b)
    a, b = a.filter(both), b.filter(both)
    return Paired(
        a,
        b,
        n_only_a=int((in_a & ~in_b).sum()),
        n_only_b=int((~in_a & in_b).sum()),
        n_neither=int((~in_a & ~in_b).sum()),
        clusters=_cluster_numbers(a["cluster"]),
    )


def other_windows(found: Paired) -> str | None:
    """Say that the runs cut documents into other windows, which moves a perplexity by itself."""
    if not {*WINDOWS} <= {*found.a.column_names} & {*found.b.column_names}:
        return None
    (n_a, size_a), (n_b, size_b) = ([each[name] for name in WINDOWS] for each in (found.a, found.b))
    is_cut = pc.or_(pc.greater(n_a, 1), pc.greater(n_b, 1))
    n_differing = pc.sum(pc.and_(is_cut, pc.not_equal(size_a, size_b))).as_py()
    if not n_differing:
        return None
    return (
        f"{n_differing} of {len(found.a)} documents were scored in windows of "
        f"{pc.max(size_b).as_py()} tokens, the baseline's in windows of {pc.max(size_a).as_py()}: "
        "a part of the difference may be that of the context; set max_model_len alike"
    )


def _is_scored(records: pa.Table) -> NDArray[np.bool_]:
    statuses = records["status"].to_pylist()
    return np.fromiter((Status(status).is_scored for status in statuses), np.bool_, len(statuses))


def _cluster_numbers(column: pa.ChunkedArray) -> Integers | None:
    values = column.combine_chunks()
    encoded = values.dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    alone = codes < 0
    codes[alone] = len(encoded.dictionary) + np.arange(int(alone.sum()))
    shares = len(codes) > 0 and int(codes.max()) + 1 < len(codes)
    return codes if shares else None
