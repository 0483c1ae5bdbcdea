"""Sending runs to trackers: what is sent, and to the real clients where they are installed."""

import json
import math
from pathlib import Path

import pytest

from raveval import trackers
from raveval.errors import ConfigError, DataError, RunError
from raveval.types import Coverage, Estimate, Results, TaskResults, Usage
from tests.finished_runs import finish


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "first"
    finish(path, ["demo_choice", "demo_qa"])
    return path


def results() -> Results:
    metrics = {
        "accuracy": Estimate(0.5, "fraction", 10, low=0.2, high=0.8),
        "exact_match,strict-match": Estimate(0.25, "fraction", 10),
        "acc,none": Estimate(0.5, "fraction", 10),
        "pearson": Estimate(None, "correlation", 0, reason="n<2"),
    }
    macro = {"accuracy": Estimate(0.4, "fraction", 2)}
    coverage = Coverage({"ok": 10, "failed": 2})
    task = TaskResults(metrics, coverage, Usage(), "multiple_choice", 5, 1, macro=macro)
    return Results("org/m", {"t": task}, {}, {"seed": 1, "loaded": [{"a": 1}], "x": {"y": "z"}})


def test_numbers_have_intervals_and_coverage_and_nothing_undefined() -> None:
    assert dict(trackers.numbers(results())) == {
        "t/n_scored": 10,
        "t/n_attempted": 12,
        "t/accuracy": 0.5,
        "t/accuracy_low": 0.2,
        "t/accuracy_high": 0.8,
        "t/acc": 0.5,
        "t/exact_match.strict-match": 0.25,
        "t/macro_accuracy": 0.4,
    }


def test_settings_are_flat() -> None:
    manifest = {"config": {"evaluate": {"engine": {"name": "vllm"}, "judge": None}}}
    found = trackers.settings(results(), manifest)
    expected = {"model": "org/m", "engine.name": "vllm", "seed": 1, "x.y": "z", "num_fewshot.t": 5}
    assert found == expected


@pytest.mark.parametrize(
    ("settings", "model", "expected"),
    [
        ({}, {"revision": "step3000"}, 3000),
        ({"step": 7, "revision": "step3000"}, {}, 7),
        ({}, {"path": "x"}, None),
    ],
)
def test_the_step_is_that_of_training(settings, model, expected) -> None:
    found = Results("org/m", {}, {}, settings)
    manifest = {"config": {"evaluate": {"model": model}}}
    assert trackers.step(found, manifest) == expected


def test_refusals(run, tmp_path, monkeypatch) -> None:
    with pytest.raises(ConfigError, match="wandb: projet: unknown option; did you mean 'project'"):
        trackers.send(run, "wandb", {"projet": "x"})
    with pytest.raises(DataError, match="no run of raveval here"):
        trackers.send(tmp_path, "wandb", {})
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(
        ConfigError, match=r"wandb is not installed .* pip install 'raveval\[wandb\]'"
    ):
        trackers.send(run, "wandb", {})


@pytest.mark.filterwarnings("default")  # of the client's own
def test_mlflow_has_the_runs_numbers(run, tmp_path, monkeypatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    uri = f"file://{tmp_path / 'mlruns'}"
    options = {"tracking_uri": uri, "experiment": "evals"}
    assert trackers.send(run, "mlflow", options).startswith("mlflow: experiment 'evals', run ")
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("evals")
    (found,) = client.search_runs([experiment.experiment_id])
    expected = json.loads((run / "results.json").read_text())["tasks"]["demo_choice"]["metrics"]
    for name, estimate in expected.items():
        key = f"demo_choice/{name}"
        assert found.data.metrics[key] == estimate["value"]
        if estimate["low"] is not None:
            assert found.data.metrics[f"{key}_low"] == estimate["low"]
    assert {m.step for m in client.get_metric_history(found.info.run_id, "demo_qa/f1")} == {1000}
    assert found.data.params["model"] == "org/scripted"
    assert {each.path for each in client.list_artifacts(found.info.run_id)} == {
        *("results.json", "run.json")
    }
    assert (found.info.status, found.info.run_name) == ("FINISHED", "first")
    with pytest.raises(RunError, match="mlflow: "):
        trackers.send(run, "mlflow", {"tracking_uri": "nonsense://x"})


@pytest.mark.filterwarnings("default")
def test_wandb_has_the_runs_numbers(run, tmp_path, monkeypatch) -> None:
    wandb = pytest.importorskip("wandb")
    sent: dict[str, float] = {}
    log = wandb.sdk.wandb_run.Run.log

    def heard(self, data, *args, **kwargs):
        sent.update(data)
        assert kwargs["step"] == 1000
        return log(self, data, *args, **kwargs)

    monkeypatch.setattr(wandb.sdk.wandb_run.Run, "log", heard)
    trackers.send(run, "wandb", {"mode": "offline", "dir": str(tmp_path), "project": "evals"})
    assert math.isfinite(sent["demo_choice/accuracy"])
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    assert list(folder.glob("run-*.wandb")), "what `wandb sync` sends"
