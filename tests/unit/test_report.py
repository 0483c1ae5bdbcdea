"""The report: an exact way back from JSON, and tables that never lose or obey anything."""

import csv
import dataclasses
import io
import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from raveval import __version__, report
from raveval.errors import DataError
from raveval.measurement import Measurement
from raveval.metrics._averages import macro_averages
from raveval.report.numbers import interval_text, plain, value_text
from raveval.report.tables import coverage_text
from raveval.types import (
    Categories,
    CountTable,
    Coverage,
    Estimate,
    Results,
    Status,
    TaskResults,
    Usage,
)

TEXT = st.text(max_size=12)
NAME = st.text(min_size=1, max_size=8)
COUNT = st.integers(0, 2**70)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
NUMBER = st.none() | FINITE
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | FINITE | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
ESTIMATES = st.builds(
    Estimate,
    value=NUMBER,
    unit=st.sampled_from(["fraction", "perplexity", "ratio"]) | TEXT,
    n=COUNT,
    reason=st.none() | TEXT,
    stderr=NUMBER,
    low=NUMBER,
    high=NUMBER,
    interval=st.none() | TEXT,
    higher_is_better=st.none() | st.booleans(),
    no_interval=st.none() | TEXT,
)
METRICS = st.dictionaries(NAME, ESTIMATES, max_size=3)
CATEGORIES = st.builds(Categories, TEXT, st.just(("1", "2")), st.none() | st.just(0.5))
ROW = st.tuples(COUNT, COUNT)
TABLES = st.builds(CountTable, CATEGORIES, CATEGORIES, st.tuples(ROW, ROW)) | st.builds(
    CountTable, CATEGORIES, st.none(), st.just(((3,), (4,)))
)
TASKS = st.builds(
    TaskResults,
    metrics=METRICS,
    coverage=st.builds(
        Coverage, st.dictionaries(st.sampled_from([str(s) for s in Status]), COUNT, max_size=4)
    ),
    usage=st.builds(Usage, COUNT, COUNT, FINITE),
    protocol=TEXT,
    num_fewshot=COUNT,
    version=COUNT,
    groups=st.dictionaries(NAME, METRICS, max_size=2),
    failures=st.dictionaries(NAME, TEXT, max_size=2),
    tables=st.dictionaries(NAME, TABLES, max_size=2),
)
RESULTS = st.builds(
    Results,
    model=TEXT,
    tasks=st.dictionaries(NAME, TASKS, max_size=2),
    fingerprints=st.dictionaries(NAME, st.dictionaries(NAME, TEXT, max_size=2), max_size=2),
    settings=st.dictionaries(NAME, JSON, max_size=3),
    times=st.dictionaries(NAME, JSON, max_size=2),
)


def example_results(**changes) -> Results:
    metrics = {
        "accuracy_raw": Estimate(0.5, "fraction", 98, None, 0.05, 0.403, 0.597, "wilson95", True),
        "accuracy": Estimate(0.54, "fraction", 98, None, 0.05, 0.443, 0.634, "wilson95", True),
        "accuracy_unconditional": Estimate(None, "fraction", 0, "not measured"),
        "mine": Estimate(12.0, "ratio", 95),
    }
    groups = {
        "physics": {"accuracy": Estimate(0.4, "fraction", 49, low=0.27, high=0.54)},
        "law": {"accuracy": Estimate(0.68, "fraction", 49, low=0.54, high=0.79)},
    }
    choice = TaskResults(
        metrics,
        Coverage({"ok": 96, "unparsed": 1, "truncated": 1, "overlong": 2}),
        Usage(1000, 20, 1.5),
        "multiple_choice",
        5,
        1,
        groups,
        {"q1": "overlong: needs 5000 tokens"},
        macro=macro_averages(groups),
        tables={"rating": CountTable(Categories("rating", ("1", "2")), None, ((3,), (4,)))},
    )
    text = TaskResults(
        {"word_perplexity": Estimate(23.4567, "perplexity", 20, low=21.871, high=25.14)},
        Coverage({"ok": 20}),
        Usage(7, 2, 3.0),
        "language_modelling",
        0,
        1,
    )
    given = {
        "model": "org/model",
        "tasks": {"arc_easy": choice, "wikitext2": text},
        "fingerprints": {"arc_easy": {"reply": "ab", "score": "cd"}},
        "settings": {
            "seed": 1234,
            "unset": "",
            "engine": {"name": "vllm"},
            "loaded": [{"dtype": "float32"}],
        },
        "times": {"started": "2026-01-01T00:00:00+00:00"},
    }
    return Results(**{**given, **changes})


