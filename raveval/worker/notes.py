"""What a replica's process writes down about itself, so that its end can be told.

Ray replaces a process that dies, under the same replica. The new one finds what the one before it
wrote: a process that left no last words crashed or was killed. One replica that cannot load is no
end of a run; replicas that die again and again without an answer are.
"""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from raveval.engines import EngineDied
from raveval.errors import RavevalError, RunError
from raveval.store import Lost, RunDirectory
from raveval.store.replicas import WITHOUT_WORDS, Process, replica_of

if TYPE_CHECKING:
    from raveval.worker.desk import RunPart

_DEATHS_AT_START = 3
_FRUITLESS_DEATHS = 10  # an example that is quarantined at once takes two, and its shard two before
_MAX_CHARACTERS = 2000


class Notes:
    """The notes of one process of a replica, in the directories of all runs that it serves.

    Args:
        runs: where to write, and under which sessions.
        stage: whether its model answers, or grades.
        replica: a name that stays the same when the process is replaced.
    """

    def __init__(self, runs: Sequence[RunPart], *, stage: str, replica: str) -> None:
        self._runs = [(RunDirectory(run.directory), run.session) for run in runs]
        self._replica = replica
        self._number: int | None = None
        self._is_replacement = False
        self._has_answered = False
        self._seen: set[str] = set()
        self._idle: set[str] = set()
        self.about = {"node": socket.gethostname(), "process": os.getpid(), "stage": stage}
        self._report: Mapping[str, Any] = self.about

    def begin(self) -> None:
        """Note that this process loads the model, and the end of the one before it.

        Raises:
            RunError: processes die again and again, while they load or before they answer.
        """
        directory, session = self._runs[0]
        before = directory.processes(session, self._replica)
        self._number = len(before)
        self._is_replacement = any(process.has_loaded for process in before)
        for process in before:
            if not process.is_lost:
                self._bury(process)
        self._write(self.about)
        self._check_that_starts_survive(before)
        self._check_that_some_answer()

    def loaded(self, report: Mapping[str, Any]) -> None:
        """Note what was loaded."""
        self._write({**self.about, **report})

    def answered(self) -> None:
        """Note that the engine has answered; more than the first time is nothing new."""
        if not self._has_answered:
            self._has_answered = True
            self._write({**self._report, "has_answered": True})

    def died(self, words: str, work: Sequence[tuple[Sequence[str], str | None]]) -> None:
        """Note the engine's end; `work` has the shards under way, and an example alone, by run."""
        lost = self._lost(words)
        for (directory, session), (shards, alone) in zip(self._runs, work, strict=True):
            end = replace(lost, shards=tuple(shards), alone=alone)
            directory.report_lost(self._name(session), end)

    def cannot_start(self, exc: Exception) -> None:
        """Note why the model could not be loaded."""
        is_ours = isinstance(exc, RavevalError)
        details = "" if is_ours else "".join(traceback.format_exception(exc))
        details = _storable(details, 10 * _MAX_CHARACTERS)
        lost = replace(self._lost(last_words(exc)), could_start=False, details=details)
        for directory, session in self._runs:
            directory.report_lost(self._name(session), lost)

    def others_may_work(self, n_replicas: int) -> bool:
        """Whether another replica works, or may still come to."""
        directory, session = self._runs[0]
        for name, lost in directory.lost(session, known=self._seen).items():
            self._seen.add(name)
            if lost.gave_up:
                self._idle.add(replica_of(name))
        return len(self._idle) < n_replicas

    @property
    def is_replacement(self) -> bool:
        """Whether the replica was at work before: it may have shards that no other one gets."""
        return self._is_replacement

    @property
    def have_begun(self) -> bool:
        """Whether the run directory was there to write to."""
        return self._number is not None

    def _lost(self, words: str) -> Lost:
        about = self.about
        return Lost(str(about["node"]), os.getpid(), str(about["stage"]), True, words)

    def _bury(self, process: Process) -> None:
        """Note the end of a process that could not do so itself."""
        said = {**self.about, "process": 0, **process.content}  # which may be torn
        lost = Lost(
            str(said["node"]), said["process"], str(said["stage"]), process.has_loaded, words=""
        )
        suffix = process.name.partition("-")[2]
        for directory, session in self._runs:
            directory.report_lost(f"{session}-{suffix}", lost)

    def _check_that_starts_survive(self, before: Sequence[Process]) -> None:
        recent = before[-_DEATHS_AT_START:]
        if len(recent) == _DEATHS_AT_START and not any(process.has_loaded for process in recent):
            raise RunError(
                f"its process died {_DEATHS_AT_START} times in a row while it loaded the model. "
                f"Of the last one: {WITHOUT_WORDS}"
            )

    def _check_that_some_answer(self) -> None:
        directory, session = self._runs[0]
        died = [(name, lost) for name, lost in directory.lost(session).items() if lost.could_start]
        recent = died[-_FRUITLESS_DEATHS:]
        if len(recent) < _FRUITLESS_DEATHS:
            return
        if any(directory.has_answered(name) for name, _ in recent):
            return
        raise RunError(
            f"replicas keep dying: the last {_FRUITLESS_DEATHS} died before they answered "
            f"anything. The last one: {recent[-1][1].in_words()}. What was committed is kept: mend "
            "the cause, and run the same command again to go on"
        )

    def _write(self, report: Mapping[str, Any]) -> None:
        self._report = report
        for directory, session in self._runs:
            directory.report_worker(self._name(session), report)

    def _name(self, session: str) -> str:
        return f"{session}-{self._replica}-{self._number or 0:03d}"


def last_words(exc: BaseException) -> str:
    """Return what an exception says: one of ours as it stands, another one with its type.

    >>> last_words(ValueError("no such layer"))
    'ValueError: no such layer'
    """
    text = str(exc).strip()
    if not isinstance(exc, RavevalError | EngineDied) or not text:
        text = f"{type(exc).__name__}: {text}" if text else type(exc).__name__
    return _storable(text, _MAX_CHARACTERS)


def _storable(text: str, limit: int) -> str:
    """Return text that any file can hold, cut to a length that a person reads."""
    whole = text.encode(errors="backslashreplace").decode()
    return whole if len(whole) <= limit else f"{whole[:limit]}…"
