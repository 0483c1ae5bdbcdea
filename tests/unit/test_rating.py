"""Ratings: location, spread, bounds for missing ones, and agreement among samples."""

import itertools
import math
import random
import statistics
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import krippendorff
import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from raveval.errors import DataError
from raveval.metrics import _agreement_table as tables
from raveval.metrics import _alpha_intervals as alpha_intervals
from raveval.metrics._rating_counts import ordinal
from raveval.metrics._value_counts import median
from raveval.metrics.rating import METRIC
from raveval.types import Estimate

INF, NAN = float("inf"), float("nan")


def state_of(ratings: Any, **columns: Any) -> Any:
    return METRIC.update(METRIC.init(), pa.table({"rating": ratings, **columns}))


def compute(ratings: Any, **columns: Any) -> Mapping[str, Estimate]:
    return METRIC.compute(state_of(ratings, **columns))


def test_the_mean_and_its_interval_equal_scipy():
    ratings = np.random.default_rng(0).normal(3, 1, 40)
    mean = compute(ratings)["mean_rating"]
    assert mean.value == float(sum(map(Fraction, ratings.tolist())) / 40)
    assert mean.stderr == pytest.approx(stats.sem(ratings), rel=1e-13)
    low, high = stats.t.interval(0.95, 39, ratings.mean(), stats.sem(ratings))
    assert (mean.low, mean.high) == pytest.approx((low, high), rel=1e-13)
    assert (mean.interval, mean.n, mean.unit) == ("t95", 40, "rating")


def test_a_large_offset_loses_nothing():
    ratings = [1e15 + k for k in (1, 2, 3, 4)]
    found = compute(ratings)
    assert found["mean_rating"].value == 1e15 + 2.5
    assert found["standard_deviation"].value == statistics.stdev([1, 2, 3, 4])


def test_the_mean_is_that_of_the_means_of_rows():
    found = compute([[1, 2], [5, 5, 5, 5], [], [3]])
    assert found["mean_rating"].value == (1.5 + 5 + 3) / 3
    dusty = compute([[0.1, 0.2, 0.3], [0.2]], rating_denominator=[10, 10])
    assert (dusty["mean_rating"].value, dusty["standard_deviation"].value) == (0.2, 0.0)


def test_the_standard_deviation_and_its_error():
    rng = np.random.default_rng(1)
    ratings = rng.integers(1, 6, 300)
    found = compute(ratings)["standard_deviation"]
    assert found.value == pytest.approx(np.std(ratings, ddof=1), rel=1e-14)
    resampled = [np.std(rng.choice(ratings, 300), ddof=1) for _ in range(4000)]
    assert found.stderr == pytest.approx(np.std(resampled), rel=0.06)
    normal = rng.normal(size=20_000)
    # Of normal values the error of s is sigma / sqrt(2 n).
    assert compute(normal)["standard_deviation"].stderr == pytest.approx(1 / 200, rel=0.05)


def bonett(values: np.ndarray) -> tuple[float, float, float]:
    """The standard error and both ends, by floats, from the formulas of the paper."""
    n, z = len(values), 1.959963984540054
    variance = values.var(ddof=1)
    n_cut = int(n / (2 * math.sqrt(n - 4)))
    trimmed = np.sort(values)[n_cut : n - n_cut].mean()
    squares = ((values - values.mean()) ** 2).sum()
    kurtosis = n * ((values - trimmed) ** 4).sum() / squares**2
    c = n / (n - z)
    error = c * math.sqrt((kurtosis - (n - 3) / n) / (n - 1))
    centre, s = math.log(c * variance), math.sqrt(variance)
    return (
        s * error / 2,
        min(s, math.exp((centre - z * error) / 2)),
        max(s, math.exp((centre + z * error) / 2)),
    )


