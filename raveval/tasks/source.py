"""Reads rows from files: JSONL, JSON, CSV, Parquet, SQuAD's JSON, plain text; each may be gzipped.

A row is a mapping of columns with the place it stands at, so that every later complaint can name
file and line. What the columns mean is the task's business, not this module's.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TextIO, get_args

from typing_extensions import override

from raveval.errors import ConfigError, DataError, nearest

Format = Literal["jsonl", "json", "squad", "csv", "tsv", "parquet", "text"]
Documents = Literal["file", "line", "article"]

_SUFFIXES: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".txt": "text",
    ".text": "text",
    ".raw": "text",
    ".md": "text",
}

_ARTICLE_TITLE = re.compile(r" = (?!= )(.*[^ ]) = ")
"""WikiText's heading of the first level: one equals sign on each side, a blank before and after."""


_MOST_UNPACKED_BYTES = 256 << 20
_MOST_TIMES_UNPACKED = 200


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its place for messages, its number from 0 within the source, its columns."""

    where: str
    number: int
    columns: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Layout:
    """How local files are read; `documents` and `split_on` say what a row of plain text is."""

    format: Format | None = None
    documents: Documents = "file"
    split_on: str | None = None


Placed = tuple[str, dict[str, Any]]
"""Columns with their place."""


def read(path: Path, layout: Layout) -> Iterator[Row]:
    """Yield the rows of a file, or of a folder's files in the order of their names.

    Raises:
        DataError: no such file, an unknown kind of file, or content that is not of its kind.
    """
    number = 0
    for file in files(path, layout):
        for where, columns in _READERS[_format_of(file, layout)](file, layout):
            yield Row(where, number, columns)
            number += 1


def files(path: Path, layout: Layout) -> list[Path]:
    """Return the files that `read` reads, in their order.

    Raises:
        DataError: there are none.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(f"{path}: no such file (looked from {Path.cwd()})")
    inside = sorted(file for file in path.iterdir() if file.is_file())
    found = [file for file in inside if _suffix(file) in _SUFFIXES]
    if layout.format is not None:
        found = [file for file in found if _SUFFIXES[_suffix(file)] == layout.format] or inside
    if not found:
        known = " ".join(_SUFFIXES)
        raise DataError(f"{path}: the folder holds no data file (known endings: {known})")
    return found


