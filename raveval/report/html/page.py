"""A page as a value: sections of tables, figures and lines, and what becomes of them in HTML.

All text is plain and of any origin; the template escapes it. Only a figure's `svg` goes in as it
is. The page holds no script and asks for nothing: its policy forbids both, whatever data say.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, NamedTuple

from raveval.report.tables import Table

if TYPE_CHECKING:
    from jinja2 import Template


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure, what it shows in words for those who do not see it, and what is written below."""

    svg: str
    alt: str
    caption: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures that stand side by side where there is room."""

    figures: Sequence[Figure]


@dataclass(frozen=True, slots=True)
class Note:
    """A remark on what stands beside it."""

    text: str


@dataclass(frozen=True, slots=True)
class Lines:
    """A list of remarks."""

    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Fields:
    """Names and what they stand for."""

    fields: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Source:
    """Text to copy as it stands, such as Markdown."""

    text: str


@dataclass(frozen=True, slots=True)
class Fold:
    """Blocks that the reader opens by their title."""

    title: str
    blocks: Sequence[Block]


Block = Table | Figures | Note | Lines | Fields | Source | Fold


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands below it."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True)
class Page:
    """A report.

    Attributes:
        title: of the browser's tab as well.
        facts: what the page is about, a line below the title.
        verdict: the first thing to know: whether all examples were scored.
        is_good: whether that is as it should be.
    """

    title: str
    facts: Sequence[str]
    verdict: str
    is_good: bool
    sections: Sequence[Section]


_PARTS = re.compile(r"(?<=[_/])(?=[^_/])")


class Label(NamedTuple):
    """A row's first cell and how many rows it stands for."""

    text: str
    n_rows: int


def to_text(page: Page) -> str:
    """Return the page as one HTML document that needs no other file."""
    return _template().render(page=page, style=_style())


@cache
def _template() -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("raveval.report.html", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "breakable": breakable,
        "kind": lambda block: type(block).__name__,
        "labels": row_labels,
        "slug": slug,
        "svg": Markup,
    }
    return environment.get_template("page.html.jinja")


@cache
def _style() -> str:
    from markupsafe import Markup

    return Markup(resources.files("raveval.report.html").joinpath("page.css").read_text("utf-8"))


def row_labels(table: Table) -> list[Label | None]:
    """Return each row's label; None where the one above holds for the row too.

    >>> row_labels(Table([], [("a", "1"), ("", "2"), ("b", "3")]))
    [Label(text='a', n_rows=2), None, Label(text='b', n_rows=1)]
    """
    labels: list[Label | None] = []
    starts = [place for place, row in enumerate(table.rows) if row[0] or not place]
    ends = [*starts[1:], len(table.rows)]
    for start, end in zip(starts, ends, strict=False):
        labels += [Label(table.rows[start][0], end - start), *[None] * (end - start - 1)]
    return labels


def breakable(text: str) -> str:
    """Return a name, escaped, that may be broken where its parts end.

    >>> breakable("exact_match<")
    Markup('exact_<wbr>match&lt;')
    """
    from markupsafe import Markup, escape

    return Markup("<wbr>").join(map(escape, _PARTS.split(text)))


def slug(title: str) -> str:
    """Return a title as the name of an anchor.

    >>> slug("Accuracy by subject: mmlu")
    'accuracy-by-subject-mmlu'
    """
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "section"