@pytest.mark.parametrize("n", [5, 6, 9, 30, 101, 1000])
def test_the_interval_of_the_standard_deviation_is_bonetts(n: int):
    rng = np.random.default_rng(n)
    for values in (rng.integers(1, 6, n) * 1.0, rng.normal(3, 1, n), rng.exponential(size=n)):
        values[0] += 1.5  # no two-point table of a few grades
        found = compute(values)["standard_deviation"]
        assert found.interval == "bonett95"
        assert (found.stderr, found.low, found.high) == pytest.approx(bonett(values), rel=1e-10)


def test_a_standard_deviation_without_an_interval():
    few = compute([1, 2, 4, 5])["standard_deviation"]
    assert few.value == pytest.approx(np.std([1, 2, 4, 5], ddof=1), rel=1e-15)
    assert (few.stderr, few.low, few.interval) == (None, None, None)
    assert few.no_interval == "n<5"
    same = compute([2] * 9)["standard_deviation"]
    assert (same.value, same.stderr, same.low, same.interval) == (0.0, 0.0, None, None)
    assert same.no_interval == "constant"


def test_the_interval_of_the_standard_deviation_covers():
    """Of 400 intervals 380 ± 4 should hold the truth; of exponential values it is 366 ± 6."""
    for draw, truth, least in (
        (lambda rng: rng.normal(size=100), 1.0, 0.92),
        (lambda rng: rng.exponential(size=100), 1.0, 0.89),
    ):
        rng, covered = np.random.default_rng(5), 0
        for _ in range(400):
            found = compute(draw(rng))["standard_deviation"]
            assert found.low is not None
            assert found.high is not None
            covered += found.low <= truth <= found.high
        assert least <= covered / 400 <= 0.98


def test_replicates_of_few_rows_make_no_interval_of_alpha():
    rows = [[1, 2], [4, 5], [3, 3]]
    few, enough = compute(rows), compute([*rows, [1, 1]])
    assert few["krippendorff_alpha_samples"].value is not None
    assert few["krippendorff_alpha_samples"].interval is None
    assert enough["krippendorff_alpha_samples"].interval == "bootstrap95"


