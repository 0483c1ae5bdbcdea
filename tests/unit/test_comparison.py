"""Comparing runs from their files: what is paired, what is refused, what is said of it."""

import csv
import io
import json
import math
import re
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from scipy import stats
from statsmodels.stats.multitest import multipletests

import raveval
from raveval import registry, report
from raveval.comparison import Comparison, Difference, Pairing, Verdict, compare, estimates
from raveval.comparison.pairing import MAY_DIFFER
from raveval.errors import ConfigError, DataError, MismatchError
from raveval.evaluate import load_metric
from raveval.metrics._headline import HEADLINE, PER_TOKEN
from tests.run_directories import REPLY, SCORE, choice, document, write_run


def choices(right, **columns):
    """Records of which these are right; None is an example that failed."""
    return [choice(f"q{i}", each, **columns) for i, each in enumerate(right)]


def documents(sums, tokens, **columns):
    return [
        document(f"d{i}", float(x), int(n), **columns)
        for i, (x, n) in enumerate(zip(sums, tokens, strict=True))
    ]


def answers(pairs):
    """Records of question answering."""
    return [
        {"id": f"a{i}", "prediction": text, "references": [reference], "cluster": cluster}
        for i, (text, reference, cluster) in enumerate(pairs)
    ]


def found(comparison: Comparison, metric: str, run: int = 0, task: str = "t") -> Difference:
    name = comparison.runs[run].directory
    (one,) = [
        d for d in comparison.differences if (d.metric, d.run, d.task) == (metric, name, task)
    ]
    return one


@pytest.fixture
def two(tmp_path: Path):
    """Compare two runs of the same task."""

    def make(a, b, *, asked=(), **settings) -> Comparison:
        runs = (
            write_run(tmp_path / "a", {"t": a}, **settings),
            write_run(tmp_path / "b", {"t": b}, **{**settings, "shard_size": 11}),
        )
        return compare(runs, metrics=asked)

    return make


class TestAccuracy:
    def test_every_number_by_hand(self, two):
        right = {"both": (1, 1), "only_a": (1, 0), "only_b": (0, 1), "neither": (0, 0)}
        kinds = ["both"] * 794 + ["only_a"] * 60 + ["only_b"] * 34 + ["neither"] * 112
        a, b = zip(*(right[kind] for kind in kinds), strict=True)
        d = found(two(choices(a), choices(b), shard_size=300), "accuracy")
        assert (d.baseline, d.value) == (0.854, 0.828)
        assert d.difference == pytest.approx(-0.026)
        assert (d.n, d.n_units, d.n_differing) == (1000, 1000, 94)
        assert (d.n_only_baseline, d.n_only_run) == (60, 34)
        assert d.p == pytest.approx(0.0095478, abs=1e-7)
        assert (d.p_holm, d.test, d.interval) == (d.p, "mcnemar-exact", "newcombe95")
        per_example = np.array([0] * 794 + [-1] * 60 + [1] * 34 + [0] * 112)
        assert d.stderr == pytest.approx(stats.sem(per_example), rel=1e-9)
        assert d.detectable == pytest.approx(2.8015852 * stats.sem(per_example), rel=1e-6)
        assert d.low is not None
        assert d.high is not None
        assert d.low < -0.026 < d.high < 0
        assert d.verdict == Verdict.WORSE

    def test_missing_examples_are_counted_and_left_out_of_both(self, two):
        a = [1, 1, 0, None, None, 1, 0, 1]
        b = [1, 0, 0, None, 1, None, 1, 1]
        comparison = two(choices(a), choices(b))
        assert comparison.pairings == (
            Pairing("t", comparison.runs[0].directory, 5, 1, 1, 1, None),
        )
        d = found(comparison, "accuracy")
        assert (d.baseline, d.value, d.n) == (3 / 5, 3 / 5, 5)
        assert (d.n_only_baseline, d.n_only_run) == (1, 1)

    def test_a_run_against_itself(self, tmp_path):
        run = write_run(tmp_path / "a", {"t": choices([1, 0, 1, 1, 0] * 20)})
        comparison = compare([run, run])
        for d in comparison.differences:
            assert d.difference in (0, None)
            if d.test:
                assert (d.p, d.verdict, d.detectable) == (1.0, Verdict.IDENTICAL, None)
        d = found(comparison, "accuracy")
        assert d.low is not None
        assert d.low < 0

    def test_none_is_paired(self, two):
        d = found(two(choices([1, None]), choices([None, 1])), "accuracy")
        assert (d.difference, d.reason, d.verdict) == (None, "n=0", Verdict.NOT_TESTED)

    def test_order_and_shards_are_no_matter(self, tmp_path):
        rng = np.random.default_rng(1)
        a, b = choices(rng.random(50) < 0.5), choices(rng.random(50) < 0.7)
        runs = write_run(tmp_path / "a", {"t": a}), write_run(tmp_path / "b", {"t": b})
        other = write_run(tmp_path / "c", {"t": b}, shard_size=1)
        results = [compare([runs[0], run]).differences for run in (runs[1], other)]
        assert [d.p for d in results[0]] == [d.p for d in results[1]]
        assert [d.low for d in results[0]] == [d.low for d in results[1]]


