"""How a number and its interval are written for people, and how foreign text is made harmless."""

from __future__ import annotations

import math
import unicodedata

from raveval.types import Estimate

UNDEFINED = "—"
MAX_SHOWN_CHARS = 200


def value_text(estimate: Estimate) -> str:
    """Return the value alone; a dash where there is none.

    >>> value_text(Estimate(0.54, "fraction", 100, low=0.443, high=0.634))
    '54.0 %'
    """
    if estimate.value is None:
        return UNDEFINED
    return _one(estimate.value, estimate) + (" %" if estimate.unit == "fraction" else "")


def interval_text(estimate: Estimate) -> str:
    """Return the 95 % interval with the value's own digits, or the reason why there is none.

    >>> interval_text(Estimate(0.54, "fraction", 100, low=0.443, high=0.634))
    '[44.3, 63.4]'
    >>> interval_text(Estimate(None, "fraction", 0, reason="n=0"))
    '(n=0)'
    >>> interval_text(Estimate(0.54, "fraction", 100, no_interval="one cluster"))
    '(one cluster)'
    """
    if estimate.value is None:
        return f"({plain(estimate.reason or 'no reason given')})"
    if estimate.low is None or estimate.high is None:
        return f"({plain(estimate.no_interval)})" if estimate.no_interval else ""
    kind = " (certain bounds)" if estimate.interval == "guaranteed" else ""
    return f"[{_one(estimate.low, estimate)}, {_one(estimate.high, estimate)}]{kind}"


def direction(estimate: Estimate) -> str:
    """Return an arrow towards better values, or nothing where neither direction is."""
    return {True: "↑", False: "↓", None: ""}[estimate.higher_is_better]


def plain(text: object, limit: int = MAX_SHOWN_CHARS) -> str:
    r"""Return text of foreign origin on one line, with nothing a terminal would obey.

    >>> plain("two\nlines \x1b[31mred")
    'two lines \\x1b[31mred'
    """
    shown = "".join(
        " " if char.isspace() else _harmless(char) for char in str(text)[: limit + 1]
    ).strip()
    return shown if len(str(text)) <= limit else f"{shown[:limit]}…"


def _harmless(char: str) -> str:
    """Escape controls, surrogates and the invisible characters that reorder a line."""
    return ascii(char)[1:-1] if unicodedata.category(char) in ("Cc", "Cf", "Cs") else char


def _one(number: float, estimate: Estimate) -> str:
    if estimate.unit == "fraction":
        return f"{100 * number:.{_percent_decimals(estimate)}f}"
    return _significant(number, estimate.value or 0.0)


def _percent_decimals(estimate: Estimate) -> int:
    """One digit more than the interval's half width supports, from one to four; two without."""
    if estimate.low is None or estimate.high is None or not estimate.high > estimate.low:
        return 2
    half_width = min(50 * (estimate.high - estimate.low), 1e300)  # a log of infinity is no digit
    return min(max(1 - math.floor(math.log10(half_width)), 1), 4)


def _significant(number: float, value: float) -> str:
    """Write `number` with the decimals that give `value` four significant digits."""
    largest = max(abs(number), abs(value))
    exponent = math.floor(math.log10(abs(value))) if value else 0
    if largest >= 1e9 or exponent < -4:
        return f"{number:.3e}"
    return f"{number:.{max(3 - exponent, 0)}f}"
