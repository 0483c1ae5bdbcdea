"""Ratings become canonical doubles: the exact mean, rounded once."""

import itertools
import math
import random
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from raveval.errors import DataError
from raveval.metrics._ratings import (
    RATING,
    RATING_DENOMINATOR,
    Samples,
    read_ratings,
    read_samples,
)

INF, NAN = float("inf"), float("nan")


def table(ratings: Any, denominators: Any = None, **columns: Any) -> pa.Table:
    found = {"rating": ratings, **columns}
    if denominators is not None:
        found["rating_denominator"] = pa.array(denominators, pa.int64())
    return pa.table(found)


def read(ratings: Any, denominators: Any = None) -> list[float]:
    values = read_ratings(table(ratings, denominators), RATING, RATING_DENOMINATOR)
    assert values.dtype == np.float64
    return list(values.tolist())


def samples(ratings: Any, denominators: Any = None) -> Samples:
    return read_samples(table(ratings, denominators), RATING, RATING_DENOMINATOR)


def bits(values: Any) -> list[int]:
    return list(np.array(values, np.float64).view(np.int64).tolist())


@pytest.mark.parametrize(
    "kind",
    [pa.int8(), pa.int64(), pa.uint64(), pa.float16(), pa.float32(), pa.float64()],
)
def test_numbers_stand_for_themselves(kind: pa.DataType):
    assert read(pa.array([1, 5, 3], kind)) == [1.0, 5.0, 3.0]
    assert repr(read(pa.array([1, None, 3], kind))) == "[1.0, nan, 3.0]"
    assert repr(read(pa.array([1, None, 3], kind), [1, 2, None])) == "[1.0, nan, 3.0]"


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64(), pa.list_(pa.int64())])
def test_a_whole_number_that_would_be_rounded_is_refused(kind: pa.DataType):
    """As a column of numbers and as one of lists, with a grid and without."""

    def of(*numbers: int) -> pa.Array:
        return pa.array([[n] for n in numbers] if pa.types.is_list(kind) else numbers, kind)

    assert read(of(2**53 - 1, 2**53)) == [2.0**53 - 1, 2.0**53]
    for large in (2**53 + 1, 2**62):
        for denominators in (None, [1, 1]):
            with pytest.raises(DataError, match=r"rating: .*2\^53|rating: .*9007199254740992"):
                read(of(1, large), denominators)


def test_what_is_missing_and_what_is_infinite():
    ratings = [NAN, INF, -INF, None, -0.0]
    assert repr(read(ratings)) == "[nan, inf, -inf, nan, 0.0]"
    assert repr(read(ratings, [3] * 5)) == "[nan, inf, -inf, nan, 0.0]"
    lists = [[], [None], [NAN, None], None, [None, 2.0, NAN], [INF, 1.5], [-INF], [INF, -INF]]
    expected = "[nan, nan, nan, nan, 2.0, inf, -inf, nan]"
    assert repr(read(lists)) == expected
    assert repr(read(lists, [2] * 8)) == expected
    assert repr(read(pa.nulls(2))) == "[nan, nan]"
    assert bits(read([[-0.0, -0.0], [1.0, -1.0], [-0.0]])) == [0, 0, 0]


def test_the_mean_of_samples_does_not_depend_on_their_order():
    for numbers in ([4.1, 4.2, 4.3], [0.1, 0.2, 0.3], [1e308, 1.0, -1e308], [5e-324, 1.0, 2.0]):
        exact = float(sum(map(Fraction, numbers)) / 3)
        orders = [list(order) for order in itertools.permutations(numbers)]
        assert set(read(orders)) == {exact}


def test_means_are_rounded_once():
    rng = random.Random(0)
    draws = [
        lambda: float(rng.randint(1, 10)),
        lambda: rng.randint(-50, 50) / 10,
        lambda: rng.uniform(-1e9, 1e9),
        lambda: rng.choice([1e308, -1e308, 5e-324, 1e-300, 0.0, 1.0]),
    ]
    lists = [[rng.choice(draws)() for _ in range(rng.randint(1, 6))] for _ in range(3000)]
    lists += [[draw() for _ in range(rng.randint(1, 6))] for draw in draws for _ in range(500)]
    expected = [float(sum(map(Fraction, numbers)) / len(numbers)) for numbers in lists]
    assert bits(read(lists)) == bits(np.array(expected) + 0.0)


def test_many_samples_are_added_exactly():
    many = [float(2**20)] * 20001 + [2.0**-20] * 3  # the sum has more bits than a double
    exact = float(sum(map(Fraction, many)) / len(many))
    assert np.bincount(np.zeros(len(many), int), many)[0] / len(many) != exact
    assert read([many, [1.0, 2.0]]) == [exact, 1.5]


def test_a_grid_removes_the_dust_of_decimals():
    # 31 ratings of three samples on a grid of tenths: 1.0, 1.033…, …, 2.0
    triples = list(itertools.product(range(10, 21), repeat=3))
    dusty = [sum(k / 10 for k in triple) / 3 for triple in triples]
    assert len(set(dusty)) > 31
    sums = [sum(triple) for triple in triples]
    exact = [float(Fraction(s, 30)) for s in sums]
    assert read(dusty, [30] * len(dusty)) == exact
    lists = [[k / 10 for k in triple] for triple in triples]
    assert read(lists, [10] * len(lists)) == exact
    assert len(set(exact)) == 31


