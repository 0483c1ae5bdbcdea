"""The demo as a user runs it: a real model in vLLM on Ray, against the float32 reference."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import raveval
from raveval.judging import read_choice, read_score
from tests.end_to_end.conftest import DEMO, DEMO_TASKS

pytestmark = [pytest.mark.model, pytest.mark.ray, pytest.mark.timeout(600)]

N_REFERENCE = {"choice": 14, "qa": 8, "text": 3}
"""Examples of each task that the reference is asked as well: it takes five times as long."""

SUM_NATS = 1e-3
"""Tolerance of a summed log-likelihood: float32 kernels of two libraries, some hundred tokens."""


def records(directory: Path, task: str) -> dict[str, dict[str, Any]]:
    files = sorted((directory / "records" / task).glob("*.parquet"))
    table = pa.concat_tables(pq.read_table(file, partitioning=None) for file in files)
    return {row["id"]: row for row in table.to_pylist()}


@pytest.fixture(scope="module")
def reference_run(
    demo_model: Path, tmp_path_factory: pytest.TempPathFactory, cluster: None
) -> Path:
    """Some of it on transformers; not the judge: its words are drawn, and each draws its own."""
    config = yaml.safe_load(DEMO.read_text())
    config["evaluate"]["tasks"] = [
        {"task": f"demo_{name}", "limit": n} for name, n in N_REFERENCE.items()
    ]
    config["evaluate"]["engine"] = "transformers"
    del config["evaluate"]["judge"]
    config["run"]["output"] = str(tmp_path_factory.mktemp("demo") / "transformers")
    raveval.run(config)
    return Path(config["run"]["output"])


def test_all_numbers_are_there(demo_run: Path) -> None:
    content = json.loads((demo_run / "results.json").read_text())
    found = {name: task["metrics"] for name, task in content["tasks"].items()}
    assert list(found) == [f"demo_{task}" for task in DEMO_TASKS]
    for metrics in found.values():
        for name, estimate in metrics.items():
            assert (estimate["value"] is None) == (estimate["reason"] is not None), name
            if estimate["value"] is not None and estimate["low"] is not None:
                assert estimate["low"] <= estimate["value"] <= estimate["high"], name
    assert {"accuracy_unconditional", "relative_improvement"} <= found["demo_choice"].keys()
    assert found["demo_text"]["entropy_nats"]["value"] > 0
    assert content["settings"]["loaded"][0]["score_hook"] == "v1"
    assert raveval.load_results(demo_run).is_complete


def test_the_model_knows_something(demo_run: Path) -> None:
    tasks = raveval.load_results(demo_run).tasks
    accuracy = tasks["demo_choice"].metrics["accuracy"]
    chance = tasks["demo_choice"].metrics["random_baseline"].value
    assert accuracy.low is not None
    assert chance is not None
    assert accuracy.low > chance
    assert (tasks["demo_qa"].metrics["f1"].value or 0) > 0.3


def verdicts(task: str, row: dict[str, Any]) -> list[Any]:
    """What the judge's readable lines say, by an example's record."""
    if task in ("demo_grading", "demo_answers"):
        return [score for score in row["rating"] if score is not None]
    if task == "demo_ranking":
        return [*row["scores_a"], *row["scores_b"]]
    return [row["verdict"].upper(), {"a": "B", "b": "A"}[row["verdict_swapped"]]]


@pytest.mark.parametrize("task", ["demo_grading", "demo_ranking", "demo_pairs", "demo_answers"])
def test_every_word_of_the_judge_is_accounted_for(demo_run: Path, task: str) -> None:
    rows = records(demo_run, task)
    said: dict[str, list[Any]] = {}
    layer = "verdicts" if task == "demo_answers" else "replies"
    for file in (demo_run / layer / task).glob("*.parquet"):
        for reply in pq.read_table(file, partitioning=None).to_pylist():
            said.setdefault(reply["id"], []).append(json.loads(reply["reply"]))
    assert said.keys() == rows.keys()
    n_refused = 0
    for id, row in rows.items():
        read: Any = read_choice if task == "demo_pairs" else read_score
        lines = [read(each["text"], is_cut=each["finish_reason"] == "length") for each in said[id]]
        assert row["status"] == "ok"
        assert row["n_attempts"] == len(lines)
        assert sorted(v.value for v in lines if v.value) == sorted(verdicts(task, row))
        assert sorted(v.reason for v in lines if v.reason) == sorted(row["refused"])
        n_refused += len(row["refused"])
    n_attempts = sum(row["n_attempts"] for row in rows.values())
    assert 0 < n_refused < n_attempts / 2  # a small model, but most of its lines hold a score
    found = raveval.load_results(demo_run).tasks[task]
    assert found.notes["attempts"] == n_attempts
    refusals = {key: n for key, n in found.notes.items() if key.startswith("refused_")}
    assert sum(refusals.values()) == n_refused


def test_the_judge_is_asked_in_both_ways(demo_run: Path) -> None:
    graded, ranked = (records(demo_run, f"demo_{name}") for name in ("grading", "ranking"))
    assert {len(row["rating"]) for row in graded.values()} == {3}
    for row in ranked.values():
        a, b = row["scores_a"][-1], row["scores_b"][-1]
        assert row["verdict"] == ("tie" if a == b else "a" if a > b else "b")
        assert (row["n_rounds"] == 1) or (row["preferred"] != "tie")
    tasks = raveval.load_results(demo_run).tasks
    ceiling = tasks["demo_grading"].metrics["reference_pearson"].value
    assert (ceiling or 0) > 0.8  # of the raters, whom no model moves
    assert tasks["demo_pairs"].metrics["position_consistency"].n == 12


def test_the_answers_are_the_models_and_the_cost_is_each_ones_own(demo_run: Path) -> None:
    rows = records(demo_run, "demo_answers")
    task = raveval.load_results(demo_run).tasks["demo_answers"]
    assert "Rome" in rows["capital"]["response"]
    assert task.usage.n_output_tokens == sum(row["n_output_tokens"] for row in rows.values())
    assert task.judge_usage is not None
    assert task.judge_usage.n_prompt_tokens > task.usage.n_prompt_tokens


def test_choices_agree_with_the_reference(demo_run: Path, reference_run: Path) -> None:
    ours, theirs = (records(run, "demo_choice") for run in (demo_run, reference_run))
    assert len(theirs) == N_REFERENCE["choice"]
    for id, other in theirs.items():
        row = ours[id]
        for column in ("logprob_nats", "unconditional_nats"):
            assert row[column] == pytest.approx(other[column], abs=SUM_NATS)
        for column in ("n_tokens", "n_chars", "n_bytes", "gold", "predicted", "is_greedy"):
            assert row[column] == other[column], (id, column)


def test_documents_agree_with_the_reference(demo_run: Path, reference_run: Path) -> None:
    ours, theirs = (records(run, "demo_text") for run in (demo_run, reference_run))
    assert len(theirs) == N_REFERENCE["text"]
    for id, other in theirs.items():
        row = ours[id]
        assert row["n_tokens"] == other["n_tokens"]
        for column in ("logprob_nats", "entropy_nats"):
            assert row[column] == pytest.approx(other[column], abs=SUM_NATS)


def test_completions_agree_with_the_reference(demo_run: Path, reference_run: Path) -> None:
    ours, theirs = (records(run, "demo_qa") for run in (demo_run, reference_run))
    assert len(theirs) == N_REFERENCE["qa"]
    same = [ours[id]["prediction"] == theirs[id]["prediction"] for id in theirs]
    assert sum(same) >= len(same) - 1  # one near tie in a greedy path may fall the other way
