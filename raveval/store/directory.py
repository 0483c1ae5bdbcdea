"""A directory that one driver at a time holds, wherever it lies, and how its files are written."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from raveval.errors import DataError, RunError
from raveval.store.places import Say, place_of

Item = TypeVar("Item")
Value = TypeVar("Value")


class Directory:
    """Files by their names, each committed whole or not at all.

    Args:
        path: a folder, or the URL of a prefix in an object store.

    Raises:
        ConfigError: a URL that names no bucket, or a store that cannot be spoken to from here.
    """

    def __init__(self, path: str | Path) -> None:
        self._place = place_of(path)
        self._check_held: Callable[[], None] = lambda: None

    @property
    def path(self) -> str:
        """The directory as it was given."""
        return str(self._place)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self._place.name

    def absolute(self) -> str:
        """Return the directory as every process finds it."""
        return self._place.absolute()

    def check(self) -> None:
        """Refuse a directory that cannot hold a run, without writing anything.

        Raises:
            Refused: why not.
        """
        self._place.check()

    def names(self) -> list[str]:
        """Return what stands in the directory, without names that begin with a dot."""
        return self._place.names()

    @contextmanager
    def held(self, *, say: Say = lambda _: None) -> Iterator[None]:
        """Keep other drivers out while the block runs; the lock ends with the process.

        In an object store it ends some seconds later, for which the next driver waits; `say` hears
        of it.

        Raises:
            MismatchError: another driver is at work in this directory.
            Refused: the directory cannot be created or written.
        """
        with self._place.held(say) as self._check_held:
            try:
                yield
            finally:
                self._check_held = lambda: None

    def holder(self) -> str | None:
        """Return which driver is at work here, or None where none is."""
        return self._place.holder()

    def over(self, items: Iterable[Item], function: Callable[[Item], Value]) -> Iterator[Value]:
        """Yield what a function that reads files gives of each item, in order.

        In an object store several are under way at once, since each waits for its answer.
        """
        if self._place.n_at_once == 1:
            yield from map(function, items)
            return
        remaining = iter(items)
        with ThreadPoolExecutor(self._place.n_at_once) as pool:
            while some := list(islice(remaining, self._place.n_at_once)):
                yield from pool.map(function, some)

    def write_text(self, name: str, text: str) -> None:
        """Commit a text file of the directory.

        Raises:
            RunError: it cannot be written; or this driver held the directory, and another one has
                taken it over.
        """
        self._check_held()
        with self._written(name):
            self._commit(name, text.encode())

    @contextmanager
    def _written(self, name: str) -> Iterator[None]:
        """Say which file a driver cannot write; a replica's faults are told by their kind."""
        try:
            yield
        except OSError as exc:
            raise RunError(f"{self.path}/{name}: cannot be written: {exc}") from exc

    def read_text(self, name: str) -> str:
        """Return a text file of the directory.

        Raises:
            FileNotFoundError: there is none of that name.
            DataError: it cannot be read, or is no text.
        """
        try:
            return self._place.read(name).decode()
        except FileNotFoundError:
            raise
        except NotADirectoryError as exc:
            raise FileNotFoundError(str(exc)) from exc
        except (OSError, UnicodeDecodeError) as exc:
            raise DataError(f"{self.path}/{name}: cannot be read: {exc}") from exc

    @contextmanager
    def copies(self, names: Iterable[str]) -> Iterator[list[Path]]:
        """Give copies of those of these files that are there, for what reads local files alone."""
        with tempfile.TemporaryDirectory() as folder:
            found = []
            for name in names:
                if self._place.exists(name):
                    found.append(Path(folder, name))
                    found[-1].write_bytes(self._place.read(name))
            yield found

    def tidy(self) -> None:
        """Remove what a finished run needs no more: empty folders, and what killed writers left."""
        for name in ("", *self._place.names()):
            self._place.tidy(name)

    def _commit(self, name: str, content: bytes) -> None:
        with self._place.committed(name) as file:
            file.write(content)

    def _commit_table(self, name: str, table: pa.Table) -> None:
        with self._place.committed(name) as file:
            pq.write_table(table, file, compression="zstd")

    def _read_table(self, name: str, *, columns: list[str] | None = None) -> pa.Table:
        return pq.read_table(self._place.parquet(name), columns=columns, partitioning=None)
