"""Counts of pairs: the same whatever their history, cheap to merge, strict to read."""

import json
import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raveval.errors import DataError
from raveval.metrics._joint_counts import JointCounts, count, count_codes
from raveval.metrics._rating_pairs import RatingPairs
from raveval.metrics.correlation import METRIC
from raveval.types import row_key

INF = float("inf")
ratings = st.sampled_from([-INF, -2.5, 0.0, 1.0, 1.0 + 2**-52, INF])
rows = st.lists(st.tuples(ratings, ratings, st.integers(0, 3)), max_size=30)


def count_rows(part: list[tuple[float, float, int]]) -> JointCounts:
    x, y, keys = zip(*part, strict=True) if part else ((), (), ())
    return count(np.array(x, np.float64), np.array(y, np.float64), np.array(keys, np.uint64))


@given(rows, st.randoms())
def test_counts_do_not_depend_on_history(all_rows: list[Any], rng: random.Random):
    whole = count_rows(all_rows)
    shuffled = rng.sample(all_rows, len(all_rows))
    parts = [JointCounts()]
    while shuffled:
        size = rng.randint(1, len(shuffled))
        parts.append(count_rows(shuffled[:size]))
        shuffled = shuffled[size:]
    while len(parts) > 1:
        parts.append(parts.pop(rng.randrange(len(parts))) + parts.pop(rng.randrange(len(parts))))
    assert parts[0] == whole
    run = whole.consolidated()
    keys = [0] * len(run) if run.clusters is None else run.clusters.tolist()
    cells = zip(run.pairs.real.tolist(), run.pairs.imag.tolist(), keys, strict=True)
    listed = list(cells)
    assert listed == sorted(set(listed))
    assert dict(zip(listed, run.counts.tolist(), strict=True)) == Counter(all_rows)


def test_equal_is_what_holds_the_same():
    a, b = count_rows([(1.0, 2.0, 0)]), count_rows([(1.0, 2.0, 1)])
    assert a == count_rows([(1.0, 2.0, 0)])
    assert a != b
    assert a != count_rows([(1.0, 2.0, 0)] * 2)
    assert a != "counts"
    assert a.consolidated() != "a run"
    with pytest.raises(TypeError, match="unhashable"):
        hash(a)


def test_merging_changes_neither_part():
    a, b = count_rows([(1.0, 2.0, 1), (0.0, 2.0, 0)]), count_rows([(1.0, 2.0, 1)])
    before = [(run.pairs.copy(), run.counts.copy()) for run in (*a.runs, *b.runs)]
    a + b
    (a + b).consolidated()
    for run, (pairs, counts) in zip((*a.runs, *b.runs), before, strict=True):
        assert (run.pairs == pairs).all()
        assert (run.counts == counts).all()


def test_runs_at_least_double():
    rng = np.random.default_rng(1)
    total = JointCounts()
    for _ in range(300):
        x = rng.normal(size=rng.integers(1, 40))
        total = total + count(x, x)
        sizes = [len(run) for run in total.runs]
        assert all(small * 2 <= large for small, large in pairwise(sizes))
        assert len(sizes) <= 14, "log2 of all rows"


@pytest.mark.parametrize("chained", [True, False])
def test_merging_many_parts_costs_little_more_than_all_rows(chained: bool):
    """In rows written to new runs, not in seconds: at most m log2(k) for k parts of m rows."""
    parts = [count(x, x) for x in np.random.default_rng(2).normal(size=(512, 16))]
    n_written = 0
    while len(parts) > 1:
        a, b = parts.pop(0), parts.pop(0)
        total = a + b
        old = {id(run) for run in (*a.runs, *b.runs)}
        n_written += sum(len(run) for run in total.runs if id(run) not in old)
        parts.insert(0 if chained else len(parts), total)
    assert parts[0].consolidated().n == 512 * 16
    assert n_written <= 512 * 16 * 9


def test_a_grid_stays_tiny():
    rng = np.random.default_rng(3)
    total = JointCounts()
    for _ in range(200):
        total = total + count(*rng.integers(0, 13, (2, 500)).astype(np.float64))
    assert sum(len(run) for run in total.runs) <= 169 * 2
    assert total.consolidated().n == 100_000


