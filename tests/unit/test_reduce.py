"""What results say beside the numbers: the first missing examples, how long loading took."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from raveval.errors import DataError
from raveval.evaluate import Stage
from raveval.reduce import _load_seconds, _lost_replicas, reduce_task
from raveval.store import Lost, RunDirectory
from tests.run_directories import choice, write_run


def failures(path: Path) -> Mapping[str, str]:
    directory = RunDirectory(path)
    return reduce_task(directory, "t", directory.manifest()["tasks"]["t"]).failures


def test_the_first_of_each_kind_is_named_however_late_it_comes(tmp_path: Path):
    rows = [choice(f"q{i:03}", None, message="broke") for i in range(60)]
    rows[40] = {**rows[40], "status": "overlong", "message": "too long"}
    rows[41] = {**rows[41], "status": "overlong", "message": "too long, too"}
    rows[59] = choice("q059", True)
    write_run(tmp_path, {"t": rows}, shard_size=7)
    found = failures(tmp_path)
    assert list(found) == [*(f"q{i:03}" for i in range(20)), "q040"]
    assert found["q000"] == "failed: broke"
    assert found["q040"] == "overlong: too long"


def test_a_run_without_one_of_its_shards_has_no_numbers(tmp_path: Path):
    write_run(tmp_path, {"t": [choice(f"q{i}", True) for i in range(20)]}, unfinished={1})
    directory = RunDirectory(tmp_path)
    with pytest.raises(DataError, match="shard 1 of task 't' is not done"):
        reduce_task(directory, "t", directory.manifest()["tasks"]["t"])


@pytest.mark.parametrize("ids", [["q0", "q1", "q1"], ["q0", "q1", "q7"]])
def test_a_lost_doubled_or_foreign_row_is_seen(tmp_path: Path, ids: list[str]):
    write_run(tmp_path, {"t": [choice(f"q{i}", True) for i in range(3)]})
    entry = RunDirectory(tmp_path).manifest()["tasks"]["t"]
    write_run(tmp_path, {"t": [choice(id, True) for id in ids]})
    with pytest.raises(DataError, match="a row was lost or doubled"):
        reduce_task(RunDirectory(tmp_path), "t", entry)


def test_nothing_is_named_where_nothing_is_missing(tmp_path: Path):
    write_run(tmp_path, {"t": [choice(f"q{i}", i % 2 == 0) for i in range(9)]})
    assert failures(tmp_path) == {}


def test_load_times_are_those_of_all_sessions_candidate_and_judge_apart(tmp_path: Path):
    directory = RunDirectory(tmp_path)
    assert _load_seconds(directory) == {}
    for session, seconds, stage in (("a", 2.04, Stage.ANSWER), ("b", 3.0, Stage.GRADE)):
        report = {"loaded": {}, "load_seconds": seconds, "stage": str(stage)}
        directory.report_worker(f"{session}-r-000", report)
    # of a version that did not say
    directory.report_worker("c-r", {"loaded": {}, "load_seconds": 4.0})
    directory.report_worker("d-r-000", {"stage": "answer"})  # it has loaded nothing yet
    assert _load_seconds(directory) == {"load_seconds": [2.0, 4.0], "judge_load_seconds": [3.0]}


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"loaded": {}, "shards": 3}'])
def test_torn_notes_of_replicas_cost_nothing(tmp_path: Path, content: str):
    directory = RunDirectory(tmp_path)
    for folder in ("workers", "lost"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "s-r-000.json").write_text(content)
    assert _load_seconds(directory) == {}
    assert _lost_replicas(directory) == {}


def test_the_last_replicas_that_were_lost_are_named(tmp_path: Path):
    directory = RunDirectory(tmp_path)
    assert _lost_replicas(directory) == {}
    for n in range(7):
        directory.report_lost(f"s-r-{n:03d}", Lost("n1", n, "answer", True, "no memory"))
    assert _lost_replicas(directory) == {
        "replicas_lost": [f"the replica on n1 (process {n}) died: no memory" for n in range(2, 7)]
    }
