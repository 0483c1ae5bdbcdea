"""Rows that differ between two tables: every kind of column, nulls and NaN."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raveval.comparison.differing import differing

NAN = float("nan")

COLUMNS = {
    pa.float64(): st.sampled_from([None, NAN, 0.0, 1.5, float("inf")]),
    pa.int32(): st.sampled_from([None, 0, 1]),
    pa.bool_(): st.sampled_from([None, True, False]),
    pa.string(): st.sampled_from([None, "", "x"]),
}
COLUMNS |= {
    pa.list_(kind): st.none() | st.lists(items, max_size=2) for kind, items in COLUMNS.items()
}
COLUMNS[pa.null()] = st.none()


@pytest.mark.parametrize("kind", COLUMNS, ids=str)
@given(data=st.data())
def test_is_what_texts_of_the_rows_say(kind, data):
    rows = data.draw(st.lists(st.tuples(COLUMNS[kind], COLUMNS[kind]), max_size=8))
    a, b = (pa.table({"x": pa.array([row[k] for row in rows], kind)}) for k in (0, 1))
    expected = [repr(x) != repr(y) for x, y in rows]
    assert differing(a, b).tolist() == expected
    both = [pa.concat_tables([each.slice(0, 3), each.slice(3)]) for each in (a, b)]
    assert differing(*both).tolist() == expected


def test_any_column_will_do():
    a = pa.table({"x": [1, 2, 3], "y": ["a", "b", "c"]})
    b = pa.table({"x": [1, 2, 4], "y": ["a", "z", "c"]})
    assert differing(a, b).tolist() == [False, True, True]
    texts = pa.table({"y": a["y"].dictionary_encode()})
    assert differing(texts, b.select(["y"])).tolist() == [False, True, False]


def test_a_hundred_thousand_rows_of_lists():
    ratings = np.random.default_rng(1).integers(1, 6, (100_000, 3))
    a = pa.table({"rating": pa.array(ratings.tolist())})
    changed = ratings.copy()
    changed[::1000, 1] += 1
    b = pa.table({"rating": pa.array(changed.tolist())})
    assert np.array_equal(np.flatnonzero(differing(a, b)), np.arange(0, 100_000, 1000))
