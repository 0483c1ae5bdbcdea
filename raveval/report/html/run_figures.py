"""Figures of a run: what each task is quoted by, by group, and how judges' ratings are spread."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from raveval.report.html.count_figures import Joint, heat_map, histogram
from raveval.report.html.drawings import axis_of, drawn, few, forest_alt, interval_row, unit_label
from raveval.report.html.figures import intervals
from raveval.report.html.page import Figure
from raveval.report.numbers import plain, value_text
from raveval.report.tables import quoted_names
from raveval.types import Categories, CountTable, Estimate, Results, TaskResults

MOST_GROUPS = 120
"""Of a task with more groups, the best and the worst are drawn."""

_MOST_ROWS = 20  # of a figure; several stand side by side

_CHANCE = "random_baseline"
_LONG_NUMBER = re.compile(r"\d+\.\d{4,}")


class Quoted(NamedTuple):
    """A number that a task is quoted by."""

    task: str
    metric: str
    estimate: Estimate
    chance: float | None


def headline_figures(results: Results) -> list[Figure]:
    """Return a forest plot for each unit in which tasks are quoted, over all tasks."""
    by_unit: dict[str, list[Quoted]] = {}
    for name, task in results.tasks.items():
        for metric in quoted_names(task.metrics):
            estimate = task.metrics[metric]
            chance = task.metrics.get(_CHANCE) if metric == "accuracy" else None
            entry = Quoted(name, metric, estimate, chance.value if chance else None)
            by_unit.setdefault(estimate.unit, []).append(entry)
    return [
        _headline_figure(unit, entries)
        for unit, entries in by_unit.items()
        if any(entry.estimate.value is not None for entry in entries)
    ]


def _headline_figure(unit: str, entries: Sequence[Quoted]) -> Figure:
    metrics = {entry.metric for entry in entries}
    is_alone = len(metrics) == 1
    rows = [
        interval_row(
            plain(entry.task if is_alone else f"{entry.task} · {entry.metric}"),
            entry.estimate,
            mark=entry.chance,
        )
        for entry in entries
    ]
    title = plain(next(iter(metrics))) if is_alone else _title(unit)
    has_chance = any(row.mark is not None for row in rows)
    caption = "Tick: what guessing would give." * has_chance
    axis = axis_of([entry.estimate for entry in entries], label=unit_label(unit))
    return drawn(lambda: intervals(rows, axis), title, forest_alt(title, rows), caption)


def group_figures(name: str, task: TaskResults) -> Iterator[Figure]:
    """Return the number that a task is quoted by, by group, best first: several figures for many.

    A task without groups, or without a number in any of them, has no figure.
    """
    metric = next(iter(quoted_names(task.metrics)), "")
    known = {group: found[metric] for group, found in task.groups.items() if metric in found}
    ordered = sorted(known.items(), key=lambda entry: _rank(entry[1]))
    estimates = [estimate for _, estimate in ordered]
    if all(estimate.value is None for estimate in estimates):
        return
    lines = tuple(
        (f"{word} {value_text(estimate)}", estimate.value)
        for word, estimate in (("pooled", task.metrics[metric]), ("macro", task.macro.get(metric)))
        if estimate is not None and estimate.value is not None
    )
    axis = axis_of(estimates, label=unit_label(estimates[0].unit), lines=lines, is_shared=True)
    n_parts = math.ceil(min(len(ordered), MOST_GROUPS) / _MOST_ROWS)
    n_rows = math.ceil(min(len(ordered), MOST_GROUPS) / n_parts)
    starts = [part * n_rows for part in range(n_parts)]
    if len(ordered) > MOST_GROUPS:
        starts = [s if s < MOST_GROUPS / 2 else len(ordered) - MOST_GROUPS + s for s in starts]
    for start in starts:
        shown = ordered[start : start + n_rows]
        rows = [interval_row(plain(group), estimate) for group, estimate in shown]
        title = f"{plain(name)}: {plain(metric)} by group"
        place = f"{start + 1} to {start + len(shown)} of {len(ordered)}" if n_parts > 1 else ""
        draw = partial(intervals, rows, axis)
        yield drawn(draw, title, forest_alt(f"{title} {place}".strip(), rows), place)


def _rank(estimate: Estimate) -> tuple[bool, float]:
    value = estimate.value
    if value is None:
        return True, 0.0
    return False, value if estimate.higher_is_better is False else -value


def table_figures(name: str, task: TaskResults) -> Iterator[Figure]:
    """Return the distributions of a task: pairs as heat maps, values alone as histograms.

    The histogram of what is also seen in pairs with a reference stands beside these already.
    """
    paired = {table.rows.name for table in task.tables.values() if table.columns is not None}
    for table in task.tables.values():
        if table.columns is not None:
            yield _heat_map(plain(name), table, table.columns)
        elif table.rows.name not in paired:
            yield _histogram(plain(name), table)


def _heat_map(name: str, table: CountTable, columns: Categories) -> Figure:
    row_labels, column_labels = (tuple(map(_short, side.labels)) for side in (table.rows, columns))
    names = plain(table.rows.name), plain(columns.name)
    is_same_scale = table.rows.step == columns.step
    joint = Joint(*names, row_labels, column_labels, table.counts, is_same_scale)
    n = sum(map(sum, table.counts))
    title = f"{name}: {joint.row_name} and {joint.column_name}"
    caption = f"{n} examples by {joint.row_name} and {joint.column_name}.{_steps(table)}"
    cells = (
        f"{joint.row_name} {row_label} with {joint.column_name} {column_label}: {count}"
        for row_label, row in zip(joint.row_labels, table.counts, strict=True)
        for column_label, count in zip(joint.column_labels, row, strict=True)
        if count
    )
    return drawn(lambda: heat_map(joint), title, f"Heat map of {n} examples. {few(cells)}", caption)


def _histogram(name: str, table: CountTable) -> Figure:
    labels = tuple(map(_short, table.rows.labels))
    counts = [row[0] for row in table.counts]
    n = sum(counts)
    word = plain(table.rows.name)
    title = f"{name}: {word}"
    caption = f"{n} examples by {word}.{_steps(table)}"
    cells = (f"{label}: {count}" for label, count in zip(labels, counts, strict=True))
    return drawn(
        lambda: histogram(labels, counts, word),
        title,
        f"Histogram of {word}. {few(cells)}",
        caption,
    )


def _steps(table: CountTable) -> str:
    """Say to what values are rounded, where there are too many of them."""
    sides = [table.rows, *([] if table.columns is None else [table.columns])]
    rounded = [f"{plain(s.name)} to {s.step:g}" for s in sides if s.step is not None]
    return f" Rounded: {', '.join(rounded)}." if rounded else ""


def _short(label: str) -> str:
    return plain(_LONG_NUMBER.sub(lambda found: f"{float(found[0]):.4g}", label))


def _title(unit: str) -> str:
    return {"fraction": "Shares", "correlation": "Correlations"}.get(unit, plain(unit.capitalize()))
