"""Values that may be more than memory holds: kept in a temporary file, read back one by one.

The file is SQLite's, which also sorts and finds keys that stand twice without reading the values
into memory. It lies where TMPDIR says and is gone with the spool.
"""

from __future__ import annotations

import contextlib
import pickle
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar, overload

from typing_extensions import override

from raveval.errors import ResourceError

Value = TypeVar("Value")

_CACHE_KIB = 16 * 1024
_SETTINGS = ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{_CACHE_KIB}")
_TABLE = "entry (position INTEGER PRIMARY KEY, key BLOB, label TEXT, value BLOB NOT NULL)"


class Entry(NamedTuple):
    """A value, the key by which it is sorted and found, and a word about it."""

    key: bytes
    label: str | None
    value: Any


class Spool(Sequence[Value]):
    """Values of one dataclass in the order in which they came; filled once, then read.

    Args:
        kind: the dataclass; its fields are stored, and it is made of them again.
        entries: what the spool holds.

    Raises:
        ResourceError: the temporary folder does not hold them.
    """

    def __init__(self, kind: type[Value], entries: Iterable[Entry]) -> None:
        self._kind = kind
        self._columns = attrgetter(*(field.name for field in fields(kind)))  # type: ignore[arg-type]
        self._file = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        for setting in _SETTINGS:
            self._file.execute(f"PRAGMA {setting}")
        with _room():
            self._file.execute(f"CREATE TABLE {_TABLE}")
            self._file.execute("BEGIN")
            self._file.executemany(
                "INSERT INTO entry (key, label, value) VALUES (?, ?, ?)",
                ((e.key, e.label, pickle.dumps(self._columns(e.value))) for e in entries),
            )
            self._file.execute("COMMIT")
        self._n = int(self._file.execute("SELECT count(*) FROM entry").fetchone()[0])

    @override
    def __len__(self) -> int:
        return self._n

    @overload
    def __getitem__(self, position: int) -> Value: ...
    @overload
    def __getitem__(self, position: slice) -> list[Value]: ...
    @override
    def __getitem__(self, position: int | slice) -> Value | list[Value]:
        if isinstance(position, slice):
            return [self[each] for each in range(*position.indices(self._n))]
        number = position + self._n if position < 0 else position
        for (value,) in self._file.execute(
            "SELECT value FROM entry WHERE position = ?", (number + 1,)
        ):
            return self._read(value)
        raise IndexError(f"{position} of {self._n} values")

    @override
    def __iter__(self) -> Iterator[Value]:
        for (value,) in self._file.execute("SELECT value FROM entry ORDER BY position"):
            yield self._read(value)

    def _read(self, value: bytes) -> Value:
        return self._kind(*pickle.loads(value))

    def sort(self) -> None:
        """Put the values in the order of their keys; equal ones stay as they came."""
        with _room():
            for step in (
                f"CREATE TABLE sorted_{_TABLE}",
                "INSERT INTO sorted_entry (key, label, value) "
                "SELECT key, label, value FROM entry ORDER BY key, position",
                "DROP TABLE entry",
                "ALTER TABLE sorted_entry RENAME TO entry",
            ):
                self._file.execute(step)

    def first_repetition(self) -> tuple[int, int] | None:
        """Return where the first value stands whose key was there, and where that one does."""
        found = self._file.execute(
            "SELECT n, first FROM (SELECT min(position) AS first, key FROM entry GROUP BY key "
            "HAVING count(*) > 1) AS repeated JOIN (SELECT position AS n, key FROM entry) AS each "
            "ON each.key = repeated.key AND n > first ORDER BY n LIMIT 1"
        ).fetchone()
        return None if found is None else (found[0] - 1, found[1] - 1)

    def label(self, position: int) -> str | None:
        """Return the word about a value."""
        ((label,),) = self._file.execute(
            "SELECT label FROM entry WHERE position = ?", (position + 1,)
        )
        return None if label is None else str(label)

    def labels(self, *, once_each_key: bool = False) -> Iterator[tuple[int, str | None]]:
        """Yield each value's position and label; of those with one key the first alone, if asked.

        Positions ascend.
        """
        taken = "min(position), label FROM entry GROUP BY key ORDER BY 1"
        taken = taken if once_each_key else "position, label FROM entry ORDER BY 1"
        for position, label in self._file.execute(f"SELECT {taken}"):
            yield position - 1, label

    def index_keys(self) -> None:
        """Make `positions` quick."""
        with _room():
            self._file.execute("CREATE INDEX by_key ON entry (key)")

    def positions(self, key: bytes) -> list[int]:
        """Return where the values of a key stand, ascending."""
        found = self._file.execute(
            "SELECT position FROM entry WHERE key = ? ORDER BY position", (key,)
        )
        return [position - 1 for (position,) in found]


@contextlib.contextmanager
def _room() -> Iterator[None]:
    folder = tempfile.gettempdir()  # asked for later, it would pass over a folder that is full
    try:
        yield
    except sqlite3.Error as exc:
        raise ResourceError(
            f"{folder}: cannot hold the examples while they are prepared: {exc}. "
            "Free some room there, or set TMPDIR to a folder with more"
        ) from exc
