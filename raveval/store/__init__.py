"""The run directory: its layout, atomic commits, and what is still missing.

    runs/<name>/
    ├── run.json                        what was asked: config, settings, fingerprints, versions
    ├── session                         the driver whose replicas may commit
    ├── examples/<task>.parquet         what is asked of the model, in a fixed pseudo-random order
    ├── replies/<task>/00042.parquet    commit 1 of a shard: everything the candidate made
    ├── verdicts/<task>/00042.parquet   where a judge grades: everything it made of those replies
    ├── records/<task>/00042.parquet    one row per example
    ├── states/<task>/00042.json        the receipt; the shard is done once it is there
    ├── attempts/<task>/00042.json      a shard under way: how often its process died
    ├── workers/                        what each replica loaded
    └── results.json  report.md  report.html

Every file is written under a temporary name, flushed and renamed, so a reader sees all of it or
nothing. Each layer can be rebuilt from the one before it.
"""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from raveval.errors import DataError, MismatchError, Refused
from raveval.evaluate import ShardStates, Stage
from raveval.store.atomic import commit, commit_table, committed
from raveval.store.examples import EXAMPLE_COLUMNS, from_row, to_row
from raveval.types import Example, Shard, Status, Usage

_ROW_GROUP = 256
_LAYER_OF = {Stage.ANSWER: "replies", Stage.GRADE: "verdicts"}
_ASKED_AGAIN = (str(Status.FAILED), str(Status.QUARANTINED))
_DIGEST = b"raveval.examples"
_ORIGIN = b"raveval.origin"
_LAYERS = ("examples", "replies", "verdicts", "records", "states", "attempts", "workers")
_REPORTS = ("results.json", "report.md", "report.html")
LAYOUT = frozenset({*_LAYERS, "run.json", "session", *_REPORTS})
"""Names that a run directory may hold; anything else there is somebody else's."""


@dataclass(frozen=True, slots=True)
class Replies:
    """What a model made of a shard, under which fingerprint, by what engine, at what cost.

    The candidate's, or a judge's verdicts on them.
    """

    table: pa.Table
    fingerprint: str
    engine: Mapping[str, Any]
    engine_seconds: float


@dataclass(frozen=True, slots=True)
class Receipt:
    """A finished shard: what it adds to the run, and what its numbers depend on.

    `judge` is the engine of the judge that graded it; None where none did.
    """

    shard: Shard
    reply_fingerprint: str
    score_fingerprint: str
    engine: Mapping[str, Any]
    states: ShardStates
    judge: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """A shard under way, as its last process left it.

    Attributes:
        session: the driver's pass under which it was begun; a death of the driver is nobody's
            fault.
        n_deaths: how often its process died while the driver lived.
        in_flight: the only example in flight, where the shard is run example by example.
        example_deaths: deaths by the example that was alone in flight.
    """

    session: str
    n_deaths: int = 0
    in_flight: str | None = None
    example_deaths: Mapping[str, int] = field(default_factory=dict)


