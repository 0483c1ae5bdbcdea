"""The lm-eval files of sixteen Pythia models become runs: every number as it stands in them."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import raveval
from raveval.cli import app
from raveval.comparison import compare
from raveval.lm_eval.importing import Imported, import_runs
from raveval.sweep import State


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
        assert shots == ({5} if Path(run.directory).parent.name == "5-shot" else {0})
    assert len({run.directory for run in runs}) == 32
    names = {Path(run.directory).name for run in runs}
    assert len(names) == 16
    assert "pythia-1b-bf16" in names


def test_a_difference_of_two_is_that_of_their_errors(runs: list[Imported]) -> None:
    by_name = {(Path(run.directory).parent.name, Path(run.directory).name): run for run in runs}
    small, large = by_name["0-shot", "pythia-70m"], by_name["0-shot", "pythia-12b"]
    comparison = compare([small.directory, large.directory], tasks=["piqa"])
    d = next(each for each in comparison.differences if each.metric == "acc")
    a, b = (run.results.tasks["piqa"].metrics["acc"] for run in (small, large))
    assert a.value is not None
    assert b.value is not None
    assert (d.baseline, d.value, d.difference) == (a.value, b.value, b.value - a.value)
    assert d.stderr == math.hypot(a.stderr or 0, b.stderr or 0)
    assert (d.test, d.interval, d.verdict) == ("unpaired-z", "unpaired-wald95", "better")


def test_several_are_drawn_together(shared_data: Path, tmp_path: Path) -> None:
    models = ("pythia-12b", "pythia-70m", "pythia-1.4b")
    folders = [str(shared_data / "pythia_evals" / name / "five-shot") for name in models]
    shown = CliRunner().invoke(app, ["import", *folders, "-o", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.splitlines()[-1] == f"report:  {tmp_path / 'report.html'}"
    found = raveval.load_sweep_results(tmp_path)
    assert [each.name for each in found.checkpoints] == ["pythia-70m", "pythia-1.4b", "pythia-12b"]
    assert {each.state for each in found.checkpoints} == {State.IMPORTED}
    assert found.is_complete
    assert not found.from_previous, "no step tells them apart"
    assert not found.remarks
    assert found.best["arc_easy"] == ("pythia-12b",)
    assert {(d.test, d.interval) for d in found.from_best} == {("unpaired-z", "unpaired-wald95")}
    tested = [d for d in found.from_best if d.p is not None]
    assert len(tested) == 130
    assert all(d.p_holm is not None and d.p is not None and d.p_holm >= d.p for d in tested)
    d = next(d for d in tested if (d.task, d.run) == ("arc_easy", "pythia-70m"))
    numbers = {
        each.name: each.results.tasks["arc_easy"] for each in found.checkpoints if each.results
    }
    small, large = (numbers[name].metrics["acc"] for name in ("pythia-70m", "pythia-12b"))
    assert (d.baseline, d.value) == (large.value, small.value)
    assert d.verdict == "worse"
    page = (tmp_path / "report.html").read_text()
    assert "could not be drawn" not in page
    assert "training step 143000" in page
    assert "by an unpaired test" in page
    assert "Drawn are the 40 with the smallest p of 130." in page
    assert "53 more figures" in page
    assert "| arc_easy | acc |" in (tmp_path / "report.md").read_text()
