"""report.html: one file with tables and pictures, for a run and, of the same parts, for a sweep.

A page is a value (`page.Page`) made from results; its figures are pure functions of plain values
(`figures`), and one template turns it into HTML. The file asks for nothing outside of itself, holds
no script, and forbids both to whatever text of models and data might bring along.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from raveval.report.html.page import Lines, Page, Section, to_text
from raveval.report.html.run_page import model_name, run_page
from raveval.report.html.sweep_page import sweep_page
from raveval.report.numbers import plain
from raveval.types import Results

if TYPE_CHECKING:
    from raveval.sweep import SweepResults

__all__ = ["sweep_to_html", "to_html"]


def to_html(results: Results) -> str:
    """Return report.html of a run.

    A page that cannot be made says why, and where the numbers are: they are never lost for it.
    """
    return _text(lambda: run_page(results), model_name(results.model), "results.json")


def sweep_to_html(results: SweepResults) -> str:
    """Return report.html of a sweep; where it cannot be made, a page that says so."""
    return _text(lambda: sweep_page(results), "Sweep", "sweep.json")


def _text(make: Callable[[], Page], title: str, numbers: str) -> str:
    try:
        page = make()
    except Exception as exc:  # noqa: BLE001 - the numbers are written; a page must not cost the run
        page = _apology(title, numbers, exc)
    return to_text(page)


def _apology(title: str, numbers: str, exc: Exception) -> Page:
    lines = [
        f"{type(exc).__name__}: {plain(exc)}",
        f"All numbers stand in {numbers} and report.md beside this file.",
        "Please report this as a bug of raveval.",
    ]
    verdict = "This page could not be made"
    return Page(title, (), verdict, False, [Section("What happened", [Lines(lines)])])
