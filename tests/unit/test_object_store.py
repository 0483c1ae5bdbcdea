"""A run directory in an object store: as in a folder, and held by one driver at a time."""

import json
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from raveval.errors import ConfigError, DataError, MismatchError, Refused, RunError, StoreError
from raveval.evaluate import Stage
from raveval.plan.preflight import check_output
from raveval.store import Attempt, Lost, Replies, RunDirectory, shards_of
from raveval.store.claims import Claims
from raveval.store.object_store import ObjectStore
from raveval.store.replicas import Process
from raveval.types import Example, Shard
from tests.object_stores import busy, served
from tests.run_directories import begun, choice, write_run
from tests.unit.test_store import RECEIPT, SHARD

TABLE = pa.table({"id": ["a", "b"], "kind": ["Completion"] * 2, "reply": ['{"text": "x"}'] * 2})


def claims(url: str, **seconds: float) -> Claims:
    times = {"refresh_seconds": 0.2, "stale_seconds": 3.0, **seconds}
    return Claims(ObjectStore(url), **times)


def nobody(_: str) -> None:
    return


class TestFiles:
    """What is written is read back, also by who looked before it was there."""

    def test_every_layer(self, bucket: str) -> None:
        writer, reader = RunDirectory(f"{bucket}/runs/a"), RunDirectory(f"{bucket}/runs/a")
        assert reader.read_manifest() is None
        assert not reader.has_made("task", stage=Stage.ANSWER)
        assert reader.read_replies(SHARD, fingerprint="f", stage=Stage.ANSWER) is None
        assert reader.names() == []
        writer.write_manifest({"model": "m", "tasks": {}})
        replies = Replies(TABLE, "f", {"engine": "e"}, 0.5)
        writer.commit_replies(SHARD, replies, stage=Stage.ANSWER)
        writer.commit_scores(RECEIPT, TABLE)
        assert reader.read_manifest() == {"model": "m", "tasks": {}}
        assert reader.has_made("task", stage=Stage.ANSWER)
        assert not reader.has_made("tas", stage=Stage.ANSWER)
        found = reader.read_replies(SHARD, fingerprint="f", stage=Stage.ANSWER)
        assert found is not None
        assert found.table.equals(TABLE)
        assert reader.read_replies(SHARD, fingerprint="g", stage=Stage.ANSWER) is None
        assert reader.finished(SHARD, score_fingerprint="score") == RECEIPT
        assert reader.read_records(SHARD).equals(TABLE)
        assert reader.names() == ["records", "replies", "run.json", "states"]

    def test_any_range_of_examples_across_row_groups(self, bucket: str) -> None:
        written = [Example(id=str(n)) for n in range(1000)]
        directory = RunDirectory(f"{bucket}/runs/a")
        assert not directory.has_examples("task", len(written), digest="d")
        directory.write_examples("task", written, digest="d")
        assert directory.has_examples("task", len(written), digest="d")
        for start, stop in ((0, 1), (255, 257), (256, 512), (0, 1000), (999, 1000)):
            assert directory.read_examples("task", start, stop) == written[start:stop]

    def test_nothing_is_put_where_writing_fails(self, bucket: str) -> None:
        place = ObjectStore(f"{bucket}/runs/a")
        with suppress(ZeroDivisionError), place.committed("x") as file:
            file.write(b"half")
            raise ZeroDivisionError
        assert not place.exists("x")
        with pytest.raises(FileNotFoundError):
            place.read("x")

    def test_attempts_are_noted_and_forgotten(self, bucket: str) -> None:
        directory = RunDirectory(f"{bucket}/runs/a")
        assert begun(directory, SHARD, session="s") == Attempt("s")
        assert begun(directory, SHARD, session="s").n_deaths == 1
        replies = Replies(TABLE, "f", {}, 0.0)
        directory.commit_replies(SHARD, replies, stage=Stage.ANSWER)
        assert begun(directory, SHARD, session="s").n_deaths == 0
        assert directory.drop_failed(SHARD) is False

    def test_replicas_reports_are_those_of_their_session(self, bucket: str) -> None:
        directory = RunDirectory(f"{bucket}/runs/a")
        assert directory.worker_reports() == []
        for session in ("one", "two"):
            directory.report_worker(f"{session}-r-000", {"loaded": session})
            directory.report_worker(f"{session}-s-000", {"node": "n"})
        assert directory.worker_reports("two") == [{"loaded": "two"}]
        assert {each["loaded"] for each in directory.worker_reports()} == {"one", "two"}

    def test_lost_replicas_are_those_of_their_session_oldest_first(self, bucket: str) -> None:
        directory = RunDirectory(f"{bucket}/runs/a")
        assert directory.lost() == {}
        lost = Lost("n", 1, "answer", True, "\x1b[31m\udc80", shards=("t 0",), alone="q")
        for name in ("one-b-000", "two-a-000", "one-a-000"):
            directory.report_worker(name, {"node": "n"})
            directory.report_lost(name, lost)
        assert list(directory.lost("one")) == ["one-b-000", "one-a-000"]
        assert list(directory.lost()) == ["one-b-000", "two-a-000", "one-a-000"]
        assert replace(directory.lost()["two-a-000"], when="") == lost
        assert directory.processes("one", "b") == [Process("one-b-000", {"node": "n"}, True)]

    def test_shards_are_read_many_at_once_and_given_in_order(self, bucket: str) -> None:
        directory = RunDirectory(f"{bucket}/runs/a")
        together = threading.Barrier(8, timeout=20)

        def wait(shard: Shard) -> int:
            together.wait()
            return shard.index

        assert list(directory.over(shards_of("t", 64, 1), wait)) == list(range(64))

    def test_results_of_a_run_are_read_and_compared(self, bucket: str) -> None:
        from raveval.comparison import compare

        rows = [choice(str(n), n % 3 > 0) for n in range(20)]
        a = write_run(f"{bucket}/runs/a", {"t": rows})
        b = write_run(f"{bucket}/runs/b", {"t": [choice(str(n), True) for n in range(20)]})
        (difference,) = [
            each for each in compare([a, b]).differences if each.metric == "accuracy_raw"
        ]
        assert difference.difference == pytest.approx(7 / 20)


