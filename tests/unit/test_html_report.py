"""report.html: everything is in it, nothing in it does anything, and it is the same each time."""

import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings

from raveval import report
from raveval.report.html import run_figures
from raveval.report.html.page import Figure, Figures, Fold, Note, Page, Section, Source, to_text
from raveval.report.html.run_page import run_page
from raveval.types import Categories, CountTable, Coverage, Estimate, TaskResults, Usage
from tests.pages import PAYLOAD, Document, results, share
from tests.unit.test_report import RESULTS


@pytest.fixture(scope="module")
def html() -> str:
    return report.to_html(results())


@pytest.fixture(scope="module")
def page(html: str) -> Document:
    return Document(html)


class TestContent:
    def test_opens_with_what_it_is_about(self, page: Document):
        assert next(page.all("html"))["lang"] == "en"
        start = page.text.index("org/model|2026-07-01 09:31 UTC|raveval ")
        assert start < page.text.index("779 of 784 examples scored, 5 missing")

    def test_the_table_says_value_interval_and_coverage(self, page: Document):
        assert "exams|5|accuracy|↑|40.0 %|[36.6, 43.5]|750/755" in page.text.replace("_|", "_")
        assert "wikitext2|0|word_perplexity|23.46|[21.87, 25.14]|20/20" in page.text.replace(
            "_|", "_"
        )
        assert "accuracy_|raw" in page.text, "all numbers stand in a fold"

    def test_it_can_be_pasted_as_markdown(self, html: str):
        assert "| exams | 5 | accuracy | ↑ | 40.0 % | [36.6, 43.5] | 750/755 |" in html

    def test_missing_examples_by_kind_and_the_first_of_each(self, page: Document):
        assert "exams|overlong|2|they need a longer context" in page.text
        assert "exams|failed|3|the engine refused them" in page.text
        assert "|failed|q1|broke|" in page.text
        assert "|overlong|q2|needs 9000 tokens|" in page.text
        first, rest = page.text.split("More of them")
        assert "q3" not in first
        assert "failed|q3|again" in rest

    def test_nothing_missing_has_no_section(self):
        whole = {"t": TaskResults({}, Coverage({"ok": 3}), Usage(), "p", 0, 1)}
        text = Document(report.to_html(results(tasks=whole))).text
        assert "3 of 3 examples scored" in text
        assert "Missing examples" not in text

    def test_remarks_on_scored_examples_stand_in_the_notes(self, page: Document):
        assert "exams: 750 of 755 scored; 2 overlong; 3 failed; 5 without a usable" in page.text
        assert "exams: ties 4" in page.text

    def test_cost_with_rates_and_load_times(self, page: Document):
        assert "exams|120000|800|40.0|3020" in page.text
        assert "grading: judge|70|7|0.0|—" in page.text
        assert "Loading the model: 12.9 s, 13.4 s (each replica)" in page.text
        assert "From start to end: 90 s" in page.text

    def test_replicas_that_were_lost(self):
        times = {"replicas_lost": ["the replica on n1 died: <b>no\x1b memory</b>"]}
        text = Document(report.to_html(replace(results(), times=times))).text
        assert r"Lost: the replica on n1 died: <b>no\x1b memory</b>" in text

    def test_how_it_was_made(self, page: Document):
        for part in ("ab12", "cd34", "seed|1234", "rows.jsonl", "device|cpu"):
            assert part in page.text

    def test_each_section_is_named_by_its_heading(self, page: Document):
        headings = {heading.get("id") for heading in page.all("h2")}
        for section in page.all("section"):
            assert section["aria-labelledby"] in headings
        assert len(headings) == 6

    def test_no_two_elements_have_one_name(self, page: Document):
        names = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
        assert len(names) == len(set(names))

    def test_tables_have_headers_and_figures_words(self, page: Document):
        for header in page.all("th"):
            assert header["scope"] in ("col", "row", "rowgroup")
        drawings = [a for a in page.all("div") if a.get("class") == "drawing"]
        assert len(drawings) == len(list(page.all("svg"))) == 7
        for drawing in drawings:
            assert drawing["role"] == "img"
            assert len(drawing["aria-label"]) > 20

    def test_a_model_on_disk_is_named_by_its_folder(self):
        shown = run_page(results(model="/data/checkpoints/step_1000"))
        assert shown.title == "step_1000"
        assert "/data/checkpoints/step_1000" in shown.facts

    @settings(max_examples=15)
    @given(RESULTS)
    def test_any_results_have_a_page(self, anything):
        document = Document(report.to_html(anything))
        assert "This page could not be made" not in document.text
        assert list(document.all("script")) == []