class TestPerplexity:
    def runs(self, shift=0.1, n=40, seed=2):
        rng = np.random.default_rng(seed)
        tokens = rng.integers(20, 200, n)
        hard = rng.normal(3, 0.4, n)
        return tokens, [-tokens * (hard + rng.normal(m, 0.2, n)) for m in (0.0, shift)]

    def test_values_and_direction(self, two):
        tokens, sums = self.runs(shift=0.5)
        a, b = (documents(x, tokens) for x in sums)
        settings = {"protocol": "language_modelling", "metrics": ["perplexity"]}
        comparison = two(a, b, **settings)
        d = found(comparison, "token_perplexity")
        expected = [math.exp(-x.sum() / tokens.sum()) for x in sums]
        assert (d.baseline, d.value) == pytest.approx(tuple(expected), rel=1e-12)
        assert d.difference == pytest.approx(expected[1] - expected[0], rel=1e-9)
        assert (d.test, d.n_replicates, d.n_only_run) == ("paired-bootstrap", 10_000, None)
        assert d.verdict == Verdict.WORSE
        assert d.p_holm is None
        primary = found(comparison, "word_perplexity")
        assert primary.p_holm == primary.p
        assert comparison.family == (primary,)
        assert d.ratio == pytest.approx(expected[1] / expected[0], rel=1e-12)
        nats = found(comparison, "nats_per_token")
        assert nats.ratio is None
        expected = [math.exp(each or 0) for each in (nats.low, nats.high, nats.detectable)]
        assert (d.ratio_low, d.ratio_high, d.ratio_detectable) == pytest.approx(tuple(expected))
        shown = printed(comparison)
        assert f"×{d.ratio:.3f}" in shown
        assert f"[{expected[0]:.3f}, {expected[1]:.3f}]" in shown
        assert f"×{expected[2]:.3f}" in shown

    def test_per_token_is_not_compared_between_tokenizers(self, two):
        tokens, sums = self.runs(shift=0.5)
        a, b = documents(sums[0], tokens), documents(sums[1], tokens * 2)
        settings = {"protocol": "language_modelling", "metrics": ["perplexity"]}
        comparison = two(a, b, **settings)
        for name in ("token_perplexity", "nats_per_token"):
            assert found(comparison, name).verdict == Verdict.NOT_COMPARABLE
        assert found(comparison, "word_perplexity").verdict == Verdict.WORSE
        assert "runs count different tokens" in printed(comparison)

    def test_other_windows_are_said(self, two):
        tokens, sums = self.runs(n=10)
        settings = {"protocol": "language_modelling", "metrics": ["perplexity"]}

        def run(windows, size):
            rows = documents(sums[0], tokens)
            return [
                {**row, "n_windows": n, "window_tokens": size}
                for row, n in zip(rows, windows, strict=True)
            ]

        comparison = two(run([1] * 7 + [3] * 3, 2047), run([1] * 5 + [9] * 5, 511), **settings)
        assert len(comparison.remarks) == 1
        said = "5 of 10 documents were scored in windows of 511 tokens, the baseline's in windows"
        assert said in printed(comparison)

    def test_windows_that_cut_nothing_are_no_matter(self, two):
        tokens, sums = self.runs(n=10)
        settings = {"protocol": "language_modelling", "metrics": ["perplexity"]}
        whole = documents(sums[0], tokens, n_windows=1, window_tokens=2047)
        other = documents(sums[1], tokens, n_windows=1, window_tokens=511)
        assert two(whole, other, **settings).remarks == ()

    def test_a_document_without_a_number_in_one_run_is_left_out_of_both(self, two):
        tokens, sums = self.runs(n=10)
        sums[1][3] = math.nan
        a, b = (documents(x, tokens) for x in sums)
        settings = {"protocol": "language_modelling", "metrics": ["perplexity"]}
        d = found(two(a, b, **settings), "token_perplexity")
        kept = np.arange(10) != 3
        assert d.n == 9
        assert d.baseline == pytest.approx(math.exp(-sums[0][kept].sum() / tokens[kept].sum()))
        assert d.value == pytest.approx(math.exp(-sums[1][kept].sum() / tokens[kept].sum()))

    def test_an_undefined_number_has_no_difference(self, two):
        tokens, sums = self.runs(n=10)
        sums[1][3] = -math.inf
        a, b = (documents(x, tokens) for x in sums)
        settings = {"protocol": "language_modelling", "metrics": ["perplexity"]}
        d = found(two(a, b, **settings), "word_perplexity")
        assert d.baseline is not None
        assert (d.value, d.difference, d.p) == (None, None, None)
        assert (d.reason, d.verdict) == ("zero probability", Verdict.NOT_TESTED)


