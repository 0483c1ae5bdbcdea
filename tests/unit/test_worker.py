"""A replica without Ray: what it refuses at its start, and when it may no longer commit."""

import asyncio
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raveval.engines import Capability, EngineDied, scripted
from raveval.engines.scripted import Options, default_reply
from raveval.errors import RunError
from raveval.evaluate import TaskSpec
from raveval.pipeline import _error
from raveval.protocols import TaskSettings
from raveval.store import RunDirectory
from raveval.types import ChoiceScores, Example, Failure, ModelRef, Reply, Request, Sampling, Status
from raveval.worker import RunPart, ShardWorker, WorkerSpec, canary
from raveval.worker.watch import Patience, Watched

TASK = TaskSpec("question_answering", TaskSettings(Sampling(8)), ("squad",), "r", "s")
BATCH: dict[str, Any] = {"run": [0], "task": ["t"], "index": [0], "start": [0], "stop": [2]}


def worker(directory: str | Path, **changes: Any) -> ShardWorker:
    loaded = changes.pop("loaded", None)
    settings: dict[str, Any] = {
        "runs": (RunPart(str(directory), "mine", {"t": TASK}, loaded),),
        "engine": "scripted",
        "options": Options(),
        "model": ModelRef(id="x"),
        "patience": Patience(5.0, 2.0),
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


_drift: dict[str, Any] = {"nats": 0.0, "n_more": 0, "refuses": False}


def drifting(request: Request) -> Reply:
    """Say of itself what it always says, and answer by `_drift`."""
    reply = default_reply(request)
    if _drift["refuses"]:
        return Failure(Status.INVALID, "no chat template")
    if isinstance(reply, ChoiceScores):
        moved = tuple(nats + _drift["nats"] for nats in reply.logprob_nats)
        n = reply.n_prompt_tokens + _drift["n_more"]
        return replace(reply, logprob_nats=moved, n_prompt_tokens=n)
    return reply


DRIFTING = Options(script="tests.unit.test_worker:drifting")


@pytest.mark.parametrize(
    ("drift", "said"),
    [
        ({"nats": -0.5}, r"log-likelihood of \d+ tokens is -\d+\.\d+ nats, there it is -"),
        ({"n_more": 1}, r"n_prompt_tokens is \d+, there it is \d+"),
        ({"refuses": True}, "refused is invalid, there it is None"),
    ],
)
@pytest.mark.parametrize("at_once", [False, True])
def test_a_replica_that_answers_unlike_the_others_is_refused(
    directory: RunDirectory,
    monkeypatch: pytest.MonkeyPatch,
    drift: dict[str, Any],
    said: str,
    at_once: bool,
) -> None:
    assert not outcome(worker(directory.path, options=DRIFTING))["error"]
    for key, value in drift.items():
        monkeypatch.setitem(_drift, key, value)
    if at_once:  # the other one's report is not there yet when this one begins to load
        monkeypatch.setattr(ShardWorker, "_start", _start_alone)
    found = outcome(worker(directory.path, options=DRIFTING))
    assert found["error_kind"] == "MismatchError"
    assert "asked in plain text" in found["error"]
    assert re.search(said, found["error"])


def _start_alone(self: ShardWorker) -> Any:
    return scripted.start(self._spec.model, self._spec.options)


def test_replicas_that_start_at_once_are_compared_by_what_they_say_of_themselves_too(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ShardWorker, "_start", _start_alone)
    assert not outcome(worker(directory.path))["error"]
    found = outcome(worker(directory.path, options=Options(seed=9)))
    assert found["error_kind"] == "MismatchError"
    assert "seed 0, this replica" in found["error"]


def test_replicas_may_differ_by_what_their_dtype_leaves_open(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not outcome(worker(directory.path, options=DRIFTING))["error"]
    monkeypatch.setitem(_drift, "nats", 0.1)  # over some twenty tokens; nothing says float32
    assert not outcome(worker(directory.path, options=DRIFTING))["error"]
    first, second = (report["canary"] for report in directory.worker_reports("mine"))
    assert canary.disagreement(second, first, dtype="bfloat16") is None
    assert canary.disagreement(first, first, dtype="float32") is None
    words = canary.disagreement(second, first, dtype="float32")
    assert words is not None
    assert "are allowed" in words


BRIEF = Patience(0.05, 1000.0)


class Broken:
    """An engine that answers its first question with its death, or never."""

    def __init__(self, *capabilities: Capability, dies: bool) -> None:
        self.capabilities = frozenset(capabilities)
        self._dies = dies

    async def reply(self, request: Request) -> Reply:
        if self._dies:
            raise EngineDied("killed by signal 9")
        await asyncio.sleep(60)
        raise AssertionError

    def describe(self) -> dict[str, str | int | None]:
        return {}

    async def close(self) -> None:
        return


@pytest.mark.parametrize(("dies", "said"), [(True, "killed by signal 9"), (False, "no reply for")])
def test_an_engine_that_breaks_on_its_first_question_is_told(dies: bool, said: str) -> None:
    with pytest.raises(RunError, match=f"did not survive its first question: {said}"):
        canary.ask(Watched(Broken(Capability.SCORE, dies=dies), BRIEF))


def test_an_engine_that_cannot_score_is_not_asked() -> None:
    assert canary.ask(Watched(Broken(Capability.GENERATE, dies=True), BRIEF)) == {}


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
