"""Comparing with imported runs: paired where the examples are the same, and said where not."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from scipy import stats

from raveval import report
from raveval.comparison import Comparison, Difference, compare
from raveval.comparison.unpaired import difference_of
from raveval.errors import ConfigError, MismatchError
from raveval.lm_eval.exporting import export_run
from raveval.lm_eval.importing import import_runs
from raveval.types import Estimate
from tests import lm_eval_files as files
from tests.finished_runs import finish

Edit = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of ours, and what lm-eval would have written of the second."""
    path = tmp_path_factory.mktemp("runs")
    for seed, name in ((0, "a"), (1, "b")):
        finish(path / name, ["demo_choice", "demo_qa", "demo_text"], seed=seed)
    export_run(path / "b", path / "b.json", log_samples=True)
    return path


def taken_over(
    folder: Path,
    output: Path,
    *,
    of_results: Edit = lambda _: None,
    of_samples: Edit = lambda _: None,
    keep: Callable[[dict[str, Any]], bool] = lambda _: True,
) -> str:
    """Import what lm-eval would have written of run b, after an edit."""
    source = output.with_name(f"{output.name}_files")
    source.mkdir()
    for path in folder.glob("*_2026-*"):
        lines = [json.loads(line) for line in _lines(path)]
        for content in lines:
            content.pop("raveval")
            (of_results if path.suffix == ".json" else of_samples)(content)
        kept = [each for each in lines if path.suffix == ".json" or keep(each)]
        (source / path.name).write_text("\n".join(map(json.dumps, kept)))
    import_runs([source], output)
    return str(output)


def _lines(path: Path) -> list[str]:
    text = path.read_text()
    return [text] if path.suffix == ".json" else text.splitlines()


def one(comparison: Comparison, task: str, metric: str) -> Difference:
    (found,) = [d for d in comparison.differences if (d.task, d.metric) == (task, metric)]
    return found


class TestPaired:
    def test_with_a_run_of_ours_as_if_it_were_one(self, folder, tmp_path):
        theirs = taken_over(folder, tmp_path / "theirs")
        ours = compare([folder / "a", folder / "b"])
        mixed = compare([folder / "a", theirs])
        for task, metric in (
            ("demo_choice", "accuracy"),  # the baseline's primary scoring, of both
            ("demo_choice", "accuracy_raw"),
            ("demo_choice", "probability_mass"),
            ("demo_qa", "f1"),
            ("demo_text", "word_perplexity"),
        ):
            expected, found = one(ours, task, metric), one(mixed, task, metric)
            for part in ("baseline", "value", "difference", "low", "high", "p", "test", "n"):
                assert getattr(found, part) == getattr(expected, part), (task, metric, part)
        assert one(mixed, "demo_choice", "accuracy_per_token").reason == "not measured"
        assert any("both models saw the same prompts (28 of 28)" in r for r in mixed.remarks)

    def test_with_ours_as_the_second(self, folder, tmp_path):
        theirs = taken_over(folder, tmp_path / "theirs")
        d = one(compare([theirs, folder / "a"]), "demo_qa", "f1")
        other = one(compare([folder / "a", folder / "b"]), "demo_qa", "f1")
        assert other.difference is not None
        assert (d.difference, d.test) == (-other.difference, "cluster-t"), "clusters are ours"

    def test_two_of_them(self, folder, tmp_path):
        runs = [taken_over(folder, tmp_path / name) for name in "xy"]
        comparison = compare(runs)
        assert one(comparison, "demo_choice", "accuracy_raw").verdict == "identical"

    def test_examples_of_one_alone_are_counted(self, folder, tmp_path):
        def is_known(sample: dict[str, Any]) -> bool:
            return bool(sample["doc_id"] % 2)

        theirs = taken_over(folder, tmp_path / "theirs", keep=is_known)
        comparison = compare([folder / "a", theirs], tasks=["demo_choice"])
        (pairing,) = comparison.pairings
        assert (pairing.n_paired, pairing.n_only_baseline, pairing.n_only_run) == (14, 14, 0)

    def test_other_prompts_are_counted(self, folder, tmp_path):
        def ask_otherwise(sample: dict[str, Any]) -> None:
            if sample["doc_id"] < 3:
                for request in sample["arguments"].values():
                    request["arg_0"] += "!"

        theirs = taken_over(folder, tmp_path / "theirs", of_samples=ask_otherwise)
        remarks = compare([folder / "a", theirs], tasks=["demo_choice"]).remarks
        assert any("the prompts differ in 3 of 28 examples" in remark for remark in remarks)


