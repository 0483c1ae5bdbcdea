"""The lock of a place in an object store: who drives the run there, kept fresh while it does.

A driver writes a claim, an object of its own name in `.lock/`, and then lists all claims. It holds
the place if no other one is alive; else it takes its claim back. A store shows an object in its
lists as soon as it is written, so of two drivers the one that lists later sees the other: never do
both hold. Nothing but put, list and delete is needed of a store.

A claim is put again every few seconds. One that was not for half a minute is of a driver that died,
as is one of a process of this machine that is gone: such a claim is deleted. Ages are differences
of the store's own clock. A driver that was suspended for so long finds its claim gone and stops;
what its replicas would commit meanwhile, the run's session keeps out.
"""

from __future__ import annotations

import json
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from raveval.errors import MismatchError, Refused, RunError, StoreError

_FOLDER = ".lock"
REFRESH_SECONDS = 5.0
STALE_SECONDS = 30.0
_LONGEST_PAUSE = 1.0


class Objects(Protocol):
    """What of an object store a lock is made of."""

    def all_names(self, folder: str) -> list[str]:
        """Return the names in a folder."""

    def modified(self, name: str) -> float:
        """Return when an object was written, in seconds of the store's clock."""

    def read(self, name: str) -> bytes:
        """Return the content of an object."""

    def committed(self, name: str) -> AbstractContextManager[BinaryIO]:
        """Put an object."""

    def delete(self, name: str) -> None:
        """Delete an object."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A driver's claim as it was found: when it was last put, and what it says."""

    name: str
    modified: float
    content: Mapping[str, Any]

    @property
    def is_held(self) -> bool:
        """Whether its driver is at work, not only asking whether it may be."""
        return bool(self.content.get("is_held"))

    @property
    def who(self) -> str:
        """The driver, for a person."""
        told = (self.content.get(key, "unknown") for key in ("process", "host", "since"))
        return "process {} on {} since {}".format(*told)

    @property
    def is_alive(self) -> bool | None:
        """Whether its process lives; None where that is another machine's."""
        here, process = _this_machine(), self.content.get("process")
        if here is None or self.content.get("machine") != here or not isinstance(process, int):
            return None
        started = _started(process)
        return started is not None and started == self.content.get("started")

    def counts(self, now: float, stale_seconds: float) -> bool:
        """Whether its driver is taken to live; a process of this machine needs to give no sign."""
        return now - self.modified <= stale_seconds if self.is_alive is None else self.is_alive


class Claims:
    """The claims on one place.

    Args:
        objects: the store, with names relative to the place.
        refresh_seconds: how often a driver gives a sign.
        stale_seconds: after how long without one it is taken to be dead.
    """

    def __init__(
        self,
        objects: Objects,
        *,
        refresh_seconds: float = REFRESH_SECONDS,
        stale_seconds: float = STALE_SECONDS,
    ) -> None:
        self._objects = objects
        self._refresh_seconds = refresh_seconds
        self._stale_seconds = stale_seconds

    @contextmanager
    def held(self, say: Callable[[str], None]) -> Iterator[Callable[[], None]]:
        """Hold the place while the block runs; gives a call that raises once it was taken over.

        Where a claim is there that may be of a driver that died, waits until it is clear.

        Raises:
            MismatchError: another driver gives signs.
            Refused: the store cannot be written.
        """
        own = f"{_FOLDER}/{uuid.uuid4().hex}.json"
        content = _content()
        try:
            try:
                self._acquire(own, content, say)
            except StoreError as exc:
                raise Refused(str(exc)) from exc
            is_over, is_lost = threading.Event(), threading.Event()
            thread = threading.Thread(
                target=self._keep_fresh,
                args=(own, content, is_over, is_lost),
                name="raveval-lock",
                daemon=True,
            )
            thread.start()
            try:
                yield lambda: self._check(is_lost)
            finally:
                is_over.set()
                thread.join()
        finally:
            with suppress(StoreError):
                self._objects.delete(own)

    def holder(self) -> str | None:
        """Return whose claim is held and fresh by this machine's clock, or None."""
        now = time.time()
        for claim in self._found():
            if claim.is_held and claim.counts(now, self._stale_seconds):
                return claim.who
        return None

    def _acquire(self, own: str, content: Mapping[str, Any], say: Callable[[str], None]) -> None:
        """Return once the claim is the only one alive."""
        waited_for: Claim | None = None
        while True:
            self._put(own, content)
            others = self._alive(own)
            if not others:
                self._put(own, {**content, "is_held": True})
                return
            self._objects.delete(own)
            for holder in (claim for claim in others if claim.is_held):
                if holder.is_alive or (waited_for and _is_sign(holder, waited_for)):
                    raise MismatchError(
                        f"{self._objects}: another raveval ({holder.who}) is running in this "
                        "directory; wait for it, or choose another output"
                    )
                if waited_for is None:
                    say(
                        f"{self._objects}: another raveval ({holder.who}) was at work here; "
                        f"waiting up to {self._stale_seconds:g} s for a sign of it"
                    )
                    waited_for = holder
            # Of two that ask at once both step back; chance decides who is first next time.
            time.sleep(random.uniform(0.1, 1.0) * min(_LONGEST_PAUSE, self._refresh_seconds))

    def _alive(self, own: str) -> list[Claim]:
        """Return the other claims whose drivers live, and delete those of dead ones."""
        now = self._objects.modified(own)
        alive = []
        for claim in self._found():
            if claim.name == own:
                continue
            if claim.counts(now, self._stale_seconds):
                alive.append(claim)
            else:
                self._objects.delete(claim.name)
        return alive

    def _found(self) -> list[Claim]:
        found = []
        for each in self._objects.all_names(_FOLDER):
            name = f"{_FOLDER}/{each}"
            with suppress(FileNotFoundError):  # taken back in between
                content = json.loads(self._objects.read(name))
                found.append(Claim(name, self._objects.modified(name), content))
        return found

    def _keep_fresh(
        self,
        own: str,
        content: Mapping[str, Any],
        is_over: threading.Event,
        is_lost: threading.Event,
    ) -> None:
        while not is_over.wait(self._refresh_seconds):
            with suppress(StoreError):  # it may answer next time
                if own.removeprefix(f"{_FOLDER}/") not in self._objects.all_names(_FOLDER):
                    is_lost.set()
                    return
                self._put(own, {**content, "is_held": True})

    def _check(self, is_lost: threading.Event) -> None:
        if is_lost.is_set():
            raise RunError(
                f"{self._objects}: this process gave no sign for {self._stale_seconds:g} s, and "
                "another one may have taken the run over; what was committed is kept"
            )

    def _put(self, own: str, content: Mapping[str, Any]) -> None:
        with self._objects.committed(own) as file:
            file.write(json.dumps(content).encode())


def _content() -> dict[str, Any]:
    return {
        "process": os.getpid(),
        "host": socket.gethostname(),
        "machine": _this_machine(),
        "started": _started(os.getpid()),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _is_sign(claim: Claim, earlier: Claim) -> bool:
    return claim.name != earlier.name or claim.modified > earlier.modified


def _this_machine() -> str | None:
    """Return what tells this machine, since it was started, from all others; None if unknown.

    Containers of one machine have processes of the same numbers: their name space is part of it.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _started(process: int) -> str | None:
    """Return when a process was started, in ticks since the machine was; None where it is gone."""
    try:
        # The command's name stands in brackets and may hold any character.
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None
