"""Reference consistency: how well the reference rater agrees with itself.

Where a trusted rater scored the same response several times, its first score is correlated with the
mean of its others: what `correlation` would say of that rater as a judge, and so about the most
that a judge can reach against it. Estimates `reference_pearson`, `reference_spearman` and
`reference_kendall_tau_b`; definitions, intervals and reasons are those of `correlation`, and `n`
counts rows with at least two scores. Rows with fewer are left out and counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from raveval.metrics import Contribution, Json, Metric, Ratio, correlation
from raveval.metrics._clusters import CLUSTER
from raveval.metrics._columns import column, required
from raveval.metrics._exact import Booleans
from raveval.metrics._rating_pairs import RatingPairs
from raveval.metrics._ratings import REFERENCE_RATING
from raveval.metrics._state import read_state, write_state
from raveval.types import Estimate

_NAMES = ("pearson", "spearman", "kendall_tau_b")


@dataclass(frozen=True, slots=True)
class ConsistencyState:
    """The pairs of first score and mean of the others, and rows with fewer than two scores."""

    pairs: RatingPairs
    n_single: int = 0


class ReferenceConsistency:
    """Correlation of a rater's first score with the mean of its others."""

    name = "reference_consistency"
    version = 2
    columns: tuple[pa.Field, ...] = (REFERENCE_RATING, CLUSTER)
    needs: tuple[str, ...] = ("reference_rating",)
    optional: tuple[str, ...] = ("cluster",)
    ratios: Mapping[str, Ratio] = {}

    def init(self) -> ConsistencyState:
        """Return the state of no rows."""
        return ConsistencyState(correlation.METRIC.init())

    def update(self, state: ConsistencyState, records: pa.Table) -> ConsistencyState:
        """Add rows; a score that is null or no number is none."""
        rows = required(records, REFERENCE_RATING).to_pylist()
        scores = [_usable(row) for row in rows]
        is_repeated = pa.array([len(each) > 1 for each in scores], pa.bool_())
        repeated = [each for each in scores if len(each) > 1]
        columns: dict[str, pa.Array] = {
            "rating": pa.array([first for first, *_ in repeated], pa.float64()),
            "reference_rating": pa.array([rest for _, *rest in repeated], pa.list_(pa.float64())),
        }
        clusters = column(records, CLUSTER)
        if clusters is not None:
            columns["cluster"] = clusters.filter(is_repeated)
        pairs = correlation.METRIC.update(state.pairs, pa.table(columns))
        return ConsistencyState(pairs, state.n_single + len(scores) - len(repeated))

    def merge(self, a: ConsistencyState, b: ConsistencyState) -> ConsistencyState:
        """Add the pairs and the counts."""
        return ConsistencyState(correlation.METRIC.merge(a.pairs, b.pairs), a.n_single + b.n_single)

    def compute(self, state: ConsistencyState) -> Mapping[str, Estimate]:
        """Return the three correlations."""
        found = correlation.METRIC.compute(state.pairs)
        return {f"reference_{name}": found[name] for name in _NAMES}

    def notes(self, state: ConsistencyState) -> Mapping[str, int]:
        """Return how many rows have one score or none."""
        return {"reference_rated_once": state.n_single} if state.n_single else {}

    def contributions(self, records: pa.Table) -> Mapping[str, Contribution]:
        """Return nothing: no correlation is a ratio of sums."""
        return {}

    def usable(self, records: pa.Table) -> Mapping[str, Booleans]:
        """Return which rows have two scores or more."""
        rows = required(records, REFERENCE_RATING).to_pylist()
        is_repeated = np.array([len(_usable(row)) > 1 for row in rows], np.bool_)
        return {f"reference_{name}": is_repeated for name in _NAMES}

    def encode(self, state: ConsistencyState) -> Json:
        """Return the pairs and the count."""
        body = {"pairs": correlation.METRIC.encode(state.pairs), "n_single": state.n_single}
        return write_state(self.name, self.version, body)

    def decode(self, content: Json) -> ConsistencyState:
        """Return the state of `encode`."""
        read = read_state(content, self.name, self.version, ("pairs", "n_single"))
        pairs = correlation.METRIC.decode(read.content["pairs"])
        return ConsistencyState(pairs, read.count("n_single"))


def _usable(row: float | list[float | None] | None) -> list[float]:
    values = row if isinstance(row, list) else [row]
    return [value for value in values if value is not None and value == value]


METRIC: Metric[ConsistencyState] = ReferenceConsistency()
