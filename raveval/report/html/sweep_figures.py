"""Figures of several runs: differences from a baseline, and metrics over training steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from raveval.report.checkpoints import Trajectory, first_trajectories, trajectories
from raveval.report.differences import difference_text, p_text, test_kind
from raveval.report.html.canvas import Ink
from raveval.report.html.drawings import (
    axis_of,
    drawn,
    few,
    forest_alt,
    interval_row,
    unit_label,
)
from raveval.report.html.figures import (
    Axis,
    IntervalRow,
    Scale,
    Series,
    intervals,
    training_curve,
)
from raveval.report.html.page import Figure
from raveval.report.numbers import plain, value_text
from raveval.types import Estimate, Results

if TYPE_CHECKING:
    from raveval.comparison import Difference


MOST_DIFFERENCES = 40
"""Rows of a figure that one still looks through."""

CURVE_NOTE = "Line: value. Band: 95 % interval of each value by itself."
FOREST_NOTE = "Point: value. Bar: 95 % interval of each value by itself."


def difference_note(differences: Sequence[Difference]) -> str:
    """Return how to read figures of these differences."""
    return (
        "Point: difference from the baseline, or ratio to it. Bar: 95 % interval. Green: better, "
        f"red: worse, by {test_kind(differences)} at 5 %. p: Holm's, adjusted for the family of "
        "tests; in brackets: unadjusted."
    )


def difference_figures(
    differences: Sequence[Difference], label: Callable[[Difference], str]
) -> list[Figure]:
    """Return forest plots of differences, one for each unit, with p-values as they are adjusted.

    Args:
        differences: those to show, in order; their p-values are Holm's where they have one.
        label: names each of them, such as by its task or its run.
    """
    by_unit: dict[tuple[str, bool], list[Difference]] = {}
    for difference in most_telling(differences):
        kind = difference.unit, difference.ratio is not None
        by_unit.setdefault(kind, []).append(difference)
    return [_difference_figure(*kind, each, label) for kind, each in by_unit.items()]


def most_telling(differences: Sequence[Difference]) -> Sequence[Difference]:
    """Return the differences that a figure has room for, in order: the smallest p-values."""
    ranked = sorted(differences, key=lambda d: math.inf if d.p is None else d.p)
    shown = set(map(id, ranked[:MOST_DIFFERENCES]))
    return [d for d in differences if id(d) in shown]


def _difference_figure(
    unit: str,
    are_ratios: bool,
    differences: Sequence[Difference],
    label: Callable[[Difference], str],
) -> Figure:
    rows = []
    for d in differences:
        of_difference = d.difference, d.low, d.high
        drawn_parts = (d.ratio, d.ratio_low, d.ratio_high) if are_ratios else of_difference
        rows.append(IntervalRow(plain(label(d)), *drawn_parts, _difference_words(d), ink=_ink(d)))
    if are_ratios:
        title, axis = f"Ratios, {plain(unit)}", Axis("value / baseline", "log", None, (("", 1.0),))
    else:
        of = "percentage points" if unit == "fraction" else plain(unit)
        scale: Scale = "points" if unit == "fraction" else "linear"
        title, axis = f"Differences, {of}", Axis(of, scale, None, (("", 0.0),))
    return drawn(lambda: intervals(rows, axis), title, forest_alt(title, rows), "")


def _difference_words(d: Difference) -> str:
    text = difference_text(d)
    if d.p_holm is not None:
        return f"{text}, p {p_text(d.p_holm)}"
    return text if d.p is None else f"{text} (p {p_text(d.p)})"


def _ink(d: Difference) -> Ink:
    return {"better": Ink.BETTER, "worse": Ink.WORSE}.get(str(d.verdict), Ink.MUTED)


def curve_figures(
    steps: Sequence[float], results: Sequence[Results | None], *, steps_name: str = "training step"
) -> list[Figure]:
    """Return how each task's numbers change over training, those of one unit in one figure.

    Args:
        steps: of the checkpoints, ascending.
        results: of each checkpoint; None for one that failed, which is a gap.
        steps_name: what the steps are.
    """
    panels: dict[tuple[str, str], dict[str, Sequence[Estimate | None]]] = {}
    for path in trajectories(results):
        unit = next((each.unit for each in path.estimates if each is not None), None)
        if unit is not None:
            panels.setdefault((path.task, unit), {})[path.metric] = path.estimates
    return [
        curve_figure(
            f"{task}: {next(iter(series)) if len(series) == 1 else unit}",
            steps,
            series,
            steps_name=steps_name,
        )
        for (task, unit), series in panels.items()
    ]


def checkpoint_figures(checkpoints: Mapping[str, Results]) -> list[Figure]:
    """Return forest plots of each task over checkpoints that no training step tells apart.

    Numbers that have a better direction come first.

    Args:
        checkpoints: results by name, in order.
    """
    figures = []
    paths = first_trajectories(list(checkpoints.values()))
    for path in sorted(paths, key=lambda path: not _has_direction(path)):
        known = {
            name: estimate
            for name, estimate in zip(checkpoints, path.estimates, strict=True)
            if estimate is not None and estimate.value is not None
        }
        if known:
            title = plain(f"{path.task}: {path.metric}")
            rows = [interval_row(plain(name), each) for name, each in known.items()]
            axis = _for_shape(axis_of(list(known.values()), label=_unit(known.values())))
            draw = partial(intervals, rows, axis)
            figures.append(drawn(draw, title, forest_alt(title, rows), ""))
    return figures


def _has_direction(path: Trajectory) -> bool:
    return any(each is not None and each.higher_is_better is not None for each in path.estimates)


def _unit(estimates: Collection[Estimate]) -> str:
    return unit_label(next(iter(estimates)).unit)


def _for_shape(axis: Axis) -> Axis:
    """Return an axis as wide as its values: differences are looked at, not distances from 0."""
    return axis if axis.limits is None else Axis(axis.label, axis.scale)


def curve_figure(
    title: str,
    steps: Sequence[float],
    series: Mapping[str, Sequence[Estimate | None]],
    *,
    steps_name: str = "training step",
) -> Figure:
    """Return how estimates of one unit change over training steps, with their intervals as bands.

    Args:
        title: of the figure.
        steps: ascending.
        series: estimates by name, as many as there are steps; None where one is missing.
        steps_name: what the steps are.
    """
    curves = [
        Series(plain(name), *(_column(estimates, part) for part in ("value", "low", "high")))
        for name, estimates in series.items()
    ]
    known = [e for estimates in series.values() for e in estimates if e is not None]
    axis = axis_of(known, label=unit_label(known[0].unit)) if known else Axis("")
    axis = _for_shape(axis)
    ends = (
        f"{plain(name)}: {_first_and_last(estimates)}"
        for name, estimates in series.items()
        if any(e is not None for e in estimates)
    )
    alt = f"Curves over {len(steps)} steps. {few(ends)}"
    return drawn(partial(training_curve, steps, curves, axis, steps_name), plain(title), alt, "")


def _column(estimates: Sequence[Estimate | None], part: str) -> list[float | None]:
    return [None if e is None else getattr(e, part) for e in estimates]


def _first_and_last(estimates: Sequence[Estimate | None]) -> str:
    known = [e for e in estimates if e is not None]
    return f"from {value_text(known[0])} to {value_text(known[-1])}"
