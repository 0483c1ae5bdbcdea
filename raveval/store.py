"""The run directory: its layout, atomic commits, and what is still missing.

    runs/<name>/
    ├── run.json                        what was asked: config, settings, fingerprints, versions
    ├── session                         the driver whose replicas may commit
    ├── examples/<task>.parquet         what is asked of the model, in a fixed pseudo-random order
    ├── replies/<task>/00042.parquet    commit 1 of a shard: everything the candidate made
    ├── records/<task>/00042.parquet    one row per example
    ├── states/<task>/00042.json        the receipt; the shard is done once it is there
    ├── attempts/<task>/00042.json      a shard under way: how often its process died
    ├── workers/                        what each replica loaded
    └── results.json  report.md

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
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from raveval.errors import DataError, MismatchError, Refused
from raveval.evaluate import ShardStates
from raveval.types import Example, Message, Prompt, Shard, Usage

_TURNS = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
EXAMPLE_COLUMNS = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("row_key", pa.uint64(), nullable=False),
        pa.field("prompt", pa.string()),
        pa.field("messages", _TURNS),
        pa.field("unconditional_prompt", pa.string()),
        pa.field("unconditional_messages", _TURNS),
        pa.field("continuations", pa.list_(pa.string())),
        pa.field("gold", pa.int32()),
        pa.field("references", pa.list_(pa.string())),
        pa.field("second_prompt", pa.string()),
        pa.field("second_messages", _TURNS),
        pa.field("reference_ratings", pa.list_(pa.float64())),
        pa.field("preferred", pa.string()),
        pa.field("text", pa.string()),
        pa.field("n_words", pa.int64()),
        pa.field("n_words_whitespace", pa.int64()),
        pa.field("n_bytes", pa.int64()),
        pa.field("n_chars", pa.int64()),
        pa.field("group", pa.string()),
        pa.field("cluster", pa.string()),
        pa.field("fields", pa.map_(pa.string(), pa.string())),
    ]
)
_ROW_GROUP = 256
_DIGEST = b"raveval.examples"
_ORIGIN = b"raveval.origin"
_LAYERS = ("examples", "replies", "records", "states", "attempts", "workers")
LAYOUT = frozenset({*_LAYERS, "run.json", "session", "results.json", "report.md"})
"""Names that a run directory may hold; anything else there is somebody else's."""


@dataclass(frozen=True, slots=True)
class Replies:
    """What the candidate made of a shard, under which fingerprint, by what engine, at what cost."""

    table: pa.Table
    fingerprint: str
    engine: Mapping[str, Any]
    engine_seconds: float


@dataclass(frozen=True, slots=True)
class Receipt:
    """A finished shard: what it adds to the run, and what its numbers depend on."""

    shard: Shard
    reply_fingerprint: str
    score_fingerprint: str
    engine: Mapping[str, Any]
    states: ShardStates