def _suffix(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def _format_of(path: Path, layout: Layout) -> Format:
    if layout.format is not None:
        if layout.format not in get_args(Format):
            raise ConfigError(
                f"format {layout.format!r}: {nearest(layout.format, get_args(Format))}"
            )
        return layout.format
    found = _SUFFIXES.get(_suffix(path))
    if found is None:
        known = ", ".join(get_args(Format))
        raise DataError(
            f"{path}: the ending does not tell the format; set `format:` to one of {known}"
        )
    return found


class _Unpacked(gzip.GzipFile):
    """A gzip file; a small one that would fill the memory is refused.

    Deflate can pack zeros a thousand times as small, texts hardly ten times.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._n_packed = path.stat().st_size
        self._most = max(_MOST_UNPACKED_BYTES, _MOST_TIMES_UNPACKED * self._n_packed)

    @override
    def read1(self, size: int = -1) -> bytes:  # what reading text asks for
        data = super().read1(size)
        if self.tell() > self._most:
            raise DataError(
                f"{self.name}: its {self._n_packed} bytes unpack to {self.tell()} and more; above "
                f"{_MOST_UNPACKED_BYTES} bytes only files up to {_MOST_TIMES_UNPACKED} times their "
                "size are unpacked here. If this is meant, give the unpacked file"
            )
        return data


def _open(path: Path, *, newline: str | None = "\n") -> TextIO:
    """Open a text file, gzipped or not; a byte order mark is skipped."""
    if path.suffix == ".gz":
        return io.TextIOWrapper(_Unpacked(path), encoding="utf-8-sig", newline=newline)
    return path.open(encoding="utf-8-sig", newline=newline)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each line with its number from 1, the line's end included."""
    number = 0
    try:
        with _open(path) as file:
            for number, line in enumerate(file, start=1):
                yield number, line
    except UnicodeDecodeError as exc:
        raise DataError(f"{path}: after line {number}: not UTF-8 text ({exc.reason})") from exc
    except (gzip.BadGzipFile, EOFError) as exc:
        raise DataError(f"{path}: after line {number}: not a whole gzip file: {exc}") from exc
    except OSError as exc:
        raise DataError(f"{path}: cannot be read: {exc.strerror or exc}") from exc


def _content(path: Path) -> str:
    return "".join(line for _, line in _lines(path))


def _read_jsonl(path: Path, layout: Layout) -> Iterator[Placed]:
    for number, line in _lines(path):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            value = json.loads(line)
        except json.JSONDecodeError as exc:
            raise DataError(f"{where}:{exc.colno}: not JSON: {exc.msg}") from exc
        except RecursionError:
            raise DataError(f"{where}: not JSON: nested too deeply") from None
        yield where, _object(value, where)


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(f"{where}: expected an object, found {type(value).__name__}")
    return value


def _read_json(path: Path, layout: Layout) -> Iterator[Placed]:
    """Read a list of objects, SQuAD's layout, or JSONL that is called .json."""
    text = _content(path)
    try:
        content = json.loads(text)
    except json.JSONDecodeError as exc:
        if _is_whole_object(text.lstrip().split("\n", 1)[0]):
            yield from _read_jsonl(path, layout)
            return
        raise DataError(f"{path}:{exc.lineno}:{exc.colno}: not JSON: {exc.msg}") from exc
    except RecursionError:
        raise DataError(f"{path}: not JSON: nested too deeply") from None
    if isinstance(content, list):
        for index, value in enumerate(content):
            where = f"{path}[{index}]"
            yield where, _object(value, where)
    elif isinstance(content, dict) and isinstance(content.get("data"), list):
        yield from _flatten_squad(path, content)
    else:
        raise DataError(
            f"{path}: expected a list of objects, or SQuAD's object with a list under 'data'"
        )


def _is_whole_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (json.JSONDecodeError, RecursionError):
        return False


def _flatten_squad(path: Path, content: dict[str, Any]) -> Iterator[Placed]:
    """Yield one row per question, in the columns of the hub's copies of SQuAD."""
    for i, article in enumerate(content["data"]):
        for j, paragraph in enumerate(_listed(article, "paragraphs", f"{path}: data[{i}]")):
            place = f"{path}: data[{i}].paragraphs[{j}]"
            for k, question in enumerate(_listed(paragraph, "qas", place)):
                where = f"{place}.qas[{k}]"
                yield where, _squad_row(article, paragraph, _object(question, where), where)


def _squad_row(
    article: dict[str, Any], paragraph: dict[str, Any], question: dict[str, Any], where: str
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "title": article.get("title", ""),
        "is_impossible": question.get("is_impossible", False),
        **{name: question[name] for name in ("id", "question") if name in question},
    }
    if "context" in paragraph:
        row["context"] = paragraph["context"]
    if "answers" in question:
        answers = _listed(question, "answers", where)
        row["answers"] = {"text": [_object(answer, where).get("text") for answer in answers]}
    return row


def _listed(value: Any, key: str, where: str) -> list[Any]:
    found = _object(value, where).get(key)
    if not isinstance(found, list):
        raise DataError(f"{where}: expected a list under {key!r}, as SQuAD's files have")
    return found


def _read_csv(path: Path, layout: Layout) -> Iterator[Placed]:
    """Read a table whose first line names the columns; cells are text, and stay text."""
    delimiter = "\t" if _format_of(path, layout) == "tsv" else ","
    table = csv.reader((line for _, line in _lines(path)), delimiter=delimiter, strict=True)
    header: list[str] = []
    try:
        for cells in table:
            where = f"{path}:{table.line_num}"
            if not header:
                header = _header(cells, where)
            elif len(cells) == len(header):
                yield where, dict(zip(header, cells, strict=True))
            elif cells:
                raise DataError(f"{where}: {len(cells)} cells, but {len(header)} columns")
    except csv.Error as exc:
        raise DataError(f"{path}:{table.line_num}: not CSV: {exc}") from exc


def _header(cells: list[str], where: str) -> list[str]:
    repeated = {name for name in cells if cells.count(name) > 1}
    if repeated:
        raise DataError(f"{where}: two columns are called {', '.join(map(repr, sorted(repeated)))}")
    return cells


def _read_parquet(path: Path, layout: Layout) -> Iterator[Placed]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024):
                for columns in batch.to_pylist():
                    number += 1
                    yield f"{path}: row {number}", columns
    except (pa.ArrowException, OSError) as exc:
        raise DataError(f"{path}: not a Parquet file: {exc}") from exc


def _read_text(path: Path, layout: Layout) -> Iterator[Placed]:
    """Read documents: a row has `text`, and of a WikiText article its `title`."""
    if layout.split_on is not None:
        parts = _content(path).split(layout.split_on)
        parts = parts[:-1] if not parts[-1].strip() else parts  # what follows a final separator
        for number, part in enumerate(parts, start=1):
            yield f"{path}: document {number}", {"text": part}
    elif layout.documents == "line":
        for number, line in _lines(path):
            yield f"{path}:{number}", {"text": line.rstrip("\n")}
    elif layout.documents == "article":
        yield from _articles(path)
    else:
        yield str(path), {"text": _content(path), "name": path.name}


def _articles(path: Path) -> Iterator[Placed]:
    """Split WikiText at its first-level headings; the text is kept to the last blank."""
    start, title, lines = 1, "", list[str]()
    for number, line in _lines(path):
        heading = _ARTICLE_TITLE.fullmatch(line.rstrip("\n"))
        if heading:
            if "".join(lines).strip():
                yield f"{path}:{start}", {"text": "".join(lines), "title": title}
            start, title, lines = number, heading[1], []
        lines.append(line)
    if "".join(lines).strip():
        yield f"{path}:{start}", {"text": "".join(lines), "title": title}


_READERS: dict[Format, Callable[[Path, Layout], Iterator[Placed]]] = {
    "jsonl": _read_jsonl,
    "json": _read_json,
    "squad": _read_json,
    "csv": _read_csv,
    "tsv": _read_csv,
    "parquet": _read_parquet,
    "text": _read_text,
}
