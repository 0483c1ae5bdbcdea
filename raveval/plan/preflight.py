"""Refuses what cannot become a run, before data is read or a model is loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

import pyarrow as pa

from raveval import registry, tasks
from raveval.config import EvaluateConfig, RunConfig, TaskConfig
from raveval.errors import (
    ConfigError,
    MismatchError,
    RavevalError,
    Refused,
    ResourceError,
    nearest,
    raised_at,
)
from raveval.evaluate import graded, load_metric, load_protocol
from raveval.protocols import EvaluationProtocol, schema
from raveval.store import LAYOUT, RunDirectory


def check_metrics(task: str, metrics: Sequence[str], protocol: EvaluationProtocol) -> None:
    """Refuse metrics that a task's records cannot feed, or that give two numbers one name."""
    columns = schema(protocol.COLUMNS).names
    for name in metrics:
        lacking = [column for column in load_metric(name).needs if column not in columns]
        if lacking:
            raise ConfigError(
                f"task {task!r}: metric {name!r} needs the column {lacking[0]!r}, which its "
                f"protocol does not record; {_fitting(name, lacking[0], columns)}"
            )
        if "." in name:
            _rehearse(task, name, schema(protocol.COLUMNS).empty_table())
    _check_estimates(task, metrics)


def _fitting(name: str, lacking: str, columns: Sequence[str]) -> str:
    """Say which protocols a metric is for, and which metrics records of `columns` can feed.

    A metric of one's own may have misspelt a column instead.
    """
    metrics = (other for other in registry.names("metrics") if _feeds(columns, other))
    own = f"metrics for this protocol: {', '.join(metrics)}"
    if "." in name:
        return f"{nearest(lacking, columns)} ({own})"
    protocols = (
        protocol
        for protocol in registry.names("protocols")
        if _feeds(schema(load_protocol(protocol).COLUMNS).names, name)
    )
    return f"it is for {', '.join(protocols) or 'predictions you already have'}; {own}"


def _feeds(columns: Sequence[str], metric: str) -> bool:
    return set(load_metric(metric).needs) <= set(columns)


def _rehearse(task: str, name: str, nothing: pa.Table) -> None:
    """Refuse a metric of one's own that cannot go from no records to its estimates."""
    metric = load_metric(name)
    try:
        state = metric.merge(metric.init(), metric.update(metric.init(), nothing))
        stored = json.loads(json.dumps(metric.encode(state)))
        metric.compute(metric.decode(stored))
        metric.notes(state)
        added = sorted(metric.contributions(nothing))
    except Exception as exc:
        why = str(exc) if isinstance(exc, RavevalError) else raised_at(exc)
        raise ConfigError(
            f"task {task!r}: metric {name!r} fails before there is a record: {why}"
        ) from exc
    if added != sorted(metric.ratios):
        raise ConfigError(
            f"task {task!r}: metric {name!r}: its contributions are of {added}, its ratios are "
            f"{sorted(metric.ratios)}"
        )


def _check_estimates(task: str, metrics: Sequence[str]) -> None:
    """Refuse metrics that would report two numbers under one name."""
    family_of: dict[str, str] = {}
    for family in dict.fromkeys(metrics):
        metric = load_metric(family)
        for name in metric.compute(metric.init()):
            if name in family_of:
                raise ConfigError(
                    f"task {task!r}: metrics {family_of[name]!r} and {family!r} both give an "
                    f"estimate {name!r}; take one of them, or two tasks of other names"
                )
            family_of[name] = family


def check_names(entries: Sequence[TaskConfig]) -> None:
    """Refuse two tasks of one name before their data is read."""
    seen: set[str] = set()
    for entry in entries:
        name = entry.name or tasks.load_task(entry.task).name
        if name in seen:
            raise ConfigError(
                f"evaluate.tasks: {name!r} stands twice; give one of them another `name`"
            )
        seen.add(name)


def check_judge(evaluate: EvaluateConfig) -> None:
    """Refuse answers that nobody would grade, and a judge or a baseline that no task needs."""
    names = [entry.name or entry.task for entry in evaluate.tasks if _is_graded(entry)]
    if names and evaluate.judge is None:
        raise ConfigError(
            f"task {names[0]!r}: a judge grades its answers, and none is given. Set evaluate.judge "
            "(or --judge) to a model: `demo`, a directory or a hub id, or {model: …, engine: …}"
        )
    for key in ("judge", "baseline"):
        if getattr(evaluate, key) is not None and not names:
            raise ConfigError(
                f"evaluate.{key}: no task of this run is graded by a judge; leave it out"
            )


def _is_graded(entry: TaskConfig) -> bool:
    return graded(load_protocol(tasks.load_task(entry.task).protocol)) is not None


def check_local_resources(config: RunConfig) -> None:
    """Refuse what this machine cannot hold; a cluster is asked once it is connected to."""
    run = config.run
    if run.address is not None or "RAY_ADDRESS" in os.environ:
        return
    available = len(os.sched_getaffinity(0))
    for key, section in (("run", run), ("run.judge", run.judge)):
        wanted = section.replicas * (section.cpus_per_replica or 1)
        if wanted > available:
            raise ResourceError(
                f"{key}.replicas: {section.replicas} replicas of "
                f"{section.cpus_per_replica or 1:g} CPUs need {wanted:g}; this machine has "
                f"{available}. Ask for fewer, or name a cluster with run.address"
            )


def check_output(directory: RunDirectory) -> None:
    """Refuse an output that cannot be a run directory, without creating it."""
    try:
        directory.check()
    except Refused as exc:
        raise Refused(f"run.output: {exc}") from exc
    names = set(directory.names())
    foreign = names - LAYOUT
    if foreign and "run.json" not in names:
        raise MismatchError(
            f"run.output: {directory.path} holds files but no run of raveval ({min(foreign)}); "
            "choose an empty directory"
        )
