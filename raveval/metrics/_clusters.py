"""Clustered standard errors, for every metric whose estimates are ratios of sums.

Examples that share a passage or a document are not independent, and an interval that takes them to
be is too narrow. Where the records name a `cluster`, the sums of each cluster are kept beside the
metric's own state, and the spread between clusters takes the place of the spread between examples:
with R = sum(x) / sum(u), G clusters, and x_c, u_c the sums of one,

    se(R) = sqrt(G / (G - 1) * sum_c (x_c - R u_c)^2) / sum(u),

the cluster-robust error with the small-sample factor (CR1; Miller 2024, arXiv 2411.00640, section
2.2, has it without). Its interval takes Student's quantile at G - 1 degrees of freedom
("cluster-t95"). A proportion has Wilson's interval at the number of independent examples that would
have this error ("cluster-wilson95"; at 0 and 1, where there is no spread, at the number of
clusters). An estimate that is no ratio of sums has no interval then, rather than a wrong one, and
none has where some examples have a cluster and others not; the notes count both.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Generic

import numpy as np
import pyarrow as pa

from raveval.metrics import Contribution, Json, Metric, Ratio, State
from raveval.metrics import _intervals as intervals
from raveval.metrics._columns import column
from raveval.metrics._exact import SCALE_BITS, Doubles, Integers, decompose, root
from raveval.metrics._state import StateReader, read_state, write_integer, write_state
from raveval.types import Estimate, row_key

VERSION = 1
"""Raised when an interval given here can change."""

CLUSTER = pa.field("cluster", pa.string())

Sums = Mapping[int, tuple[int, int]]
"""Key of a cluster → its sums of x and of u, in units of 2^-1074; never (0, 0)."""

_LOW_BITS = 32
_ROWS_AT_ONCE = 1 << 20  # 2^20 halves below 2^32 stay below the 2^53 that bincount adds exactly
_EXACT = 2.0**53  # doubles below it add exactly where they are whole
_SHIFT_BITS = 11  # a double has fewer than 2^11 exponents
_KEYS = ("state", "n_unclustered", "clusters")


@dataclass(frozen=True, slots=True)
class ClusteredState(Generic[State]):
    """A metric's own state, the sums of each cluster by estimate, and rows without a cluster."""

    inner: State
    clusters: Mapping[str, Sums] = field(default_factory=dict)
    n_unclustered: int = 0


