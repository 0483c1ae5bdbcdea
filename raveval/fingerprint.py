"""What makes two runs comparable: canonical hashes, and the first key in which two settings differ.

Nothing here knows what the settings mean; `plan` decides what goes in.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_SAMPLES = 16
_SAMPLE_BYTES = 1 << 16


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
    """Return the SHA-256 of a series of JSON values, one held at a time.

    >>> digest_each([1, "a"]) == digest_each([1]), digest_each([]) == digest_each(())
    (False, True)
    """
    whole = hashlib.sha256()
    for content in contents:
        whole.update(hashlib.sha256(_canonical(content)).digest())
    return whole.hexdigest()


def _canonical(content: Any) -> bytes:
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass")


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


def directory_digest(directory: Path) -> str:
    """Return a hash that tells two checkpoints apart, without reading all of their weights.

    Small files are hashed whole; of a large one its size and 16 evenly spaced blocks of 64 KiB.
    Training changes every weight, so two checkpoints of one run differ in each block.
    """
    files = sorted(
        path
        for path in directory.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.parts[-3:])
    )
    whole = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        whole.update(f"{path.relative_to(directory)}\x00{size}\x00".encode())
        with path.open("rb") as file:
            if size <= _SAMPLES * _SAMPLE_BYTES:
                whole.update(file.read())
                continue
            for sample in range(_SAMPLES):
                file.seek((size - _SAMPLE_BYTES) * sample // (_SAMPLES - 1))
                whole.update(file.read(_SAMPLE_BYTES))
    return whole.hexdigest()
