"""The bootstrap: its moments, standard errors known in closed form, and when it says nothing.

Tolerances are those of the simulation: where a statistic of m independent numbers is compared with
its expectation, five of its standard errors, so that a correct draw fails once in a million.
"""

import math
import os
import subprocess
import time
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from raveval.metrics import accuracy, agreement, correlation, entropy, greedy, perplexity, rating
from raveval.metrics._bootstrap import Bootstrapped, bootstrapped, count_replicates, percentile95

FEW_ROWS = np.array([3, 0, 1, 7, 2, 11, 1])  # drawn row by row
MANY_ROWS = np.array([3000, 0, 1, 7000, 2, 11_000, 1999])  # drawn cell by cell


def drawn(counts: np.ndarray, n: int, **more: int) -> np.ndarray:
    return np.concatenate(list(count_replicates(counts, n_replicates=n, **more)))


@pytest.mark.parametrize("counts", [FEW_ROWS, MANY_ROWS, np.array([5]), np.array([2, 10**15])])
def test_replicates_are_tables_of_the_same_size(counts: np.ndarray):
    tables = drawn(counts, 300)
    assert tables.shape == (300, len(counts))
    assert tables.dtype == np.int64
    assert (tables >= 0).all()
    assert (tables.sum(1) == counts.sum()).all()
    assert (tables[:, counts == 0] == 0).all()


@pytest.mark.parametrize("counts", [FEW_ROWS, MANY_ROWS])
def test_replicates_have_the_moments_of_a_multinomial(counts: np.ndarray):
    m = 20_000
    tables, n = drawn(counts, m), counts.sum()
    p = counts / n
    for cell in np.flatnonzero(counts):
        variance = n * p[cell] * (1 - p[cell])
        assert tables[:, cell].mean() == pytest.approx(
            counts[cell], abs=5 * math.sqrt(variance / m)
        )
        fourth = stats.binom(n, p[cell]).stats(moments="k") + 3
        assert tables[:, cell].var() == pytest.approx(
            variance, rel=5 * math.sqrt((float(fourth) - 1) / m)
        )
    covariance = np.cov(tables[:, 0], tables[:, 3])[0, 1]
    assert covariance == pytest.approx(-n * p[0] * p[3], rel=0.15)


@pytest.mark.parametrize("counts", [FEW_ROWS, MANY_ROWS])
def test_each_cell_is_binomial(counts: np.ndarray):
    """By chi-square over the cell's whole distribution, at the level 1e-6."""
    m, n = 20_000, int(counts.sum())
    column = drawn(counts, m)[:, 3]
    law = stats.binom(n, counts[3] / n)
    edges = np.unique(law.ppf(np.linspace(0.02, 0.98, 25)))
    expected = np.diff(np.concatenate(([0.0], law.cdf(edges), [1.0]))) * m
    observed = np.bincount(np.searchsorted(edges, column, side="left"), minlength=len(expected))
    assert stats.chisquare(observed, expected).pvalue > 1e-6


def test_replicates_are_the_same_each_time_and_differ_from_each_other():
    first, again = drawn(MANY_ROWS, 50), drawn(MANY_ROWS, 50)
    assert (first == again).all()
    assert len(np.unique(first, axis=0)) == 50
    assert (drawn(MANY_ROWS, 50, seed=1) != first).any()


def test_chunks_are_bounded_and_complete():
    chunks = list(count_replicates(np.full(200_000, 100), n_replicates=23))
    assert sum(len(chunk) for chunk in chunks) == 23
    assert max(chunk.size for chunk in chunks) <= 1 << 20


def test_a_table_larger_than_a_chunk_is_drawn_replicate_by_replicate():
    chunks = list(count_replicates(np.ones((1 << 20) + 1, np.int64), n_replicates=2))
    assert [len(chunk) for chunk in chunks] == [1, 1]


@pytest.mark.parametrize("counts", [[0, 0], [3, -1], []])
def test_nothing_to_draw_from_is_refused(counts: list[int]):
    with pytest.raises(ValueError, match="bootstrap needs counts"):
        next(count_replicates(np.array([*counts, 0])))


