"""Each kernel against the plain path beside it, to the last bit, and both against exact arithmetic.

Without numba the kernels' own tests are skipped: nothing is left to compare.
"""

import math
import subprocess
import sys
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raveval.metrics import _choices as choices_of
from raveval.metrics import _exact as exact
from raveval.metrics import _kernels as kernels

needs_numba = pytest.mark.skipif(not kernels.available(), reason="numba is not installed")

MOST, LEAST = 1.7976931348623157e308, 5e-324
EDGES = [0.0, -0.0, LEAST, -LEAST, MOST, -MOST, 2.2250738585072014e-308, -2.225073858507201e-308]
EDGES += [1.0, -1.9999999999999998, 2.0**32, -(2.0**53 - 1)]
N_MANY = 1_000_003
N_SHIFTS = exact.N_PRODUCT_SHIFTS

doubles = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(EDGES)
integers = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([0, 1, -1, -(2**63), 2**32])


def doubles_of_all_magnitudes(n: int, seed: int) -> np.ndarray:
    """Random bits, but finite: every exponent is as frequent as any other."""
    bits = np.random.default_rng(seed).integers(0, 2**64, n, np.uint64, endpoint=False)
    bits[(bits >> np.uint64(52)) % np.uint64(2048) == np.uint64(2047)] = 0
    bits[:100_000] &= np.uint64(0x800F_FFFF_FFFF_FFFF)  # subnormal
    values = bits.view(np.float64)
    values[-len(EDGES) :] = EDGES
    return values


def bits_of(values: np.ndarray | list[float]) -> np.ndarray:
    return np.array(values, np.float64).view(np.int64)


@pytest.fixture(scope="module")
def many() -> np.ndarray:
    return doubles_of_all_magnitudes(N_MANY, 1)


@needs_numba
@given(st.lists(doubles))
def test_sums_of_doubles_agree(values: list[float]):
    bits = bits_of(values)
    table = kernels.sum_doubles(bits, exact.N_EXPONENTS)
    assert table is not None
    np.testing.assert_array_equal(table, exact.plain_sum_doubles(bits))
    total = Fraction(exact.fold(table), 1 << exact.SCALE_BITS)
    assert total == sum(map(Fraction, values), Fraction(0))


@needs_numba
def test_sums_of_a_million_doubles_agree(many: np.ndarray):
    table = kernels.sum_doubles(many.view(np.int64), exact.N_EXPONENTS)
    plain = exact.plain_sum_doubles(many.view(np.int64))
    np.testing.assert_array_equal(table, plain)
    assert table is not None
    assert table.any(axis=1).sum() == exact.N_EXPONENTS - 2, "every finite exponent occurs"


@needs_numba
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused(bad: float):
    bits = bits_of([1.0] * 5 + [bad])
    assert kernels.sum_doubles(bits, exact.N_EXPONENTS) is None
    assert kernels.decompose(bits) is None
    assert exact.plain_decompose(bits) is None
    with pytest.raises(ValueError, match="finite"):
        exact.exact_sum(np.full(kernels.ROWS_WORTH_COMPILING, bad))
    with pytest.raises(ValueError, match="finite"):
        exact.decompose(np.full(kernels.ROWS_WORTH_COMPILING, bad))


@needs_numba
def test_mantissas_and_shifts_agree(many: np.ndarray):
    compiled = kernels.decompose(many.view(np.int64))
    plain = exact.plain_decompose(many.view(np.int64))
    assert compiled is not None
    assert plain is not None
    for found, expected in zip(compiled, plain, strict=True):
        np.testing.assert_array_equal(found, expected)


@needs_numba
@given(st.lists(st.tuples(integers, integers, st.integers(0, 2045), st.integers(0, 2045))))
def test_sums_of_products_agree(rows: list[tuple[int, int, int, int]]):
    a, b, s, t = np.ascontiguousarray(np.array(rows, np.int64).reshape(-1, 4).T)
    table = kernels.sum_products(a, b, s, t, N_SHIFTS)
    np.testing.assert_array_equal(table, exact.plain_sum_products(a, b, s, t, N_SHIFTS))
    assert exact.fold(table) == sum((p << i) * (q << j) for p, q, i, j in rows)


@needs_numba
def test_sums_of_a_million_products_agree(many: np.ndarray):
    (a, s), (b, t) = exact.decompose(many), exact.decompose(many[::-1])
    table = kernels.sum_products(a, b, s, t, N_SHIFTS)
    np.testing.assert_array_equal(table, exact.plain_sum_products(a, b, s, t, N_SHIFTS))


@needs_numba
def test_the_most_extreme_products_do_not_overflow():
    """As many rows as are added at once, each word of each product as large as it can be."""
    n = 1 << 20
    a, zeros = np.full(n, -(2**63)), np.zeros(n, np.int64)
    b = np.full(n, 2**63 - 1)
    for plain_or_compiled in (kernels.sum_products, exact.plain_sum_products):
        table = plain_or_compiled(a, b, zeros, zeros, N_SHIFTS)
        assert exact.fold(table) == -(2**63) * (2**63 - 1) * n


