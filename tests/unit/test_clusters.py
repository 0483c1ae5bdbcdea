"""Clustered intervals against statsmodels, against simulation, and where there are none."""

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t as student

from raveval import measure
from raveval.errors import DataError
from raveval.evaluate import load_metric
from raveval.metrics import Contribution
from raveval.metrics import _intervals as intervals
from raveval.metrics._cluster_sums import EMPTY, ClusterSums, Column, sum_by
from raveval.metrics._clusters import Clustered
from raveval.metrics._merging import merged

ONES, TWOS = Column(np.array([1, 1])), Column(np.array([2, 2]))


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
    assert found.no_interval == "one cluster"


def test_what_has_no_interval_over_clusters_says_why():
    # Two clusters of one rate each: 1 of 2, and 2 of 4.
    correct, clusters = [True, False, True, False, True, False], ["a"] * 2 + ["b"] * 4
    found = measure("accuracy", choices(correct, clusters)).metrics
    assert found["accuracy"].no_interval is None
    assert found["relative_improvement"].no_interval == "no spread"
    assert found["relative_improvement_per_n_choices"].no_interval == "no method for clusters"
    assert found["random_baseline"].no_interval == "no method"


def test_clusters_for_some_only_give_no_interval():
    measured = measure("accuracy", choices([True, False, True], ["a", "b", None]))
    assert measured.metrics["accuracy"].interval is None
    assert measured.metrics["accuracy"].no_interval == "not all in clusters"
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
        keys = np.arange(n_clusters, dtype=np.uint64)
        sums = ClusterSums(keys, Column(hits), Column(sizes))
        state = metric.init()
        inner = replace(state.inner, ranked=_ranked(int(hits.sum()), int(sizes.sum())))
        clusters = {**state.clusters, name: sums}
        found = metric.compute(replace(state, inner=inner, clusters=clusters, n_clustered=1))
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
        lambda c: c["clusters"]["accuracy"].reverse(),
        lambda c: c.update(n_clustered=-1),
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


def test_thirds_that_add_up_alike_are_no_certainty():
    """The tie-aware credits 1/3 + 0 and 1/6 + 1/6 differ by rounding alone."""
    table = pa.table(
        {
            "gold": pa.array([0, 0] * 6, pa.int32()),
            "logprob_nats": [[-1.0] * 3, [-2.0, -1.0, -1.0]] * 6,
            "cluster": [f"c{i // 2}" for i in range(12)],
        }
    )
    found = measure("accuracy", table).metrics["accuracy_tie_aware"]
    assert found.value == 1 / 6
    assert found.stderr == 0.0
    assert found.low is not None
    assert found.low < 0.05


def test_no_more_independent_examples_than_examples():
    hits = [i < 50 for i in range(100)] * 2 + [i < 51 for i in range(100)]
    clusters = [f"c{i // 100}" for i in range(300)]
    found = measure("accuracy", choices(hits, clusters)).metrics["accuracy"]
    quantile = student.ppf(0.975, 2)
    expected = intervals.wilson(Fraction(151, 300), 300 * (intervals.Z95 / quantile) ** 2)
    assert (found.low, found.high) == pytest.approx(expected, rel=1e-12)


class WithoutRatios:
    """A metric of somebody else's, whose estimates are no ratios."""

    name, version = "mine", 1
    needs, optional, columns = ("gold",), (), (pa.field("gold", pa.int32()),)
    ratios: Mapping[str, Any] = {}

    def init(self) -> int:
        return 0

    def update(self, state: int, records: pa.Table) -> int:
        return state + len(records)

    def compute(self, state: int) -> dict[str, Any]:
        return {"half": intervals.proportion(state // 2, state)}

    def contributions(self, records: pa.Table) -> dict[str, Contribution]:
        return {}


def test_what_is_no_ratio_has_no_interval_with_clusters():
    metric: Any = Clustered(WithoutRatios())  # type: ignore[arg-type]
    clustered, single = (choices([True] * 8, each) for each in (["a", "b"] * 4, [None] * 8))
    assert metric.compute(metric.update(metric.init(), single))["half"].interval == "wilson95"
    assert metric.compute(metric.update(metric.init(), clustered))["half"].interval is None


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.floats(-1e300, 1e300) | st.sampled_from([5e-324, -1.0, 2.0**60, 0.1]),
            st.integers(0, 9),
        ),
        max_size=30,
    ),
    st.integers(0, 30),
)
def test_sums_are_those_of_fractions(rows: list[tuple[int, float, int]], cut: int):
    keys = np.array([7, 3, 2**63 + 1, 5], np.uint64)
    parts = []
    for part in (rows[:cut], rows[cut:]):
        x, u = (np.array([float(row[i]) for row in part]) for i in (1, 2))
        of_row = np.array([row[0] for row in part], np.int64)
        parts.append(sum_by(keys, of_row, Contribution(x, u)))
    total = parts[0] + parts[1]
    x_sums, u_sums, x_bits, u_bits = total.scaled()
    assert total.keys.tolist() == sorted(keys.tolist())
    for key, x_sum, u_sum in zip(total.keys.tolist(), x_sums, u_sums, strict=True):
        mine = [row for row in rows if keys[row[0]] == key]
        assert Fraction(x_sum, 1 << x_bits) == sum((Fraction(row[1]) for row in mine), Fraction(0))
        assert Fraction(u_sum, 1 << u_bits) == sum(row[2] for row in mine)
    assert total == parts[1] + parts[0]


@pytest.mark.parametrize(
    ("other", "is_equal"),
    [
        (ClusterSums(np.array([1, 2], np.uint64), Column(np.array([6, 10]), 1), ONES), True),
        (ClusterSums(np.array([1, 3], np.uint64), Column(np.array([3, 5])), ONES), False),
        (ClusterSums(np.array([1, 2], np.uint64), Column(np.array([3, 4])), ONES), False),
        (ClusterSums(np.array([1, 2], np.uint64), Column(np.array([3, 5]), 1), ONES), False),
        (ClusterSums(np.array([1, 2], np.uint64), Column(np.array([3, 5])), TWOS), False),
        (EMPTY, False),
    ],
)
def test_sums_are_equal_as_numbers_whatever_their_units(other: ClusterSums, is_equal: bool):
    sums = ClusterSums(np.array([1, 2], np.uint64), Column(np.array([3, 5])), ONES)
    assert (sums == other) is is_equal


def test_merging_many_shards_costs_little_more_than_their_rows():
    """Minutes where each merge copies all before it; a second on a slow core as it is."""
    metric = load_metric("squad2")
    table = pa.table(
        {
            "prediction": ["a cat"] * 8,
            "references": [["a dog", "cat"]] * 8,
            "cluster": list("abcdefgh"),
        }
    )
    state: Any = metric.update(metric.init(), table)
    states = []
    for index in range(4000):
        keys = np.arange(index * 8, index * 8 + 8, dtype=np.uint64)
        clusters = {n: replace(sums, keys=keys) for n, sums in state.clusters.items()}
        states.append(replace(state, clusters=clusters))
    began = time.process_time()
    total = merged(metric, states)
    assert time.process_time() - began < 20
    assert len(total.clusters["f1"]) == 32_000
    assert total.n_clustered == 32_000
