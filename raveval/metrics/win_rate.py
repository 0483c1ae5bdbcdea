"""How often a judge prefers the run's response over a baseline's, asked in both orders.

Estimand: the probability that the judge prefers response a, where a tie counts one half. On each
pair `verdict` is the judge's when a was shown first, `verdict_swapped` when b was: "a", "b" or, of
judges that may say so, "tie", and null where no verdict could be read.

Over the pairs with a verdict in both orders:

- `win_rate`: the mean of 1 where a is preferred in both orders, 0 where b is, and 1/2 elsewhere. A
  win that the other order does not confirm is a tie: the rule of MT-Bench (Zheng et al. 2023, arXiv
  2306.05685, section 3.4), whose scripts call this number `win_rate_adjusted`. 1/2 is parity.
- `win_share`, `tie_share`, `loss_share`: the shares of these three; they add up to 1. MT-Bench's
  scripts call the first `win_rate`.
- `order_consistency`: the share of pairs whose two verdicts are the same (MT-Bench's consistency,
  section 3.3). The family `preference` has it as `position_consistency`; a task may report both.

Over others:

- `win_rate_single_order`: the mean of 1 for a, 0 for b and 1/2 for a tie, over the verdicts of the
  given order. It is what tools that ask once report, and it holds the judge's liking for a place.
- `first_position_rate`: of all verdicts, of either order, that prefer a response, the share that
  prefer the one shown first. 1/2 is a judge without a liking for a place, if pairs were asked in
  both orders; of one order alone it also holds which response is better.

Unit: fraction in [0, 1]; higher is better for wins, consistency and both win rates, lower for
losses; the other two have no better direction. `n` counts pairs. Undefined: "n=0"; "not measured"
where no pair has a verdict in the other order; "no valid example" where no pair is of the kind.

Intervals take the pairs as independent, the two verdicts of one not: Tango's for both win rates,
Wilson's for the shares; for `first_position_rate` Tango's over the pairs with two preferences,
Wilson's over those with one, and both combined by MOVER ("mover95") where there are both kinds.

The notes count the pairs judged in both orders, in one and in neither, verdicts that are ties, and
the pairs where the response shown first, or second, won both times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raveval.metrics import Contribution, Json, Metric, Ratio
from raveval.metrics import _intervals as intervals
from raveval.metrics._columns import column, required
from raveval.metrics._exact import Doubles
from raveval.metrics._half_credits import Credits, credit_mean, share_of_answers
from raveval.metrics._state import Counts, add_counts, read_state, write_counts, write_state
from raveval.metrics._verdicts import (
    TIE,
    UNJUDGED,
    VERDICT,
    VERDICT_SWAPPED,
    A,
    B,
    Codes,
    codes_of,
)
from raveval.types import Estimate

Booleans = NDArray[np.bool_]

_N_CODES = 4
FIRST_POSITION = "first_position_rate"


class Verdicts(NamedTuple):
    """What was said of each pair, or of one kind of pair, in either order: codes."""

    given: Codes
    swapped: Codes


class Mean(NamedTuple):
    """How a mean of credits counts: which pairs it is about, and what each is worth."""

    members: Callable[[Verdicts], Booleans]
    credit: Callable[[Verdicts], Doubles]
    higher_is_better: bool | None = True


def _is_judged(v: Verdicts) -> Booleans:
    return np.asarray(v.given != UNJUDGED, np.bool_)


def _is_judged_twice(v: Verdicts) -> Booleans:
    return np.asarray(_is_judged(v) & (v.swapped != UNJUDGED), np.bool_)


def _is_judged_at_all(v: Verdicts) -> Booleans:
    return np.asarray(_is_judged(v) | (v.swapped != UNJUDGED), np.bool_)


def _wins(v: Verdicts) -> Doubles:
    return np.asarray((v.given == A) & (v.swapped == A), np.float64)


def _losses(v: Verdicts) -> Doubles:
    return np.asarray((v.given == B) & (v.swapped == B), np.float64)


def _ties(v: Verdicts) -> Doubles:
    return 1.0 - _wins(v) - _losses(v)


def _wins_and_half_ties(v: Verdicts) -> Doubles:
    return _wins(v) + 0.5 * _ties(v)


def _single_order(v: Verdicts) -> Doubles:
    return np.asarray(v.given == A, np.float64) + 0.5 * np.asarray(v.given == TIE, np.float64)


def _consistent(v: Verdicts) -> Doubles:
    return np.asarray(v.given == v.swapped, np.float64)


WIN_RATES: Mapping[str, Mean] = {
    "win_rate": Mean(_is_judged_twice, _wins_and_half_ties),
    "win_rate_single_order": Mean(_is_judged, _single_order),
}
SHARES: Mapping[str, Mean] = {
    "win_share": Mean(_is_judged_twice, _wins),
    "tie_share": Mean(_is_judged_twice, _ties, higher_is_better=None),
    "loss_share": Mean(_is_judged_twice, _losses, higher_is_better=False),
    "order_consistency": Mean(_is_judged_twice, _consistent),
}
MEANS: Mapping[str, Mean] = {**WIN_RATES, **SHARES}
"""Every estimate but `first_position_rate`, which is a share of verdicts, not of pairs."""


class WinRate:
    """Win rates in both orders and in one, and the judge's consistency between orders.

    Its state is how often each (verdict, verdict_swapped) occurs, as codes.
    """

    name = "win_rate"
    version = 1
    columns: tuple[pa.Field, ...] = (VERDICT, VERDICT_SWAPPED)
    needs: tuple[str, ...] = ("verdict",)
    optional: tuple[str, ...] = ("verdict_swapped",)
    ratios: Mapping[str, Ratio] = dict.fromkeys((*MEANS, FIRST_POSITION), Ratio())

    def init(self) -> Counts:
        """Return the state of no pairs."""
        return {}

    def update(self, state: Counts, records: pa.Table) -> Counts:
        """Add pairs."""
        verdicts = read_verdicts(records)
        counts = np.bincount(verdicts.given * _N_CODES + verdicts.swapped).tolist()
        added: Counts = {divmod(cell, _N_CODES): n for cell, n in enumerate(counts) if n}
        return add_counts(state, added)

    def merge(self, a: Counts, b: Counts) -> Counts:
        """Add the counts."""
        return add_counts(a, b)

    def compute(self, state: Counts) -> Mapping[str, Estimate]:
        """Return all numbers of the family."""
        return {
            **{name: _mean(state, name) for name in MEANS},
            FIRST_POSITION: _first_position(state),
        }

    def notes(self, state: Counts) -> Mapping[str, int]:
        """Return how pairs were judged, verdicts that are ties, and places that won both times."""
        counts = {
            "judged_in_both_orders": _count(state, _is_judged_twice),
            "judged_in_one_order": _count(
                state, lambda v: _is_judged_at_all(v) & ~_is_judged_twice(v)
            ),
            "judged_in_neither_order": _count(state, lambda v: ~_is_judged_at_all(v)),
            "tie_verdicts": sum(count * cell.count(TIE) for cell, count in state.items()),
            "first_shown_won_both": _count(state, lambda v: (v.given == A) & (v.swapped == B)),
            "second_shown_won_both": _count(state, lambda v: (v.given == B) & (v.swapped == A)),
        }
        return {name: count for name, count in counts.items() if count}

    def contributions(self, records: pa.Table) -> Mapping[str, Contribution]:
        """Return each pair's credit and membership; its preferences, and those for the first."""
        verdicts = read_verdicts(records)
        found = {}
        for name, mean in MEANS.items():
            members = mean.members(verdicts).astype(np.float64)
            found[name] = Contribution(mean.credit(verdicts) * members, members)
        places = _places(verdicts)
        first = Contribution(places.n_first.astype(np.float64), places.n.astype(np.float64))
        return {**found, FIRST_POSITION: first}

    def usable(self, records: pa.Table) -> Mapping[str, Booleans]:
        """Return which pairs have a verdict; a tie is the judge's answer, no lack of one."""
        return {FIRST_POSITION: _is_judged_at_all(read_verdicts(records))}

    def encode(self, state: Counts) -> Json:
        """Return the counts."""
        return write_state(self.name, self.version, {"counts": write_counts(state)})

    def decode(self, content: Json) -> Counts:
        """Return the state of `encode`."""
        read = read_state(content, self.name, self.version, ("counts",))
        counts = read.counts("counts", width=2)
        for cell in counts:
            if max(cell) >= _N_CODES:
                raise read.fail(f"counts: no pair is {list(cell)}")
        return counts