@dataclass(frozen=True, slots=True)
class Attempt:
    """A shard under way, as its last process left it.

    Attributes:
        session: the driver under which it was begun; a death of the driver is nobody's fault.
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

    def write_manifest(self, content: Mapping[str, Any]) -> None:
        """Commit run.json."""
        self.write_text("run.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")

    def write_text(self, name: str, text: str) -> Path:
        """Commit a text file of the run and return its path."""
        return _commit(self.path / name, text.encode())

    # Examples.

    def write_examples(self, task: str, examples: Sequence[Example], *, digest: str) -> None:
        """Commit what is asked, in the order given; `digest` says what it is."""
        schema = EXAMPLE_COLUMNS.with_metadata({_DIGEST: digest.encode()})
        with (
            _committed(self._examples_path(task)) as file,
            pq.ParquetWriter(file, schema, compression="zstd") as writer,
        ):
            for start in range(0, len(examples), _ROW_GROUP):
                rows = [_example_row(example) for example in examples[start : start + _ROW_GROUP]]
                writer.write_table(pa.Table.from_pylist(rows, schema=schema))

    def read_examples(self, task: str, start: int, stop: int) -> list[Example]:
        """Return rows [start, stop) of a task's examples."""
        with pq.ParquetFile(self._examples_path(task)) as file:
            groups = range(start // _ROW_GROUP, (stop - 1) // _ROW_GROUP + 1)
            table = file.read_row_groups(list(groups))
        first = groups.start * _ROW_GROUP
        return [_example(row) for row in table.slice(start - first, stop - start).to_pylist()]

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

    def commit_replies(self, shard: Shard, replies: Replies) -> None:
        """Commit what the candidate made of a shard."""
        origin = {
            "fingerprint": replies.fingerprint,
            "engine": replies.engine,
            "engine_seconds": replies.engine_seconds,
        }
        tagged = replies.table.replace_schema_metadata({_ORIGIN: json.dumps(origin).encode()})
        _commit_table(self._shard_path("replies", shard, "parquet"), tagged)

    def read_replies(self, shard: Shard, *, fingerprint: str) -> Replies | None:
        """Return the replies of a shard; None where there are none made under this fingerprint."""
        try:
            table = pq.read_table(self._shard_path("replies", shard, "parquet"), partitioning=None)
        except (OSError, pa.ArrowException):
            return None  # missing, torn or rotten: the shard is asked again
        origin = json.loads((table.schema.metadata or {}).get(_ORIGIN, b"{}"))
        if origin.get("fingerprint") != fingerprint:
            return None
        return Replies(table, fingerprint, origin["engine"], origin["engine_seconds"])

    def commit_scores(self, receipt: Receipt, records: pa.Table) -> None:
        """Commit one row per example of a shard, then its receipt: from here on it is done."""
        shard = receipt.shard
        _commit_table(self._shard_path("records", shard, "parquet"), records)
        text = json.dumps(asdict(receipt), ensure_ascii=False, allow_nan=False)
        _commit(self._shard_path("states", shard, "json"), text.encode())
        with suppress(FileNotFoundError):
            self._shard_path("attempts", shard, "json").unlink()

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
            return Receipt(
                shard=Shard(**content["shard"]),
                reply_fingerprint=content["reply_fingerprint"],
                score_fingerprint=content["score_fingerprint"],
                engine=content["engine"],
                states=ShardStates(**{**states, "usage": Usage(**states["usage"])}),
            )
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def drop_failed(self, shard: Shard) -> bool:
        """Forget a shard of which an example failed or was quarantined, and say whether it was."""
        receipt = self.read_receipt(shard)
        if receipt is None or not {"failed", "quarantined"} & set(receipt.states.by_status):
            return False
        for layer, suffix in (("states", "json"), ("replies", "parquet"), ("attempts", "json")):
            self._shard_path(layer, shard, suffix).unlink(missing_ok=True)
        return True

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
        _commit(self._shard_path("attempts", shard, "json"), text.encode())

    def _read_attempt(self, shard: Shard) -> Attempt | None:
        try:
            return Attempt(**json.loads(self._shard_path("attempts", shard, "json").read_bytes()))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    # Replicas.

    def report_worker(self, session: str, content: Mapping[str, Any]) -> None:
        """Commit what a replica loaded."""
        name = f"{session}-{uuid.uuid4().hex[:8]}.json"
        _commit(self.path / "workers" / name, json.dumps(content, ensure_ascii=False).encode())

    def worker_reports(self, session: str) -> list[dict[str, Any]]:
        """Return the reports of a session's replicas, oldest first."""
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


@contextmanager
def _committed(path: Path) -> Iterator[BinaryIO]:
    """Open a file that is there whole once the block is done, and not at all if it fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the new name survives a crash too
        finally:
            os.close(folder)
    finally:
        temporary.unlink(missing_ok=True)


def _commit(path: Path, content: bytes) -> Path:
    with _committed(path) as file:
        file.write(content)
    return path


def _commit_table(path: Path, table: pa.Table) -> None:
    with _committed(path) as file:
        pq.write_table(table, file, compression="zstd")


def _example_row(example: Example) -> dict[str, Any]:
    prompt, messages = _split_prompt(example.prompt)
    unconditional_prompt, unconditional_messages = _split_prompt(example.unconditional_prompt)
    second_prompt, second_messages = _split_prompt(example.second_prompt)
    return {
        **{name: getattr(example, name) for name in Example.__dataclass_fields__},
        "row_key": example.row_key,
        "prompt": prompt,
        "messages": messages,
        "unconditional_prompt": unconditional_prompt,
        "unconditional_messages": unconditional_messages,
        "second_prompt": second_prompt,
        "second_messages": second_messages,
        "fields": list(example.fields.items()),
    }


def _example(row: dict[str, Any]) -> Example:
    values = {name: row[name] for name in Example.__dataclass_fields__}
    values |= {
        "prompt": _join_prompt(row["prompt"], row["messages"]),
        "unconditional_prompt": _join_prompt(
            row["unconditional_prompt"], row["unconditional_messages"]
        ),
        "second_prompt": _join_prompt(row["second_prompt"], row["second_messages"]),
        "continuations": tuple(row["continuations"]),
        "references": tuple(row["references"]),
        "reference_ratings": tuple(row["reference_ratings"]),
        "fields": dict(row["fields"]),
    }
    return Example(**values)


def _split_prompt(prompt: Prompt | None) -> tuple[str | None, list[dict[str, str]] | None]:
    if prompt is None or isinstance(prompt, str):
        return prompt, None
    return None, [asdict(message) for message in prompt]


def _join_prompt(prompt: str | None, messages: list[dict[str, Any]] | None) -> Any:
    return prompt if messages is None else tuple(Message(**message) for message in messages)
