"""Intervals against scipy, against simulation, and at the ends of their ranges."""

import math
import random
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest, norm
from scipy.stats import t as student

from raveval.metrics import _intervals as intervals
from raveval.metrics._exact import moments
from raveval.metrics._intervals import Stratum


def test_the_normal_quantile():
    assert pytest.approx(norm.ppf(0.975), rel=1e-15) == intervals.Z95


@pytest.mark.parametrize("n", [1, 2, 7, 100, 10_000])
def test_wilson_is_scipys(n: int):
    for k in {0, 1, n // 3, n // 2, n - 1, n}:
        expected = binomtest(k, n).proportion_ci(method="wilson")
        low, high = intervals.wilson(Fraction(k, n), n)
        assert low == pytest.approx(expected.low, rel=1e-12, abs=1e-15)
        assert high == pytest.approx(expected.high, rel=1e-12, abs=1e-15)
        assert 0 <= low <= k / n <= high <= 1


def test_the_standard_error_of_a_proportion_is_the_sample_one():
    estimate = intervals.proportion(30, 100)
    assert estimate.stderr == pytest.approx(math.sqrt(0.3 * 0.7 / 99), rel=1e-15)
    assert intervals.proportion(1, 1).stderr is None
    assert intervals.proportion(0, 0).reason == "n=0"


def test_fractional_credit_has_its_own_variance():
    credits = [Fraction(1), Fraction(1, 2), Fraction(1, 2), Fraction(0), Fraction(1, 3)]
    estimate = intervals.proportion(sum(credits), 5, squares=sum(c * c for c in credits))
    spread = np.std([float(c) for c in credits], ddof=1)
    assert estimate.value == float(sum(credits) / 5)
    assert estimate.stderr == pytest.approx(spread / math.sqrt(5), rel=1e-12)


def test_one_stratum_is_wilson_times_its_weight():
    low, high = intervals.wilson(Fraction(3, 10), 10)
    found = intervals.weighted_proportions([Stratum(Fraction(4), 3, 10)])
    assert found == pytest.approx((4 * low, 4 * high), rel=1e-15)


def test_strata_cover_as_promised():
    """Of 1000 intervals 950 ± 7 cover; ±1.5 % more is the method's own, at n this small."""
    rng = np.random.default_rng(1)
    strata = ((0.6, 2, 30), (0.3, 5, 50))
    n = sum(size for _, _, size in strata)
    truth = sum(k * p * size / n for p, k, size in strata)
    covered = 0
    for _ in range(1000):
        drawn = [
            Stratum(Fraction(k * size, n), int(rng.binomial(size, p)), size)
            for p, k, size in strata
        ]
        low, high = intervals.weighted_proportions(drawn)
        covered += low <= truth <= high
    assert 0.92 <= covered / 1000 <= 0.98


def test_the_delta_method_is_the_bootstrap_s():
    """A plain bootstrap of 4000 resamples knows its standard error to 1.1 % (1 / sqrt(8000)).

    Four times that, and the delta method's own error of order 1/n, make the tolerance of 5 %.
    """
    rng = np.random.default_rng(7)
    u = rng.integers(50, 500, 400)
    x = -3.0 * u + rng.normal(0, 40, 400)
    stderr = intervals.ratio_stderr(moments(x, u))
    picks = rng.integers(0, 400, (4000, 400))
    resampled = x[picks].sum(axis=1) / u[picks].sum(axis=1)
    assert stderr == pytest.approx(resampled.std(ddof=1), rel=0.05)


def test_the_delta_method_by_hand():
    x, u = [1.0, 2.0, 4.0], [1, 2, 3]
    ratio = 7 / 6
    squares = sum((a - ratio * b) ** 2 for a, b in zip(x, u, strict=True))
    by_hand = math.sqrt(3 / 2 * squares) / 6
    found = intervals.ratio(moments(np.array(x), np.array(u)), unit="nats", higher_is_better=None)
    assert found.value == ratio
    assert found.stderr == pytest.approx(by_hand, rel=1e-15)
    assert (found.low, found.high) == pytest.approx(
        (ratio - student.ppf(0.975, 2) * by_hand, ratio + student.ppf(0.975, 2) * by_hand),
        rel=1e-12,
    )


def test_a_single_pair_has_no_interval():
    found = intervals.ratio(
        moments(np.array([3.0]), np.array([2])), unit="x", higher_is_better=None
    )
    assert (found.value, found.stderr, found.low, found.interval) == (1.5, None, None, None)


def test_a_value_beyond_doubles_is_said():
    found = intervals.ratio(
        moments(np.full(3, 1.7e308), np.array([1, 0, 0])), unit="x", higher_is_better=None
    )
    assert (found.value, found.reason) == (None, "overflow")


def test_a_mean_s_standard_error_is_the_sample_one():
    rng = random.Random(3)
    values = [Fraction(rng.randrange(100), 99) for _ in range(50)]
    mean = sum(values, Fraction(0)) / 50
    found = intervals.mean_stderr(mean, sum((v * v for v in values), Fraction(0)) / 50, 50)
    spread = np.std([float(v) for v in values], ddof=1)
    assert found == pytest.approx(spread / math.sqrt(50), rel=1e-12)
    assert intervals.mean_stderr(mean, mean, 1) is None


def test_no_spread_is_no_proof():
    pairs = moments(np.array([3.0, 6.0, 1.5]), np.array([2, 4, 1]))
    found = intervals.ratio(pairs, unit="x", higher_is_better=None)
    assert (found.value, found.stderr) == (1.5, 0.0)
    assert (found.low, found.high, found.interval) == (None, None, None)


def test_every_identifier_is_in_the_table():
    kind = re.compile(r'"([a-z][a-z-]*95|guaranteed)"')
    package = Path(intervals.__file__).parent.parent
    table = set(kind.findall(intervals.__doc__))
    used = {
        name
        for path in package.rglob("*.py")
        if path != Path(intervals.__file__)
        for name in kind.findall(path.read_text())
    }
    assert used | {"wilson95", "delta-t95"} == table
