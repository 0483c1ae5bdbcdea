"""Where a run's files lie: a folder of this machine's file system, or a prefix in an object store.

What a run directory needs of either stands in `Place`; no other package knows the difference.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from raveval.errors import ConfigError

Say = Callable[[str], None]
StillHeld = Callable[[], None]
"""A call that raises once another driver has taken a place over."""

_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)", re.DOTALL | re.IGNORECASE)
_COLLAPSED = re.compile(r"[a-z][a-z0-9+.-]+:/[^/]", re.IGNORECASE)
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}


class Place(Protocol):
    """A place that holds the files of a run, each by its name relative to the place.

    What is missing raises FileNotFoundError. Whatever else goes wrong is an OSError in a folder and
    a StoreError in an object store.
    """

    @property
    def n_at_once(self) -> int:
        """How many reads are worth having under way at once."""

    @property
    def name(self) -> str:
        """The last part of the place's path."""

    def absolute(self) -> str:
        """Return the place as every process finds it."""

    def check(self) -> None:
        """Refuse what cannot hold a run, without writing anything.

        Raises:
            Refused: why not.
        """

    def held(self, say: Say) -> AbstractContextManager[StillHeld]:
        """Keep other drivers out while the block runs.

        Raises:
            MismatchError: another driver is at work here.
            Refused: the place cannot be written.
        """

    def holder(self) -> str | None:
        """Return which driver is at work here, or None where none is; disturbs nobody."""

    def names(self, folder: str = "") -> list[str]:
        """Return the names in a folder of the place, sorted, without those that begin with a dot.

        One that does not exist has none.
        """

    def exists(self, name: str) -> bool:
        """Whether there is a file of that name."""

    def modified(self, name: str) -> float:
        """Return when a file was written, in seconds of the place's own clock."""

    def read(self, name: str) -> bytes:
        """Return the content of a file."""

    def parquet(self, name: str) -> Any:
        """Return what pyarrow reads the whole of a file from."""

    def opened(self, name: str) -> AbstractContextManager[Any]:
        """Open what pyarrow reads parts of a file from."""

    def committed(self, name: str) -> AbstractContextManager[BinaryIO]:
        """Open a file that is there whole once the block is done, and not at all if it fails."""

    def delete(self, name: str) -> None:
        """Delete a file if it is there."""

    def tidy(self, folder: str) -> None:
        """Remove what killed writers left in a folder and its folders, and those that are empty."""


def place_of(given: str | Path) -> Place:
    """Return the place that a path or a URL means.

    Raises:
        ConfigError: a URL that names no bucket, or a store that cannot be spoken to from here.
    """
    text = given if isinstance(given, Path) else checked_place(str(given))
    if isinstance(text, str) and is_url(text):
        from raveval.store.object_store import ObjectStore

        return ObjectStore(text)
    if _COLLAPSED.match(str(text)):
        raise ConfigError(
            f"{text}: a Path drops one of the slashes after the colon; give the URL as text"
        )
    from raveval.store.folder import Folder

    return Folder(Path(text))


def is_url(text: str) -> bool:
    """Whether a run directory's name means an object store.

    >>> is_url("s3://bucket/runs/first"), is_url("runs/first")
    (True, False)
    """
    return _URL.match(text) is not None


def checked_place(text: str) -> str:
    """Return the name of a run directory in the one way that it is written.

    >>> checked_place("s3://bucket/runs/first/")
    's3://bucket/runs/first'

    Raises:
        ConfigError: a URL that names no bucket, or no folder in it.
    """
    found = _URL.match(text)
    if found is None:
        return str(Path(text).expanduser())
    scheme, rest = found[1].lower(), found[2].rstrip("/")
    if scheme in ("file", "local"):
        raise ConfigError(f"{text}: a folder of a file system is given by its path alone")
    if not all((parts := rest.split("/"))[1:]) or len(parts) < 2 or {".", ".."} & set(parts):
        raise ConfigError(
            f"{text}: not a place in an object store; it is {scheme}://BUCKET/FOLDER, as in "
            f"{scheme}://my-bucket/runs/first"
        )
    return f"{scheme}://{rest}"


def extra_of(text: str) -> str | None:
    """Return the extra of raveval that a place needs; None where it needs none that is known.

    >>> extra_of("s3://bucket/run"), extra_of("/mnt/run")
    ('s3', None)
    """
    found = _URL.match(text)
    return None if found is None else _EXTRAS.get(found[1])
