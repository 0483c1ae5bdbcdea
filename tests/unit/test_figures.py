"""Figures as functions of plain values: where things stand, what is written, and no surprises."""

import itertools
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raveval.comparison import Difference, Verdict
from raveval.metrics import _intervals as intervals
from raveval.report.checkpoints import checkpoint_table, trajectories
from raveval.report.html.canvas import WIDTH, Ink, canvas, shortened, text_width
from raveval.report.html.count_figures import Joint, heat_map, histogram
from raveval.report.html.figures import (
    Axis,
    IntervalRow,
    Series,
    training_curve,
)
from raveval.report.html.figures import intervals as forest
from raveval.report.html.page import Figures, Page, Section, to_text
from raveval.report.html.sweep_figures import curve_figure, curve_figures, difference_figures
from raveval.types import Coverage, Estimate, Results, TaskResults, Usage
from tests.pages import Document

FINITE = st.floats(allow_nan=False, allow_infinity=False, width=32)


def row(
    label: str, value: float | None, text: str = "x", *, mark: float | None = None
) -> IntervalRow:
    if value is None:
        return IntervalRow(label, None, None, None, text, mark)
    return IntervalRow(label, value, value - 0.1, value + 0.1, text, mark)


def lines(svg: str, ink: Ink) -> list[list[tuple[float, float]]]:
    """The points of each line of this colour."""
    found = []
    for element, attributes in Document(svg).elements:
        if element == "path" and f"stroke: var({ink.variable})" in attributes.get("style", ""):
            numbers = [float(n) for n in re.findall(r"-?[\d.]+", attributes["d"])]
            found.append(list(zip(numbers[::2], numbers[1::2], strict=True)))
    return [points for points in found if len(points) == 2]


def uses(svg: str, ink: Ink) -> list[tuple[float, float]]:
    """Where the marks of this colour stand."""
    return [
        (float(a["x"]), float(a["y"]))
        for a in Document(svg).all("use")
        if f"var({ink.variable})" in a["style"] and a["x"] != "0"  # where a band's outline begins
    ]


def texts_at(svg: str) -> dict[str, tuple[float, float]]:
    document = Document(svg)
    places = [(float(a["x"]), float(a["y"])) for a in document.all("text")]
    return dict(zip(document.texts, places, strict=True))


class TestForest:
    def test_values_stand_on_their_axis_and_rows_below_each_other(self):
        rows = [row("first", 0.2), row("second", 0.8)]
        svg = forest(rows, Axis("%", "percent", (0.0, 1.0)))
        places = texts_at(svg)
        zero, hundred = places["0"][0], places["100"][0]
        marks = uses(svg, Ink.ACCENT)
        assert [(x - zero) / (hundred - zero) for x, _ in marks] == pytest.approx(
            [0.2, 0.8], abs=0.01
        )
        assert marks[0][1] < marks[1][1]
        bars = lines(svg, Ink.ACCENT)
        ends = [[(x - zero) / (hundred - zero) for x, _ in bar] for bar in bars]
        assert ends == [pytest.approx([0.1, 0.3], abs=0.01), pytest.approx([0.7, 0.9], abs=0.01)]
        assert abs(places["first"][1] - marks[0][1]) < 6, "beside its label"

    def test_long_labels_stand_above_and_whole(self):
        label = "demo_ranking · accuracy_without_human_ties"
        svg = forest([row(label, 0.2, "20.0 %")], Axis("%", "percent", (0.0, 1.0)))
        places = texts_at(svg)
        assert places[label][1] < uses(svg, Ink.ACCENT)[0][1] - 4
        assert places[label][0] < 20

    def test_labels_of_any_length_leave_room_for_the_values(self):
        svg = forest([row("x" * 200, 0.2, "20.0 %")], Axis("%", "percent", (0.0, 1.0)))
        places = texts_at(svg)
        (label,) = (text for text in places if text.startswith("x"))
        assert "…" in label
        end = places[label][0] + text_width(label)
        assert end < places["20.0 %"][0] - text_width("20.0 %")

    def test_what_has_no_value_has_a_row_without_a_mark(self):
        svg = forest([row("none", None, "—"), row("some", 0.5)], Axis("ratio"))
        assert {"none", "—"} <= set(texts_at(svg))
        assert len(uses(svg, Ink.ACCENT)) == 1

    def test_lines_are_named_once_and_marks_are_drawn(self):
        axis = Axis("%", "percent", (0.0, 1.0), (("pooled 50 %", 0.5), ("", 0.0)))
        svg = forest([row("a", 0.5, mark=0.25)], axis)
        assert "pooled 50 %" in texts_at(svg)
        assert len(uses(svg, Ink.MUTED)) == 1

    def test_a_logarithmic_axis_has_equal_steps_for_equal_factors(self):
        rows = [IntervalRow(str(v), v, None, None, "") for v in (10.0, 100.0, 1000.0)]
        svg = forest(rows, Axis("perplexity", "log"))
        x = [x for x, _ in uses(svg, Ink.ACCENT)]
        assert x[1] - x[0] == pytest.approx(x[2] - x[1], abs=0.1)

    @pytest.mark.parametrize("largest", [30.0, 1e3, 1e9, 1e15, 1e120])
    def test_a_logarithmic_axis_is_marked_however_wide_it_is(self, largest: float):
        values = [10.0, largest]
        row = IntervalRow("", largest, 10.0, largest, "")
        axis = Axis("perplexity", "log")
        for svg in (
            forest([row], axis),
            training_curve([1.0, 2.0], [Series("", values, values, values)], axis),
        ):
            marks = [text for text in texts_at(svg) if re.fullmatch(r"\d+(e\d+)?", text)]
            assert 2 <= len(marks) <= 10, marks

    def test_every_number_is_one_of_svg(self):
        svg = forest([row("first", 0.2)], Axis("%", "percent", (0.0, 1.0)))
        for _, attributes in Document(svg).elements:
            for name in ("x", "y", "width", "height"):
                if name in attributes:
                    assert re.fullmatch(r"-?(\d+|\d*\.\d+)", attributes[name]), attributes

    @settings(max_examples=20)
    @given(st.lists(st.tuples(FINITE, FINITE, FINITE), min_size=1, max_size=5))
    def test_any_numbers_can_be_drawn(self, values):
        rows = [IntervalRow("r", v, min(a, b), max(a, b), "t") for v, a, b in values]
        assert Document(forest(rows, Axis("ratio"))).texts.count("r") == len(rows)


