"""Influences against finite differences, replicates against the coefficients of their tables."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from raveval.metrics import _correlation_errors as errors
from raveval.metrics import _ranks as ranks
from raveval.metrics._joint_counts import Run, count
from raveval.metrics._ranks import Cells

Weighted = Callable[[np.ndarray, np.ndarray, np.ndarray], float]


def run_of(n: int, levels: int, seed: int, n_clusters: int = 0) -> Run:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    y = x + rng.normal(size=n)
    x, y = np.rint(x * levels) / levels + 0.0, np.rint(y * levels) / levels + 0.0
    keys = rng.integers(1, n_clusters + 1, n).astype(np.uint64) if n_clusters else None
    return count(x, y, keys).consolidated()


def ranked(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    less = (values[:, None] > values) + (values[:, None] == values) / 2
    return np.asarray(less @ weights)


def pearson(x: np.ndarray, y: np.ndarray, p: np.ndarray) -> float:
    p = p / p.sum()
    x, y = x - p @ x, y - p @ y
    return float(p @ (x * y) / math.sqrt((p @ (x * x)) * (p @ (y * y))))


def spearman(x: np.ndarray, y: np.ndarray, p: np.ndarray) -> float:
    return pearson(ranked(x, p), ranked(y, p), p)


def balance(x: np.ndarray, y: np.ndarray, p: np.ndarray) -> float:
    signs = np.sign(x[:, None] - x) * np.sign(y[:, None] - y)
    return float(p @ signs @ p)


def tau_b(x: np.ndarray, y: np.ndarray, p: np.ndarray) -> float:
    p = p / p.sum()
    x_untied, y_untied = (p @ (v[:, None] != v) @ p for v in (x, y))
    return balance(x, y, p) / math.sqrt(x_untied * y_untied)


def tau_c(x: np.ndarray, y: np.ndarray, p: np.ndarray) -> float:
    m = min(len(np.unique(x)), len(np.unique(y)))
    return m / (m - 1) * balance(x, y, p / p.sum())


def influence_of(name: str, cells: Cells) -> tuple[float, np.ndarray]:
    difference = ranks.concordance(cells)
    value: float
    if name == "pearson":
        value = ranks.pearson(cells)
        return value, errors.pearson_influence(cells, value)
    if name == "spearman":
        value = ranks.spearman(cells)
        return value, errors.spearman_influence(cells, value)
    if name == "tau_b":
        value = ranks.kendall_tau_b(cells, difference)
        return value, errors.tau_b_influence(cells, difference, value)
    value = ranks.kendall_tau_c(cells, difference)
    return value, errors.tau_c_influence(cells, difference, value)


COEFFICIENTS: dict[str, Weighted] = {
    "pearson": pearson,
    "spearman": spearman,
    "tau_b": tau_b,
    "tau_c": tau_c,
}


@pytest.mark.parametrize("name", COEFFICIENTS)
@pytest.mark.parametrize("levels", [1, 3, 1000])
def test_an_influence_is_the_derivative(name: str, levels: int):
    cells = ranks.tabulate(run_of(80, levels, seed=levels))
    x, y = cells.x.values[cells.x.of_cell], cells.y.values[cells.y.of_cell]
    of, p = COEFFICIENTS[name], cells.counts / cells.n
    value, influence = influence_of(name, cells)
    assert of(x, y, p) == pytest.approx(value, abs=1e-12)
    assert cells.counts @ influence / cells.n == pytest.approx(0, abs=1e-12)
    step = 1e-5
    for k in range(len(p)):
        nudge = np.where(np.arange(len(p)) == k, step, 0.0)
        slope = (of(x, y, p + nudge) - of(x, y, p - nudge)) / (2 * step)
        # Central differences are off by step^2 times a third derivative, and by rounding / step.
        assert influence[k] == pytest.approx(slope, abs=1e-6)


@pytest.mark.parametrize("name", COEFFICIENTS)
def test_the_delta_method_agrees_with_resampling(name: str):
    """At n = 2000, where the delta method is good; 1500 resamples know an error to 2 %."""
    run = run_of(2000, 2, seed=5)
    cells = ranks.tabulate(run)
    _, influence = influence_of(name, cells)
    x, y = cells.x.values[cells.x.of_cell], cells.y.values[cells.y.of_cell]
    rng = np.random.default_rng(6)
    tables = rng.multinomial(cells.n, cells.counts / cells.n, size=1500)
    found = [COEFFICIENTS[name](x, y, t.astype(np.float64)) for t in tables]
    assert errors.standard_error(cells, influence) == pytest.approx(np.std(found), rel=0.1)


@pytest.mark.parametrize("name", COEFFICIENTS)
def test_clusters_by_the_delta_method(name: str):
    run = run_of(900, 2, seed=7, n_clusters=40)
    cells = ranks.tabulate(run)
    _, influence = influence_of(name, cells)
    assert run.clusters is not None
    # From the definition: residual sums of each cluster.
    sums: dict[int, float] = {}
    for pair, key, times in zip(run.pairs, run.clusters, run.counts, strict=True):
        i = np.searchsorted(cells.x.values, pair.real)
        j = np.searchsorted(cells.y.values, pair.imag)
        (k,) = np.flatnonzero((cells.x.of_cell == i) & (cells.y.of_cell == j))
        sums[int(key)] = sums.get(int(key), 0.0) + times * influence[k]
    assert len(sums) == 40
    expected = math.sqrt(40 / 39 * sum(v * v for v in sums.values())) / 900
    assert errors.clustered_error(run, cells, influence) == pytest.approx(expected, rel=1e-9)


def some_tables(cells: Cells) -> np.ndarray:
    return np.random.default_rng(9).integers(0, 4, (25, len(cells.counts))).astype(np.float64)


@pytest.mark.parametrize("levels", [1, 5])
def test_replicates_are_the_coefficients_of_their_tables(levels: int):
    cells = ranks.tabulate(run_of(120, levels, seed=10))
    tables = some_tables(cells)
    x, y = cells.x.values[cells.x.of_cell], cells.y.values[cells.y.of_cell]
    kendall = errors.kendall_replicates(tables, cells, errors.orders(cells))
    found = {
        "pearson": errors.pearson_replicates(tables, cells),
        "spearman": errors.spearman_replicates(tables, cells),
        "tau_b": kendall["kendall_tau_b"],
    }
    m = min(len(cells.x.values), len(cells.y.values))
    for b, table in enumerate(tables.astype(np.int64)):
        rows = np.repeat(x, table), np.repeat(y, table)
        expected = {
            "pearson": stats.pearsonr(*rows).statistic,
            "spearman": stats.spearmanr(*rows).statistic,
            "tau_b": stats.kendalltau(*rows).statistic,
        }
        for name, value in expected.items():
            assert found[name][b] == pytest.approx(value, abs=1e-12), name
        expected_c = m / (m - 1) * balance(*rows, np.full(len(rows[0]), 1 / len(rows[0])))
        assert kendall["kendall_tau_c"][b] == pytest.approx(expected_c, abs=1e-12)


def test_a_replicate_with_a_constant_side_has_no_coefficient():
    cells = ranks.tabulate(
        count(np.array([0.1, 0.1, 0.7]), np.array([1.0, 2.0, 3.0])).consolidated()
    )
    tables = np.array([[2.0, 1.0, 0.0], [0.0, 0.0, 3.0], [1.0, 1.0, 1.0]])
    kendall = errors.kendall_replicates(tables, cells, errors.orders(cells))
    for found in (
        errors.pearson_replicates(tables, cells),
        errors.spearman_replicates(tables, cells),
        *kendall.values(),
    ):
        assert np.isnan(found).tolist() == [True, True, False]


def test_clusters_are_drawn_whole():
    run = run_of(60, 1, seed=11, n_clusters=6)
    cells = ranks.tabulate(run)
    assert run.clusters is not None
    members = np.zeros((6, len(cells.counts)))
    row = 0
    for k, end in enumerate([*cells.first_rows[1:], len(run)]):
        while row < end:
            members[int(run.clusters[row]) - 1, k] += run.counts[row]
            row += 1
    tables = np.concatenate(list(errors.resampled_clusters(run, cells)))
    assert len(tables) == 2000
    weights, *_ = np.linalg.lstsq(members.T, tables.T, rcond=None)
    assert np.linalg.matrix_rank(members) == 6, "the example tells the clusters apart"
    assert weights == pytest.approx(np.rint(weights), abs=1e-9)
    assert weights.sum(0) == pytest.approx(np.full(2000, 6.0))
    # Each cluster is drawn once on average, with the variance 5/6; the mean of 2000 is that near.
    assert weights.mean(1) == pytest.approx(np.ones(6), abs=5 * math.sqrt(5 / 6 / 2000))


def test_ratings_at_the_ends_of_the_doubles_do_not_overflow():
    x = np.array([1e308, -1e308, 1e307, 0.0, 5e307])
    y = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    cells = ranks.tabulate(count(x, y).consolidated())
    small = ranks.tabulate(count(x / 2**900, y).consolidated())
    value = ranks.pearson(cells)
    assert value == ranks.pearson(small)
    assert errors.pearson_influence(cells, value) == pytest.approx(
        errors.pearson_influence(small, value), rel=1e-12
    )


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 9, 63, 64, 65, 1000])
@pytest.mark.parametrize("levels", [1, 4, 10**6])
def test_the_merge_count_is_the_table_sum(n: int, levels: int):
    cells = ranks.tabulate(run_of(n, levels, seed=n))
    x, y = cells.x.of_cell, cells.y.of_cell
    below = (x[:, None] > x) & (y[:, None] > y)
    assert (ranks._before_by_bits(cells) == below @ cells.counts).all()
    assert (ranks._before(cells) == below @ cells.counts).all()


def test_large_sparse_tables_take_the_merge_count():
    rng = np.random.default_rng(12)
    x = rng.normal(size=3000)
    y = x + rng.normal(size=3000)
    cells = ranks.tabulate(count(x, y).consolidated())
    assert ranks.kendall_tau_b(cells, ranks.concordance(cells)) == pytest.approx(
        stats.kendalltau(x, y).statistic, abs=1e-14
    )


def test_dot_products_beyond_64_bits():
    rng = np.random.default_rng(13)
    for bits in (10, 30, 31, 32, 40, 62):
        a, b = rng.integers(-(2**bits), 2**bits, (2, 500))
        expected = sum(p * q for p, q in zip(a.tolist(), b.tolist(), strict=True))
        assert ranks.exact_dot(a, b) == expected
