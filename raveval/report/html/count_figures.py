"""Figures of how often values occur, as inline SVG: heat maps of pairs, and histograms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from raveval.report.html.canvas import WIDTH, Ink, canvas, shortened, text_width
from raveval.report.html.figures import AXIS_HEIGHT, GAP, MOST_LABEL_CHARS

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Joint(NamedTuple):
    """How often values meet.

    Attributes:
        row_name, column_name: what the values are of.
        row_labels, column_labels: the values, ascending.
        counts: shape `(n_rows, n_columns)`.
        is_same_scale: whether equal labels are equal values; their cells are framed.
    """

    row_name: str
    column_name: str
    row_labels: Sequence[str]
    column_labels: Sequence[str]
    counts: Sequence[Sequence[int]]
    is_same_scale: bool


def heat_map(joint: Joint) -> str:
    """Return how often row and column values meet, with the histogram of either at its side."""
    n_rows, n_columns = len(joint.row_labels), len(joint.column_labels)
    left = max(map(text_width, joint.row_labels), default=0.0) + 3 * GAP
    top, right = 60, 76
    cell = min((WIDTH - left - right) / n_columns, 44.0), 26.0 if n_rows <= 8 else 20.0
    width, height = n_columns * cell[0], n_rows * cell[1]
    of_rows = [sum(row) for row in joint.counts]
    of_columns = [sum(column) for column in zip(*joint.counts, strict=True)]
    widest = max(map(text_width, joint.column_labels), default=0.0)
    is_steep = widest > cell[0] - 4
    with canvas(top + height + AXIS_HEIGHT + widest * is_steep) as sheet:
        axes = sheet.axes(left=left, top=top, width=width, height=height)
        axes.set_xlim(-0.5, n_columns - 0.5)
        axes.set_ylim(-0.5, n_rows - 0.5)
        axes.set_xticks(range(n_columns), joint.column_labels, rotation=90 * is_steep)
        axes.set_yticks(range(n_rows), joint.row_labels)
        axes.set_xlabel(shortened(joint.column_name, MOST_LABEL_CHARS))
        axes.set_ylabel(shortened(joint.row_name, MOST_LABEL_CHARS))
        _fill_cells(axes, joint)
        above = sheet.axes(left=left, top=0, width=width, height=top - 4)
        above.set_xlim(-0.5, n_columns - 0.5)
        above.set_ylim(0, 1.45 * max(of_columns, default=1) or 1)
        above.set_axis_off()
        bars = above.bar(range(n_columns), of_columns, 0.86, color=Ink.MUTED, alpha=0.5)
        above.bar_label(bars, padding=1)
        beside = sheet.axes(left=left + width + 4, top=top, width=right - 4, height=height)
        beside.set_ylim(-0.5, n_rows - 0.5)
        beside.set_xlim(0, 1.7 * max(of_rows, default=1) or 1)
        beside.set_axis_off()
        bars = beside.barh(range(n_rows), of_rows, 0.86, color=Ink.ACCENT, alpha=0.6)
        beside.bar_label(bars, padding=2)
        return sheet.svg()


def _fill_cells(axes: Axes, joint: Joint) -> None:
    """Fill each cell by its count; the cells where both values are the same have a frame."""
    from matplotlib.patches import Rectangle

    most = max((count for row in joint.counts for count in row), default=0)
    for y, (row_label, row) in enumerate(zip(joint.row_labels, joint.counts, strict=True)):
        for x, (column_label, count) in enumerate(zip(joint.column_labels, row, strict=True)):
            corner = x - 0.47, y - 0.46
            strength = 0.06 + 0.74 * count / most if count else 0.0
            axes.add_patch(
                Rectangle(corner, 0.94, 0.92, facecolor=Ink.HEAT, alpha=strength, linewidth=0)
            )
            if joint.is_same_scale and row_label == column_label:
                axes.add_patch(
                    Rectangle(corner, 0.94, 0.92, fill=False, edgecolor=Ink.MUTED, linewidth=0.8)
                )
            if count:
                axes.text(x, y, str(count), ha="center", va="center_baseline")


def histogram(labels: Sequence[str], counts: Sequence[int], name: str) -> str:
    """Return how often each value occurs, as bars from the highest value down."""
    left, pitch = max(map(text_width, labels), default=0.0) + 3 * GAP, 20
    n_all = sum(counts)
    texts = [f"{count} ({100 * count / n_all:.0f} %)" for count in counts] if n_all else []
    right = max(map(text_width, texts), default=0.0) + GAP
    with canvas(pitch * len(labels) + 4) as sheet:
        axes = sheet.axes(left=left, top=2, width=WIDTH - left - right, height=pitch * len(labels))
        axes.set_ylim(-0.5, len(labels) - 0.5)
        axes.set_xlim(0, max(counts, default=1) or 1)
        axes.set_xticks([])
        axes.set_yticks(range(len(labels)), labels)
        axes.set_ylabel(shortened(name, MOST_LABEL_CHARS))
        bars = axes.barh(range(len(labels)), counts, 0.8, color=Ink.ACCENT, alpha=0.6)
        axes.bar_label(bars, texts, padding=4)
        return sheet.svg()