def test_a_grid_of_thirds_joins_numbers_and_lists():
    assert read([4 / 3, 1.3333333, 1.3333338], [3, 3, 6]) == [4 / 3] * 3
    assert read([[1, 1, 2], [1, 2, 1], [4 / 3]], [1, None, 3]) == [4 / 3] * 3


def test_grids_against_fractions():
    rng = random.Random(1)
    lists, denominators, expected = [], [], []
    for _ in range(4000):
        divisor = rng.choice([1, 2, 3, 7, 10, 30, 10**4, 10**6, 10**9, 2**62])
        steps = [rng.randint(-5 * divisor, 5 * divisor) for _ in range(rng.randint(1, 5))]
        if rng.random() < 0.1 and divisor < 10**4:
            steps.append(rng.randint(-(10**9), 10**9) * divisor)
        if divisor < 2**50:  # beyond, several steps are one double
            lists.append(
                [step / divisor + rng.choice([0, 1e-9]) * (divisor < 100) for step in steps]
            )
            expected.append(float(Fraction(sum(steps), divisor * len(steps))))
        else:
            lists.append([float(rng.randint(1, 5))])
            expected.append(lists[-1][0])
        denominators.append(divisor)
    assert bits(read(lists, denominators)) == bits(np.array(expected) + 0.0)


def test_a_grid_as_fine_as_it_gets():
    assert read([[3.0] * 4, [1.0, 2.0]], [2**62, 2**63 - 1]) == [3.0, 1.5]


def test_slices_and_chunks_change_nothing():
    lists = [[1.0, 2.5], None, [0.1, 0.2, 0.3], [], [7.0], [None, 4.0]]
    denominators = [2, 3, 10, None, 7, 1]
    whole = repr(read(lists, denominators))
    numbers = [1.5, None, 0.1, NAN, 3.0, -2.0]
    plain = repr(read(numbers, [2, 3, 10, None, 7, 1]))
    for first, second in itertools.combinations_with_replacement(range(7), 2):
        for values, expected in ((lists, whole), (numbers, plain)):
            array = pa.array(values, RATING.type if values is lists else pa.float64())
            grid = pa.array(denominators, pa.int64())
            cuts = [(0, first), (first, second), (second, 6)]
            chunks = pa.chunked_array([array.slice(a, b - a) for a, b in cuts])
            grids = pa.chunked_array([grid.slice(a, b - a) for a, b in cuts])
            assert repr(read(chunks, grids)) == expected
            parts = [read(array.slice(a, b - a), grid.slice(a, b - a)) for a, b in cuts]
            assert repr(list(itertools.chain(*parts))) == expected


def test_samples_are_canonical_too():
    found = samples([[1.3333333, None, 2.0], 3 * [NAN], [0.3, 0.1 + 0.2], [INF]], [3, 1, 10, 2])
    assert found.values.tolist() == [4 / 3, 2.0, 0.3, 0.3, INF]
    assert found.rows.tolist() == [0, 0, 2, 2, 3]
    assert found.n_samples.tolist() == [2, 0, 2, 1]
    single = samples([1.5, None, -0.0])
    assert (single.values.tolist(), single.n_samples.tolist()) == ([1.5, 0.0], [1, 0, 1])
    assert math.copysign(1, single.values[1]) == 1
    assert samples([[10.1]], [10**7]).values.tolist() == [10.1]
    assert samples([[0.1 + 0.2]]).values.tolist() == [0.1 + 0.2]


@pytest.mark.parametrize("denominator", [0, -3])
def test_a_denominator_below_one_is_refused(denominator: int):
    with pytest.raises(DataError, match=f"rating_denominator: {denominator} is no denominator"):
        read([1.0, 2.0], [1, denominator])


@pytest.mark.parametrize(
    ("ratings", "denominator", "number"),
    [
        ([1.25], 3, "1.25"),
        ([1.0000011], 1, "1.0000011"),
        ([[1.0, 1.5]], 1, "1.5"),
        ([2.0**21 + 0.5], 1, "2097152.5"),
        ([0.0000015], 10**5, "1.5e-06"),
        ([[INF, 0.5]], 1, "0.5"),
    ],
)
def test_a_number_off_its_grid_is_refused(ratings: Any, denominator: int, number: str):
    with pytest.raises(DataError, match=rf"rating: {number} is no multiple of 1/{denominator},"):
        read(ratings, [denominator])
    read(ratings)


def test_other_columns_are_refused():
    with pytest.raises(DataError, match="rating: no such column"):
        read_ratings(pa.table({"other": [1]}), RATING, RATING_DENOMINATOR)
    with pytest.raises(DataError, match="a number or a list of numbers"):
        read(["5"])
    with pytest.raises(DataError, match="rating_denominator: expected an integer"):
        read_ratings(table([1.0], rating_denominator=[1.5]), RATING, RATING_DENOMINATOR)


def test_no_rows():
    assert read(pa.array([], pa.int64())) == []
    assert read(pa.array([], RATING.type), []) == []
    assert samples(pa.array([], RATING.type)).n_samples.tolist() == []
