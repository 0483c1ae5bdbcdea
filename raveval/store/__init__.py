"""The run directory: its layout, atomic commits, and what is still missing.

    runs/<name>/
    ├── run.json                        what was asked: config, settings, fingerprints, versions
    ├── session                         the driver whose replicas may commit
    ├── examples/<task>/00000.parquet   what is asked of the model, in a fixed pseudo-random order
    ├── replies/<task>/00042.parquet    commit 1 of a shard: everything the candidate made
    ├── verdicts/<task>/00042.parquet   where a judge grades: everything it made of those replies
    ├── records/<task>/00042.parquet    one row per example
    ├── states/<task>/00042.json        the receipt; the shard is done once it is there
    ├── attempts/<task>/00042.json      a shard under way: how often its process died, and of what
    ├── workers/                        what each replica loaded (`replicas`)
    ├── lost/                           replicas that died or could not start, with their last words
    └── results.json  report.md  report.html

A reader sees all of a file or nothing. Each layer can be rebuilt from the one before it. The
directory is a folder, or a prefix in an object store (`places`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import chain, count, islice, takewhile
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from raveval.errors import DataError, StoreError
from raveval.evaluate import Stage
from raveval.store.contents import attempt_from, manifest_fault, receipt_from
from raveval.store.examples import (
    EXAMPLE_COLUMNS,
    READ_AT_ONCE,
    ROWS_OF_A_PART,
    StoredExamples,
    from_row,
    to_row,
)
from raveval.store.replicas import Lost, ReplicaNotes
from raveval.store.shards import Attempt, Receipt, Replies, shards_of
from raveval.types import Example, Shard, Status

__all__ = ["LAYOUT", "Attempt", "Lost", "Receipt", "Replies", "RunDirectory", "shards_of"]

_LAYER_OF = {Stage.ANSWER: "replies", Stage.GRADE: "verdicts"}
_ASKED_AGAIN = (str(Status.FAILED), str(Status.QUARANTINED))
_DIGEST = b"raveval.examples"
_ORIGIN = b"raveval.origin"
_NOT_OURS = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What comes of JSON that raveval did not write, where it is taken for what it would have."""

_DAMAGED = (
    "If raveval wrote it, delete this file alone: the run's own command writes it anew and goes on "
    "from what is there. Else choose another directory"
)
_LAYERS = ("examples", "replies", "verdicts", "records", "states", "attempts", "workers", "lost")
_REPORTS = ("results.json", "report.md", "report.html")
LAYOUT = frozenset({*_LAYERS, "run.json", "session", *_REPORTS})
"""Names that a run directory may hold; anything else there is somebody else's."""


