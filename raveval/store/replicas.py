"""What the processes of replicas leave in a run directory: what each loaded, and how it was lost.

    workers/<session>-<replica>-000.json   a process that began; what it loaded, once it has
    lost/<session>-<replica>-000.json      the same process, where it died or could not start

A replica whose process died goes on in another one, under the next number.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any

from raveval.store.directory import Directory

_MAX_SHARDS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Lost:
    """A process of a replica that died, or that could not start, and its last words.

    Attributes:
        node, process: the machine's name, and the number of the process on it.
        stage: whether its model answered, or graded.
        could_start: False where it did not load the model; then it was given nothing.
        words: of its engine; empty where it crashed or was killed, and had no time for any.
        details: the traceback, where there is one.
        shards: what it was at work on, as "task 3".
        alone: the only example in the engine; None where several were in it, or none.
        when: UTC.
    """

    node: str
    process: int
    stage: str
    could_start: bool
    words: str
    details: str = ""
    shards: tuple[str, ...] = ()
    alone: str | None = None
    when: str = ""

    @property
    def gave_up(self) -> bool:
        """Whether it lives, but cannot take part: a process that dies is replaced."""
        return not self.could_start and bool(self.words)

    def in_words(self) -> str:
        """Say what happened, and to what, in one sentence.

        >>> Lost("n1", 7, "answer", True, "out of memory", shards=("demo_qa 0",)).in_words()
        'the replica on n1 (process 7) died: out of memory; at work on demo_qa 0'
        """
        role = "judge's replica" if self.stage == "grade" else "replica"
        who = f"the {role} on {self.node} (process {self.process})"
        if self.gave_up:
            return f"{who} cannot start: {self.words}"
        when = "" if self.could_start else " while it loaded the model"
        return f"{who} died{when}: {self.words or WITHOUT_WORDS}{self._work()}"

    def _work(self) -> str:
        shown = ", ".join(self.shards[:_MAX_SHARDS_SHOWN])
        n_more = len(self.shards) - _MAX_SHARDS_SHOWN
        work = f"; at work on {shown}" if shown else ""
        more = f" and {n_more} more" if n_more > 0 else ""
        alone = f", on example {self.alone!r} alone" if self.alone is not None else ""
        return f"{work}{more}{alone}"


WITHOUT_WORDS = "it left no last words: it crashed, or was killed (mostly for its memory)"


_KINDS: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("node", "stage", "words", "details", "when"), str),
    "process": int,
    "could_start": bool,
    "shards": list,
    "alone": (str, type(None)),
}


@dataclass(frozen=True, slots=True)
class Process:
    """A process of a replica, by what it left: whether it loaded, answered anything, was lost."""

    name: str
    content: Mapping[str, Any]
    is_lost: bool

    @property
    def has_loaded(self) -> bool:
        """Whether it loaded the model."""
        return "loaded" in self.content


def replica_of(name: str) -> str:
    """Return what the names of all processes of one replica begin with, session and replica.

    >>> replica_of("one-b-000")
    'one-b'
    """
    return name.rpartition("-")[0]


class ReplicaNotes(Directory):
    """The files of a run directory that its replicas write about themselves."""

    def report_worker(self, name: str, content: Mapping[str, Any]) -> None:
        """Commit what a process is and what it loaded; `name` begins with its session."""
        self._commit(f"workers/{name}.json", json.dumps(content).encode())

    def worker_reports(self, session: str | None = None) -> list[dict[str, Any]]:
        """Return what processes of a session, or of all sessions, have loaded, oldest first."""
        names = [f"workers/{name}" for name in self._names("workers", session)]
        names.sort(key=self._place.modified)
        noted = (self._noted(name) for name in names)
        return [report for report in noted if "loaded" in report]

    def processes(self, session: str, replica: str) -> list[Process]:
        """Return the processes that a replica had so far, oldest first."""
        lost = set(self._names("lost", session))
        return [
            Process(
                name.removesuffix(".json"),
                self._noted(f"workers/{name}"),
                name in lost,
            )
            for name in self._names("workers", session)
            if name.startswith(f"{session}-{replica}-")
        ]

    def has_answered(self, name: str) -> bool:
        """Whether a process answered anything before it was lost."""
        return bool(self._noted(f"workers/{name}.json").get("has_answered"))

    def report_lost(self, name: str, lost: Lost) -> None:
        """Commit how a process was lost, and when: now."""
        when = datetime.now(UTC).isoformat(timespec="microseconds")
        content = {**asdict(lost), "when": when}
        self._commit(f"lost/{name}.json", json.dumps(content).encode())

    def lost(self, session: str | None = None, *, known: Collection[str] = ()) -> dict[str, Lost]:
        """Return the processes that were lost, by name, oldest first.

        Args:
            session: whose; None for all.
            known: names to leave out.
        """
        names = (name.removesuffix(".json") for name in self._names("lost", session))
        noted = {name: self._noted(f"lost/{name}.json") for name in names if name not in known}
        found = {name: _lost(each) for name, each in noted.items() if _is_lost(each)}
        return dict(sorted(found.items(), key=lambda item: item[1].when))

    def _noted(self, name: str) -> dict[str, Any]:
        """Return what a note says; nothing where it is torn or foreign: no number rests on it.

        Storage that fails is another matter, and is told.
        """
        try:
            content = json.loads(self._place.read(name))
        except (IsADirectoryError, ValueError, RecursionError):
            return {}
        return content if isinstance(content, dict) else {}

    def _names(self, folder: str, session: str | None) -> Sequence[str]:
        start = "" if session is None else f"{session}-"
        return [name for name in self._place.names(folder) if name.startswith(start)]


def _is_lost(content: Mapping[str, Any]) -> bool:
    """Whether a note says how a process was lost, as raveval writes it."""
    return all(key in content and isinstance(content[key], kind) for key, kind in _KINDS.items())


def _lost(content: Mapping[str, Any]) -> Lost:
    known = {each.name for each in fields(Lost)}
    found = {key: value for key, value in content.items() if key in known}
    return Lost(**{**found, "shards": tuple(map(str, found["shards"]))})
