"""Laws that every metric of the package obeys; a new file is covered without being named here.

A metric's records are drawn from its declared columns by the one table of strategies below. A
metric that reads a new kind of column needs a line in that table, and fails until it has one.
"""

import json
import random
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raveval import registry
from raveval.errors import DataError
from raveval.evaluate import load_metric
from raveval.metrics import Metric
from raveval.metrics._averages import macro_averages
from raveval.types import Estimate

METRICS = registry.names("metrics")

finite = st.floats(-1e6, 0.0) | st.sampled_from([0.0, -0.0, -5e-324, -1e308, -1.5, -2.5])
log_likelihoods = finite | st.sampled_from([float("-inf"), float("nan"), float("inf")])
counts = st.integers(0, 50) | st.sampled_from([2**31, 2**53 + 1])
words = st.sampled_from(
    ["the", "a", "An", "cat", "cats", "naïve", "\u2013", "'s", "1,000", " ", "", "ß"]
)
texts = st.lists(words, max_size=6).map(" ".join) | st.text(max_size=8)


ratings = st.integers(1, 5) | st.sampled_from([4 / 3, 0.0, -0.0, float("nan"), float("inf"), None])
labels = st.sampled_from(["a", "b", "tie", None])


def per_choice(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Six values, of which an example uses as many as it has choices."""
    return st.lists(values, min_size=6, max_size=6)


STRATEGIES: Mapping[tuple[str, bool], st.SearchStrategy[Any]] = {
    # (column, whether it holds a value for each choice) → its values
    ("gold", False): st.integers(0, 5) | st.none(),
    ("scoring", False): st.sampled_from(
        ["raw", "per_token", "per_char", "per_byte", "unconditional", None]
    ),
    ("logprob_nats", True): per_choice(log_likelihoods | st.sampled_from([-1.0, -2.0])),
    ("unconditional_nats", True): per_choice(log_likelihoods) | st.none(),
    ("n_tokens", True): per_choice(st.integers(0, 3)) | st.none(),
    ("n_chars", True): per_choice(st.integers(0, 9)) | st.none(),
    ("n_bytes", True): per_choice(st.integers(1, 9)),
    ("prediction", False): texts | st.none(),
    ("references", False): st.lists(texts, max_size=3),
    ("logprob_nats", False): log_likelihoods,
    ("entropy_nats", False): st.floats(0, 1e4) | st.sampled_from([None, float("nan")]),
    ("n_tokens", False): counts,
    ("n_words", False): counts | st.none(),
    ("n_bytes", False): counts,
    ("n_chars", False): counts | st.none(),
    ("is_greedy", False): st.booleans() | st.none(),
    **{
        (name, True): st.lists(ratings, max_size=3) | st.none()
        for name in (
            *("rating", "reference_rating"),
            *("rating_a", "rating_b", "rating_a_swapped", "rating_b_swapped"),
        )
    },
    # every finite rating above is a multiple of 1/3
    ("rating_denominator", False): st.sampled_from([3, 6, None]),
    ("reference_rating_denominator", False): st.sampled_from([3, 6, None]),
    ("scale_lowest", False): st.sampled_from([0.0, 1.0, None]),
    ("scale_highest", False): st.sampled_from([4.0, 5.0, None]),
    ("preferred", False): st.sampled_from(["a", "b", "tie"]),
    ("verdict", False): labels,
    ("verdict_swapped", False): labels,
    ("cluster", False): st.sampled_from(["p", "q", "r", None]),
}


def strategy_of(field: pa.Field) -> st.SearchStrategy[Any]:
    is_per_choice = pa.types.is_list(field.type) and field.name != "references"
    key = (field.name, is_per_choice)
    if key not in STRATEGIES:
        pytest.fail(f"a metric reads {key}, for which STRATEGIES has no line", pytrace=False)
    return STRATEGIES[key]


@st.composite
def rows_of(draw: st.DrawFn, metric: Metric[Any]) -> list[dict[str, Any]]:
    """Rows of the metric's columns; with choices, 1 to 6 of them and a gold index among them."""
    fields = {f.name: strategy_of(f) for f in metric.columns}
    rows = draw(st.lists(st.fixed_dictionaries(fields), max_size=12))
    for row in rows:
        if "gold" in row:
            n_choices = draw(st.integers(1, 6))
            row["gold"] = None if row["gold"] is None else row["gold"] % n_choices
            for name, value in row.items():
                row[name] = value[:n_choices] if isinstance(value, list) else value
    return rows


def table_of(metric: Metric[Any], rows: list[dict[str, Any]]) -> pa.Table:
    schema = pa.schema(
        [(f.name, pa.list_(f.type.value_type) if is_list(f) else f.type) for f in metric.columns]
    )
    return pa.Table.from_pylist(rows, schema=schema)


def is_list(field: pa.Field) -> bool:
    return bool(pa.types.is_list(field.type))


def text_of(metric: Metric[Any], state: Any) -> str:
    """The state as strict JSON; equal text is equal to the last bit."""
    return json.dumps(metric.encode(state), allow_nan=False, sort_keys=True)


def reduced(metric: Metric[Any], states: list[Any], rng: random.Random) -> Any:
    """Merge states in a random tree."""
    states = [metric.init(), *states]
    while len(states) > 1:
        a = states.pop(rng.randrange(len(states)))
        b = states.pop(rng.randrange(len(states)))
        states.append(metric.merge(a, b))
    return states[0]


def shards_of(rows: list[Any], rng: random.Random) -> list[list[Any]]:
    """Split rows at random places; shards may be empty."""
    cuts = sorted(rng.randrange(len(rows) + 1) for _ in range(rng.randrange(5)))
    return [rows[a:b] for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]


@pytest.fixture(params=METRICS)
def metric(request: pytest.FixtureRequest) -> Metric[Any]:
    plugin: Metric[Any] = load_metric(request.param)
    return plugin


@pytest.mark.parametrize("name", METRICS)
@settings(max_examples=30, deadline=None, derandomize=True)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_any_sharding_order_and_tree_gives_the_same_bits(name: str, data: st.DataObject, seed: int):
    metric = load_metric(name)
    rows = data.draw(rows_of(metric))
    rng = random.Random(seed)
    whole = metric.update(metric.init(), table_of(metric, rows))
    shuffled = rng.sample(rows, len(rows))
    states = [metric.update(metric.init(), table_of(metric, s)) for s in shards_of(shuffled, rng)]
    merged = reduced(metric, states, rng)
    chained = metric.init()
    for shard in shards_of(shuffled, rng):
        chained = metric.update(chained, table_of(metric, shard))
    assert text_of(metric, merged) == text_of(metric, whole) == text_of(metric, chained)
    assert repr(metric.compute(merged)) == repr(metric.compute(whole))
    assert metric.notes(merged) == metric.notes(whole)


@pytest.mark.parametrize("name", METRICS)
@settings(max_examples=20, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_state_survives_json_and_changes_nothing(name: str, data: st.DataObject):
    metric = load_metric(name)
    table = table_of(metric, data.draw(rows_of(metric)))
    before = table.to_pylist()
    empty = metric.init()
    state = metric.update(empty, table)
    text = text_of(metric, state)
    back = metric.decode(json.loads(text))
    assert back == state
    assert text_of(metric, back) == text
    metric.merge(state, state)
    metric.merge(back, empty)
    metric.compute(state)
    # NaN differs from itself, so the rows are compared as text.
    assert repr(table.to_pylist()) == repr(before)
    assert text_of(metric, state) == text
    assert text_of(metric, empty) == text_of(metric, metric.init())
    assert text_of(metric, metric.merge(state, empty)) == text
    assert text_of(metric, metric.merge(empty, state)) == text


@pytest.mark.parametrize("name", METRICS)
@settings(max_examples=30, deadline=None, derandomize=True)
@given(data=st.data())
def test_estimates_are_strict_and_consistent(name: str, data: st.DataObject):
    metric = load_metric(name)
    state = metric.update(metric.init(), table_of(metric, data.draw(rows_of(metric))))
    estimates = metric.compute(state)
    assert list(estimates) == list(metric.compute(metric.init())), "names depend on the data"
    for key, e in estimates.items():
        json.dumps([e.value, e.stderr, e.low, e.high], allow_nan=False)
        assert (e.value is None) == (e.reason is not None), (key, e)
        assert type(e.n) is int, (key, e)
        interval = (e.low is None, e.high is None, e.interval is None)
        assert interval in ((True,) * 3, (False,) * 3), (key, e)
        assert_says_why(key, e)
        if e.low is not None and e.high is not None and e.value is not None:
            slack = 1e-12 * (1 + abs(e.value))
            assert e.low - slack <= e.value <= e.high + slack, (key, e)
    assert all(count > 0 for count in metric.notes(state).values())


def assert_says_why(name: str, e: Estimate):
    lacks_interval = e.value is not None and e.interval is None
    assert (e.no_interval is not None) == lacks_interval, (name, e)
    assert e.no_interval != "", (name, e)


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("clusters", ["none", "one", "own", "some"])
@settings(max_examples=15, deadline=None, derandomize=True)
@given(data=st.data(), n_copies=st.sampled_from([1, 2, 6]))
def test_a_value_without_an_interval_says_why(
    name: str, clusters: str, data: st.DataObject, n_copies: int
):
    """Copies of rows make constant samples and full agreement long enough for any method."""
    metric = load_metric(name)
    rows = data.draw(rows_of(metric))
    rows = [dict(row) for row in (rows if n_copies == 1 else rows[:2]) for _ in range(n_copies)]
    for i, row in enumerate(rows):
        row["cluster"] = {"none": None, "one": "p", "own": str(i)}.get(clusters, "pq"[i % 2])
        if clusters == "some" and i == 0:
            row["cluster"] = None
    state = metric.update(metric.init(), table_of(metric, rows))
    estimates, notes = metric.compute(state), metric.notes(state)
    for key, e in estimates.items():
        assert_says_why(key, e)
    for n_groups in (1, 3, 12):
        groups = dict.fromkeys(map(str, range(n_groups)), estimates)
        for group_notes in ((), [notes] * n_groups):
            means = macro_averages(groups, notes=notes, group_notes=group_notes)
            for key, e in means.items():
                assert_says_why(f"macro_{key}", e)


@pytest.mark.parametrize("name", METRICS)
@settings(max_examples=30, deadline=None, derandomize=True)
@given(data=st.data())
def test_contributions_add_up_to_the_estimates(name: str, data: st.DataObject):
    metric = load_metric(name)
    table = table_of(metric, data.draw(rows_of(metric)))
    estimates = metric.compute(metric.update(metric.init(), table))
    contributions = metric.contributions(table)
    assert set(contributions) == set(metric.ratios) <= set(estimates)
    for key, (x, u) in contributions.items():
        assert x.dtype == u.dtype == np.float64
        assert x.shape == u.shape == (len(table),)
        assert np.isfinite(x).all()
        assert (u >= 0).all()
        value = estimates[key].value
        if value is None or len(table) == 0:
            continue
        total = Fraction(0) + sum(map(Fraction, x.tolist()))
        units = Fraction(0) + sum(map(Fraction, u.tolist()))
        assert units > 0, (key, "an estimate needs something to divide by")
        expected = metric.ratios[key].value(float(total / units))
        assert value == pytest.approx(expected, rel=1e-9, abs=1e-9), key
    halves = [metric.contributions(part) for part in (table.slice(0, 5), table.slice(5))]
    for key, (x, u) in contributions.items():
        assert np.array_equal(np.concatenate([half[key].x for half in halves]), x), key
        assert np.array_equal(np.concatenate([half[key].u for half in halves]), u), key


def test_nothing_measured_is_no_number(metric: Metric[Any]):
    estimates = metric.compute(metric.init())
    assert estimates
    for name, estimate in estimates.items():
        assert estimate.value is None, name
        assert estimate.reason in ("n=0", "n<2"), name
        assert estimate.n == 0, name
    assert metric.notes(metric.init()) == {}


def test_an_empty_table_is_the_identity(metric: Metric[Any]):
    state = metric.update(metric.init(), table_of(metric, []))
    assert text_of(metric, state) == text_of(metric, metric.init())


def test_what_it_reads_is_declared(metric: Metric[Any]):
    names = tuple(field.name for field in metric.columns)
    assert sorted(names) == sorted((*metric.needs, *metric.optional))
    assert metric.name in METRICS
    table = table_of(metric, [])
    for needed in metric.needs:
        with pytest.raises(DataError, match=needed):
            metric.update(metric.init(), table.drop_columns([needed]))


def test_optional_columns_may_be_absent(metric: Metric[Any]):
    table = table_of(metric, []).select(list(metric.needs))
    assert metric.update(metric.init(), table) == metric.init()


def body_key(content: dict[str, Any]) -> str:
    """The first key that is the metric's own."""
    return next(key for key in content if key not in ("metric", "version"))


@pytest.mark.parametrize(
    "change",
    [
        lambda c: None,
        lambda c: [],
        lambda c: {},
        lambda c: {**c, "version": c["version"] + 1},
        lambda c: {**c, "version": True},
        lambda c: {**c, "metric": "another"},
        lambda c: {**c, "extra": 0},
        lambda c: {k: v for k, v in c.items() if k != body_key(c)},
        lambda c: {**c, body_key(c): "1"},
        lambda c: {**c, body_key(c): -1},
        lambda c: {**c, body_key(c): 0.5},
        lambda c: {**c, body_key(c): None},
        lambda c: {**c, body_key(c): [[]]},
    ],
)
def test_anything_else_is_refused(metric: Metric[Any], change: Any):
    content = json.loads(text_of(metric, metric.init()))
    with pytest.raises(DataError, match="state of"):
        metric.decode(change(content))


# Tables as long as those that go through compiled kernels, in shards long and short.

N_LONG = 70_001


def long_choices(rng: np.random.Generator) -> pa.Table:
    """Examples of 2 to 5 choices, with ties, and some log-likelihoods that are no numbers."""
    n_choices = rng.integers(2, 6, N_LONG)
    starts = np.concatenate([[0], np.cumsum(n_choices)]).astype(np.int32)
    n = int(starts[-1])
    scores = -rng.integers(1, 9, n) / 3 * 2.0 ** np.repeat(rng.integers(-40, 9, N_LONG), n_choices)
    scores[rng.random(n) < 0.001] = np.nan
    lengths = rng.integers(1, 9, n).astype(np.int32)
    return pa.table(
        {
            "gold": (rng.random(N_LONG) * n_choices).astype(np.int32),
            "logprob_nats": pa.ListArray.from_arrays(starts, scores),
            "n_tokens": pa.ListArray.from_arrays(starts, lengths),
        }
    )


def long_documents(rng: np.random.Generator) -> pa.Table:
    """Documents whose log-likelihoods differ by 60 binary orders of magnitude."""
    sums = -rng.random(N_LONG) * 2.0 ** rng.integers(-40, 20, N_LONG)
    return pa.table({"logprob_nats": sums, "n_tokens": rng.integers(0, 10**6, N_LONG)})


def long_answers(rng: np.random.Generator) -> pa.Table:
    """Short answers that overlap with one of two references."""
    some = np.array(
        ["the cat", "A cats' tale", "naïve \u2013 Cat", "1,000 cats", "cat cat dog", ""]
    )
    references = pa.ListArray.from_arrays(
        np.arange(0, 2 * N_LONG + 1, 2, dtype=np.int32),
        pa.array(some[rng.integers(0, 6, 2 * N_LONG)]),
    )
    return pa.table({"prediction": some[rng.integers(0, 6, N_LONG)], "references": references})


def long_grades(rng: np.random.Generator) -> pa.Table:
    """Ratings from 1 to 9, counted as bytes."""
    x = rng.integers(1, 8, N_LONG)
    return pa.table({"rating": x, "reference_rating": x + rng.integers(0, 3, N_LONG)})


def long_scores(rng: np.random.Generator) -> pa.Table:
    """Ratings of which hardly two are equal, some of them missing."""
    x = rng.normal(size=N_LONG)
    y = np.where(rng.random(N_LONG) < 0.001, np.nan, np.rint(1e4 * (x + rng.normal(size=N_LONG))))
    return pa.table({"rating": x, "reference_rating": y})


@pytest.mark.parametrize(
    ("name", "draw"),
    [
        ("accuracy", long_choices),
        ("perplexity", long_documents),
        ("squad", long_answers),
        ("correlation", long_grades),
        ("correlation", long_scores),
    ],
)
def test_long_tables_give_the_same_bits_however_they_are_cut(
    name: str, draw: Callable[[np.random.Generator], pa.Table]
):
    metric, rng = load_metric(name), random.Random(name)
    table = draw(np.random.default_rng(N_LONG))
    whole = metric.update(metric.init(), table)
    for n_shards in (3, 300):  # a kernel does the long ones, the plain path beside it the short
        shuffled = table.take(pa.array(rng.sample(range(N_LONG), N_LONG)))
        cuts = sorted(rng.randrange(N_LONG) for _ in range(n_shards - 1))
        parts = [shuffled.slice(a, b - a) for a, b in zip([0, *cuts], [*cuts, N_LONG], strict=True)]
        merged = reduced(metric, [metric.update(metric.init(), part) for part in parts], rng)
        chained = metric.init()
        for part in parts:
            chained = metric.update(chained, part)
        assert merged == whole
        assert text_of(metric, chained) == text_of(metric, merged) == text_of(metric, whole)
        assert metric.compute(merged) == metric.compute(whole)
