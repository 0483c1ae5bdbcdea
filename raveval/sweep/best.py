"""Which of a sweep's checkpoints is the best at a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from raveval.metrics._headline import primary
from raveval.types import Estimate, TaskResults


class Best(NamedTuple):
    """The names of those with the best value, mostly one, and of those that are not eligible.

    A value over a few examples says little, and what is missing may be what is hard: only those
    whose examples were all scored are eligible, or else those with the largest share scored, which
    is `share`.
    """

    names: tuple[str, ...] = ()
    ineligible: tuple[str, ...] = ()
    share: float = 1.0


def best_of(found: Mapping[str, TaskResults]) -> Best:
    """Return the best of some checkpoints at one task, by the estimate it is quoted by.

    Args:
        found: what each has of the task, by name and in order.
    """
    values = {name: quoted(task) for name, task in found.items()}
    known = {name: e for name, e in values.items() if e is not None and e.value is not None}
    direction = next((e.higher_is_better for e in known.values()), None)
    if direction is None:
        return Best()
    share = {name: _share_scored(found[name]) for name in known}
    most = max(share.values())
    ranked = {name: e.value or 0.0 for name, e in known.items() if share[name] == most}
    top = max(ranked.values()) if direction else min(ranked.values())
    return Best(
        tuple(name for name, value in ranked.items() if value == top),
        tuple(name for name in known if name not in ranked),
        most,
    )


def quoted(task: TaskResults) -> Estimate | None:
    """Return the estimate that a task is quoted by: its primary one, or else one that can be best.

    The latter is for numbers under other tools' names, such as "acc".
    """
    name = quoted_name({key: each.higher_is_better for key, each in task.metrics.items()})
    return None if name is None else task.metrics[name]


def quoted_name(directions: Mapping[str, bool | None]) -> str | None:
    """Return the name of the estimate that a task is quoted by, of those with these directions."""
    directed = (
        name for name, is_higher_better in directions.items() if is_higher_better is not None
    )
    return primary(directions) or next(directed, None)


def _share_scored(task: TaskResults) -> float:
    """Return the share of a task's examples, 0 to 1, that has a score."""
    coverage = task.coverage
    return coverage.n_scored / coverage.n_attempted if coverage.n_attempted else 0.0
