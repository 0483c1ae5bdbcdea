"""Greedy accuracy: how often the text is exactly what the model would have written itself.

Estimand: the probability that each token of a text is the single most probable one in its place.
Formula: k / n over the documents whose greediness was measured. Unit: fraction in [0, 1]; higher is
better; `n` counts documents. Interval: Wilson. Undefined without documents ("n=0") or where the
engine did not say ("not measured"). On LAMBADA, where a document's scored part is its last word,
this is the published last-word accuracy (Paperno et al., ACL 2016; lm-eval's `acc`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from raveval.metrics import Contribution, Json, Metric, Ratio
from raveval.metrics import _intervals as intervals
from raveval.metrics._columns import required
from raveval.metrics._state import read_state, write_state
from raveval.types import Estimate

_IS_GREEDY = pa.field("is_greedy", pa.bool_())


@dataclass(frozen=True, slots=True)
class GreedyState:
    """Documents measured, those of them that are greedy, and those not measured."""

    n: int = 0
    n_greedy: int = 0
    n_unmeasured: int = 0


class Greedy:
    """Share of documents that greedy decoding would have written."""

    name = "greedy"
    version = 1
    columns: tuple[pa.Field, ...] = (_IS_GREEDY,)
    needs: tuple[str, ...] = ("is_greedy",)
    optional: tuple[str, ...] = ()
    ratios: Mapping[str, Ratio] = {"greedy_accuracy": Ratio()}

    def init(self) -> GreedyState:
        """Return the state of no documents."""
        return GreedyState()

    def update(self, state: GreedyState, records: pa.Table) -> GreedyState:
        """Add documents; a null is one whose greediness was not measured."""
        is_greedy = required(records, _IS_GREEDY)
        n_unmeasured = int(is_greedy.null_count)
        n_greedy = pc.sum(is_greedy).as_py() or 0
        return self.merge(state, GreedyState(len(is_greedy) - n_unmeasured, n_greedy, n_unmeasured))

    def merge(self, a: GreedyState, b: GreedyState) -> GreedyState:
        """Add the counts."""
        return GreedyState(a.n + b.n, a.n_greedy + b.n_greedy, a.n_unmeasured + b.n_unmeasured)

    def compute(self, state: GreedyState) -> Mapping[str, Estimate]:
        """Return `greedy_accuracy`."""
        if state.n == 0 and state.n_unmeasured:
            missing = intervals.undefined("not measured", unit="fraction", higher_is_better=True)
            return {"greedy_accuracy": missing}
        return {"greedy_accuracy": intervals.proportion(state.n_greedy, state.n)}

    def notes(self, state: GreedyState) -> Mapping[str, int]:
        """Return how many documents were left out."""
        return {"greedy_accuracy_unmeasured": state.n_unmeasured} if state.n_unmeasured else {}

    def contributions(self, records: pa.Table) -> Mapping[str, Contribution]:
        """Return 1 for each document that is greedy, and 1 for each that was measured."""
        is_greedy = required(records, _IS_GREEDY)
        x = pc.fill_null(is_greedy, False).to_numpy(zero_copy_only=False) * 1.0
        u = is_greedy.is_valid().to_numpy(zero_copy_only=False) * 1.0
        return {"greedy_accuracy": Contribution(x, u)}

    def encode(self, state: GreedyState) -> Json:
        """Return the three counts."""
        body = {"n": state.n, "n_greedy": state.n_greedy, "n_unmeasured": state.n_unmeasured}
        return write_state(self.name, self.version, body)

    def decode(self, content: Json) -> GreedyState:
        """Return the state of `encode`."""
        read = read_state(content, self.name, self.version, ("n", "n_greedy", "n_unmeasured"))
        state = GreedyState(read.count("n"), read.count("n_greedy"), read.count("n_unmeasured"))
        if state.n_greedy > state.n:
            raise read.fail(f"{state.n_greedy} of {state.n} documents cannot be greedy")
        return state


METRIC: Metric[GreedyState] = Greedy()