class TestHeatMap:
    JOINT = Joint(
        "judge",
        "human",
        ("a", "tie", "b"),
        ("a", "tie", "b"),
        ((9, 1, 2), (0, 1, 0), (3, 0, 4)),
        True,
    )

    def test_counts_stand_in_their_cells_and_sums_at_their_sides(self):
        texts = Document(heat_map(self.JOINT)).texts
        assert texts[-6:] == ["12", "2", "6", "12", "1", "7"]
        assert texts[8:-6] == ["9", "1", "2", "1", "3", "4"]

    def test_fuller_cells_are_darker_and_empty_ones_have_no_colour(self):
        filled = re.findall(r"fill: var\(--heat\); opacity: ([\d.]+)", heat_map(self.JOINT))
        strengths = [float(strength) for strength in filled]
        assert max(strengths) == strengths[0] == pytest.approx(0.8)
        assert len(strengths) == 6, "of nine cells three are empty"

    def test_equal_values_are_framed_only_on_one_scale(self):
        def frames(is_same_scale: bool) -> int:
            svg = heat_map(self.JOINT._replace(is_same_scale=is_same_scale))
            return svg.count("stroke: var(--muted)")

        assert (frames(True), frames(False)) == (3, 0)

    def test_labels_that_do_not_fit_are_turned(self):
        labels = tuple(f"{i / 3:.4g}" for i in range(3, 16))
        joint = Joint("r", "f", labels, labels, tuple(((1,) * 13,) * 13), True)
        assert heat_map(joint).count("rotate(-90") == 13 + 1  # and the name of the rows

    def test_a_single_value_is_a_table_too(self):
        assert "7" in Document(heat_map(Joint("r", "f", ("1",), ("2",), ((7,),), True))).texts


def test_a_histogram_says_count_and_share():
    texts = Document(histogram(("1", "2"), (3, 1), "rating")).texts
    assert texts == ["1", "2", "rating", "3 (75 %)", "1 (25 %)"]


