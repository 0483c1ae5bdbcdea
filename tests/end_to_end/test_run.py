"""The two tests that define the project: same answer, any sharding; resume after every commit."""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import raveval
from raveval import tasks
from raveval.errors import (
    ConfigError,
    DataError,
    MismatchError,
    ModelError,
    ResourceError,
    RunError,
)
from raveval.evaluate import Stage
from raveval.store import RunDirectory, shards_of
from tests.end_to_end.conftest import Config, numbers, receipts
from tests.end_to_end.drivers import run_and_kill, start_driver, wait_for

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster")]

MakeConfig = Callable[..., Config]
MakeQuestions = Callable[..., dict[str, str]]
SCRIPTS = "tests.end_to_end.scripts"


def script(name: str, **options: Any) -> dict[str, Any]:
    return {"script": f"{SCRIPTS}:{name}", **options}


class TestSameAnswer:
    """Shard size, replicas, order of completion and deaths move no bit of results.json."""

    def test_any_sharding(self, config: MakeConfig) -> None:
        whole = config(output="whole", shard_size=1000)
        raveval.run(whole)
        expected = numbers(whole["run"]["output"])
        for shard_size, replicas in ((1, 3), (7, 2), (64, 1)):
            other = config(output=f"by{shard_size}", shard_size=shard_size, replicas=replicas)
            raveval.run(other)
            assert numbers(other["run"]["output"]) == expected

    def test_every_example_is_accounted_for(self, config: MakeConfig) -> None:
        results = raveval.run(config(shard_size=5))
        for name, task in results.tasks.items():
            planned = tasks.load_examples(tasks.load_task(name), tasks.Options(), seed=1234)
            assert task.coverage.n_attempted == len(planned)
            assert task.coverage.n_scored == len(planned)
        loads = results.times["load_seconds"]
        assert isinstance(loads, list)
        assert len(loads) == 1, "three tasks, one replica: the model is loaded once"

    def test_a_replica_that_dies_costs_nothing(
        self, config: MakeConfig, questions: MakeQuestions, tmp_path: Path
    ) -> None:
        marker = tmp_path / "died"
        asked = [f"How many are {n}?" for n in range(20)]
        task = questions(*asked, f"Do you live unless {marker} exists?")
        dying = config(output="dying", shard_size=4, tasks=[task], engine=script("dies_once"))
        marker.touch()
        raveval.run({**dying, "run": {**dying["run"], "output": str(tmp_path / "calm")}})
        marker.unlink()
        raveval.run(dying)
        assert marker.exists()
        assert numbers(tmp_path / "dying") == numbers(tmp_path / "calm")


