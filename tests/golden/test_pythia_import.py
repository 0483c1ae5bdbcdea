"""The lm-eval files of sixteen Pythia models become runs: every number as it stands in them."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from raveval.comparison import compare
from raveval.lm_eval.importing import Imported, import_runs


@pytest.fixture(scope="module")
def runs(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Imported]:
    return import_runs([shared_data / "pythia_evals"], tmp_path_factory.mktemp("pythia"))


def read(run: Imported) -> dict[str, Any]:
    """Return the file that a run was imported from."""
    _, path = str(run.results.settings["imported"]).split(": ", 1)
    content: dict[str, Any] = json.loads(Path(path).read_text("utf-8"))
    return content


def test_every_value_and_standard_error_is_the_files(runs: list[Imported]) -> None:
    assert len(runs) == 32
    n_values = 0
    for run in runs:
        results = read(run)["results"]
        assert set(run.results.tasks) == set(results)
        for task, numbers in results.items():
            found = run.results.tasks[task].metrics
            assert set(found) == {name for name in numbers if not name.endswith("_stderr")}
            for name, estimate in found.items():
                assert (estimate.value, estimate.stderr) == (
                    numbers[name],
                    numbers[f"{name}_stderr"],
                )
                n_values += 1
    assert n_values == 4800


def test_how_many_examples_there_were_follows_from_the_errors(runs: list[Imported]) -> None:
    sizes = {(name, t.coverage.n_scored) for run in runs for name, t in run.results.tasks.items()}
    assert len(sizes) == len({name for name, _ in sizes}), "a task has one size in all files"
    known = {"sciq": 1000, "wsc": 104, "arc_easy": 2376, "piqa": 1838, "lambada_openai": 5153}
    assert {(name, n) for name, n in sizes if name in known} == set(known.items())
    for run in runs:
        for task in run.results.tasks.values():
            assert {estimate.n for estimate in task.metrics.values()} == {task.coverage.n_scored}


def test_units_and_intervals(runs: list[Imported]) -> None:
    units = {
        (name, estimate.unit)
        for run in runs
        for task in run.results.tasks.values()
        for name, estimate in task.metrics.items()
    }
    assert units == {
        *((name, "fraction") for name in ("acc", "acc_norm", "pct_stereotype")),
        ("ppl", "perplexity"),
        ("likelihood_difference", "unknown"),
    }
    for run in runs:
        for task in run.results.tasks.values():
            for estimate in task.metrics.values():
                assert estimate.interval == "wald95"
                assert estimate.low is not None
                assert estimate.high is not None
                assert estimate.value is not None
                assert estimate.low <= estimate.value <= estimate.high


def test_models_shots_and_steps_order_a_sweep(runs: list[Imported]) -> None:
    assert len({run.results.model for run in runs}) == 16
    assert all(run.results.model.startswith("EleutherAI/pythia-v1.1-") for run in runs)
    assert {run.results.settings["step"] for run in runs} == {143000}
    assert {run.results.settings["revision"] for run in runs} == {"step143000"}
    for run in runs:
        shots = {task.num_fewshot for task in run.results.tasks.values()}
        assert shots == ({5} if "five-shot" in Path(run.directory).name else {0})
    assert len({Path(run.directory).name for run in runs}) == 32


def test_a_difference_of_two_is_that_of_their_errors(runs: list[Imported]) -> None:
    by_name = {Path(run.directory).name: run for run in runs}
    small = by_name["pythia-70m__zero-shot__70m_step143000"]
    large = by_name["pythia-12b__zero-shot__12b_step143000"]
    comparison = compare([small.directory, large.directory], tasks=["piqa"])
    d = next(each for each in comparison.differences if each.metric == "acc")
    a, b = (run.results.tasks["piqa"].metrics["acc"] for run in (small, large))
    assert a.value is not None
    assert b.value is not None
    assert (d.baseline, d.value, d.difference) == (a.value, b.value, b.value - a.value)
    assert d.stderr == math.hypot(a.stderr or 0, b.stderr or 0)
    assert (d.test, d.interval, d.verdict) == ("unpaired-z", "unpaired-wald95", "better")
