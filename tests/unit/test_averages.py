"""Macro averages: each group counts once, and the interval covers as promised."""

import math
from fractions import Fraction

import numpy as np
import pytest

from raveval.metrics import _intervals as intervals
from raveval.metrics._averages import macro_averages
from raveval.types import Estimate


def test_each_group_counts_once_in_a_macro_average():
    groups = {
        "one": {"accuracy": intervals.proportion(1, 1)},
        "thousand": {"accuracy": intervals.proportion(250, 1000)},
    }
    mean = macro_averages(groups)["accuracy"]
    assert (mean.value, mean.n, mean.interval) == (0.625, 2, "mover95")
    assert mean.stderr is None, "a group of one example has no standard error"
    one, thousand = (intervals.wilson(Fraction(k, n), n) for k, n in ((1, 1), (250, 1000)))
    below = math.hypot(1 - one.low, 0.25 - thousand.low) / 2
    assert mean.low == pytest.approx(0.625 - below, rel=1e-12)
    assert mean.high == pytest.approx(0.625 + (thousand.high - 0.25) / 2, rel=1e-12)


def test_a_macro_average_covers_as_promised():
    """Four groups of 30 to 200: of 1000 intervals 950 ± 7 cover, and ±1.5 % is the method's own."""
    rng = np.random.default_rng(5)
    groups = ((0.2, 30), (0.5, 60), (0.8, 200), (0.95, 40))
    truth = sum(p for p, _ in groups) / 4
    covered = 0
    for _ in range(1000):
        drawn = {
            str(n): {"accuracy": intervals.proportion(int(rng.binomial(n, p)), n)}
            for p, n in groups
        }
        mean = macro_averages(drawn)["accuracy"]
        assert mean.low is not None
        assert mean.high is not None
        covered += mean.low <= truth <= mean.high
    assert 0.92 <= covered / 1000 <= 0.98


def test_a_macro_average_leaves_no_group_out():
    groups = {
        "a": {"accuracy": intervals.proportion(1, 2)},
        "b": {"accuracy": intervals.proportion(0, 0)},
    }
    mean = macro_averages(groups)["accuracy"]
    assert (mean.value, mean.reason) == (None, "undefined in 1 of 2 groups")


def test_a_mean_of_perplexities_means_nothing():
    perplexity = Estimate(20.0, "perplexity", 3, low=18.0, high=22.0)
    assert macro_averages({"a": {"p": perplexity}, "b": {"p": perplexity}}) == {}
    assert macro_averages({}) == {}


@pytest.mark.parametrize(
    ("n_groups", "size", "mean"), [(57, 27, 0.9), (57, 10, 0.1), (12, 30, 0.3)]
)
def test_many_groups_cover_as_promised(n_groups: int, size: int, mean: float):
    """Of 1000 intervals 950 ± 7 cover; skewness that adds up over the groups covered 870 to 904."""
    rng = np.random.default_rng(n_groups + size)
    shares = np.clip(rng.normal(mean, 0.05, n_groups), 0.01, 0.99)
    covered = 0
    for _ in range(1000):
        hits = rng.binomial(size, shares)
        drawn = {str(i): {"a": intervals.proportion(int(k), size)} for i, k in enumerate(hits)}
        found = macro_averages(drawn)["a"]
        assert found.interval == "normal95"
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= shares.mean() <= found.high
    assert 0.925 <= covered / 1000 <= 0.975


def test_guaranteed_bounds_make_no_interval():
    bounds = Estimate(0.5, "correlation", 9, low=0.4, high=0.6, interval="guaranteed")
    found = macro_averages({"a": {"tau": bounds}, "b": {"tau": bounds}})["tau"]
    assert (found.value, found.interval, found.low) == (0.5, None, None)
    assert found.no_interval == "no method"


def test_a_mean_without_an_interval_says_why():
    known = Estimate(3.0, "rating", 9, stderr=0.1, low=2.8, high=3.2, interval="t95")
    few = Estimate(3.0, "rating", 1, no_interval="n<2")
    same = Estimate(3.0, "rating", 9, stderr=0.0, no_interval="constant")
    never = Estimate(0.25, "fraction", 9, no_interval="no method")

    def why(*groups: Estimate, **more) -> str | None:
        by_name = {str(i): {"a": group} for i, group in enumerate(groups)}
        return macro_averages(by_name, **more)["a"].no_interval

    assert why(known, known) is None
    assert why(known, few, same) == "none in 2 of 3 groups"
    assert why(never, never) == why(*[never] * 12) == "no method"
    assert why(*[known] * 11, few) == "none in 1 of 12 groups"
    assert why(*[same] * 12) == "no spread"
    shared = {"notes": {"clusters": 3}, "group_notes": [{"clusters": 2}, {"clusters": 2}]}
    assert why(known, known, **shared) == "groups share clusters"
    undefined = Estimate(None, "rating", 0, reason="n=0")
    assert why(known, undefined, **shared) is None
