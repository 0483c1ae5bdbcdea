"""The prediction-powered mean against the published formulas, and its coverage."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from scipy import stats

from raveval.metrics.prediction_powered import METRIC
from raveval.types import Estimate

INF, NAN = float("inf"), float("nan")


def compute(rating: Any, reference: Any) -> Mapping[str, Estimate]:
    table = pa.table({"rating": rating, "reference_rating": reference})
    return METRIC.compute(METRIC.update(METRIC.init(), table))


def draw(seed: int, n: int, n_unlabelled: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """A judge on a scale of its own, and references, NaN where there is none."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(3, 1, n + n_unlabelled)
    reference = np.clip(np.rint(truth + rng.normal(0, 0.6, len(truth))), 1, 5)
    rating = np.clip(np.rint(2 * truth + rng.normal(0.5, 1.2, len(truth))), 1, 10)
    reference[n:] = NAN
    return rating, reference


def published(
    y: NDArray[Any], f: NDArray[Any], rest: NDArray[Any], *, package: bool
) -> tuple[float, float, float]:
    """Weight, estimate and standard error by the formulas of the paper; or as its package has them.

    The package divides by the number of rows where this divides by one less (but for the variance
    of all ratings), and cuts the weight to [0, 1].
    """
    ddof = 0 if package else 1
    n, n_rest = len(y), len(rest)
    covariance = float(((y - y.mean()) * (f - f.mean())).sum() / (n - ddof))
    weight = covariance / ((1 + n / n_rest) * np.var(np.concatenate([f, rest]), ddof=1))
    if package:
        weight = min(1.0, max(0.0, weight))
    value = y.mean() + weight * (rest.mean() - f.mean())
    variance = np.var(y - weight * f, ddof=ddof) / n + weight**2 * np.var(rest, ddof=ddof) / n_rest
    return float(weight), float(value), math.sqrt(variance)


@pytest.mark.parametrize("seed", range(10))
def test_the_formulas_of_the_paper(seed: int):
    n = 10 + 20 * seed
    rating, reference = draw(seed, n, 15 + 300 * (seed % 3))
    found = compute(rating, reference)
    weight, value, stderr = published(reference[:n], rating[:n], rating[n:], package=False)
    powered = found["prediction_powered_mean"]
    assert found["tuning_weight"].value == pytest.approx(weight, rel=1e-12)
    assert powered.value == pytest.approx(value, rel=1e-13)
    assert powered.stderr == pytest.approx(stderr, rel=1e-12)
    assert powered.low == pytest.approx(value - stats.norm.ppf(0.975) * stderr, rel=1e-12)
    assert powered.high == pytest.approx(value + stats.norm.ppf(0.975) * stderr, rel=1e-12)
    assert (powered.n, powered.interval) == (n, "normal95")


def test_the_authors_package_agrees_but_for_its_divisors():
    rating, reference = draw(1, 400, 5000)
    powered = compute(rating, reference)["prediction_powered_mean"]
    _, value, stderr = published(reference[:400], rating[:400], rating[400:], package=True)
    assert powered.value == pytest.approx(value, abs=0.01 * stderr)
    assert powered.stderr == pytest.approx(stderr, rel=2 / 400)


def test_the_judge_s_scale_does_not_matter():
    rating, reference = draw(2, 50, 200)
    original = compute(rating, reference)["prediction_powered_mean"]
    for a, b in ((0.125, 0.0), (-1.0, 11.0), (1024.0, 3.0)):
        moved = compute(a * rating + b, reference)["prediction_powered_mean"]
        assert (moved.value, moved.stderr, moved.low) == pytest.approx(
            (original.value, original.stderr, original.low), rel=1e-14
        )


def test_the_classical_means_stand_beside_it():
    rating, reference = draw(3, 40, 100)
    found = compute(rating, reference)
    for name, values in (("reference_mean", reference[:40]), ("rating_mean", rating)):
        estimate = found[name]
        low, high = stats.t.interval(0.95, len(values) - 1, values.mean(), stats.sem(values))
        assert estimate.value == pytest.approx(values.mean(), rel=1e-15)
        assert (estimate.low, estimate.high) == pytest.approx((low, high), rel=1e-12)
        assert estimate.n == len(values)


