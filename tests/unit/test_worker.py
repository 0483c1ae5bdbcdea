"""A replica without Ray: what it refuses at its start, and when it may no longer commit."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from raveval.engines import scripted
from raveval.engines.scripted import Options
from raveval.errors import RunError
from raveval.evaluate import TaskSpec
from raveval.pipeline import _error
from raveval.protocols import TaskSettings
from raveval.store import RunDirectory
from raveval.types import Example, ModelRef, Sampling
from raveval.worker import RunPart, ShardWorker, WorkerSpec

TASK = TaskSpec("question_answering", TaskSettings(Sampling(8)), ("squad",), "r", "s")
BATCH: dict[str, Any] = {"run": [0], "task": ["t"], "index": [0], "start": [0], "stop": [2]}


def worker(directory: str | Path, **changes: Any) -> ShardWorker:
    loaded = changes.pop("loaded", None)
    settings: dict[str, Any] = {
        "runs": (RunPart(str(directory), "mine", {"t": TASK}, loaded),),
        "engine": "scripted",
        "options": Options(),
        "model": ModelRef(id="x"),
        "deadline_seconds": 5.0,
    }
    return ShardWorker(WorkerSpec(**{**settings, **changes}))


def outcome(replica: ShardWorker) -> dict[str, Any]:
    async def first() -> dict[str, Any]:
        (row,) = [row async for row in replica(BATCH)]
        return row

    return {key: values[0] for key, values in asyncio.run(first()).items()}


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path)
    run.begin_session("mine")
    examples = [Example(id=str(n), prompt=f"q{n}?", references=("a",)) for n in range(2)]
    run.write_examples("t", examples, digest="d")
    return run


def test_a_shard_is_answered_and_committed(directory: RunDirectory) -> None:
    found = outcome(worker(directory.path))
    assert (found["n_examples"], found["n_missing"], found["error"]) == (2, 0, "")
    assert found["n_tokens"] > 0
    assert [r["loaded"]["engine"] for r in directory.worker_reports("mine")] == ["scripted"]


def test_a_node_that_does_not_see_the_run_is_told(tmp_path: Path) -> None:
    found = outcome(worker(tmp_path / "elsewhere"))
    assert found["error_kind"] == "RunError"
    assert "does not see the run directory" in found["error"]
    assert not (tmp_path / "elsewhere").exists()


def test_a_start_that_breaks_is_told_in_the_engines_words(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_started = 0

    def broken(model: ModelRef, options: Options) -> Any:
        nonlocal n_started
        n_started += 1
        raise RuntimeError("CUDA out of memory: tried to allocate 20 GiB")

    monkeypatch.setattr(scripted, "start", broken)
    replica = worker(directory.path)
    found = outcome(replica)
    assert "RuntimeError: CUDA out of memory: tried to allocate 20 GiB" in found["error"]
    assert "in broken" in found["error"], "the place is told as well"
    assert isinstance(_error(found["error_kind"], found["error"]), RunError)
    assert outcome(replica)["error"].splitlines()[-1] == found["error"].splitlines()[-1]
    assert n_started == 1, "the next call is told the same, and starts nothing anew"


def test_an_engine_unlike_the_one_before_is_refused(directory: RunDirectory) -> None:
    assert not outcome(worker(directory.path))["error"]
    found = outcome(worker(directory.path, options=Options(seed=9)))
    assert found["error_kind"] == "MismatchError"
    assert "seed 0, this replica" in found["error"]


def test_a_replica_of_a_driver_that_is_gone_commits_nothing(
    directory: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(code: int) -> None:
        raise SystemExit(code)

    replica = worker(directory.path)
    directory.begin_session("another")
    monkeypatch.setattr(os, "_exit", end)
    with pytest.raises(SystemExit):
        outcome(replica)
    assert not list(tmp_path.glob("replies/*/*"))


def test_a_full_disk_is_told_in_its_own_words(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    found = outcome(worker(directory.path))
    assert "No space left on device" in found["error"]
    assert "Traceback" not in found["error"]
