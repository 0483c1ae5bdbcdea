"""A run's files under a prefix of an object store, which fsspec speaks to.

An object is put whole or not at all, so nothing is renamed. Nothing is remembered of what was
listed: another process may just have written. Credentials come from the environment or the
machine, as each library of fsspec finds them; raveval neither takes nor stores any.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, BinaryIO

import pyarrow as pa
from typing_extensions import override

from raveval.errors import ConfigError, RavevalError, Refused, StoreError
from raveval.store.claims import Claims
from raveval.store.places import Say, StillHeld, extra_of

_AT_ONCE = 32
_S3_OPTIONS = {
    "max_concurrency": 1,  # else each read asks for the size first; shards are small
    "config_kwargs": {"max_pool_connections": _AT_ONCE},
}
_OPTIONS: dict[str, dict[str, Any]] = {"s3": _S3_OPTIONS, "s3a": _S3_OPTIONS}


class ObjectStore:
    """A prefix in a bucket; the lock of its driver is an object that the driver keeps fresh."""

    n_at_once = _AT_ONCE

    def __init__(self, url: str) -> None:
        """Find what speaks to the store; nothing is sent yet.

        Raises:
            ConfigError: fsspec does not know the store, or its library is not installed.
        """
        import fsspec

        self.url = url
        scheme = url.partition("://")[0]
        try:
            self._files = fsspec.filesystem(
                scheme, use_listings_cache=False, **_OPTIONS.get(scheme, {})
            )
        except (ImportError, ValueError) as exc:
            extra = extra_of(url)
            remedy = f"pip install 'raveval[{extra}]'" if extra else "see fsspec's list of stores"
            raise ConfigError(f"{url}: {exc}; {remedy}, here and on all nodes") from exc
        self._root: str = self._files._strip_protocol(url)
        self._claims = Claims(self)

    @override
    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        """The last part of the prefix."""
        return self.url.rpartition("/")[2]

    def absolute(self) -> str:
        """Return the URL."""
        return self.url

    def check(self) -> None:
        """Refuse a store that does not let this process in, or a bucket that is not there."""
        try:
            if self.names():
                return
            with self._told(), suppress(PermissionError):  # who may list may not see the bucket
                self._files.info(self._root.partition("/")[0])
        except FileNotFoundError as exc:
            raise Refused(f"{self.url}: there is no such bucket") from exc
        except StoreError as exc:
            raise Refused(str(exc)) from exc

    def held(self, say: Say) -> AbstractContextManager[StillHeld]:
        """Keep other drivers out while the block runs."""
        return self._claims.held(say)

    def holder(self) -> str | None:
        """Return which driver is at work here, or None where none gave a sign lately."""
        return self._claims.holder()

    def names(self, folder: str = "") -> list[str]:
        """Return the names in a folder, sorted, without those that begin with a dot."""
        return [name for name in self.all_names(folder) if not name.startswith(".")]

    def all_names(self, folder: str) -> list[str]:
        """Return all names in a folder, sorted."""
        path = self._path(folder)
        try:
            with self._told():
                self._files.invalidate_cache(path)
                found = self._files.ls(path, detail=False)
        except FileNotFoundError:
            return []
        names = {each.rstrip("/").removeprefix(f"{path}/") for each in found}
        return sorted(name for name in names if "/" not in name)

    def exists(self, name: str) -> bool:
        """Whether there is an object of that name."""
        with self._told():
            return bool(self._files.exists(self._path(name)))

    def modified(self, name: str) -> float:
        """Return when an object was written, in seconds of the store's clock."""
        with self._told():
            return float(self._files.modified(self._path(name)).timestamp())

    def read(self, name: str) -> bytes:
        """Return the content of an object."""
        with self._told():
            return bytes(self._files.cat_file(self._path(name)))

    def parquet(self, name: str) -> pa.BufferReader:
        """Return the content of an object as pyarrow reads it."""
        return pa.BufferReader(self.read(name))

    @contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO]:
        """Open an object; each read fetches what is asked for and no more."""
        with self._told(), self._files.open(self._path(name), "rb", cache_type="none") as file:
            yield file

    @contextmanager
    def committed(self, name: str) -> Iterator[BinaryIO]:
        """Open an object that is put whole once the block is done, and not at all if it fails."""
        file = io.BytesIO()
        yield file
        try:
            with self._told():
                self._files.pipe_file(self._path(name), file.getvalue())
        except FileNotFoundError as exc:
            raise StoreError(f"{self.url}: cannot be written: {exc}") from exc

    def delete(self, name: str) -> None:
        """Delete an object if it is there."""
        with suppress(FileNotFoundError), self._told():
            self._files.rm_file(self._path(name))

    def tidy(self, folder: str) -> None:
        """Do nothing: a store has no half-written objects, and no folders that could be empty."""

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Say what a library of fsspec says in its own kind of error; leave what is missing."""
        try:
            yield
        except (FileNotFoundError, RavevalError, pa.ArrowException):
            raise
        except Exception as exc:
            raise StoreError(
                f"{self.url}: {type(exc).__name__}: {exc}. Credentials come from the environment "
                "or the machine (variables, a profile, a role); every node needs them"
            ) from exc
