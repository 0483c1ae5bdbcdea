"""A replica without Ray: what it refuses at its start, and when it may no longer commit."""

import asyncio
import contextlib
import json
import os
import re
import socket
import threading
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from raveval.engines import Capability, EngineDied, scripted
from raveval.engines.scripted import Options, default_reply
from raveval.errors import RunError
from raveval.evaluate import Stage, TaskSpec
from raveval.pipeline import _error
from raveval.protocols import TaskSettings
from raveval.store import Attempt, RunDirectory, shards_of
from raveval.types import (
    ChoiceScores,
    Example,
    Failure,
    ModelRef,
    Reply,
    Request,
    Sampling,
    Shard,
    Status,
)
from raveval.worker import RunPart, ShardWorker, WorkerSpec, canary
from raveval.worker.notes import Notes
from raveval.worker.watch import Patience, Watched

TASK = TaskSpec("question_answering", TaskSettings(Sampling(8)), ("squad",), "r", "s")
SHARD = Shard("t", 0, 0, 2)


def worker(
    directory: str | Path,
    *,
    replica: str | None = None,
    n_replicas: int = 1,
    examples_in_flight: int = 256,
    **changes: Any,
) -> ShardWorker:
    loaded = changes.pop("loaded", None)
    settings: dict[str, Any] = {
        "runs": (RunPart(str(directory), "mine", {"t": TASK}, loaded),),
        "engine": "scripted",
        "options": Options(),
        "model": ModelRef(id="x"),
        "patience": Patience(5.0, 2.0),
    }
    spec = WorkerSpec(**{**settings, **changes})
    return ShardWorker(
        spec, replica=replica, n_replicas=n_replicas, examples_in_flight=examples_in_flight
    )


async def row_of(replica: ShardWorker, shard: Shard = SHARD) -> dict[str, Any]:
    batch = {key: [value] for key, value in {"run": 0, **asdict(shard)}.items()}
    (row,) = [row async for row in replica(batch)]
    return row


def outcome(replica: ShardWorker) -> dict[str, Any]:
    return {key: values[0] for key, values in asyncio.run(row_of(replica)).items()}


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
    assert outcome(replica) == found
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
    assert "No space left on device. On node " in found["error"]
    assert " make room for run.output, or in /" in found["error"]
    assert "Traceback" not in found["error"]


class Ended(BaseException):
    """A process that would have ended."""


