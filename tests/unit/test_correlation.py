"""Correlations against scipy, against exact fractions, and where they are undefined.

scipy computes in floating point; its values differ from the exact ones by a few units in the last
place on these data, and 1e-13 leaves room for its running sums at the largest n.
"""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import raveval
from raveval.errors import DataError
from raveval.metrics._exact import root
from raveval.metrics.correlation import METRIC, NAMES
from raveval.types import Estimate

INF, NAN = math.inf, math.nan


def table(x: Any, y: Any, **more: Any) -> pa.Table:
    return pa.table({"rating": x, "reference_rating": y, **more})


def correlate(x: Any, y: Any, **more: Any) -> Mapping[str, Estimate]:
    return METRIC.compute(METRIC.update(METRIC.init(), table(x, y, **more)))


class Known(NamedTuple):
    value: float
    stderr: float
    low: float
    high: float
    interval: str


def known(estimate: Estimate) -> Known:
    """An estimate that has a value and an interval."""
    found = (estimate.value, estimate.stderr, estimate.low, estimate.high, estimate.interval)
    assert None not in found
    return Known(*found)  # type: ignore[arg-type]


def values(x: Any, y: Any, **more: Any) -> dict[str, float | None]:
    return {name: estimate.value for name, estimate in correlate(x, y, **more).items()}


def reasons(x: Any, y: Any) -> list[str | None]:
    return [estimate.reason for estimate in correlate(x, y).values()]


