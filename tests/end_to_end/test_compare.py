"""Two runs, compared by the command line; every number made again by hand."""

import csv
import io
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

import raveval
from raveval.sequential import compare_prefix, sequential_test
from raveval.store import RunDirectory, shards_of
from tests.end_to_end.conftest import Config

pytestmark = pytest.mark.usefixtures("without_ray")

MakeConfig = Callable[..., Config]
MakeQuestions = Callable[..., dict[str, str]]


def cli(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "raveval", "compare", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def printed_json(*arguments: object) -> dict[str, Any]:
    done = cli(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    content: dict[str, Any] = json.loads(done.stdout)
    return content


def difference(content: dict[str, Any], task: str, metric: str) -> dict[str, Any]:
    rows = [d for d in content["differences"] if (d["task"], d["metric"]) == (task, metric)]
    assert len(rows) == 1
    row: dict[str, Any] = rows[0]
    return row


def records(directory: Path, task: str) -> dict[str, dict[str, Any]]:
    """Every record of a task by id, in the fixed order."""
    run = RunDirectory(directory)
    manifest = run.read_manifest()
    assert manifest is not None
    entry = manifest["tasks"][task]
    shards = shards_of(task, entry["n_examples"], entry["shard_size"])
    table = pa.concat_tables([run.read_records(shard) for shard in shards])
    return {row["id"]: row for row in table.to_pylist()}


@pytest.fixture
def two(config: MakeConfig, tmp_path: Path) -> tuple[Path, Path]:
    """Two models on the demo tasks, in shards of another size."""
    for name, seed, shard_size in (("a", 0, 5), ("b", 1, 32)):
        raveval.run(config(output=name, engine={"seed": seed}, shard_size=shard_size))
    return tmp_path / "a", tmp_path / "b"


def test_every_number_by_hand(two: tuple[Path, Path]) -> None:
    content = printed_json(*two)
    assert [run["directory"] for run in content["runs"]] == [str(two[1])]

    a, b = (records(run, "demo_choice") for run in two)
    assert list(a) == list(b)
    right = [np.array([row["is_correct"] for row in run.values()]) for run in (a, b)]
    only_a, only_b = int((right[0] & ~right[1]).sum()), int((~right[0] & right[1]).sum())
    assert only_a + only_b > 0
    found = difference(content, "demo_choice", "accuracy")
    assert found["baseline"] == right[0].mean()
    assert found["value"] == right[1].mean()
    assert found["difference"] == pytest.approx(right[1].mean() - right[0].mean(), abs=1e-15)
    assert (found["n_only_baseline"], found["n_only_run"]) == (only_a, only_b)
    assert found["p"] == pytest.approx(stats.binomtest(only_a, only_a + only_b).pvalue, rel=1e-12)
    assert found["test"] == "mcnemar-exact"
    error = stats.sem(right[1].astype(float) - right[0].astype(float))
    assert found["stderr"] == pytest.approx(error, rel=1e-9)
    z = stats.norm.ppf(0.975) + stats.norm.ppf(0.8)
    assert found["detectable"] == pytest.approx(z * error, rel=1e-9)

    a, b = (records(run, "demo_qa") for run in two)
    clusters = [row["cluster"] for row in a.values()]
    scores = [np.array([row["f1"] for row in run.values()]) for run in (a, b)]
    mean = scores[1].mean() - scores[0].mean()
    residuals = dict.fromkeys(clusters, 0.0)
    for name, delta in zip(clusters, scores[1] - scores[0], strict=True):
        residuals[name] += delta - mean
    n, n_clusters = len(clusters), len(residuals)
    assert 1 < n_clusters < n
    squares = sum(each**2 for each in residuals.values())
    error = math.sqrt(n_clusters / (n_clusters - 1) * squares) / n
    found = difference(content, "demo_qa", "f1")
    assert found["difference"] == pytest.approx(mean, abs=1e-12)
    assert found["stderr"] == pytest.approx(error, rel=1e-9)
    half_width = stats.t.ppf(0.975, n_clusters - 1) * error
    assert found["low"] == pytest.approx(mean - half_width, abs=1e-12)
    assert (found["n"], found["n_units"], found["test"]) == (n, n_clusters, "cluster-t")

    a, b = (records(run, "demo_text") for run in two)
    nats = [np.array([-row["logprob_nats"] for row in run.values()]) for run in (a, b)]
    words = np.array([row["n_words"] for row in a.values()])
    levels = [math.exp(each.sum() / words.sum()) for each in nats]
    found = difference(content, "demo_text", "word_perplexity")
    assert (found["baseline"], found["value"]) == pytest.approx(tuple(levels), rel=1e-12)
    assert found["difference"] == pytest.approx(levels[1] - levels[0], rel=1e-9)
    rng = np.random.default_rng(1)
    drawn = rng.integers(0, len(words), (20_000, len(words)))
    replicates = [np.exp(each[drawn].sum(1) / words[drawn].sum(1)) for each in nats]
    low, high = np.quantile(replicates[1] - replicates[0], [0.025, 0.975])
    # the interval is somewhat wider than the plain percentile one, for there are 24 documents
    width = high - low
    assert low - 0.1 * width < found["low"] < low + 0.02 * width
    assert high - 0.02 * width < found["high"] < high + 0.2 * width
    share = 2 * min(
        np.mean(replicates[1] <= replicates[0]), np.mean(replicates[1] >= replicates[0])
    )
    assert found["p"] == pytest.approx(share, abs=0.05)

    family = [d for d in content["differences"] if d["p_holm"] is not None]
    assert [d["metric"] for d in family] == ["accuracy", "exact_match", "word_perplexity"]
    adjusted = multipletests([d["p"] for d in family], method="holm")[1]
    assert [d["p_holm"] for d in family] == pytest.approx(list(adjusted), rel=1e-12)


def test_all_forms_say_the_same(two: tuple[Path, Path]) -> None:
    table = cli(*two, "--task", "demo_choice").stdout
    content = printed_json(*two, "--task", "demo_choice")
    row = next(line for line in table.splitlines() if "| accuracy " in line)
    found = difference(content, "demo_choice", "accuracy")
    assert f"{100 * found['baseline']:.1f} %" in row
    assert f"{found['n_only_baseline']}/{found['n_only_run']}" in row
    assert "demo_choice: 28 examples paired" in table
    assert "demo_text" not in table
    sheet = list(csv.DictReader(io.StringIO(cli(*two, "--format", "csv").stdout)))
    assert len({row["task"] for row in sheet}) == 3
    markdown = cli(*two, "--format", "markdown", "--metrics", "f1,accuracy").stdout
    assert "| demo_qa | f1 | ↑ |" in markdown
    assert "the 2 tests of the family (accuracy of demo_choice, f1 of demo_qa)" in markdown


def test_a_run_against_itself(two: tuple[Path, Path]) -> None:
    content = printed_json(two[0], two[0])
    assert {d["difference"] for d in content["differences"]} <= {0.0, None}
    assert {d["p"] for d in content["differences"]} <= {1.0, None}
    said = cli(two[0], two[0]).stdout
    for task in ("demo_choice", "demo_qa", "demo_text"):
        assert f"{task}: the runs have the same scores on every paired example" in said


def test_from_python(two: tuple[Path, Path]) -> None:
    comparison = raveval.compare([*two], metrics=["accuracy"])
    assert isinstance(comparison, raveval.Comparison)
    (found,) = comparison.differences
    assert found.p == difference(printed_json(*two), "demo_choice", "accuracy")["p"]


def test_missing_examples_are_counted(
    config: MakeConfig, questions: MakeQuestions, tmp_path: Path
) -> None:
    task = questions(*(f"question {n}?" for n in range(6)), "poison?")
    scripts = ("raises_on_poison", "")
    for name, script in zip("ab", scripts, strict=True):
        path = f"tests.end_to_end.scripts:{script}" if script else ""
        raveval.run(config(output=name, tasks=[task], engine={"script": path}))
    content = printed_json(tmp_path / "a", tmp_path / "b")
    (pairing,) = content["pairings"]
    counts = {key: pairing[key] for key in pairing if key.startswith("n_")}
    assert counts == {
        "n_paired": 6,
        "n_only_baseline": 0,
        "n_only_run": 1,
        "n_neither": 0,
        "n_clusters": None,
    }
    said = cli(tmp_path / "a", tmp_path / "b").stdout
    assert f"questions: 6 examples paired; 1 only in {tmp_path / 'b'}" in said


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"seed": 7}, "seed of task 'demo_qa' is 7 here, 1234 there"),
        ({"tasks": [{"task": "demo_qa", "num_fewshot": 1}]}, "num_fewshot of task 'demo_qa' is 1"),
        ({"tasks": [{"task": "demo_qa", "limit": 5}]}, "n_examples of task 'demo_qa' is 5 here"),
        ({"tasks": [{"task": "demo_qa", "metrics": ["squad2"]}]}, "scored with metrics.squad2 = "),
    ],
)
def test_other_questions_are_refused_by_name(
    config: MakeConfig, tmp_path: Path, change: dict[str, Any], key: str
) -> None:
    raveval.run(config(output="a", tasks=["demo_qa"]))
    raveval.run(config(output="b", evaluate={"tasks": ["demo_qa"], **change}))
    done = cli(tmp_path / "a", tmp_path / "b")
    assert done.returncode == 2
    assert done.stdout == ""
    assert key in done.stderr
    assert f"{tmp_path / 'b'}: not comparable with {tmp_path / 'a'}" in done.stderr


def test_an_unfinished_run_is_refused_but_its_prefix_is_tested(two: tuple[Path, Path]) -> None:
    for index in (3, 5):  # shards of five examples: the prefix ends at 15
        (two[0] / "states" / "demo_choice" / f"{index:05d}.json").unlink()
    done = cli(*two)
    assert done.returncode == 2
    assert f"{two[0]}: task 'demo_choice' is not finished: 4 of 6 shards are done" in done.stderr
    found = compare_prefix(*two, "demo_choice")
    rows = [list(records(run, "demo_choice").values())[:15] for run in two]
    right = [np.array([row["is_correct"] for row in run]) for run in rows]
    assert found == sequential_test(*right)
    assert found.n_prefix == 15
