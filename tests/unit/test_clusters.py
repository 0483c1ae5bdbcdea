"""Clustered intervals against statsmodels, against simulation, and where there are none."""

import json
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import statsmodels.api as sm
from scipy.stats import t as student

from raveval import measure
from raveval.errors import DataError
from raveval.evaluate import load_metric
from raveval.metrics import _intervals as intervals


def choices(correct: list[bool], clusters: list[Any], n_choices: int = 4) -> pa.Table:
    """Multiple choice records of which some are correct."""
    best = [0.0] + [-1.0] * (n_choices - 1)
    return pa.table(
        {
            "gold": pa.array([0 if hit else 1 for hit in correct], pa.int32()),
            "logprob_nats": [best] * len(correct),
            "cluster": pa.array(clusters, pa.string()),
        }
    )


def robust(x: Any, u: Any, clusters: Any) -> tuple[float, float]:
    """Ratio and its cluster-robust error by weighted least squares: x / u on 1 with weights u."""
    fit = sm.WLS(np.asarray(x) / u, np.ones(len(x)), weights=u).fit(
        cov_type="cluster", cov_kwds={"groups": clusters, "use_correction": False}
    )
    n_clusters = len(set(clusters))
    return float(fit.params[0]), float(fit.bse[0]) * (n_clusters / (n_clusters - 1)) ** 0.5


def test_the_standard_error_is_statsmodels():
    rng = np.random.default_rng(11)
    clusters = rng.integers(0, 40, 500)
    correct = rng.random(500) < rng.beta(2, 2, 40)[clusters]
    found = measure("accuracy", choices(correct.tolist(), [str(c) for c in clusters])).metrics
    value, stderr = robust(correct.astype(float), np.ones(500), clusters)
    assert found["accuracy"].value == pytest.approx(value, rel=1e-12)
    assert found["accuracy"].stderr == pytest.approx(stderr, rel=1e-12)
    assert found["accuracy"].interval == "cluster-wilson95"
    improvement = found["relative_improvement"]
    half_width = student.ppf(0.975, 39) * stderr / 0.25
    assert improvement.stderr == pytest.approx(stderr / 0.25, rel=1e-12)
    assert improvement.low == pytest.approx(value / 0.25 - 1 - half_width, rel=1e-12)
    assert improvement.interval == "cluster-t95"
    assert found["relative_improvement_per_n_choices"].interval is None


def test_a_perplexity_s_interval_is_that_of_its_logarithm():
    rng = np.random.default_rng(3)
    clusters = np.repeat(np.arange(12), 5)
    tokens = rng.integers(20, 400, 60)
    logprob = -(3.0 + 0.5 * rng.normal(size=12)[clusters]) * tokens + rng.normal(0, 9, 60)
    table = pa.table(
        {"logprob_nats": logprob, "n_tokens": tokens, "cluster": [f"d{c}" for c in clusters]}
    )
    found = measure("perplexity", table).metrics["token_perplexity"]
    value, stderr = robust(-logprob, tokens.astype(float), clusters)
    quantile = student.ppf(0.975, 11)
    assert found.value == pytest.approx(np.exp(value), rel=1e-12)
    assert found.stderr == pytest.approx(np.exp(value) * stderr, rel=1e-10)
    assert (found.low, found.high) == pytest.approx(
        (np.exp(value - quantile * stderr), np.exp(value + quantile * stderr)), rel=1e-10
    )
    assert found.interval == "cluster-t95"


def test_clusters_of_one_give_the_error_of_independent_examples():
    correct = [True, False, True, True, False, True, False, True]
    alone = measure("accuracy", choices(correct, [None] * 8)).metrics["accuracy"]
    each = measure("accuracy", choices(correct, list("abcdefgh"))).metrics["accuracy"]
    assert alone.interval == "wilson95"
    assert each.stderr == pytest.approx(alone.stderr, rel=1e-12)