def scipys(x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    return {
        "pearson": float(stats.pearsonr(x, y).statistic),
        "spearman": float(stats.spearmanr(x, y).statistic),
        "kendall_tau_b": float(stats.kendalltau(x, y, variant="b").statistic),
        "kendall_tau_c": float(stats.kendalltau(x, y, variant="c").statistic),
    }


def exact_pearson(x: Sequence[float], y: Sequence[float]) -> float:
    """From the definition, in fractions."""
    a, b = centred(x), centred(y)
    covariance = product(a, b)
    size = root(covariance * covariance / (product(a, a) * product(b, b)))
    return size if covariance >= 0 else -size


def centred(values: Sequence[float]) -> list[Fraction]:
    exact = list(map(Fraction, values))
    mean = sum(exact, Fraction(0)) / len(exact)
    return [value - mean for value in exact]


def product(a: Sequence[Fraction], b: Sequence[Fraction]) -> Fraction:
    return sum((p * q for p, q in zip(a, b, strict=True)), Fraction(0))


def exact_ranks(x: Sequence[float]) -> list[float]:
    return [2 * sum(b < a for b in x) + sum(b == a for b in x) + 1.0 for a in x]


def exact_kendall(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """tau-b and tau-c by looking at each two examples."""
    n, balance, x_differ, y_differ = len(x), 0, 0, 0
    for i in range(n):
        for j in range(i):
            a, b = (x[i] > x[j]) - (x[i] < x[j]), (y[i] > y[j]) - (y[i] < y[j])
            balance += a * b
            x_differ += a != 0
            y_differ += b != 0
    tau_b = math.copysign(root(Fraction(balance**2, x_differ * y_differ)), balance)
    m = min(len(set(x)), len(set(y)))
    return tau_b, float(Fraction(2 * m * balance, n * n * (m - 1)))


def normal_pairs(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    return x, x + rng.normal(size=n)


SHAPES = {
    "continuous": lambda x: x,
    "many ties": lambda x: np.rint(2 * x),
    "some ties": lambda x: np.rint(40 * x) / 8,
    "two values": lambda x: (x > 0).astype(np.float64),
    "thirds": lambda x: np.rint(3 * x) / 3,
}


@pytest.mark.parametrize("n", [5, 60, 4000])
@pytest.mark.parametrize("x_shape", SHAPES)
@pytest.mark.parametrize("y_shape", SHAPES)
def test_scipy_agrees(n: int, x_shape: str, y_shape: str):
    x, y = normal_pairs(n, seed=n)
    x, y = SHAPES[x_shape](x), SHAPES[y_shape](y)
    assert values(x, y) == pytest.approx(scipys(x, y), abs=1e-13)
    assert values(y, -x) == pytest.approx(scipys(y, -x), abs=1e-13)


few = st.integers(-3, 3).map(float) | st.sampled_from([0.1, 0.1 + 2**-56, 1e300, -1e300, 5e-324])


@given(st.lists(st.tuples(few, few), min_size=2, max_size=14))
def test_values_are_those_of_the_definitions_to_the_last_bit(pairs: list[tuple[float, float]]):
    x, y = zip(*pairs, strict=True)
    found = values(list(x), list(y))
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert set(found.values()) == {None}
        return
    tau_b, tau_c = exact_kendall(x, y)
    assert found == {
        "pearson": exact_pearson(x, y),
        "spearman": exact_pearson(exact_ranks(x), exact_ranks(y)),
        "kendall_tau_b": tau_b,
        "kendall_tau_c": tau_c,
    }


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e6, 1e8, 1e10, 1e12])
def test_a_common_offset_costs_no_digit(offset: float):
    """METRICS: exact state 0, where a naive sum has no digit left from 1e8 on."""
    x, y = normal_pairs(4000, seed=1)
    x, y = x + offset, y + offset
    found = values(x, y)["pearson"]
    assert found == exact_pearson(x.tolist(), y.tolist())
    merged = METRIC.init()
    for start in range(0, 4000, 250):
        part = table(x[start : start + 250], y[start : start + 250])
        merged = METRIC.merge(METRIC.update(METRIC.init(), part), merged)
    assert METRIC.compute(merged)["pearson"].value == found


def test_many_pairs_with_repeats_are_exact():
    """Past the size at which Pearson's sums go by the cells of each count."""
    x, y = normal_pairs(9000, seed=2)
    x, y = np.concatenate((x, x[:2000], x[:500])), np.concatenate((y, y[:2000], y[:500]))
    x += 1e8
    assert values(x, y)["pearson"] == exact_pearson(x.tolist(), y.tolist())
    assert values(x, y)["kendall_tau_b"] == pytest.approx(
        stats.kendalltau(x, y).statistic, abs=1e-13
    )


def weighted(repeats: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    x, y = rng.integers(0, 5, 30), rng.integers(0, 4, 30)
    return np.repeat(x, repeats), np.repeat(y, repeats)


def test_a_coefficient_does_not_change_when_all_is_repeated():
    once, thousandfold = values(*weighted(1)), values(*weighted(1000))
    assert once == thousandfold


def test_counts_beyond_64_bits():
    """The same table, each pair 2^40 times: n^2 is beyond 2^64, n^3 far beyond."""
    x, y = weighted(1)
    state = METRIC.update(METRIC.init(), table(x, y))
    for _ in range(40):
        state = METRIC.merge(state, state)
    found = METRIC.compute(state)
    assert {name: estimate.value for name, estimate in found.items()} == values(x, y)
    assert found["pearson"].n == 30 << 40
    once = correlate(x, y)
    for name in ("kendall_tau_b", "kendall_tau_c"):
        expected = known(once[name]).stderr / 2**20
        assert found[name].stderr == pytest.approx(expected, rel=1e-9)


# The rows of the table of edge cases, one test each.


def test_no_examples():
    assert reasons(pa.array([], pa.float64()), pa.array([], pa.float64())) == ["n<2"] * 4


def test_one_example():
    assert reasons([1.0], [2.0]) == ["n<2"] * 4
    assert {estimate.n for estimate in correlate([1.0], [2.0]).values()} == {1}


def test_two_distinct_examples():
    for y, expected in (([3.0, 7.0], 1.0), ([7.0, 3.0], -1.0)):
        for estimate in correlate([1.0, 2.0], y).values():
            assert estimate.value == expected
            assert estimate.n == 2
            assert (estimate.interval, estimate.stderr) == (None, None)
            assert (estimate.low, estimate.high) == (None, None)


def test_three_examples_have_no_interval():
    found = correlate([1, 2, 3], [1, 3, 2]).values()
    assert {(estimate.interval, estimate.no_interval) for estimate in found} == {(None, "n<4")}


def test_constant():
    for x, y in (([4, 4, 4], [1, 2, 3]), ([1, 2, 3], [4, 4, 4]), ([4, 4, 4], [5, 5, 5])):
        assert reasons(x, y) == ["constant"] * 4


def test_constant_but_for_one_ulp():
    x = [0.1, 0.1, 0.1 + 2**-56, 0.1]
    y = [1.0, 2.0, 4.0, 3.0]
    assert len(set(x)) == 2
    assert values(x, y)["pearson"] == exact_pearson(x, y)
    # It is the correlation with an indicator.
    indicator = values([0, 0, 1, 0], [1, 2, 4, 3])["pearson"]
    assert indicator == pytest.approx(stats.pearsonr([0, 0, 1, 0], [1, 2, 4, 3]).statistic)
    assert values(x, y)["pearson"] == indicator


@pytest.mark.parametrize("missing", [NAN, None])
def test_one_score_missing_of_four(missing: float | None):
    x, y = [1.0, missing, 3.0, 4.0], [1.0, 2.0, 3.5, 5.5]
    state = METRIC.update(METRIC.init(), table(x, y))
    found = METRIC.compute(state)
    kept = [1.0, 3.0, 4.0], [1.0, 3.5, 5.5]
    assert {name: estimate.value for name, estimate in found.items()} == values(*kept)
    assert found["spearman"].value == found["kendall_tau_b"].value == 1
    assert {estimate.n for estimate in found.values()} == {3}
    assert METRIC.notes(state) == {"rating_missing": 1}


def test_infinite_rating():
    found = correlate([1.0, INF, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0])
    assert found["pearson"].value is None
    assert found["pearson"].reason == "non-finite"
    assert found["pearson"].n == 4
    assert found["spearman"].value == pytest.approx(0.4, abs=1e-15)
    assert found["kendall_tau_b"].value == pytest.approx(1 / 3, abs=1e-15)
    assert reasons([INF, INF], [1.0, 2.0]) == ["non-finite", *["constant"] * 3]
    assert values([-INF, 0, INF], [1, 2, 3])["spearman"] == 1


def test_missing_ratings_are_counted_on_either_side():
    x, y = [None, None, NAN, 1.0, 2.0, 3.0], [None, 1.0, 2.0, NAN, 5.0, 4.0]
    state = METRIC.update(METRIC.init(), table(x, y))
    assert METRIC.notes(state) == {"rating_missing": 3, "reference_rating_missing": 2}
    assert {estimate.n for estimate in METRIC.compute(state).values()} == {2}


def dusty() -> tuple[list[list[float]], list[float], np.ndarray, np.ndarray]:
    """Three scores on a grid of tenths, and a human rating that leans on their mean."""
    rng = np.random.default_rng(6)
    tenths = rng.integers(10, 21, (400, 3))
    human = np.rint(tenths.sum(1) / 9 + rng.normal(size=400)).astype(np.int64)
    scores = [[t / 10 for t in row] for row in tenths.tolist()]
    means = [(a + b + c) / 3 for a, b, c in scores]
    return scores, means, tenths.sum(1), human


def test_float_dust_destroys_ties_and_a_denominator_restores_them():
    scores, means, sums, human = dusty()
    right = values(sums, human)
    assert len(set(means)) > len(set(sums.tolist())), "the example has dust"
    rank_names = ("spearman", "kendall_tau_b", "kendall_tau_c")
    bare = values(means, human)
    for name in rank_names:
        assert bare[name] != right[name]
        # The ties that are lost are few; the coefficient is near, and wrong.
        assert bare[name] == pytest.approx(right[name] or NAN, abs=0.05)
    thirtieths = pa.array([30] * 400)
    declared = values(means, human, rating_denominator=thirtieths)
    listed = values(scores, human, rating_denominator=pa.array([10] * 400))
    for name in rank_names:
        assert declared[name] == listed[name] == right[name]
    # A sum and its mean as a double differ by rounding, so does Pearson's in its last digits.
    assert declared["pearson"] == pytest.approx(right["pearson"], abs=1e-15)
    assert listed["pearson"] == declared["pearson"]


COLUMNS: Mapping[str, pa.DataType] = {
    "uint8": pa.uint8(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int64": pa.int64(),
    "uint64": pa.uint64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
}


@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.parametrize("with_null", [False, True])
def test_the_columns_type_does_not_matter(kind: str, with_null: bool):
    rng = np.random.default_rng(7)
    low = 0 if kind.startswith("u") else -5
    x, y = rng.integers(low, 8, 3000), rng.integers(low, 8, 3000)
    mask = np.zeros(3000, np.bool_)
    mask[17] = with_null
    plain = METRIC.update(METRIC.init(), table(pa.array(x, pa.int64(), mask=mask), y))
    typed = table(pa.array(x, COLUMNS[kind], mask=mask), pa.array(y, COLUMNS[kind]))
    assert METRIC.update(METRIC.init(), typed) == plain
    sliced = pa.concat_tables([typed.slice(5), typed.slice(0, 5)])
    assert METRIC.update(METRIC.init(), sliced) == plain


@pytest.mark.parametrize(
    ("x", "kind"),
    [
        ([0, 255, 3], pa.int64()),
        ([0, 256, 3], pa.int64()),
        ([-128, 127, 0], pa.int8()),
        ([-(2**53), 2**53, 0], pa.int64()),
        ([2**53 - 4096, 2**53, 0], pa.uint64()),
        ([2**53 - 3, 2**53, 2**53 - 1], pa.int64()),
    ],
)
def test_whole_ratings_at_the_ends_of_their_types(x: list[int], kind: pa.DataType):
    found = values(pa.array(x, kind), [1.0, 2.0, 4.0])
    assert found == values([float(value) for value in x], [1.0, 2.0, 4.0])


@pytest.mark.parametrize("x", [[2**53, 2**53 + 1, 2**53 + 2], [1, 2, 2**63 - 1]])
def test_whole_ratings_that_would_be_rounded_are_refused(x: list[int]):
    """Also where they span so little that they could go by bytes."""
    with pytest.raises(DataError, match=r"rating: .*2\^53"):
        correlate(pa.array(x, pa.int64()), [1.0, 2.0, 4.0])


def test_more_values_than_bytes_have_the_same_counts():
    """Either side of the limit at which columns go by codes."""
    rng = np.random.default_rng(8)
    for n_values in (256, 257, 5000):
        x, y = rng.integers(0, n_values, 6000) / 8, rng.integers(0, 7, 6000) / 8
        expected = scipys(x, y)
        assert values(x, y) == pytest.approx(expected, abs=1e-13)


def test_a_wrong_denominator_is_refused_also_for_whole_ratings():
    with pytest.raises(DataError, match="rating_denominator"):
        correlate([1, 2, 3], [3, 2, 1], rating_denominator=pa.array([0, 1, 1]))
    with pytest.raises(DataError, match="no multiple"):
        correlate([1.0, 2.5, 3.0], [3, 2, 1], rating_denominator=pa.array([1, 1, 1]))


def test_measure_reaches_it():
    found = raveval.measure(
        "correlation",
        pa.table({"a": [1, 2, 3], "b": [[1, 2], [3], [2, None]]}),
        columns={"rating": "a", "reference_rating": "b"},
    )
    assert list(found.metrics) == list(NAMES)
    assert found.metrics["spearman"].value == 0.5
    assert found.metrics["spearman"].unit == "correlation"
    assert found.metrics["spearman"].higher_is_better


# Intervals.


def test_pearsons_interval_is_fishers():
    x, y = normal_pairs(50, seed=11)
    expected = stats.pearsonr(x, y).confidence_interval(0.95)
    found = known(correlate(x, y)["pearson"])
    assert found.interval == "fisher-z95"
    assert found.low == pytest.approx(expected.low, abs=1e-12)
    assert found.high == pytest.approx(expected.high, abs=1e-12)
    r = found.value
    assert found.stderr == pytest.approx((1 - r * r) / math.sqrt(47), rel=1e-12)


def three_grades(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Most ratings in the middle of a scale of three."""
    x = rng.normal(size=n)
    y = 0.9 * x + math.sqrt(0.19) * rng.normal(size=n)
    return np.digitize(x, [-1.6, 1.6]), np.digitize(y, [-1.6, 1.6])


def test_pearsons_interval_on_coarse_scales_is_the_delta_methods():
    x, y = three_grades(np.random.default_rng(1), 200)
    found = known(correlate(x, y)["pearson"])
    u, v, r = stats.zscore(x), stats.zscore(y), found.value
    influence = u * v - r / 2 * (u * u + v * v)
    assert r == pytest.approx(stats.pearsonr(x, y).statistic, rel=1e-12)
    assert found.interval == "delta-z95"
    assert found.stderr == pytest.approx(math.sqrt((influence**2).sum()) / 200, rel=1e-10)
    assert found.stderr > 1.3 * (1 - r * r) / math.sqrt(197), "Fisher's is too small"
    half_width = 1.959963984540054 * found.stderr / (1 - r * r)
    assert found.low == pytest.approx(math.tanh(math.atanh(r) - half_width), rel=1e-12)
    assert found.high == pytest.approx(math.tanh(math.atanh(r) + half_width), rel=1e-12)


def test_pearsons_interval_covers_on_coarse_scales():
    """Of 300 intervals 285 ± 4 should hold the truth; Fisher's are 190."""
    rng = np.random.default_rng(2)
    truth = np.corrcoef(*three_grades(rng, 2_000_000))[0, 1]
    covered = 0
    for _ in range(300):
        estimate = known(correlate(*three_grades(rng, 200))["pearson"])
        covered += estimate.low <= truth <= estimate.high
    assert 0.91 <= covered / 300 <= 0.98


def brown_benedetti(counts: np.ndarray) -> tuple[float, float]:
    """Their errors of tau-b and tau-c, as printed, from loops over the table."""
    n, (n_rows, n_columns) = counts.sum(), counts.shape
    d = np.zeros(counts.shape)
    for i in range(n_rows):
        for j in range(n_columns):
            for k in range(n_rows):
                for m in range(n_columns):
                    d[i, j] += counts[k, m] * np.sign((i - k) * (j - m))
    wr, wc = n**2 - (counts.sum(1) ** 2).sum(), n**2 - (counts.sum(0) ** 2).sum()
    w, balance = math.sqrt(wr * wc), (counts * d).sum()
    tau = balance / w
    v = counts.sum(1)[:, None] * wc + counts.sum(0) * wr
    b = (counts * (2 * w * d + tau * v) ** 2).sum() - n**3 * tau**2 * (wr + wc) ** 2
    m = min(n_rows, n_columns)
    c = (counts * d**2).sum() - balance**2 / n
    return math.sqrt(b) / w**2, 2 * m / ((m - 1) * n**2) * math.sqrt(c)


TABLE = np.array([[12, 4, 1], [3, 9, 5], [2, 7, 14], [0, 1, 6]])


def rows_of(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    i, j = np.indices(counts.shape)
    return np.repeat(i.ravel(), counts.ravel()), np.repeat(j.ravel(), counts.ravel())


def test_kendalls_errors_are_brown_and_benedettis():
    found = correlate(*rows_of(TABLE))
    tau_b, tau_c = brown_benedetti(TABLE)
    for name, stderr in (("kendall_tau_b", tau_b), ("kendall_tau_c", tau_c)):
        estimate = known(found[name])
        assert estimate.stderr == pytest.approx(stderr, rel=1e-12)
        assert estimate.interval == "brown-benedetti-z95"
        z = math.atanh(estimate.value)
        half_width = 1.959963984540054 * stderr / (1 - estimate.value**2)
        assert estimate.low == pytest.approx(math.tanh(z - half_width), rel=1e-12)
        assert estimate.high == pytest.approx(math.tanh(z + half_width), rel=1e-12)


def test_spearmans_interval_is_the_bootstraps():
    """Against resampling rows; 2000 replicates know an end of the interval to 0.06 errors."""
    x, y = rows_of(TABLE)
    found = known(correlate(x, y)["spearman"])
    rng = np.random.default_rng(12)
    draws = rng.integers(0, len(x), (4000, len(x)))
    replicates = np.array([stats.spearmanr(x[d], y[d]).statistic for d in draws])
    assert found.interval == "bootstrap95"
    assert found.stderr == pytest.approx(replicates.std(), rel=0.1)
    low, high = np.quantile(replicates, [0.025, 0.975])
    assert found.low == pytest.approx(low, abs=0.3 * float(replicates.std()))
    assert found.high == pytest.approx(high, abs=0.3 * float(replicates.std()))


def test_spearmans_interval_beyond_many_distinct_pairs_is_the_delta_methods():
    x, y = normal_pairs(2049, seed=13)
    found = known(correlate(x, y)["spearman"])
    within = known(correlate(x[:-1], y[:-1])["spearman"])
    assert (within.interval, found.interval) == ("bootstrap95", "delta-z95")
    # 2000 replicates know an error to 1.6 %, and an end of the interval to 0.06 errors.
    assert found.stderr == pytest.approx(within.stderr, rel=0.08)
    assert found.low == pytest.approx(within.low, abs=0.3 * found.stderr)
    assert found.high == pytest.approx(within.high, abs=0.3 * found.stderr)
    # Of normal ratings, Bonett and Wright's error is right as well.
    rho = found.value
    expected = (1 - rho * rho) * math.sqrt((1 + rho * rho / 2) / 2046)
    assert found.stderr == pytest.approx(expected, rel=0.1)
    z, half_width = math.atanh(rho), 1.959963984540054 * found.stderr / (1 - rho * rho)
    assert found.low == pytest.approx(math.tanh(z - half_width), rel=1e-12)
    assert found.high == pytest.approx(math.tanh(z + half_width), rel=1e-12)


def test_spearmans_interval_beyond_many_examples_is_the_delta_methods():
    x, y = rows_of(TABLE * 1562)  # 64 examples each
    within = known(correlate(x, y)["spearman"])
    found = known(correlate(np.append(x, [0] * 33), np.append(y, [0] * 33))["spearman"])
    assert (within.interval, found.interval) == ("bootstrap95", "delta-z95")
    assert found.stderr == pytest.approx(within.stderr, rel=0.08)
    assert found.high - found.low == pytest.approx(within.high - within.low, rel=0.1)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_perfect_correlation_claims_no_certainty(sign: int):
    x = np.arange(20.0)
    for estimate in correlate(x, sign * x).values():
        assert estimate.value == sign
        assert (estimate.interval, estimate.stderr) == (None, None)
        assert estimate.no_interval == "perfect correlation"
        assert (estimate.low, estimate.high) == (None, None)


def test_a_perfect_order_is_no_certainty_either():
    x = np.arange(20.0)
    found = correlate(x, np.exp(x))
    assert found["spearman"].value == found["kendall_tau_b"].value == 1
    assert found["spearman"].interval is found["kendall_tau_b"].interval is None
    assert found["pearson"].interval == "fisher-z95"


def test_replicates_that_are_mostly_constant_make_no_interval():
    """A third of the replicates of (1, 1, 1, 2) have no 2; what the others say is no interval."""
    found = correlate([1, 1, 1, 2], [1, 2, 3, 4])
    assert found["spearman"].interval is None
    assert found["spearman"].value is not None
    assert found["spearman"].no_interval == "replicates undefined"


def test_a_coefficient_of_zero_is_in_its_interval():
    found = correlate([1, 1, 2, 2] * 20, [1, 2, 1, 2] * 20)
    for estimate in map(known, found.values()):
        assert estimate.value == 0
        assert estimate.low < 0 < estimate.high
        assert estimate.low == pytest.approx(-estimate.high, abs=0.02)


def clustered(n_clusters: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Grid ratings whose errors are shared within clusters of five."""
    rng = np.random.default_rng(seed)
    cluster = np.repeat(np.arange(n_clusters), 5)
    quality, bias = rng.normal(size=n_clusters)[cluster], rng.normal(size=n_clusters)[cluster]
    noise = rng.normal(size=(2, len(cluster))) / 3
    return np.rint(2 * (quality + noise[0])), np.rint(2 * (quality + bias + noise[1])), cluster


def names(cluster: np.ndarray) -> pa.Array:
    return pa.array([f"passage {c}" for c in cluster])


def test_clusters_are_what_is_resampled():
    x, y, cluster = clustered(60, seed=14)
    found = {name: known(e) for name, e in correlate(x, y, cluster=names(cluster)).items()}
    alone = {name: known(e) for name, e in correlate(x, y).items()}
    rng = np.random.default_rng(15)
    rows = np.arange(300).reshape(60, 5)
    replicates: dict[str, list[float]] = {name: [] for name in NAMES}
    for _ in range(1000):
        drawn = rows[rng.integers(0, 60, 60)].ravel()
        for name, value in scipys(x[drawn], y[drawn]).items():
            replicates[name].append(value)
    for name in NAMES:
        spread = float(np.std(replicates[name]))
        assert found[name].value == alone[name].value
        assert found[name].interval == "cluster-bootstrap95"
        assert found[name].stderr == pytest.approx(spread, rel=0.1)
        assert found[name].stderr > 1.3 * alone[name].stderr, "the example has clusters"
        low, high = np.quantile(replicates[name], [0.025, 0.975])
        # The ends are known to 0.06 and 0.09 errors.
        assert found[name].low == pytest.approx(low, abs=0.4 * spread)
        assert found[name].high == pytest.approx(high, abs=0.4 * spread)


def test_many_clusters_go_by_the_delta_method():
    """With the same clusters and distinct ratings, more than are resampled."""
    rng = np.random.default_rng(16)
    x, y, cluster = clustered(420, seed=17)
    dust = rng.normal(size=(2, len(x))) / 1e6
    found = correlate(x + dust[0], y + dust[1], cluster=names(cluster))
    resampled = correlate(x, y, cluster=names(cluster))
    for name in ("pearson", "spearman", "kendall_tau_b"):
        few, many = known(resampled[name]), known(found[name])
        assert (few.interval, many.interval) == ("cluster-bootstrap95", "cluster-t95")
        # The dust breaks ties at random; tau-b feels it, by a tenth or so.
        tolerance = 0.2 if name == "kendall_tau_b" else 0.1
        assert many.stderr == pytest.approx(few.stderr, rel=tolerance)
        half_width = stats.t(419).ppf(0.975) * many.stderr
        assert many.low == pytest.approx(many.value - half_width, rel=1e-9)
        assert many.high == pytest.approx(many.value + half_width, rel=1e-9)


def test_clusters_of_one_example_are_no_clusters():
    x, y = rows_of(TABLE)
    found = correlate(x, y, cluster=names(np.arange(len(x))))
    alone = correlate(x, y)
    for name in NAMES[1:]:
        assert known(found[name]).stderr == pytest.approx(known(alone[name]).stderr, rel=0.12)


def test_where_some_examples_have_no_cluster_there_is_no_interval():
    x, y, cluster = clustered(10, seed=18)
    partly = pa.array([None, None, *(f"passage {c}" for c in cluster[2:])])
    state = METRIC.update(METRIC.init(), table(x, y, cluster=partly))
    for estimate in METRIC.compute(state).values():
        assert (estimate.interval, estimate.no_interval) == (None, "not all in clusters")
    assert METRIC.notes(state) == {"clusters": 10, "without_cluster": 2}
    for n_clusters, reason in ((1, "one cluster"), (2, "clusters<4"), (3, "clusters<4")):
        few = correlate(x, y, cluster=names(np.arange(len(x)) % n_clusters))
        assert {(e.interval, e.no_interval) for e in few.values()} == {(None, reason)}
    none = METRIC.update(METRIC.init(), table(x, y, cluster=pa.nulls(len(x), pa.string())))
    assert none == METRIC.update(METRIC.init(), table(x, y))
    assert METRIC.notes(none) == {}


@pytest.mark.parametrize("seed", range(3))
def test_intervals_cover(seed: int):
    """Of 300 intervals of tau-b at n = 100 on five values, 285 ± 4 should hold the truth."""
    rng = np.random.default_rng(seed)

    def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.normal(size=n)
        y = (x + rng.normal(size=n)) / math.sqrt(2)
        return np.clip(np.rint(2 + x), 0, 4), np.clip(np.rint(2 + y), 0, 4)

    truth = stats.kendalltau(*draw(200_000)).statistic
    covered = 0
    for _ in range(300):
        estimate = known(correlate(*draw(100))["kendall_tau_b"])
        covered += estimate.low <= truth <= estimate.high
    assert 0.92 <= covered / 300 <= 0.98