class Clustered(Generic[State]):
    """A metric with intervals that hold where examples come in clusters."""

    def __init__(self, metric: Metric[State]) -> None:
        self.inner = metric
        self.name = metric.name
        self.needs = metric.needs
        self.optional = (*metric.optional, CLUSTER.name)
        self.columns = (*metric.columns, CLUSTER)
        self.version = metric.version
        self.ratios = metric.ratios

    def init(self) -> ClusteredState[State]:
        """Return the state of no records."""
        return ClusteredState(self.inner.init(), {name: {} for name in self.ratios})

    def update(self, state: ClusteredState[State], records: pa.Table) -> ClusteredState[State]:
        """Add records; a null cluster is none."""
        inner = self.inner.update(state.inner, records)
        found = column(records, CLUSTER)
        if found is None or found.null_count == len(found):
            return replace(state, inner=inner, n_unclustered=state.n_unclustered + len(records))
        is_clustered = found.is_valid()
        added = ClusteredState(
            inner,
            _sums(self.inner.contributions(records.filter(is_clustered)), found.drop_null()),
            found.null_count,
        )
        return ClusteredState(inner, *_added(state, added))

    def merge(self, a: ClusteredState[State], b: ClusteredState[State]) -> ClusteredState[State]:
        """Add the inner states and the sums of each cluster."""
        return ClusteredState(self.inner.merge(a.inner, b.inner), *_added(a, b))

    def compute(self, state: ClusteredState[State]) -> Mapping[str, Estimate]:
        """Return the metric's estimates; with clusters, their intervals rest on those."""
        estimates = self.inner.compute(state.inner)
        if not any(state.clusters.values()):
            return estimates
        return {
            name: self._clustered(state, name, estimate) for name, estimate in estimates.items()
        }

    def _clustered(self, state: ClusteredState[State], name: str, estimate: Estimate) -> Estimate:
        bare = replace(estimate, stderr=None, low=None, high=None, interval=None)
        if estimate.value is None or name not in self.ratios or state.n_unclustered:
            return bare
        is_proportion = estimate.interval == "wilson95" and self.ratios[name] == Ratio()
        return _with_interval(bare, state.clusters[name], self.ratios[name], is_proportion)

    def notes(self, state: ClusteredState[State]) -> Mapping[str, int]:
        """Return the metric's notes, how many clusters there are and how many rows have none."""
        notes = dict(self.inner.notes(state.inner))
        keys = {key for sums in state.clusters.values() for key in sums}
        if keys:
            notes["clusters"] = len(keys)
            if state.n_unclustered:
                notes["without_cluster"] = state.n_unclustered
        return notes

    def contributions(self, records: pa.Table) -> Mapping[str, Contribution]:
        """Return the metric's own."""
        return self.inner.contributions(records)

    def encode(self, state: ClusteredState[State]) -> Json:
        """Return the inner state and the sums by estimate, clusters in the order of their keys."""
        clusters = {
            name: [
                [key, write_integer(x), write_integer(u)] for key, (x, u) in sorted(sums.items())
            ]
            for name, sums in state.clusters.items()
        }
        body = {
            "state": self.inner.encode(state.inner),
            "n_unclustered": state.n_unclustered,
            "clusters": clusters,
        }
        return write_state(self.name, self.version, body)

    def decode(self, content: Json) -> ClusteredState[State]:
        """Return the state of `encode`."""
        read = read_state(content, self.name, self.version, _KEYS)
        section = read.section("clusters", self.ratios)
        clusters = {name: _read_sums(section, name) for name in self.ratios}
        inner = self.inner.decode(read.content["state"])
        return ClusteredState(inner, clusters, read.count("n_unclustered"))


@functools.cache
def clustered(metric: Metric[Any]) -> Metric[Any]:
    """Return a metric that knows clusters: itself where it reads them already."""
    return metric if CLUSTER.name in metric.optional else Clustered(metric)


def _added(a: ClusteredState[Any], b: ClusteredState[Any]) -> tuple[Mapping[str, Sums], int]:
    return (
        {name: _merged(a.clusters[name], b.clusters[name]) for name in a.clusters},
        a.n_unclustered + b.n_unclustered,
    )


def _merged(a: Sums, b: Sums) -> Sums:
    if not a or not b:
        return a or b
    total = dict(a)
    for key, (x, u) in b.items():
        x_before, u_before = total.get(key, (0, 0))
        total[key] = (x + x_before, u + u_before)
    return {key: sums for key, sums in total.items() if sums != (0, 0)}


def _sums(contributions: Mapping[str, Contribution], clusters: pa.Array) -> Mapping[str, Sums]:
    """Return the sums of each cluster, by estimate."""
    encoded = clusters.dictionary_encode()
    index = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    keys = [row_key(text) for text in encoded.dictionary.to_pylist()]
    found = {}
    for name, (x, u) in contributions.items():
        pairs = zip(keys, _sums_by(index, x, len(keys)), _sums_by(index, u, len(keys)), strict=True)
        found[name] = {key: (x_sum, u_sum) for key, x_sum, u_sum in pairs if x_sum or u_sum}
    return found


