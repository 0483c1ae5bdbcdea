"""A reference rater against itself: its first score and the mean of its others."""

import json
import math
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from raveval.errors import DataError
from raveval.evaluate import load_metric
from raveval.metrics import correlation
from raveval.metrics.reference_consistency import METRIC

NAMES = ("reference_pearson", "reference_spearman", "reference_kendall_tau_b")
LISTS = pa.list_(pa.float64())


def table(rows: Sequence[Any], **columns: Any) -> pa.Table:
    return pa.table({"reference_rating": pa.array(rows, LISTS), **columns})


def compute(rows: Sequence[Any], **columns: Any) -> Any:
    return METRIC.compute(METRIC.update(METRIC.init(), table(rows, **columns)))


def test_against_scipy() -> None:
    source = np.random.default_rng(5)
    quality = source.integers(1, 6, 200)
    scores = np.clip(quality[:, None] + source.integers(-1, 2, (200, 4)), 1, 5).astype(float)
    rows = [row[: 2 + n % 3].tolist() for n, row in enumerate(scores)]
    first = [row[0] for row in rows]
    # As exact fractions: floats of equal means could differ in their last bit, and untie ranks.
    others = [float(Fraction(sum(map(int, row[1:])), len(row) - 1)) for row in rows]
    found = compute(rows)
    for name, oracle in zip(
        NAMES, (stats.pearsonr, stats.spearmanr, stats.kendalltau), strict=True
    ):
        assert found[name].value == pytest.approx(oracle(first, others).statistic, abs=1e-12)
        assert found[name].n == 200
        assert found[name].higher_is_better
        assert found[name].low <= found[name].value <= found[name].high


def test_it_is_what_correlation_says_of_that_rater_as_a_judge() -> None:
    rows = [[3.0, 4.0, 4.0], [1.0, 1.0, 2.0], [5.0, 4.0, 5.0], [2.0, 3.0, 1.0], [4.0, 4.0, 3.0]]
    judge = pa.table(
        {
            "rating": pa.array([first for first, *_ in rows]),
            "reference_rating": pa.array([rest for _, *rest in rows], LISTS),
        }
    )
    other = correlation.METRIC.compute(correlation.METRIC.update(correlation.METRIC.init(), judge))
    assert compute(rows) == {
        f"reference_{n}": other[n] for n in ("pearson", "spearman", "kendall_tau_b")
    }


def test_rows_with_fewer_than_two_scores_are_left_out_and_counted() -> None:
    rows = [[1.0, 2.0], [5.0], [], None, [3.0, math.nan, None], [4.0, None, 5.0], [2.0, 2.0, 2.0]]
    state = METRIC.update(METRIC.init(), table(rows))
    assert METRIC.notes(state) == {"reference_rated_once": 4}
    assert {estimate.n for estimate in METRIC.compute(state).values()} == {3}
    same = compute([[1.0, 2.0], [4.0, 5.0], [2.0, 2.0, 2.0]])
    assert METRIC.compute(state) == same
    assert METRIC.notes(METRIC.init()) == {}


def test_single_numbers_are_rated_once() -> None:
    records = pa.table({"reference_rating": pa.array([1.0, 2.0, None])})
    state = METRIC.update(METRIC.init(), records)
    assert METRIC.notes(state) == {"reference_rated_once": 3}
    assert {e.reason for e in METRIC.compute(state).values()} == {"n<2"}


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([], "n<2"),
        ([[1.0, 2.0]], "n<2"),
        ([[3.0, 1.0], [3.0, 2.0], [3.0, 5.0]], "constant"),
        ([[1.0, 4.0], [2.0, 4.0], [5.0, 4.0]], "constant"),
    ],
)
def test_undefined_says_why(rows: Sequence[Any], reason: str) -> None:
    found = compute(rows)
    assert list(found) == list(NAMES)
    for estimate in found.values():
        assert (estimate.value, estimate.reason) == (None, reason)


def test_clusters_widen_the_interval() -> None:
    source = np.random.default_rng(8)
    rows, clusters = [], []
    for cluster in range(40):  # five copies of each row are no more than one
        first, second = source.integers(1, 6), source.integers(1, 6)
        rows += [[float(first), float((first + second) // 2)]] * 5
        clusters += [f"c{cluster}"] * 5
    without, found = compute(rows), compute(rows, cluster=pa.array(clusters))
    for name in NAMES:
        assert found[name].value == without[name].value
        assert found[name].interval.startswith("cluster")
        assert found[name].high - found[name].low > without[name].high - without[name].low


def test_state_round_trip_and_merge() -> None:
    rows = [[1.0, 2.0], [5.0], [4.0, 5.0, 3.0], [2.0, 2.0]]
    whole = METRIC.update(METRIC.init(), table(rows))
    parts = METRIC.merge(
        METRIC.update(METRIC.init(), table(rows[:1])), METRIC.update(METRIC.init(), table(rows[1:]))
    )
    assert METRIC.encode(parts) == METRIC.encode(whole)
    encoded = json.loads(json.dumps(METRIC.encode(whole)))
    assert METRIC.encode(METRIC.decode(encoded)) == METRIC.encode(whole)
    with pytest.raises(DataError):
        METRIC.decode({**encoded, "n_single": -1})
    with pytest.raises(DataError):
        METRIC.decode({key: value for key, value in encoded.items() if key != "pairs"})


def test_a_column_of_texts_is_refused() -> None:
    with pytest.raises(DataError, match="reference_rating"):
        METRIC.update(METRIC.init(), pa.table({"reference_rating": ["good"]}))


def test_gpt4_agrees_with_itself_on_vicuna(shared_data: Path) -> None:
    """The file's three scores a row: the ceiling for judges that are held against them."""
    rows = json.loads((shared_data / "prometheus" / "vicuna_eval.json").read_text("utf-8"))
    scores = [[float(score) for score in row["gpt4_score"]] for row in rows]
    found = load_metric("reference_consistency")
    estimates = found.compute(found.update(found.init(), table(scores)))
    first = [row[0] for row in scores]
    others = [sum(row[1:]) / 2 for row in scores]
    pearson = stats.pearsonr(first, others).statistic
    assert estimates["reference_pearson"].value == pytest.approx(pearson, abs=1e-12)
    assert estimates["reference_pearson"].n == 320
    assert pearson > 0.8