def printed(results: Results, **console) -> str:
    stream = io.StringIO()
    report.print_table(results, Console(file=stream, **console))
    return stream.getvalue()


class TestJson:
    @given(RESULTS)
    def test_comes_back_exactly(self, results):
        text = report.to_json(results)
        assert report.from_json(text) == results
        assert report.to_json(report.from_json(text)) == text
        assert text.isascii()

    def test_of_a_version_that_knew_no_reasons_for_intervals_is_read(self):
        content = json.loads(report.to_json(example_results()))
        for task in content["tasks"].values():
            groups = [task["metrics"], task.get("macro", {}), *task.get("groups", {}).values()]
            for estimate in (e for group in groups for e in group.values()):
                assert "no_interval" in estimate
                del estimate["no_interval"]
        assert report.from_json(json.dumps(content)) == example_results()

    def test_has_the_documented_shape(self):
        content = json.loads(report.to_json(example_results()))
        assert list(content) == [
            *("model", "tasks", "fingerprints", "settings", "raveval_version", "times")
        ]
        assert content["raveval_version"] == __version__
        task = content["tasks"]["arc_easy"]
        assert task["metrics"]["accuracy"] == {
            "value": 0.54,
            "reason": None,
            "unit": "fraction",
            "n": 98,
            "stderr": 0.05,
            "low": 0.443,
            "high": 0.634,
            "interval": "wilson95",
            "no_interval": None,
            "higher_is_better": True,
        }
        assert list(task["metrics"]) == [
            "accuracy_raw",
            "accuracy",
            "accuracy_unconditional",
            "mine",
        ]
        assert task["coverage"]["n_attempted"] == 100
        assert task["coverage"]["n_scored"] == 98
        assert task["coverage"]["by_status"]["overlong"] == 2
        assert task["usage"] == {
            "n_prompt_tokens": 1000,
            "n_output_tokens": 20,
            "engine_seconds": 1.5,
        }
        assert task["groups"]["law"]["accuracy"]["value"] == 0.68
        assert task["macro"]["accuracy"]["n"] == 2
        assert not {"groups", "macro"} & set(content["tasks"]["wikitext2"])

    @pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
    def test_refuses_to_write_what_is_no_number(self, number):
        task = example_results().tasks["wikitext2"]
        broken = {"bits_per_byte": Estimate(number, "bits", 1)}
        tasks = {"t": TaskResults(broken, task.coverage, task.usage, "language_modelling", 0, 1)}
        with pytest.raises(ValueError, match="JSON"):
            report.to_json(example_results(tasks=tasks))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda c: c.pop("model"), "model: missing"),
            (lambda c: c.update(tasks=[]), "tasks: expected dict"),
            (lambda c: c["tasks"].update(t=3), "tasks.t: expected a mapping"),
            (
                lambda c: c["tasks"]["arc_easy"]["metrics"]["accuracy"].update(value="0.5"),
                "tasks.arc_easy.metrics.accuracy.value: expected int or float or null",
            ),
            (
                lambda c: c["tasks"]["arc_easy"]["metrics"]["accuracy"].update(n=True),
                "tasks.arc_easy.metrics.accuracy.n: expected int",
            ),
            (
                lambda c: c["tasks"]["arc_easy"]["coverage"].update(n_scored=99),
                "coverage.n_scored: is 99, by_status says 98",
            ),
            (
                lambda c: c["tasks"]["arc_easy"]["coverage"]["by_status"].update(lost=1),
                "coverage.by_status: 'lost'",
            ),
            (
                lambda c: c["tasks"]["arc_easy"]["tables"]["rating"].update(counts=[[3]]),
                "tasks.arc_easy.tables.rating.counts: not a count for each pair of labels",
            ),
            (
                lambda c: c["tasks"]["arc_easy"]["tables"]["rating"]["rows"].update(labels=[1, 2]),
                "tasks.arc_easy.tables.rating.rows.labels: expected str",
            ),
            (
                lambda c: c["tasks"]["arc_easy"]["tables"]["rating"].update(counts=[[3], [True]]),
                "tasks.arc_easy.tables.rating.counts: expected int",
            ),
        ],
    )
    def test_names_the_key_that_is_wrong(self, change, message):
        content = json.loads(report.to_json(example_results()))
        change(content)
        with pytest.raises(DataError, match=re.escape(message)):
            report.from_json(json.dumps(content))

    @pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"model": NaN}', "[" * 100_000])
    def test_refuses_what_is_no_results_file(self, text):
        with pytest.raises(DataError, match=r"results\.json"):
            report.from_json(text)

    def test_metrics_alone(self):
        metrics = {"f1": Estimate(0.5, "fraction", 2)}
        content = json.loads(report.measurement_to_json(Measurement(metrics, 3, {"surplus": 1})))
        assert content["f1"]["value"] == 0.5
        assert (content["n_rows"], content["notes"]) == (3, {"surplus": 1})
        assert set(content) == {"f1", "n_rows", "notes"}

    def test_measured_groups_stand_beside_their_mean(self):
        task = example_results().tasks["arc_easy"]
        measured = Measurement(task.metrics, 3, {}, task.groups, task.macro)
        content = json.loads(report.measurement_to_json(measured))
        assert content["groups"]["law"]["accuracy"]["value"] == 0.68
        assert content["macro"]["accuracy"]["value"] == pytest.approx(0.54)


