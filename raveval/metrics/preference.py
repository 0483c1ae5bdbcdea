"""Agreement of a judge with human preferences between two responses, with and without ties.

Estimand: the probability that the judge prefers the response that the human prefers. On each row
`preferred` is the human's word: "a", "b" or "tie". The judge's verdict is `verdict` where that is
given; elsewhere the response with the higher of `rating_a` and `rating_b` (numbers, or lists of
samples with their mean; `rating_denominator` is the grid of all of them), and a tie where the two
are equal. A row with neither is unjudged: left out and counted. `verdict_swapped` and the ratings
`*_swapped` are the judge's when the responses were shown in the other order, b first; a and b still
name the same responses.

A tie can count in several ways, so each has its name:

- `accuracy_strict`: the judge says what the human says, a tie being right only for a tie.
- `accuracy_without_human_ties`: the same over the rows where the human prefers one; a judge's tie
  is wrong.
- `accuracy_without_ties`: the same over the rows where neither calls a tie.
- `accuracy_half_credit`: 1 where they say the same, 1/2 where exactly one of them calls a tie,
  0 where they prefer different responses.
- `accuracy_both_orders`: over the rows judged in both orders, as `accuracy_strict`, with the
  verdict that both orders agree on, and a tie where they differ.

`position_consistency` is the share of rows judged in both orders whose verdicts are the same;
`tie_rate` that of judged rows that the judge calls a tie. `verdict_kappa` is Cohen's kappa, the
strict agreement beyond chance; `verdict_kappa_linear` has b twice as far from a as a tie is from
either; `verdict_alpha` is Krippendorff's nominal alpha.

Unit: fraction in [0, 1], kappa and alpha a coefficient of at most 1, where 0 is chance; higher is
better, but for `tie_rate`, which has no better direction. `n` counts the rows that the name is
about. Undefined: "n=0", "not measured" where no row was judged in the other order, "no valid
example" where no row is of the kind, "constant" for kappa and alpha where only one word is used.

Intervals: Wilson's for the shares, Tango's for the mean of credits, 1/2 being one; the large-sample
one of Fleiss, Cohen and Everitt (1969) for kappa; the bootstrap's for alpha. The last two have none
where they would have no width, as in full agreement.

The notes count the ties of each, unjudged rows, and the rows judged in both orders where the
response shown first, or second, won both times: the judge's preference for a place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raveval.errors import DataError
from raveval.metrics import Contribution, Json, Metric, Ratio, Replicator
from raveval.metrics import _agreement_replicates as replicates
from raveval.metrics import _agreement_table as tables
from raveval.metrics import _intervals as intervals
from raveval.metrics._columns import column, number_or_numbers, required
from raveval.metrics._exact import Doubles
from raveval.metrics._half_credits import Credits, credit_mean
from raveval.metrics._ratings import RATING_DENOMINATOR, read_ratings
from raveval.metrics._state import (
    Counts,
    StateReader,
    add_counts,
    read_state,
    write_counts,
    write_state,
)
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
from raveval.types import Categories, CountTable, Estimate

PREFERRED = pa.field("preferred", pa.string(), nullable=False)
RATINGS = (number_or_numbers("rating_a"), number_or_numbers("rating_b"))
RATINGS_SWAPPED = (number_or_numbers("rating_a_swapped"), number_or_numbers("rating_b_swapped"))

Booleans = NDArray[np.bool_]

_SAID = {A: 0, TIE: 1, B: 2}
"""The place of each word in a table."""


class Words(NamedTuple):
    """What was said of each row, or of one kind of row: codes of the judge, swapped, the human."""

    judge: Codes
    swapped: Codes
    human: Codes


class Credit(NamedTuple):
    """How a share counts: which rows it is about, and what each is worth, in {0, 1/2, 1}."""

    members: Callable[[Words], Booleans]
    worth: Callable[[Words], Doubles]


def _is_judged(w: Words) -> Booleans:
    return np.asarray(w.judge != UNJUDGED, np.bool_)


def _is_judged_twice(w: Words) -> Booleans:
    return np.asarray(_is_judged(w) & (w.swapped != UNJUDGED), np.bool_)


def _human_prefers(w: Words) -> Booleans:
    return np.asarray(_is_judged(w) & (w.human != TIE), np.bool_)


def _both_prefer(w: Words) -> Booleans:
    return np.asarray(_human_prefers(w) & (w.judge != TIE), np.bool_)


def _same(w: Words) -> Doubles:
    return np.asarray(w.judge == w.human, np.float64)


def _half_credit(w: Words) -> Doubles:
    is_one_tie = (w.judge == TIE) != (w.human == TIE)
    return _same(w) + 0.5 * np.asarray(is_one_tie, np.float64)


def _same_in_both_orders(w: Words) -> Doubles:
    return np.asarray(np.where(w.judge == w.swapped, w.judge, TIE) == w.human, np.float64)


def _consistent(w: Words) -> Doubles:
    return np.asarray(w.judge == w.swapped, np.float64)


def _tie(w: Words) -> Doubles:
    return np.asarray(w.judge == TIE, np.float64)


SHARES: Mapping[str, Credit] = {
    "accuracy_strict": Credit(_is_judged, _same),
    "accuracy_without_human_ties": Credit(_human_prefers, _same),
    "accuracy_without_ties": Credit(_both_prefer, _same),
    "accuracy_half_credit": Credit(_is_judged, _half_credit),
    "accuracy_both_orders": Credit(_is_judged_twice, _same_in_both_orders),
    "position_consistency": Credit(_is_judged_twice, _consistent),
    "tie_rate": Credit(_is_judged, _tie),
}
"""Every estimate that is a share of rows."""

_TWICE = ("accuracy_both_orders", "position_consistency")


class Preference:
    """Accuracies by the credit of ties, consistency between orders, kappa and alpha.

    Its state is how often each (judge, swapped, human) occurs, with the codes of `WORDS`.
    """

    name = "preference"
    version = 3
    columns: tuple[pa.Field, ...] = (
        *(PREFERRED, VERDICT, VERDICT_SWAPPED, *RATINGS, *RATINGS_SWAPPED, RATING_DENOMINATOR),
    )
    needs: tuple[str, ...] = ("preferred",)
    optional: tuple[str, ...] = tuple(field.name for field in columns[1:])
    ratios: Mapping[str, Ratio] = dict.fromkeys(SHARES, Ratio())

    def init(self) -> Counts:
        """Return the state of no rows."""
        return {}

    def update(self, state: Counts, records: pa.Table) -> Counts:
        """Add rows."""
        words = read_words(records)
        flat = np.ravel_multi_index(words, (4, 4, 4))
        counts = np.bincount(flat, minlength=64)
        cells = np.flatnonzero(counts)
        keys = zip(*(part.tolist() for part in np.unravel_index(cells, (4, 4, 4))), strict=True)
        return add_counts(state, dict(zip(keys, counts[cells].tolist(), strict=True)))

    def merge(self, a: Counts, b: Counts) -> Counts:
        """Add the counts."""
        return add_counts(a, b)

    def compute(self, state: Counts) -> Mapping[str, Estimate]:
        """Return all numbers of the family."""
        cells: dict[tuple[int, int], int] = {}
        for (judge, _, human), count in state.items():
            if judge != UNJUDGED:
                cells[judge, human] = cells.get((judge, human), 0) + count
        table = tables.category_table(cells)
        reason = _reason(state, "verdict_kappa")
        coefficients = {
            "verdict_kappa": tables.kappa(table, "nominal"),
            "verdict_kappa_linear": tables.kappa(table, "linear"),
            "verdict_alpha": tables.alpha(table, "nominal"),
        }
        if not cells:
            coefficients = {key: replace(e, reason=reason) for key, e in coefficients.items()}
        return {**{name: _share(state, name) for name in SHARES}, **coefficients}

    def notes(self, state: Counts) -> Mapping[str, int]:
        """Return ties, unjudged rows, and those where a place won in both orders."""
        counts = {
            "human_ties": _count(state, lambda w: w.human == TIE),
            "judge_ties": _count(state, lambda w: w.judge == TIE),
            "unjudged": _count(state, lambda w: w.judge == UNJUDGED),
            "judged_in_both_orders": _count(state, _is_judged_twice),
            "first_shown_won_both": _count(state, lambda w: (w.judge == A) & (w.swapped == B)),
            "second_shown_won_both": _count(state, lambda w: (w.judge == B) & (w.swapped == A)),
        }
        return {name: count for name, count in counts.items() if count}

    def tables(self, state: Counts) -> Mapping[str, CountTable]:
        """Return how often the judge's words meet the human's, in the first order."""
        table = np.zeros((len(_SAID), len(_SAID)), np.int64)
        for (judge, _, human), count in state.items():
            if judge != UNJUDGED:
                table[_SAID[judge], _SAID[human]] += count
        if not table.any():
            return {}
        labels = ("a", "tie", "b")
        sides = Categories("judge", labels), Categories("human", labels)
        return {"verdict_by_preferred": CountTable(*sides, tuple(map(tuple, table.tolist())))}

    def contributions(self, records: pa.Table) -> Mapping[str, Contribution]:
        """Return each row's credit and membership for every share."""
        words = read_words(records)
        found = {}
        for name, credit in SHARES.items():
            members = credit.members(words).astype(np.float64)
            found[name] = Contribution(credit.worth(words) * members, members)
        return found

    def usable(self, records: pa.Table) -> Mapping[str, Booleans]:
        """Return which rows were judged; a tie is the judge's answer, no lack of one."""
        words = read_words(records)
        coefficients = ("verdict_kappa", "verdict_kappa_linear", "verdict_alpha")
        return {
            "accuracy_without_ties": _human_prefers(words),
            **dict.fromkeys(coefficients, _is_judged(words)),
        }

    def reweighted(self, records: pa.Table) -> Replicator:
        """Return what makes replicates of kappa and alpha."""
        words = read_words(records)
        judge = np.where(words.judge == UNJUDGED, np.nan, words.judge)
        return replicates.coefficients(
            replicates.rows_of(judge, words.human.astype(np.float64)),
            {
                "verdict_kappa": replicates.kappa("nominal"),
                "verdict_kappa_linear": replicates.kappa("linear"),
                "verdict_alpha": replicates.alpha("nominal"),
            },
        )

    def encode(self, state: Counts) -> Json:
        """Return the counts."""
        return write_state(self.name, self.version, {"counts": write_counts(state)})

    def decode(self, content: Json) -> Counts:
        """Return the state of `encode`."""
        read = read_state(content, self.name, self.version, ("counts",))
        counts = read.counts("counts", width=3)
        _check(counts, read)
        return counts


