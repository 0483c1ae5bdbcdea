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
clusters; never more examples than there are). So has a mean of credits 1, 1/2 and 0; it varies
less, so the bound is the number of examples of 0 and 1 that its independent ones would be worth. An
estimate that is no ratio of sums has no interval then, rather than a wrong one, and none has where
some examples have a cluster and others not; the notes count both.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Generic

import numpy as np
import pyarrow as pa

from raveval.metrics import Contribution, Json, Metric, Ratio, State, Tabular
from raveval.metrics import _intervals as intervals
from raveval.metrics._cluster_sums import EMPTY, ClusterSums, read_sums, sum_by
from raveval.metrics._columns import column
from raveval.metrics._exact import root
from raveval.metrics._state import read_state, write_state
from raveval.types import CountTable, Estimate, row_key

VERSION = 2
"""Raised when an interval given here can change."""

CLUSTER = pa.field("cluster", pa.string())

_KEYS = ("state", "n_clustered", "n_unclustered", "clusters")
_LOWEST = {"nats": 0.0, "bits": 0.0, "perplexity": 1.0}
"""Where estimates of a unit end, and so their intervals."""

_DUST = 1e-12
"""A spread below this share of the value is the rounding of contributions such as 1/3."""


@dataclass(frozen=True, slots=True)
class ClusteredState(Generic[State]):
    """A metric's own state, the sums of each cluster by estimate, and rows with and without one."""

    inner: State
    clusters: Mapping[str, ClusterSums] = field(default_factory=dict)
    n_clustered: int = 0
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
        return ClusteredState(self.inner.init(), dict.fromkeys(self.ratios, EMPTY))

    def update(self, state: ClusteredState[State], records: pa.Table) -> ClusteredState[State]:
        """Add records; a null cluster is none."""
        inner = self.inner.update(state.inner, records)
        found = column(records, CLUSTER)
        if found is None or found.null_count == len(found):
            return replace(state, inner=inner, n_unclustered=state.n_unclustered + len(records))
        contributions = self.inner.contributions(records.filter(found.is_valid()))
        n_unclustered = found.null_count
        n_clustered = len(found) - n_unclustered
        added = ClusteredState(
            inner, _sums(contributions, found.drop_null()), n_clustered, n_unclustered
        )
        return _added(inner, state, added)

    def merge(self, a: ClusteredState[State], b: ClusteredState[State]) -> ClusteredState[State]:
        """Add the inner states and the sums of each cluster."""
        return _added(self.inner.merge(a.inner, b.inner), a, b)

    def compute(self, state: ClusteredState[State]) -> Mapping[str, Estimate]:
        """Return the metric's estimates; with clusters, their intervals rest on those."""
        estimates = self.inner.compute(state.inner)
        if not state.n_clustered:
            return estimates
        return {
            name: self._clustered(state, name, estimate) for name, estimate in estimates.items()
        }

    def _clustered(self, state: ClusteredState[State], name: str, estimate: Estimate) -> Estimate:
        if estimate.value is None:
            return estimate
        if name not in self.ratios:
            return intervals.without_interval(estimate, _why_no_ratio(estimate))
        if state.n_unclustered:
            return intervals.without_interval(estimate, "not all in clusters")
        bare = replace(estimate, stderr=None, low=None, high=None, interval=None, no_interval=None)
        ratio = self.ratios[name]
        most = _most_independent(estimate) if ratio == Ratio() else None
        return _with_interval(bare, state.clusters[name], ratio, most)

    def notes(self, state: ClusteredState[State]) -> Mapping[str, int]:
        """Return the metric's notes, how many clusters there are and how many rows have none."""
        notes = dict(self.inner.notes(state.inner))
        if state.n_clustered:
            keys = [sums.keys for sums in state.clusters.values()]
            n_clusters = len(np.unique(np.concatenate(keys))) if keys else 0
            notes |= {"clusters": n_clusters} if n_clusters else {}
            notes |= {"without_cluster": state.n_unclustered} if state.n_unclustered else {}
        return notes

    def tables(self, state: ClusteredState[State]) -> Mapping[str, CountTable]:
        """Return the metric's own, if it has any."""
        return self.inner.tables(state.inner) if isinstance(self.inner, Tabular) else {}

    def contributions(self, records: pa.Table) -> Mapping[str, Contribution]:
        """Return the metric's own."""
        return self.inner.contributions(records)

    def encode(self, state: ClusteredState[State]) -> Json:
        """Return the inner state and the sums by estimate, clusters in the order of their keys."""
        body = {
            "state": self.inner.encode(state.inner),
            "n_clustered": state.n_clustered,
            "n_unclustered": state.n_unclustered,
            "clusters": {name: sums.write() for name, sums in state.clusters.items()},
        }
        return write_state(self.name, self.version, body)

    def decode(self, content: Json) -> ClusteredState[State]:
        """Return the state of `encode`."""
        read = read_state(content, self.name, self.version, _KEYS)
        section = read.section("clusters", self.ratios)
        return ClusteredState(
            self.inner.decode(read.content["state"]),
            {name: read_sums(section, name) for name in self.ratios},
            read.count("n_clustered"),
            read.count("n_unclustered"),
        )


