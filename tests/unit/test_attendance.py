"""What a driver tells of its replicas: what is waited for, and how one was lost."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from raveval import attendance
from raveval.attendance import attended
from raveval.store import Lost, RunDirectory

DIED = Lost("n1", 7, "answer", True, "no memory", shards=("t 0", "t 1", "t 2", "t 3"), alone="q 1")
IDLE = Lost("n2", 8, "answer", False, "CUDA out of memory")
KILLED = Lost("n3", 9, "grade", False, "")


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    monkeypatch.setattr(attendance, "_SECONDS_BETWEEN_LOOKS", 0.01)
    monkeypatch.setattr(attendance, "_SECONDS_BETWEEN_SIGNS", 0.0)
    return RunDirectory(tmp_path)


class Heard:
    """Lines that were said, and who waits for the next one."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._changed = threading.Condition()

    def __call__(self, line: str) -> None:
        with self._changed:
            self.lines.append(line)
            self._changed.notify_all()

    def wait_for(self, words: str) -> str:
        with self._changed:
            assert self._changed.wait_for(lambda: any(words in line for line in self.lines), 20)
            return next(line for line in self.lines if words in line)


@contextmanager
def watched(directory: RunDirectory, *, n_replicas: int = 1) -> Iterator[Heard]:
    heard = Heard()
    with attended(
        directory, "s", n_replicas=n_replicas, waiting=lambda _: "none is ready", say=heard
    ):
        yield heard


def test_waiting_is_said_until_a_replica_is_there(directory: RunDirectory) -> None:
    directory.report_worker("s-a-000", {"node": "n", "process": 1, "stage": "answer"})
    with watched(directory) as heard:
        heard.wait_for("none is ready")
        directory.report_worker("s-a-000", {"loaded": {}})
        directory.report_lost("s-a-000", DIED)
        heard.wait_for("died")
        n_said = len(heard.lines)
        directory.report_lost("s-b-000", DIED)
        directory.report_lost("other-b-000", DIED)
    # No more than one sign can have been under way when the replica came.
    assert heard.lines[n_said:].count("none is ready") <= 1
    assert sum("died" in line for line in heard.lines) == 2, "and nothing of another session"


def test_a_death_is_told_once_with_the_engines_last_words(directory: RunDirectory) -> None:
    with watched(directory) as heard:
        directory.report_lost("s-a-000", DIED)
        heard.wait_for("died")
        directory.report_lost("s-b-000", KILLED)
    told = [line for line in heard.lines if line != "none is ready"]
    assert told == [
        "the replica on n1 (process 7) died: no memory; at work on t 0, t 1, t 2 and 1 more, on "
        "example 'q 1' alone; another process takes its place",
        "the judge's replica on n3 (process 9) died while it loaded the model: it left no last "
        "words: it crashed, or was killed (mostly for its memory); another process takes its place",
    ]


def test_a_replica_that_cannot_start_is_told_where_another_one_may(
    directory: RunDirectory,
) -> None:
    with watched(directory, n_replicas=2) as heard:
        directory.report_lost("s-a-000", IDLE)
        line = heard.wait_for("cannot start")
    assert line == (
        "the replica on n2 (process 8) cannot start: CUDA out of memory; the run goes on with the "
        "other one"
    )
    with watched(directory, n_replicas=1) as heard:
        pass
    assert {*heard.lines} <= {"none is ready"}, "nothing goes on: the run's error says why"


def test_storage_that_does_not_answer_ends_nothing(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = threading.Semaphore(0)

    def broken(_: str, **__: object) -> None:
        calls.release()
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(directory, "lost", broken)
    with watched(directory):
        assert all(calls.acquire(timeout=20) for _ in range(2))