class TestCurve:
    def test_a_step_without_value_is_a_gap(self):
        values = [0.1, 0.2, None, 0.4, 0.5]
        svg = training_curve(
            [1, 2, 3, 4, 5], [Series("a", values, values, values)], Axis("%", "percent")
        )
        style = f"stroke: var({Ink.SERIES_1.variable}); stroke-width: 1.6"
        (curve,) = [a["d"] for a in Document(svg).all("path") if style in a.get("style", "")]
        assert curve.count("M") == 2
        assert len(uses(svg, Ink.SERIES_1)) == 4

    def test_an_interval_between_gaps_is_a_bar(self):
        values, lows, highs = [0.1, 0.2, None, 0.4], [0.0, 0.1, None, 0.3], [0.2, 0.3, None, 0.6]
        svg = training_curve([1, 2, 3, 4], [Series("a", values, lows, highs)], Axis("x"))
        bars = [each for each in lines(svg, Ink.SERIES_1) if each[0][0] == each[1][0]]
        assert len(bars) == 1
        (_, y), (_, other) = bars[0]
        (x, _) = uses(svg, Ink.SERIES_1)[-1]
        assert bars[0][0][0] == pytest.approx(x, abs=0.1)
        assert abs(y - other) > 0

    def test_several_series_have_names_one_alone_has_none(self):
        one = Series("accuracy", [0.1, 0.2], [0.0, 0.1], [0.2, 0.3])
        two = one._replace(label="f1")
        assert "accuracy" not in Document(training_curve([1, 2], [one], Axis("%"))).texts
        assert {"accuracy", "f1"} <= set(
            Document(training_curve([1, 2], [one, two], Axis("%"))).texts
        )

    def test_steps_are_written_short(self):
        one = Series("a", [1.0, 2.0], [1.0, 2.0], [1.0, 2.0])
        texts = Document(training_curve([0, 143000], [one], Axis("x"))).texts
        assert {"0", "50k", "100k", "training step"} <= set(texts)

    def test_steps_that_double_are_equally_far_apart(self):
        steps = [2.0**i for i in range(9)]
        one = Series("a", steps, steps, steps)
        x = [x for x, _ in uses(training_curve(steps, [one], Axis("x")), Ink.SERIES_1)]
        gaps = [b - a for a, b in itertools.pairwise(x)]
        assert max(gaps) - min(gaps) < 0.1

    def test_nothing_known_is_no_error(self):
        empty = curve_figure("t", [1, 2], {"accuracy": [None, None]})
        assert "could not be drawn" not in empty.caption


class TestCanvas:
    def test_the_users_settings_do_not_count_and_stay(self):
        usual = forest([row("a", 0.5)], Axis("ratio"))
        with mpl.rc_context({"font.size": 30, "svg.fonttype": "path", "axes.grid": True}):
            assert forest([row("a", 0.5)], Axis("ratio")) == usual
            assert mpl.rcParams["font.size"] == 30

    def test_names_are_the_figures_own(self):
        a, b = (forest([row(label, 0.5)], Axis("ratio")) for label in ("a", "b"))
        names = [{x["id"] for _, x in Document(svg).elements if "id" in x} for svg in (a, b)]
        assert names[0]
        assert not names[0] & names[1]

    def test_nothing_reaches_beyond_the_figure(self):
        text = "</svg><script>{{ 7 * 7 }}"
        svg = forest([row(text, 0.5, text)], Axis(text, "linear", None, ((text, 0.5),)))
        document = Document(svg)
        kinds = {tag for tag, _ in document.elements}
        assert kinds == {"svg", "g", "defs", "path", "text", "use", "clippath", "rect"}
        assert "xmlns" not in svg
        assert document.texts.count(text) == 4

    def test_other_scripts_are_drawn_without_a_warning(self):
        assert "日本語 עברית" in Document(forest([row("日本語 עברית", 0.5)], Axis("x"))).texts

    def test_a_canvas_is_as_wide_as_a_phone(self):
        with canvas(100) as sheet:
            sheet.axes(left=0, top=0, width=10, height=10)
            assert f'viewBox="0 0 {WIDTH} 100"' in sheet.svg()

    def test_names_differ_at_their_ends(self):
        assert shortened("short", 10) == "short"
        assert shortened("a" * 30 + "_end", 12) == "aaaaaa…a_end"


def sweep(folder: Path, shots: str) -> Mapping[str, Results]:
    """The results of the Pythia suite by model, smallest first."""

    def size(path: Path) -> float:
        number, unit = re.findall(r"pythia-([\d.]+)([mb])", str(path))[0]
        return float(number) * {"m": 1e6, "b": 1e9}[unit]

    paths = sorted(folder.glob(f"*/{shots}/*.json"), key=lambda p: (size(p), str(p)))
    return {path.parts[-3]: results_of(path) for path in paths}


def results_of(path: Path) -> Results:
    tasks = {}
    for name, numbers in json.loads(path.read_text("utf-8"))["results"].items():
        metrics = {}
        if "acc" in numbers:
            p, stderr = numbers["acc"], numbers["acc_stderr"]
            n = round(p * (1 - p) / stderr**2 + 1)
            metrics["accuracy"] = intervals.proportion(round(p * n), n)
        if "ppl" in numbers:
            value, stderr = numbers["ppl"], numbers["ppl_stderr"]
            low, high = value - 1.96 * stderr, value + 1.96 * stderr
            metrics["word_perplexity"] = Estimate(value, "perplexity", 5153, low=low, high=high)
        if metrics and not name.startswith("hendrycks"):
            tasks[name] = TaskResults(metrics, Coverage({"ok": 1}), Usage(), "p", 0, 1)
    return Results(path.parts[-3], tasks, {}, {})


