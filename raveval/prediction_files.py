"""Reads files of existing predictions, a bounded number of rows at a time.

JSON Lines and Parquet are streamed, of Parquet only the columns that are asked for; a folder stands
for the files in it that can be streamed. A `.json` file that holds one list of objects, or one
object with a single such list in it, is read whole. A field is named by its path: `a.b` is b inside
a; inside a list the rest of the path is taken from each element, or from one where it is a number.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from raveval.errors import DataError

ABSENT: Any = object()
"""In the place of a value: the row has no such field."""

_JSON_ROWS_AT_ONCE = 1 << 12
_ARROW_ROWS_AT_ONCE = 1 << 16  # enough for the metrics' kernels to be used
_BYTES_AT_ONCE = 1 << 26  # fewer rows where they are long: a bound on memory, not on speed
_JSON_LINES = (".jsonl", ".ndjson")
_PARQUET = (".parquet", ".pq")
_OTHER_DATA = (".json", ".csv", ".tsv", ".gz", ".zip", ".arrow", ".feather")


Indices: TypeAlias = Sequence[int] | NDArray[np.int64]


class Rows(Protocol):
    """Some consecutive rows of one source."""

    def __len__(self) -> int:
        """Return the number of rows."""
        ...

    def fields(self) -> list[str]:
        """Return the names of the top-level fields."""
        ...

    def values(self, path: str) -> Sequence[Any] | pa.Array | None:
        """Return a field's value in each row, ABSENT where a row has none; None if no row has."""
        ...

    def keep(self, indices: Indices) -> Rows:
        """Return only the rows given."""
        ...

    def place(self, index: int) -> str:
        """Return where a row stands, for people."""
        ...


@dataclass(frozen=True, slots=True)
class JsonRows:
    """Rows as parsed from JSON, each with its place."""

    rows: Sequence[Mapping[str, Any]]
    places: Sequence[str]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    def fields(self) -> list[str]:
        """Return the names of the top-level fields of any row."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def values(self, path: str) -> Sequence[Any] | None:
        """Return a field's value in each row, ABSENT where a row has none; None if no row has."""
        values = [_field(row, path) for row in self.rows]
        return None if all(value is ABSENT for value in values) else values

    def keep(self, indices: Indices) -> JsonRows:
        """Return only the rows given."""
        return JsonRows([self.rows[i] for i in indices], [self.places[i] for i in indices])

    def place(self, index: int) -> str:
        """Return where a row stands, for people."""
        return self.places[index]


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """Rows of a table, with their numbers in the whole source, counted from 1.

    The source may have more columns than were read: `names` are all of them.
    """

    table: pa.Table
    source: str
    numbers: range | NDArray[np.int64]
    names: Sequence[str]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.numbers)

    def fields(self) -> list[str]:
        """Return the names of the columns."""
        return list(self.names)

    def values(self, path: str) -> Sequence[Any] | pa.Array | None:
        """Return a column, or what is inside it; None where there is none."""
        names = self.table.column_names
        if path in names:
            return self.table.column(path).combine_chunks()
        top, _, rest = path.partition(".")
        if not rest or top not in names:
            return None
        return [_field(value, rest) for value in self.table.column(top).to_pylist()]

    def keep(self, indices: Indices) -> ArrowRows:
        """Return only the rows given."""
        chosen = np.asarray(indices, np.int64)
        numbers = np.asarray(self.numbers, np.int64)[chosen]
        return ArrowRows(self.table.take(chosen), self.source, numbers, self.names)

    def place(self, index: int) -> str:
        """Return where a row stands, for people."""
        return f"{self.source}, row {self.numbers[index]}"


