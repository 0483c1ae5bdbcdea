"""What a sweep's checkpoints have in common: each task's numbers over all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from raveval.report.numbers import UNDEFINED, interval_text, plain, value_text
from raveval.report.tables import Column, Table, quoted_names
from raveval.types import Estimate, Results

MOST_COLUMNS = 12
"""Numbers beside each other that can still be read."""


class Trajectory(NamedTuple):
    """One number of a task over all checkpoints; None where a checkpoint has it not."""

    task: str
    metric: str
    estimates: Sequence[Estimate | None]


def trajectories(results: Sequence[Results | None]) -> Iterator[Trajectory]:
    """Yield the numbers that each task is quoted by, over all checkpoints.

    Args:
        results: of each checkpoint in order; None for one that failed.
    """
    known = [each for each in results if each is not None]
    for task in dict.fromkeys(name for each in known for name in each.tasks):
        first = next(each for each in known if task in each.tasks)
        for metric in quoted_names(first.tasks[task].metrics):
            yield Trajectory(task, metric, [_estimate(each, task, metric) for each in results])


def first_trajectories(results: Sequence[Results | None]) -> list[Trajectory]:
    """Return of each task the first number that it is quoted by, over all checkpoints."""
    by_task: dict[str, Trajectory] = {}
    for path in trajectories(results):
        by_task.setdefault(path.task, path)
    return list(by_task.values())


def _estimate(results: Results | None, task: str, metric: str) -> Estimate | None:
    found = None if results is None else results.tasks.get(task)
    return None if found is None else found.metrics.get(metric)


def checkpoint_table(
    checkpoints: Mapping[str, Results | None],
    instead: Mapping[str, Mapping[str, str]] | None = None,
) -> Table:
    """Return a row for each checkpoint and a column for each number that a task is quoted by.

    Where that is more than a page is wide, a row for each task and a column for each checkpoint.

    Args:
        checkpoints: results by name, in order; None for one that has none.
        instead: what stands in the place of a checkpoint's numbers, by task.
    """
    words = instead or {}
    paths = list(trajectories(list(checkpoints.values())))
    if len(paths) > MOST_COLUMNS:
        return _table_by_task(checkpoints, words)
    columns = [Column(plain(f"{path.task} {path.metric}"), "number") for path in paths]
    rows = [
        (
            plain(name),
            *(_cell(path.estimates[place], words.get(name, {}).get(path.task)) for path in paths),
        )
        for place, name in enumerate(checkpoints)
    ]
    return Table([Column("Checkpoint", "name"), *columns], rows)


def _table_by_task(
    checkpoints: Mapping[str, Results | None], words: Mapping[str, Mapping[str, str]]
) -> Table:
    """Return a row for each task with the first number it is quoted by, without intervals."""
    columns = [Column("Task", "name"), Column("Metric", "name")]
    columns += [Column(plain(name), "number") for name in checkpoints]
    rows = [
        (
            plain(path.task),
            plain(path.metric),
            *(
                words.get(name, {}).get(path.task, UNDEFINED) if each is None else value_text(each)
                for name, each in zip(checkpoints, path.estimates, strict=True)
            ),
        )
        for path in first_trajectories(list(checkpoints.values()))
    ]
    return Table(columns, rows)


def _cell(estimate: Estimate | None, instead: str | None) -> str:
    if estimate is None:
        return instead or UNDEFINED
    return " ".join(filter(None, (value_text(estimate), interval_text(estimate))))
