"""Laws of what comparisons ask of metrics, and of what they say: for every metric."""

import json
import math
from collections import Counter
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from raveval.comparison import estimates, resampling
from raveval.comparison.estimates import differences_of
from raveval.comparison.pairing import pair
from raveval.evaluate import load_metric
from raveval.metrics import Metric, Reweighted, Selective
from tests.laws.test_metrics import METRICS, rows_of, table_of


def bare(name: str) -> Metric[Any]:
    """The metric without what knows clusters."""
    metric = load_metric(name)
    return getattr(metric, "inner", metric)


SELECTIVE = [name for name in METRICS if isinstance(bare(name), Selective)]
REWEIGHTED = [name for name in METRICS if isinstance(bare(name), Reweighted)]


def values_of(metric: Metric[Any], table: pa.Table) -> dict[str, float | None]:
    found = metric.compute(metric.update(metric.init(), table))
    return {name: estimate.value for name, estimate in found.items()}


def test_an_estimate_has_one_family():
    metrics = [bare(family) for family in METRICS]
    names = Counter(name for metric in metrics for name in metric.compute(metric.init()))
    twice = {name for name, n in names.items() if n > 1}
    assert twice == {"exact_match", "f1"}, "squad and squad2 are the only ones that share names"


@pytest.mark.parametrize("name", SELECTIVE)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_unusable_records_change_no_value(name: str, data: st.DataObject):
    metric = bare(name)
    assert isinstance(metric, Selective)
    table = table_of(metric, data.draw(rows_of(metric)))
    values, added = values_of(metric, table), metric.contributions(table)
    for key, mask in metric.usable(table).items():
        assert mask.dtype == np.bool_
        assert mask.shape == (len(table),)
        if values[key] is not None:
            assert values_of(metric, table.filter(pa.array(mask)))[key] == values[key], key
        if key in added:
            assert not added[key].x[~mask].any()
            assert not added[key].u[~mask].any()


@pytest.mark.parametrize("name", REWEIGHTED)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_replicates_are_the_estimates_of_what_was_drawn(name: str, data: st.DataObject):
    metric = bare(name)
    assert isinstance(metric, Reweighted)
    table = table_of(metric, data.draw(rows_of(metric)))
    n = len(table)
    of_row = st.lists(st.integers(0, 3), min_size=n, max_size=n)
    weights = np.array([[1] * n, *data.draw(st.lists(of_row, min_size=1, max_size=3))], np.int64)
    replicates = metric.reweighted(table)(weights)
    expected = values_of(metric, table)
    assert set(replicates) == set(expected) - set(metric.ratios)
    for row, each in enumerate(weights):
        anew = values_of(metric, table.take(np.repeat(np.arange(n), each)))
        for key, values in replicates.items():
            assert values.shape == (len(weights),)
            if key == "kendall_tau_c" and (each == 0).any():
                continue  # scaled by the distinct ratings of all
            value = anew[key]
            if value is None:
                # one rating has a median and no spread; infinite ones are never asked for
                assert math.isnan(values[row]) or expected[key] is None, (key, values[row])
            elif expected[key] is not None:
                assert values[row] == pytest.approx(value, rel=1e-9, abs=1e-9), key


@pytest.fixture
def few_replicates(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(resampling, "N_REPLICATES", 200)
    for name in ("FEWEST_REPLICATES", "MOST_REPLICATES", "MOST_ANEW"):
        monkeypatch.setattr(estimates, name, 10)


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.usefixtures("few_replicates")
def test_differences_are_strict_and_consistent(name: str):
    # A difference takes too long to look for the smallest counterexample.
    @settings(
        max_examples=25,
        deadline=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
    )
    @given(data=st.data())
    def law(data: st.DataObject) -> None:
        metric = bare(name)
        n = data.draw(st.integers(0, 12))
        rows = rows_of(metric)
        a, b = (table_of(metric, data.draw(rows)).slice(0, n) for _ in "ab")
        n = min(len(a), len(b))
        has_clusters = data.draw(st.booleans())
        clusters = [f"c{i // 3}" if has_clusters else None for i in range(n)]
        shared = {
            "id": pa.array([f"r{i}" for i in range(n)], pa.string()),
            "status": pa.array(["ok"] * n, pa.string()),
            "cluster": pa.array(clusters, pa.string()),
        }
        runs = []
        for table in (a.slice(0, n), b.slice(0, n)):
            for key, column in shared.items():
                if key in table.column_names:
                    table = table.drop_columns([key])
                table = table.append_column(key, column)
            runs.append(table)
        found = pair(runs[0], runs[1], where="here")
        every = list(metric.compute(metric.init()))
        for wanted in ([], every):
            for d in differences_of(load_metric(name), found, wanted, task="t", run="r"):
                check(d, n)

    law()


def check(d: Any, n: int) -> None:
    json.dumps(asdict(d), allow_nan=False)
    if d.difference is None:
        assert d.reason
        assert d.test is None
    assert (d.p is None) == (d.test is None)
    assert d.p is None or 0 < d.p <= 1
    assert d.p is None or d.reason is None
    ends = (d.low is None, d.high is None, d.interval is None)
    assert ends in ((True,) * 3, (False,) * 3)
    assert d.low is None or d.low <= d.high
    assert d.stderr is None or d.stderr >= 0
    assert 0 <= d.n_differing <= d.n_units <= d.n <= n