def read_verdicts(records: pa.Table) -> Verdicts:
    """Return the verdicts on each pair.

    Raises:
        DataError: a column has the wrong type or a word that is not allowed.
    """
    given = codes_of(required(records, VERDICT), VERDICT.name)
    said = column(records, VERDICT_SWAPPED)
    if said is None:
        return Verdicts(given, np.full(len(given), UNJUDGED, np.int64))
    return Verdicts(given, codes_of(said, VERDICT_SWAPPED.name))


class Places(NamedTuple):
    """How many verdicts on each pair prefer a response, and how many the one shown first."""

    n: Codes
    n_first: Codes


def _places(v: Verdicts) -> Places:
    preferences = [np.isin(codes, (A, B)).astype(np.int64) for codes in v]
    is_first = ((v.given == A).astype(np.int64), (v.swapped == B).astype(np.int64))
    return Places(preferences[0] + preferences[1], is_first[0] + is_first[1])


def _split(state: Counts) -> tuple[Verdicts, Codes]:
    """Return the cells of a state in columns, and their counts."""
    cells = sorted(state)
    given, swapped = np.array(cells, np.int64).reshape(-1, 2).T
    return Verdicts(given, swapped), np.array([state[cell] for cell in cells], np.int64)


def _count(state: Counts, members: Callable[[Verdicts], Booleans]) -> int:
    verdicts, counts = _split(state)
    return int(counts[members(verdicts)].sum())


