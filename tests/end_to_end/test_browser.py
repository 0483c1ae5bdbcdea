"""report.html in a real browser: it shows something, it fits, and no text of data ever runs."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from PIL import Image

from raveval import report
from tests.browser import NAMES, Browser, find
from tests.pages import PAYLOAD, results

OWNED = "<title>owned</title>"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    """A browser; skips where none is installed."""
    program = find()
    if program is None:
        pytest.skip(f"no browser is installed ({', '.join(NAMES)}): pages are not looked at")
    return Browser(program, tmp_path_factory.mktemp("browser"))


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Pages by name: an ordinary one, one of hostile data, and one into which a script got."""
    folder = tmp_path_factory.mktemp("pages")
    hostile = report.to_html(results(PAYLOAD))
    assert "</body>" in hostile
    script = "<script>document.title='owned'</script>"
    html = {
        "ordinary": report.to_html(results()),
        "hostile": hostile,
        "broken_into": hostile.replace("</body>", f"{script}</body>"),
        "without_policy": f"<title>safe</title>{script}",
    }
    paths = {name: folder / f"{name}.html" for name in html}
    for name, path in paths.items():
        path.write_text(html[name], encoding="utf-8")
    return paths


class TestNothingRuns:
    def test_a_script_would_be_noticed(self, browser: Browser, pages: Mapping[str, Path]):
        assert OWNED in browser.document(pages["without_policy"])

    def test_hostile_data_are_shown_and_do_nothing(
        self, browser: Browser, pages: Mapping[str, Path]
    ):
        found = browser.document(pages["hostile"])
        assert OWNED not in found
        assert "<title>" in found
        assert "&lt;script&gt;document.title='owned'&lt;/script&gt;" in found

    def test_a_script_that_got_in_is_stopped_by_the_policy(
        self, browser: Browser, pages: Mapping[str, Path]
    ):
        found = browser.document(pages["broken_into"])
        assert "<script>document.title='owned'</script>" in found
        assert OWNED not in found


@pytest.mark.parametrize("name", ["ordinary", "hostile"])
def test_it_fits_wide_and_narrow_windows(
    browser: Browser, pages: Mapping[str, Path], tmp_path: Path, name: str
):
    """No window scrolls sideways, and all figures are inside of it, as high as they should be."""
    probe = tmp_path / "probe.html"
    frames = "".join(
        f'<iframe src="{pages[name].as_uri()}" width="{width}" height="900"></iframe>'
        for width in (1400, 390)
    )
    probe.write_text(
        f"{frames}<script>onload = () => document.title = [...document.querySelectorAll('iframe')]"
        ".map(frame => frame.contentDocument).map(page => [page.documentElement.scrollWidth,"
        "page.querySelectorAll('svg').length, ...[...page.querySelectorAll('svg')].map(svg =>"
        "Math.round(svg.getBoundingClientRect().right))].join(' ')).join(';')</script>"
    )
    flags = ("--allow-file-access-from-files", "--window-size=1900,2000")
    title = re.search("<title>(.*)</title>", browser.document(probe, *flags))
    assert title is not None
    for width, measured in zip((1400, 390), title[1].split(";"), strict=True):
        page_width, n_figures, *edges = map(int, measured.split())
        assert page_width <= width
        assert n_figures == len(edges) == 7
        assert max(edges) <= width
        assert min(edges) > 0


@pytest.mark.parametrize("width", [1400, 390])
def test_the_picture_is_not_blank(browser: Browser, pages: Mapping[str, Path], width: int):
    with Image.open(browser.picture(pages["ordinary"], width=width, height=2400)) as opened:
        picture = opened.convert("RGB")
    assert picture.width == width
    colours = picture.getcolors(maxcolors=1 << 24)
    assert colours is not None
    n_paper, paper = max(colours)
    assert len(colours) > 100, "text has soft edges, figures have colours"
    assert 0.5 < n_paper / (picture.width * picture.height) < 0.97
    bands = [
        picture.crop((0, top, width, top + 300)).getcolors(maxcolors=1 << 24)
        for top in range(0, 1800, 300)
    ]
    assert all(band is not None and len(band) > 20 for band in bands), "there is something all down"
    blues = [n for n, (r, g, b) in colours if b > 150 and r < 60]  # type: ignore[misc]
    assert sum(blues) > 200, "intervals and cells are drawn"
    assert paper != (0, 0, 0)
