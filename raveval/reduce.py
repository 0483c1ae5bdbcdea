"""Merges the receipts of a run into its results.

Receipts on disk are the only source, so a resumed run and an uninterrupted one give the same bits.
Before anything is computed, rows and row keys are checked against the plan: a lost or doubled row
cannot hide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raveval.errors import DataError
from raveval.evaluate import POOLED, ShardStates, Stage, load_metric
from raveval.metrics import Tabular
from raveval.metrics._averages import macro_averages
from raveval.metrics._merging import merged
from raveval.store import Receipt, RunDirectory, shards_of
from raveval.types import (
    CountTable,
    Coverage,
    Estimate,
    Results,
    Status,
    TaskResults,
    Usage,
)

_SHOWN_FAILURES = 20
_SHOWN_LOST = 5


def reduce_run(directory: RunDirectory, manifest: Mapping[str, Any]) -> Results:
    """Return the results of a finished run.

    Raises:
        DataError: a shard is not done, or its rows are not those of the plan.
    """
    receipts = {
        name: _receipts(directory, name, entry) for name, entry in manifest["tasks"].items()
    }
    done = [receipt for each in receipts.values() for receipt in each]
    evaluate = manifest["config"]["evaluate"]
    return Results(
        model=manifest["model"],
        tasks={
            name: _task_results(directory, manifest["tasks"][name], each)
            for name, each in receipts.items()
        },
        fingerprints={
            name: {"reply": entry["reply_fingerprint"], "score": entry["score_fingerprint"]}
            for name, entry in manifest["tasks"].items()
        },
        settings={
            "seed": evaluate["seed"],
            "chat": evaluate["chat"],
            "engine": evaluate["engine"]["name"],
            "loaded": _distinct(receipt.engine for receipt in done),
            **_judge_settings(manifest, done),
        },
        times={
            "started": manifest["started"],
            "finished": manifest.get("finished"),
            **_load_seconds(directory),
            **_lost_replicas(directory),
        },
    )


def reduce_task(directory: RunDirectory, name: str, entry: Mapping[str, Any]) -> TaskResults:
    """Return the numbers of one task; `entry` is what run.json says of it.

    Raises:
        DataError: a shard is not done, or its rows are not those of the plan.
    """
    return _task_results(directory, entry, _receipts(directory, name, entry))


def _receipts(directory: RunDirectory, name: str, entry: Mapping[str, Any]) -> list[Receipt]:
    receipts: list[Receipt] = []
    shards = shards_of(name, entry["n_examples"], entry["shard_size"])
    found = directory.over(shards, directory.read_receipt)
    for shard, receipt in zip(shards, found, strict=True):
        if receipt is None or receipt.shard != shard:
            raise DataError(
                f"{directory.path}: shard {shard.index} of task {name!r} is not done; run the "
                "same command again to finish it"
            )
        if receipt.score_fingerprint != entry["score_fingerprint"]:
            raise DataError(
                f"{directory.path}: shard {shard.index} of task {name!r} was scored under other "
                f"settings; `raveval score {directory.path}` scores the stored replies again"
            )
        receipts.append(receipt)
    n_rows = sum(receipt.states.n_rows for receipt in receipts)
    key_sum = sum(receipt.states.row_key_sum for receipt in receipts) % 2**64
    if (n_rows, key_sum) != (entry["n_examples"], entry["row_key_sum"]):
        raise DataError(
            f"{directory.path}: task {name!r} has {n_rows} rows of {entry['n_examples']} planned, "
            f"row keys sum to {key_sum}, planned {entry['row_key_sum']}: a row was lost or "
            "doubled. Delete its states/ folder and run again"
        )
    return receipts


def _task_results(
    directory: RunDirectory, entry: Mapping[str, Any], receipts: Sequence[Receipt]
) -> TaskResults:
    states = [receipt.states for receipt in receipts]
    groups = sorted({group for each in states for group in each.states} - {POOLED})
    usage, judge_usage = Usage(), None
    by_status: Counter[str] = Counter()
    tally: Counter[str] = Counter()
    for each in states:
        usage += each.usage
        if each.judge_usage is not None:
            judge_usage = (judge_usage or Usage()) + each.judge_usage
        by_status.update(each.by_status)
        tally.update(each.counts)
    states_of = {group: _merged(states, group, entry["metrics"]) for group in (POOLED, *groups)}
    by_group = {group: _estimates(states_of[group]) for group in groups}
    notes = _notes(states_of[POOLED])
    return TaskResults(
        metrics=_estimates(states_of[POOLED]),
        notes={name: count for name, count in sorted(tally.items()) if count} | notes,
        coverage=Coverage(dict(sorted(by_status.items()))),
        usage=usage,
        protocol=entry["protocol"],
        num_fewshot=entry["num_fewshot"],
        version=entry["version"],
        groups=by_group,
        macro=macro_averages(
            by_group, notes=notes, group_notes=(_notes(states_of[group]) for group in groups)
        ),
        source=entry["provenance"],
        failures=_failures(directory, receipts),
        judge_usage=judge_usage,
        tables=_tables(states_of[POOLED]),
    )


def _merged(states: Sequence[ShardStates], group: str, metrics: Sequence[str]) -> dict[str, Any]:
    """Return the state of each metric over all shards that know the group."""
    known = [each.states[group] for each in states if group in each.states]
    found = {}
    for name in metrics:
        metric = load_metric(name)
        found[name] = merged(metric, (metric.decode(encoded[name]) for encoded in known))
    return found


def _estimates(states: Mapping[str, Any]) -> dict[str, Estimate]:
    return {
        name: estimate
        for key, state in states.items()
        for name, estimate in load_metric(key).compute(state).items()
    }


def _notes(states: Mapping[str, Any]) -> dict[str, int]:
    return {
        name: count
        for key, state in states.items()
        for name, count in load_metric(key).notes(state).items()
    }


def _tables(states: Mapping[str, Any]) -> dict[str, CountTable]:
    metrics = {key: load_metric(key) for key in states}
    return {
        name: table
        for key, metric in metrics.items()
        if isinstance(metric, Tabular)
        for name, table in metric.tables(states[key]).items()
    }


def _failures(directory: RunDirectory, receipts: Sequence[Receipt]) -> dict[str, str]:
    """Return the first missing examples of a task, in its order, with what became of them.

    The first one of each kind is among them, however late it comes.
    """
    found: dict[str, str] = {}
    seen: set[str] = set()
    kinds = {str(status) for status in Status if not status.is_scored}
    for receipt in receipts:
        here = kinds & set(receipt.states.by_status)
        if not here or (len(found) >= _SHOWN_FAILURES and here <= seen):
            continue
        records = directory.read_records(receipt.shard).select(["id", "status", "message"])
        for row in records.filter(pc.is_in(records["status"], pa.array(sorted(here)))).to_pylist():
            if len(found) < _SHOWN_FAILURES or row["status"] not in seen:
                found[row["id"]] = f"{row['status']}: {row['message']}"
                seen.add(row["status"])
    return found


def _load_seconds(directory: RunDirectory) -> dict[str, list[float]]:
    """Return how long each replica took to load its model, oldest first."""
    names = {str(Stage.ANSWER): "load_seconds", str(Stage.GRADE): "judge_load_seconds"}
    found: dict[str, list[float]] = {}
    for loaded in directory.worker_reports():
        name = names[loaded.get("stage", str(Stage.ANSWER))]
        found.setdefault(name, []).append(round(loaded["load_seconds"], 1))
    return found


def _lost_replicas(directory: RunDirectory) -> dict[str, list[str]]:
    """Return how the last replicas were lost that died or could not start; nothing without any."""
    lost = [each.in_words() for each in directory.lost().values()]
    return {"replicas_lost": lost[-_SHOWN_LOST:]} if lost else {}


def _judge_settings(manifest: Mapping[str, Any], receipts: Sequence[Receipt]) -> dict[str, object]:
    """Return by what the answers were graded; nothing where none were."""
    if manifest.get("judge") is None:
        return {}
    evaluate = manifest["config"]["evaluate"]
    loaded = _distinct(receipt.judge for receipt in receipts if receipt.judge is not None)
    return {
        "judge": {
            "model": manifest["judge"],
            "engine": evaluate["judge"]["engine"]["name"],
            "loaded": loaded,
        },
        **({} if evaluate["baseline"] is None else {"baseline": evaluate["baseline"]}),
    }


def _distinct(settings: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return what replicas loaded, each kind once, in an order that does not depend on them."""
    found = {repr(sorted(each.items(), key=lambda item: item[0])): each for each in settings}
    return [found[key] for key in sorted(found)]
