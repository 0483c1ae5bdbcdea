"""Two raters: shares, differences, kappa and alpha against independent implementations."""

import math
import random
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import krippendorff
import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from scipy import stats
from statsmodels.stats.inter_rater import cohens_kappa

from raveval.errors import DataError
from raveval.metrics import _agreement_table as tables
from raveval.metrics import _alpha_intervals as alpha_intervals
from raveval.metrics._rating_counts import count_ratings, number, ordinal, whole
from raveval.metrics.agreement import METRIC
from raveval.types import Estimate
from tests.kappa import statsmodels_kappa

KAPPAS: dict[str, Any] = {
    "cohen_kappa": None,
    "cohen_kappa_linear": "linear",
    "cohen_kappa_quadratic": "quadratic",
}
INF, NAN = float("inf"), float("nan")


def compute(x: Any, y: Any, **columns: Any) -> Mapping[str, Estimate]:
    table = pa.table({"rating": x, "reference_rating": y, **columns})
    return METRIC.compute(METRIC.update(METRIC.init(), table))


def draw(seed: int, n: int, scale: list[float]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Ratings that agree more than by chance, with every step of the scale in use."""
    rng = np.random.default_rng(seed)
    first = rng.integers(0, len(scale), n)
    second = np.clip(first + rng.integers(-2, 3, n), 0, len(scale) - 1)
    first[: len(scale)] = second[: len(scale)] = np.arange(len(scale))
    return np.array(scale)[first], np.array(scale)[second]


@pytest.mark.parametrize("seed", range(8))
def test_kappa_equals_statsmodels(seed: int):
    x, y = draw(seed, 30 + 40 * seed, [1, 2, 3, 4, 5])
    found = compute(x, y)
    for name, weights in KAPPAS.items():
        expected = statsmodels_kappa(x.tolist(), y.tolist(), weights=weights)
        assert found[name].value == pytest.approx(expected, abs=1e-12), name


@pytest.mark.parametrize("seed", range(8))
def test_alpha_equals_krippendorff(seed: int):
    scale = [[1.0, 2.0, 3.0, 4.0, 5.0], [0.0, 0.5, 1.0, 3.0, 10.0, 11.0]][seed % 2]
    x, y = draw(seed, 20 + 40 * seed, scale)
    found = compute(x, y)
    for level in ("nominal", "ordinal", "interval"):
        expected = krippendorff.alpha(
            [x.tolist(), y.tolist()], level_of_measurement=level, value_domain=scale
        )
        value = found[f"krippendorff_alpha_{level}"].value
        assert value == pytest.approx(expected, abs=1e-12), level


@pytest.mark.parametrize("seed", range(4))
def test_the_standard_error_of_kappa_equals_statsmodels(seed: int):
    x, y = draw(seed, 60 * (seed + 1), [1, 2, 3, 4])
    table = np.zeros((4, 4))
    np.add.at(table, (x.astype(int) - 1, y.astype(int) - 1), 1)
    found = compute(x, y)
    weights = {"cohen_kappa": None, "cohen_kappa_linear": "linear", "cohen_kappa_quadratic": "fc"}
    for name, wt in weights.items():
        expected = cohens_kappa(table, wt=wt, weights=None)
        estimate = found[name]
        assert estimate.stderr == pytest.approx(expected.std_kappa, rel=1e-10), name
        assert estimate.low == pytest.approx(expected.kappa_low, abs=1e-10), name
        assert estimate.high == pytest.approx(min(1, expected.kappa_upp), abs=1e-10), name


def test_weights_are_distances_of_ratings_not_of_the_places_in_use():
    x, y = [2, 4, 2, 4, 5, 5, 1], [2, 2, 4, 4, 5, 4, 1]
    found = compute(x, y)
    # With its unused rating 3 named, statsmodels has the same distances; by itself it has not.
    for name, weights in list(KAPPAS.items())[1:]:
        named = statsmodels_kappa(x, y, weights=weights, labels=[1, 2, 3, 4, 5])
        assert found[name].value == pytest.approx(named, abs=1e-12)
        assert abs(statsmodels_kappa(x, y, weights=weights) - named) > 0.01


def test_kappa_is_the_same_on_any_linear_scale():
    x, y = draw(3, 100, [1, 2, 3, 4, 5])
    for a, b in ((1e-300, 0.0), (1e290, 0.0), (-0.5, 1e6)):
        moved = compute(a * x + b, a * y + b)
        for name in (*KAPPAS, "krippendorff_alpha_ordinal", "krippendorff_alpha_interval"):
            original = compute(x, y)[name].value
            assert moved[name].value == pytest.approx(original, rel=1e-12), (name, a, b)


def test_differences_against_fractions_and_scipy():
    rng = np.random.default_rng(1)
    x, y = rng.normal(3, 1, 50), np.round(rng.normal(3, 1, 50), 1)
    found = compute(x, y)
    signed = [Fraction(a) - Fraction(b) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    for name, exact in (
        ("mean_difference", signed),
        ("mean_absolute_difference", list(map(abs, signed))),
    ):
        estimate = found[name]
        assert estimate.value == float(sum(exact) / 50)
        sample = np.array(list(map(float, exact)))
        assert estimate.stderr == pytest.approx(stats.sem(sample), rel=1e-12)
        low, high = stats.t.interval(0.95, 49, sample.mean(), stats.sem(sample))
        assert (estimate.low, estimate.high) == pytest.approx((low, high), rel=1e-12)
        assert estimate.interval == "t95"
    within = sum(abs(difference) <= 1 for difference in signed)
    assert found["adjacent_agreement"].value == within / 50
    assert found["exact_agreement"].value == 0


def test_contributions_sum_to_the_estimates():
    x, y = draw(2, 80, [1.0, 4 / 3, 5 / 3, 2.0, 8 / 3])
    table = pa.table({"rating": [*x, None, 1.0], "reference_rating": [*y, 3.0, NAN]})
    found = METRIC.compute(METRIC.update(METRIC.init(), table))
    contributions = METRIC.contributions(table)
    assert set(contributions) == set(METRIC.ratios)
    for name, (a, u) in contributions.items():
        assert u.sum() == 80
        assert a.sum() / 80 == pytest.approx(found[name].value, abs=1e-14), name


def test_one_apart_on_a_grid_of_thirds_is_adjacent():
    thirds = [k / 3 for k in range(40)]
    found = compute(thirds[3:], thirds[:-3])
    assert found["adjacent_agreement"].value == 1
    assert compute(thirds[4:], thirds[:-4])["adjacent_agreement"].value == 0


def test_equal_ratings_on_a_grid_agree():
    found = compute([[4.1, 4.2, 4.3], [1.0]], [4.2, 1.0], rating_denominator=[10, 10])
    assert found["exact_agreement"].value == 1


def test_no_interval_of_a_size_goes_below_zero():
    found = compute([1, 2, 5], [1, 2, 3])["mean_absolute_difference"]
    assert found.value == pytest.approx(2 / 3)
    assert found.low == 0


def test_missing_and_infinite_ratings():
    x = [1.0, 2.0, NAN, 3.0, INF, INF]
    y = [1.0, None, 2.0, 5.0, INF, 4.0]
    state = METRIC.update(METRIC.init(), pa.table({"rating": x, "reference_rating": y}))
    assert METRIC.notes(state) == {
        "rating_missing": 1,
        "reference_rating_missing": 1,
        "infinite_ratings": 2,
    }
    found = METRIC.compute(state)
    assert (found["exact_agreement"].value, found["exact_agreement"].n) == (2 / 4, 4)
    assert found["adjacent_agreement"].value == 2 / 4
    assert found["krippendorff_alpha_ordinal"].value is not None
    undefined = {name for name, e in found.items() if e.reason == "non-finite"}
    assert undefined == {
        *("mean_difference", "mean_absolute_difference"),
        *("cohen_kappa_linear", "cohen_kappa_quadratic", "krippendorff_alpha_interval"),
    }


def test_what_is_undefined_says_why():
    assert {e.reason for e in METRIC.compute(METRIC.init()).values()} == {"n=0"}
    found = compute([None, 1.0], [1.0, NAN])
    assert {e.reason for e in found.values()} == {"no valid example"}
    same = compute([3, 3], [3, 3])
    assert same["mean_difference"].value == 0
    assert same["mean_difference"].interval is None
    assert same["mean_difference"].no_interval == "constant"
    coefficients = [name for name in same if "kappa" in name or "alpha" in name]
    full = compute([1, 2, 3, 3, 1], [1, 2, 3, 3, 1])
    assert {(full[name].value, full[name].no_interval) for name in coefficients} == {
        (1.0, "full agreement")
    }
    one = compute([1], [2])
    assert one["cohen_kappa"].no_interval == one["mean_difference"].no_interval == "n<2"
    assert one["krippendorff_alpha_interval"].no_interval == "n<4"
    never = compute([1, 1, 1, 1], [2, 2, 2, 2])["cohen_kappa"]
    assert (never.value, never.no_interval) == (0.0, "no spread")
    kappas = [e for name, e in same.items() if "kappa" in name or "alpha" in name]
    assert {e.reason for e in kappas} == {"constant"}
    huge = compute([1.7e308, 1.7e308], [-1.7e308, -1.7e308])
    assert huge["mean_difference"].reason == "overflow"
    assert huge["cohen_kappa"].value == 0
    with pytest.raises(DataError, match="reference_rating: no such column"):
        METRIC.update(METRIC.init(), pa.table({"rating": [1]}))


def test_one_row_has_values_and_no_intervals():
    found = compute([1], [2])
    assert found["cohen_kappa"].value == 0
    assert found["mean_difference"].value == -1
    for name, estimate in found.items():
        if estimate.unit != "fraction":
            assert (estimate.stderr, estimate.low) == (None, None), name


def test_full_agreement_has_no_interval_that_claims_certainty():
    found = compute([1, 2, 2, 5], [1, 2, 2, 5])
    for name, estimate in found.items():
        if "kappa" in name or "alpha" in name:
            assert (estimate.value, estimate.low) == (1.0, None), name


def test_distances_from_sorted_positions_against_a_matrix():
    rng = random.Random(4)
    powers: Mapping[tables.Distance, Any] = {
        "nominal": lambda a, b: int(a != b),
        "linear": lambda a, b: abs(a - b),
        "quadratic": lambda a, b: (a - b) ** 2,
    }
    for _ in range(50):
        positions = sorted(rng.sample(range(-50, 50), rng.randint(2, 8)))
        cells = {
            (rng.choice(positions), rng.choice(positions)): rng.randint(1, 9) for _ in range(12)
        }
        n = sum(cells.values())
        for distance, power in powers.items():
            seen = Fraction(sum(c * power(a, b) for (a, b), c in cells.items()), n)
            by_chance = Fraction(
                sum(
                    c * d * power(a, b)
                    for (a, _), c in cells.items()
                    for (_, b), d in cells.items()
                ),
                n * n,
            )
            found = tables.kappa(tables.category_table(cells), distance)
            assert found.value == (float(1 - seen / by_chance) if by_chance else None)


LEVELS: tuple[tables.Level, ...] = ("nominal", "ordinal", "interval")


def two_raters(seed: int, n: int) -> dict[tuple[int, int], int]:
    x, y = draw(seed, n, [1, 2, 4, 7, 8])
    cells: dict[tuple[int, int], int] = {}
    for cell in zip(x.astype(int).tolist(), y.astype(int).tolist(), strict=True):
        cells[cell] = cells.get(cell, 0) + 1
    return cells


@pytest.mark.parametrize("level", LEVELS)
def test_the_bootstrap_of_alpha_equals_resampling_rows(level: tables.Level):
    cells = two_raters(7, 60)
    estimate = tables.alpha(tables.category_table(cells), level)
    rows = [cell for cell in sorted(cells) for _ in range(cells[cell])]
    rng = random.Random(8)
    replicates = []
    for _ in range(2000):
        drawn: dict[tuple[int, int], int] = {}
        for cell in rng.choices(rows, k=60):
            drawn[cell] = drawn.get(cell, 0) + 1
        x, y = zip(*(cell for cell in drawn for _ in range(drawn[cell])), strict=True)
        replicates.append(plain_alpha(x, y, level))
    # Two sets of 2000 replicates: their spread and quantiles differ by a few percent of the width.
    low, high = map(float, np.quantile(replicates, [0.025, 0.975]))
    slack = 0.08 * (high - low)
    assert estimate.stderr == pytest.approx(np.std(replicates), rel=0.08)
    assert estimate.low == pytest.approx(low, abs=slack)
    assert estimate.high == pytest.approx(high, abs=slack)
    assert estimate.interval == "bootstrap95"


@pytest.mark.parametrize("level", LEVELS)
def test_a_replicate_like_the_rows_themselves_has_their_alpha(level: tables.Level):
    found = tables.category_table(two_raters(12, 40))
    if level == "interval":
        statistic = alpha_intervals.value_alpha(tables.unit_values(found.units()))
    else:
        table = found.category_counts()
        statistic = alpha_intervals.rank_alpha(table, is_nominal=level == "nominal")
    counts = np.array(found.counts)
    only_first = np.where(np.arange(len(counts)) == 0, counts.sum(), 0)
    replicates = statistic(np.array([counts, only_first]))
    assert replicates[0] == pytest.approx(tables.alpha(found, level).value, abs=1e-14)
    # The first cell is that of agreement on the lowest rating: nothing differs.
    assert math.isnan(replicates[1])


def plain_alpha(x: Any, y: Any, level: str) -> float:
    """Alpha by the coincidence matrix, as in the textbook."""
    values = sorted({*x, *y})
    place = {value: i for i, value in enumerate(values)}
    coincidences = np.zeros((len(values), len(values)))
    for a, b in zip(x, y, strict=True):
        coincidences[place[a], place[b]] += 1
        coincidences[place[b], place[a]] += 1
    used = coincidences.sum(axis=0)

    def distance(c: int, k: int) -> float:
        if level == "nominal":
            return float(c != k)
        if level == "interval":
            return float((values[c] - values[k]) ** 2)
        low, high = min(c, k), max(c, k)
        return float((used[low : high + 1].sum() - (used[c] + used[k]) / 2) ** 2)

    d = np.array([[distance(c, k) for k in range(len(values))] for c in range(len(values))])
    seen = (coincidences * d).sum()
    return float(1 - (used.sum() - 1) * seen / (np.outer(used, used) * d).sum())


def test_replicates_that_are_often_undefined_make_no_interval():
    """A third of the replicates of (1, 1) three times and (2, 2) have no 2, and no alpha."""
    rare = compute([1, 1, 1, 2], [1, 1, 1, 2])
    mixed = compute([1, 1, 1, 1, 2], [1, 1, 1, 1, 1])
    few = compute([1, 2, 3], [1, 2, 2])
    for found, reason in (
        (rare, "full agreement"),
        (mixed, "replicates undefined"),
        (few, "n<4"),
    ):
        for level in LEVELS:
            alpha = found[f"krippendorff_alpha_{level}"]
            assert alpha.value is not None
            assert (alpha.stderr, alpha.low, alpha.high, alpha.interval) == (None,) * 4
            assert alpha.no_interval == reason


@pytest.mark.parametrize("level", LEVELS)
def test_the_delta_method_of_alpha_is_the_derivative(level: tables.Level):
    cells = two_raters(9, 400)
    table = tables.category_table(cells)
    if level == "interval":
        influences = alpha_intervals.value_influences(tables.unit_values(table.units()))
    else:
        influences = alpha_intervals.rank_influences(
            table.category_counts(), is_nominal=level == "nominal"
        )
    assert (influences * np.array(table.counts)).sum() == pytest.approx(0, abs=1e-10)
    bootstrap = tables.alpha(table, level)
    estimate = alpha_intervals.by_delta(bootstrap, influences, np.array(table.counts))
    assert estimate.interval == "normal95"
    assert estimate.stderr == pytest.approx(bootstrap.stderr, rel=0.08)
    # Do / De where a little of every row is given to one cell, by the coincidence matrix. Alpha's
    # factor (N - 1) / N is 1 at this size.
    size = 10**9
    large = {cell: count * size for cell, count in cells.items()}

    def disagreement(counts: Mapping[tuple[int, int], int]) -> Fraction:
        found = tables.category_table(counts)
        used = [a + b for a, b in zip(*found.marginals(), strict=True)]
        positions = found.positions
        if level == "ordinal":
            positions = [2 * sum(used[:i]) + used[i] for i in range(len(used))]

        def distance(i: int, j: int) -> int:
            return int(i != j) if level == "nominal" else (positions[i] - positions[j]) ** 2

        cells_of = zip(found.first, found.second, found.counts, strict=True)
        seen = Fraction(sum(c * distance(i, j) for i, j, c in cells_of), found.n)
        every = range(len(used))
        total = sum(used[i] * used[j] * distance(i, j) for i in every for j in every)
        return seen / Fraction(total, sum(used) ** 2)

    n, start, step = 400 * size, disagreement(large), size // 1000
    variance = Fraction(0)
    for cell, count in cells.items():
        moved = disagreement({**large, cell: large[cell] + step})
        variance += count * ((moved - start) * Fraction(n, step)) ** 2
    assert estimate.stderr == pytest.approx(math.sqrt(variance) / 400, rel=1e-4)


def test_many_kinds_of_rows_take_no_time_to_resample():
    rng = np.random.default_rng(10)
    x = rng.normal(size=6000)
    found = compute(x, x + rng.normal(size=6000))
    assert found["krippendorff_alpha_interval"].interval == "normal95"
    # With hardly a tie, interval alpha is a correlation about the common mean.
    assert found["krippendorff_alpha_ordinal"].interval == "normal95"
    assert found["cohen_kappa_quadratic"].value == pytest.approx(
        found["krippendorff_alpha_interval"].value, abs=0.01
    )


def test_ordinals_keep_order_and_values():
    values = [-INF, -1e308, -1.5, -5e-324, 0.0, 5e-324, 1.5, 1e308, INF]
    keys = list(map(ordinal, values))
    assert keys == sorted(keys)
    assert list(map(number, keys)) == values
    assert ordinal(NAN) == 0 < keys[0]
    assert math.isnan(number(0))
    assert whole(-1.5) == -3 << 1073


def test_counts_of_many_columns_and_values():
    rng = np.random.default_rng(11)
    few = [rng.integers(0, 12, 500).astype(float) for _ in range(30)]  # 12^30 combinations
    many = [rng.normal(size=3000), rng.normal(size=3000)]
    for columns in (few, many, [np.array([1.0, NAN, NAN, 1.0])]):
        expected: dict[tuple[int, ...], int] = {}
        for row in zip(*(column.tolist() for column in columns), strict=True):
            key = tuple(map(ordinal, row))
            expected[key] = expected.get(key, 0) + 1
        assert count_ratings(*columns) == expected
    assert count_ratings(np.zeros(0), np.zeros(0)) == {}


@pytest.mark.parametrize("key", [1, ordinal(INF) + 1, 1 << 64, ordinal(-INF) - 1, (1 << 63) - 1])
def test_a_state_of_numbers_that_are_no_ratings_is_refused(key: int):
    for cell in ([key, ordinal(1.0), 1], [ordinal(1.0), key, 1]):
        with pytest.raises(DataError, match="stands for no rating"):
            METRIC.decode({"metric": "agreement", "version": METRIC.version, "pairs": [cell]})
