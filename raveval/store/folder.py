"""A run's files in a folder of a file system that all its processes see."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO

from typing_extensions import override

from raveval.errors import MismatchError, Refused
from raveval.store.atomic import committed, unfinished
from raveval.store.places import Say, StillHeld

_LOCK = ".lock"
_TRIES, _SECONDS_BETWEEN = 5, 0.05


class Folder:
    """A folder; the lock of its driver is the operating system's, and ends with the process."""

    n_at_once = 1

    def __init__(self, path: Path) -> None:
        self.path = path

    @override
    def __str__(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.path.name

    def absolute(self) -> str:
        """Return the absolute path."""
        return str(self.path.absolute())

    def check(self) -> None:
        """Refuse a path that cannot be a run directory, without creating it."""
        existing = self.path
        while not existing.exists() and existing != existing.parent:
            existing = existing.parent
        if not existing.is_dir():
            raise Refused(f"{existing} is a file, not a directory; choose another output")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise Refused(f"{existing} is not writable; choose another output")

    @contextmanager
    def held(self, say: Say) -> Iterator[StillHeld]:
        """Keep other drivers out while the block runs; the lock ends with the process."""
        with self._opened_lock() as lock:
            if not self._locked(lock):
                lock.seek(0)
                raise MismatchError(
                    f"{self.path}: another raveval (process {lock.read().strip() or 'unknown'}) "
                    "is running in this directory; wait for it, or choose another output"
                )
            lock.truncate(0)
            lock.write(f"{os.getpid()} on {socket.gethostname()}")
            lock.flush()
            yield lambda: None

    def _opened_lock(self) -> TextIO:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            return (self.path / _LOCK).open("a+")
        except OSError as exc:
            raise Refused(f"{self.path}: cannot be written: {exc}. Choose another output") from exc

    def _locked(self, lock: TextIO) -> bool:
        """Take the lock; one that is held for a moment, by who only asks, is asked for again."""
        try:
            for _ in range(_TRIES):
                if _flocked(lock, fcntl.LOCK_EX):
                    return True
                time.sleep(_SECONDS_BETWEEN)
        except OSError as exc:
            raise Refused(
                f"{self.path}: cannot be locked: {exc}. Choose an output on another file system"
            ) from exc
        return False

    def holder(self) -> str | None:
        """Return which driver is at work here, or None where none is."""
        try:
            with (self.path / _LOCK).open() as lock:
                if _flocked(lock, fcntl.LOCK_SH):
                    return None
                return f"process {lock.read().strip() or 'unknown'}"
        except OSError:
            return None  # no driver was ever here, or the lock is not ours to look at

    def names(self, folder: str = "") -> list[str]:
        """Return the names in a folder, sorted, without those that begin with a dot."""
        return sorted(path.name for path in (self.path / folder).glob("[!.]*"))

    def exists(self, name: str) -> bool:
        """Whether there is a file of that name."""
        return (self.path / name).exists()

    def modified(self, name: str) -> float:
        """Return when a file was written, in seconds."""
        return (self.path / name).stat().st_mtime_ns / 1e9

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        return (self.path / name).read_bytes()

    def parquet(self, name: str) -> Path:
        """Return the path of a file."""
        return self.path / name

    @contextmanager
    def opened(self, name: str) -> Iterator[Path]:
        """Give the path of a file: pyarrow opens it itself."""
        yield self.path / name

    def committed(self, name: str) -> AbstractContextManager[BinaryIO]:
        """Open a file that is there whole once the block is done, and not at all if it fails."""
        return committed(self.path / name)

    def delete(self, name: str) -> None:
        """Delete a file if it is there."""
        (self.path / name).unlink(missing_ok=True)

    def tidy(self, folder: str) -> None:
        """Remove what killed writers left in a folder and its folders, and those that are empty."""
        for path in (*(self.path / folder).glob("*"), self.path / folder):
            for left in unfinished(path):
                left.unlink(missing_ok=True)
            with suppress(OSError):  # files are in it, or it is one, or it is gone
                path.rmdir()


def _flocked(lock: TextIO, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