class TestClusters:
    def test_are_the_units(self, two):
        a = answers([("x", "x", f"p{i // 4}") for i in range(40)])
        b = answers([("x" if i % 7 else "y", "x", f"p{i // 4}") for i in range(40)])
        settings = {"protocol": "question_answering", "metrics": ["squad"]}
        comparison = two(a, b, **settings)
        d = found(comparison, "exact_match")
        sums = np.array([sum(-(i % 7 == 0) for i in range(4 * c, 4 * c + 4)) for c in range(10)])
        # the mean of equal clusters is an ordinary mean
        expected = stats.ttest_1samp(sums / 4, 0)
        assert (d.test, d.interval, d.n, d.n_units) == ("cluster-t", "cluster-t95", 40, 10)
        assert d.p == pytest.approx(max(expected.pvalue, 2.0 ** (1 - d.n_differing)), rel=1e-9)
        assert (d.low, d.high) == pytest.approx(tuple(expected.confidence_interval()), rel=1e-9)
        assert comparison.pairings[0].n_clusters == 10
        assert d.n_only_run is None

    def test_that_cancel_are_not_identical(self, two):
        a, b = (
            [choice(f"q{i}", i % 2 == k, cluster=f"c{i // 4}") for i in range(40)] for k in (0, 1)
        )
        d = found(two(a, b), "accuracy")
        assert (d.difference, d.p, d.n_differing) == (0.0, 1.0, 10)
        assert d.verdict == Verdict.NOT_SHOWN

    def test_one_alone_is_not_tested_and_says_so(self, two):
        a, b = ([choice(f"q{i}", i >= k, cluster="c") for i in range(3)] for k in (0, 1))
        comparison = two(a, b)
        d = found(comparison, "accuracy")
        assert (d.test, d.p, d.verdict) == (None, None, Verdict.NOT_TESTED)
        assert d.reason == "fewer than 2 clusters"
        text = printed(comparison)
        assert "t: no test of accuracy (fewer than 2 clusters)" in text
        assert "None" not in text

    def test_of_one_example_each_are_none(self, two):
        a, b = ([choice(f"q{i}", i % k > 0, cluster=f"c{i}") for i in range(20)] for k in (2, 3))
        comparison = two(a, b)
        assert found(comparison, "accuracy").test == "mcnemar-exact"
        assert comparison.pairings[0].n_clusters is None

    def test_an_example_without_one_stands_for_itself(self, two):
        a, b = (
            [choice(f"q{i}", i % k > 0, cluster=f"c{i // 4}" if i < 8 else None) for i in range(20)]
            for k in (2, 3)
        )
        assert found(two(a, b), "accuracy").n_units == 2 + 12


