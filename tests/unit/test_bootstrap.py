"""The bootstraps: their moments, their independence, and standard errors known in closed form.

Tolerances are those of the simulation: where a statistic of m independent numbers is compared with
its expectation, five of its standard errors, so that a correct draw fails once in a million.
"""

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from raveval.metrics import _bootstrap as bootstrap
from raveval.metrics._bootstrap import (
    count_replicates,
    percentile95,
    poisson_weights,
)

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


def test_undefined_replicates_are_left_out_of_the_percentiles():
    values = np.append(np.arange(1001.0), [np.nan] * 7)
    assert percentile95(values) == (25.0, 975.0)
    with pytest.raises(ValueError, match="no replicate"):
        percentile95(np.array([np.nan]))


def test_the_table_of_weights_is_poisson():
    table = bootstrap._WEIGHT_OF.astype(np.int64)
    assert len(table) == 1 << 16
    assert table.sum() == 1 << 16, "the mean is exactly 1"
    assert (table * (table - 1)).sum() == 1 << 16, "and so is the variance"
    for weight, share in enumerate(np.bincount(table) / (1 << 16)):
        assert share == pytest.approx(stats.poisson(1).pmf(weight), abs=1.3 / (1 << 16))


def test_weights_are_the_same_on_every_machine():
    keys = np.array([0, 1, 2, 2**63, 2**64 - 1, 0x0123456789ABCDEF], np.uint64)
    assert poisson_weights(keys, 0, 8).tolist() == [
        [2, 5, 1, 0, 1, 0, 2, 1],
        [2, 1, 0, 2, 1, 1, 1, 1],
        [0, 2, 1, 2, 1, 0, 0, 1],
        [0, 1, 1, 1, 2, 0, 1, 1],
        [0, 0, 0, 0, 1, 1, 0, 0],
        [0, 0, 3, 0, 1, 1, 1, 0],
    ]
    assert poisson_weights(keys, 1_000_003, 5).tolist() == [
        [3, 1, 0, 1, 1],
        [1, 1, 1, 0, 3],
        [1, 0, 3, 1, 0],
        [2, 0, 1, 1, 0],
        [0, 2, 0, 0, 0],
        [5, 0, 1, 2, 2],
    ]


def one_by_one(key: int, replicate: int) -> int:
    """The same weight from the definition, in Python's integers."""

    def mix(word: int) -> int:
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) % 2**64
        return word ^ (word >> 31)

    golden = 0x9E3779B97F4A7C15
    word = mix((mix((key + golden) % 2**64) + replicate // 4 * golden) % 2**64)
    bits = word >> (16 * (replicate % 4)) & 0xFFFF
    return int(np.searchsorted(np.cumsum(bootstrap._OF_65536), bits, side="right"))


def test_weights_follow_their_definition():
    rng = np.random.default_rng(5)
    keys = rng.integers(0, 2**64, 40, dtype=np.uint64)
    found = poisson_weights(keys, 3, 30)
    expected = [[one_by_one(key, replicate) for replicate in range(3, 33)] for key in keys.tolist()]
    assert found.tolist() == expected
    assert found.dtype == np.uint8


def test_weights_do_not_depend_on_what_else_is_asked_for():
    keys = np.arange(100, dtype=np.uint64)
    whole = poisson_weights(keys, 0, 40)
    for first, size in [(0, 1), (1, 3), (2, 9), (7, 33), (39, 1), (5, 0)]:
        part = poisson_weights(keys, first, size)
        assert (part == whole[:, first : first + size]).all()
    assert (poisson_weights(keys[::-1], 0, 40) == whole[::-1]).all()
    assert poisson_weights(keys[:0], 0, 40).shape == (0, 40)


# Sequential keys and counters are the hard case: what hashing is there for.
@pytest.mark.parametrize(
    "keys",
    [
        np.arange(2000, dtype=np.uint64),
        np.arange(2000, dtype=np.uint64) << np.uint64(32),
        np.arange(2000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15),
    ],
)
def test_weights_are_independent_across_keys_and_replicates(keys: np.ndarray):
    weights = poisson_weights(keys, 0, 1000).astype(np.float64)
    m = weights.size
    assert weights.mean() == pytest.approx(1, abs=5 / math.sqrt(m))
    assert weights.var() == pytest.approx(1, abs=5 * math.sqrt(3 / m))  # E(w-1)^4 - 1 = 3
    centred = weights - 1
    for axis, other in ((0, 1), (1, 0)):
        # Sums over one axis have the variance of independent numbers, no more and no less.
        sums = centred.sum(axis)
        size, length = weights.shape[axis], weights.shape[other]
        assert sums.var() == pytest.approx(size, rel=5 * math.sqrt(2 / length))
    for lag in (1, 2, 3, 4, 5, 8):
        for left, right in (
            (centred[lag:], centred[:-lag]),
            (centred[:, lag:], centred[:, :-lag]),
        ):
            assert (left * right).mean() == pytest.approx(0, abs=5 / math.sqrt(left.size))


def test_no_two_of_many_keys_share_their_weights():
    keys = np.arange(20_000, dtype=np.uint64)
    assert len(np.unique(poisson_weights(keys, 0, 64), axis=0)) == len(keys)


def weighted_means(keys: np.ndarray, x: np.ndarray, m: int) -> np.ndarray:
    weights = poisson_weights(keys, 0, m).astype(np.float64)
    return np.asarray((x @ weights) / weights.sum(0))


def test_keyed_by_example_it_is_the_ordinary_bootstrap():
    rng = np.random.default_rng(8)
    n, m = 3000, 4000
    x = (rng.random(n) < 0.3).astype(np.float64)
    spread = weighted_means(rng.integers(0, 2**64, n, dtype=np.uint64), x, m).std()
    # 5 standard errors of a standard deviation; a ratio's own bias is of order 1/n below that.
    assert spread == pytest.approx(x.std() / math.sqrt(n), rel=5 / math.sqrt(2 * m))


def test_keyed_by_cluster_it_is_the_cluster_bootstrap():
    rng = np.random.default_rng(9)
    n_clusters, m = 400, 4000
    sizes = rng.integers(1, 12, n_clusters)
    cluster = np.repeat(np.arange(n_clusters), sizes)
    x = rng.normal(size=n_clusters)[cluster] + rng.normal(size=len(cluster))
    residuals = np.bincount(cluster, x - x.mean())
    analytic = math.sqrt((residuals**2).sum()) / len(x)
    naive = x.std() / math.sqrt(len(x))
    spread = weighted_means(cluster.astype(np.uint64), x, m).std()
    assert analytic > 1.5 * naive, "the example has clusters that matter"
    assert spread == pytest.approx(analytic, rel=5 / math.sqrt(2 * m) + 2 / n_clusters)


def test_shared_keys_pair_two_runs():
    rng = np.random.default_rng(10)
    n, m = 3000, 4000
    a = (rng.random(n) < 0.6).astype(np.float64)
    b = np.where(rng.random(n) < 0.9, a, 1 - a)
    keys = rng.integers(0, 2**64, n, dtype=np.uint64)
    differences = weighted_means(keys, a, m) - weighted_means(keys, b, m)
    assert differences.std() == pytest.approx(
        (a - b).std() / math.sqrt(n), rel=5 / math.sqrt(2 * m)
    )
    total = np.zeros(n)
    for low, high in pairwise([0, 700, 1500, m]):
        total += poisson_weights(keys, low, high - low).sum(1)
    assert (total == poisson_weights(keys, 0, m).sum(1)).all()