def test_the_standard_error_of_a_mean_is_the_analytic_one():
    values = np.array([0.0, 0.1, 0.3, 0.5, 0.6, 0.9, 1.0])
    for counts in (FEW_ROWS, MANY_ROWS):
        n, m = counts.sum(), 20_000
        means = drawn(counts, m) @ values / n
        mean = counts @ values / n
        analytic = math.sqrt(counts @ (values - mean) ** 2 / n / n)
        # A standard deviation of m numbers is known to 1/sqrt(2m) of itself.
        assert means.std() == pytest.approx(analytic, rel=5 / math.sqrt(2 * m))
        low, high = percentile95(means)
        assert low == pytest.approx(mean - 1.96 * analytic, abs=0.15 * analytic)
        assert high == pytest.approx(mean + 1.96 * analytic, abs=0.15 * analytic)


@pytest.mark.parametrize("metric", [agreement.METRIC, correlation.METRIC, rating.METRIC])
def test_no_other_process_is_begun(metric: Any, monkeypatch: pytest.MonkeyPatch):
    """A fork of a process that has threads, as one that talks to Ray has, may never return."""

    def begin(*_: object, **__: object) -> None:
        raise AssertionError("another process was begun")

    for owner, name in ((os, "fork"), (os, "posix_spawn"), (BaseProcess, "start")):
        monkeypatch.setattr(owner, name, begin)
    monkeypatch.setattr(subprocess.Popen, "__init__", begin)
    rng = np.random.default_rng(4)
    ratings = rng.integers(1, 6, (200, 3))
    table = pa.table({"rating": ratings.tolist(), "reference_rating": ratings[:, 0].tolist()})
    found = metric.compute(metric.update(metric.init(), table))
    assert any("bootstrap" in (estimate.interval or "") for estimate in found.values())


@pytest.mark.parametrize(
    "metric", [accuracy.METRIC, greedy.METRIC, perplexity.METRIC, entropy.METRIC]
)
def test_the_error_of_a_mean_needs_no_replicates(metric: Any):
    rng = np.random.default_rng(5)
    n = 100_000
    two = -rng.random((n, 2))
    choices = metric is accuracy.METRIC
    table = pa.table(
        {
            "gold": rng.integers(0, 2, n),
            "is_greedy": rng.random(n) < 0.3,
            "logprob_nats": two.tolist() if choices else two[:, 0] * 50,
            "entropy_nats": -two[:, 1] * 50,
            "n_tokens": (np.ones((n, 2), int) if choices else rng.integers(1, 60, n)).tolist(),
        }
    )
    state = metric.update(metric.init(), table)
    started = time.process_time()
    found = metric.compute(state)
    assert time.process_time() - started < 1
    intervals = [estimate.interval for estimate in found.values() if estimate.interval]
    assert intervals
    assert not any("bootstrap" in interval for interval in intervals)


def test_undefined_replicates_are_left_out_of_the_percentiles():
    values = np.append(np.arange(1001.0), [np.nan] * 7)
    assert percentile95(values) == (25.0, 975.0)
    with pytest.raises(ValueError, match="no replicate"):
        percentile95(np.array([np.nan]))


def test_replicates_make_an_error_and_an_interval():
    values = np.append(np.random.default_rng(1).normal(size=1000), [np.nan] * 52)
    found = bootstrapped(values, 30)
    assert isinstance(found, Bootstrapped)
    assert found.stderr == pytest.approx(np.nanstd(values, ddof=1), rel=1e-14)
    assert (found.low, found.high) == percentile95(values)


def test_when_replicates_make_no_interval():
    values = np.random.default_rng(2).normal(size=1000)
    assert isinstance(bootstrapped(values, 4), Bootstrapped)
    assert bootstrapped(values, 3) == "n<4"
    assert bootstrapped(np.append(values, [np.nan] * 53), 30) == "replicates undefined"
    assert bootstrapped(np.full(1000, np.nan), 30) == "replicates undefined"
    assert bootstrapped(np.full(1000, 0.3), 30) == "no spread"
    dust = 0.3 + np.spacing(0.3) * np.arange(1000)
    assert bootstrapped(dust, 30) == "no spread", "rounding dust is none"