@pytest.mark.parametrize("n", [1, 2, 5, 6, 7, 20, 101])
def test_the_median_and_its_interval(n: int):
    ratings = np.random.default_rng(n).integers(1, 30, n).astype(float)
    found = compute(ratings)["median_rating"]
    assert found.value == statistics.median(ratings)
    ordered = np.sort(ratings)
    below = [k for k in range(1, n // 2 + 1) if stats.binom.cdf(k - 1, n, 0.5) <= 0.025]
    if not below:
        assert n < 6
        assert found.interval is None
        assert found.no_interval == "n<6"
        return
    k = max(below)
    assert (found.low, found.high) == (ordered[k - 1], ordered[n - k])
    assert found.interval == "order95"


def test_the_median_of_a_large_count():
    found = median({value << 1074: 10**9 for value in range(5)}, higher_is_better=None)
    assert (found.value, found.low, found.high, found.n) == (2.0, 2.0, 2.0, 5 * 10**9)


def test_missing_ratings_at_both_ends_of_their_scale():
    found = compute(
        [4.0, None, NAN, 2.0],
        scale_lowest=[None, 1.0, 0.0, None],
        scale_highest=[None, 5.0, 10.0, None],
    )
    assert (found["mean_rating"].value, found["mean_rating"].n) == (3.0, 2)
    lowest, highest = (found[f"mean_rating_if_missing_{end}"] for end in ("lowest", "highest"))
    assert (lowest.value, lowest.n) == ((4 + 1 + 0 + 2) / 4, 4)
    assert (highest.value, highest.n) == ((4 + 5 + 10 + 2) / 4, 4)
    assert lowest.stderr == pytest.approx(stats.sem([4, 1, 0, 2]), rel=1e-14)


def test_without_a_scale_there_are_no_bounds_unless_nothing_is_missing():
    ends = ("mean_rating_if_missing_lowest", "mean_rating_if_missing_highest")
    found = compute([4.0, None])
    assert [found[name].reason for name in ends] == ["no scale", "no scale"]
    half = compute([4.0, None], scale_lowest=[None, 1.0], scale_highest=[5.0, INF])
    assert [half[name].value for name in ends] == [2.5, None]
    complete = compute([4.0, 2.0])
    assert [complete[name].value for name in ends] == [3.0, 3.0]


def test_notes_hold_the_distribution():
    notes = METRIC.notes(
        state_of(
            [[1, 2], [1, 1, 2], 2 * [3], [-1.0], None, [INF], [9]],
            scale_highest=[None, None, None, None, 5, None, 5],
            scale_lowest=[2, None, None, 0, 1, None, None],
        )
    )
    assert notes == {
        "rating_-1": 1,
        "rating_1.3333333333333333": 1,
        "rating_1.5": 1,
        "rating_3": 1,
        "rating_9": 1,
        "rating_inf": 1,
        "rating_missing": 1,
        "rating_outside_scale": 3,
    }
    assert len(METRIC.notes(state_of(list(range(21))))) == 21
    assert METRIC.notes(state_of(list(range(22)))) == {}


def random_samples(seed: int, n: int) -> list[list[float]]:
    """Rows of one to five samples about a rating of their own."""
    rng = random.Random(seed)
    rows = []
    for _ in range(n):
        centre = rng.randint(1, 5)
        size = rng.choice([1, 2, 3, 3, 3, 5])
        rows.append([float(min(5, max(1, centre + rng.randint(-1, 1)))) for _ in range(size)])
    return rows


def test_the_agreement_of_samples_against_pairs():
    rows = random_samples(2, 200)
    shares = [
        Fraction(sum(a == b for a, b in itertools.permutations(row, 2)), len(row) * (len(row) - 1))
        for row in rows
        if len(row) > 1
    ]
    found = compute(rows)["sample_agreement"]
    assert (found.value, found.n) == (float(sum(shares) / len(shares)), len(shares))
    assert found.stderr == pytest.approx(stats.sem(list(map(float, shares))), rel=1e-12)
    assert found.interval == "wilson95"


@pytest.mark.parametrize("seed", range(6))
def test_the_alpha_of_samples_equals_krippendorff(seed: int):
    rows = random_samples(seed, 40)
    width = max(map(len, rows))
    raters = np.array([row + [NAN] * (width - len(row)) for row in rows]).T
    found = compute(rows)["krippendorff_alpha_samples"]
    expected = krippendorff.alpha(raters, level_of_measurement="interval")
    assert found.value == pytest.approx(expected, abs=1e-12)
    assert found.n == sum(len(row) > 1 for row in rows)
    assert found.low is not None
    assert found.interval == "bootstrap95"


def test_the_errors_of_alpha_agree():
    rows = random_samples(3, 300)
    bootstrap = compute(rows)["krippendorff_alpha_samples"]
    several = [tuple(sorted(map(int, row))) for row in rows if len(row) > 1]
    units = tables.unit_values(tables.Units(several, [1] * len(several)))
    influences = alpha_intervals.value_influences(units)
    delta = alpha_intervals.by_delta(bootstrap, influences, units.counts)
    rng = random.Random(4)
    resampled = []
    for _ in range(1000):
        drawn = [row for row in rng.choices(rows, k=300) if len(row) > 1]
        width = max(map(len, drawn))
        raters = np.array([row + [NAN] * (width - len(row)) for row in drawn]).T
        resampled.append(krippendorff.alpha(raters, level_of_measurement="interval"))
    spread = float(np.std(resampled))
    # 1000 replicates know their spread to 2 %, 2000 to 1.6 %; rows of one sample are drawn here.
    assert bootstrap.stderr == pytest.approx(spread, rel=0.1)
    assert delta.stderr == pytest.approx(spread, rel=0.1)


def test_the_order_of_samples_does_not_matter():
    rows = random_samples(5, 50)
    rng = random.Random(6)
    shuffled = [rng.sample(row, len(row)) for row in rows]
    assert state_of(rows) == state_of(shuffled)


def test_contributions_sum_to_the_estimates():
    rows: list[Any] = [*random_samples(7, 60), None, [], [NAN, 2.0, 2.0], [INF, INF]]
    table = pa.table({"rating": rows, "scale_lowest": [1.0] * 64, "scale_highest": [5.0] * 64})
    contributions = METRIC.contributions(table)
    assert set(contributions) == set(METRIC.ratios)
    finite = table.slice(0, 63)
    found = METRIC.compute(METRIC.update(METRIC.init(), finite))
    for name, (x, u) in METRIC.contributions(finite).items():
        assert x.sum() / u.sum() == pytest.approx(found[name].value, abs=1e-13), name
    assert contributions["sample_agreement"].x[-1] == 1
    assert contributions["mean_rating"].u[-1] == 0
    assert all(np.isfinite(part).all() for pair in contributions.values() for part in pair)


def test_what_is_undefined_says_why():
    reasons = {name: e.reason for name, e in METRIC.compute(METRIC.init()).items()}
    assert reasons.pop("standard_deviation") == "n<2"
    assert set(reasons.values()) == {"n=0"}
    missing = compute([None, NAN])
    assert missing["mean_rating"].reason == "no valid example"
    assert missing["sample_agreement"].reason == "not measured"
    single = compute([3])
    assert single["standard_deviation"].reason == "n<2"
    assert (single["mean_rating"].value, single["mean_rating"].stderr) == (3.0, None)
    assert single["krippendorff_alpha_samples"].reason == "not measured"
    same = compute([[3, 3], [3, 3]])
    assert same["krippendorff_alpha_samples"].reason == "constant"
    assert same["sample_agreement"].value == 1
    assert same["mean_rating"].interval is None
    infinite = compute([[1, INF], [2, 2]])
    assert infinite["sample_agreement"].value == 0.5
    rest = {e.reason for name, e in infinite.items() if name != "sample_agreement"}
    assert rest == {"non-finite"}
    assert math.isfinite(compute([1.7e308, -1.7e308])["mean_rating"].low or NAN)
    assert compute([1.7e308, -1.7e308])["standard_deviation"].reason == "overflow"


@pytest.mark.parametrize(
    "change",
    [
        {"samples": {}},
        {"samples": [[2]]},
        {"samples": [[1, []]]},
        {"samples": [[2, []], [2, []]]},
        {"samples": [[2, [[ordinal(2.0), ordinal(1.0), 1]]]]},
        {"samples": [[2, [[0, ordinal(1.0), 1]]]]},
        {"samples": [[3, [[ordinal(1.0), ordinal(2.0), 1]]]]},
        {"ratings": [[0, 1]]},
        {"ratings": [[5, 1]]},
        {"missing": [[0, 5, 1]]},
    ],
)
def test_a_state_that_no_rows_have_is_refused(change: dict[str, Any]):
    content = {**METRIC.encode(state_of([[1, 2], [3], None])), **change}
    with pytest.raises(DataError, match="state of rating"):
        METRIC.decode(content)


def test_samples_that_are_missing_are_counted():
    rows = pa.table({"rating": [[1.0, None, 3.0], [math.nan, 2.0], [None], None]})
    found = METRIC.notes(METRIC.update(METRIC.init(), rows))
    assert (found["rating_samples_missing"], found["rating_missing"]) == (3, 2)


def test_a_scale_upside_down_is_refused():
    rows = pa.table({"rating": [3.0], "scale_lowest": [5.0], "scale_highest": [1.0]})
    with pytest.raises(DataError, match=r"scale_lowest is 5\.0 and scale_highest is 1\.0"):
        METRIC.update(METRIC.init(), rows)
