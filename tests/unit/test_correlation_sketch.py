"""The sketch of tau-a: it holds the truth for certain, and any merge gives the same bits."""

import json
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from raveval.errors import DataError
from raveval.metrics._joint_counts import JointCounts, count
from raveval.metrics._pair_sketch import PairSketch, cut
from raveval.metrics.correlation_sketch import METRIC, RatingSketch
from raveval.types import Estimate

INF = float("inf")
doubles = st.floats(allow_nan=False).map(lambda value: value + 0.0) | st.sampled_from([1.0, 2.0])
pairs = st.lists(st.tuples(doubles, doubles), min_size=1, max_size=60)


def sketch_of(rows: list[tuple[float, float]], most_cells: int) -> PairSketch:
    x, y = np.array(rows, np.float64).T.copy()
    return PairSketch(joint=count(x, y), most_cells=most_cells)


def tau_a(x: np.ndarray, y: np.ndarray) -> float:
    n = len(x)
    # Compared, not subtracted: a difference of large values overflows, and inf - inf is nothing.
    signs = [(v[:, None] > v).astype(int) - (v[:, None] < v) for v in (x, y)]
    return float((signs[0] * signs[1]).sum() / (n * (n - 1)))


def estimate_of(sketch: PairSketch) -> Estimate:
    return METRIC.compute(RatingSketch(sketch))["kendall_tau_a"]


@given(pairs, st.integers(1, 12), st.randoms())
def test_any_merge_of_any_parts_gives_the_same_bits(
    rows: list[tuple[float, float]], most_cells: int, rng: random.Random
):
    whole = sketch_of(rows, most_cells).settled()
    shuffled = rng.sample(rows, len(rows))
    parts = [PairSketch(most_cells=most_cells)]
    while shuffled:
        size = rng.randint(1, len(shuffled))
        part = sketch_of(shuffled[:size], most_cells)
        parts.append(part.settled() if rng.random() < 0.5 else part)
        shuffled = shuffled[size:]
    while len(parts) > 1:
        parts.append(parts.pop(rng.randrange(len(parts))) + parts.pop(rng.randrange(len(parts))))
    merged = parts[0].settled()
    assert merged.bits == whole.bits
    assert merged.joint.consolidated() == whole.joint.consolidated()
    assert merged == whole
    assert len(merged.joint.consolidated()) <= most_cells


@given(pairs.filter(lambda rows: len(rows) > 1), st.integers(1, 12))
def test_the_bounds_hold_the_truth(rows: list[tuple[float, float]], most_cells: int):
    found = estimate_of(sketch_of(rows, most_cells))
    x, y = np.array(rows).T
    if found.value is None:
        assert found.reason == "constant"
        assert len(set(x)) == 1 or len(set(y)) == 1
        return
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.value <= found.high
    assert found.low - 1e-12 <= tau_a(x, y) <= found.high + 1e-12


@given(st.lists(doubles, min_size=2, max_size=40), st.integers(1, 64))
def test_cutting_bits_never_swaps_two_ratings(values: list[float], bits: int):
    ordered = np.sort(np.array(values))
    found = cut(ordered, bits)
    assert (found[1:] >= found[:-1]).all()
    assert (np.abs(found) <= np.abs(ordered)).all()
    assert not np.signbit(found[found == 0]).any()
    assert (cut(found, bits) == found).all()
    assert (cut(cut(ordered, min(64, bits + 3)), bits) == found).all()


def test_all_bits_keep_all():
    values = np.array([-INF, -1e308, -5e-324, 0.0, 5e-324, 1 / 3, INF])
    assert (cut(values, 64) == values).all()
    assert cut(values, 12).tolist()[0] == -INF
    assert cut(values, 1).tolist() == [0.0] * 7