@pytest.fixture(scope="module")
def runs(shared_data: Path) -> Mapping[str, Results]:
    """Sixteen Pythia models, as lm-eval measured them."""
    found = sweep(shared_data / "pythia_evals", "zero-shot")
    assert len(found) == 16
    return found


class TestSweepOfRealModels:
    def test_all_checkpoints_stand_in_one_table(self, runs: Mapping[str, Results]):
        table = checkpoint_table({**runs, "broken": None})
        titles = [column.title for column in table.columns]
        assert [row[0] for row in table.rows] == [*runs, "broken"]
        place = titles.index("lambada_openai accuracy")
        cells = dict(zip(runs, (row[place] for row in table.rows), strict=False))
        assert cells["pythia-1.4b"] == "61.6 % [60.3, 62.9]"
        assert {*table.rows[-1][1:]} == {"—"}

    def test_metrics_over_checkpoints_with_bands_and_gaps(self, runs: Mapping[str, Results]):
        steps = [float(place) for place in range(1, len(runs) + 1)]
        results = [None if name == "pythia-1b-deduped" else run for name, run in runs.items()]
        figures = {f.title: f for f in curve_figures(steps, results, steps_name="model")}
        lambada = figures["lambada_openai: accuracy"]
        assert lambada.alt == "Curves over 16 steps. accuracy: from 19.2 % to 70.5 %"
        assert len(uses(lambada.svg, Ink.SERIES_1)) == 15
        assert "model" in Document(lambada.svg).texts
        assert "lambada_openai: word_perplexity" in figures
        assert not [f for f in figures.values() if "could not be drawn" in f.caption]
        y = [y for _, y in uses(lambada.svg, Ink.SERIES_1)]
        values = [
            e.value
            for path in trajectories(results)
            if (path.task, path.metric) == ("lambada_openai", "accuracy")
            for e in path.estimates
            if e is not None and e.value is not None
        ]
        order = sorted(range(15), key=lambda i: values[i])
        assert order == sorted(range(15), key=lambda i: -y[i]), "higher is higher up"

    def test_differences_as_a_forest_with_corrected_p(self, runs: Mapping[str, Results]):
        names = [name for name in runs if "deduped" not in name]
        differences = [
            difference(runs[names[-1]], runs[name], name, p_holm=0.012 if place % 2 else None)
            for place, name in enumerate(names[:-1])
        ]
        (figure,) = difference_figures(differences, lambda d: d.run)
        texts = Document(figure.svg).texts
        assert "-13.3 pp, p 0.012" in texts
        assert "-16.5 pp (p 0.003)" in texts
        assert texts.index("pythia-70m") < texts.index("pythia-160m") < texts.index("pythia-6.9b")
        kinds = {ink: len(uses(figure.svg, ink)) for ink in (Ink.BETTER, Ink.WORSE, Ink.MUTED)}
        assert kinds == {Ink.BETTER: 0, Ink.WORSE: 5, Ink.MUTED: 2}

    def test_perplexities_differ_by_factors(self):
        differences = [
            Difference(
                *("text", name, "word_perplexity", "perplexity", False, 100.0, 100 * ratio, None),
                ratio=ratio,
                ratio_low=ratio / 2,
                ratio_high=ratio * 2,
            )
            for name, ratio in (("early", 1e9), ("late", 1.0), ("later", 1e-9))
        ]
        (figure,) = difference_figures(differences, lambda d: d.run)
        assert figure.title == "Ratios, perplexity"
        texts = Document(figure.svg).texts
        assert {"×1.000e+09", "×1.000", "×1.000e-09"} <= set(texts)
        x = [x for x, _ in uses(figure.svg, Ink.MUTED)]
        assert x[0] - x[1] == pytest.approx(x[1] - x[2], abs=0.1)

    def test_a_page_is_made_of_them(self, runs: Mapping[str, Results]):
        steps = [float(place) for place in range(1, len(runs) + 1)]
        figures = Figures(curve_figures(steps, list(runs.values())))
        section = Section("Checkpoints", [checkpoint_table(runs), figures])
        html = to_text(Page("sweep", (), "16 of 16", True, [section]))
        assert len(list(Document(html).all("svg"))) == len(figures.figures) == 9
        assert len(html) < 1_500_000


def difference(baseline: Results, run: Results, name: str, *, p_holm: float | None) -> Difference:
    a, b = (each.tasks["piqa"].metrics["accuracy"] for each in (baseline, run))
    assert a.value is not None
    assert b.value is not None
    value, half = b.value - a.value, 1.96 * math.hypot(a.stderr or 0, b.stderr or 0)
    verdict = Verdict.WORSE if value + half < 0 else Verdict.NOT_SHOWN
    return Difference(
        *("piqa", name, "accuracy", "fraction", True, a.value, b.value, value, verdict),
        low=value - half,
        high=value + half,
        p=0.003,
        p_holm=p_holm,
    )