class TestCsv:
    def test_has_a_row_for_each_estimate(self):
        rows = list(csv.DictReader(io.StringIO(report.to_csv(example_results()))))
        assert [(row["task"], row["group"], row["metric"]) for row in rows] == [
            ("arc_easy", "", "accuracy_raw"),
            ("arc_easy", "", "accuracy"),
            ("arc_easy", "", "accuracy_unconditional"),
            ("arc_easy", "", "mine"),
            ("arc_easy", "", "macro_accuracy"),
            ("arc_easy", "physics", "accuracy"),
            ("arc_easy", "law", "accuracy"),
            ("wikitext2", "", "word_perplexity"),
        ]
        assert float(rows[-1]["value"]) == 23.4567
        assert (rows[1]["n_scored"], rows[1]["n_attempted"]) == ("98", "100")
        assert (rows[2]["value"], rows[2]["reason"]) == ("", "not measured")


class TestNumbers:
    @pytest.mark.parametrize(
        ("estimate", "value", "interval"),
        [
            (Estimate(0.54, "fraction", 1, low=0.4434, high=0.6338), "54.0 %", "[44.3, 63.4]"),
            (
                Estimate(0.54321, "fraction", 1, low=0.5412, high=0.5452),
                "54.32 %",
                "[54.12, 54.52]",
            ),
            (Estimate(0.5, "fraction", 1, low=0.4999996, high=0.5000004), "50.0000 %", None),
            (Estimate(1.0, "fraction", 1, low=0.2065, high=1.0), "100.0 %", "[20.6, 100.0]"),
            (Estimate(0.25, "fraction", 1), "25.00 %", ""),
            (Estimate(0.25, "fraction", 1, low=0.25, high=0.25), "25.00 %", "[25.00, 25.00]"),
            (Estimate(23.4567, "perplexity", 1, low=9.87, high=125.1), "23.46", "[9.87, 125.10]"),
            (Estimate(123456.7, "perplexity", 1, low=1.0, high=2e5), "123457", "[1, 200000]"),
            (Estimate(2.5, "perplexity", 1, low=2.0, high=1e300), "2.500", "[2.000, 1.000e+300]"),
            (Estimate(1e-300, "ratio", 1), "1.000e-300", ""),
            (Estimate(-0.38664, "ratio", 1), "-0.3866", ""),
            (Estimate(0.0, "nats", 1), "0.000", ""),
            (Estimate(None, "fraction", 0, "n=0"), "—", "(n=0)"),
            (Estimate(0.25, "fraction", 1, no_interval="n<2"), "25.00 %", "(n<2)"),
        ],
    )
    def test_is_written_with_the_digits_it_supports(self, estimate, value, interval):
        assert value_text(estimate) == value
        if interval is not None:
            assert interval_text(estimate) == interval

    @given(FINITE, FINITE, FINITE, st.sampled_from(["fraction", "perplexity"]))
    def test_any_finite_number_can_be_written(self, value, low, high, unit):
        estimate = Estimate(value, unit, 1, low=low, high=high)
        assert value_text(estimate)
        assert interval_text(estimate)

    @given(st.floats(1e-4, 1e8))
    def test_perplexities_keep_four_digits(self, value):
        assert float(value_text(Estimate(value, "perplexity", 1))) == pytest.approx(value, rel=6e-4)


