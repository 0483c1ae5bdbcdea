"""What stands in results_<date>.json, for lm-eval's table printer and users' scripts.

What raveval knows and lm-eval has no place for (statuses, intervals, why a number is undefined,
which group a subtask is) stands under the key "raveval". What lm-eval records and raveval does not
know is null.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, NamedTuple

import raveval
from raveval.lm_eval.conventions import (
    NOT_AVAILABLE,
    RAVEVAL,
    joined,
    model_folder,
    split,
    text_hash,
)
from raveval.lm_eval.finished import FinishedRun, FinishedTask
from raveval.types import Estimate, Status

ENGINES: Mapping[str, str] = {"transformers": "hf"}
"""Engines that lm-eval calls otherwise."""


class Entry(NamedTuple):
    """A task, or a group of one: what `results` has a key for."""

    name: str
    task: FinishedTask
    estimates: Mapping[str, Estimate]
    group: str | None = None


def entries_of(run: FinishedRun) -> list[Entry]:
    """Return the tasks of a run, each followed by its groups; their names are unique."""
    entries: list[Entry] = []
    for task in run.tasks:
        entries.append(Entry(task.name, task, task.estimates()))
        for group in task.results.groups:
            name = f"{task.name}_{re.sub(r'[^0-9A-Za-z_]+', '_', group)}"
            entries.append(Entry(name, task, task.group_estimates(group), group))
    return _with_unique_names(entries)


def _with_unique_names(entries: Sequence[Entry]) -> list[Entry]:
    """Number the groups whose names would be another's; a task keeps its own."""
    taken = {entry.name for entry in entries if entry.group is None}
    found = []
    for entry in entries:
        name, number = entry.name, 1
        while entry.group is not None and name in taken:
            number += 1
            name = f"{entry.name}_{number}"
        taken.add(name)
        found.append(entry._replace(name=name))
    return found


def content(
    run: FinishedRun, entries: Sequence[Entry], task_hashes: Mapping[str, str]
) -> dict[str, Any]:
    """Return the content of the file; `task_hashes` are those of the samples that were written."""
    tasks = [entry for entry in entries if entry.group is None]
    subtasks = {
        parent.name: [e.name for e in entries if e.group is not None and e.task is parent.task]
        for parent in tasks
    }
    grouped = {name: children for name, children in subtasks.items() if children}
    results = {entry.name: _metrics(entry) for entry in entries}
    return {
        "results": results,
        **({"groups": {name: results[name] for name in grouped}} if grouped else {}),
        "group_subtasks": subtasks,
        "configs": {entry.name: _task_config(run, entry) for entry in entries},
        "versions": {entry.name: entry.task.results.version for entry in entries},
        "n-shot": {entry.name: entry.task.results.num_fewshot for entry in entries},
        "higher_is_better": {entry.name: _directions(entry) for entry in entries},
        "n-samples": {
            entry.name: {"original": _n_original(entry), "effective": _n_scored(entry)}
            for entry in entries
        },
        **_about_the_run(run),
        "task_hashes": dict(task_hashes),
        RAVEVAL: {
            "version": raveval.__version__,
            "tasks": {entry.name: _ours(entry) for entry in entries},
        },
    }


def _metrics(entry: Entry) -> dict[str, Any]:
    found: dict[str, Any] = {"alias": entry.name, "sample_len": _n_scored(entry)}
    for name, estimate in entry.estimates.items():
        key = joined(name)
        found[key] = _number(estimate.value)
        found[split(key).stderr_key] = _number(estimate.stderr)
    return found


def _number(value: float | None) -> float | str:
    return NOT_AVAILABLE if value is None else float(value)


def _directions(entry: Entry) -> dict[str, bool | None]:
    return {name: estimate.higher_is_better for name, estimate in entry.estimates.items()}


def _n_scored(entry: Entry) -> int:
    if entry.group is None:
        return entry.task.results.coverage.n_scored
    records = entry.task.records
    pairs = zip(records["group"].to_pylist(), records["status"].to_pylist(), strict=True)
    return sum(group == entry.group and Status(status).is_scored for group, status in pairs)


def _n_original(entry: Entry) -> int | None:
    """Return how many examples there are; None where a limit hides how many there would be."""
    limit = entry.task.results.source.get("limit")
    n_attempted: int = entry.task.results.coverage.n_attempted
    if limit is not None and int(limit) <= n_attempted:
        return None
    if entry.group is None:
        return n_attempted
    groups: list[str | None] = entry.task.records["group"].to_pylist()
    return groups.count(entry.group)