class TestRefusals:
    """One error that says what, before anything is asked of a model."""

    def test_a_bucket_that_is_not_there(self, bucket: str) -> None:
        directory = RunDirectory(f"{bucket}-of-nobody/runs/a")
        with pytest.raises(Refused, match=r"run\.output: .*no such bucket"):
            check_output(directory)
        with pytest.raises(Refused, match="cannot be written"), directory.held():
            pass
        with pytest.raises(DataError, match="no run of raveval here"):
            directory.manifest()

    def test_files_of_somebody_else(self, bucket: str) -> None:
        place = ObjectStore(f"{bucket}/runs/a")
        with place.committed("thesis.tex") as file:
            file.write(b"x")
        with pytest.raises(MismatchError, match=r"no run of raveval \(thesis\.tex\)"):
            check_output(RunDirectory(f"{bucket}/runs/a"))
        check_output(RunDirectory(f"{bucket}/runs"[:-1]))

    def test_a_store_that_is_not_known(self) -> None:
        with pytest.raises(ConfigError, match=r"nonsense://bucket/x: .*not known"):
            RunDirectory("nonsense://bucket/x")

    def test_a_library_that_is_not_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(__import__("sys").modules, "gcsfs", None)
        with pytest.raises(ConfigError, match=r"pip install 'raveval\[gcs\]', here and on all"):
            RunDirectory("gs://bucket/x")

    def test_a_path_that_was_a_url(self) -> None:
        with pytest.raises(ConfigError, match="drops one of the slashes"):
            RunDirectory(Path("s3://bucket/x"))

    def test_a_folder_written_as_a_url(self) -> None:
        with pytest.raises(ConfigError, match="by its path alone"):
            RunDirectory("file:///tmp/x")