def read_words(records: pa.Table) -> Words:
    """Return what judge and human say of each row.

    Raises:
        DataError: a column has the wrong type or a word that is not allowed.
    """
    human = codes_of(required(records, PREFERRED), PREFERRED.name)
    return Words(
        _judged(records, VERDICT, RATINGS),
        _judged(records, VERDICT_SWAPPED, RATINGS_SWAPPED),
        human,
    )


def _judged(records: pa.Table, verdict: pa.Field, ratings: tuple[pa.Field, pa.Field]) -> Codes:
    """Return the judge's word in one order: the verdict, else what the ratings say."""
    said = column(records, verdict)
    codes = np.zeros(len(records), np.int64) if said is None else codes_of(said, verdict.name)
    present = [field.name for field in ratings if field.name in records.column_names]
    if not present:
        return codes
    if len(present) == 1:
        both = " and ".join(field.name for field in ratings)
        raise DataError(f"{present[0]}: the other rating is missing; give {both}, or neither")
    a, b = (read_ratings(records, field, RATING_DENOMINATOR) for field in ratings)
    # A comparison with a missing rating (NaN) is false.
    by_rating = np.select([a > b, a < b, a == b], [A, B, TIE], UNJUDGED)
    return np.where(codes == UNJUDGED, by_rating, codes)