class RunDirectory:
    """A run's files. Any number of processes may commit shards; one driver at a time holds it."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    # The run as a whole.

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other drivers out while the block runs; the lock ends with the process.

        Raises:
            MismatchError: another driver is at work in this directory.
            Refused: the directory cannot be created or written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / ".lock").open("a+")
        except OSError as exc:
            raise Refused(f"{self.path}: cannot be written: {exc}. Choose another output") from exc
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.seek(0)
                raise MismatchError(
                    f"{self.path}: another raveval (process {lock.read().strip() or 'unknown'}) "
                    "is running in this directory; wait for it, or choose another output"
                ) from None
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            yield

    def read_manifest(self) -> dict[str, Any] | None:
        """Return the content of run.json, or None where there is no run yet.

        Raises:
            DataError: run.json is there but is not one of ours.
        """
        path = self.path / "run.json"
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as exc:
            raise DataError(f"{path}: cannot be read: {exc}") from exc
        if not isinstance(content, dict) or "tasks" not in content:
            raise DataError(f"{path}: not the run.json of a raveval run")
        return content

    def manifest(self) -> dict[str, Any]:
        """Return the content of run.json.

        Raises:
            DataError: no run here, or run.json is not one of ours.
        """
        content = self.read_manifest()
        if content is None:
            raise DataError(f"{self.path}: no run of raveval here (no run.json)")
        return content

    def write_manifest(self, content: Mapping[str, Any]) -> None:
        """Commit run.json."""
        self.write_text("run.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")

    def write_text(self, name: str, text: str) -> Path:
        """Commit a text file of the run and return its path."""
        return commit(self.path / name, text.encode())

    # Examples.

    def write_examples(self, task: str, examples: Sequence[Example], *, digest: str) -> None:
        """Commit what is asked, in the order given; `digest` says what it is."""
        schema = EXAMPLE_COLUMNS.with_metadata({_DIGEST: digest.encode()})
        with (
            committed(self._examples_path(task)) as file,
            pq.ParquetWriter(file, schema, compression="zstd") as writer,
        ):
            for start in range(0, len(examples), _ROW_GROUP):
                rows = [to_row(example) for example in examples[start : start + _ROW_GROUP]]
                writer.write_table(pa.Table.from_pylist(rows, schema=schema))

    def read_examples(self, task: str, start: int, stop: int) -> list[Example]:
        """Return rows [start, stop) of a task's examples."""
        with pq.ParquetFile(self._examples_path(task)) as file:
            groups = range(start // _ROW_GROUP, (stop - 1) // _ROW_GROUP + 1)
            table = file.read_row_groups(list(groups))
        first = groups.start * _ROW_GROUP
        return [from_row(row) for row in table.slice(start - first, stop - start).to_pylist()]

    def has_examples(self, task: str, *, digest: str) -> bool:
        """Whether these examples of a task were committed, and no others."""
        try:
            metadata = pq.read_schema(self._examples_path(task)).metadata or {}
        except (OSError, pa.ArrowException):
            return False
        return bool(metadata.get(_DIGEST) == digest.encode())

    # Sessions: the driver that holds the directory now. Replicas of an earlier one may outlive it.

    def begin_session(self, session: str) -> None:
        """Say which driver's replicas may commit from now on."""
        self.write_text("session", session)

    def is_session(self, session: str) -> bool:
        """Whether a driver's replicas may still commit."""
        try:
            return (self.path / "session").read_text() == session
        except FileNotFoundError:
            return False

    # Shards.

    def commit_replies(self, shard: Shard, replies: Replies, *, stage: Stage) -> None:
        """Commit what the model of a stage made of a shard."""
        origin = {
            "fingerprint": replies.fingerprint,
            "engine": replies.engine,
            "engine_seconds": replies.engine_seconds,
        }
        tagged = replies.table.replace_schema_metadata({_ORIGIN: json.dumps(origin).encode()})
        commit_table(self._shard_path(_LAYER_OF[stage], shard, "parquet"), tagged)
        with suppress(FileNotFoundError):  # what comes after has no engine to die in
            self._shard_path("attempts", shard, "json").unlink()

    def read_replies(self, shard: Shard, *, fingerprint: str, stage: Stage) -> Replies | None:
        """Return what a stage made of a shard; None where nothing was under this fingerprint."""
        path = self._shard_path(_LAYER_OF[stage], shard, "parquet")
        try:
            table = pq.read_table(path, partitioning=None)
        except (OSError, pa.ArrowException):
            return None  # missing, torn or rotten: the shard is asked again
        origin = json.loads((table.schema.metadata or {}).get(_ORIGIN, b"{}"))
        if origin.get("fingerprint") != fingerprint:
            return None
        return Replies(table, fingerprint, origin["engine"], origin["engine_seconds"])

    def commit_scores(self, receipt: Receipt, records: pa.Table) -> None:
        """Commit one row per example of a shard, then its receipt: from here on it is done."""
        shard = receipt.shard
        commit_table(self._shard_path("records", shard, "parquet"), records)
        text = json.dumps(asdict(receipt), ensure_ascii=False, allow_nan=False)
        commit(self._shard_path("states", shard, "json"), text.encode())

    def has_records(self, shard: Shard) -> bool:
        """Whether the records of a shard were committed."""
        return self._shard_path("records", shard, "parquet").exists()

    def read_records(self, shard: Shard) -> pa.Table:
        """Return the records of a finished shard.

        Raises:
            DataError: they are missing or cannot be read.
        """
        path = self._shard_path("records", shard, "parquet")
        try:
            return pq.read_table(path, partitioning=None)
        except (OSError, pa.ArrowException) as exc:
            raise DataError(
                f"{path}: cannot be read: {exc}; `raveval score {self.path}` makes it again"
            ) from exc

    def read_receipt(self, shard: Shard) -> Receipt | None:
        """Return a shard's receipt, or None where there is none, or none that can be read."""
        try:
            content = json.loads(self._shard_path("states", shard, "json").read_bytes())
            states = content["states"]
            usages = {
                key: Usage(**states[key]) for key in ("usage", "judge_usage") if states.get(key)
            }
            return Receipt(
                shard=Shard(**content["shard"]),
                reply_fingerprint=content["reply_fingerprint"],
                score_fingerprint=content["score_fingerprint"],
                engine=content["engine"],
                states=ShardStates(**{**states, **usages}),
                judge=content.get("judge"),
            )
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def drop_failed(self, shard: Shard) -> bool:
        """Forget a shard on which a model failed or was quarantined, and say whether one was.

        Where only the judge failed, also if its other samples are enough for a score, what the
        candidate made of it stays.
        """
        if not self.may_be_asked_again(shard):
            return False
        failed = [stage for stage in Stage if self.has_failures(shard, stage=stage)]
        layers = [("states", "json"), ("attempts", "json"), ("verdicts", "parquet")]
        if Stage.ANSWER in failed or not failed:
            layers.append(("replies", "parquet"))
        for layer, suffix in layers:
            self._shard_path(layer, shard, suffix).unlink(missing_ok=True)
        return True

    def may_be_asked_again(self, shard: Shard) -> bool:
        """Whether a model failed or was quarantined on a shard, or an example counts as failed."""
        receipt = self.read_receipt(shard)
        if receipt is not None and set(_ASKED_AGAIN) & set(receipt.states.by_status):
            return True
        return any(self.has_failures(shard, stage=stage) for stage in Stage)

    def has_failures(self, shard: Shard, *, stage: Stage) -> bool:
        """Whether the model of a stage failed or was quarantined on an example of a shard."""
        try:
            path = self._shard_path(_LAYER_OF[stage], shard, "parquet")
            rows = pq.read_table(path, columns=["kind", "reply"], partitioning=None).to_pylist()
        except (OSError, pa.ArrowException):
            return False
        failures = (json.loads(row["reply"]) for row in rows if row["kind"] == "Failure")
        return any(failure["status"] in _ASKED_AGAIN for failure in failures)

    def has_made(self, task: str, *, stage: Stage) -> bool:
        """Whether a stage made anything of a task, or a shard of it is done."""
        layers = (_LAYER_OF[stage], "states")
        return any(any((self.path / layer / task).glob("*.*")) for layer in layers)

    def finished(self, shard: Shard, *, score_fingerprint: str) -> Receipt | None:
        """Return the receipt of a shard that is done under this fingerprint, records and all."""
        receipt = self.read_receipt(shard)
        if receipt is None or receipt.score_fingerprint != score_fingerprint:
            return None
        return receipt if self.has_records(shard) else None

    def begin(self, shard: Shard, *, session: str) -> Attempt:
        """Note that a process takes up a shard, and return what became of earlier ones.

        Finding a note of the same session means that the process before this one died.
        """
        last = self._read_attempt(shard)
        if last is None:
            attempt = Attempt(session)
        elif last.session != session:
            attempt = Attempt(session, last.n_deaths, None, last.example_deaths)
        else:
            deaths = dict(last.example_deaths)
            if last.in_flight is not None:
                deaths[last.in_flight] = deaths.get(last.in_flight, 0) + 1
            attempt = Attempt(session, last.n_deaths + 1, None, deaths)
        self.note(shard, attempt)
        return attempt

    def note(self, shard: Shard, attempt: Attempt) -> None:
        """Commit how far an attempt is."""
        text = json.dumps(asdict(attempt), ensure_ascii=False)
        commit(self._shard_path("attempts", shard, "json"), text.encode())

    def _read_attempt(self, shard: Shard) -> Attempt | None:
        try:
            return Attempt(**json.loads(self._shard_path("attempts", shard, "json").read_bytes()))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    # Replicas.

    def report_worker(self, session: str, content: Mapping[str, Any]) -> None:
        """Commit what a replica loaded."""
        name = f"{session}-{uuid.uuid4().hex[:8]}.json"
        commit(self.path / "workers" / name, json.dumps(content, ensure_ascii=False).encode())

    def worker_reports(self, session: str = "*") -> list[dict[str, Any]]:
        """Return the reports of a session's replicas, or of all sessions', oldest first."""
        paths = (self.path / "workers").glob(f"{session}-*.json")
        found = [(path.stat().st_mtime_ns, json.loads(path.read_bytes())) for path in paths]
        return [content for _, content in sorted(found, key=lambda pair: pair[0])]

    def _examples_path(self, task: str) -> Path:
        return self.path / "examples" / f"{task}.parquet"

    def _shard_path(self, layer: str, shard: Shard, suffix: str) -> Path:
        return self.path / layer / shard.task / f"{shard.index:05d}.{suffix}"


def shards_of(task: str, n_examples: int, shard_size: int) -> list[Shard]:
    """Return the shards of a task: consecutive ranges of its fixed order.

    >>> [(s.start, s.stop) for s in shards_of("t", 5, 2)]
    [(0, 2), (2, 4), (4, 5)]
    """
    starts = range(0, n_examples, shard_size)
    return [
        Shard(task, index, start, min(start + shard_size, n_examples))
        for index, start in enumerate(starts)
    ]