class TestOtherStatistics:
    def test_are_computed_anew_for_each_replicate(self, two, monkeypatch):
        monkeypatch.setattr(estimates, "MOST_ANEW", 300)
        rng = np.random.default_rng(4)
        a, b = (choices(rng.random(60) < p, n_chars=[3, 4]) for p in (0.4, 0.9))
        name = "most_frequent_index_share"
        assert found(two(a, b), name).test is None
        d = found(two(a, b, asked=[name]), name)
        assert (d.test, d.n_replicates, d.n) == ("paired-bootstrap", 300, 60)
        assert d.low is not None
        assert d.high is not None
        assert d.difference is not None
        assert d.low <= d.difference <= d.high
        share = np.array([[row["logprob_nats"][0] > -1.5 for row in run] for run in (a, b)])
        rows = np.random.default_rng(5).integers(0, 60, (4000, 60))
        frequent = [np.maximum(x := run[rows].mean(1), 1 - x) for run in share]
        spread = np.std(frequent[1] - frequent[0])
        assert d.stderr == pytest.approx(spread, rel=0.15)

    def test_of_clusters_draw_whole_clusters(self):
        units = np.array([0, 1, 0, 2, 1])
        (weights,) = estimates._weights(units, 50)
        assert weights.shape == (50, 5)
        assert (weights[:, 0] == weights[:, 2]).all()
        assert (weights[:, 1] == weights[:, 4]).all()
        assert (weights[:, [0, 1, 3]].sum(axis=1) == 3).all()

    def test_identical_records_need_no_replicates(self, two):
        rows = choices([1, 0, 1])
        d = found(two(rows, rows, asked=["random_baseline"]), "random_baseline")
        assert (d.p, d.verdict) == (1.0, Verdict.IDENTICAL)


def judged(n, seed, *, noise=1.0, missing=0, clusters=False):
    """Records of absolute grading: three samples of a judge, beside the references of all seeds."""
    references = np.random.default_rng(99).integers(1, 6, n)
    noisy = references[:, None] + np.random.default_rng(seed).normal(0, noise, (n, 3))
    return [
        {
            "id": f"r{i}",
            "rating": [None] * 3 if i < missing else samples,
            "reference_rating": [float(reference)],
            "cluster": f"c{i // 4}" if clusters else None,
        }
        for i, (samples, reference) in enumerate(
            zip(np.clip(np.rint(noisy), 1, 5).astype(int).tolist(), references, strict=True)
        )
    ]


def preferences(verdicts, preferred=None):
    """Records of ranking."""
    return [
        {"id": f"p{i}", "preferred": human, "verdict": verdict}
        for i, (verdict, human) in enumerate(
            zip(verdicts, preferred or ["a"] * len(verdicts), strict=True)
        )
    ]


GRADING = {
    "protocol": "absolute_grading",
    "metrics": ["correlation", "agreement", "rating", "reference_consistency"],
}
RANKING = {"protocol": "ranking", "metrics": ["preference"]}