def read_rows(path: Path, fields: Collection[str]) -> Iterator[Rows]:
    """Yield the rows of a file, a bounded number at a time.

    Args:
        path: the file.
        fields: paths of the fields that will be asked for; no others need be read.

    Raises:
        DataError: the file is missing, of another kind, or malformed (with its line).
    """
    if path.suffix in _PARQUET:
        return _read_parquet(path, fields)
    if path.suffix in _JSON_LINES:
        return _read_json_lines(path)
    if path.suffix == ".json":
        return _read_json(path)
    allowed = ", ".join([*_JSON_LINES, ".json", *_PARQUET])
    raise DataError(f"{path}: files of predictions end in one of {allowed}")


def files_of(path: Path) -> list[Path]:
    """Return a file itself, or of a folder its files of predictions in the order of their names.

    Raises:
        DataError: there is no such file; a folder without any, or with other data beside them,
            since which are meant cannot be known.
    """
    if not path.exists():
        raise DataError(f"{path}: no such file (looked from {Path.cwd()})")
    if not path.is_dir():
        return [path]
    streamed = (*_JSON_LINES, *_PARQUET)
    found = sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
    files = [entry for entry in found if entry.suffix in streamed and entry.is_file()]
    others = [entry.name for entry in found if entry.is_dir() or entry.suffix in _OTHER_DATA]
    if not files:
        raise DataError(
            f"{path}: no file in this folder ends in one of {', '.join(streamed)}; give files, "
            "or the folder that holds them itself (of a run directory: records/TASK)"
        )
    if others:
        raise DataError(
            f"{path}: of this folder only files that end in one of {', '.join(streamed)} can be "
            f"taken, and it holds {others[0]} too; give the files themselves"
        )
    return files


def table_rows(table: pa.Table) -> Iterator[Rows]:
    """Yield the rows of a table, a bounded number at a time."""
    for start in range(0, len(table), _ARROW_ROWS_AT_ONCE):
        part = table.slice(start, _ARROW_ROWS_AT_ONCE)
        numbers = range(start + 1, start + len(part) + 1)
        yield ArrowRows(part, "table", numbers, table.column_names)


