"""Kendall's tau-a of more pairs of ratings than memory holds, with a bound that is certain.

For ratings that are continuous and so many that `correlation`, which is exact, does not hold them:
it keeps 24 bytes for each distinct pair. This one keeps at most 2^20 pairs (24 MB), by cutting the
last bits of the ratings (`_pair_sketch` says how). Up to as many distinct pairs it is exact.

Estimand: kendall_tau_a = (P - Q) / N over the examples at hand, with P and Q the pairs of examples
that the two ratings order alike and oppositely, and N = n (n - 1) / 2; pairs tied in either rating
count in N alone, so on grids it is nearer to 0 than tau-b. Unit: correlation, in [-1, 1]; higher is
better; `n` counts examples with both ratings.

Value: (P' - Q') / N, with P' and Q' of the pairs whose order the sketch knows, since they share
neither cell. Interval "guaranteed": that ± U / N, with U the pairs that share a cell and may be
ordered either way or tied; U is 0 where no bit was cut. It bounds the error of the sketch with
certainty, and says nothing about other examples; there is no standard error. The value itself is
usually much nearer than the bound, as the unknown pairs go either way: tau-b of the cells would
take them for ties, which is a hundred times worse. For the same reason no other coefficient is
offered.

Missing ratings, lists and denominators are read as by `correlation`; infinite ratings are in order
like others. The column `cluster` changes nothing, since the bound is not about sampling.
Undefined: "n<2"; "constant" where either side is known to have one value only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from raveval.metrics import Contribution, Json, Metric, Ratio, correlation
from raveval.metrics import _intervals as intervals
from raveval.metrics import _ranks as ranks
from raveval.metrics._clusters import CLUSTER
from raveval.metrics._count_tables import rating_tables
from raveval.metrics._exact import Booleans
from raveval.metrics._joint_counts import RUN_KEYS, read_run, write_run
from raveval.metrics._pair_sketch import ALL_BITS, PairSketch, is_cut
from raveval.metrics._ranks import Cells
from raveval.metrics._rating_pairs import missing_notes, read_rating_pairs
from raveval.metrics._ratings import read_both
from raveval.metrics._state import read_state, write_state
from raveval.types import CountTable, Estimate

NAME = "kendall_tau_a"


@dataclass(frozen=True, slots=True)
class RatingSketch:
    """A sketch of the pairs of ratings, and the rows that lack one."""

    pairs: PairSketch = field(default_factory=PairSketch)
    n_rating_missing: int = 0
    n_reference_missing: int = 0

    def __add__(self, other: RatingSketch) -> RatingSketch:
        """Return the sketch of both; neither is changed."""
        return RatingSketch(
            self.pairs + other.pairs,
            self.n_rating_missing + other.n_rating_missing,
            self.n_reference_missing + other.n_reference_missing,
        )


class CorrelationSketch:
    """tau-a of ratings and reference ratings, between certain bounds."""

    name = "correlation_sketch"
    version = 1
    columns: tuple[pa.Field, ...] = correlation.METRIC.columns
    needs: tuple[str, ...] = correlation.METRIC.needs
    optional: tuple[str, ...] = correlation.METRIC.optional
    ratios: Mapping[str, Ratio] = {}

    def init(self) -> RatingSketch:
        """Return the state of no examples."""
        return RatingSketch()

    def update(self, state: RatingSketch, records: pa.Table) -> RatingSketch:
        """Add examples; one that lacks a rating is left out and counted."""
        if CLUSTER.name in records.column_names:
            records = records.drop_columns([CLUSTER.name])
        found = read_rating_pairs(records)
        sketch = PairSketch(joint=found.joint)
        return state + RatingSketch(sketch, found.n_rating_missing, found.n_reference_missing)

    def merge(self, a: RatingSketch, b: RatingSketch) -> RatingSketch:
        """Add the counts, with as many bits as fit."""
        return a + b

    def compute(self, state: RatingSketch) -> Mapping[str, Estimate]:
        """Return tau-a."""
        sketch = state.pairs.settled()
        cells = ranks.tabulate(sketch.joint.consolidated())
        return {NAME: _tau_a(cells, is_exact=sketch.bits == ALL_BITS)}

    def notes(self, state: RatingSketch) -> Mapping[str, int]:
        """Return examples left out."""
        return missing_notes(state.n_rating_missing, state.n_reference_missing)

    def tables(self, state: RatingSketch) -> Mapping[str, CountTable]:
        """Return how often each pair of ratings occurs, as far as the sketch tells them apart."""
        run = state.pairs.settled().joint.consolidated()
        return rating_tables(run.pairs.real, run.pairs.imag, run.counts)

    def contributions(self, records: pa.Table) -> Mapping[str, Contribution]:
        """Return nothing: a correlation is no ratio of sums over examples."""
        return {}

    def usable(self, records: pa.Table) -> Mapping[str, Booleans]:
        """Return which examples have both ratings."""
        x, y = read_both(records)
        return {NAME: ~(np.isnan(x) | np.isnan(y))}

    def encode(self, state: RatingSketch) -> Json:
        """Return the cells in order, with their counts, and the examples left out."""
        sketch = state.pairs.settled()
        body = {
            "bits": sketch.bits,
            **write_run(sketch.joint.consolidated()),
            "rating_missing": state.n_rating_missing,
            "reference_rating_missing": state.n_reference_missing,
        }
        return write_state(self.name, self.version, body)

    def decode(self, content: Json) -> RatingSketch:
        """Return the state of `encode`."""
        keys = ("bits", *RUN_KEYS, "rating_missing", "reference_rating_missing")
        read = read_state(content, self.name, self.version, keys)
        bits, joint = read.count("bits"), read_run(read)
        run = joint.consolidated()
        if not 1 <= bits <= ALL_BITS or run.clusters is not None or not is_cut(run, bits):
            raise read.fail(f"the rows are no ratings of {bits} bits without clusters")
        sketch = PairSketch(bits, joint)
        if len(run) > sketch.most_cells or (bits < ALL_BITS and not len(run)):
            raise read.fail(f"{len(run)} cells are not what {bits} bits are kept for")
        return RatingSketch(
            sketch, read.count("rating_missing"), read.count("reference_rating_missing")
        )


def _tau_a(cells: Cells, *, is_exact: bool) -> Estimate:
    n = cells.n
    if n < 2 or (is_exact and cells.is_constant):
        reason = "n<2" if n < 2 else "constant"
        return intervals.undefined(reason, unit="correlation", n=n, higher_is_better=True)
    # All of them in ordered pairs, of which there are twice as many.
    balance = ranks.exact_dot(cells.counts, ranks.concordance(cells))
    n_pairs = n * (n - 1)
    n_unknown = 0 if is_exact else n_pairs - _n_apart(cells)
    return Estimate(
        balance / n_pairs,
        "correlation",
        n,
        low=max(-1.0, (balance - n_unknown) / n_pairs),
        high=min(1.0, (balance + n_unknown) / n_pairs),
        interval="guaranteed",
        higher_is_better=True,
    )


def _n_apart(cells: Cells) -> int:
    """Return the ordered pairs of examples that share neither cell."""
    same_cell = ranks.exact_dot(cells.counts, cells.counts)
    return cells.x.n_untied + cells.y.n_untied - (cells.n**2 - same_cell)


METRIC: Metric[RatingSketch] = CorrelationSketch()