class TestResume:
    """What was committed is never done again, and the numbers are those of one quiet run."""

    def test_after_the_driver_is_killed(self, config: MakeConfig, tmp_path: Path) -> None:
        engine = {"latency_seconds": 0.3}
        quiet = config(output="quiet", shard_size=2, engine=engine)
        raveval.run(quiet)
        killed = config(output="killed", shard_size=2, engine=engine, examples_in_flight=4)
        n_shards = len(receipts(tmp_path / "quiet"))
        run_and_kill(killed, tmp_path, after_shards=n_shards // 3)
        before = receipts(tmp_path / "killed")
        assert 0 < len(before) < n_shards
        raveval.run({**killed, "run": {**killed["run"], "replicas": 3}})
        after = receipts(tmp_path / "killed")
        assert {name: after[name] for name in before} == before
        assert numbers(tmp_path / "killed") == numbers(tmp_path / "quiet")

    def test_between_the_two_commits_of_a_shard(self, config: MakeConfig, tmp_path: Path) -> None:
        settings = config(shard_size=7, tasks=["demo_qa"])
        raveval.run(settings)
        expected = numbers(tmp_path / "run")
        for receipt in (tmp_path / "run" / "states" / "demo_qa").glob("*.json"):
            receipt.unlink()
        (tmp_path / "run" / "records" / "demo_qa" / "00001.parquet").unlink()
        heard: list[str] = []
        raveval.run(settings, say=heard.append)
        assert not any("replica" in line for line in heard), "a model was loaded for nothing"
        assert numbers(tmp_path / "run") == expected

    def test_a_finished_run_loads_nothing_and_writes_nothing(
        self, config: MakeConfig, tmp_path: Path
    ) -> None:
        settings = config()
        results = raveval.run(settings)
        files = [file for file in (tmp_path / "run").rglob("*") if file.name != ".lock"]
        before = {file: file.stat().st_mtime_ns for file in files}
        heard: list[str] = []
        assert raveval.run(settings, say=heard.append) == results
        assert not any("replica" in line for line in heard)
        assert {file: file.stat().st_mtime_ns for file in files} == before

    @pytest.mark.parametrize("half", [True, False])
    @pytest.mark.parametrize("layer", ["replies", "states", "records"])
    def test_a_torn_or_rotten_file_is_made_again(
        self, config: MakeConfig, tmp_path: Path, layer: str, half: bool
    ) -> None:
        settings = config(shard_size=10, tasks=["demo_qa"])
        raveval.run(settings)
        expected = numbers(tmp_path / "run")
        torn = next((tmp_path / "run" / layer / "demo_qa").iterdir())
        content = torn.read_bytes()
        torn.write_bytes(content[:20] if half else content[:60] + b"\xff" * 40 + content[100:])
        if layer != "states":
            (tmp_path / "run" / "states" / "demo_qa" / f"{torn.stem}.json").unlink()
        raveval.run(settings)
        assert numbers(tmp_path / "run") == expected

    def test_another_shard_size_keeps_what_is_there(
        self, config: MakeConfig, tmp_path: Path
    ) -> None:
        raveval.run(config(shard_size=5))
        before = receipts(tmp_path / "run")
        expected = numbers(tmp_path / "run")
        raveval.run(config(shard_size=3))
        assert receipts(tmp_path / "run") == before
        assert numbers(tmp_path / "run") == expected

    @pytest.mark.usefixtures("without_ray")
    @pytest.mark.parametrize("shard_size", [5, 3])
    def test_goes_on_without_a_damaged_manifest_as_its_refusal_says(
        self, config: MakeConfig, tmp_path: Path, shard_size: int
    ) -> None:
        settings = config(shard_size=5, tasks=["demo_qa"])
        raveval.run(settings)
        expected, before = numbers(tmp_path / "run"), receipts(tmp_path / "run")
        manifest = tmp_path / "run" / "run.json"
        manifest.write_bytes(manifest.read_bytes()[:100])
        with pytest.raises(DataError, match="delete this file alone"):
            raveval.run(settings)
        manifest.unlink()
        raveval.run(config(shard_size=shard_size, tasks=["demo_qa"]))
        assert numbers(tmp_path / "run") == expected
        assert (receipts(tmp_path / "run") == before) == (shard_size == 5)

    def test_examples_of_another_plan_are_written_anew(
        self, config: MakeConfig, tmp_path: Path
    ) -> None:
        raveval.run(config(output="clean", tasks=[{"task": "demo_qa", "num_fewshot": 5}]))
        # Killed after it wrote its examples, before it wrote run.json.
        raveval.run(config(output="other", tasks=[{"task": "demo_qa", "num_fewshot": 0}]))
        shutil.copytree(tmp_path / "other" / "examples", tmp_path / "run" / "examples")
        raveval.run(config(tasks=[{"task": "demo_qa", "num_fewshot": 5}]))
        assert numbers(tmp_path / "run") == numbers(tmp_path / "clean")

    def test_a_new_task_joins(self, config: MakeConfig, tmp_path: Path) -> None:
        raveval.run(config(tasks=["demo_qa"]))
        before = receipts(tmp_path / "run")
        results = raveval.run(config(tasks=["demo_qa", "demo_choice"]))
        assert set(results.tasks) == {"demo_qa", "demo_choice"}
        assert before.items() <= receipts(tmp_path / "run").items()

    def test_a_new_metric_needs_no_model(self, config: MakeConfig, tmp_path: Path) -> None:
        task = {"task": "demo_text", "metrics": ["perplexity"]}
        raveval.run(config(tasks=[task]))
        files = list((tmp_path / "run" / "replies").rglob("*.parquet"))
        before = [file.stat().st_mtime_ns for file in files]
        heard: list[str] = []
        more = {**task, "metrics": ["perplexity", "entropy"]}
        found = raveval.run(config(tasks=[more]), say=heard.append).tasks["demo_text"]
        assert found.metrics["entropy_nats"].value is not None
        assert not any("replica" in line for line in heard), "a model was loaded for nothing"
        assert [file.stat().st_mtime_ns for file in files] == before

    def test_rescoring_gives_the_same_numbers(self, config: MakeConfig, tmp_path: Path) -> None:
        raveval.run(config(shard_size=6))
        expected = numbers(tmp_path / "run")
        raveval.rescore(tmp_path / "run")
        assert numbers(tmp_path / "run") == expected


class TestOtherRun:
    """A directory holds one run: what moves numbers may not change under it."""

    @pytest.mark.parametrize(
        ("change", "key"),
        [
            ({"seed": 7}, "seed"),
            ({"model": {"id": "other"}}, "model.id"),
            ({"engine": {"name": "scripted", "seed": 5}}, "engine.options.seed"),
            ({"tasks": [{"task": "demo_qa", "limit": 5}]}, "examples"),
        ],
    )
    def test_is_refused_by_name(self, config: MakeConfig, change: Config, key: str) -> None:
        raveval.run(config(tasks=["demo_qa"]))
        with pytest.raises(MismatchError, match=key):
            raveval.run(config(tasks=["demo_qa"], evaluate=change))

    def test_replicas_unlike_those_before_are_refused(
        self, config: MakeConfig, tmp_path: Path
    ) -> None:
        settings = config(tasks=["demo_qa"], shard_size=10)
        raveval.run(settings)
        directory = RunDirectory(tmp_path / "run")
        entry = directory.manifest()["tasks"]["demo_qa"]
        for shard in shards_of("demo_qa", entry["n_examples"], entry["shard_size"]):
            place = {"fingerprint": entry["reply_fingerprint"], "stage": Stage.ANSWER}
            replies = directory.read_replies(shard, **place)
            assert replies is not None
            other = replace(replies, engine={**replies.engine, "max_model_len": 77})
            directory.commit_replies(shard, other, stage=Stage.ANSWER)
        (tmp_path / "run" / "states" / "demo_qa" / "00001.json").unlink()
        (tmp_path / "run" / "replies" / "demo_qa" / "00001.parquet").unlink()
        with pytest.raises(MismatchError, match=r"max_model_len 77, this replica .* has 4096"):
            raveval.run(settings)

    def test_a_task_may_not_vanish(self, config: MakeConfig) -> None:
        raveval.run(config(tasks=["demo_qa", "demo_choice"]))
        with pytest.raises(MismatchError, match="demo_choice"):
            raveval.run(config(tasks=["demo_qa"]))

    def test_a_second_driver_is_kept_out(self, config: MakeConfig, tmp_path: Path) -> None:
        settings = config(tasks=["demo_qa"], shard_size=1, engine={"latency_seconds": 2.0})
        first = start_driver(settings, tmp_path)
        try:
            wait_for(lambda: (tmp_path / "run" / "run.json").exists(), "the first driver", first)
            with pytest.raises(MismatchError, match=str(first.pid)):
                raveval.run(settings)
        finally:
            first.kill()
            first.wait()

    def test_foreign_files_are_left_alone(self, config: MakeConfig, tmp_path: Path) -> None:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "thesis.tex").write_text("...")
        with pytest.raises(MismatchError, match="holds files"):
            raveval.run(config())