def load_json(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        DataError: no such file, or not JSON.
    """
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise DataError(f"{path}: no such file (looked from {Path.cwd()})") from None
    except (OSError, ValueError, RecursionError) as exc:
        raise DataError(f"{path}: not valid JSON: {exc}") from exc


@dataclass(frozen=True, slots=True)
class SquadPair:
    """Official SQuAD files brought together: one row a question, in the order of the file.

    A question that the predictions leave out has a null prediction; `n_surplus` predictions are
    for no question. The questions on one passage are a cluster.
    """

    rows: JsonRows
    n_surplus: int


def read_squad(references: Path, predictions: Path) -> SquadPair:
    """Read a dataset of the official layout and its predictions, a mapping from id to text.

    Raises:
        DataError: a file is missing, not JSON or of another layout.
    """
    answers = load_json(predictions)
    if not isinstance(answers, dict):
        raise DataError(f"{predictions}: expected a JSON object of answers by question id")
    rows: list[Mapping[str, Any]] = []
    places: list[str] = []
    asked: set[str] = set()
    for passage, question in _questions(references):
        key = question["id"]
        asked.add(key)
        texts = [answer["text"] for answer in question["answers"]]
        rows.append({"prediction": answers.get(key), "references": texts, "cluster": passage})
        places.append(f"question {key} of {references} and {predictions}")
    if not rows:
        raise DataError(f"{references}: there are no questions in it")
    return SquadPair(JsonRows(rows, places), len(answers.keys() - asked))


def _questions(path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the questions, each with the place of its passage."""
    content = load_json(path)
    try:
        questions = [
            (f"{i}/{j}", question)
            for i, article in enumerate(content["data"])
            for j, paragraph in enumerate(article["paragraphs"])
            for question in paragraph["qas"]
        ]
        for _, question in questions:
            str(question["id"]), [answer["text"] for answer in question["answers"]]
    except (TypeError, KeyError) as exc:
        raise DataError(
            f"{path}: not the layout of SQuAD (data → paragraphs → qas → id, answers → text): "
            f"{type(exc).__name__} {exc}"
        ) from exc
    return questions


def _read_parquet(path: Path, fields: Collection[str]) -> Iterator[Rows]:
    tops = {part for field in fields for part in (field, field.partition(".")[0])}
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            # Without any column, rows would lose their number.
            columns = [name for name in names if name in tops] or names
            start, size = 0, _rows_at_once(file.metadata, columns)
            for batch in file.iter_batches(batch_size=size, columns=columns):
                numbers = range(start + 1, start + len(batch) + 1)
                yield ArrowRows(pa.Table.from_batches([batch]), str(path), numbers, names)
                start += len(batch)
    except (pa.ArrowInvalid, OSError) as exc:
        raise DataError(f"{path}: cannot be read as Parquet: {exc}") from exc


def _rows_at_once(file: pq.FileMetaData, names: Collection[str]) -> int:
    """Return how many rows to read at a time, by their mean size in the file's largest group."""
    n_bytes = 0.0
    for i in range(file.num_row_groups):
        group = file.row_group(i)
        columns = (group.column(j) for j in range(group.num_columns))
        size = sum(
            column.total_uncompressed_size
            for column in columns
            if column.path_in_schema.partition(".")[0] in names or column.path_in_schema in names
        )
        n_bytes = max(n_bytes, size / max(1, group.num_rows))
    return max(1, min(_ARROW_ROWS_AT_ONCE, int(_BYTES_AT_ONCE / max(1.0, n_bytes))))


def _read_json_lines(path: Path) -> Iterator[Rows]:
    with path.open("rb") as file:
        lines = ((n, line) for n, line in enumerate(file, start=1) if line.strip())
        while chunk := list(islice(lines, _JSON_ROWS_AT_ONCE)):
            places = [f"{path}:{n}" for n, _ in chunk]
            yield JsonRows([_parse(line, f"{path}:{n}") for n, line in chunk], places)


def _parse(line: bytes, place: str) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise DataError(f"{place}: not valid JSON: {exc}") from exc
    if not isinstance(row, dict):
        raise DataError(f"{place}: expected a JSON object, found {type(row).__name__}")
    return row


def _read_json(path: Path) -> Iterator[Rows]:
    """Yield the rows of a `.json` file; one that is no single value may hold JSON Lines."""
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        yield from _read_json_lines(path)  # which says where it is malformed, if it is
        return
    if content == []:
        return
    rows = _only_list_of_objects(content)
    if rows is None:
        raise DataError(
            f"{path}: expected a list of objects, or an object with exactly one such list in it; "
            "write one object a line to a file that ends in .jsonl"
        )
    for start in range(0, len(rows), _JSON_ROWS_AT_ONCE):
        part = rows[start : start + _JSON_ROWS_AT_ONCE]
        yield JsonRows(part, [f"{path}, row {start + i}" for i in range(1, len(part) + 1)])


def _only_list_of_objects(content: Any) -> list[Mapping[str, Any]] | None:
    lists = [content] if isinstance(content, list) else []
    if isinstance(content, dict):
        lists = [value for value in content.values() if isinstance(value, list)]
    found = [rows for rows in lists if rows and all(isinstance(row, dict) for row in rows)]
    return found[0] if len(found) == 1 else None


def _field(value: Any, path: str) -> Any:
    """Return what a path leads to, or ABSENT.

    >>> _field({"a": [{"b": 1}, {"b": 2}]}, "a.b"), _field({"a": ["x", "y"]}, "a.1")
    ([1, 2], 'y')
    """
    if isinstance(value, Mapping):
        if path in value:  # a name may hold a dot itself
            return value[path]
        name, _, rest = path.partition(".")
        return _field(value[name], rest) if rest and name in value else ABSENT
    if not isinstance(value, list | np.ndarray):
        return ABSENT
    name, _, rest = path.partition(".")
    if name.isdecimal():
        if int(name) >= len(value):
            return ABSENT
        return _field(value[int(name)], rest) if rest else value[int(name)]
    inner = [_field(element, path) for element in value]
    return ABSENT if any(element is ABSENT for element in inner) else inner
