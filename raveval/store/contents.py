"""Whether what is read back is what was written: files may be torn, foreign, changed by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raveval.evaluate import ShardStates
from raveval.paths import is_name
from raveval.store.shards import Attempt, Receipt
from raveval.types import Shard, Status, Usage

_STATUSES = frozenset(map(str, Status))
_ENTRY: Mapping[str, type] = {
    "protocol": str,
    "metrics": list,
    "n_examples": int,
    "row_key_sum": int,
    "shard_size": int,
    "reply": dict,
    "score": dict,
    "score_fingerprint": str,
    "provenance": dict,
}
"""What run.json says of each task, whoever wrote it."""


def manifest_fault(content: Any) -> str | None:
    """Return what is wrong with the content of a run.json; None where nothing is.

    Names of tasks become folders: one that leads out of the directory is a fault.
    """
    if not isinstance(content, dict) or not isinstance(content.get("tasks"), dict):
        return "not the run.json of a raveval run"
    if not isinstance(content.get("model"), str):
        return "not the run.json of a raveval run: it names no model"
    faults = (_entry_fault(name, entry) for name, entry in content["tasks"].items())
    return next((fault for fault in faults if fault is not None), None)


def _entry_fault(name: str, entry: Any) -> str | None:
    if not is_name(name):
        return f"tasks: {name!a:.60} is no name of a task"
    if not isinstance(entry, dict):
        return f"tasks.{name}: expected a mapping"
    for key, kind in _ENTRY.items():
        value = entry.get(key)
        if not isinstance(value, kind) or isinstance(value, bool):
            return f"tasks.{name}.{key}: {value!r:.60} is not what raveval writes there"
    if not all(isinstance(metric, str) for metric in entry["metrics"]):
        return f"tasks.{name}.metrics: {entry['metrics']!r:.60} are no names"
    too_small = [key for key, least in (("n_examples", 0), ("shard_size", 1)) if entry[key] < least]
    return f"tasks.{name}.{too_small[0]}: {entry[too_small[0]]}" if too_small else None


def receipt_from(content: Any) -> Receipt:
    """Return the receipt of which `asdict` gave this content.

    Raises:
        TypeError, KeyError, ValueError: it gave another one.
    """
    states = content["states"]
    usages = {key: _usage(states[key]) for key in ("usage", "judge_usage") if states.get(key)}
    receipt = Receipt(
        shard=Shard(**content["shard"]),
        reply_fingerprint=content["reply_fingerprint"],
        score_fingerprint=content["score_fingerprint"],
        engine=dict(content["engine"]),
        states=ShardStates(**{**states, **usages}),
        judge=None if content.get("judge") is None else dict(content["judge"]),
    )
    _check_states(receipt.states)
    return receipt


def _check_states(states: ShardStates) -> None:
    counts = (*states.by_status.values(), *states.counts.values())
    if not all(isinstance(n, int) for n in (states.n_rows, states.row_key_sum, *counts)):
        raise TypeError("a count is no whole number")
    if not states.by_status.keys() <= _STATUSES:
        raise ValueError("a status that there is not")
    if not isinstance(states.usage, Usage) or not all(
        isinstance(each, Mapping) for each in (states.states, *states.states.values())
    ):
        raise TypeError("no states of a shard")


def _usage(content: Any) -> Usage:
    usage = Usage(**content)
    if not all(isinstance(n, int | float) for n in content.values()):
        raise TypeError("a cost is no number")
    return usage


def attempt_from(content: Any) -> Attempt:
    """Return the attempt of which `asdict` gave this content.

    Raises:
        TypeError: it gave another one.
    """
    attempt = Attempt(**content)
    counts = (attempt.n_deaths, *dict(attempt.example_deaths).values())
    if not all(isinstance(n, int) for n in counts):
        raise TypeError("a count is no whole number")
    return attempt