@pytest.mark.parametrize("n", [1000, kernels.ROWS_WORTH_COMPILING, (1 << 20) + 5])
def test_pair_moments_are_exact_at_any_size(n: int):
    """Blocks of equal rows make the exact result easy to write down."""
    x, y = np.tile(EDGES, n // 12 + 1)[:n], np.tile(EDGES[::-1], n // 12 + 1)[:n]
    found = exact.pair_moments(x, y)
    counts = [len(range(i, n, 12)) for i in range(12)]
    xs, ys = list(map(Fraction, EDGES)), list(map(Fraction, EDGES[::-1]))
    unit, square = 1 << exact.SCALE_BITS, 1 << 2 * exact.SCALE_BITS

    def total(values: list[Fraction]) -> Fraction:
        return sum((c * v for c, v in zip(counts, values, strict=True)), Fraction(0))

    assert found.n == n
    assert found.x == total(xs) * unit
    assert found.y == total(ys) * unit
    assert found.xx == total([v * v for v in xs]) * square
    assert found.yy == total([v * v for v in ys]) * square
    assert found.xy == total([v * w for v, w in zip(xs, ys, strict=True)]) * square


@given(st.lists(st.tuples(doubles, doubles), max_size=30), st.integers(0, 30))
def test_pair_moments_add(pairs: list[tuple[float, float]], cut: int):
    def moments(part: list[tuple[float, float]]) -> exact.PairMoments:
        return exact.pair_moments(*np.array(part, np.float64).reshape(-1, 2).T)

    whole = moments(pairs)
    assert whole == moments(pairs[:cut]) + moments(pairs[cut:])
    square = 1 << 2 * exact.SCALE_BITS
    assert whole.xy == sum((Fraction(x) * Fraction(y) for x, y in pairs), Fraction(0)) * square


def test_moments_of_many_rows_are_those_of_their_parts():
    """The whole goes through the kernels, the parts do not."""
    rng = np.random.default_rng(3)
    n = kernels.ROWS_WORTH_COMPILING + 1
    x, y, u = doubles_of_all_magnitudes(n, 4), rng.normal(size=n), rng.integers(0, 2**62, n)
    parts = [slice(i, i + 500) for i in range(0, n, 500)]
    pairs = sum((exact.pair_moments(x[p], y[p]) for p in parts), exact.PairMoments())
    assert exact.pair_moments(x, y) == pairs
    counted = sum((exact.moments(x[p], u[p]) for p in parts), exact.Moments())
    assert exact.moments(x, u) == counted
    assert exact.exact_integer_sum(u) == counted.u == sum(u.tolist())


@pytest.mark.parametrize("n", [0, 1, 2, 1001, kernels.ROWS_WORTH_COMPILING, (1 << 20) + 3])
def test_a_crosstab_counts_pairs(n: int):
    rng = np.random.default_rng(n)
    x = rng.integers(0, 256, 2 * n, np.uint8)[::2]  # not contiguous
    y = (x // 3 + rng.integers(0, 4, n, np.uint8)).astype(np.uint8)
    expected = np.zeros((256, 256), np.int64)
    np.add.at(expected, (x, y), 1)
    np.testing.assert_array_equal(kernels.crosstab(x, y), expected)
    np.testing.assert_array_equal(kernels.plain_crosstab(x, y), expected)
    if kernels.available():
        np.testing.assert_array_equal(kernels.compiled_crosstab(x, y), expected)


def test_a_crosstab_takes_pairs():
    with pytest.raises(ValueError, match="3 and 2 values"):
        kernels.crosstab(np.zeros(3, np.uint8), np.zeros(2, np.uint8))


scores = st.sampled_from([-2.0, -1.0, 0.0, -0.0, math.nan, -math.inf]) | st.floats(-800, 710)


@st.composite
def choices(draw: st.DrawFn) -> choices_of.Choices:
    rows = draw(st.lists(st.lists(scores, min_size=1, max_size=6), min_size=1, max_size=20))
    n_choices = np.array([len(row) for row in rows])
    gold = np.array([draw(st.integers(-1, len(row) - 1)) for row in rows])
    values = np.array([value for row in rows for value in row])
    return choices_of.Choices(np.cumsum(n_choices) - n_choices, n_choices, gold, values)


def many_choices(n: int, seed: int) -> choices_of.Choices:
    rng = np.random.default_rng(seed)
    n_choices = rng.integers(1, 6, n)
    size = int(n_choices.sum())
    values = np.where(rng.random(size) < 0.3, -rng.integers(0, 4, size), -rng.exponential(50, size))
    values[rng.random(size) < 0.01] = math.nan
    gold = rng.integers(-1, 5, n) % (n_choices + 1) - 1
    return choices_of.Choices(np.cumsum(n_choices) - n_choices, n_choices, gold, values)


def compiled_best(given: choices_of.Choices, compared: choices_of.Compared) -> choices_of.Best:
    rows = (given.starts, given.n_choices, given.gold, given.logprob_nats)
    return choices_of.Best(*kernels.find_best(*rows, *compared))


def others(given: choices_of.Choices, seed: int) -> list[choices_of.Compared]:
    """What each kind of scoring compares, with lengths of zero and impossible choices."""
    rng, size = np.random.default_rng(seed), len(given.logprob_nats)
    unconditional = -rng.integers(0, 3, size).astype(np.float64)
    unconditional[rng.random(size) < 0.1] = -math.inf
    unconditional[rng.random(size) < 0.02] = math.nan
    return [
        choices_of.Compared(given.logprob_nats, kernels.ITSELF),
        choices_of.Compared(rng.integers(0, 9, size, np.int32), kernels.DIVIDED),
        choices_of.Compared(np.full(size, 3, np.int32), kernels.DIVIDED),
        choices_of.Compared(unconditional, kernels.SUBTRACTED),
    ]


def compiled_masses(given: choices_of.Choices) -> np.ndarray:
    return kernels.sum_exponentials(
        given.starts, given.n_choices, given.logprob_nats, choices_of.MOST_NATS
    )


@needs_numba
@given(choices(), st.integers(0, 2**32))
def test_rankings_and_masses_agree(given: choices_of.Choices, seed: int):
    for compared in others(given, seed):
        expected = choices_of.plain_best(given, compared)
        for found, part in zip(compiled_best(given, compared), expected, strict=True):
            np.testing.assert_array_equal(found, part)
    plain = choices_of.plain_best(given, others(given, seed)[0])
    masses = choices_of.plain_masses(given)
    np.testing.assert_array_equal(compiled_masses(given).view(np.int64), masses.view(np.int64))
    for i, start in enumerate(given.starts):
        row = given.logprob_nats[start : start + given.n_choices[i]].tolist()
        total = 0.0
        for nats in row:
            total += math.exp(nats) if nats <= choices_of.MOST_NATS else math.nan
        assert masses[i] == total or (math.isnan(total) and math.isnan(masses[i]))
        if any(map(math.isnan, row)):
            assert [part[i] for part in plain] == [0, 0, 0]
        else:
            best = [j for j, nats in enumerate(row) if nats == max(row)]
            assert [part[i] for part in plain] == [len(best), given.gold[i] in best, best[0]]


@needs_numba
def test_a_million_rankings_and_masses_agree():
    """Also that the compiled exponential is Python's, bit by bit, on 3 * 10^6 arguments."""
    given = many_choices(N_MANY, 6)
    for compared in others(given, 7):
        expected = choices_of.plain_best(given, compared)
        for found, part in zip(compiled_best(given, compared), expected, strict=True):
            np.testing.assert_array_equal(found, part)
        assert len(np.unique(expected.tied)) > 3
    masses = choices_of.plain_masses(given)
    np.testing.assert_array_equal(compiled_masses(given).view(np.int64), masses.view(np.int64))


@needs_numba
def test_a_kernel_that_cannot_be_cached_is_compiled_all_the_same():
    made: dict[str, Any] = {}
    exec("def twice(x):\n    return 2 * x\n", made)  # no file, so no place for a cache
    assert kernels._compiled(made["twice"])(21) == 42


def test_numba_waits_for_a_large_array():
    code = (
        "import sys, numpy as np\n"
        "from raveval.metrics import _exact as e, _kernels as k, accuracy\n"
        "e.moments(np.ones(k.ROWS_WORTH_COMPILING - 1), np.ones(k.ROWS_WORTH_COMPILING - 1, int))\n"
        "print('numba' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


def test_without_numba_the_numbers_are_the_same():
    code = (
        "import sys\n"
        "{}"
        "import numpy as np\n"
        "from raveval.metrics import _exact as e, _kernels as k\n"
        "n = k.ROWS_WORTH_COMPILING\n"
        "x = np.random.default_rng(0).normal(size=n) * np.logspace(-300, 300, n)\n"
        "m, p = e.moments(x, np.arange(n)), e.pair_moments(x, x[::-1])\n"
        "t = k.crosstab((x > 0).astype(np.uint8), (x < 1).astype(np.uint8))\n"
        "print(k.available(), file=sys.stderr)\n"
        "print(m, p, e.exact_sum(x), t.tolist())"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code.format(block)], capture_output=True, text=True, check=True
        )
        for block in ("", "sys.modules['numba'] = None\n")
    ]
    assert runs[1].stderr == "False\n"
    assert runs[0].stdout == runs[1].stdout
