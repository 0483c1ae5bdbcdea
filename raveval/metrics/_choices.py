"""Ranks the choices of many examples at once, by each of Catwalk's scorings, and adds their mass.

Choices lie flat, one example after another. A tie at the maximum is a fact that is counted, never
broken in favour of the first choice; an example that cannot be ranked by one scoring (a choice of
length zero, no number) is invalid there and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raveval.errors import DataError, nearest
from raveval.metrics import _kernels as kernels
from raveval.metrics._columns import column, list_of, required
from raveval.metrics._exact import Booleans, Doubles, Integers
from raveval.metrics._kernels import DIVIDED, ITSELF, SUBTRACTED

SCORINGS = ("raw", "per_token", "per_char", "per_byte", "unconditional")

GOLD = pa.field("gold", pa.int32())
LOGPROB = pa.field("logprob_nats", list_of(pa.float64(), nullable=True), nullable=False)
SCORING = pa.field("scoring", pa.string())
UNCONDITIONAL = pa.field("unconditional_nats", list_of(pa.float64(), nullable=True))
LENGTHS: Mapping[str, pa.Field] = {
    "per_token": pa.field("n_tokens", list_of(pa.int32())),
    "per_char": pa.field("n_chars", list_of(pa.int32())),
    "per_byte": pa.field("n_bytes", list_of(pa.int32())),
}


class Invalid(IntEnum):
    """Why an example cannot be ranked by a scoring."""

    NOT_MEASURED = 0  # the scoring's column is absent or null
    NO_GOLD = 1
    NOT_A_NUMBER = 2  # a log-likelihood is null, NaN or +infinity
    ZERO_LENGTH = 3  # a continuation without a token, character or byte


VALID = -1
"""In the place of a reason: the example is ranked."""

_ROUNDING = 1e-3  # nats by which a sum over tokens of probability 1 may be off
MOST_NATS = 700.0
"""The exponential of more is near the largest double, and no log-likelihood."""


@dataclass(frozen=True, slots=True)
class Choices:
    """The choices of n examples; `starts` are the places of the first ones, `gold` is -1 for none.

    `logprob_nats` is flat and NaN where there is no log-likelihood.
    """

    starts: Integers
    n_choices: Integers
    gold: Integers
    logprob_nats: Doubles

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.n_choices)

    def any_in(self, per_choice: Booleans) -> Booleans:
        """Return for each example whether it holds for any of its choices."""
        return np.logical_or.reduceat(per_choice, self.starts)


class Best(NamedTuple):
    """The best choices of each example; arrays of shape `(n,)`.

    Attributes:
        tied: choices that share the maximum; 0 where a choice has no value: there is none then.
        gold_is_best: whether the right choice is among those.
        predicted: index of the best choice, the first one of a tie.
    """

    tied: Integers
    gold_is_best: Booleans
    predicted: Integers


class Compared(NamedTuple):
    """What choices are ranked by: log-likelihoods, and an operation with another flat array."""

    other: Doubles | NDArray[np.int32]
    operation: int


@dataclass(frozen=True, slots=True)
class Ranking:
    """Each example under one scoring.

    Attributes:
        invalid: VALID, or why the example cannot be ranked; `best` means nothing there.
        best: its best choices.
    """

    invalid: Integers
    best: Best

    @property
    def is_valid(self) -> Booleans:
        """Which examples are ranked."""
        is_valid: Booleans = self.invalid == VALID
        return is_valid


def read_choices(records: pa.Table) -> Choices:
    """Return the choices of all records.

    Raises:
        DataError: an example has no choice, a gold index beyond its choices, or a log-likelihood
            above 0.
    """
    lists = required(records, LOGPROB)
    n_choices = pc.list_value_length(lists).to_numpy(zero_copy_only=False).astype(np.int64)
    if (n_choices == 0).any():
        raise DataError("logprob_nats is an empty list: an example needs at least one choice")
    gold = required(records, GOLD)
    has_gold = pc.is_valid(gold).to_numpy(zero_copy_only=False)
    index = pc.fill_null(gold, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    is_beyond = (index < 0) | (index >= n_choices)
    if is_beyond.any():
        first = int(np.flatnonzero(is_beyond)[0])
        raise DataError(
            f"gold is {index[first]}, but the example has {n_choices[first]} choices; allowed are "
            f"0…{n_choices[first] - 1}"
        )
    logprob_nats = _numbers(lists.flatten())
    is_positive = logprob_nats > _ROUNDING
    if is_positive.any():
        raise DataError(
            f"logprob_nats has {logprob_nats[is_positive][0]}: the logarithm of a probability is "
            "at most 0 (a negative log-likelihood has the other sign)"
        )
    starts = np.cumsum(n_choices) - n_choices
    return Choices(starts, n_choices, np.where(has_gold, index, -1), logprob_nats)


def rank(choices: Choices, records: pa.Table) -> Iterator[Ranking]:
    """Yield the ranking of the examples by each of SCORINGS.

    Raises:
        DataError: a column has not one value for each choice, or a negative length.
    """
    raw = find_best(choices, Compared(choices.logprob_nats, ITSELF))
    for scoring in SCORINGS:
        if scoring == "raw":
            best, is_measured = raw, np.ones(len(choices), np.bool_)
        else:
            compared, is_measured = _compared(choices, records, scoring)
            best = find_best(choices, compared)
        invalid = np.full(len(choices), VALID)
        # Where several reasons hold, the last one assigned is the one nearest to the cause.
        invalid[best.tied == 0] = (
            Invalid.ZERO_LENGTH if scoring in LENGTHS else Invalid.NOT_A_NUMBER
        )
        invalid[raw.tied == 0] = Invalid.NOT_A_NUMBER
        invalid[choices.gold < 0] = Invalid.NO_GOLD
        invalid[~is_measured] = Invalid.NOT_MEASURED
        yield Ranking(invalid, best)


def primary_scorings(records: pa.Table) -> Integers:
    """Return the place in SCORINGS of each example's primary scoring: its task's, or raw.

    Raises:
        DataError: there is no such scoring.
    """
    found = column(records, SCORING)
    if found is None:
        return np.zeros(len(records), np.int64)
    names = pc.fill_null(found, "raw")
    places = pc.index_in(names, value_set=pa.array(SCORINGS))
    if places.null_count:
        name = names.filter(pc.is_null(places))[0].as_py()
        raise DataError(f"scoring is {name!r}; {nearest(name, SCORINGS)}")
    codes: Integers = places.to_numpy()
    return codes


def find_best(choices: Choices, compared: Compared) -> Best:
    """Return each example's best choices."""
    if not kernels.is_worthwhile(len(choices)):
        return plain_best(choices, compared)
    rows = (choices.starts, choices.n_choices, choices.gold)
    return Best(*kernels.find_best(*rows, choices.logprob_nats, *compared))


