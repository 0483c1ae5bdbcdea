"""What figures of estimates share: their rows and axes, and words for those who do not see them.

A figure that cannot be drawn costs itself, never the page: its place says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from raveval.report.html.figures import Axis, IntervalRow
from raveval.report.html.page import Figure
from raveval.report.numbers import plain, value_text
from raveval.types import Estimate

_LOG_RANGE = 20.0


def drawn(draw: Callable[[], str], title: str, alt: str, caption: str) -> Figure:
    """Return a figure; one that cannot be drawn says why."""
    try:
        return Figure(draw(), alt, caption, title)
    except Exception as exc:  # noqa: BLE001 - a picture must not cost the numbers beside it
        reason = plain(f"{type(exc).__name__}: {exc}")
        return Figure("", alt, f"This figure could not be drawn ({reason}).", title)


def interval_row(label: str, estimate: Estimate, *, mark: float | None = None) -> IntervalRow:
    """Return the row of an estimate in a forest plot."""
    value, low, high = estimate.value, estimate.low, estimate.high
    return IntervalRow(label, value, low, high, value_text(estimate), mark)


def axis_of(
    estimates: Sequence[Estimate],
    *,
    label: str,
    lines: tuple[tuple[str, float], ...] = (),
    is_shared: bool = False,
) -> Axis:
    """Return the axis of estimates of one unit; a shared one is the same in several figures."""
    unit = estimates[0].unit
    if unit == "fraction":
        return Axis(label, "percent", (0.0, 1.0), lines)
    found = [v for e in estimates for v in (e.value, e.low, e.high) if v is not None]
    if unit in ("correlation", "coefficient"):
        lowest = -1.0 if any(value < 0 for value in found) else 0.0
        return Axis(label, "linear", (lowest, 1.0), (*lines, *([("", 0.0)] if lowest else [])))
    is_wide = unit == "perplexity" and found and max(found) > _LOG_RANGE * min(found) > 0
    ends = [*found, *(value for _, value in lines)]
    limits = (min(ends), max(ends)) if is_shared and ends else None
    return Axis(label, "log" if is_wide else "linear", limits, lines)


def forest_alt(title: str, rows: Sequence[IntervalRow]) -> str:
    """Return a forest plot in words."""
    return f"Forest plot, {title}. {few(f'{row.label} {row.text}' for row in rows)}"


def few(parts: Iterable[str], most: int = 12) -> str:
    """Return the first of several parts, and how many more there are."""
    listed = list(parts)
    rest = f"; and {len(listed) - most} more" if len(listed) > most else ""
    return "; ".join(listed[:most]) + rest


def unit_label(unit: str) -> str:
    """Return how an axis of this unit is labelled; not at all where it is not known."""
    return {"fraction": "%", "unknown": ""}.get(unit, plain(unit))