class RunDirectory(ReplicaNotes):
    """A run's files. Any number of processes may commit shards; one driver at a time holds it."""

    def read_manifest(self) -> dict[str, Any] | None:
        """Return the content of run.json, or None where there is no run yet.

        Raises:
            DataError: run.json is there but is not one of ours.
        """
        where = f"{self.path}/run.json"
        try:
            content = json.loads(self._place.read("run.json"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError, StoreError) as exc:
            raise DataError(f"{where}: cannot be read: {exc}. {_DAMAGED}") from exc
        fault = manifest_fault(content)
        if fault is not None:
            raise DataError(f"{where}: {fault}. {_DAMAGED}")
        manifest: dict[str, Any] = content
        return manifest

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

    # Examples.

    def write_examples(self, task: str, examples: Iterable[Example], *, digest: str) -> None:
        """Commit what is asked, in the order given, a part after the other; `digest` says what.

        Raises:
            RunError: it cannot be written.
        """
        schema = EXAMPLE_COLUMNS.with_metadata({_DIGEST: digest.encode()})
        remaining = map(to_row, examples)
        parts = count()
        while some := list(islice(remaining, READ_AT_ONCE)):
            name = _part_name(task, next(parts))
            rows = chain(some, islice(remaining, ROWS_OF_A_PART - len(some)))
            with (
                self._written(name),
                self._place.committed(name) as file,
                pq.ParquetWriter(file, schema, compression="zstd") as writer,
            ):
                while some := list(islice(rows, READ_AT_ONCE)):
                    writer.write_table(pa.Table.from_pylist(some, schema=schema))
        of_earlier_plan = (_part_name(task, part) for part in parts)
        for name in takewhile(self._place.exists, of_earlier_plan):
            self._place.delete(name)

    def read_examples(self, task: str, start: int, stop: int) -> list[Example]:
        """Return rows [start, stop) of a task's examples.

        Raises:
            DataError: they are missing or cannot be read.
        """
        found = []
        for part in _parts(start, stop):
            first = part * ROWS_OF_A_PART
            last = min(stop - first, ROWS_OF_A_PART)
            found += self._read_part(_part_name(task, part), max(start - first, 0), last)
        return found

    def _read_part(self, name: str, start: int, stop: int) -> list[Example]:
        try:
            with (
                self._place.opened(name) as source,
                pq.ParquetFile(source, pre_buffer=self._place.n_at_once > 1) as file,
            ):
                a_group = file.metadata.row_group(0).num_rows
                groups = range(start // a_group, (stop - 1) // a_group + 1)
                table = file.read_row_groups(list(groups))
            first = groups.start * a_group
            rows = table.slice(start - first, stop - start).to_pylist()
            return [from_row(row) for row in rows]
        except (OSError, pa.ArrowException, LookupError) as exc:
            raise DataError(
                f"{self.path}/{name}: cannot be read: {exc}; the same run again writes it anew"
            ) from exc

    def stored_examples(self, task: str, n_examples: int) -> StoredExamples:
        """Return all examples of a task, none of which is read before it is asked for."""
        return StoredExamples(n_examples, partial(self.read_examples, task))

    def has_examples(self, task: str, n_examples: int, *, digest: str) -> bool:
        """Whether these examples of a task were committed, all of them and no others."""

        def is_there(part: int) -> bool:
            try:
                with self._place.opened(_part_name(task, part)) as source:
                    metadata = pq.read_schema(source).metadata or {}
            except (OSError, pa.ArrowException):
                return False
            return bool(metadata.get(_DIGEST) == digest.encode())

        return all(self.over(_parts(0, n_examples), is_there))

    # Sessions: the driver that holds the directory now. Replicas of an earlier one may outlive it.

    def begin_session(self, session: str) -> None:
        """Say which driver's replicas may commit from now on."""
        self.write_text("session", session)

    def is_session(self, session: str) -> bool:
        """Whether a driver's replicas may still commit."""
        try:
            return self._place.read("session") == session.encode()
        except OSError:
            return False

    def end_session(self, session: str) -> None:
        """Let a driver's replicas commit no more, unless another driver's may by now."""
        if self.is_session(session):
            self.write_text("session", "")

    # Shards.

    def commit_replies(self, shard: Shard, replies: Replies, *, stage: Stage) -> None:
        """Commit what the model of a stage made of a shard."""
        origin = {
            "fingerprint": replies.fingerprint,
            "rows": [shard.start, shard.stop],
            "engine": replies.engine,
            "engine_seconds": replies.engine_seconds,
        }
        tagged = replies.table.replace_schema_metadata({_ORIGIN: json.dumps(origin).encode()})
        self._commit_table(_shard_name(_LAYER_OF[stage], shard, "parquet"), tagged)
        # What comes after has no engine to die in.
        self._place.delete(_shard_name("attempts", shard, "json"))

    def read_replies(self, shard: Shard, *, fingerprint: str, stage: Stage) -> Replies | None:
        """Return what a stage made of a shard; None where nothing was under this fingerprint.

        Shards of another size may stand under the same numbers, where run.json was lost.
        """
        try:
            table = self._read_table(_shard_name(_LAYER_OF[stage], shard, "parquet"))
        except (OSError, pa.ArrowException):
            return None  # missing, torn or rotten: the shard is asked again
        found = (table.schema.metadata or {}).get(_ORIGIN)
        origin = {} if found is None else json.loads(found)
        rows = [shard.start, shard.stop]
        if origin.get("fingerprint") != fingerprint or origin.get("rows") != rows:
            return None
        return Replies(table, fingerprint, origin["engine"], origin["engine_seconds"])

    def commit_scores(self, receipt: Receipt, records: pa.Table) -> None:
        """Commit one row per example of a shard, then its receipt: from here on it is done."""
        shard = receipt.shard
        self._commit_table(_shard_name("records", shard, "parquet"), records)
        text = json.dumps(asdict(receipt), ensure_ascii=False, allow_nan=False)
        self._commit(_shard_name("states", shard, "json"), text.encode())

    def has_records(self, shard: Shard) -> bool:
        """Whether the records of a shard were committed."""
        return self._place.exists(_shard_name("records", shard, "parquet"))

    def read_records(self, shard: Shard) -> pa.Table:
        """Return the records of a finished shard.

        Raises:
            DataError: they are missing or cannot be read.
        """
        name = _shard_name("records", shard, "parquet")
        try:
            return self._read_table(name)
        except (OSError, pa.ArrowException) as exc:
            raise DataError(
                f"{self.path}/{name}: cannot be read: {exc}; `raveval score {self.path}` makes it "
                "again"
            ) from exc

    def read_receipt(self, shard: Shard) -> Receipt | None:
        """Return a shard's receipt, or None where there is none, or none that can be read."""
        try:
            return receipt_from(json.loads(self._receipt(shard)))
        except (OSError, *_NOT_OURS):
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
            self._place.delete(_shard_name(layer, shard, suffix))
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
            name = _shard_name(_LAYER_OF[stage], shard, "parquet")
            rows = self._read_table(name, columns=["kind", "reply"]).to_pylist()
        except (OSError, pa.ArrowException):
            return False  # missing, torn or rotten: the shard is asked again anyway
        failures = (json.loads(row["reply"]) for row in rows if row["kind"] == "Failure")
        return any(failure["status"] in _ASKED_AGAIN for failure in failures)

    def has_made(self, task: str, *, stage: Stage) -> bool:
        """Whether a stage made anything of a task, or a shard of it is done."""
        layers = (_LAYER_OF[stage], "states")
        return any(self._place.names(f"{layer}/{task}") for layer in layers)

    def finished(self, shard: Shard, *, score_fingerprint: str) -> Receipt | None:
        """Return the receipt of a shard that is done under this fingerprint, records and all."""
        receipt = self.read_receipt(shard)
        if receipt is None or receipt.shard != shard:
            return None
        if receipt.score_fingerprint != score_fingerprint:
            return None
        return receipt if self.has_records(shard) else None

    def seal(self, shards: Sequence[Shard]) -> str:
        """Return a hash of the receipts of shards, and of which of them have records."""
        folders = {shard.task: f"records/{shard.task}" for shard in shards}
        records = {f"{at}/{name}" for at in folders.values() for name in self._place.names(at)}
        whole = hashlib.sha256()
        for shard, receipt in zip(shards, self.over(shards, self._receipt), strict=True):
            is_there = _shard_name("records", shard, "parquet") in records
            whole.update(hashlib.sha256(receipt).digest() if is_there else b"missing")
        return whole.hexdigest()

    def _receipt(self, shard: Shard) -> bytes:
        try:
            return self._place.read(_shard_name("states", shard, "json"))
        except FileNotFoundError:
            return b""

    def next_attempt(self, shard: Shard, *, session: str) -> Attempt:
        """Return what a process that takes up a shard has to note, with what became of others.

        Finding a note of the same session means that the process before this one died.
        """
        last = self._read_attempt(shard)
        if last is None:
            return Attempt(session)
        if last.session != session:
            return replace(last, session=session, in_flight=None, last_words="")
        deaths, words = dict(last.example_deaths), dict(last.example_words)
        if last.in_flight is not None:
            deaths[last.in_flight] = deaths.get(last.in_flight, 0) + 1
            words[last.in_flight] = last.last_words
        return Attempt(session, last.n_deaths + 1, None, deaths, example_words=words)

    def note(self, shard: Shard, attempt: Attempt) -> None:
        """Commit that an attempt is under way, and how far it is."""
        text = json.dumps(asdict(attempt))
        self._commit(_shard_name("attempts", shard, "json"), text.encode())

    def _read_attempt(self, shard: Shard) -> Attempt | None:
        try:
            return attempt_from(
                json.loads(self._place.read(_shard_name("attempts", shard, "json")))
            )
        except (OSError, *_NOT_OURS):
            return None


def _part_name(task: str, part: int) -> str:
    return f"examples/{task}/{part:05d}.parquet"


def _parts(start: int, stop: int) -> range:
    """Return the parts that hold rows [start, stop) of a task's examples."""
    return range(start // ROWS_OF_A_PART, (stop - 1) // ROWS_OF_A_PART + 1)


def _shard_name(layer: str, shard: Shard, suffix: str) -> str:
    return f"{layer}/{shard.task}/{shard.index:05d}.{suffix}"