def plain_best(choices: Choices, compared: Compared) -> Best:
    """Return the best choices by numpy alone."""
    values = _values(choices.logprob_nats, compared)
    is_missing = np.isnan(values)
    best = np.maximum.reduceat(np.where(is_missing, -np.inf, values), choices.starts)
    at_best = values == np.repeat(best, choices.n_choices)
    places = np.arange(len(values)) - np.repeat(choices.starts, choices.n_choices)
    tied = np.add.reduceat(at_best.astype(np.int64), choices.starts)
    is_ranked = ~choices.any_in(is_missing)
    gold_is_best = at_best[choices.starts + np.maximum(choices.gold, 0)] & (choices.gold >= 0)
    first = np.minimum.reduceat(np.where(at_best, places, len(values)), choices.starts)
    return Best(
        tied=np.where(is_ranked, tied, 0),
        gold_is_best=is_ranked & gold_is_best,
        predicted=np.where(is_ranked, first, 0),
    )


def _values(given: Doubles, compared: Compared) -> Doubles:
    other, operation = compared
    if operation == DIVIDED:
        quotients: Doubles = given / np.where(other > 0, other, np.nan)
        return quotients
    if operation == SUBTRACTED:
        with np.errstate(invalid="ignore"):  # -inf against -inf says nothing: NaN
            return given - other
    return given


