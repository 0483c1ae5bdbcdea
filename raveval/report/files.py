"""Results as files that programs read: strict JSON with an exact way back, and CSV.

The same run gives the same bytes; what may differ (seconds) stands under `times` and under
`engine_seconds` of a task's usage, nowhere else.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import raveval
from raveval.errors import DataError
from raveval.types import (
    Categories,
    CountTable,
    Coverage,
    Estimate,
    Results,
    TaskResults,
    Usage,
)

if TYPE_CHECKING:
    from raveval.measurement import Measurement

Value = TypeVar("Value")

_NUMBER = (int, float)
_OPTIONAL_NUMBER = (int, float, type(None))
_OPTIONAL_TEXT = (str, type(None))

_ESTIMATE: Mapping[str, tuple[type, ...]] = {
    "value": _OPTIONAL_NUMBER,
    "reason": _OPTIONAL_TEXT,
    "unit": (str,),
    "n": (int,),
    "stderr": _OPTIONAL_NUMBER,
    "low": _OPTIONAL_NUMBER,
    "high": _OPTIONAL_NUMBER,
    "interval": _OPTIONAL_TEXT,
    "no_interval": _OPTIONAL_TEXT,
    "higher_is_better": (bool, type(None)),
}
"""The keys of an estimate in the order they are written, and what each may hold."""

_USAGE: Mapping[str, tuple[type, ...]] = {
    "n_prompt_tokens": (int,),
    "n_output_tokens": (int,),
    "engine_seconds": _NUMBER,
}

_CSV_COLUMNS = (
    *("task", "protocol", "version", "num_fewshot", "group", "metric"),
    *_ESTIMATE,
    *("n_scored", "n_attempted"),
)


def to_json(results: Results) -> str:
    """Return results.json: strict JSON, plain ASCII, keys in a fixed order.

    `settings` and `times` must hold what JSON can: mappings with text keys, lists, text, numbers.

    Raises:
        ValueError: a number is not finite; metrics give None with a reason instead.
    """
    content = {
        "model": results.model,
        "tasks": {name: _task_content(task) for name, task in results.tasks.items()},
        "fingerprints": {task: dict(prints) for task, prints in results.fingerprints.items()},
        "settings": dict(results.settings),
        "raveval_version": raveval.__version__,
        "times": dict(results.times),
    }
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def measurement_to_json(measurement: Measurement) -> str:
    """Return what predictions are worth (`raveval measure --json`) as strict JSON.

    Each estimate stands under its own name, what became of the rows under `n_rows` and `notes`, and
    where rows name a group, the estimates of each under `groups` and their means under `macro`.

    Raises:
        ValueError: a number is not finite.
    """
    groups = {name: _metrics_content(metrics) for name, metrics in measurement.groups.items()}
    content = {
        **_metrics_content(measurement.metrics),
        "n_rows": measurement.n_rows,
        "notes": dict(measurement.notes),
        **({"groups": groups, "macro": _metrics_content(measurement.macro)} if groups else {}),
    }
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def from_json(text: str) -> Results:
    """Return the results that `to_json` wrote.

    Raises:
        DataError: not JSON, or not of this shape; the message names the dotted key.
    """
    try:
        content = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as exc:
        raise DataError(f"results.json: not valid JSON: {exc}") from exc
    top = _mapping(content, "the top")
    return Results(
        model=_field(top, "model", (str,), ""),
        tasks=_each(_field(top, "tasks", (dict,), ""), "tasks", _read_task),
        fingerprints=_each(_field(top, "fingerprints", (dict,), ""), "fingerprints", _texts),
        settings=_field(top, "settings", (dict,), ""),
        times=_field(top, "times", (dict,), ""),
    )


def to_csv(results: Results) -> str:
    """Return one row for each estimate, groups included; undefined values are empty cells.

    Numbers are written as in results.json (fractions, not percents).
    """
    sheet = io.StringIO()
    writer = csv.DictWriter(sheet, _CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_csv_rows(results))
    return sheet.getvalue()


def _csv_rows(results: Results) -> Iterator[dict[str, Any]]:
    for name, task in results.tasks.items():
        shared = {
            "task": name,
            "protocol": task.protocol,
            "version": task.version,
            "num_fewshot": task.num_fewshot,
            "n_scored": task.coverage.n_scored,
            "n_attempted": task.coverage.n_attempted,
        }
        macro = {f"macro_{metric}": estimate for metric, estimate in task.macro.items()}
        for metric, estimate in {**task.metrics, **macro}.items():
            yield {**shared, "metric": metric, **_estimate_content(estimate)}
        whole_task = ("n_scored", "n_attempted")
        shared = {key: value for key, value in shared.items() if key not in whole_task}
        for group, metrics in task.groups.items():
            group = group.replace("\r", "\n")  # which csv quotes, and the other one it does not
            for metric, estimate in metrics.items():
                yield {**shared, "group": group, "metric": metric, **_estimate_content(estimate)}


def _task_content(task: TaskResults) -> dict[str, Any]:
    groups = {group: _metrics_content(metrics) for group, metrics in task.groups.items()}
    return {
        "metrics": _metrics_content(task.metrics),
        "coverage": {
            "n_attempted": task.coverage.n_attempted,
            "n_scored": task.coverage.n_scored,
            "by_status": {str(status): n for status, n in task.coverage.by_status.items()},
        },
        "usage": asdict(task.usage),
        **({} if task.judge_usage is None else {"judge_usage": asdict(task.judge_usage)}),
        "protocol": task.protocol,
        "num_fewshot": task.num_fewshot,
        "version": task.version,
        "notes": dict(task.notes),
        **({"tables": {n: asdict(t) for n, t in task.tables.items()}} if task.tables else {}),
        **({"groups": groups, "macro": _metrics_content(task.macro)} if groups else {}),
        "source": dict(task.source),
        "failures": dict(task.failures),
    }


def _metrics_content(metrics: Mapping[str, Estimate]) -> dict[str, Any]:
    return {name: _estimate_content(estimate) for name, estimate in metrics.items()}


def _estimate_content(estimate: Estimate) -> dict[str, Any]:
    return {key: getattr(estimate, key) for key in _ESTIMATE}


def _read_task(content: Any, where: str) -> TaskResults:
    task = _mapping(content, where)
    return TaskResults(
        metrics=_read_metrics(_field(task, "metrics", (dict,), where), f"{where}.metrics"),
        coverage=_read_coverage(_field(task, "coverage", (dict,), where), f"{where}.coverage"),
        usage=_read_usage(_field(task, "usage", (dict,), where), f"{where}.usage"),
        protocol=_field(task, "protocol", (str,), where),
        num_fewshot=_field(task, "num_fewshot", (int, type(None)), where),
        version=_field(task, "version", (int, type(None)), where),
        groups=_each(task.get("groups", {}), f"{where}.groups", _read_metrics),
        macro=_read_metrics(task.get("macro", {}), f"{where}.macro"),
        notes=_each(_field(task, "notes", (dict,), where), f"{where}.notes", _read_count),
        source=_texts(_field(task, "source", (dict,), where), f"{where}.source"),
        failures=_texts(_field(task, "failures", (dict,), where), f"{where}.failures"),
        judge_usage=_read_usage(task["judge_usage"], f"{where}.judge_usage")
        if "judge_usage" in task
        else None,
        tables=_each(task.get("tables", {}), f"{where}.tables", _read_table),
    )


def _read_usage(content: Any, where: str) -> Usage:
    return Usage(**_read(_mapping(content, where), _USAGE, where))


def _read_metrics(content: Any, where: str) -> dict[str, Estimate]:
    return _each(content, where, _read_estimate)


def _read_estimate(content: Any, where: str) -> Estimate:
    """Return an estimate; results that are older than `no_interval` lack it."""
    record = {"no_interval": None, **_mapping(content, where)}
    return Estimate(**_read(record, _ESTIMATE, where))


def _read_table(content: Any, where: str) -> CountTable:
    record = _mapping(content, where)
    rows = _read_categories(_field(record, "rows", (dict,), where), f"{where}.rows")
    columns = _field(record, "columns", (dict, type(None)), where)
    sides = rows, None if columns is None else _read_categories(columns, f"{where}.columns")
    table = CountTable(*sides, tuple(map(tuple, _lists(record, "counts", where))))
    n_columns = 1 if sides[1] is None else len(sides[1].labels)
    if [len(row) for row in table.counts] != [n_columns] * len(rows.labels):
        raise DataError(f"results.json: {where}.counts: not a count for each pair of labels")
    for row in table.counts:
        for count in row:
            _read_count(count, f"{where}.counts")
    return table


def _read_categories(content: Any, where: str) -> Categories:
    return Categories(
        _field(content, "name", (str,), where),
        tuple(
            _field({"labels": label}, "labels", (str,), where)
            for label in _field(content, "labels", (list,), where)
        ),
        _field(content, "step", _OPTIONAL_NUMBER, where),
    )


def _lists(content: Mapping[str, Any], key: str, where: str) -> list[list[Any]]:
    rows: list[Any] = _field(content, key, (list,), where)
    return [_field({key: row}, key, (list,), where) for row in rows]


def _read_coverage(content: Any, where: str) -> Coverage:
    counts = _field(content, "by_status", (dict,), where)
    coverage = Coverage({status: _field(counts, status, (int,), where) for status in counts})
    try:
        totals = {"n_attempted": coverage.n_attempted, "n_scored": coverage.n_scored}
    except ValueError as exc:
        raise DataError(f"results.json: {where}.by_status: {exc}") from exc
    for key, expected in totals.items():
        given = _field(content, key, (int,), where)
        if given != expected:
            raise DataError(f"results.json: {where}.{key}: is {given}, by_status says {expected}")
    return coverage


def _read_count(content: Any, where: str) -> int:
    return int(_field({where: content}, where, (int,), ""))


def _texts(content: Any, where: str) -> dict[str, str]:
    texts = _mapping(content, where)
    return {key: _field(texts, key, (str,), where) for key in texts}


def _each(content: Any, where: str, read: Callable[[Any, str], Value]) -> dict[str, Value]:
    return {key: read(value, f"{where}.{key}") for key, value in _mapping(content, where).items()}


def _read(content: Any, kinds: Mapping[str, tuple[type, ...]], where: str) -> dict[str, Any]:
    record = _mapping(content, where)
    return {key: _field(record, key, allowed, where) for key, allowed in kinds.items()}


def _mapping(content: Any, where: str) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise DataError(f"results.json: {where}: expected a mapping, found {content!r:.40}")
    return content


def _field(content: Mapping[str, Any], key: str, allowed: tuple[type, ...], where: str) -> Any:
    at = f"{where}.{key}" if where else key
    if key not in content:
        raise DataError(f"results.json: {at}: missing; run `raveval score DIR` to write it anew")
    value = content[key]
    if type(value) not in allowed:
        names = " or ".join("null" if kind is type(None) else kind.__name__ for kind in allowed)
        raise DataError(f"results.json: {at}: expected {names}, found {value!r:.40}")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