def _task_config(run: FinishedRun, entry: Entry) -> dict[str, Any]:
    task = entry.task
    source = task.results.source.get("examples")
    return {
        "task": entry.name,
        **({} if entry.group is None else {"group": task.name}),
        "dataset_path": source,
        "output_type": task.output_type or task.results.protocol,
        "target_delimiter": " ",
        "metric_list": [
            {
                "metric": term.name,
                "aggregation": "mean" if term.estimate not in _AGGREGATIONS else term.name,
                "higher_is_better": entry.estimates[term.name].higher_is_better,
            }
            for term in task.terms
        ],
        "num_fewshot": task.results.num_fewshot,
        "repeats": 1,
        **({"generation_kwargs": generation(task)} if task.output_type == "generate_until" else {}),
        "metadata": {"version": task.results.version},
    }


_AGGREGATIONS = ("word_perplexity", "byte_perplexity", "bits_per_byte")


def generation(task: FinishedTask) -> dict[str, Any]:
    """Return how a task's answers were generated, in lm-eval's words."""
    sampling = task.entry["settings"]["sampling"]
    return {
        "until": list(sampling["stop"]),
        "max_gen_toks": sampling["max_output_tokens"],
        "do_sample": sampling["temperature"] > 0,
        "temperature": sampling["temperature"],
        "top_p": sampling["top_p"],
        "repetition_penalty": sampling["repetition_penalty"],
    }


def _about_the_run(run: FinishedRun) -> dict[str, Any]:
    evaluate = run.manifest["config"]["evaluate"]
    model = run.results.model
    engine = ENGINES.get(evaluate["engine"]["name"], evaluate["engine"]["name"])
    arguments = {"pretrained": model, **_model_arguments(run, engine)}
    started, finished = moments(run)
    instruction = evaluate.get("system_prompt")
    limits = {task.results.source.get("limit") for task in run.tasks}
    limit = limits.pop() if len(limits) == 1 else None
    return {
        "config": {
            "model": engine,
            "model_args": ",".join(f"{key}={value}" for key, value in arguments.items()),
            "model_dtype": arguments.get("dtype"),
            "model_revision": arguments.get("revision"),
            "batch_size": None,
            "batch_sizes": [],
            "device": None,
            "use_cache": None,
            "limit": None if limit is None else int(limit),
            "bootstrap_iters": 0,
            "gen_kwargs": None,
            "random_seed": None,
            "numpy_seed": None,
            "torch_seed": None,
            "fewshot_seed": evaluate["seed"],
        },
        "git_hash": None,
        "date": started.timestamp(),
        "pretty_env_info": None,
        "transformers_version": None,
        "lm_eval_version": None,
        "upper_git_hash": None,
        "model_source": engine,
        "model_name": model,
        "model_name_sanitized": model_folder(model),
        "system_instruction": instruction,
        "system_instruction_sha": None if instruction is None else text_hash(instruction),
        "fewshot_as_multiturn": evaluate.get("fewshot_as_multiturn"),
        "chat_template": None,
        "chat_template_sha": None,
        "start_time": started.timestamp(),
        "end_time": finished.timestamp(),
        "total_evaluation_time_seconds": str((finished - started).total_seconds()),
    }


def _model_arguments(run: FinishedRun, engine: str) -> Mapping[str, Any]:
    """Return what was said of the model beside its name; of an adapter as lm-eval's engines do."""
    model = run.manifest["config"]["evaluate"]["model"]
    keys = ("revision", "dtype", "max_model_len")
    found = {key: model[key] for key in keys if model.get(key) is not None}
    base, _, adapter = run.results.model.partition(" + ")
    if adapter and model.get("adapter"):
        key = "lora_local_path" if engine == "vllm" else "peft"
        found |= {"pretrained": base, key: adapter}
    return found


class Moments(NamedTuple):
    """When a run began and ended."""

    started: datetime
    finished: datetime


def moments(run: FinishedRun) -> Moments:
    """Return when a run began and ended; the latter names the files."""
    started = str(run.results.times["started"])
    finished = str(run.results.times.get("finished") or started)
    return Moments(datetime.fromisoformat(started), datetime.fromisoformat(finished))


def _ours(entry: Entry) -> dict[str, Any]:
    """Return what lm-eval has no place for."""
    task = entry.task
    found: dict[str, Any] = {
        "protocol": task.results.protocol,
        "estimates": {name: _rest(estimate) for name, estimate in entry.estimates.items()},
    }
    if entry.group is not None:
        return {**found, "task": task.name, "group": entry.group}
    return {
        **found,
        "version": task.results.version,
        "metrics": task.metrics,
        "scoring": task.entry["settings"].get("scoring"),
        "by_status": dict(task.results.coverage.by_status),
        "notes": dict(task.results.notes),
        "source": dict(task.results.source),
        "missing": dict(_missing(task)),
    }


def _rest(estimate: Estimate) -> dict[str, Any]:
    """Return what there is of an estimate beside value and standard error."""
    content = asdict(estimate)
    return {key: content[key] for key in content if key not in ("value", "stderr")}


def _missing(task: FinishedTask) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the examples without a number, which no samples file has a row for."""
    columns = [*("id", "status", "message", "group", "cluster")]
    for row in task.records.select(columns).to_pylist():
        if not Status(row["status"]).is_scored:
            yield row.pop("id"), row
