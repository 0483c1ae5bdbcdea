"""A canvas measured in CSS pixels, and its way into an HTML page as inline SVG.

Whatever is drawn, matplotlib draws it; it is imported only once there is something to draw. Colours
are names of CSS variables, so that a page can be light or dark, and text stays text: it is found,
copied, and set in the page's own font.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from io import StringIO
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 360
"""Of every figure: what a phone shows at full size. Wider screens show several side by side."""

FONT_SIZE = 10.5
CHAR_WIDTH = 6.1
"""Of an average character at FONT_SIZE, generously: the page's font is not known here."""

_DIGITS = 2  # two decimals of a pixel are more than a screen shows
_NUMBER = re.compile(r"\d+\.\d+")
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_REFERENCE = re.compile(r"url\(#([^)]+)\)")
_FAMILY = re.compile(r" ?font-family: [^;]*;")


class Ink(StrEnum):
    """Colours by what they mean; each value is a colour that nobody else uses, replaced at last."""

    TEXT = "#000001"
    MUTED = "#000002"
    LINE = "#000003"
    ACCENT = "#000004"
    BETTER = "#000005"
    WORSE = "#000006"
    HEAT = "#000007"
    PAPER = "#00000e"
    SERIES_1 = "#000008"
    SERIES_2 = "#000009"
    SERIES_3 = "#00000a"
    SERIES_4 = "#00000b"
    SERIES_5 = "#00000c"
    SERIES_6 = "#00000d"

    @property
    def variable(self) -> str:
        """The CSS variable that holds the colour."""
        return f"--{self.name.lower().replace('_', '-')}"


_INK = re.compile("|".join(Ink))


class Canvas:
    """A figure under way; made by `canvas`."""

    def __init__(self, figure: Figure) -> None:
        self._figure = figure

    def axes(self, *, left: float, top: float, width: float, height: float) -> Axes:
        """Return axes that fill a rectangle, in pixels from the upper left; they show no frame."""
        whole_width, whole_height = (
            72 * self._figure.get_figwidth(),
            72 * self._figure.get_figheight(),
        )
        bottom = whole_height - top - height
        axes = self._figure.add_axes(
            (
                left / whole_width,
                bottom / whole_height,
                width / whole_width,
                height / whole_height,
            )
        )
        axes.tick_params(length=0)
        axes.set_axisbelow(True)
        for spine in axes.spines.values():
            spine.set_visible(False)
        return axes

    def svg(self) -> str:
        """Return the figure as an `<svg>` element that an HTML page can hold."""
        stream = StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        with warnings.catch_warnings():
            # It measures text in a font of its own, which need not have every script.
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            self._figure.savefig(stream, format="svg", transparent=True, metadata=nothing)
        return inline(stream.getvalue())


@contextmanager
def canvas(height: float, width: float = WIDTH) -> Iterator[Canvas]:
    """Give a canvas of this size in pixels; the user's own settings of matplotlib do not count."""
    import matplotlib.style
    from matplotlib.figure import Figure

    settings = {
        "svg.fonttype": "none",
        "svg.hashsalt": "raveval",
        "font.family": "DejaVu Sans",  # comes with matplotlib, so sizes are the same everywhere
        "font.size": FONT_SIZE,
        "text.color": Ink.TEXT,
        "text.parse_math": False,
        "axes.labelcolor": Ink.MUTED,
        "xtick.color": Ink.MUTED,
        "ytick.color": Ink.MUTED,
        "axes.formatter.useoffset": False,
        "axes.unicode_minus": False,  # as tables have it
        "axes.formatter.use_mathtext": False,
        "path.simplify": False,
    }
    with matplotlib.style.context(["default", settings], after_reset=True):
        yield Canvas(Figure(figsize=(width / 72, height / 72), dpi=72))


def inline(document: str) -> str:
    """Return an SVG document of matplotlib's as an element for an HTML page.

    Taken out are what would reach beyond the figure (style sheets, metadata, the document type),
    names of elements that nothing refers to, and the size, which is the page's to choose. Those
    names that are needed are made the figure's own.
    """
    root = ElementTree.fromstring(_NOT_XML.sub("\N{REPLACEMENT CHARACTER}", document))
    used = set(_REFERENCE.findall(document)) | set(re.findall(r'xlink:href="#([^"]+)"', document))
    own = hashlib.blake2b(document.encode(), digest_size=4).hexdigest()
    for element in root.iter():
        element.tag = _local(element.tag)
        element.attrib = _attributes(element.attrib, used, own)
        element.tail = None
        if element.tag != "text":
            element.text = None
    _prune(root)
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    return ElementTree.tostring(root, encoding="unicode")


def _prune(parent: ElementTree.Element) -> None:
    """Take out what shows nothing: foreign sections, areas without colour, empty groups."""
    for child in list(parent):
        _prune(child)
        is_bare = child.tag == "path" and child.get("style") == "fill: none"
        is_empty = child.tag in ("g", "defs") and not len(child)
        if is_bare or is_empty or child.tag in ("metadata", "style"):
            parent.remove(child)


def _attributes(attributes: dict[str, str], used: set[str], own: str) -> dict[str, str]:
    """Return the attributes of an element without names nobody needs, in few digits."""
    kept = {}
    for name, value in attributes.items():
        key, text = _local(name), value
        if key == "id":
            if value in used:
                kept[key] = f"{own}-{value}"
            continue
        if key == "href":
            text = f"#{own}-{value.removeprefix('#')}"
        elif "url(#" in value:
            text = _REFERENCE.sub(lambda found: f"url(#{own}-{found[1]})", value)
        elif key == "style":
            text = _FAMILY.sub("", value)
            text = _INK.sub(lambda found: f"var({Ink(found[0]).variable})", text)
        else:
            text = _NUMBER.sub(_rounded, value)
        kept[key] = text
    return kept


def _rounded(found: re.Match[str]) -> str:
    """Return a number in few digits; "1." is none in SVG."""
    return f"{float(found[0]):.{_DIGITS}f}".rstrip("0").rstrip(".")


def _local(name: Any) -> str:
    return str(name).rpartition("}")[2]


def text_width(text: str) -> float:
    """Return about how many pixels a text takes at FONT_SIZE; wide characters take two places."""
    n_wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return CHAR_WIDTH * (len(text) + n_wide)


def shortened(text: str, limit: int) -> str:
    """Return a text of at most `limit` characters; its middle is left out, as names differ at ends.

    >>> shortened("high_school_government_and_politics", 24)
    'high_school_g…d_politics'
    """
    if len(text) <= limit:
        return text
    n_last = (limit - 1) * 5 // 11
    return f"{text[: limit - 1 - n_last]}…{text[len(text) - n_last :]}"