class TestTable:
    def test_headline_metrics_come_first_and_auxiliary_ones_last(self):
        text = printed(example_results())
        found = re.findall(r"\b(accuracy\w*|mine|word_perplexity) +\|", text)
        assert found == [
            "accuracy",
            "mine",
            "accuracy_raw",
            "accuracy_unconditional",
            "word_perplexity",
        ]

    @pytest.mark.parametrize("width", [10, 40, 80, 200])
    def test_nothing_is_cut_off_in_a_pipe(self, width):
        results = example_results()
        text = printed(results, width=width)
        assert text == printed(results, width=500)
        assert "| arc_easy  |      5 | accuracy" in text
        assert "54.0 % | [44.3, 63.4]" in text
        assert "(not measured)" in text
        assert "98/100 (n = 95)" in text
        assert "\x1b" not in text
        assert "…" not in text

    @pytest.mark.parametrize("width", [10, 40, 60, 80, 200])
    def test_no_number_is_cut_off_on_a_terminal(self, width):
        text = printed(example_results(), width=width, force_terminal=True)
        shown = re.sub(r"\x1b\[[0-9;]*m", "", text)
        for number in ("54.0 %", "[44.3, 63.4]", "23.46", "[21.87, 25.14]", "98/100", "(n = 95)"):
            assert number in shown
        assert "…" not in shown

    def test_says_what_is_missing_and_what_to_do(self):
        text = printed(example_results())
        assert "arc_easy: 98 of 100 scored; 2 overlong; 1 without a usable answer" in text
        assert "raise max_model_len" in text
        assert "wikitext2: 20 of 20" not in text

    def test_says_what_the_engine_said_of_the_first_that_broke(self):
        task = example_results().tasks["arc_easy"]
        failures = {
            "q1": "overlong: needs 5000 tokens",
            "q2": "failed: ValueError: no such kernel\n  at step 3",
            "q3": "failed: another",
            "q4": "quarantined: the engine's process died 2 times",
        }
        broken = dataclasses.replace(
            task,
            coverage=Coverage({"ok": 96, "overlong": 1, "failed": 2, "quarantined": 1}),
            failures=failures,
        )
        text = printed(example_results(tasks={"t": broken}))
        assert "t: q2: failed: ValueError: no such kernel   at step 3\n" in text
        assert "t: q4: quarantined: the engine's process died 2 times\n" in text
        assert "q1" not in text
        assert "q3" not in text

    def test_says_nothing_where_nothing_is_missing(self):
        complete = {"wikitext2": example_results().tasks["wikitext2"]}
        assert printed(example_results(tasks=complete)).rstrip().endswith("20/20 |")

    def test_the_mean_of_groups_is_named(self):
        results = example_results()
        row = next(line for line in printed(results).splitlines() if "macro_accuracy" in line)
        assert [cell.strip() for cell in row.split("|")][3:-1] == [
            *("macro_accuracy", "", "54.0 %", "[44.4, 62.9]", "2 groups")
        ]
        assert "macro_accuracy: 54.0 % [44.4, 62.9], the unweighted mean over 2 groups" in (
            report.to_markdown(results)
        )

    def test_settings_stand_above(self):
        first = printed(example_results()).splitlines()[0]
        assert first == (
            f"raveval {__version__}; model: org/model; seed: 1234; engine.name: vllm; "
            "dtype: float32"
        )

    def test_every_status_has_words(self):
        for status in Status:
            if status is not Status.OK:
                words = coverage_text(Coverage({"ok": 1, str(status): 2}))
                assert words.startswith(f"{3 if status.is_scored else 1} of 3 scored; 2 "), words


HOSTILE = "a|b\n# c\x1b[31m\u202e<script>`x` [l](http://h) **z** \ud800 _e_"