@functools.cache
def clustered(metric: Metric[Any]) -> Metric[Any]:
    """Return a metric that knows clusters: itself where it reads them already."""
    return metric if CLUSTER.name in metric.optional else Clustered(metric)


def _added(inner: State, a: ClusteredState[Any], b: ClusteredState[Any]) -> ClusteredState[State]:
    """Return the sums of both beside an inner state; estimates that share sums go on sharing."""
    known: dict[tuple[int, int], ClusterSums] = {}
    clusters = {}
    for name, sums in a.clusters.items():
        other = b.clusters[name]
        pair = (id(sums), id(other))
        if pair not in known:
            known[pair] = sums + other
        clusters[name] = known[pair]
    return ClusteredState(
        inner, clusters, a.n_clustered + b.n_clustered, a.n_unclustered + b.n_unclustered
    )


def _sums(
    contributions: Mapping[str, Contribution], clusters: pa.Array
) -> Mapping[str, ClusterSums]:
    """Return the sums of each cluster by estimate; equal contributions are summed once."""
    encoded = clusters.dictionary_encode()
    of_row = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    keys = np.array([row_key(text) for text in encoded.dictionary.to_pylist()], np.uint64)
    known: dict[tuple[int, int], ClusterSums] = {}
    found = {}
    for name, contribution in contributions.items():
        pair = (id(contribution.x), id(contribution.u))
        if pair not in known:
            known[pair] = sum_by(keys, of_row, contribution)
        found[name] = known[pair]
    return found


def _why_no_ratio(estimate: Estimate) -> str:
    """Return why an estimate that is no ratio of sums has no interval over clusters."""
    never = estimate.no_interval == intervals.NO_METHOD
    return intervals.NO_METHOD if never else f"{intervals.NO_METHOD} for clusters"


def _most_independent(estimate: Estimate) -> float | None:
    """Return how many independent examples of 0 and 1 an estimate is worth without clusters.

    None for an estimate that is no proportion and no mean of credits.
    """
    p, stderr = estimate.value, estimate.stderr
    if estimate.interval == "tango95" and p is not None and stderr:
        return p * (1 - p) / stderr**2
    return float(estimate.n) if estimate.interval in ("wilson95", "tango95") else None


def _with_interval(bare: Estimate, sums: ClusterSums, ratio: Ratio, most: float | None) -> Estimate:
    """Return the estimate with its interval; `most` is None for one that is no proportion."""
    x, u, x_bits, u_bits = sums.scaled()
    pairs = [(a, b) for a, b in zip(x, u, strict=True) if a or b]
    n_clusters, x_total, u_total = len(pairs), sum(x), sum(u)
    if n_clusters < 2 or u_total == 0:
        return replace(bare, no_interval="one cluster")
    residuals = sum((a * u_total - x_total * b) ** 2 for a, b in pairs)
    factor = Fraction(n_clusters, n_clusters - 1)
    unit = Fraction(1 << u_bits, 1 << x_bits)  # of x over that of u
    share = Fraction(x_total, u_total) * unit
    stderr = root(factor * Fraction(residuals, u_total**4) * unit**2)
    if stderr <= _DUST * abs(float(share)):
        stderr = 0.0
    quantile = intervals.student95(n_clusters - 1)
    if most is not None:
        low, high = _wilson(share, stderr, n_clusters, quantile, most)
        return replace(bare, stderr=stderr, low=low, high=high, interval="cluster-wilson95")
    if stderr == 0:  # no spread was seen, which is no proof that there is none
        return replace(bare, stderr=stderr, no_interval="no spread")
    return _transformed(bare, float(share), stderr, quantile, ratio)


def _wilson(
    share: Fraction, stderr: float, n_clusters: int, quantile: float, most: float
) -> intervals.Interval:
    """Return Wilson's interval at the effective number of independent examples.

    It is what gives this error to a proportion, at most what the examples are worth without
    clusters, made smaller by the ratio of the normal to Student's quantile (Korn and Graubard,
    Survey Methodology 24 (1998) 193-201).
    """
    p = float(share)
    n_effective = min(p * (1 - p) / stderr**2, most) if stderr else float(n_clusters)
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
        return replace(bare, no_interval="overflow")
    low, high = ends
    if bare.unit in _LOWEST and bare.value is not None:
        low = min(bare.value, max(_LOWEST[bare.unit], low))
    if bare.unit == "fraction":
        low, high = max(0.0, low), high if bare.higher_is_better is None else min(1.0, high)
    return replace(bare, stderr=slope * stderr, low=low, high=high, interval="cluster-t95")
