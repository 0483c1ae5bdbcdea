"""What makes two runs comparable: canonical hashes, and the first key in which two settings differ.

Nothing here knows what the settings mean; `plan` decides what goes in.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, BinaryIO

from raveval.errors import ModelError
from raveval.weights import SUFFIXES, read_spans

_TRAINERS = re.compile(
    r"\.|optimizer|scheduler|scaler|rng_state|trainer_state|training_args|zero_to_fp32"
    r"|events\.out|.*\.(md|log|txt\.lock)$|latest$|global_step"
)
"""Names of files that trainers write beside a model, and no engine reads."""

_WHOLE_BYTES = 1 << 20
_BLOCK_BYTES = 1 << 14


def plain(content: Any) -> Any:
    """Return a value as it comes back from JSON, so that stored and fresh ones compare equal.

    >>> plain({"stop": ("a",)})
    {'stop': ['a']}
    """
    return json.loads(json.dumps(content))


def digest(content: Any) -> str:
    """Return the SHA-256 of a JSON value in canonical form.

    >>> digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1})
    True
    """
    return hashlib.sha256(_canonical(content)).hexdigest()


def digest_each(contents: Iterable[Any]) -> str:
    """Return the SHA-256 of a series of JSON values or dataclasses, one held at a time.

    >>> digest_each([1, "a"]) == digest_each([1]), digest_each([]) == digest_each(())
    (False, True)
    """
    whole = hashlib.sha256()
    for content in contents:
        whole.update(hashlib.sha256(_canonical(content)).digest())
    return whole.hexdigest()


def _columns(value: Any) -> dict[str, Any]:
    """Return a dataclass as JSON has it; `asdict` gives the same, copying all that is in it."""
    if not is_dataclass(value):
        raise TypeError(f"{type(value).__name__} is no JSON value")
    return {field.name: getattr(value, field.name) for field in fields(value)}


_encode = json.JSONEncoder(
    sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=_columns
).encode


def _canonical(content: Any) -> bytes:
    return _encode(content).encode("utf-8", "surrogatepass")


def first_difference(
    old: Mapping[str, Any], new: Mapping[str, Any], *, at: str = ""
) -> tuple[str, Any, Any] | None:
    """Return (dotted key, old value, new value) of the first difference in `new`'s order, or None.

    >>> first_difference({"a": {"b": 1}}, {"a": {"b": 2}})
    ('a.b', 1, 2)
    """
    for key in dict.fromkeys((*new, *old)):
        a, b = old.get(key), new.get(key)
        if a == b:
            continue
        name = f"{at}{key}"
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            return first_difference(a, b, at=f"{name}.")
        return name, a, b
    return None


def checkpoint_digest(directory: Path) -> str:
    """Return a hash that tells two checkpoints apart, without reading all of their weights.

    What lies at the top of the directory counts, as it is what engines load, but for what a trainer
    keeps beside it: its optimizer's and schedule's states, its log, its arguments, notes for
    readers. They come and go while the model stays the same. Small files are hashed whole. Of a
    safetensors file the header is hashed, and three blocks of each tensor, so that a checkpoint of
    which one layer was trained differs; of other weights 64 evenly spaced blocks.

    Raises:
        ModelError: there is nothing to hash.
    """
    files = sorted(path for path in directory.iterdir() if path.is_file())
    files = [path for path in files if not _TRAINERS.match(path.name)]
    if not files:
        raise ModelError(f"model path {str(directory)!r}: holds no files")
    whole = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        whole.update(f"{path.name}\x00{size}\x00".encode())
        with path.open("rb") as file:
            for start, length in _blocks(path, size, file):
                file.seek(start)
                whole.update(file.read(length))
    return whole.hexdigest()


def _blocks(path: Path, size: int, file: BinaryIO) -> list[tuple[int, int]]:
    """Return the (start, length) of what is hashed of a file."""
    if size <= _WHOLE_BYTES or path.suffix not in SUFFIXES:
        return [(0, size)]
    spread = [((size - _BLOCK_BYTES) * i // 63, _BLOCK_BYTES) for i in range(64)]
    if path.suffix != ".safetensors":
        return spread
    try:
        header_bytes, spans = read_spans(file, size)
    except ValueError:
        return spread  # not what its name says; loading it will tell
    blocks = [(0, header_bytes)]
    for begin, end in spans:
        last = max(begin, end - _BLOCK_BYTES)
        starts = dict.fromkeys((begin, (begin + last) // 2, last))
        blocks += [(header_bytes + at, min(_BLOCK_BYTES, end - at)) for at in starts]
    return blocks