class TestNotPaired:
    def test_where_the_right_answers_differ(self, folder, tmp_path):
        def shift(sample: dict[str, Any]) -> None:
            if "acc" in sample and sample["doc_id"] < 2:
                sample["target"] = str((int(sample["target"]) + 1) % 3)
                del sample["acc"], sample["acc_norm"]

        def no_acc(sample: dict[str, Any]) -> None:
            shift(sample)
            sample.pop("acc", None)

        theirs = taken_over(folder, tmp_path / "theirs", of_samples=no_acc)
        comparison = compare([folder / "a", theirs], tasks=["demo_choice"])
        assert any("of 2 of them gold differs" in remark for remark in comparison.remarks)
        assert not comparison.pairings[0].is_paired
        assert one(comparison, "demo_choice", "acc").test == "unpaired-z"

    def test_where_no_id_is_the_same(self, folder, tmp_path):
        def rename(sample: dict[str, Any]) -> None:
            sample["doc"]["id"] = f"other {sample['doc_id']}"

        theirs = taken_over(folder, tmp_path / "theirs", of_samples=rename)
        comparison = compare([folder / "a", theirs])
        assert sum("no example id in common" in remark for remark in comparison.remarks) == 3
        assert not any(pairing.is_paired for pairing in comparison.pairings)

    def test_where_there_are_no_samples(self, folder, tmp_path):
        """Ours stands in lm-eval's words: acc and acc_norm, by its definitions."""
        content = json.loads(next(folder.glob("b_*.json")).read_text())["results"]["demo_choice"]
        metrics = {
            key: value for key, value in content.items() if key.startswith(("acc,", "acc_stderr,"))
        }
        path = files.write(tmp_path / "in", {"demo_choice": metrics}, n_samples={"demo_choice": 28})
        import_runs([path], tmp_path / "theirs")
        comparison = compare([folder / "a", tmp_path / "theirs"])
        (d,) = comparison.differences
        assert (d.metric, d.test, d.interval) == ("acc", "unpaired-z", "unpaired-wald95")
        paired = one(compare([folder / "a", folder / "b"]), "demo_choice", "accuracy_raw")
        assert (d.baseline, d.value) == (paired.baseline, paired.value)
        assert d.p == d.p_holm
        assert any("only in" in remark for remark in comparison.remarks)

    def test_is_said_in_every_form(self, folder, tmp_path):
        path = files.write(
            tmp_path / "in", {"demo_choice": files.proportion("acc", 0.75, 28)}, n_samples={}
        )
        import_runs([path], tmp_path / "theirs")
        comparison = compare([folder / "a", tmp_path / "theirs"], tasks=["demo_choice"])
        console = Console(width=250, record=True)
        report.print_comparison(comparison, console)
        for text in (console.export_text(), report.comparison_to_markdown(comparison)):
            assert "z, unpaired" in text
            assert "by the two standard errors alone" in text
            assert "not paired" in text
            assert "identical" not in text
        assert '"is_paired": false' in report.comparison_to_json(comparison)
        assert "unpaired-z" in report.comparison_to_csv(comparison)


class TestRefused:
    def test_other_shots(self, folder, tmp_path):
        metrics = {"demo_choice": files.proportion("acc", 0.5, 28)}
        import_runs([files.write(tmp_path / "in", metrics, num_fewshot=5)], tmp_path / "theirs")
        with pytest.raises(MismatchError, match="num_fewshot of task 'demo_choice' is 5 here, 0"):
            compare([folder / "a", tmp_path / "theirs"])

    def test_a_number_that_neither_has(self, folder, tmp_path):
        metrics = {"demo_choice": files.proportion("acc", 0.5, 28)}
        import_runs([files.write(tmp_path / "in", metrics)], tmp_path / "theirs")
        runs = [folder / "a", tmp_path / "theirs"]
        assert len(compare(runs, metrics=["acc"]).differences) == 1
        with pytest.raises(ConfigError, match="no task has an estimate 'ac'"):
            compare(runs, metrics=["ac"])


def number(value: float | None, stderr: float | None, unit: str = "fraction") -> Estimate:
    reason = "why" if value is None else None
    return Estimate(value, unit, 10, reason=reason, stderr=stderr, higher_is_better=True)


class TestTheTest:
    def test_is_scipys(self):
        d = difference_of(number(0.5, 0.03), number(0.6, 0.04), "acc", task="t", run="b")
        z = 0.1 / 0.05
        assert d.stderr == pytest.approx(0.05)
        assert d.p == pytest.approx(2 * stats.norm.sf(z), rel=1e-12)
        assert d.low == pytest.approx(0.1 - stats.norm.ppf(0.975) * 0.05)
        assert d.high == pytest.approx(0.1 + stats.norm.ppf(0.975) * 0.05)

    def test_of_perplexities_is_on_the_logarithm(self):
        a, b = number(1e12, 4e11, "perplexity"), number(100.0, 20.0, "perplexity")
        d = difference_of(a, b, "word_perplexity", task="t", run="b")
        z = math.log(100.0 / 1e12) / math.hypot(0.4, 0.2)
        assert d.p == pytest.approx(2 * stats.norm.sf(-z), rel=1e-9)
        assert d.difference == 100.0 - 1e12
        assert d.ratio == 1e-10
        half_width = stats.norm.ppf(0.975) * math.hypot(0.4, 0.2)
        expected = [1e-10 * math.exp(sign * half_width) for sign in (-1, 1)]
        assert (d.ratio_low, d.ratio_high) == pytest.approx(tuple(expected), rel=1e-9)

    def test_ends_where_differences_do_and_is_never_certain(self):
        d = difference_of(number(0.01, 0.001), number(1.0, 0.002), "acc", task="t", run="b")
        assert d.high is not None
        assert d.p is not None
        assert (d.high <= 1.0, d.p > 0) == (True, True)

    @pytest.mark.parametrize(
        ("a", "b", "has_value", "reason"),
        [
            (number(0.5, None), number(0.6, 0.1), True, "no standard error"),
            (number(0.5, 0.0), number(0.6, 0.0), True, "no standard error"),
            (number(None, None), number(0.6, 0.1), False, "why"),
            (number(0.5, 0.1), number(60.0, 1.0, "unknown"), False, "in other units"),
            (number(0.5, 0.1), number(0.6, math.inf), True, "no standard error"),
        ],
    )
    def test_says_why_there_is_none(self, a, b, has_value, reason):
        d = difference_of(a, b, "acc", task="t", run="b")
        assert (d.difference is not None) == has_value
        assert d.p is None
        assert d.reason is not None
        assert d.reason.startswith(reason)