class TestLock:
    """One driver at a time, whoever died before."""

    def test_a_second_driver_is_kept_out(self, bucket: str) -> None:
        url = f"{bucket}/runs/a"
        first, second = RunDirectory(url), RunDirectory(url)
        with first.held():
            assert str(second.holder()).startswith("process ")
            with pytest.raises(MismatchError, match="is running in this directory"), second.held():
                pass
            first.write_text("report.md", "still mine")
        assert second.holder() is None
        with second.held():
            pass
        assert ObjectStore(url).all_names(".lock") == []

    def test_of_many_that_start_at_once_one_gets_in(self, bucket: str) -> None:
        inside, most, refused = [0], [0], list[str]()
        start = threading.Barrier(4)

        def drive() -> None:
            own = claims(f"{bucket}/runs/a")
            start.wait()
            try:
                with own.held(nobody):
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                    time.sleep(1.0)
                    inside[0] -= 1
            except MismatchError as exc:
                refused.append(str(exc))

        threads = [threading.Thread(target=drive) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert most[0] == 1
        assert len(refused) < 4

    def test_a_driver_of_another_machine_is_waited_for_until_it_is_stale(self, bucket: str) -> None:
        put_claim(bucket, machine="another", process=1)
        heard: list[str] = []
        began = time.monotonic()
        with claims(f"{bucket}/runs/a").held(heard.append):
            assert 2.0 < time.monotonic() - began < 15.0
        assert "waiting up to 3 s for a sign of it" in heard[0]
        assert ObjectStore(f"{bucket}/runs/a").all_names(".lock") == []

    def test_a_driver_of_another_machine_that_gives_a_sign_is_left_alone(self, bucket: str) -> None:
        put_claim(bucket, machine="another", process=1)
        is_over = threading.Event()

        def live() -> None:
            while not is_over.wait(0.3):
                put_claim(bucket, machine="another", process=1)

        thread = threading.Thread(target=live)
        thread.start()
        try:
            own = claims(f"{bucket}/runs/a", stale_seconds=10.0)
            with pytest.raises(MismatchError, match="process 1 on"), own.held(nobody):
                pass
        finally:
            is_over.set()
            thread.join()

    def test_a_process_of_this_machine_that_is_gone_is_not_waited_for(self, bucket: str) -> None:
        from raveval.store.claims import _this_machine

        put_claim(bucket, machine=_this_machine(), process=2**22 + 1)
        assert RunDirectory(f"{bucket}/runs/a").holder() is None
        began = time.monotonic()
        with claims(f"{bucket}/runs/a", stale_seconds=60.0).held(nobody):
            assert time.monotonic() - began < 10.0

    def test_a_driver_whose_claim_was_taken_writes_no_more(self, bucket: str) -> None:
        place = ObjectStore(f"{bucket}/runs/a")
        with claims(f"{bucket}/runs/a").held(nobody) as check:
            check()
            (own,) = place.all_names(".lock")
            place.delete(f".lock/{own}")
            time.sleep(1.5)
            with pytest.raises(RunError, match="another one may have taken the run over"):
                check()

    def test_a_claim_stays_fresh(self, bucket: str) -> None:
        place = ObjectStore(f"{bucket}/runs/a")
        with claims(f"{bucket}/runs/a").held(nobody):
            (own,) = place.all_names(".lock")
            before = place.modified(f".lock/{own}")
            time.sleep(1.5)
            assert place.modified(f".lock/{own}") > before


def test_a_store_that_is_busy_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served("s3", tmp_path, monkeypatch) as url:
        directory = RunDirectory(f"{url}/runs/a")
        for n, act in enumerate((lambda: directory.begin_session("s"), directory.names), start=2):
            busy[0] = n
            act()
            assert busy == [0]
        busy[0] = 2
        assert directory.is_session("s")


def put_claim(bucket: str, **content: Any) -> None:
    """Put the claim of a driver that is not one of this test's."""
    with ObjectStore(f"{bucket}/runs/a").committed(".lock/other.json") as file:
        file.write(json.dumps({"is_held": True, "host": "elsewhere", **content}).encode())


def test_what_a_store_refuses_is_an_error_of_its_own(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = ObjectStore(f"{bucket}/runs/a")

    def denied(*_: Any, **__: Any) -> None:
        raise PermissionError("access denied")

    monkeypatch.setattr(place._files, "cat_file", denied)
    with pytest.raises(StoreError, match=r"PermissionError: access denied.*every node needs"):
        place.read("run.json")
