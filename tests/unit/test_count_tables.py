"""Tables of counts that are drawn: small, complete, and the same however rows were sharded."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raveval.evaluate import load_metric
from raveval.metrics import Tabular
from raveval.metrics._count_tables import MOST_LABELS, distribution, joint
from raveval.types import CountTable

DOUBLES = st.floats(allow_nan=False) | st.integers(-3, 3).map(float)


def total(table: CountTable) -> int:
    return sum(map(sum, table.counts))


def tables(name: str, rows: list[dict[str, Any]], shards: int = 1) -> dict[str, CountTable]:
    metric = load_metric(name)
    state = metric.init()
    for start in range(shards):
        part = pa.Table.from_pylist(rows[start::shards], schema=SCHEMA)
        state = metric.merge(state, metric.update(metric.init(), part))
    assert isinstance(metric, Tabular)
    return dict(metric.tables(state))


SCHEMA = pa.schema(
    [
        ("rating", pa.list_(pa.float64())),
        ("reference_rating", pa.float64()),
        ("scale_lowest", pa.float64()),
        ("scale_highest", pa.float64()),
    ]
)


class TestFewValues:
    def test_each_is_told_apart_and_ascends(self):
        values = np.array([2.0, 5 / 3, 2.0, -1.0])
        table = distribution(values, np.array([1, 2, 3, 4]), name="rating")
        assert table.rows.labels == ("-1", "1.6666666666666667", "2")
        assert table.rows.step is None
        assert table.columns is None
        assert table.counts == ((4,), (2,), (4,))

    def test_pairs_have_rows_and_columns(self):
        table = joint(np.array([1.0, 2.0, 1.0]), np.array([9.0, 9.0, 8.0]), np.array([5, 6, 7]))
        assert table.rows.labels == ("1", "2")
        assert table.columns is not None
        assert table.columns.labels == ("8", "9")
        assert table.counts == ((7, 5), (0, 6))

    def test_the_means_of_three_grades_are_all_told_apart(self):
        means = np.arange(3, 16) / 3
        assert len(distribution(means, np.ones(13, np.int64), name="x").rows.labels) == 13


class TestManyValues:
    def test_each_stands_with_the_nearest_multiple(self):
        values = np.arange(21) / 5 + 1  # the means of five grades
        table = distribution(values, np.ones(21, np.int64), name="rating")
        assert table.rows.step == 0.5
        assert table.rows.labels == ("1", "1.5", "2", "2.5", "3", "3.5", "4", "4.5", "5")
        expected = Counter(math.floor(2 * value + 0.5) / 2 for value in values.tolist())
        assert [count for (count,) in table.counts] == [
            expected[float(label)] for label in table.rows.labels
        ]

    def test_infinite_values_stand_at_the_ends(self):
        values = np.array([*range(30), math.inf, -math.inf, math.inf], np.float64)
        table = distribution(values, np.ones(33, np.int64), name="rating")
        assert (table.rows.labels[0], table.rows.labels[-1]) == ("-inf", "inf")
        assert (table.counts[0], table.counts[-1]) == ((1,), (2,))

    def test_differences_among_late_rows_are_seen(self):
        values = np.zeros(10_000)
        values[5_000:] = np.arange(5_000)
        table = distribution(values, np.ones(10_000, np.int64), name="rating")
        assert table.rows.step == 500
        assert table.counts[0] == (5_000 + 250,)

    @given(st.lists(st.tuples(DOUBLES, DOUBLES, st.integers(1, 9)), min_size=1, max_size=60))
    def test_nothing_is_lost_and_the_table_is_small(self, rows):
        x, y, counts = (np.array(column) for column in zip(*rows, strict=True))
        table = joint(x + 0.0, y + 0.0, counts)
        assert table.columns is not None
        assert total(table) == counts.sum()
        for side in (table.rows, table.columns):
            assert 1 <= len(side.labels) <= MOST_LABELS + 2


class TestMetrics:
    ROWS: tuple[dict[str, Any], ...] = tuple(
        {
            "rating": [float(1 + i % 5), float(1 + (i * i) % 5)],
            "reference_rating": None if i % 7 == 0 else float(1 + i % 4),
            "scale_lowest": 1.0,
            "scale_highest": 5.0,
        }
        for i in range(40)
    )

    @pytest.mark.parametrize("name", ["correlation", "agreement", "correlation_sketch"])
    def test_pairs_without_a_reference_are_left_out(self, name):
        table = tables(name, list(self.ROWS))["rating_by_reference_rating"]
        assert total(table) == sum(row["reference_rating"] is not None for row in self.ROWS)
        assert table.rows.name == "rating"
        assert table.columns is not None
        assert table.columns.labels == ("1", "2", "3", "4")
        of_four = [row for row in self.ROWS if row["reference_rating"] == 4.0]
        assert sum(row[3] for row in table.counts) == len(of_four)

    def test_families_that_count_the_same_agree(self):
        found = {name: tables(name, list(self.ROWS)) for name in ("correlation", "agreement")}
        assert found["correlation"] == found["agreement"]

    @pytest.mark.parametrize("name", ["correlation", "agreement", "rating"])
    def test_shards_do_not_matter(self, name):
        assert tables(name, list(self.ROWS)) == tables(name, list(self.ROWS), shards=7)

    def test_ratings_have_a_histogram(self):
        table = tables("rating", list(self.ROWS))["rating"]
        assert total(table) == len(self.ROWS)
        means = Counter(sum(row["rating"]) / 2 for row in self.ROWS)
        assert {float(k): n for k, (n,) in zip(table.rows.labels, table.counts, strict=True)} == (
            means
        )

    def test_words_of_judge_and_human_meet(self):
        metric = load_metric("preference")
        assert isinstance(metric, Tabular)
        words = [("a", "a"), ("b", "a"), ("tie", "b"), ("a", "tie"), ("a", "a"), (None, "b")]
        rows = [{"verdict": judge, "preferred": human} for judge, human in words]
        state = metric.update(metric.init(), pa.Table.from_pylist(rows))
        table = metric.tables(state)["verdict_by_preferred"]
        assert table.columns is not None
        assert (table.rows.name, table.columns.name) == ("judge", "human")
        assert table.rows.labels == table.columns.labels == ("a", "tie", "b")
        assert table.counts == ((2, 1, 0), (0, 0, 1), (1, 0, 0))
        assert metric.tables(metric.init()) == {}

    @pytest.mark.parametrize("name", ["correlation", "agreement", "rating", "correlation_sketch"])
    def test_no_rows_have_no_table(self, name):
        assert tables(name, []) == {}
