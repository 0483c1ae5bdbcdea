"""Exact sums against rational arithmetic, and the reading and writing of states."""

import json
import math
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raveval.errors import DataError
from raveval.metrics import _state
from raveval.metrics._exact import (
    SCALE_BITS,
    Moments,
    decompose,
    exact_integer_sum,
    exact_sum,
    moments,
    root,
)

doubles = st.floats(allow_nan=False, allow_infinity=False)
counts = st.integers(0, 2**40)


def value(total: int, power: int = 1) -> Fraction:
    return Fraction(total, 1 << (SCALE_BITS * power))


def array(values: list[float]) -> np.ndarray:
    return np.array(values, np.float64)


@settings(deadline=None, derandomize=True)
@given(st.lists(doubles))
def test_a_sum_is_exact(values: list[float]):
    assert value(exact_sum(array(values))) == sum(map(Fraction, values), Fraction(0))


@pytest.mark.parametrize(
    "values",
    [
        [5e-324],
        [-5e-324, 5e-324],
        [2.2250738585072014e-308, -2.225073858507201e-308],  # the border of normal numbers
        [1.7976931348623157e308] * 3,
        [-0.0],
        [1.0, 1e-300, -1.0],
        [],
    ],
)
def test_at_the_ends_of_the_range(values: list[float]):
    assert value(exact_sum(array(values))) == sum(map(Fraction, values), Fraction(0))


def test_many_equal_exponents_do_not_overflow():
    n = (1 << 20) + 17  # beyond one pass
    assert value(exact_sum(np.full(n, -1.9999999999999998))) == n * Fraction(-1.9999999999999998)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused(bad: float):
    with pytest.raises(ValueError, match="finite"):
        decompose(array([1.0, bad]))


def test_a_view_with_strides_is_read_right():
    values = np.arange(10, dtype=np.float64)[::-3]
    assert value(exact_sum(values)) == 9 + 6 + 3 + 0


def test_integers_have_no_limit():
    assert exact_integer_sum(np.array([2**63 - 1] * 5)) == 5 * (2**63 - 1)


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(doubles, counts), min_size=1, max_size=20))
def test_moments_are_exact(pairs: list[tuple[float, int]]):
    found = moments(array([x for x, _ in pairs]), np.array([u for _, u in pairs], np.int64))
    xs = [Fraction(x) for x, _ in pairs]
    us = [u for _, u in pairs]
    assert found.n == len(pairs)
    assert value(found.x) == sum(xs)
    assert value(found.xx, 2) == sum(x * x for x in xs)
    assert value(found.xu) == sum(x * u for x, u in zip(xs, us, strict=True))
    assert (found.u, found.uu) == (sum(us), sum(u * u for u in us))
    if sum(us):
        ratio = sum(xs) / sum(us)
        assert found.ratio() == ratio
        residuals = [x - ratio * u for x, u in zip(xs, us, strict=True)]
        assert found.residual_squares() == sum(r * r for r in residuals)


def test_residuals_do_not_cancel():
    """Around a large mean, a formula in floating point gives nothing but noise."""
    x = array([1e15 + i for i in range(5)])
    found = moments(x, np.ones(5, np.int64))
    assert found.residual_squares() == 10


@settings(deadline=None, derandomize=True)
@given(st.fractions(min_value=0, max_value=10**30) | doubles.map(abs).map(Fraction))
def test_a_root_is_right_to_the_last_bit_but_one(square: Fraction):
    found = Fraction(root(square))
    slack = 1 + Fraction(1, 2**51)
    assert found**2 <= square * slack**2
    assert square <= found**2 * slack**2 or square < Fraction(5e-324) ** 2


@settings(deadline=None, derandomize=True)
@given(st.integers(-(2**3000), 2**3000))
def test_a_large_integer_survives_json(number: int):
    content = json.loads(json.dumps({"x": _state.write_integer(number)}))
    assert _state.StateReader("m", content).integer("x") == number


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.tuples(doubles, counts), max_size=8), st.randoms(use_true_random=False))
def test_written_moments_are_short_and_equal_in_any_order(
    pairs: list[tuple[float, int]], rng: random.Random
):
    parts = [moments(array([x]), np.array([u])) for x, u in pairs]
    forward = sum(parts, Moments())
    rng.shuffle(parts)
    text = json.dumps(_state.write_moments(forward))
    assert json.dumps(_state.write_moments(sum(parts, Moments()))) == text
    assert _state.StateReader("m", {"k": json.loads(text)}).moments("k") == forward


@pytest.mark.parametrize(
    "pair", [[2, 1], [1, -1], [1, 10**9], [1.0, 0], [True, 0], [1], "1", None, [0, 5]]
)
def test_a_malformed_integer_is_refused(pair: object):
    with pytest.raises(DataError, match="state of m: x"):
        _state.StateReader("m", {"x": pair}).integer("x")


@pytest.mark.parametrize(
    "rows",
    [[[1, 2]], [[1, 2, 0]], [[1, 2, 3], [1, 2, 4]], [[1, 2, -3]], [[1, 2.0, 3]], [[1, 2, True]], 3],
)
def test_a_malformed_table_is_refused(rows: object):
    with pytest.raises(DataError, match="state of m: t"):
        _state.StateReader("m", {"t": rows}).counts("t", width=2)
