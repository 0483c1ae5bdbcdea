"""Families of plain means: any values, any sharding, and what is wrong about values."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from raveval import registry
from raveval.errors import DataError
from raveval.metrics import Mean, Means
from raveval.metrics._clusters import clustered

NUMBER = pa.field("number", pa.float64())


def means_of(*, unit: str = "words", higher_is_better: bool | None = None, values: Any = None):
    return Means(
        "mylab.means",
        version=1,
        columns=(NUMBER,),
        means={"mean": Mean(unit, higher_is_better)},
        values=values or (lambda records: {"mean": records["number"]}),
    )


def estimate(numbers: list[Any], **settings: Any):
    metric = means_of(**settings)
    table = pa.table({"number": pa.array(numbers, pa.float64())})
    return metric.compute(metric.update(metric.init(), table))["mean"]


def test_a_mean_of_numbers_has_students_interval():
    numbers = [3.0, 4.5, 1.0, 7.25]
    found = estimate(numbers)
    error = stats.sem(numbers)
    low, high = stats.t.interval(0.95, 3, np.mean(numbers), error)
    assert (found.value, found.n, found.unit, found.interval) == (3.9375, 4, "words", "t95")
    assert (found.stderr, found.low, found.high) == pytest.approx((error, low, high))


def test_a_share_has_wilsons_interval_and_keeps_its_direction():
    found = estimate([1.0, 0.0, 0.0, 1.0, 1.0], unit="fraction", higher_is_better=False)
    expected = stats.binomtest(3, 5).proportion_ci(method="wilson")
    assert (found.value, found.interval, found.higher_is_better) == (0.6, "wilson95", False)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_a_mean_of_fractions_stays_one():
    found = estimate([0.0, 0.5, 1.0], unit="fraction")
    assert (found.value, found.interval, found.low, found.high) == (0.5, "t95", 0.0, 1.0)
    equal = estimate([0.5, 0.5], unit="fraction")
    assert (equal.value, equal.stderr, equal.interval) == (0.5, 0.0, "wilson95")


def test_no_spread_is_no_interval():
    for numbers in ([2.0, 2.0], [2.0]):
        found = estimate(numbers)
        assert (found.value, found.low, found.interval) == (2.0, None, None)


def test_none_leaves_an_example_out_and_is_counted():
    metric = means_of()
    table = pa.table({"number": [1.0, None, 3.0]})
    state = metric.update(metric.init(), table)
    assert (metric.compute(state)["mean"].value, metric.compute(state)["mean"].n) == (2.0, 2)
    assert metric.notes(state) == {"mean_unmeasured": 1}
    added = metric.contributions(table)["mean"]
    assert (added.x.tolist(), added.u.tolist()) == ([1.0, 0.0, 3.0], [1.0, 0.0, 1.0])
    assert estimate([None]).reason == "not measured"
    assert estimate([]).reason == "n=0"
    assert estimate([1.7e308, 1.7e308]).value == 1.7e308  # the sum is no double, the mean is one


def test_clusters_take_the_intervals_over():
    metric = clustered(means_of())
    rows = pa.table({"number": [1.0, 2.0, 9.0, 8.0], "cluster": ["a", "a", "b", "b"]})
    found = metric.compute(metric.update(metric.init(), rows))["mean"]
    assert (found.value, found.interval) == (5.0, "cluster-t95")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"other": [0.5]}, r"metric 'mylab.means': its values are of \['other'\], its means are"),
        ({"mean": []}, "mean: 0 values for 1 records"),
        ({"mean": ["a"]}, "mean: a value is true, false, a number or None"),
        ({"mean": [[1]]}, "mean: a value is true, false, a number or None"),
        ({"mean": [float("nan")]}, r"mean: nan is not a number in \[0, 1\]; None leaves"),
        ({"mean": [2]}, r"mean: 2.0 is not a number in \[0, 1\]"),
    ],
)
def test_values_that_are_none_are_refused(values: Any, message: str):
    with pytest.raises(DataError, match=message):
        estimate([0.5], unit="fraction", values=lambda _: values)
    if values == {"mean": [float("nan")]}:
        with pytest.raises(DataError, match="nan is not a finite number"):
            estimate([0.5], values=lambda _: values)


@pytest.mark.parametrize(
    "changes",
    [
        {"x": [3, 1074], "xx": [9, 2148], "xu": [3, 1074]},  # a single value of 3 is no share
        {"u": 2},
        {"n": 2},
    ],
)
def test_states_that_no_values_have_are_refused(changes: dict[str, Any]):
    metric = means_of(unit="fraction")
    content = metric.encode(metric.update(metric.init(), pa.table({"number": [1.0]})))
    assert metric.decode(content) == metric.update(metric.init(), pa.table({"number": [1.0]}))
    content["mean"]["moments"] |= changes
    with pytest.raises(DataError, match="these are no sums of values"):
        metric.decode(content)


def test_the_helpers_are_no_metric_of_their_own():
    assert not {"Mean", "Means", "means"} & set(registry.names("metrics"))