def test_without_unlabelled_rows_or_with_a_constant_judge_it_is_the_classical_mean():
    rating, reference = draw(4, 30, 0)
    for found in (compute(rating, reference), compute([3.0] * 31, [*reference, NAN])):
        powered, classical = found["prediction_powered_mean"], found["reference_mean"]
        assert found["tuning_weight"].value == 0
        assert (powered.value, powered.stderr) == (classical.value, classical.stderr)


def test_intervals_cover_and_are_narrower():
    """400 runs at 60 labels: 95 % coverage would give 380 hits; less than 365 has p < 0.001."""
    hits, widths, classical = 0, [], []
    for seed in range(400):
        rating, reference = draw(1000 + seed, 60, 600)
        found = compute(rating, reference)
        powered, plain = found["prediction_powered_mean"], found["reference_mean"]
        assert powered.low is not None
        assert powered.high is not None
        assert plain.low is not None
        assert plain.high is not None
        hits += powered.low <= 3 <= powered.high  # the scale is symmetric about the mean of 3
        widths.append(powered.high - powered.low)
        classical.append(plain.high - plain.low)
    assert stats.binom.cdf(364, 400, 0.95) < 0.001
    assert 365 <= hits <= 394
    assert np.mean(widths) < 0.8 * np.mean(classical)


def test_rows_without_a_judge_are_left_out_and_counted():
    rating = [1.0, 2.0, 3.0, None, NAN, 4.0]
    reference = [1.0, 3.0, None, 5.0, None, NAN]
    table = pa.table({"rating": rating, "reference_rating": reference})
    state = METRIC.update(METRIC.init(), table)
    assert METRIC.notes(state) == {"labelled": 2, "unlabelled": 2, "rating_missing": 2}
    found = METRIC.compute(state)
    assert (found["reference_mean"].value, found["reference_mean"].n) == (2.0, 2)
    assert (found["rating_mean"].value, found["rating_mean"].n) == (2.5, 4)
    for name, (x, u) in METRIC.contributions(table).items():
        assert (x.sum() / u.sum(), u.sum()) == (found[name].value, found[name].n), name


def test_what_is_undefined_says_why():
    assert {e.reason for e in METRIC.compute(METRIC.init()).values()} == {"n=0"}
    unlabelled = compute([1.0, 2.0], [None, NAN])
    assert unlabelled["rating_mean"].value == 1.5
    assert unlabelled["prediction_powered_mean"].reason == "no valid example"
    assert unlabelled["tuning_weight"].reason == "no valid example"
    single = compute([1.0, 2.0], [3.0, NAN])
    assert single["prediction_powered_mean"].reason == single["tuning_weight"].reason == "n<2"
    assert single["reference_mean"].value == 3
    infinite = compute([1.0, INF, 2.0], [1.0, 2.0, NAN])
    assert {e.reason for e in infinite.values()} == {"non-finite"}
    # The judge's steps are so small that its weight is beyond the doubles.
    tiny = compute([0.0, 5e-324, 0.0, 5e-324], [1.0, 5.0, NAN, NAN])
    assert tiny["prediction_powered_mean"].reason == "overflow"
    assert tiny["reference_mean"].value == 3
    equal = compute([1.0, 2.0, 1.0], [4.0, 4.0, NAN])["prediction_powered_mean"]
    assert (equal.value, equal.stderr, equal.interval) == (4.0, 0.0, None)
    assert equal.no_interval == "no spread"


def test_a_judge_that_tells_all_leaves_only_its_own_spread():
    f = np.array([1.0, 2.0, 3.0, 4.0])
    found = compute(np.concatenate([f, f, f]), np.concatenate([f, [NAN] * 8]))
    powered = found["prediction_powered_mean"]
    weight = found["tuning_weight"].value or 0.0
    variance = (1 - weight) ** 2 * np.var(f, ddof=1) / 4 + weight**2 * np.var([*f, *f], ddof=1) / 8
    assert powered.stderr == pytest.approx(math.sqrt(variance), rel=1e-14)
    assert powered.value == 2.5