def _mean(state: Counts, name: str) -> Estimate:
    verdicts, counts = _split(state)
    mean = MEANS[name]
    is_member, credit = mean.members(verdicts), mean.credit(verdicts)
    full, half, none = (int(counts[is_member & (credit == x)].sum()) for x in (1.0, 0.5, 0.0))
    credits = Credits(full, half, none)
    if sum(credits) == 0:
        return _undefined(state, mean)
    if name in WIN_RATES:
        return credit_mean(credits, higher_is_better=mean.higher_is_better)
    share = intervals.proportion(credits.full, sum(credits))
    return replace(share, higher_is_better=mean.higher_is_better)


def _undefined(state: Counts, mean: Mean) -> Estimate:
    """Return a mean without a value, and why."""
    reason = "no valid example" if state else "n=0"
    needs_both = mean.members is _is_judged_twice
    if state and needs_both and all(swapped == UNJUDGED for _, swapped in state):
        reason = "not measured"
    better = mean.higher_is_better
    return intervals.undefined(reason, unit="fraction", higher_is_better=better)


def _first_position(state: Counts) -> Estimate:
    """Return the share of preferences that are for the response shown first."""
    verdicts, counts = _split(state)
    places = _places(verdicts)

    def pairs(n: int, n_first: int) -> int:
        return int(counts[(places.n == n) & (places.n_first == n_first)].sum())

    twice = Credits(full=pairs(2, 2), half=pairs(2, 1), none=pairs(2, 0))
    once = Credits(full=pairs(1, 1), half=0, none=pairs(1, 0))
    if sum(twice) + sum(once) == 0:
        return intervals.undefined("no valid example" if state else "n=0", unit="fraction")
    return share_of_answers(twice, once)


METRIC: Metric[Counts] = WinRate()
