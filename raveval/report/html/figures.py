"""Forest plots and curves as inline SVG, each a pure function of plain values.

Every one is as wide as a phone's screen (`canvas.WIDTH`) and as high as it needs. Text that comes
from models or data is drawn as text, which matplotlib and the XML writer escape.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from raveval.report.html.canvas import CHAR_WIDTH, WIDTH, Ink, canvas, shortened, text_width

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.axis import XAxis, YAxis
    from numpy.typing import NDArray

Scale = Literal["percent", "points", "linear", "log"]
"""How an axis counts: fractions as percents, their differences as points, the rest as it is."""

AXIS_HEIGHT = 31
"""Pixels below axes, for the labels of ticks and of the axis."""

_LEGEND = 18
GAP = 8
MOST_LABEL_CHARS = 28
_NARROWEST = 150
"""Pixels that intervals need beside their labels; else labels stand above them."""

_SERIES = (Ink.SERIES_1, Ink.SERIES_2, Ink.SERIES_3, Ink.SERIES_4, Ink.SERIES_5, Ink.SERIES_6)
_DASHES = ("-", "--", ":", "-.")
_POINT: dict[str, Any] = {"marker": "o", "markersize": 6.5, "markeredgewidth": 0, "clip_on": False}
_TICK: dict[str, Any] = {"marker": "|", "markersize": 12, "markeredgewidth": 1.4, "clip_on": False}
_CURVE: dict[str, Any] = {"marker": "o", "markersize": 4, "markeredgewidth": 0, "linewidth": 1.6}


class IntervalRow(NamedTuple):
    """One line of a forest plot.

    Attributes:
        label: what it is about.
        value, low, high: None where there is none.
        text: the value in words, at the right.
        mark: another value to compare it with, such as chance.
        ink: the colour of the interval.
    """

    label: str
    value: float | None
    low: float | None
    high: float | None
    text: str
    mark: float | None = None
    ink: Ink = Ink.ACCENT


@dataclass(frozen=True, slots=True)
class Axis:
    """The axis that values share.

    Attributes:
        label: what it measures, with its unit.
        scale: how it counts.
        limits: its ends, where they are given by nature; else they follow from the values.
        lines: vertical lines by name, such as a mean; the empty name has no legend.
    """

    label: str
    scale: Scale = "linear"
    limits: tuple[float, float] | None = None
    lines: tuple[tuple[str, float], ...] = ()

    @property
    def factor(self) -> float:
        """What values are multiplied with to be shown."""
        return 100.0 if self.scale in ("percent", "points") else 1.0


class Series(NamedTuple):
    """A curve with its band; as many values as there are steps, None where there is none."""

    label: str
    values: Sequence[float | None]
    lows: Sequence[float | None]
    highs: Sequence[float | None]


def intervals(rows: Sequence[IntervalRow], axis: Axis) -> str:
    """Return a forest plot: a point with its interval on each row, the first one on top."""
    labels = [shortened(row.label, MOST_LABEL_CHARS) for row in rows]
    left = max(map(text_width, labels), default=0.0) + GAP
    right = max((text_width(row.text) for row in rows), default=0.0) + GAP
    is_stacked = WIDTH - left - right < _NARROWEST
    pitch = 34.0 if is_stacked else 20.0 if len(rows) <= 20 else 17.0
    if is_stacked:
        n_chars = max(int((WIDTH - right - 2 * GAP) / CHAR_WIDTH), MOST_LABEL_CHARS)
        labels, left, right = [shortened(row.label, n_chars) for row in rows], GAP, GAP
    top = _LEGEND if any(name for name, _ in axis.lines) else 2
    with canvas(top + pitch * len(rows) + AXIS_HEIGHT) as sheet:
        axes = sheet.axes(left=left, top=top, width=WIDTH - left - right, height=pitch * len(rows))
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_yticks([])
        _set_scale(axes, axis, [v for row in rows for v in row[1:4] if v is not None])
        _draw_lines(axes, axis)
        for place, (row, label) in enumerate(zip(rows, labels, strict=True)):
            _draw_interval(axes, place + 0.16 * is_stacked, row, axis.factor)
            edges = (0.0, WIDTH - left - right) if is_stacked else (-GAP, WIDTH - left - right)
            lift = 8.5 if is_stacked else 0.0
            _write(axes, label, place, (edges[0], lift), "left" if is_stacked else "right")
            _write(axes, row.text, place, (edges[1] + right * (not is_stacked), lift), "right")
        return sheet.svg()


def _write(
    axes: Axes, text: str, row: int, offset: tuple[float, float], side: Literal["left", "right"]
) -> None:
    """Write a text on a row, so many pixels from the axes' left edge and the row's middle."""
    axes.annotate(
        text,
        (0, row),
        offset,
        xycoords=("axes fraction", "data"),
        textcoords="offset pixels",
        horizontalalignment=side,
        verticalalignment="center_baseline",
        annotation_clip=False,
        bbox={"facecolor": Ink.PAPER, "linewidth": 0, "pad": 0.5},
    )


def _draw_interval(axes: Axes, y: float, row: IntervalRow, factor: float) -> None:
    if row.low is not None and row.high is not None:
        ends = [factor * row.low, factor * row.high]
        axes.plot(ends, [y, y], color=row.ink, linewidth=2.4, alpha=0.55, solid_capstyle="butt")
    if row.mark is not None:
        axes.plot([factor * row.mark], [y], color=Ink.MUTED, **_TICK)
    if row.value is not None:
        axes.plot([factor * row.value], [y], color=row.ink, **_POINT)


def _draw_lines(axes: Axes, axis: Axis) -> None:
    for (name, value), dash in zip(axis.lines, ("-", "--", ":"), strict=False):
        axes.axvline(
            axis.factor * value, color=Ink.MUTED, linewidth=1.1, linestyle=dash, label=name or None
        )
    if any(name for name, _ in axis.lines):
        _draw_legend(axes)


def _draw_legend(axes: Axes, *, n_columns: int = 3) -> None:
    """Name the lines above the axes, from the figure's left edge on."""
    axes.figure.legend(
        loc="upper left",
        bbox_to_anchor=(0, 1),
        borderaxespad=0,
        borderpad=0.2,
        ncols=n_columns,
        frameon=False,
        handlelength=1.6,
        handletextpad=0.5,
        columnspacing=1.2,
    )