class TestJudges:
    @pytest.mark.parametrize("clusters", [False, True])
    def test_are_compared_in_a_moment(self, two, clusters):
        a, b = judged(320, 1, clusters=clusters), judged(320, 2, noise=1.3, clusters=clusters)
        start = time.process_time()
        comparison = two(a, b, **GRADING)
        assert time.process_time() - start < 10
        assert [d.metric for d in comparison.family] == ["pearson"]
        d = found(comparison, "pearson")
        assert (d.n, d.n_units, d.n_replicates) == (320, 80 if clusters else 320, 2000)
        x, y, z = (
            np.array([np.mean(row[name]) for row in rows])
            for rows, name in ((a, "rating"), (b, "rating"), (a, "reference_rating"))
        )
        assert d.difference == pytest.approx(np.corrcoef(y, z)[0, 1] - np.corrcoef(x, z)[0, 1])
        units = np.arange(320).reshape(80, 4) if clusters else np.arange(320)[:, None]
        rng = np.random.default_rng(3)
        drawn = [units[rng.integers(0, len(units), len(units))].ravel() for _ in range(500)]
        anew = [np.corrcoef(y[i], z[i])[0, 1] - np.corrcoef(x[i], z[i])[0, 1] for i in drawn]
        assert d.stderr == pytest.approx(np.std(anew), rel=0.12)
        assert d.verdict == Verdict.WORSE
        assert found(comparison, "reference_pearson").difference is None  # rated once

    def test_every_number_can_be_asked_for(self, two):
        names = [
            *("cohen_kappa", "cohen_kappa_quadratic", "krippendorff_alpha_ordinal"),
            *("standard_deviation", "median_rating", "krippendorff_alpha_samples"),
        ]
        start = time.process_time()
        comparison = two(judged(320, 1), judged(320, 2, noise=1.5), asked=names, **GRADING)
        assert time.process_time() - start < 10
        assert sorted(d.metric for d in comparison.family) == sorted(names)
        for d in comparison.family:
            assert (d.test, d.n_replicates) == ("paired-bootstrap", 2000)

    def test_are_compared_where_both_rated(self, two):
        a, b = judged(200, 1), judged(200, 2, missing=40)
        names = ["pearson", "cohen_kappa", "standard_deviation"]
        comparison = two(a, b, asked=names, **GRADING)
        alone = [
            np.array([[np.mean(row["rating"]), row["reference_rating"][0]] for row in rows[40:]])
            for rows in (a, b)
        ]
        d = found(comparison, "pearson")
        expected = [np.corrcoef(each.T)[0, 1] for each in alone]
        assert (d.baseline, d.value) == pytest.approx(tuple(expected), rel=1e-12)
        assert [found(comparison, name).n for name in names] == [160] * 3
        d = found(comparison, "standard_deviation")
        expected = [np.std(each[:, 0], ddof=1) for each in alone]
        assert (d.baseline, d.value) == pytest.approx(tuple(expected), rel=1e-12)

    def test_a_tie_of_one_run_hides_nothing(self, two):
        # right on 100 easy pairs; of 100 hard ones the baseline gets 40, and the run calls ties
        baseline = ["a"] * 140 + ["b"] * 60
        run = ["a"] * 100 + ["tie"] * 100
        comparison = two(preferences(baseline), preferences(run), **RANKING)
        d = found(comparison, "accuracy_without_ties")
        assert (d.baseline, d.value, d.n) == (0.7, 1.0, 200)
        assert d.n_differing == 100
        assert d.has_other_denominators
        assert d.low is not None
        assert 0 < d.low < 0.3
        assert found(comparison, "accuracy_strict").difference == pytest.approx(-0.2)

    def test_an_unjudged_pair_is_left_out_of_both_and_a_human_tie_of_shares_without(self, two):
        human = ["tie"] * 5 + ["a"] * 25
        baseline = preferences(["a"] * 30, human)
        run = preferences([None] * 10 + ["a"] * 15 + ["b"] * 5, human)
        comparison = two(baseline, run, **RANKING)
        for name in ("accuracy_without_ties", "accuracy_without_human_ties"):
            d = found(comparison, name)
            assert (d.n, d.baseline, d.value) == (20, 1.0, 0.75)
        assert found(comparison, "accuracy_strict").n == 20


