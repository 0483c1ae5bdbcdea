"""Reads lm-eval's samples files: what was asked of the model, what it said, and what it got.

In files of 0.4.13 numbers and truth values of responses are text and arguments mappings; in earlier
ones they are JSON's own, and lists.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raveval.errors import DataError
from raveval.lm_eval.conventions import NO_FILTER, RAVEVAL
from raveval.lm_eval.reading import mapping


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of a samples file, as it stands.

    `arguments` are those of each request, `filtered` the response to each after the filter.
    """

    where: str
    doc_id: int | str
    doc: Mapping[str, Any]
    target: Any
    arguments: tuple[tuple[Any, ...], ...]
    filtered: Sequence[Any]
    filter: str
    columns: Mapping[str, Any]

    @property
    def ours(self) -> Mapping[str, Any]:
        """What raveval itself wrote of the example, if this is a file of its own."""
        return mapping(self.columns.get(RAVEVAL))


def read_samples(path: Path) -> list[Sample]:
    """Return the samples of a file: JSON lines, or (early 0.4) one JSON list.

    Raises:
        DataError: a line that is no sample; names it.
    """
    return [_sample(where, row) for where, row in _sample_rows(path)]


def _sample_rows(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise DataError(f"{path}: cannot be read: {exc}") from exc
    if text.lstrip().startswith("["):
        for number, row in enumerate(_parsed(str(path), text), start=1):
            yield f"{path}: sample {number}", row
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield f"{path}:{number}", _parsed(f"{path}:{number}", line)


def _parsed(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise DataError(f"{where}: not valid JSON: {exc}") from exc


def _sample(where: str, row: Any) -> Sample:
    columns = mapping(row)
    missing = [key for key in ("doc_id", "arguments", "resps") if key not in columns]
    if missing:
        raise DataError(f"{where}: {missing[0]}: missing; a sample of lm-eval has it")
    return Sample(
        where=where,
        doc_id=columns["doc_id"],
        doc=mapping(columns.get("doc")),
        target=columns.get("target"),
        arguments=tuple(_values(where, each) for each in _values(where, columns["arguments"])),
        filtered=columns.get("filtered_resps") or [each[0] for each in columns["resps"]],
        filter=str(columns.get("filter", NO_FILTER)),
        columns=columns,
    )


def _values(where: str, arguments: Any) -> tuple[Any, ...]:
    """Return arguments in order: a list, or a mapping whose keys end in their numbers."""
    if isinstance(arguments, Mapping):
        return tuple(arguments[key] for key in sorted(arguments, key=_number))
    if isinstance(arguments, Iterable) and not isinstance(arguments, str):
        return tuple(arguments)
    raise DataError(f"{where}: arguments: expected lists or mappings, found {arguments!r:.60}")


def _number(key: str) -> int:
    digits = re.search(r"\d+$", key)
    return int(digits[0]) if digits else -1
