"""Perplexity: how surprised the model is by real text, per token, word, byte and character.

Estimand: exp of the expected negative log-likelihood per unit of text. Formula: with L the
log-likelihood of all documents in nats and U their tokens, words, bytes or characters,
`*_perplexity` = exp(-L / U), `nats_per_token` = -L / U_token and `bits_per_byte` =
-L / (U_byte ln 2); a long document weighs more than a short one, and nothing is averaged over
documents. Lower is better; a perplexity is at least 1, the others at least 0. `n` counts documents.

Two numbers go by the name of perplexity per word. `word_perplexity` divides by words, counted as
lm-eval and Catwalk's code do (runs of white space plus one, in the original text). The recipe of
the published Catwalk card divides by the model's tokens: that is `token_perplexity`, which is only
comparable between models that share a tokenizer.

Interval: delta method over n independent documents ("delta-t95"). The standard error of ln
perplexity is sqrt(n / (n - 1) sum_i (L_i - R U_i)^2) / U with R = L / U, from exact sums, its
quantile Student's; the perplexity's interval is the exponential of the one of its logarithm. None
below two documents, nor where all have the same rate, nor where an end is beyond the largest
double.

Undefined, with its reason: "n=0"; "not measured" where no document has the count; "no words" (or
tokens, …) where the counts sum to 0; "zero probability" where a document has log-likelihood
-infinity, since no finite number is right; "overflow" where the exponential is beyond the largest
double (`nats_per_token` still stands). `token_perplexity_finite` leaves documents of zero
probability out instead, and is `token_perplexity` where there are none. A document whose
log-likelihood is NaN or +infinity is left out and counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raveval.errors import DataError
from raveval.metrics import Contribution, Json, Metric, Ratio
from raveval.metrics import _intervals as intervals
from raveval.metrics._columns import column, required
from raveval.metrics._exact import Doubles, Moments, moments
from raveval.metrics._state import StateReader, read_state, write_moments, write_state
from raveval.types import Estimate

_LOGPROB = pa.field("logprob_nats", pa.float64(), nullable=True)
_UNITS: Mapping[str, pa.Field] = {
    "token": pa.field("n_tokens", pa.int64()),
    "word": pa.field("n_words", pa.int64()),
    "byte": pa.field("n_bytes", pa.int64()),
    "char": pa.field("n_chars", pa.int64()),
}
_ROUNDING = 1e-3  # nats by which a sum over tokens of probability 1 may be off
_COUNTS = ("n_unmeasured", "n_zero_probability", "n_invalid")


@dataclass(frozen=True, slots=True)
class UnitState:
    """Documents in one unit of text.

    Attributes:
        moments: of (log-likelihood, units) over the documents with a finite log-likelihood.
        n_unmeasured: documents whose units were not counted.
        n_zero_probability: documents of log-likelihood -infinity.
        n_invalid: documents whose log-likelihood is no number.
    """

    moments: Moments = field(default_factory=Moments)
    n_unmeasured: int = 0
    n_zero_probability: int = 0
    n_invalid: int = 0

    def __add__(self, other: UnitState) -> UnitState:
        """Return the state of both sets of documents together."""
        return UnitState(
            self.moments + other.moments,
            self.n_unmeasured + other.n_unmeasured,
            self.n_zero_probability + other.n_zero_probability,
            self.n_invalid + other.n_invalid,
        )


PerplexityState = Mapping[str, UnitState]
"""One state for each unit of text."""


class Perplexity:
    """Exponential of the mean negative log-likelihood, in four units of text."""

    name = "perplexity"
    version = 3
    columns: tuple[pa.Field, ...] = (_LOGPROB, *_UNITS.values())
    needs: tuple[str, ...] = ("logprob_nats", "n_tokens")
    optional: tuple[str, ...] = ("n_words", "n_bytes", "n_chars")
    ratios: Mapping[str, Ratio] = {
        **{f"{unit}_perplexity": Ratio(scale=-1.0, is_exponential=True) for unit in _UNITS},
        "token_perplexity_finite": Ratio(scale=-1.0, is_exponential=True),
        "nats_per_token": Ratio(scale=-1.0),
        "bits_per_byte": Ratio(scale=-1.0 / math.log(2)),
    }

    def init(self) -> PerplexityState:
        """Return the state of no documents."""
        return {unit: UnitState() for unit in _UNITS}

    def update(self, state: PerplexityState, records: pa.Table) -> PerplexityState:
        """Add documents; a null count is one that was not measured."""
        sums = _log_likelihoods(records)
        required(records, _UNITS["token"])
        return {
            unit: state[unit] + _unit_state(sums, column(records, _UNITS[unit])) for unit in _UNITS
        }

    def merge(self, a: PerplexityState, b: PerplexityState) -> PerplexityState:
        """Add the sums."""
        return {unit: a[unit] + b[unit] for unit in _UNITS}

    def compute(self, state: PerplexityState) -> Mapping[str, Estimate]:
        """Return the four perplexities, the finite one, `nats_per_token` and `bits_per_byte`."""
        rates = {unit: _nats_per_unit(unit, state[unit]) for unit in _UNITS}
        finite = _nats_per_unit("token", replace(state["token"], n_zero_probability=0))
        return {
            **{f"{unit}_perplexity": _exponential(rates[unit]) for unit in _UNITS},
            "token_perplexity_finite": _exponential(finite),
            "nats_per_token": rates["token"],
            "bits_per_byte": _divided(rates["byte"], math.log(2), "bits"),
        }

    def notes(self, state: PerplexityState) -> Mapping[str, int]:
        """Return how many documents have no number, by unit and reason."""
        counts = {
            f"{unit}_perplexity_{reason.removeprefix('n_')}": getattr(state[unit], reason)
            for unit in _UNITS
            for reason in _COUNTS
        }
        return {name: count for name, count in counts.items() if count}

    def contributions(self, records: pa.Table) -> Mapping[str, Contribution]:
        """Return each document's log-likelihood and units."""
        sums = _log_likelihoods(records)
        by_unit = {unit: _contribution(sums, column(records, _UNITS[unit])) for unit in _UNITS}
        return {
            **{f"{unit}_perplexity": by_unit[unit] for unit in _UNITS},
            "token_perplexity_finite": by_unit["token"],
            "nats_per_token": by_unit["token"],
            "bits_per_byte": by_unit["byte"],
        }

    def encode(self, state: PerplexityState) -> Json:
        """Return the moments and counts of each unit."""
        body = {unit: _write_unit(state[unit]) for unit in _UNITS}
        return write_state(self.name, self.version, body)

    def decode(self, content: Json) -> PerplexityState:
        """Return the state of `encode`."""
        read = read_state(content, self.name, self.version, _UNITS)
        return {unit: _read_unit(read.section(unit, ("moments", *_COUNTS))) for unit in _UNITS}