class TestFamily:
    def test_is_one_estimate_for_each_task_and_run(self, tmp_path):
        rng = np.random.default_rng(6)
        runs = [
            write_run(
                tmp_path / name,
                {task: choices(rng.random(200) < p) for task in ("t", "u")},
            )
            for name, p in (("a", 0.5), ("b", 0.6), ("c", 0.7))
        ]
        comparison = compare(runs)
        assert [(d.task, d.metric) for d in comparison.family] == [
            *(("t", "accuracy"), ("t", "accuracy"), ("u", "accuracy"), ("u", "accuracy"))
        ]
        expected = multipletests([d.p for d in comparison.family], method="holm")[1]
        assert [d.p_holm for d in comparison.family] == pytest.approx(list(expected))
        assert [run.directory for run in comparison.runs] == runs[1:]
        raw = found(comparison, "accuracy_raw")
        assert raw.p is not None
        assert raw.p_holm is None

    def test_is_what_was_asked_for(self, two):
        rng = np.random.default_rng(7)
        a, b = (choices(rng.random(50) < p) for p in (0.5, 0.9))
        asked = ["accuracy_raw", "probability_mass"]
        comparison = two(a, b, asked=asked)
        assert [d.metric for d in comparison.differences] == asked
        assert [d.metric for d in comparison.family] == asked

    def test_decides_the_verdict(self, tmp_path):
        # 7 against 0 discordant: p = .0156 alone, .0469 among three, .0625 among four
        a, b = choices([0] * 7 + [1] * 20), choices([1] * 27)
        for n, verdict in ((3, Verdict.BETTER), (4, Verdict.NOT_SHOWN)):
            same = {f"u{i}": choices([1, 0]) for i in range(n - 1)}
            runs = (
                write_run(tmp_path / f"a{n}", {"t": a, **same}),
                write_run(tmp_path / f"b{n}", {"t": b, **same}),
            )
            assert found(compare(runs), "accuracy").verdict == verdict

    def test_headline_estimates_exist(self):
        metrics = [load_metric(family) for family in registry.names("metrics")]
        names = {name for metric in metrics for name in metric.compute(metric.init())}
        assert names >= {*HEADLINE, *PER_TOKEN}

    def test_no_better_direction_is_neither_better_nor_worse(self, two):
        a = [choice(f"q{i}", True) for i in range(30)]
        b = [{**row, "logprob_nats": [-0.5 - 0.01 * i, -2.0]} for i, row in enumerate(a)]
        assert found(two(a, b), "probability_mass").verdict == Verdict.DIFFERENT


