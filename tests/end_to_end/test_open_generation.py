"""Answers that a judge grades: two passes, two models, and what each of them may cost the other."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

import raveval
from raveval import runner
from raveval.errors import ConfigError, MismatchError, RavevalError, ResourceError
from raveval.types import Results
from tests.end_to_end.conftest import Config, numbers, receipts
from tests.end_to_end.drivers import run_and_kill

here = pytest.mark.usefixtures("without_ray")
"""Where the judge runs is not what most of these tests are about."""

SCRIPTS = "tests.end_to_end.scripts"
KINDS = ("poor", "plain", "fine", "sure")
RUBRIC = {"criteria": "Is it good?", **{f"score{n}_description": f"{n}." for n in range(1, 6)}}

Make = Callable[..., Config]


@pytest.fixture
def graded(tmp_path: Path) -> Make:
    """Make a config of one task with these instructions, a scripted candidate and judge."""

    def make(
        *asked: str,
        output: str = "run",
        judge: dict[str, Any] | None = None,
        evaluate: dict[str, Any] | None = None,
        judge_placement: dict[str, Any] | None = None,
        **run: Any,
    ) -> Config:
        asked = asked or tuple(f"{n}: say it in a {KINDS[n % 4]} way" for n in range(24))
        rows = "".join(json.dumps({"id": str(n), "q": q}) + "\n" for n, q in enumerate(asked))
        (tmp_path / "rows.jsonl").write_text(rows)
        task = {
            "protocol": "open_generation",
            "source": {"path": "rows.jsonl"},
            "grading": {"instruction": "{{ q }}", "rubric": RUBRIC, "max_attempts": 2},
        }
        (tmp_path / "task.yaml").write_text(yaml.safe_dump(task))
        scripted = {"script": f"{SCRIPTS}:says_its_kind"}
        return {
            "evaluate": {
                "model": {"id": "candidate"},
                "engine": {"name": "scripted", **scripted},
                "judge": {
                    "model": {"id": "judge"},
                    "engine": {"name": "scripted", "script": "tests.judges:draws", **(judge or {})},
                },
                "tasks": [{"task": str(tmp_path / "task.yaml")}],
                **(evaluate or {}),
            },
            "run": {
                "output": str(tmp_path / output),
                "cpus_per_replica": 0.5,
                "judge": judge_placement or {"cpus_per_replica": 0.5},
                **run,
            },
        }

    return make


def rows_of(directory: Path, layer: str) -> list[dict[str, Any]]:
    files = sorted((directory / layer / "task").glob("*.parquet"))
    return [row for file in files for row in pq.read_table(file, partitioning=None).to_pylist()]


@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
def test_no_sharding_moves_a_bit(graded: Make, tmp_path: Path) -> None:
    results = raveval.run(graded(output="whole", shard_size=1000))
    expected = numbers(tmp_path / "whole")
    for shard_size, replicas, judges in ((1, 2, 1), (7, 1, 2)):
        placed = {"replicas": judges, "cpus_per_replica": 0.5}
        output = f"by{shard_size}"
        raveval.run(
            graded(output=output, shard_size=shard_size, replicas=replicas, judge_placement=placed)
        )
        assert numbers(tmp_path / output) == expected
    task = results.tasks["task"]
    records = rows_of(tmp_path / "whole", "records")
    assert task.coverage.n_attempted == task.coverage.n_scored == len(records) == 24
    assert {score for row in records for score in row["rating"]} == {1, 2, 3, 4, 5}
    assert all(row["rating"] == [5, 5, 5] for row in records if "sure" in row["response"])
    mean = task.metrics["mean_rating"]
    assert mean.value is not None
    assert mean.low is not None
    assert mean.low < mean.value
    assert task.usage.n_output_tokens == 24 * 5
    assert task.judge_usage is not None
    assert task.judge_usage.n_prompt_tokens > 24 * 3 * 10
    assert task.notes["attempts"] == sum(row["n_attempts"] for row in records)


@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
def test_a_run_that_is_killed_while_the_judge_grades(graded: Make, tmp_path: Path) -> None:
    slow = {"latency_seconds": 0.3}
    raveval.run(graded(output="quiet", shard_size=2, judge=slow))
    killed = graded(output="run", shard_size=2, judge=slow, examples_in_flight=4)
    run_and_kill(killed, tmp_path, after_shards=4)
    before, answers = receipts(tmp_path / "run"), times(tmp_path / "run" / "replies")
    assert 0 < len(before) < 12 == len(answers)
    status = raveval.status(tmp_path / "run").tasks["task"]
    assert status.n_shards_done + status.n_shards_to_grade == 12
    heard: list[str] = []
    raveval.run(killed, say=heard.append)
    assert [line for line in heard if "replica" in line and "candidate" in line] == []
    assert times(tmp_path / "run" / "replies") == answers
    after = receipts(tmp_path / "run")
    assert {name: after[name] for name in before} == before
    assert numbers(tmp_path / "run") == numbers(tmp_path / "quiet")


@here
@pytest.mark.parametrize("layer", ["verdicts", "replies"])
def test_a_torn_layer_is_made_again_with_what_rests_on_it(
    graded: Make, tmp_path: Path, layer: str
) -> None:
    settings = graded(shard_size=8)
    raveval.run(settings)
    expected = numbers(tmp_path / "run")
    answers = times(tmp_path / "run" / "replies")
    (tmp_path / "run" / layer / "task" / "00001.parquet").write_bytes(b"PAR1 torn")
    (tmp_path / "run" / "states" / "task" / "00001.json").unlink()
    raveval.run(settings)
    assert numbers(tmp_path / "run") == expected
    is_kept = times(tmp_path / "run" / "replies") == answers
    assert is_kept is (layer == "verdicts")


@here
def test_verdicts_on_other_replies_are_none(graded: Make, tmp_path: Path) -> None:
    settings = graded(shard_size=24)
    raveval.run(settings)
    graded_at = times(tmp_path / "run" / "verdicts")
    replies = tmp_path / "run" / "replies" / "task" / "00000.parquet"
    table = pq.read_table(replies, partitioning=None)
    rows = table.to_pylist()
    rows[0]["reply"] = rows[0]["reply"].replace("This is", "This surely is")
    pq.write_table(type(table).from_pylist(rows, schema=table.schema), replies)
    (tmp_path / "run" / "states" / "task" / "00000.json").unlink()
    raveval.run(settings)
    assert times(tmp_path / "run" / "verdicts") != graded_at


class TestBaseline:
    """The answers of another run, which the judge sees beside those of this one."""

    @here
    def test_both_orders_are_asked(self, graded: Make, tmp_path: Path) -> None:
        asked = [f"{n}: say it in a {KINDS[n % 4]} way" for n in range(200)]
        raveval.run(graded(*asked, output="old", evaluate={"seed": 1}))
        other = {"engine": {"name": "scripted", "script": f"{SCRIPTS}:says_its_kind_anew"}}
        results = raveval.run(graded(*asked, evaluate={"baseline": str(tmp_path / "old"), **other}))
        task = results.tasks["task"]
        rate = task.metrics["win_rate"]
        assert rate.value is not None
        assert rate.low is not None
        assert rate.high is not None
        # The judge leans to the place, not to a response: parity, and a rate of the first place of
        # 60 of the 90 readable verdicts in 100.
        assert rate.low < 0.5 < rate.high
        first = task.metrics["first_position_rate"]
        assert first.low is not None
        assert first.high is not None
        assert first.low < 2 / 3 < first.high
        assert task.source["baseline"] == str(tmp_path / "old")
        assert results.settings["baseline"] == str(tmp_path / "old")

    @here
    def test_equal_answers_are_ties(self, graded: Make, tmp_path: Path) -> None:
        raveval.run(graded(output="old"))
        task = raveval.run(graded(evaluate={"baseline": str(tmp_path / "old")})).tasks["task"]
        assert task.notes["same_as_baseline"] == 24
        assert task.metrics["win_rate"].value == 0.5

    @here
    def test_what_the_other_run_has_no_answer_to_is_counted(
        self, graded: Make, tmp_path: Path
    ) -> None:
        asked = ("say it in a fine way", "fail", "say it in a poor way")
        raveval.run(graded(*asked, output="old"))
        task = raveval.run(graded(*asked, evaluate={"baseline": str(tmp_path / "old")}))
        assert task.tasks["task"].source["baseline_missing"] == "1"
        assert task.tasks["task"].metrics["win_rate"].n == 2

    @here
    def test_a_run_on_other_data_is_refused(self, graded: Make, tmp_path: Path) -> None:
        raveval.run(graded("say it in a fine way", output="old"))
        with pytest.raises(MismatchError, match="'0' of task 'task' asks for something else"):
            raveval.run(graded("say it", evaluate={"baseline": str(tmp_path / "old")}))
        with pytest.raises(RavevalError, match="no run of raveval there"):
            raveval.run(graded("say it", evaluate={"baseline": str(tmp_path / "nowhere")}))


class TestAnotherJudge:
    """The same answers, graded otherwise."""

    @here
    def test_takes_over_the_answers(self, graded: Make, tmp_path: Path) -> None:
        raveval.run(graded(output="old", shard_size=8))
        heard: list[str] = []
        new = graded(
            judge={"script": "tests.judges:says_three"}, answers_from=str(tmp_path / "old")
        )
        results = raveval.run(new, say=heard.append)
        assert "3 of 3 shards are answered in" in "\n".join(heard)
        assert not any("replica of candidate" in line for line in heard)
        assert results.tasks["task"].metrics["mean_rating"].value == 3
        with pytest.raises(MismatchError, match=r"not comparable.*of the judge"):
            raveval.compare([tmp_path / "old", tmp_path / "run"])

    @here
    def test_leaves_what_failed_to_be_asked_again(self, graded: Make, tmp_path: Path) -> None:
        asked = ("say it in a sure way", f"say it in a sure way, unless {tmp_path}/mended exists")
        candidate = {"engine": {"name": "scripted", "script": f"{SCRIPTS}:says_its_kind_or_fails"}}
        raveval.run(graded(*asked, output="old", shard_size=1, evaluate=candidate))
        (tmp_path / "mended").touch()
        new = graded(*asked, evaluate=candidate, answers_from=str(tmp_path / "old"))
        heard: list[str] = []
        assert raveval.run(new, say=heard.append).is_complete
        assert "1 of 2 shards are answered in" in "\n".join(heard)

    @here
    def test_a_source_that_is_refused_leaves_nothing(self, graded: Make, tmp_path: Path) -> None:
        with pytest.raises(RavevalError, match=r"answers_from: .*no run of raveval there"):
            raveval.run(graded(answers_from=str(tmp_path / "nowhere")))
        assert not (tmp_path / "run").exists()

    @here
    def test_is_refused_where_verdicts_are(self, graded: Make) -> None:
        raveval.run(graded())
        with pytest.raises(
            MismatchError, match=r"graded otherwise: judge\.engine\.options\.script"
        ):
            raveval.run(graded(judge={"script": "tests.judges:says_three"}))
        with pytest.raises(MismatchError, match="answers_from"):
            raveval.run(graded(judge={"max_model_len": 4000}))

    @here
    def test_of_other_questions_there_are_no_answers(self, graded: Make, tmp_path: Path) -> None:
        raveval.run(graded("say it in a fine way", output="old"))
        with pytest.raises(MismatchError, match=r"answers_from.*n_examples"):
            raveval.run(graded(output="new", answers_from=str(tmp_path / "old")))


class TestFaults:
    """What breaks costs the example it breaks on, and nothing that was made before."""

    @here
    def test_of_the_candidate_are_not_shown_to_the_judge(self, graded: Make) -> None:
        results = raveval.run(graded("say it in a sure way", "fail"))
        task = results.tasks["task"]
        assert dict(task.coverage.by_status) == {"failed": 1, "ok": 1}
        assert list(task.failures.values()) == ["failed: the candidate is out of words"]
        assert task.notes["attempts"] == 3

    @here
    def test_of_the_judge_keep_the_answers(self, graded: Make, tmp_path: Path) -> None:
        mended = tmp_path / "mended"
        asked = ("say it in a sure way", f"unless {mended} exists, in a sure way")
        settings = graded(*asked, judge={"script": f"{SCRIPTS}:judge_fails_until"}, shard_size=1)
        first = raveval.run(settings).tasks["task"]
        assert dict(first.coverage.by_status) == {"failed": 1, "ok": 1}
        assert list(first.failures.values()) == ["failed: the judge: not yet"]
        answers = times(tmp_path / "run" / "replies")
        mended.touch()
        heard: list[str] = []
        again = {**settings, "run": {**settings["run"], "retry_failed": True}}
        assert raveval.run(again, say=heard.append).is_complete
        assert times(tmp_path / "run" / "replies") == answers
        assert "graded 1 examples" in "\n".join(heard)

    @here
    def test_of_one_of_its_samples_is_seen_and_asked_again(
        self, graded: Make, tmp_path: Path
    ) -> None:
        settings = graded(
            f"say it in a sure way, unless {tmp_path}/mended exists",
            judge={"script": f"{SCRIPTS}:judge_fails_now_and_then"},
        )
        first = raveval.run(settings)
        assert first.is_complete
        assert first.tasks["task"].notes["judge_failed"] == 1
        (record,) = rows_of(tmp_path / "run", "records")
        assert set(record["judge_failures"]) == {"failed: not yet"}
        assert not runner.is_done({**settings, "run": {**settings["run"], "retry_failed": True}})
        assert runner.is_done(settings)
        (tmp_path / "mended").touch()
        again = raveval.run({**settings, "run": {**settings["run"], "retry_failed": True}})
        assert "judge_failed" not in again.tasks["task"].notes

    @here
    def test_between_the_passes_are_asked_again(self, graded: Make, tmp_path: Path) -> None:
        candidate = {"engine": {"name": "scripted", "script": f"{SCRIPTS}:says_its_kind_or_fails"}}
        settings = graded(
            f"say it in a sure way, unless {tmp_path}/mended exists", evaluate=candidate
        )
        assert runner.answer(settings) is None
        (tmp_path / "mended").touch()
        again = {**settings, "run": {**settings["run"], "retry_failed": True}}
        assert raveval.run(again).is_complete

    @pytest.mark.ray
    @pytest.mark.usefixtures("cluster")
    def test_a_judge_that_finds_no_room(self, graded: Make, tmp_path: Path) -> None:
        crowd = graded(judge_placement={"replicas": 50, "cpus_per_replica": 1.0}, address="auto")
        with pytest.raises(ResourceError, match=r"run\.judge\.replicas: 50 replicas"):
            raveval.run(crowd)
        assert not (tmp_path / "run" / "replies").exists()

    @pytest.mark.ray
    @pytest.mark.usefixtures("cluster")
    def test_a_judge_that_dies_of_one_answer(self, graded: Make) -> None:
        asked = (*(f"{n}: in a sure way" for n in range(5)), "poison, in a sure way")
        dying = graded(*asked, judge={"script": f"{SCRIPTS}:judge_dies_on_poison"}, shard_size=3)
        task = raveval.run(dying).tasks["task"]
        assert dict(task.coverage.by_status) == {"ok": 5, "quarantined": 1}
        (failure,) = task.failures.values()
        assert failure.startswith("quarantined: the judge: the engine's process died 2 times")

    @here
    def test_a_judge_that_cannot_start(self, graded: Make, tmp_path: Path) -> None:
        missing = graded(judge={"script": "tests.judges:nobody"})
        with pytest.raises(ConfigError, match="nobody"):
            raveval.run(missing)
        assert len(rows_of(tmp_path / "run", "replies")) == 24

    @here
    def test_a_judge_without_room_for_an_answer(self, graded: Make) -> None:
        narrow = graded(judge={"max_model_len": 300}, evaluate={})
        with pytest.raises(ConfigError, match=r"24 of 24.*judge's context of 300 tokens"):
            raveval.run(narrow)
        counted = runner.plan(
            graded(judge={"max_model_len": 300}, evaluate={"on_overlong": "count"})
        )
        (task,) = counted.tasks
        lengths = task.content.lengths
        assert (lengths.n_overlong, lengths.n_overlong_verdicts) == (0, 24)
        assert "24 prompts are too long for the judge" in "\n".join(counted.lines())

    @here
    def test_no_judge_and_no_need_of_one(self, graded: Make, config: Make) -> None:
        without = graded()
        without["evaluate"].pop("judge")
        with pytest.raises(ConfigError, match="a judge grades its answers, and none is given"):
            raveval.run(without)
        for key, value in (("judge", {"model": {"id": "j"}}), ("baseline", "runs/x")):
            with pytest.raises(ConfigError, match=f"evaluate.{key}: no task of this run"):
                raveval.run(config(evaluate={key: value}))


class TestGradeTogether:
    """The second half of several runs, with one judge."""

    @here
    def test_a_run_that_cannot_be_graded_stops_no_other(self, graded: Make, tmp_path: Path) -> None:
        first, second = graded(output="first"), graded(output="second", evaluate={"seed": 7})
        assert runner.answer(first) is None
        assert runner.answer(second) is None
        apart = graded(output="apart", judge={"script": "tests.judges:says_three"})
        assert runner.answer(apart) is None
        names = ("first", "nowhere", "second", "apart")
        heard: list[str] = []
        found = runner.grade([tmp_path / name for name in names], say=heard.append)
        assert [isinstance(each, Results) for each in found] == [True, False, True, False]
        assert "no run of raveval here" in str(found[1])
        assert "grade them apart" in str(found[3])
        assert sum("judge replica" in line for line in heard) == 1
        assert runner.is_done(first)
        assert not runner.is_done(apart)

    @here
    def test_results_of_another_time_are_not_those_of_now(
        self, graded: Make, tmp_path: Path
    ) -> None:
        settings = graded("say it", judge={"script": "tests.judges:says_three"})
        settings["evaluate"] |= {"engine": "scripted"}
        settings["evaluate"]["tasks"].append("demo_choice")
        assert raveval.run(settings).is_complete
        assert runner.is_done(settings)
        results = json.loads((tmp_path / "run" / "results.json").read_text())
        del results["tasks"]["demo_choice"], results["fingerprints"]["demo_choice"]
        (tmp_path / "run" / "results.json").write_text(json.dumps(results))
        assert not runner.is_done(settings)


@here
def test_scoring_again_needs_no_model_and_changes_nothing(graded: Make, tmp_path: Path) -> None:
    raveval.run(graded(shard_size=8))
    expected = numbers(tmp_path / "run")
    heard: list[str] = []
    raveval.rescore(tmp_path / "run", say=heard.append)
    assert numbers(tmp_path / "run") == expected
    assert heard[0] == "task: scored 24 examples again, 0 have another status or score"


def times(layer: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in layer.glob("*/*.parquet")}