def test_codes_may_stand_for_values_in_any_order():
    x, y = np.array([0, 1, 2, 1], np.uint8), np.array([1, 0, 1, 0], np.uint8)
    x_values, y_values = np.array([5.0, -INF, 0.5]), np.array([INF, 2.0])
    assert count_codes(x, y, x_values, y_values) == count(x_values[x], y_values[y])
    assert count_codes(x[:0], y[:0], x_values, y_values) == JointCounts()


def test_a_cluster_is_the_key_of_its_text():
    table = pa.table(
        {"rating": [1, 2, 2], "reference_rating": [1, 1, 1], "cluster": ["p", None, "q"]}
    )
    run = METRIC.update(METRIC.init(), table).joint.consolidated()
    assert run.clusters is not None
    assert set(run.clusters.tolist()) == {0, row_key("p"), row_key("q")}


def test_a_cluster_without_any_pair_leaves_no_trace():
    """Else the state would depend on which shard had it."""
    table = pa.table({"rating": [1.0, None], "reference_rating": [1, 1], "cluster": [None, "q"]})
    state = METRIC.update(METRIC.init(), table)
    assert state.joint.consolidated().clusters is None
    assert METRIC.encode(state)["cluster"] == []


@pytest.fixture
def content() -> dict[str, Any]:
    """The state of four rows, three of them distinct."""
    table = pa.table(
        {
            "rating": [1.0, INF, 2.0, 2.0, None],
            "reference_rating": [-INF, 0.5, 0.5, 0.5, None],
            "cluster": ["p", "p", None, None, "p"],
        }
    )
    state = METRIC.update(METRIC.init(), table)
    found: dict[str, Any] = json.loads(json.dumps(METRIC.encode(state), allow_nan=False))
    return found


def test_the_state_in_json(content: dict[str, Any]):
    assert content == {
        "metric": "correlation",
        "version": METRIC.version,
        "rating": [1.0, 2.0, "inf"],
        "reference_rating": ["-inf", 0.5, 0.5],
        "cluster": [row_key("p"), 0, row_key("p")],
        "count": [1, 2, 1],
        "rating_missing": 1,
        "reference_rating_missing": 1,
    }
    state = METRIC.decode(content)
    assert isinstance(state, RatingPairs)
    assert METRIC.encode(state) == content


def swapped(values: list[Any]) -> list[Any]:
    return [values[1], values[0], *values[2:]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: {"rating": ["nan", *c["rating"][1:]]}, "rating: expected a number"),
        (lambda c: {"rating": [1, *c["rating"][1:]]}, "rating: expected a number"),
        (lambda c: {"rating": [True, *c["rating"][1:]]}, "rating: expected a number"),
        (lambda c: {"rating": [-0.0, *c["rating"][1:]]}, "rating: expected a number"),
        (lambda c: {"rating": [float("nan"), *c["rating"][1:]]}, "rating: expected a number"),
        (lambda c: {"rating": c["rating"][1:]}, "different lengths"),
        (lambda c: {"rating": {}}, "expected a list"),
        (
            lambda c: {key: swapped(c[key]) for key in ("rating", "reference_rating")},
            "not in order",
        ),
        (
            lambda c: {"rating": [2.0] * 3, "reference_rating": [0.5] * 3, "cluster": [7, 7, 8]},
            "there twice",
        ),
        (lambda c: {"reference_rating": [0.5, 0.5]}, "different lengths"),
        (lambda c: {"cluster": [1, 2]}, "different lengths"),
        (lambda c: {"cluster": [0, 0, 0]}, "no row has one"),
        (lambda c: {"cluster": [0, 0, 2**64]}, "cluster: expected whole numbers"),
        (lambda c: {"cluster": None}, "cluster: expected a list"),
        (lambda c: {"count": [1, 0, 1]}, "each is at least 1"),
        (lambda c: {"count": [1, -1, 1]}, "count: expected whole numbers"),
        (lambda c: {"count": [1, True, 1]}, "count: expected whole numbers"),
        (lambda c: {"count": [2**53, 2**53, 1]}, "sum to at most"),
        (lambda c: {"rating_missing": -1}, "rating_missing"),
    ],
)
def test_what_is_no_state_is_refused(
    content: dict[str, Any], change: Callable[[dict[str, Any]], dict[str, Any]], message: str
):
    with pytest.raises(DataError, match=message):
        METRIC.decode({**content, **change(content)})