class TestRefusals:
    ROWS = choices([1, 0, 1, 1])

    def refusal(self, tmp_path, error, **changes) -> str:
        a = write_run(tmp_path / "a", {"t": self.ROWS})
        b = write_run(tmp_path / "b", {"t": self.ROWS}, **changes)
        with pytest.raises(error) as caught:
            compare([a, b])
        return str(caught.value)

    @pytest.mark.parametrize("key", sorted({*REPLY} - MAY_DIFFER))
    def test_what_is_asked_may_not_differ(self, tmp_path, key):
        message = self.refusal(tmp_path, MismatchError, reply={key: "other"})
        assert f"{tmp_path}/b: not comparable with {tmp_path}/a" in message
        assert key in message
        assert "task 't'" in message
        assert "'other' here" in message
        assert repr(REPLY[key]) in message

    def test_judges_are_named(self, tmp_path):
        a = write_run(tmp_path / "a", {"t": self.ROWS}, judge="/models/strict")
        b = write_run(tmp_path / "b", {"t": self.ROWS}, judge="/models/kind")
        with pytest.raises(MismatchError, match=r"the judge in task 't' is '/models/kind' here, "):
            compare([a, b])

    def test_a_nested_key_is_named_in_full(self, tmp_path):
        other = {"sampling": {"temperature": 1.0, "stop": ["x"]}}
        message = self.refusal(tmp_path, MismatchError, reply=other)
        assert "sampling.temperature of task 't' is 1.0 here, 0.0 there" in message

    def test_the_model_and_the_engine_may_differ(self, tmp_path):
        a = write_run(tmp_path / "a", {"t": self.ROWS})
        b = write_run(tmp_path / "b", {"t": self.ROWS}, reply=dict.fromkeys(MAY_DIFFER, "other"))
        assert found(compare([a, b]), "accuracy").verdict == Verdict.IDENTICAL

    @pytest.mark.parametrize("key", sorted(SCORE))
    def test_how_it_is_scored_may_not_differ(self, tmp_path, key):
        message = self.refusal(tmp_path, MismatchError, score={key: "other"})
        assert f"scored with {key} = 'other' here, {SCORE[key]!r} there" in message
        assert ("`raveval score" in message) == (key in ("protocol", "metrics", "clusters"))

    def test_another_version_of_a_metric_can_be_mended(self, tmp_path):
        message = self.refusal(tmp_path, MismatchError, score={"metrics": {"m": 2}})
        assert "metrics.m = 2 here, 1 there" in message
        assert f"`raveval score {tmp_path}/a` and `raveval score {tmp_path}/b`" in message

    def test_another_metric_cannot(self, tmp_path):
        message = self.refusal(tmp_path, MismatchError, score={"metrics": {"m": 1, "n": 1}})
        assert "metrics.n = 1 here, None there. Evaluate both models" in message

    def test_other_examples_are_named_in_words(self, tmp_path):
        message = self.refusal(tmp_path, MismatchError, reply={"examples": "other"})
        assert "examples (rows, prompts or shots) of task 't'" in message

    def test_an_unfinished_run(self, tmp_path):
        message = self.refusal(tmp_path, DataError, shard_size=1, unfinished={1, 3})
        assert f"{tmp_path}/b: task 't' is not finished: 2 of 4 shards" in message
        assert "start the run again" in message

    def test_a_run_that_was_scored_in_part(self, tmp_path):
        a = write_run(tmp_path / "a", {"t": self.ROWS})
        b = write_run(tmp_path / "b", {"t": self.ROWS})
        path = Path(b) / "states" / "t" / "00000.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "score_fingerprint": "old"}))
        with pytest.raises(DataError, match=f"`raveval score {re.escape(b)}`"):
            compare([a, b])

    def test_no_run(self, tmp_path):
        with pytest.raises(DataError, match=r"no run of raveval here"):
            compare([tmp_path / "x", tmp_path / "y"])

    def test_records_of_other_examples(self, tmp_path):
        a = write_run(tmp_path / "a", {"t": self.ROWS})
        b = write_run(tmp_path / "b", {"t": [*self.ROWS[:3], choice("other", True)]})
        with pytest.raises(DataError, match=r"not of the same examples .* 1 without a partner"):
            compare([a, b])

    @pytest.mark.parametrize("runs", [[], ["a"], "ab"])
    def test_fewer_than_two(self, runs):
        with pytest.raises(ConfigError, match="at least two"):
            compare(runs)

    def test_one_run_twice(self, tmp_path):
        a = write_run(tmp_path / "a", {"t": self.ROWS})
        with pytest.raises(ConfigError, match="stands twice"):
            compare([a, a, a])

    def test_unknown_names(self, tmp_path):
        a = write_run(tmp_path / "a", {"t": self.ROWS})
        with pytest.raises(ConfigError, match="no task has an estimate 'acuracy'; did you mean"):
            compare([a, a], metrics=["acuracy"])
        with pytest.raises(ConfigError, match="no run has a task 'u'; known: t"):
            compare([a, a], tasks=["u"])

    def test_tasks_that_only_some_have(self, tmp_path):
        a = write_run(tmp_path / "a", {"t": self.ROWS, "u": self.ROWS})
        b = write_run(tmp_path / "b", {"t": self.ROWS, "v": self.ROWS})
        comparison = compare([a, b])
        assert {d.task for d in comparison.differences} == {"t"}
        assert comparison.remarks == (
            f"u: not compared, only in {a}",
            f"v: not compared, only in {b}",
        )
        with pytest.raises(MismatchError, match="'u' is only in"):
            compare([a, b], tasks=["u"])
        c = write_run(tmp_path / "c", {"w": self.ROWS})
        with pytest.raises(MismatchError, match="no task in common"):
            compare([a, c])


def printed(comparison: Comparison, **console) -> str:
    stream = io.StringIO()
    report.print_comparison(comparison, Console(file=stream, **console))
    return stream.getvalue()