def _split(state: Counts) -> tuple[Words, Codes]:
    """Return the cells of a state in columns, and their counts."""
    cells = sorted(state)
    judge, swapped, human = np.array(cells, np.int64).reshape(-1, 3).T
    return Words(judge, swapped, human), np.array([state[cell] for cell in cells], np.int64)


def _count(state: Counts, members: Callable[[Words], Booleans]) -> int:
    words, counts = _split(state)
    return int(counts[members(words)].sum())


def _share(state: Counts, name: str) -> Estimate:
    words, counts = _split(state)
    credit = SHARES[name]
    members = credit.members(words)
    halves = (2 * credit.worth(words)).astype(np.int64)[members]
    counts = counts[members]
    n = int(counts.sum())
    better = None if name == "tie_rate" else True
    if n == 0:
        return intervals.undefined(_reason(state, name), unit="fraction", higher_is_better=better)
    none, half, full = (int(counts[halves == worth].sum()) for worth in (0, 1, 2))
    if name == "accuracy_half_credit":
        return credit_mean(Credits(full, half, none), higher_is_better=better)
    return replace(intervals.proportion(full, n), higher_is_better=better)


def _reason(state: Counts, name: str) -> str:
    """Return why a share has no value."""
    if not state:
        return "n=0"
    is_swapped = any(swapped != UNJUDGED for _, swapped, _ in state)
    return "not measured" if name in _TWICE and not is_swapped else "no valid example"


def _check(counts: Counts, read: StateReader) -> None:
    """Refuse words that nobody can say."""
    for judge, swapped, human in counts:
        if not (max(judge, swapped, human) <= B and human != UNJUDGED):
            raise read.fail(f"counts: no row is {[judge, swapped, human]}")


METRIC: Metric[Counts] = Preference()
