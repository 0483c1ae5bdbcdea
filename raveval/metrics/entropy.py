"""Entropy: how undecided the model is, on average, before each token.

Estimand: the expected Shannon entropy of the predicted distribution over the full vocabulary,
H = -sum_v p(v) ln p(v), at a position of a text. Formula: the sum of H over all scored positions
divided by their number, so that a long document weighs more than a short one. Unit: nats; divide by
ln 2 for bits. Range [0, ln |V|]; it has no better direction: a confident model has a low entropy
whether or not it is right. `n` counts documents, positions are `n_tokens`.

It is not the cross-entropy -ln p(actual token), which is what Catwalk's code reports, in bits,
under the name of entropy; that is `nats_per_token` and `bits_per_byte` of the metric `perplexity`.
The two agree only for a model that is calibrated on the text.

Interval: delta method of a ratio over independent documents, with Student's quantile ("delta-t95");
none below two documents, nor where all have the same mean. Undefined: "not measured" where the
engine sees only a part of the vocabulary, "no tokens", "n=0".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raveval.errors import DataError
from raveval.metrics import Contribution, Json, Metric, Ratio
from raveval.metrics import _intervals as intervals
from raveval.metrics._columns import required
from raveval.metrics._exact import Doubles, Integers, Moments, moments
from raveval.metrics._state import read_state, write_moments, write_state
from raveval.types import Estimate

_ENTROPY = pa.field("entropy_nats", pa.float64())
_ROUNDING = 1e-3  # nats by which a sum over tokens that are certain may be off
_TOKENS = pa.field("n_tokens", pa.int64(), nullable=False)


@dataclass(frozen=True, slots=True)
class EntropyState:
    """Moments of (entropy summed over a document, its tokens); documents left out, by reason."""

    moments: Moments = field(default_factory=Moments)
    n_unmeasured: int = 0
    n_invalid: int = 0


class Entropy:
    """Mean Shannon entropy of the predicted distribution, per position."""

    name = "entropy"
    version = 3
    columns: tuple[pa.Field, ...] = (_ENTROPY, _TOKENS)
    needs: tuple[str, ...] = ("entropy_nats", "n_tokens")
    optional: tuple[str, ...] = ()
    ratios: Mapping[str, Ratio] = {"entropy_nats": Ratio()}

    def init(self) -> EntropyState:
        """Return the state of no documents."""
        return EntropyState()

    def update(self, state: EntropyState, records: pa.Table) -> EntropyState:
        """Add documents; a null is not measured, an infinite or undefined sum is invalid."""
        sums, tokens = _read(records)
        is_valid = np.isfinite(sums)
        n_unmeasured = int(required(records, _ENTROPY).null_count)
        n_invalid = len(sums) - int(is_valid.sum()) - n_unmeasured
        added = EntropyState(moments(sums[is_valid], tokens[is_valid]), n_unmeasured, n_invalid)
        return self.merge(state, added)

    def merge(self, a: EntropyState, b: EntropyState) -> EntropyState:
        """Add the sums."""
        return EntropyState(
            a.moments + b.moments, a.n_unmeasured + b.n_unmeasured, a.n_invalid + b.n_invalid
        )

    def compute(self, state: EntropyState) -> Mapping[str, Estimate]:
        """Return `entropy_nats`."""
        reason = _why_undefined(state)
        if reason:
            return {"entropy_nats": intervals.undefined(reason, unit="nats", n=state.moments.n)}
        found = intervals.ratio(state.moments, unit="nats", higher_is_better=None)
        if found.value is not None and found.low is not None:  # no entropy is below 0
            found = replace(found, low=min(found.value, max(0.0, found.low)))
        return {"entropy_nats": found}

    def notes(self, state: EntropyState) -> Mapping[str, int]:
        """Return how many documents were left out, by reason."""
        counts = {
            "entropy_nats_unmeasured": state.n_unmeasured,
            "entropy_nats_invalid": state.n_invalid,
        }
        return {name: count for name, count in counts.items() if count}

    def contributions(self, records: pa.Table) -> Mapping[str, Contribution]:
        """Return each document's entropy and tokens."""
        sums, tokens = _read(records)
        is_valid = np.isfinite(sums)
        return {
            "entropy_nats": Contribution(np.where(is_valid, sums, 0.0), tokens * is_valid * 1.0)
        }

    def encode(self, state: EntropyState) -> Json:
        """Return the moments and the counts."""
        body = {
            "moments": write_moments(state.moments),
            "n_unmeasured": state.n_unmeasured,
            "n_invalid": state.n_invalid,
        }
        return write_state(self.name, self.version, body)

    def decode(self, content: Json) -> EntropyState:
        """Return the state of `encode`."""
        keys = ("moments", "n_unmeasured", "n_invalid")
        read = read_state(content, self.name, self.version, keys)
        return EntropyState(
            read.moments("moments"), read.count("n_unmeasured"), read.count("n_invalid")
        )


def _read(records: pa.Table) -> tuple[Doubles, Integers]:
    """Return the entropy summed over each document, NaN where not measured, and its tokens."""
    found, tokens = required(records, _ENTROPY), required(records, _TOKENS).to_numpy()
    if (tokens < 0).any():
        raise DataError(f"n_tokens is {tokens.min()}: a count is not negative")
    sums = pc.fill_null(found, np.nan).to_numpy(zero_copy_only=False)
    if (sums < -_ROUNDING).any():
        raise DataError(f"entropy_nats is {np.nanmin(sums)}: an entropy is not negative")
    return sums, tokens


def _why_undefined(state: EntropyState) -> str | None:
    if state.moments.n == 0 and state.n_invalid:
        return "no valid document"
    if state.moments.n == 0:
        return "not measured" if state.n_unmeasured else "n=0"
    return None if state.moments.u else "no tokens"


METRIC: Metric[EntropyState] = Entropy()
