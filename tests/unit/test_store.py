"""The run directory: what is written is read back, whole or not at all."""

import fcntl
import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import raveval
from raveval.errors import DataError, MismatchError, Refused, RunError
from raveval.evaluate import ShardStates, Stage
from raveval.store import Attempt, Receipt, Replies, RunDirectory, shards_of
from raveval.types import Example, Message, Shard, Usage
from tests.run_directories import begun, choice, write_run

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
turns = st.lists(st.builds(Message, st.sampled_from(["system", "user", "assistant"]), text))
prompts = text | turns.map(tuple)
examples = st.builds(
    Example,
    id=text,
    prompt=prompts,
    unconditional_prompt=st.none() | prompts,
    continuations=st.lists(text).map(tuple),
    gold=st.none() | st.integers(0, 2**31 - 1),
    references=st.lists(text).map(tuple),
    text=text,
    n_words=st.integers(0, 2**62),
    n_bytes=st.integers(0, 2**62),
    group=st.none() | text,
    cluster=st.none() | text,
    fields=st.dictionaries(text, text),
)
SHARD = Shard("task", 3, 6, 8)
STATES = ShardStates(2, 2**64 - 1, {"ok": 2}, Usage(10, 5, 0.25), {"": {"m": {"x": 2**200}}})
RECEIPT = Receipt(SHARD, "reply", "score", {"engine": "e"}, STATES)
GRADED = replace(
    RECEIPT, states=replace(STATES, judge_usage=Usage(3, 2, 0.5)), judge={"engine": "j"}
)


@given(st.lists(examples, min_size=1, max_size=5))
def test_examples_come_back_unchanged(tmp_path_factory, written) -> None:
    directory = RunDirectory(tmp_path_factory.mktemp("run"))
    directory.write_examples("task", written, digest="d")
    assert directory.read_examples("task", 0, len(written)) == written


def test_any_range_of_examples_across_row_groups(tmp_path: Path) -> None:
    written = [Example(id=str(n)) for n in range(2500)]
    directory = RunDirectory(tmp_path)
    directory.write_examples("task", written, digest="d")
    for start, stop in ((0, 1), (1023, 1025), (1024, 2048), (0, 2500), (2499, 2500)):
        assert directory.read_examples("task", start, stop) == written[start:stop]
    stored = directory.stored_examples("task", len(written))
    assert list(stored) == written
    assert (stored[1700], stored[-1], stored[2:4]) == (written[1700], written[-1], written[2:4])


def test_row_groups_of_any_size_are_read(tmp_path: Path) -> None:
    written = [Example(id=str(n)) for n in range(1000)]
    directory = RunDirectory(tmp_path)
    directory.write_examples("task", written, digest="d")
    path = tmp_path / "examples" / "task" / "00000.parquet"
    pq.write_table(pq.read_table(path), path, row_group_size=256)
    for start, stop in ((255, 257), (256, 512), (999, 1000)):
        assert RunDirectory(tmp_path).read_examples("task", start, stop) == written[start:stop]


def test_examples_of_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raveval.store.ROWS_OF_A_PART", 1030)
    written = [Example(id=str(n)) for n in range(2100)]
    directory = RunDirectory(tmp_path)
    directory.write_examples("task", written, digest="d")
    assert len(list((tmp_path / "examples" / "task").iterdir())) == 3
    for start, stop in ((0, 1), (1029, 1031), (1030, 1031), (1020, 2090), (2059, 2061), (0, 2100)):
        assert directory.read_examples("task", start, stop) == written[start:stop]
    assert list(directory.stored_examples("task", 2100)) == written
    assert directory.has_examples("task", 2100, digest="d")
    assert not directory.has_examples("task", 3100, digest="d")
    (tmp_path / "examples" / "task" / "00001.parquet").unlink()
    assert not directory.has_examples("task", 2100, digest="d")


def test_examples_of_another_plan_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raveval.store.ROWS_OF_A_PART", 1030)
    directory = RunDirectory(tmp_path)
    directory.write_examples("task", [Example(id=str(n)) for n in range(2100)], digest="d")
    directory.write_examples("task", [Example(id="c")], digest="e")
    (file,) = (tmp_path / "examples" / "task").iterdir()
    assert pq.read_table(file, partitioning=None)["id"].to_pylist() == ["c"]
    assert directory.has_examples("task", 1, digest="e")