@pytest.fixture
def mortal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the end of a replica's process raise, for it is the tests' own."""

    def end(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr("raveval.worker._SECONDS_BETWEEN_LOOKS", 0.01)


def dies_of_the_second(request: Request) -> Reply:
    if request.key.startswith("1"):
        raise EngineDied("vLLM died: no \x1b[31mmemory \udc80")
    return default_reply(request)


DYING = Options(script="tests.unit.test_worker:dies_of_the_second")
WORDS = "vLLM died: no \x1b[31mmemory \\udc80"


@pytest.mark.usefixtures("mortal")
def test_the_last_words_of_an_engine_are_kept_with_what_it_died_of(
    directory: RunDirectory,
) -> None:
    for _ in range(5):
        with pytest.raises(Ended):
            outcome(worker(directory.path, replica="r", options=DYING))
    assert outcome(worker(directory.path, replica="r", options=DYING))["n_missing"] == 1
    lost = list(directory.lost("mine").values())
    assert [each.words for each in lost] == [WORDS] * 5
    assert [each.alone for each in lost] == [None, None, None, "1", "1"]
    assert {each.shards for each in lost} == {("t 0",)}
    assert (lost[0].node, lost[0].process) == (socket.gethostname(), os.getpid())
    replies = directory.read_replies(SHARD, fingerprint="r", stage=Stage.ANSWER)
    assert replies is not None
    quarantined = json.loads(replies.table.to_pylist()[1]["reply"])
    assert quarantined["status"] == "quarantined"
    assert quarantined["message"] == (
        "the engine's process died 2 times with this example alone in it; the last time: " + WORDS
    )


@pytest.mark.usefixtures("mortal")
def test_a_shard_of_one_example_is_alone_at_once(directory: RunDirectory) -> None:
    one = Shard("t", 0, 1, 2)

    def death() -> None:
        with pytest.raises(Ended):
            asyncio.run(row_of(worker(directory.path, replica="r", options=DYING), one))

    for _ in range(4):
        death()
    row = asyncio.run(row_of(worker(directory.path, replica="r", options=DYING), one))
    assert (row["n_examples"], row["n_missing"]) == ([1], [1])
    assert [each.alone for each in directory.lost("mine").values()] == [None, None, "1", "1"]


def test_a_shard_that_waits_for_its_turn_has_no_part_in_a_death(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.begin_session("mine")
    examples = [Example(id=str(n), prompt=f"q{n}?", references=("a",)) for n in range(4)]
    run.write_examples("t", examples, digest="d")
    inside, waits = shards_of("t", 4, 2)

    async def both() -> None:
        replica = worker(tmp_path, options=Options(latency_seconds=0.5), examples_in_flight=1)
        first = asyncio.ensure_future(row_of(replica, inside))
        while run.next_attempt(inside, session="mine").n_deaths == 0:
            await asyncio.sleep(0.01)
        second = asyncio.ensure_future(row_of(replica, waits))
        await asyncio.sleep(0.2)
        assert not first.done()
        assert run.next_attempt(inside, session="mine").n_deaths == 1, "if the process died now"
        assert run.next_attempt(waits, session="mine") == Attempt("mine"), "it was never begun"
        assert [row["error"] for row in await asyncio.gather(first, second)] == [[""], [""]]

    asyncio.run(both())


@pytest.mark.usefixtures("mortal")
def test_an_end_that_cannot_be_written_down_is_one_nevertheless(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = worker(directory.path, options=DYING)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunDirectory, "report_lost", full)
    with pytest.raises(Ended):
        outcome(replica)


def earlier(
    directory: RunDirectory,
    *,
    loaded: bool = True,
    answered: bool = False,
    words: str | None = None,
    replica: str = "r",
) -> Notes:
    """Leave the notes of a process that was; without words it was killed."""
    notes = Notes([RunPart(directory.path, "mine", {}, None)], stage="answer", replica=replica)
    notes.begin()
    if loaded:
        engine = Watched(scripted.start(ModelRef(id="x"), Options()), BRIEF)
        notes.loaded({"loaded": engine.describe(), "canary": canary.ask(engine)})
    if answered:
        notes.answered()
    if words is not None:
        notes.died(words, [([], None)])
    return notes


def test_a_process_without_last_words_is_missed_by_the_next_one(directory: RunDirectory) -> None:
    earlier(directory)
    earlier(directory, replica="another")
    assert not directory.lost("mine")
    assert not outcome(worker(directory.path, replica="r"))["error"]
    ((name, lost),) = directory.lost("mine").items()
    assert name == "mine-r-000"
    assert (lost.could_start, lost.words) == (True, "")
    assert "died: it left no last words" in lost.in_words()


def test_a_process_that_dies_whenever_it_loads_is_told(directory: RunDirectory) -> None:
    for _ in range(2):
        earlier(directory, loaded=False)
    assert not outcome(worker(directory.path, replica="another"))["error"]
    earlier(directory, loaded=False)
    found = outcome(worker(directory.path, replica="r"))
    assert found["error_kind"] == "RunError"
    assert "died 3 times in a row while it loaded the model" in found["error"]
    assert not any(each.could_start for each in directory.lost("mine").values())


@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize("words", ["no memory", None])
def test_replicas_that_die_and_die_before_they_answer_end_the_run(
    directory: RunDirectory, answered: bool, words: str | None
) -> None:
    for n in range(9):
        earlier(directory, words=words, answered=answered and n == 3)
    assert not outcome(worker(directory.path, replica="another"))["error"]
    earlier(directory, words=words)
    found = outcome(worker(directory.path, replica="r"))
    if answered:
        assert not found["error"]
        return
    assert found["error_kind"] == "RunError"
    assert "the last 10 died before they answered anything" in found["error"]
    assert (words or "it left no last words") in found["error"]


def started(directory: RunDirectory, **settings: Any) -> tuple[threading.Thread, list[ShardWorker]]:
    """Start one of two replicas in a thread; the list has it once it is constructed."""
    made: list[ShardWorker] = []

    def make() -> None:
        with contextlib.suppress(SystemExit):
            made.append(worker(directory.path, n_replicas=2, **settings))

    thread = threading.Thread(target=make, daemon=True)
    thread.start()
    return thread, made


BROKEN = Options(script="tests.unit.test_worker:no_such_script")


@pytest.mark.usefixtures("mortal")
def test_a_replica_that_cannot_start_waits_while_another_one_works(
    directory: RunDirectory, noted: threading.Event
) -> None:
    thread, made = started(directory, options=BROKEN)
    assert noted.wait(20)
    assert not outcome(worker(directory.path, n_replicas=2))["error"]
    assert thread.is_alive()
    directory.begin_session("another")
    thread.join(20)
    assert not thread.is_alive(), "it ends with the run"
    assert made == []
    (lost,) = directory.lost("mine").values()
    assert lost.gave_up
    assert "no_such_script" in lost.words


@pytest.mark.usefixtures("mortal")
def test_where_no_replica_can_start_each_says_why(
    directory: RunDirectory, noted: threading.Event
) -> None:
    thread, made = started(directory, options=BROKEN)
    assert noted.wait(20)
    assert thread.is_alive()
    found = outcome(worker(directory.path, n_replicas=2, options=BROKEN))
    assert found["error_kind"] == "ConfigError"
    assert "none of the 2 replicas can start; this one, on " in found["error"]
    assert "no_such_script" in found["error"]
    thread.join(20)
    assert outcome(made[0])["error"] == found["error"]


@pytest.mark.usefixtures("mortal")
@pytest.mark.parametrize("worked_before", [True, False])
def test_a_replica_that_had_shards_does_not_keep_them_to_itself(
    directory: RunDirectory, worked_before: bool, noted: threading.Event
) -> None:
    earlier(directory, loaded=worked_before)
    thread, made = started(directory, replica="r", options=BROKEN)
    assert noted.wait(20)
    if not worked_before:
        directory.begin_session("another")
    thread.join(20)
    assert bool(made) == worked_before


def test_a_replica_unlike_the_others_waits_for_nobody(directory: RunDirectory) -> None:
    assert not outcome(worker(directory.path, n_replicas=2))["error"]
    found = outcome(worker(directory.path, n_replicas=2, options=Options(seed=9)))
    assert found["error_kind"] == "MismatchError"
    assert not directory.lost("mine")


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Say when a replica has noted that it cannot start."""
    event, cannot_start = threading.Event(), Notes.cannot_start

    def note(self: Notes, exc: Exception) -> None:
        cannot_start(self, exc)
        event.set()

    monkeypatch.setattr(Notes, "cannot_start", note)
    return event