MakeCrowded = Callable[..., Config]


@pytest.fixture
def crowded(config: MakeConfig, tmp_path: Path) -> MakeCrowded:
    """Make a config of an engine whose first starts find no room."""

    def make(*, replicas: int = 2, **engine: Any) -> Config:
        (tmp_path / "room").mkdir()
        engine = {"name": "tests.end_to_end.crowded", "room": str(tmp_path / "room"), **engine}
        return config(tasks=["demo_qa"], engine=engine, shard_size=8, replicas=replicas)

    return make


class TestFaults:
    """One example's fault costs that example, and is counted by its kind."""

    def test_an_example_that_raises(self, config: MakeConfig, questions: MakeQuestions) -> None:
        task = questions("fine?", "poison?", "fine too?")
        results = raveval.run(config(tasks=[task], engine=script("raises_on_poison")))
        found = results.tasks["questions"]
        assert dict(found.coverage.by_status) == {"failed": 1, "ok": 2}
        assert "more than I can take" in found.failures["1"]
        assert not results.is_complete

    def test_an_example_that_kills_its_engine(
        self, config: MakeConfig, questions: MakeQuestions
    ) -> None:
        asked = [f"question {n}?" for n in range(9)]
        task = questions(*asked, "poison?")
        results = raveval.run(config(tasks=[task], shard_size=5, engine=script("dies_on_poison")))
        found = results.tasks["questions"]
        assert dict(found.coverage.by_status) == {"ok": 9, "quarantined": 1}
        assert list(found.failures) == ["9"]
        assert (
            "died 2 times with this example alone in it; the last time: it left no"
            in (found.failures["9"])
        )

    def test_an_overlong_prompt(self, config: MakeConfig, questions: MakeQuestions) -> None:
        task = questions("short?", "long " * 5000)
        with pytest.raises(ConfigError, match=r"1 of 2 examples do not fit.*'1'.*on_overlong"):
            raveval.run(config(tasks=[task]))
        counted = raveval.run(config(tasks=[task], evaluate={"on_overlong": "count"}))
        assert dict(counted.tasks["questions"].coverage.by_status) == {"ok": 1, "overlong": 1}

    def test_an_engine_that_hangs(self, config: MakeConfig, questions: MakeQuestions) -> None:
        task = questions("a?", "hang?", "b?")
        hanging = config(
            tasks=[task],
            engine=script("hangs"),
            deadline_seconds=1.0,
            slowest_tokens_per_second=1e4,
        )
        heard: list[str] = []
        results = raveval.run(hanging, say=heard.append)
        found = results.tasks["questions"]
        assert dict(found.coverage.by_status) == {"ok": 2, "quarantined": 1}
        assert list(found.failures) == ["1"]
        assert re.search(r"the last time: no reply for \d+ s, more than run\.", found.failures["1"])
        told = [line for line in heard if "another process takes its place" in line]
        assert len(told) == 5
        assert all(" died: no reply for " in line for line in told)
        assert "at work on questions 0, on example '1' alone; " in told[-1]
        assert results.times["replicas_lost"] == [line.rpartition(";")[0] for line in told]

    def test_a_queue_is_no_hang(self, config: MakeConfig, questions: MakeQuestions) -> None:
        task = questions(*(f"{n}?" for n in range(30)))
        slow = config(
            tasks=[task],
            engine=script("one_at_a_time"),
            deadline_seconds=0.5,
            slowest_tokens_per_second=1e4,
        )
        assert raveval.run(slow).is_complete

    def test_what_failed_is_asked_again_where_that_is_wanted(
        self, config: MakeConfig, questions: MakeQuestions, tmp_path: Path
    ) -> None:
        mended = tmp_path / "mended"
        task = questions("a?", f"Do you fail unless {mended} exists?")
        settings = config(tasks=[task], engine=script("fails_until"))
        assert not raveval.run(settings).is_complete
        mended.touch()
        assert not raveval.run(settings).is_complete
        again = {**settings, "run": {**settings["run"], "retry_failed": True}}
        assert raveval.run(again).is_complete

    def test_a_directory_that_cannot_be_written_says_so(
        self, config: MakeConfig, tmp_path: Path
    ) -> None:
        settings = config(tasks=["demo_qa"])
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "replies").write_text("in the way")
        with pytest.raises(RunError, match=r"demo_qa.*shard 0(.|\n)*replies"):
            raveval.run(settings)

    def test_nothing_at_the_address(
        self, config: MakeConfig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import ray

        monkeypatch.setattr(ray, "is_initialized", lambda: False)
        with pytest.raises(ResourceError, match=r"nothing answers at 127\.0\.0\.1:1"):
            raveval.run(config(address="127.0.0.1:1"))

    def test_a_model_that_cannot_start(self, config: MakeConfig) -> None:
        with pytest.raises((ModelError, ConfigError), match="no_such_script"):
            raveval.run(config(engine=script("no_such_script")))

    def test_one_of_two_replicas_that_cannot_start(self, crowded: MakeCrowded) -> None:
        heard: list[str] = []
        results = raveval.run(crowded(n_refused=1), say=heard.append)
        assert results.is_complete
        (line,) = [line for line in heard if "cannot start: RuntimeError: CUDA out of" in line]
        assert line.endswith("; the run goes on with the other one")
        assert results.times["replicas_lost"] == [line.rpartition(";")[0]]

    def test_two_replicas_that_cannot_start(self, crowded: MakeCrowded) -> None:
        with pytest.raises(RunError, match=r"(?s)none of the 2 replicas.*CUDA out of memory"):
            raveval.run(crowded(n_refused=2))

    def test_a_replica_whose_process_dies_whenever_it_loads(self, crowded: MakeCrowded) -> None:
        with pytest.raises(RunError, match="died 3 times in a row while it loaded the model"):
            raveval.run(crowded(n_refused=3, crashes=True, replicas=1))

    def test_more_replicas_than_the_cluster_holds(self, config: MakeConfig) -> None:
        wanted = config(replicas=2, gpus_per_replica=1.0)
        with pytest.raises(ResourceError, match="2 replicas"):
            raveval.run(wanted)