def _sums_by(index: Integers, values: Doubles, n: int) -> list[int]:
    """Return the exact sum of the values of each index below n, in units of 2^-1074."""
    with np.errstate(over="ignore"):  # then they are not small
        is_small = float(np.abs(values).sum()) < _EXACT
    if is_small and bool((values == np.rint(values)).all()):
        whole = np.bincount(index, values, n).astype(np.int64).tolist()
        return [total << SCALE_BITS for total in whole]
    totals = [0] * n
    for start in range(0, len(values), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        mantissa, shift = decompose(values[rows])
        places, of_row = np.unique((index[rows] << _SHIFT_BITS) + shift, return_inverse=True)
        low = np.bincount(of_row, mantissa & ((1 << _LOW_BITS) - 1)).astype(np.int64).tolist()
        high = np.bincount(of_row, mantissa >> _LOW_BITS).astype(np.int64).tolist()
        for place, low_sum, high_sum in zip(places.tolist(), low, high, strict=True):
            shifted = (low_sum + (high_sum << _LOW_BITS)) << (place & ((1 << _SHIFT_BITS) - 1))
            totals[place >> _SHIFT_BITS] += shifted
    return totals


def _with_interval(bare: Estimate, sums: Sums, ratio: Ratio, is_proportion: bool) -> Estimate:
    n_clusters, x_total, u_total = len(sums), 0, 0
    for x, u in sums.values():
        x_total, u_total = x_total + x, u_total + u
    if n_clusters < 2 or u_total == 0:
        return bare
    # All in the unit of the sums: it cancels in the ratio and in its error.
    residuals = sum((x * u_total - x_total * u) ** 2 for x, u in sums.values())
    factor = Fraction(n_clusters, n_clusters - 1)
    stderr = root(factor * Fraction(residuals, u_total**4))
    share, quantile = Fraction(x_total, u_total), intervals.student95(n_clusters - 1)
    if is_proportion:
        low, high = _wilson(share, stderr, n_clusters, quantile)
        return replace(bare, stderr=stderr, low=low, high=high, interval="cluster-wilson95")
    if stderr == 0:  # no spread was seen, which is no proof that there is none
        return replace(bare, stderr=stderr)
    return _transformed(bare, float(share), stderr, quantile, ratio)


def _wilson(share: Fraction, stderr: float, n_clusters: int, quantile: float) -> intervals.Interval:
    """Return Wilson's interval at the effective number of independent examples.

    It is what gives this error to a proportion, made smaller by the ratio of the normal to
    Student's quantile (Korn and Graubard, Survey Methodology 24 (1998) 193-201).
    """
    p = float(share)
    n_effective = p * (1 - p) / stderr**2 if stderr else float(n_clusters)
    return intervals.wilson(share, n_effective * (intervals.Z95 / quantile) ** 2)


def _transformed(
    bare: Estimate, value: float, stderr: float, quantile: float, ratio: Ratio
) -> Estimate:
    """Return the interval of the ratio carried over to the estimate."""
    half_width = quantile * stderr
    try:
        ends = sorted((ratio.value(value - half_width), ratio.value(value + half_width)))
        slope = abs(ratio.scale) * (ratio.value(value) if ratio.is_exponential else 1.0)
    except OverflowError:
        return bare
    low, high = ends
    if bare.unit == "fraction":
        low, high = max(0.0, low), high if bare.higher_is_better is None else min(1.0, high)
    return replace(bare, stderr=slope * stderr, low=low, high=high, interval="cluster-t95")


def _read_sums(read: StateReader, name: str) -> Sums:
    rows = read.content[name]
    if not isinstance(rows, list):
        raise read.fail(f"{name}: expected a list of rows, found {type(rows).__name__}")
    found: dict[int, tuple[int, int]] = {}
    for row in rows:
        if not (isinstance(row, list) and len(row) == 3 and type(row[0]) is int):
            raise read.fail(f"{name}: expected rows of key and two sums, found {row!r:.80}")
        pair = StateReader(f"{read.where}.{name}", {"x": row[1], "u": row[2]})
        sums = pair.integer("x"), pair.integer("u")
        if sums == (0, 0) or row[0] in found or not 0 <= row[0] < 1 << 64:
            raise read.fail(f"{name}: the cluster {row[0]} is empty, there twice or no key")
        found[row[0]] = sums
    return found