def _log_likelihoods(records: pa.Table) -> Doubles:
    """Return the documents' log-likelihoods, NaN where there is none."""
    logprob = pc.fill_null(required(records, _LOGPROB), np.nan)
    sums: Doubles = logprob.to_numpy(zero_copy_only=False)
    if (np.isfinite(sums) & (sums > _ROUNDING)).any():
        raise DataError(
            f"logprob_nats is {sums[np.isfinite(sums)].max()}: the logarithm of a probability is "
            "at most 0 (a negative log-likelihood has the other sign)"
        )
    return sums


def _contribution(sums: Doubles, units: pa.Array | None) -> Contribution:
    if units is None:
        return Contribution(np.zeros(len(sums)), np.zeros(len(sums)))
    counts = pc.fill_null(units, 0).to_numpy(zero_copy_only=False)
    is_valid = units.is_valid().to_numpy(zero_copy_only=False) & np.isfinite(sums)
    return Contribution(np.where(is_valid, sums, 0.0), np.where(is_valid, counts, 0) * 1.0)


def _unit_state(sums: Doubles, units: pa.Array | None) -> UnitState:
    if units is None:
        return UnitState(n_unmeasured=len(sums))
    counts = pc.fill_null(units, 0).to_numpy(zero_copy_only=False)
    if (counts < 0).any():
        raise DataError(f"a document has {counts.min()} tokens, words, bytes or characters")
    is_measured = pc.is_valid(units).to_numpy(zero_copy_only=False)
    is_finite = is_measured & np.isfinite(sums)
    is_impossible = is_measured & np.isneginf(sums)
    return UnitState(
        moments(sums[is_finite], counts[is_finite]),
        n_unmeasured=int((~is_measured).sum()),
        n_zero_probability=int(is_impossible.sum()),
        n_invalid=int((is_measured & ~is_finite & ~is_impossible).sum()),
    )


def _nats_per_unit(unit: str, state: UnitState) -> Estimate:
    """Return -L / U, or why it is undefined."""
    n = state.moments.n
    reason = None
    if state.n_zero_probability:
        reason = "zero probability"
    elif n == 0 and state.n_invalid:
        reason = "no valid document"
    elif n == 0:
        reason = "not measured" if state.n_unmeasured else "n=0"
    elif state.moments.u == 0:
        reason = f"no {unit}s"
    if reason:
        return intervals.undefined(reason, unit="nats", n=n, higher_is_better=False)
    log_likelihood = intervals.ratio(state.moments, unit="nats", higher_is_better=False)
    return _divided(log_likelihood, -1.0, "nats")


def _divided(estimate: Estimate, divisor: float, unit: str) -> Estimate:
    """Return an estimate divided, in another unit; a negative divisor swaps the ends.

    The interval ends at 0, as surprise does.
    """
    if estimate.value is None:
        return replace(estimate, unit=unit)
    point = replace(
        estimate,
        value=estimate.value / divisor + 0.0,  # turns -0.0 into 0.0
        unit=unit,
        stderr=None if estimate.stderr is None else estimate.stderr / abs(divisor),
    )
    if estimate.low is None or estimate.high is None:
        return point
    low, high = sorted((estimate.low / divisor, estimate.high / divisor))
    assert point.value is not None
    return replace(point, low=min(point.value, max(0.0, low)), high=high)


def _exponential(nats: Estimate) -> Estimate:
    """Return the perplexity of a rate in nats; its interval is that of the logarithm."""
    if nats.value is None:
        return replace(nats, unit="perplexity")
    try:
        value = math.exp(nats.value)
    except OverflowError:
        return intervals.undefined("overflow", unit="perplexity", n=nats.n, higher_is_better=False)
    point = Estimate(value, "perplexity", nats.n, higher_is_better=False)
    if nats.stderr is None:
        return replace(point, no_interval=nats.no_interval)
    point = replace(point, stderr=_if_finite(value * nats.stderr))
    if nats.low is None or nats.high is None:
        return replace(point, no_interval=nats.no_interval)
    try:
        low, high = math.exp(nats.low), math.exp(nats.high)
    except OverflowError:
        return replace(point, no_interval="overflow")  # an interval without an end is none
    return replace(point, low=low, high=high, interval=nats.interval)


def _if_finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _write_unit(state: UnitState) -> Json:
    counts = {name: getattr(state, name) for name in _COUNTS}
    return {"moments": write_moments(state.moments), **counts}


def _read_unit(read: StateReader) -> UnitState:
    return UnitState(read.moments("moments"), *(read.count(name) for name in _COUNTS))


METRIC: Metric[PerplexityState] = Perplexity()