def normal_pairs(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    x = rng.normal(size=n)
    return x, x + rng.normal(size=n)


def test_few_distinct_pairs_are_exact():
    x, y = normal_pairs(300)
    table = pa.table({"rating": x, "reference_rating": y})
    found = METRIC.compute(METRIC.update(METRIC.init(), table))["kendall_tau_a"]
    assert found.value == found.low == found.high
    assert found.value == pytest.approx(stats.kendalltau(x, y).statistic, abs=1e-15)
    assert (found.interval, found.stderr, found.n) == ("guaranteed", None, 300)
    tied = pa.table({"rating": np.rint(x), "reference_rating": np.rint(y)})
    found = METRIC.compute(METRIC.update(METRIC.init(), tied))["kendall_tau_a"]
    assert found.value == found.low == found.high == tau_a(np.rint(x), np.rint(y))


def test_the_value_is_far_nearer_than_the_bound():
    """30 000 continuous pairs in at most 4096 cells."""
    x, y = normal_pairs(30_000)
    sketch = PairSketch(joint=count(x, y), most_cells=4096)
    found = estimate_of(sketch)
    truth = stats.kendalltau(x, y).statistic
    assert found.low is not None
    assert found.high is not None
    assert found.value is not None
    assert found.low < truth < found.high
    half_width = (found.high - found.low) / 2
    assert half_width < 0.2
    assert abs(found.value - truth) < half_width / 10


def test_one_cell_knows_nothing():
    found = estimate_of(sketch_of([(1.0, 2.0), (2.0, 3.0), (3.0, 1.0)], 1))
    assert (found.value, found.low, found.high) == (0.0, -1.0, 1.0)


def test_undefined():
    def of(x: list[float | None], y: list[float | None]) -> Estimate:
        table = pa.table({"rating": pa.array(x, pa.float64()), "reference_rating": y})
        return METRIC.compute(METRIC.update(METRIC.init(), table))["kendall_tau_a"]

    assert of([1.0], [2.0]).reason == "n<2"
    assert of([1.0, None], [2.0, 1.0]).reason == "n<2"
    assert of([1.0, 1.0], [2.0, 1.0]).reason == "constant"
    assert of([1.0, INF], [2.0, 1.0]).value == -1


def test_a_cluster_changes_nothing():
    table = pa.table({"rating": [1.0, 2.0], "reference_rating": [1.0, 3.0], "cluster": ["a", "b"]})
    clustered = METRIC.update(METRIC.init(), table)
    assert clustered == METRIC.update(METRIC.init(), table.drop_columns(["cluster"]))


def test_equal_is_what_settles_to_the_same():
    a, b = sketch_of([(1.0, 2.0), (1.5, 2.0)], 1), sketch_of([(1.0, 2.5), (1.75, 2.0)], 1)
    assert a == b
    assert a != sketch_of([(1.0, 2.0)], 1)
    assert a != "a sketch"
    with pytest.raises(TypeError, match="unhashable"):
        hash(a)


@pytest.fixture
def content() -> dict[str, Any]:
    """A state whose ratings are cut to 13 bits."""
    joint = count(cut(np.array([1.0, 1.9, 3.0]), 13), cut(np.array([2.0, 7.0, 2.5]), 13))
    found: dict[str, Any] = METRIC.encode(RatingSketch(PairSketch(13, joint)))
    return found


def test_a_cut_state_survives_json(content: dict[str, Any]):
    back = METRIC.decode(json.loads(json.dumps(content, allow_nan=False)))
    assert METRIC.encode(back) == content
    assert content["rating"] == [1.0, 1.5, 3.0]
    assert content["bits"] == 13


@pytest.mark.parametrize(
    "change",
    [
        {"bits": 0},
        {"bits": 65},
        {"bits": 12},
        {"cluster": [1, 1, 1]},
        {"rating": [], "reference_rating": [], "count": []},
        {"bits": 64.0},
    ],
)
def test_what_is_no_sketch_is_refused(content: dict[str, Any], change: dict[str, Any]):
    with pytest.raises(DataError, match="state of correlation_sketch"):
        METRIC.decode({**content, **change})


def test_parts_are_settled_only_when_they_outgrow_their_cells():
    rng = np.random.default_rng(5)
    total = PairSketch(most_cells=100)
    for _ in range(200):
        x, y = rng.normal(size=(2, 10))
        total = total + PairSketch(joint=count(x, y), most_cells=100)
        assert sum(len(run) for run in total.joint.runs) <= 200
    assert total.joint.consolidated().n == 2000
    assert PairSketch().settled().joint == JointCounts()