def probability_masses(choices: Choices) -> Doubles:
    """Return the sum of each example's probabilities; NaN where one is none.

    It depends on the example alone: the terms are added from the first to the last, and the
    exponentials are the C library's, one by one, as numpy's may differ in the last bit with an
    element's place in the array, and so with the sharding.
    """
    if kernels.is_worthwhile(len(choices)):
        return kernels.sum_exponentials(
            choices.starts, choices.n_choices, choices.logprob_nats, MOST_NATS
        )
    return plain_masses(choices)


def plain_masses(choices: Choices) -> Doubles:
    """Return the sums by numpy and Python's exponential."""
    terms = np.where(choices.logprob_nats <= MOST_NATS, choices.logprob_nats, np.nan)
    exponentials = np.array([math.exp(term) for term in terms.tolist()], np.float64)
    masses, place = np.zeros(len(choices)), 0
    rest = np.arange(len(choices))
    while len(rest):
        masses[rest] += exponentials[choices.starts[rest] + place]
        place += 1
        rest = rest[choices.n_choices[rest] > place]
    return masses


def _compared(choices: Choices, records: pa.Table, scoring: str) -> tuple[Compared, Booleans]:
    """Return what a scoring makes of the log-likelihoods, and who was measured at all."""
    if scoring == "unconditional":
        unconditional, is_measured = _aligned(choices, records, UNCONDITIONAL)
        # A choice that is impossible without the question would win by an infinite gain.
        is_impossible = unconditional == -np.inf
        if is_impossible.any():
            unconditional = _frozen(np.where(is_impossible, np.nan, unconditional))
        return Compared(unconditional, SUBTRACTED), is_measured
    field = LENGTHS[scoring]
    lengths, is_measured = _aligned(choices, records, field)
    if len(lengths) and lengths.min() < 0:
        raise DataError(f"{field.name} has {lengths.min()}: a length is not negative")
    return Compared(lengths, DIVIDED), is_measured


def _aligned(
    choices: Choices, records: pa.Table, field: pa.Field
) -> tuple[Doubles | NDArray[np.int32], Booleans]:
    """Return a column's values, one for each choice, and which examples it was measured for.

    The values of the others mean nothing.
    """
    size, kind = len(choices.logprob_nats), field.type.value_type.to_pandas_dtype()
    lists = column(records, field)
    if lists is None:
        return _frozen(np.zeros(size, kind)), np.zeros(len(choices), np.bool_)
    lengths = pc.fill_null(pc.list_value_length(lists), -1).to_numpy(zero_copy_only=False)
    is_measured = lengths >= 0
    differs = is_measured & (lengths != choices.n_choices)
    if differs.any():
        first = int(np.flatnonzero(differs)[0])
        raise DataError(
            f"{field.name} has {lengths[first]} values, but logprob_nats has "
            f"{choices.n_choices[first]}; each choice needs one"
        )
    flat = lists.flatten()
    given = _numbers(flat) if kind is np.float64 else _frozen(flat.to_numpy())
    if is_measured.all():
        return given, is_measured
    values = np.zeros(size, kind)
    values[np.repeat(is_measured, choices.n_choices)] = given
    return _frozen(values), is_measured


def _numbers(flat: pa.Array) -> Doubles:
    """Return doubles; what is no log-likelihood (null, +infinity) becomes NaN."""
    if flat.null_count:
        flat = pc.fill_null(flat, np.nan)
    values: Doubles = flat.to_numpy(zero_copy_only=False)
    is_infinite = values == np.inf
    return _frozen(np.where(is_infinite, np.nan, values) if is_infinite.any() else values)


def _frozen(values: NDArray[Any]) -> NDArray[Any]:
    """Return an array that cannot be written to, as those of Arrow: kernels tell the two apart."""
    values.flags.writeable = False
    return values