def test_all_correct_is_no_certainty():
    found = measure("accuracy", choices([True] * 30, list("abc") * 10)).metrics["accuracy"]
    assert (found.value, found.stderr, found.high) == (1.0, 0.0, 1.0)
    n_effective = 3 * (intervals.Z95 / student.ppf(0.975, 2)) ** 2
    assert found.low == pytest.approx(intervals.wilson(Fraction(1), n_effective).low, rel=1e-12)


def test_a_single_cluster_has_no_interval():
    found = measure("accuracy", choices([True, False, True], ["a"] * 3)).metrics["accuracy"]
    assert (found.value, found.n) == (2 / 3, 3)
    assert (found.stderr, found.low, found.high, found.interval) == (None,) * 4


def test_clusters_for_some_only_give_no_interval():
    measured = measure("accuracy", choices([True, False, True], ["a", "b", None]))
    assert measured.metrics["accuracy"].interval is None
    assert measured.notes["clusters"] == 2
    assert measured.notes["without_cluster"] == 1


def test_whole_numbers_name_clusters():
    table = choices([True, False, True, False], [None] * 4)
    numbered = table.set_column(2, "cluster", pa.array([1, 1, 2, 2]))
    assert measure("accuracy", numbered).notes["clusters"] == 2


@pytest.mark.parametrize(("n_clusters", "tolerance"), [(20, 0.02), (200, 0.015)])
def test_intervals_cover_as_promised(n_clusters: int, tolerance: float):
    """Passages of 1 to 9 questions, difficulty shared: of 2000 intervals 1900 ± 10 cover.

    Intervals that take the questions as independent cover about 75 % here.
    """
    rng = np.random.default_rng(n_clusters)
    metric = load_metric("accuracy")
    name = "accuracy"
    covered = naive = 0
    for _ in range(2000):
        sizes = rng.integers(1, 10, n_clusters)
        hits = rng.binomial(sizes, rng.beta(1.2, 0.8, n_clusters))
        one = 1 << 1074
        pairs = enumerate(zip(hits.tolist(), sizes.tolist(), strict=True))
        sums = {i: (n_hits * one, n * one) for i, (n_hits, n) in pairs}
        state = metric.init()
        inner = replace(state.inner, ranked=_ranked(int(hits.sum()), int(sizes.sum())))
        found = metric.compute(replace(state, inner=inner, clusters={**state.clusters, name: sums}))
        low, high = found[name].low, found[name].high
        assert low is not None
        assert high is not None
        covered += low <= 0.6 <= high
        low, high = intervals.wilson(Fraction(int(hits.sum()), int(sizes.sum())), sizes.sum())
        naive += low <= 0.6 <= high
    assert abs(covered / 2000 - 0.95) < tolerance
    assert naive / 2000 < 0.85


def _ranked(correct: int, n: int) -> dict[tuple[int, ...], int]:
    """Examples of four choices, by every scoring but the last."""
    return {
        (0, 4, 1, is_right): count for is_right, count in ((1, correct), (0, n - correct)) if count
    }


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c["clusters"].pop("accuracy"),
        lambda c: c["clusters"].update(extra=[]),
        lambda c: c["clusters"].update(accuracy=1),
        lambda c: c["clusters"]["accuracy"].append(c["clusters"]["accuracy"][0]),
        lambda c: c["clusters"]["accuracy"][0].append(1),
        lambda c: c["clusters"]["accuracy"][0].__setitem__(0, -1),
        lambda c: (
            c["clusters"]["accuracy"][0].__setitem__(1, [0, 0])
            or c["clusters"]["accuracy"][0].__setitem__(2, [0, 0])
        ),
        lambda c: c.update(n_unclustered=-1),
    ],
)
def test_other_content_is_refused(change: Any):
    metric = load_metric("accuracy")
    state = metric.update(metric.init(), choices([True, False], ["a", "b"]))
    content = json.loads(json.dumps(metric.encode(state)))
    assert metric.decode(content) == state
    change(content)
    with pytest.raises(DataError, match="state of accuracy"):
        metric.decode(content)