class TestFigures:
    def test_subjects_are_sorted_and_split_with_both_means(self):
        task = results().tasks["exams"]
        figures = list(run_figures.group_figures("exams", task))
        assert [figure.caption for figure in figures] == ["1 to 13 of 25", "14 to 25 of 25"]
        shown = [Document(figure.svg).texts for figure in figures]
        labels = [text for texts in shown for text in texts if text.startswith("subject_")]
        assert labels == [f"subject_{i:02}" for i in reversed(range(25))]
        for texts in shown:
            assert {"pooled 40.0 %", "macro 40.0 %"} <= set(texts)
        assert "80.0 %" in shown[0]

    def test_of_very_many_groups_the_ends_are_drawn(self):
        groups = {f"g{i:03}": {"accuracy": share(i, 400)} for i in range(400)}
        task = replace(results().tasks["exams"], groups=groups)
        captions = [f.caption for f in run_figures.group_figures("t", task)]
        assert captions[2:4] == ["41 to 60 of 400", "341 to 360 of 400"]
        assert len(captions) == 6

    def test_groups_without_any_value_are_not_drawn(self):
        nothing = Estimate(None, "fraction", 0, "n=0")
        task = replace(results().tasks["exams"], groups={"a": {"accuracy": nothing}})
        assert list(run_figures.group_figures("t", task)) == []

    def test_pairs_of_ratings_with_counts_and_both_histograms(self):
        figures = list(run_figures.table_figures("grading", results().tasks["grading"]))
        assert [figure.title for figure in figures] == [
            "grading: rating and reference rating",
            "grading: length",
        ]
        joint, lengths = (Document(figure.svg).texts for figure in figures)
        # labels below, labels at the side, cells, then the sums above and beside
        assert joint == [
            *("1", "2", "reference rating", "1", "2", "2.333", "rating"),
            *("4", "1", "3", "1"),
            *("5", "4"),
            *("4", "4", "1"),
        ]
        assert "2.333 with reference rating 2: 1" in figures[0].alt
        assert {"8 (89 %)", "1 (11 %)"} <= set(lengths)
        assert "Rounded: length to 50." in figures[1].caption

    def test_rounded_and_exact_ratings_are_never_framed_as_equal(self):
        def frames(step: float | None) -> int:
            sides = Categories("rating", ("1", "2"), step), Categories("reference", ("1", "2"))
            table = CountTable(*sides, ((3, 1), (0, 2)))
            task = replace(results().tasks["grading"], tables={"t": table})
            (figure,) = run_figures.table_figures("t", task)
            return figure.svg.count("stroke: var(--muted)")

        assert (frames(None), frames(1.0)) == (2, 0)

    def test_one_that_cannot_be_drawn_costs_itself_alone(self, monkeypatch: pytest.MonkeyPatch):
        def broken(*_: object) -> str:
            raise RuntimeError(f"no ink{PAYLOAD}")

        monkeypatch.setattr(run_figures, "heat_map", broken)
        document = Document(report.to_html(results()))
        assert "This figure could not be drawn (RuntimeError: no ink" in document.text
        assert len(list(document.all("svg"))) == 6
        assert "40.0 %" in document.text
        assert list(document.all("script")) == []

    def test_without_matplotlib_there_are_numbers(self):
        code = (
            "import sys; sys.modules['matplotlib'] = None\n"
            "from raveval import report\nfrom tests.pages import results\n"
            "print(report.to_html(results()))"
        )
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        document = Document(run.stdout)
        assert "could not be drawn (ModuleNotFoundError" in document.text, run.stderr
        assert "[36.6, 43.5]" in document.text

    def test_a_page_that_cannot_be_made_says_so(self, monkeypatch: pytest.MonkeyPatch):
        def broken(_: object) -> None:
            raise RuntimeError("no page")

        monkeypatch.setattr("raveval.report.html.run_page", broken)
        text = Document(report.to_html(results())).text
        assert "RuntimeError: no page" in text
        assert "report.md" in text


@pytest.fixture(scope="module")
def hostile() -> str:
    return report.to_html(results(PAYLOAD))


