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
from raveval.evaluate import POOLED, Stage, load_metric
from raveval.metrics import Tabular
from raveval.metrics._averages import macro_averages
from raveval.metrics._merging import Merging
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
_MISSING = frozenset(str(status) for status in Status if not status.is_scored)


def reduce_run(directory: RunDirectory, manifest: Mapping[str, Any]) -> Results:
    """Return the results of a finished run.

    Raises:
        DataError: a shard is not done, or its rows are not those of the plan.
    """
    sums = {name: _summed(directory, name, entry) for name, entry in manifest["tasks"].items()}
    evaluate = manifest["config"]["evaluate"]
    return Results(
        model=manifest["model"],
        tasks={name: _task_results(manifest["tasks"][name], each) for name, each in sums.items()},
        fingerprints={
            name: {"reply": entry["reply_fingerprint"], "score": entry["score_fingerprint"]}
            for name, entry in manifest["tasks"].items()
        },
        settings={
            "seed": evaluate["seed"],
            "chat": evaluate["chat"],
            "engine": evaluate["engine"]["name"],
            "loaded": _distinct(each.engines for each in sums.values()),
            **_judge_settings(manifest, _distinct(each.judges for each in sums.values())),
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
    return _task_results(entry, _summed(directory, name, entry))


class _Sums:
    """What the receipts of a task add up to; none of them is kept.

    `engines` and `judges` are what replicas loaded, each kind once, by its content.
    """

    def __init__(self, metrics: Sequence[str]) -> None:
        self.n_rows = self.row_key_sum = 0
        self.usage = Usage()
        self.judge_usage: Usage | None = None
        self.by_status: Counter[str] = Counter()
        self.tally: Counter[str] = Counter()
        self.engines: dict[str, Mapping[str, Any]] = {}
        self.judges: dict[str, Mapping[str, Any]] = {}
        self.failures: dict[str, str] = {}
        self._seen_failures: set[str] = set()
        self._metrics = {name: load_metric(name) for name in metrics}
        self._states = {POOLED: self._empty()}

    def _empty(self) -> dict[str, Merging]:
        return {name: Merging(metric) for name, metric in self._metrics.items()}

    def add(self, receipt: Receipt) -> None:
        """Add a shard."""
        states = receipt.states
        self.n_rows += states.n_rows
        self.row_key_sum = (self.row_key_sum + states.row_key_sum) % 2**64
        self.usage += states.usage
        if states.judge_usage is not None:
            self.judge_usage = (self.judge_usage or Usage()) + states.judge_usage
        self.by_status.update(states.by_status)
        self.tally.update(states.counts)
        _note(self.engines, receipt.engine)
        if receipt.judge is not None:
            _note(self.judges, receipt.judge)
        for group, encoded in states.states.items():
            known = self._states.setdefault(group, self._empty())
            for name, metric in self._metrics.items():
                known[name].add(metric.decode(encoded[name]))

    def add_failures(self, directory: RunDirectory, receipt: Receipt) -> None:
        """Keep the first missing examples, with what became of them.

        The first one of each kind is among them, however late it comes.
        """
        found, seen = self.failures, self._seen_failures
        here = _MISSING & set(receipt.states.by_status)
        if not here or (len(found) >= _SHOWN_FAILURES and here <= seen):
            return
        records = directory.read_records(receipt.shard).select(["id", "status", "message"])
        for row in records.filter(pc.is_in(records["status"], pa.array(sorted(here)))).to_pylist():
            if len(found) < _SHOWN_FAILURES or row["status"] not in seen:
                found[row["id"]] = f"{row['status']}: {row['message']}"
                seen.add(row["status"])

    def states(self) -> dict[str, dict[str, Any]]:
        """Return the state of each metric, over all examples (`POOLED`) and by group."""
        return {
            group: {name: merging.total() for name, merging in known.items()}
            for group, known in sorted(self._states.items())
        }


def _summed(directory: RunDirectory, name: str, entry: Mapping[str, Any]) -> _Sums:
    sums = _Sums(entry["metrics"])
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
        sums.add(receipt)
        sums.add_failures(directory, receipt)
    if (sums.n_rows, sums.row_key_sum) != (entry["n_examples"], entry["row_key_sum"]):
        raise DataError(
            f"{directory.path}: task {name!r} has {sums.n_rows} rows of {entry['n_examples']} "
            f"planned, row keys sum to {sums.row_key_sum}, planned {entry['row_key_sum']}: a row "
            "was lost or doubled. Delete its states/ folder and run again"
        )
    return sums


def _task_results(entry: Mapping[str, Any], sums: _Sums) -> TaskResults:
    states = sums.states()
    pooled = states.pop(POOLED)
    by_group = {group: _estimates(each) for group, each in states.items()}
    notes = _notes(pooled)
    return TaskResults(
        metrics=_estimates(pooled),
        notes={name: count for name, count in sorted(sums.tally.items()) if count} | notes,
        coverage=Coverage(dict(sorted(sums.by_status.items()))),
        usage=sums.usage,
        protocol=entry["protocol"],
        num_fewshot=entry["num_fewshot"],
        version=entry["version"],
        groups=by_group,
        macro=macro_averages(
            by_group, notes=notes, group_notes=(_notes(each) for each in states.values())
        ),
        source=entry["provenance"],
        failures=sums.failures,
        judge_usage=sums.judge_usage,
        tables=_tables(pooled),
    )


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


def _load_seconds(directory: RunDirectory) -> dict[str, list[float]]:
    """Return how long each replica took to load its model, oldest first."""
    names = {str(Stage.ANSWER): "load_seconds", str(Stage.GRADE): "judge_load_seconds"}
    found: dict[str, list[float]] = {}
    for loaded in directory.worker_reports():
        name, seconds = (
            names.get(str(loaded.get("stage", Stage.ANSWER))),
            loaded.get("load_seconds"),
        )
        if name is not None and isinstance(seconds, int | float):  # else the file was changed
            found.setdefault(name, []).append(round(float(seconds), 1))
    return found


def _lost_replicas(directory: RunDirectory) -> dict[str, list[str]]:
    """Return how the last replicas were lost that died or could not start; nothing without any."""
    lost = [each.in_words() for each in directory.lost().values()]
    return {"replicas_lost": lost[-_SHOWN_LOST:]} if lost else {}


def _judge_settings(
    manifest: Mapping[str, Any], loaded: Sequence[Mapping[str, Any]]
) -> dict[str, object]:
    """Return by what the answers were graded; nothing where none were."""
    if manifest.get("judge") is None:
        return {}
    evaluate = manifest["config"]["evaluate"]
    return {
        "judge": {
            "model": manifest["judge"],
            "engine": evaluate["judge"]["engine"]["name"],
            "loaded": loaded,
        },
        **({} if evaluate["baseline"] is None else {"baseline": evaluate["baseline"]}),
    }


def _note(known: dict[str, Mapping[str, Any]], settings: Mapping[str, Any]) -> None:
    known[repr(sorted(settings.items(), key=lambda item: item[0]))] = settings


def _distinct(found: Iterable[Mapping[str, Mapping[str, Any]]]) -> list[Mapping[str, Any]]:
    """Return what replicas loaded, in an order that does not depend on them."""
    known = {key: settings for each in found for key, settings in each.items()}
    return [known[key] for key in sorted(known)]
