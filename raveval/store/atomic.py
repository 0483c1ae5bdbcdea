"""Commits files: a reader sees all of one or nothing, also after a crash."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_UNFINISHED = re.compile(r"\..+\.[0-9a-f]{32}")


@contextmanager
def committed(path: Path) -> Iterator[BinaryIO]:
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


def unfinished(folder: Path) -> Iterator[Path]:
    """Return what writers have not finished in a folder; those that were killed never will."""
    return (path for path in folder.glob(".*") if _UNFINISHED.fullmatch(path.name))


def commit(path: Path, content: bytes) -> Path:
    """Commit a file of this content and return its path."""
    with committed(path) as file:
        file.write(content)
    return path