def _set_scale(axes: Axes, axis: Axis, values: Sequence[float]) -> None:
    """Set the limits and ticks of the horizontal axis."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel(shortened(axis.label, MOST_LABEL_CHARS))
    shown = [axis.factor * value for value in (*values, *(value for _, value in axis.lines))]
    if axis.scale == "log":
        low, high = axis.limits or (min(shown), max(shown))
        axes.set_xscale("log")
        axes.set_xlim(low / 1.15, high * 1.15)
        _set_log_ticks(axes.xaxis, low, high)
    else:
        axes.set_xlim(*_limits(axis, shown))
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.grid(axis="x", color=Ink.LINE, linewidth=0.8)


def _set_log_ticks(axis: XAxis | YAxis, low: float, high: float) -> None:
    """Mark powers of ten, and their double and half too where there are few."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    steps = (1.0,) if math.log10(high / low) > 2 else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(subs=steps, numticks=8))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))


def _short(number: float) -> str:
    """Return a power of ten in few characters.

    >>> _short(1e12), _short(1e-8), _short(100.0)
    ('1e12', '1e-8', '100')
    """
    return re.sub(r"e\+?(-?)0*", r"e\1", f"{number:g}")


def _limits(axis: Axis, shown: Sequence[float]) -> tuple[float, float]:
    if axis.limits is not None:
        return axis.factor * axis.limits[0], axis.factor * axis.limits[1]
    low, high = min(shown, default=0.0), max(shown, default=1.0)
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return low - margin, high + margin


def training_curve(
    steps: Sequence[float], series: Sequence[Series], axis: Axis, steps_name: str = "training step"
) -> str:
    """Return metrics over training steps, ascending, each with its band.

    A step without a value is a gap. Steps that grow geometrically have a logarithmic axis.
    """
    import numpy as np

    has_legend = len(series) > 1 or any(name for name, _ in axis.lines)
    top = 6 + _LEGEND * math.ceil((len(series) + len(axis.lines)) / 2) * has_legend
    height, left = 190, 44
    with canvas(top + height + AXIS_HEIGHT) as sheet:
        axes = sheet.axes(left=left, top=top, width=WIDTH - left - GAP, height=height)
        for place, each in enumerate(series):
            ink, dash = _SERIES[place % len(_SERIES)], _DASHES[place % len(_DASHES)]
            values, lows, highs = (
                axis.factor * np.array([math.nan if v is None else v for v in column], np.float64)
                for column in each[1:]
            )
            axes.fill_between(steps, lows, highs, color=ink, alpha=0.16, linewidth=0)
            alone = _alone(values)  # a band needs two steps, side by side
            axes.vlines(np.array(steps)[alone], lows[alone], highs[alone], color=ink, alpha=0.4)
            axes.plot(
                steps, values, color=ink, linestyle=dash, label=shortened(each.label, 26), **_CURVE
            )
        _set_steps(axes, steps, steps_name)
        _set_values(axes, axis)
        if has_legend:
            _draw_legend(axes, n_columns=2)
        return sheet.svg()


def _alone(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which values stand between gaps."""
    import numpy as np

    is_gap = np.concatenate([[True], np.isnan(values), [True]])
    alone: NDArray[np.bool_] = ~is_gap[1:-1] & is_gap[:-2] & is_gap[2:]
    return alone


def _set_steps(axes: Axes, steps: Sequence[float], name: str) -> None:
    """Set the axis of training steps."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    axes.set_xlabel(name)
    if _is_geometric(steps):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(numticks=6))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value)))


def _is_geometric(steps: Sequence[float]) -> bool:
    """Whether the first steps would be one on a linear axis.

    >>> _is_geometric([1, 2, 4, 8, 16, 1000]), _is_geometric([1000, 2000, 3000])
    (True, False)
    """
    return len(steps) > 2 and steps[0] > 0 and steps[-1] - steps[-2] > 20 * (steps[1] - steps[0])


def compact(number: float) -> str:
    """Return a large number in few characters.

    >>> compact(143000), compact(2.5e9), compact(512)
    ('143k', '2.5B', '512')
    """
    for unit, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= unit:
            return f"{number / unit:.4g}{letter}"
    return f"{number:g}"


def _set_values(axes: Axes, axis: Axis) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_ylabel(shortened(axis.label, MOST_LABEL_CHARS))
    if axis.scale == "log":
        axes.set_yscale("log")
        _set_log_ticks(axes.yaxis, *axes.get_ylim())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    if axis.limits is not None:
        axes.set_ylim(*(axis.factor * end for end in axis.limits))
    for name, value in axis.lines:
        axes.axhline(axis.factor * value, label=name or None, color=Ink.MUTED, linestyle="--")
    axes.grid(axis="y", color=Ink.LINE, linewidth=0.8)
