"""Sends the numbers of a finished run to a tracker of experiments: MLflow or Weights & Biases.

One run of the tracker for one run directory: each estimate as `task/metric` with `task/metric_low`
and `_high` where it has an interval, `task/n_scored` and `task/n_attempted`, the settings as
parameters, and results.json, report.md and run.json as files. What is undefined is not sent; the
files say why. Where the model's name or revision holds a step of training, it is the step of every
number, so that the runs of a sweep make a curve.

Their libraries are imported only here, and only when asked for.
"""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

from raveval import runner
from raveval.errors import ConfigError, RunError, nearest
from raveval.lm_eval.conventions import canonical, training_step
from raveval.store import RunDirectory
from raveval.types import Results

FILES = ("results.json", "report.md", "run.json")
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "mlflow": ("tracking_uri", "experiment", "name"),
    "wandb": ("project", "entity", "name", "group", "job_type", "notes", "mode", "dir"),
}
"""What may be said of each tracker."""

_AT_ONCE = 500
_NO_NAME = re.compile(r"[^\w\-. :/]+")


def send(directory: str | Path, tracker: str, options: Mapping[str, Any]) -> str:
    """Send a run to a tracker, and return where it can be seen there.

    Args:
        directory: the run directory.
        tracker: "mlflow" or "wandb".
        options: some of `OPTIONS`; the tracker's own environment variables hold otherwise.

    Raises:
        ConfigError: an unknown option, or a tracker whose library is not installed.
        DataError: no finished run there.
        RunError: the tracker refused it, or is not to be reached.
    """
    for name in options:
        if name not in OPTIONS[tracker]:
            raise ConfigError(
                f"{tracker}: {name}: unknown option; {nearest(name, OPTIONS[tracker])}"
            )
    results = runner.load_results(directory)
    library = _library(tracker)
    send_to, error = _TRACKERS[tracker]
    try:
        return send_to(library, RunDirectory(directory), results, dict(options))
    except _class(error) as exc:
        raise RunError(f"{tracker}: {exc}") from exc


def _class(name: str) -> type[Exception]:
    module, _, attribute = name.rpartition(".")
    found: type[Exception] = getattr(importlib.import_module(module), attribute)
    return found


def _library(tracker: str) -> ModuleType:
    try:
        return importlib.import_module(tracker)
    except ImportError as exc:
        raise ConfigError(
            f"{tracker} is not installed ({exc}): pip install 'raveval[{tracker}]'"
        ) from exc


def numbers(results: Results) -> Iterator[tuple[str, float]]:
    """Yield the name and value of each number that a tracker is sent."""
    for task, found in results.tasks.items():
        yield f"{task}/n_scored", found.coverage.n_scored
        yield f"{task}/n_attempted", found.coverage.n_attempted
        macro = {f"macro_{name}": estimate for name, estimate in found.macro.items()}
        for name, estimate in {**found.metrics, **macro}.items():
            key = f"{task}/{_NO_NAME.sub('.', canonical(name))}"
            parts = {key: estimate.value, f"{key}_low": estimate.low, f"{key}_high": estimate.high}
            yield from ((part, value) for part, value in parts.items() if value is not None)


def settings(results: Results, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run was asked, flat, by dotted names."""
    config = manifest.get("config", {}).get("evaluate", {})
    shots = {f"num_fewshot.{name}": task.num_fewshot for name, task in results.tasks.items()}
    prints = {f"fingerprint.{task}": each["score"] for task, each in results.fingerprints.items()}
    flat = {"model": results.model, **dict(_flat(config)), **dict(_flat(results.settings))}
    return {key: value for key, value in {**flat, **shots, **prints}.items() if value is not None}


def _flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, str | int | float):
            yield f"{prefix}{key}", value


def step(results: Results, manifest: Mapping[str, Any]) -> int | None:
    """Return the step of training at which the model was saved, where a name holds it."""
    model = manifest.get("config", {}).get("evaluate", {}).get("model") or {}
    revision = results.settings.get("revision") or model.get("revision")
    known = results.settings.get("step")
    return known if isinstance(known, int) else training_step(str(revision or ""), results.model)


def _to_mlflow(
    mlflow: ModuleType, directory: RunDirectory, results: Results, options: Mapping[str, Any]
) -> str:
    manifest = directory.read_manifest() or {}
    client = mlflow.MlflowClient(tracking_uri=options.get("tracking_uri"))
    name = str(options.get("experiment", "Default"))
    experiment = client.get_experiment_by_name(name)
    id = client.create_experiment(name) if experiment is None else experiment.experiment_id
    run = client.create_run(id, run_name=str(options.get("name", directory.name)))
    run_id = run.info.run_id
    now, at = int(time.time() * 1000), step(results, manifest) or 0
    entities = importlib.import_module("mlflow.entities")
    metrics = (entities.Metric(key, float(value), now, at) for key, value in numbers(results))
    while batch := list(islice(metrics, _AT_ONCE)):
        client.log_batch(run_id, metrics=batch)
    parameters = iter(settings(results, manifest).items())
    while some := [
        entities.Param(_NO_NAME.sub(".", key), str(value)[:500])
        for key, value in islice(parameters, 100)
    ]:
        client.log_batch(run_id, params=some)
    with directory.copies(FILES) as files:
        for path in files:
            client.log_artifact(run_id, str(path))
    client.set_terminated(run_id)
    return f"mlflow: experiment {name!r}, run {run_id}"


def _to_wandb(
    wandb: ModuleType, directory: RunDirectory, results: Results, options: Mapping[str, Any]
) -> str:
    manifest = directory.read_manifest() or {}
    run = wandb.init(
        **{"project": "raveval", "name": directory.name, "job_type": "evaluation", **options},
        config=settings(results, manifest),
    )
    run.log(dict(numbers(results)), step=step(results, manifest))
    artifact = wandb.Artifact(re.sub(r"[^\w.-]+", "_", directory.name), type="eval_results")
    with directory.copies(FILES) as files:
        for path in files:
            artifact.add_file(str(path))
        run.log_artifact(artifact)
        where = run.url or run.dir
        run.finish()
    return f"wandb: {where}"


_Send = Callable[[ModuleType, RunDirectory, Results, Mapping[str, Any]], str]
_TRACKERS: Mapping[str, tuple[_Send, str]] = {
    "mlflow": (_to_mlflow, "mlflow.exceptions.MlflowException"),
    "wandb": (_to_wandb, "wandb.errors.Error"),
}
"""How each is sent to, and what its library raises."""