class TestHarmless:
    def test_it_is_shown_not_obeyed(self, hostile: str):
        document = Document(hostile)
        assert list(document.all("script")) == []
        assert list(document.all("img")) == []
        for tag, attributes in document.elements:
            assert not [name for name in attributes if name.startswith("on")], tag
        expected = Document(report.to_html(results(model="/data/model")))
        drawing = {"wbr", "text", "g", "path"}  # labels that are longer stand elsewhere
        assert [tag for tag, _ in document.elements if tag not in drawing] == [
            tag for tag, _ in expected.elements if tag not in drawing
        ]
        assert "document.title='owned'" in document.text
        assert "{{ 7 * 7 }}" in document.text

    def test_controls_and_marks_that_reorder_text_are_escaped(self, hostile: str):
        for char in ("\x00", "\x1b", "\u202e", "\u2066", "\ud800"):
            assert char not in hostile
            assert ascii(char)[1:-1] in hostile

    def test_it_can_be_written(self, hostile: str):
        hostile.encode("utf-8")

    def test_text_in_figures_is_no_formula_and_no_colour(self):
        (figure, *_) = run_figures.headline_figures(results("$x^2$ #000001"))
        texts = Document(figure.svg).texts
        assert any("$x^2$ #000001" in text for text in texts)
        assert "var(--" not in "".join(texts)

    def test_only_figures_go_in_as_they_are(self):
        figures = Figures([Figure("<svg></svg>", PAYLOAD, PAYLOAD, PAYLOAD)])
        section = Section(PAYLOAD, [figures, Note(PAYLOAD), Source(PAYLOAD), Fold(PAYLOAD, [])])
        document = Document(to_text(Page(PAYLOAD, [PAYLOAD], PAYLOAD, True, [section])))
        assert list(document.all("script")) == []
        assert len(list(document.all("svg"))) == 1


class TestSelfContained:
    def test_the_policy_forbids_everything_but_style(self, page: Document):
        (policy,) = [m for m in page.all("meta") if m.get("http-equiv")]
        assert policy["http-equiv"] == "Content-Security-Policy"
        rules = dict(rule.split(" ", 1) for rule in policy["content"].split("; "))
        assert rules == {
            "default-src": "'none'",
            "style-src": "'unsafe-inline'",
            "img-src": "data:",
            "base-uri": "'none'",
            "form-action": "'none'",
        }
        first = [tag for tag, _ in page.elements].index("meta") + 1
        assert page.elements[first][1] == policy, "before anything that it is about"

    def test_nothing_is_asked_for(self, html: str, page: Document):
        assert not re.search(r"https?:|@import|@font-face|//[a-z]", html)
        for _, attributes in page.elements:
            assert not {"src", "action", "formaction", "ping", "srcset"} & set(attributes)
            for value in attributes.values():
                assert all(url.startswith("#") for url in re.findall(r"url\(([^)]*)", value))
        links = [a["href"] for tag, a in page.elements if "href" in a and tag != "use"]
        assert links == ["data:,"]
        names = {a["id"] for _, a in page.elements if "id" in a}
        for use in page.all("use"):
            assert use["href"].removeprefix("#") in names

    def test_every_colour_is_the_style_sheets(self, html: str):
        style, body = html.split("</style>")
        used = set(re.findall(r"var\((--[a-z0-9-]+)\)", html))
        defined = set(re.findall(r"(--[a-z0-9-]+):", style))
        assert used <= defined
        assert not re.search(r"#[0-9a-f]{6}\b", body)

    def test_light_and_dark_are_readable(self, html: str):
        style = html.split("</style>")[0]
        light, dark = re.findall(r":root \{(.*?)\}", style, re.DOTALL)[:2]
        for scheme in (light, dark):
            colours = dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", scheme))
            for front in ("text", "muted", "accent", "better", "worse"):
                for back in ("paper", "sheet"):
                    assert contrast(colours[front], colours[back]) >= 4.5, (front, back)
            for kind in ("good", "bad"):
                assert contrast(colours[kind], colours[f"{kind}-back"]) >= 4.5
            fullest = mixed(colours["heat"], colours["paper"], 0.8)
            assert contrast(colours["text"], fullest) >= 4.5

    def test_the_same_results_are_the_same_bytes_in_any_process(self, html: str):
        code = "from raveval import report; from tests.pages import results; import sys;" + (
            "sys.stdout.buffer.write(report.to_html(results()).encode())"
        )
        environment = {**os.environ, "PYTHONHASHSEED": "7"}
        command = [sys.executable, "-c", code]
        run = subprocess.run(command, capture_output=True, env=environment, check=True)
        assert run.stdout.decode() == html

    def test_times_are_all_that_may_differ(self, html: str):
        later = results(times={**results().times, "finished": "2027-01-01T09:31:30+00:00"})
        changed = [
            (a, b)
            for a, b in zip(html.splitlines(), report.to_html(later).splitlines(), strict=True)
            if a != b
        ]
        assert len(changed) == 2
        assert "2026-07-01 09:31 UTC" in changed[0][0]
        assert "From start to end: 90 s" in changed[1][0]


def channels(colour: str) -> list[float]:
    return [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]


def mixed(front: str, back: str, strength: float) -> str:
    pairs = zip(channels(front), channels(back), strict=True)
    shades = [round(255 * (strength * f + (1 - strength) * b)) for f, b in pairs]
    return "#" + "".join(f"{shade:02x}" for shade in shades)


def contrast(a: str, b: str) -> float:
    """The contrast ratio of WCAG 2."""

    def luminance(colour: str) -> float:
        linear = [
            c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels(colour)
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    lighter, darker = sorted((luminance(a), luminance(b)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)