def test_examples_are_known_by_what_they_are(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    assert not directory.has_examples("task", 1, digest="a")
    directory.write_examples("task", [Example(id="x")], digest="a")
    assert directory.has_examples("task", 1, digest="a")
    assert not directory.has_examples("task", 1, digest="b")


def test_replicas_of_an_earlier_driver_are_told_apart(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    assert not directory.is_session("one")
    directory.begin_session("one")
    directory.begin_session("two")
    assert directory.is_session("two")
    assert not directory.is_session("one")
    directory.end_session("one")
    assert directory.is_session("two")
    directory.end_session("two")
    assert not directory.is_session("two")


@pytest.mark.parametrize("receipt", [RECEIPT, GRADED])
def test_receipts_come_back_unchanged(receipt: Receipt, tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    assert directory.read_receipt(SHARD) is None
    directory.commit_scores(receipt, pa.table({"id": ["a"]}))
    assert directory.read_receipt(SHARD) == receipt
    assert directory.read_records(SHARD).to_pylist() == [{"id": "a"}]


@pytest.mark.parametrize("stage", Stage)
def test_replies_of_another_fingerprint_or_stage_are_not_there(
    stage: Stage, tmp_path: Path
) -> None:
    directory = RunDirectory(tmp_path)
    replies = Replies(pa.table({"id": ["a"]}), "mine", {"engine": "e"}, 1.5)
    begun(directory, SHARD, session="s")
    directory.commit_replies(SHARD, replies, stage=stage)
    assert not list((tmp_path / "attempts" / "task").iterdir())
    found = directory.read_replies(SHARD, fingerprint="mine", stage=stage)
    assert found is not None
    assert (found.engine, found.engine_seconds) == ({"engine": "e"}, 1.5)
    assert directory.read_replies(SHARD, fingerprint="other", stage=stage) is None
    (other,) = set(Stage) - {stage}
    assert directory.read_replies(SHARD, fingerprint="mine", stage=other) is None


def test_a_death_is_counted_only_under_a_living_driver(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    assert begun(directory, SHARD, session="one").n_deaths == 0
    assert begun(directory, SHARD, session="two").n_deaths == 0  # the driver died, not the replica
    died = begun(directory, SHARD, session="two")
    assert died.n_deaths == 1
    directory.note(SHARD, Attempt("two", 1, in_flight="x", last_words="no \udc80memory"))
    words = {"x": "no \udc80memory"}
    found = Attempt("two", 2, None, {"x": 1}, example_words=words)
    assert begun(directory, SHARD, session="two") == found
    directory.note(SHARD, replace(found, in_flight="x"))
    found = Attempt("three", 2, None, {"x": 1}, example_words=words)
    assert begun(directory, SHARD, session="three") == found
    directory.note(SHARD, replace(found, in_flight="x"))
    assert begun(directory, SHARD, session="three").example_words == {"x": ""}, "it left none"


def test_what_is_done_is_known_without_reading_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = RunDirectory(tmp_path)
    directory.commit_scores(RECEIPT, pa.table({"id": ["a"] * 2}))

    def read(*_: object, **__: object) -> None:
        raise AssertionError("rows were read")

    for name in ("read_table", "ParquetFile", "read_schema"):
        monkeypatch.setattr(pq, name, read)
    assert directory.finished(SHARD, score_fingerprint="score") == RECEIPT
    assert directory.finished(SHARD, score_fingerprint="another") is None


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = RunDirectory(tmp_path)
    directory.write_text("results.json", "old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"results\.json: cannot be written: .*No space left"):
        directory.write_text("results.json", "new")
    assert (tmp_path / "results.json").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_one_driver_at_a_time(tmp_path: Path) -> None:
    with (
        RunDirectory(tmp_path).held(),
        pytest.raises(MismatchError, match=str(os.getpid())),
        RunDirectory(tmp_path).held(),
    ):
        pass
    with RunDirectory(tmp_path).held():
        pass


def test_who_holds_a_directory_is_seen_without_a_disturbance(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    assert directory.holder() is None
    assert list(tmp_path.iterdir()) == []
    with directory.held():
        assert str(os.getpid()) in str(RunDirectory(tmp_path).holder())
    assert directory.holder() is None


def test_a_driver_that_starts_while_somebody_looks_is_let_in(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    with (tmp_path / ".lock").open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        threading.Timer(0.1, fcntl.flock, (looking, fcntl.LOCK_UN)).start()
        with RunDirectory(tmp_path).held():
            pass


def test_only_empty_folders_are_tidied_away(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    begun(directory, SHARD, session="s")
    directory.tidy()
    assert list(tmp_path.glob("attempts/*/*.json"))
    directory.commit_replies(SHARD, Replies(pa.table({"a": [1]}), "f", {}, 0.0), stage=Stage.ANSWER)
    assert list(tmp_path.glob("attempts/*"))
    directory.tidy()
    assert not (tmp_path / "attempts").exists()
    directory.tidy()


def test_what_killed_writers_left_is_tidied_away(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    replies = Replies(pa.table({"a": [1]}), "f", {}, 0.0)
    directory.commit_replies(SHARD, replies, stage=Stage.ANSWER)
    (committed,) = tmp_path.glob("replies/*/*.parquet")
    left = [
        committed.with_name(f".{committed.name}.{'0f' * 16}"),
        tmp_path / f".run.json.{'a' * 32}",
    ]
    mine = committed.with_name(".mine")
    for path in (*left, mine):
        path.touch()
    directory.tidy()
    assert [path.exists() for path in (*left, mine, committed)] == [False, False, True, True]


def test_copies_are_of_what_is_there(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.write_text("report.md", "# numbers")
    with directory.copies(("report.md", "results.json")) as (copy,):
        assert (copy.name, copy.read_text()) == ("report.md", "# numbers")


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match="cannot be written"), RunDirectory(tmp_path / "file").held():
        pass


def test_a_manifest_that_is_none_of_ours(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    assert directory.read_manifest() is None
    for text in ("{", "[]", '{"a": 1}', '{"tasks": {}}', "[" * 9000):
        directory.write_text("run.json", text)
        with pytest.raises(DataError, match=r"run\.json"):
            directory.read_manifest()


@pytest.mark.parametrize(
    "name", ["../elsewhere", "/etc/x", "a/b", "..", "", ".hidden", "a\n", "x" * 81]
)
def test_no_task_of_a_manifest_leads_out_of_the_directory(tmp_path: Path, name: str) -> None:
    write_run(tmp_path, {"task": [choice("a", True)]})
    content = json.loads((tmp_path / "run.json").read_text())
    content["tasks"] = {name: content["tasks"]["task"]}
    (tmp_path / "run.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"run\.json: tasks: .* is no name of a task"):
        RunDirectory(tmp_path).read_manifest()


@pytest.mark.parametrize(
    "changed", [{"n_examples": "9"}, {"n_examples": -1}, {"shard_size": 0}, {"score": None}]
)
def test_a_manifest_that_was_changed_by_hand_is_refused_by_key(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    write_run(tmp_path, {"task": [choice("a", True)]})
    content = json.loads((tmp_path / "run.json").read_text())
    content["tasks"]["task"] |= changed
    (tmp_path / "run.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=rf"run\.json: tasks\.task.*{next(iter(changed))}"):
        RunDirectory(tmp_path).read_manifest()


@pytest.mark.parametrize(
    "states",
    [
        {"n_rows": "2"},
        {"by_status": {"ok": {}}},
        {"by_status": {"fine": 2}},
        {"usage": 3},
        {"usage": {"n_prompt_tokens": "10"}},
        {"states": []},
        {"foreign": 1},
    ],
)
def test_a_receipt_that_was_changed_by_hand_is_none(tmp_path: Path, states: dict[str, Any]) -> None:
    directory = RunDirectory(tmp_path)
    directory.commit_scores(RECEIPT, pa.table({"id": ["a"]}))
    path = tmp_path / "states" / "task" / "00003.json"
    content = json.loads(path.read_text())
    content["states"] |= states
    path.write_text(json.dumps(content))
    assert directory.read_receipt(SHARD) is None


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"session": "s", "n_deaths": "many"}'])
def test_a_torn_note_of_an_attempt_is_none(tmp_path: Path, content: str) -> None:
    directory = RunDirectory(tmp_path)
    begun(directory, SHARD, session="s")
    (tmp_path / "attempts" / "task" / "00003.json").write_text(content)
    assert begun(directory, SHARD, session="s").n_deaths == 0


def test_a_folder_in_the_place_of_a_file_is_no_file(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    for name in ("states/task/00003.json", "attempts/task/00003.json", "session"):
        (tmp_path / name).mkdir(parents=True)
    assert directory.read_receipt(SHARD) is None
    assert not directory.is_session("s")


def test_examples_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    for content in (b"", b"PAR1", b"torn"):
        directory.write_text("examples/task/00000.parquet", content.decode())
        with pytest.raises(DataError, match=r"examples/task/00000\.parquet: cannot be read"):
            directory.read_examples("task", 0, 1)


def test_results_that_are_no_text_are_named(tmp_path: Path) -> None:
    for content in (b"\xff\xfe\x00", b"", b"{}", b"[1"):
        (tmp_path / "results.json").write_bytes(content)
        with pytest.raises(DataError, match=rf"{tmp_path}/results\.json"):
            raveval.load_results(tmp_path)


@given(st.integers(0, 300), st.integers(1, 50))
def test_shards_cover_each_row_once(n_examples: int, shard_size: int) -> None:
    rows = [row for s in shards_of("t", n_examples, shard_size) for row in range(s.start, s.stop)]
    assert rows == list(range(n_examples))
