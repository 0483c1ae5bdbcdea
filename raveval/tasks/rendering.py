"""Evaluates one template of a task over one row; each complaint begins with the task's key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from raveval import templates
from raveval.errors import DataError

Value = TypeVar("Value")
Columns = Mapping[str, Any]


class RowError(DataError):
    """A row that a task cannot read.

    Attributes:
        alike: the reason, where it is one that the task file can have: the same in all rows that
            are refused for it; else empty, and the fault is the row's own.
        advice: what to write in the task file instead, where that is likely; else empty.
    """

    def __init__(self, message: str, *, alike: str = "", advice: str = "") -> None:
        super().__init__(message)
        self.alike = alike
        self.advice = advice


def text(source: str | None, key: str, columns: Columns) -> str:
    """Return the text that a text template gives; none gives none.

    Raises:
        DataError: the template cannot read the row.
    """
    return "" if not source else _at(key, templates.text(source).render, columns)


def value(source: str, key: str, columns: Columns) -> Any:
    """Return the value of an expression.

    Raises:
        DataError: the expression cannot read the row.
    """
    return _at(key, templates.expression(source).value, columns)


def label(source: str | None, key: str, columns: Columns) -> str | None:
    """Return the value of an expression that names something, as text.

    Raises:
        DataError: it cannot read the row, or gives neither a text nor a whole number.
    """
    if source is None:
        return None
    found = value(source, key, columns)
    if isinstance(found, bool) or not isinstance(found, str | int):
        kind = type(found).__name__
        raise DataError(f"{key}: expected a text or a whole number, found {kind} {found!r:.60}")
    return str(found)


def shown(columns: Columns) -> str:
    """Say which columns there are, for a complaint."""
    return f"the row's columns: {', '.join(map(str, columns)) or 'none'}"


def _at(key: str, evaluate: Callable[[Columns], Value], columns: Columns) -> Value:
    try:
        return evaluate(columns)
    except templates.MissingColumn as exc:
        raise RowError(f"{key}: {exc}", alike=f"{key}: no column {exc.column}") from exc
    except DataError as exc:
        raise RowError(f"{key}: {exc}", alike=f"{key}: {exc}") from exc