class TestMarkdown:
    def test_tables_are_rectangular_whatever_the_data_say(self):
        task = example_results().tasks["arc_easy"]
        task = TaskResults(
            {HOSTILE: task.metrics["accuracy"]},
            task.coverage,
            task.usage,
            HOSTILE,
            0,
            1,
            {HOSTILE: {HOSTILE: task.metrics["accuracy"]}},
            {HOSTILE: HOSTILE},
        )
        results = example_results(
            model=HOSTILE, tasks={HOSTILE: task}, settings={HOSTILE: HOSTILE}, times={"t": HOSTILE}
        )
        text = report.to_markdown(results)
        text.encode()
        for table in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
            n_cells = {len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}
            assert len(n_cells) == 1, table
        for harmful in ("\x1b", "\u202e", "\ud800"):
            assert harmful not in text
            assert harmful not in printed(results)
        assert not re.search(r"(?<!\\)<script", text)
        assert not re.search(r"\]\(", text)
        assert not re.search(r"(?<!\\)`", text)
        assert [line for line in text.splitlines() if line.startswith("# ")] == []

    def test_holds_every_part(self):
        text = report.to_markdown(example_results())
        assert "| arc_easy | 5 | accuracy | ↑ | 54.0 % | [44.3, 63.4] | 98/100 |" in text
        assert "- arc_easy: 98 of 100 scored; 2 overlong" in text
        assert "- q1: overlong: needs 5000 tokens" in text
        assert "… 2 in all" in text
        assert "## arc_easy by group" in text
        assert "| physics | 40.0 % | [27.0, 54.0] | 49 |" in text
        assert "| all | 1007 | 22 | 4.5 |" in text
        assert "- started: 2026-01-01" in text

    def test_a_group_of_any_name_is_one_cell_of_csv(self):
        names = ["a\rb", "a\nb", 'a"b', "a,b", "\r\n"]
        task = dataclasses.replace(
            example_results().tasks["arc_easy"],
            groups={name: {"accuracy": Estimate(0.5, "fraction", 10)} for name in names},
        )
        sheet = report.to_csv(example_results(tasks={"t": task}))
        found = [row["group"] for row in csv.DictReader(io.StringIO(sheet)) if row["group"]]
        assert found == ["a\nb", "a\nb", 'a"b', "a,b", "\n\n"]

    def test_says_in_every_form_why_a_number_has_no_interval(self):
        alone = Estimate(0.5, "fraction", 10, no_interval="one cluster")
        task = dataclasses.replace(
            example_results().tasks["arc_easy"], metrics={"exact_match": alone}
        )
        results = example_results(tasks={"t": task})
        for text in (printed(results), report.to_markdown(results), report.to_html(results)):
            assert "(one cluster)" in text
        row = next(csv.DictReader(io.StringIO(report.to_csv(results))))
        assert (row["metric"], row["interval"]) == ("exact_match", "")
        assert row["no_interval"] == "one cluster"

    def test_says_what_intervals_are_over(self):
        said = "over other examples like these, not over seeds"
        assert said in report.to_markdown(example_results())
        assert said in report.to_html(example_results())

    def test_shows_only_the_first_failures(self):
        task = example_results().tasks["wikitext2"]
        failures = {f"id{i}": "failed: x" for i in range(9)}
        coverage = Coverage({"ok": 1, "failed": 9})
        task = TaskResults(task.metrics, coverage, task.usage, "p", 0, 1, {}, failures)
        text = report.to_markdown(example_results(tasks={"t": task}))
        assert "id4: failed" in text
        assert "id5" not in text
        assert "… 9 in all" in text

    @given(RESULTS)
    def test_can_always_be_written(self, results):
        report.to_markdown(results).encode()


@given(st.text(st.characters(), max_size=300))
def test_plain_text_is_one_printable_line(text):
    shown = plain(text)
    shown.encode()
    assert len(shown.splitlines()) <= 1
    assert all(ord(char) >= 32 and ord(char) != 127 for char in shown)


def test_a_part_of_the_data_is_never_shown_as_the_whole():
    results = example_results()
    name, task = next(iter(results.tasks.items()))
    source = {"examples": "dev.jsonl", "shots": "dev.jsonl", "limit": "100"}
    text = report.to_markdown(
        dataclasses.replace(results, tasks={name: dataclasses.replace(task, source=source)})
    )
    assert f"- {name}: only the first 100 rows of dev.jsonl" in text
    assert f"- {name}: shots are other examples of the same data" in text
    assert "only the first" not in report.to_markdown(results)