class TestReport:
    @pytest.fixture
    def comparison(self, two) -> Comparison:
        made: Comparison = two(
            choices([1] * 60 + [0] * 34 + [1] * 866 + [0] * 39 + [None]),
            choices([0] * 60 + [1] * 34 + [1] * 866 + [0] * 40),
            shard_size=500,
        )
        return made

    def test_says_each_number(self, comparison):
        text = printed(comparison)
        row = next(line for line in text.splitlines() if "| accuracy  " in line)
        cells = [cell.strip() for cell in row.strip("| ").split("|")]
        assert cells[:6] == ["t", "accuracy", "↑", "92.7 %", "90.1 %", "-2.6 pp"]
        assert cells[7:11] == ["0.0095", "0.0095", "999", "60/34"]
        assert cells[12:] == ["McNemar, exact", "worse"]
        assert "t: 999 examples paired; 1 only in" in text
        assert "the one test of the family (accuracy of t)" in text
        assert "(worse)" in text  # of the other scorings, unadjusted
        assert "not tested: random_baseline" in text
        assert "\x1b" not in text

    def test_nothing_is_cut_off_in_a_pipe(self, comparison):
        assert printed(comparison, width=20) == printed(comparison, width=500)

    def test_says_plainly_that_nothing_differs(self, two):
        rows = choices([1, 0, 1])
        text = printed(two(rows, rows))
        assert "t: the runs have the same scores on every paired example" in text

    def test_json_is_strict_and_whole(self, comparison):
        content = json.loads(report.comparison_to_json(comparison))
        assert content["baseline"]["model"] == "a"
        assert content["pairings"][0]["n_only_run"] == 1
        first = content["differences"][0]
        assert first["verdict"] == "worse"
        assert set(first) == set(Difference.__dataclass_fields__)
        assert first["p"] == found(comparison, "accuracy").p
        tests = content["family"]["tests"]
        assert [test["metric"] for test in tests] == ["accuracy"]
        assert content["raveval_version"] == raveval.__version__

    @pytest.mark.parametrize("size", [1, 2])
    def test_json_is_strict_also_of_huge_perplexities(self, two, size):
        a, b = (
            [
                document(f"d{i}", -700.0 - 0.07 * k * i, 1, cluster=f"c{i // size}")
                for i in range(10)
            ]
            for k in (1, 3)
        )
        settings = {"protocol": "language_modelling", "metrics": ["perplexity"]}
        comparison = two(a, b, **settings)
        report.comparison_to_json(comparison)
        d = found(comparison, "token_perplexity")
        assert d.p is not None
        assert d.stderr is not None

    def test_csv_has_a_row_for_each_difference(self, comparison):
        rows = list(csv.DictReader(io.StringIO(report.comparison_to_csv(comparison))))
        assert [row["metric"] for row in rows] == [d.metric for d in comparison.differences]
        assert float(rows[0]["p"]) == found(comparison, "accuracy").p
        assert rows[0]["n_replicates"] == ""

    def test_markdown_is_rectangular_whatever_names_say(self, tmp_path):
        rows = choices([1, 0])
        hostile = "x|y*\x1b[31m<b>"
        runs = [write_run(tmp_path / f"{hostile}{i}", {"t": rows}) for i in range(3)]
        comparison = compare(runs)
        text = report.comparison_to_markdown(comparison)
        for table in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
            n_cells = {len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}
            assert len(n_cells) == 1
        assert "\x1b" not in text
        assert "<b>" not in text.replace("\\<b", "")
        assert "\x1b" not in printed(comparison)

    def test_clusters_and_several_runs_are_named(self, tmp_path):
        rows = [choice(f"q{i}", i % 3 > 0, cluster=f"c{i // 5}") for i in range(30)]
        other = [choice(f"q{i}", i % 2 > 0, cluster=f"c{i // 5}") for i in range(30)]
        runs = [
            write_run(tmp_path / name, {"t": each})
            for name, each in (("a", rows), ("b", other), ("c", rows))
        ]
        text = printed(compare(runs))
        assert f"t, {runs[1]}: 30 examples paired, in 6 clusters, which are the units" in text
        assert "t, 6 clusters" in text
        assert f"accuracy of t in {runs[2]}" in text
