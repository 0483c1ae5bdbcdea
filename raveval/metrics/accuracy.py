"""Accuracy of multiple choice, classification and entailment, by each of Catwalk's scorings.

Estimand: the probability that the right choice is the single best one. A scoring says what best
means, with l_j the log-likelihood of choice j after the question, its boundary space included:
`raw` l_j; `per_token`, `per_char`, `per_byte` l_j divided by the choice's tokens, characters,
bytes; `unconditional` l_j minus its log-likelihood without the question. `accuracy` uses the one
that the task names as primary.

A tie at the maximum is not correct: the model has not chosen. (Catwalk, lm-eval and others take the
first of the tied choices, which rewards a model that cannot tell them apart wherever the right one
comes first.) `accuracy_tie_aware` is the primary scoring with credit 1/t where the right choice is
among t tied ones. Ties are counted in the notes.

`random_baseline` is r = mean(1/K_i), K_i being the choices of example i. Relative improvement over
it is ambiguous once K varies, so each reading has its own name: `relative_improvement` is
(accuracy - r) / r of the pooled examples, `relative_improvement_per_example` is mean(K_i c_i) - 1
with c_i = 1 where correct, and `relative_improvement_per_n_choices` is the plain mean of
K * accuracy_K - 1 over the groups of equal K. With one K for all they are the same number.

`most_frequent_index_share` is the share of the index that the primary scoring predicts most, among
the examples with a single best choice. 1 is a model that always gives the same answer, whatever the
question; the least is 1/K. Compare it with the right answers' own: where they are spread evenly, a
share far above 1/K is a bias for a place. It has no better direction and no interval.

`probability_mass` is the mean over examples of sum_j exp(l_j): how much of the model's belief the
offered choices hold at all. It has no better direction.

Unit: fraction in [0, 1], relative improvements as a ratio; higher is better. `n` counts the
examples that the scoring can rank. One with a choice of length zero, or with a log-likelihood that
is no number, is invalid for the scorings that need it, left out there and counted in the notes.
Undefined: "n=0", "not measured" where the scoring's column is absent, "no valid example".

Intervals: Wilson, taken as a proportion (conservative for the tie-aware one). Given the numbers of
choices, which are known and not sampled, relative improvements are sums of proportions with fixed
weights: the pooled one maps Wilson's limits through (x - r) / r, the other two combine the Wilson
limits of each K (MOVER), which is the same for a single K. Probability mass: delta method
("delta-t95"), none below two examples, nor where all have the same.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from raveval.metrics import Contribution, Json, Metric, Ratio
from raveval.metrics._accuracy_estimates import (
    NAMES,
    PRIMARY,
    AccuracyState,
    cells,
    estimates,
)
from raveval.metrics._choices import (
    GOLD,
    LENGTHS,
    LOGPROB,
    SCORING,
    UNCONDITIONAL,
    Best,
    Choices,
    Invalid,
    Ranking,
    primary_scorings,
    probability_masses,
    rank,
    read_choices,
)
from raveval.metrics._exact import Booleans, Integers, value_moments
from raveval.metrics._state import (
    Counts,
    StateReader,
    add_counts,
    read_state,
    write_counts,
    write_moments,
    write_state,
)
from raveval.types import Estimate

_SAME = Ratio()
_OVER_BASELINE = Ratio(shift=-1.0)
_NO_RATIOS = ("random_baseline", "relative_improvement_per_n_choices", "most_frequent_index_share")
_TABLES = ("ranked", "invalid", "predicted")
_MOST_CELLS = 1 << 16  # a table that fits the cache, beyond it sorting is faster than counting


class Accuracy:
    """Accuracies by scoring, relative improvements and probability mass."""

    name = "accuracy"
    version = 3
    columns: tuple[pa.Field, ...] = (GOLD, LOGPROB, SCORING, UNCONDITIONAL, *LENGTHS.values())
    needs: tuple[str, ...] = ("gold", "logprob_nats")
    optional: tuple[str, ...] = ("scoring", "unconditional_nats", "n_tokens", "n_chars", "n_bytes")
    ratios: Mapping[str, Ratio] = {
        **dict.fromkeys((*NAMES, "accuracy_tie_aware"), _SAME),
        "relative_improvement": _OVER_BASELINE,
        "relative_improvement_per_example": _OVER_BASELINE,
        "probability_mass": _SAME,
    }

    def init(self) -> AccuracyState:
        """Return the state of no examples."""
        return AccuracyState()

    def update(self, state: AccuracyState, records: pa.Table) -> AccuracyState:
        """Add examples; a null gold is one without a right choice, and invalid."""
        choices = read_choices(records)
        if not len(choices):
            return state
        rankings = _rankings(choices, records)
        ranked, invalid = [state.ranked], [state.invalid]
        for code, (ranking, best) in enumerate((r, r.best) for r in rankings):
            gold_is_best = best.gold_is_best.astype(np.int64)
            columns = (choices.n_choices, best.tied, gold_is_best)
            ranked.append(_count_rows((code,), columns, ranking.is_valid))
            invalid.append(_count_rows((code,), (ranking.invalid,), ~ranking.is_valid))
        predicted = _count_rows((), (rankings[PRIMARY].best.predicted,), _is_single(rankings))
        masses = probability_masses(choices)
        masses = masses[~np.isnan(masses)]
        return AccuracyState(
            add_counts(*ranked),
            add_counts(*invalid),
            add_counts(state.predicted, predicted),
            state.mass + value_moments(masses),
        )

    def merge(self, a: AccuracyState, b: AccuracyState) -> AccuracyState:
        """Add the tables and sums."""
        return AccuracyState(
            add_counts(a.ranked, b.ranked),
            add_counts(a.invalid, b.invalid),
            add_counts(a.predicted, b.predicted),
            a.mass + b.mass,
        )

    def compute(self, state: AccuracyState) -> Mapping[str, Estimate]:
        """Return all numbers of the family."""
        return estimates(state)

    def notes(self, state: AccuracyState) -> Mapping[str, int]:
        """Return ties and invalid examples of each scoring that was measured."""
        counts: dict[str, int] = {}
        for code, name in enumerate(NAMES):
            table = cells(state, code)
            ties = sum(count for (_, tied, _), count in table.items() if tied > 1)
            if ties:
                counts[f"{name}_ties"] = ties
            for reason in Invalid:
                count = state.invalid.get((code, reason), 0)
                if count and (table or reason != Invalid.NOT_MEASURED):
                    counts[f"{name}_{reason.name.lower()}"] = count
        return counts

    def contributions(self, records: pa.Table) -> Mapping[str, Contribution]:
        """Return each example's credit and whether the scoring ranks it, and what follows."""
        choices = read_choices(records)
        if not len(choices):
            return {name: Contribution(np.zeros(0), np.zeros(0)) for name in self.ratios}
        rankings = _rankings(choices, records)
        strict = [_credits(ranking, shares_ties=False) for ranking in rankings]
        k = choices.n_choices.astype(np.float64)
        x, u = strict[PRIMARY]
        masses = probability_masses(choices)
        has_mass = ~np.isnan(masses)
        return {
            **dict(zip(NAMES, strict, strict=True)),
            "accuracy_tie_aware": _credits(rankings[PRIMARY], shares_ties=True),
            "relative_improvement": Contribution(x, u / k),
            "relative_improvement_per_example": Contribution(x * k, u),
            "probability_mass": Contribution(
                np.where(has_mass, masses, 0.0), has_mass.astype(np.float64)
            ),
        }

    def usable(self, records: pa.Table) -> Mapping[str, Booleans]:
        """Return which examples the primary scoring ranks, in a tie or not."""
        choices = read_choices(records)
        is_ranked = np.zeros(0, np.bool_)
        if len(choices):
            is_ranked = _rankings(choices, records)[PRIMARY].is_valid
        return dict.fromkeys(_NO_RATIOS, is_ranked)

    def encode(self, state: AccuracyState) -> Json:
        """Return the tables and sums."""
        tables = {name: write_counts(getattr(state, name)) for name in _TABLES}
        body = {**tables, "mass": write_moments(state.mass)}
        return write_state(self.name, self.version, body)

    def decode(self, content: Json) -> AccuracyState:
        """Return the state of `encode`."""
        read = read_state(content, self.name, self.version, (*_TABLES, "mass"))
        state = AccuracyState(
            read.counts("ranked", width=4),
            read.counts("invalid", width=2),
            read.counts("predicted", width=1),
            read.moments("mass"),
        )
        _check(state, read)
        return state


def predicted(records: pa.Table) -> pa.Array:
    """Return the index of each example's choice under its primary scoring; null where none is best.

    Raises:
        DataError: a column has the wrong type or a value that cannot be.
    """
    choices = read_choices(records)
    if not len(choices):
        return pa.array([], pa.int32())
    rankings = _rankings(choices, records)
    return pa.array(rankings[PRIMARY].best.predicted, pa.int32(), mask=~_is_single(rankings))


def _rankings(choices: Choices, records: pa.Table) -> list[Ranking]:
    """Return the rankings in the order of NAMES: the primary one, then each scoring's."""
    by_scoring = list(rank(choices, records))
    primary = primary_scorings(records)
    if (primary == primary[0]).all():
        return [by_scoring[primary[0]], *by_scoring]
    parts = zip(*(ranking.best for ranking in by_scoring), strict=True)
    best = Best(*(np.choose(primary, part) for part in parts))
    invalid = np.choose(primary, [ranking.invalid for ranking in by_scoring])
    return [Ranking(invalid, best), *by_scoring]


def _is_single(rankings: list[Ranking]) -> Booleans:
    """Return which examples have one best choice by their primary scoring."""
    primary = rankings[PRIMARY]
    is_single: Booleans = primary.is_valid & (primary.best.tied == 1)
    return is_single


def _credits(ranking: Ranking, *, shares_ties: bool) -> Contribution:
    """Return what each example earns, and 1 where it is ranked."""
    tied = np.maximum(ranking.best.tied, 1)
    is_correct = ranking.is_valid & ranking.best.gold_is_best & (shares_ties | (tied == 1))
    return Contribution(np.where(is_correct, 1.0 / tied, 0.0), ranking.is_valid.astype(np.float64))


def _count_rows(
    prefix: tuple[int, ...], columns: tuple[Integers, ...], members: Booleans
) -> Counts:
    """Return how often each row of numbers occurs that the columns make side by side.

    The numbers are not negative; each key begins with `prefix`. Only `members` count.
    """
    if not members.any():
        return {}
    if not members.all():
        columns = tuple(column[members] for column in columns)
    shape = tuple(int(column.max()) + 1 for column in columns)
    flat, n_cells = columns[0], shape[0]
    for column, size in zip(columns[1:], shape[1:], strict=True):
        flat, n_cells = flat * size + column, n_cells * size
    if n_cells <= _MOST_CELLS:
        table = np.bincount(flat)
        cells = np.flatnonzero(table)
        counts = table[cells]
    else:
        cells, counts = np.unique(flat, return_counts=True)
    rows = zip(*(column.tolist() for column in np.unravel_index(cells, shape)), strict=True)
    return {(*prefix, *row): n for row, n in zip(rows, counts.tolist(), strict=True)}


def _check(state: AccuracyState, read: StateReader) -> None:
    """Refuse keys that no example can have."""
    for code, n_choices, tied, gold_is_best in state.ranked:
        if not (code < len(NAMES) and 1 <= tied <= n_choices and gold_is_best <= 1):
            raise read.fail(f"ranked: no example is {[code, n_choices, tied, gold_is_best]}")
    for code, reason in state.invalid:
        if not (code < len(NAMES) and reason < len(Invalid)):
            raise read.fail(f"invalid: there is no reason {[code, reason]}")
    _check_predicted(state, read)
    if state.mass.u != state.mass.n:
        raise read.fail("mass: each example counts once")


def _check_predicted(state: AccuracyState, read: StateReader) -> None:
    single = [
        (n_choices, count)
        for (n_choices, tied, _), count in cells(state, PRIMARY).items()
        if tied == 1
    ]
    most = max((n_choices for n_choices, _ in single), default=0)
    if sum(state.predicted.values()) != sum(count for _, count in single) or any(
        index >= most for (index,) in state.predicted
    ):
        raise read.fail("predicted: not the indices of the single best choices")


METRIC: Metric[AccuracyState] = Accuracy()
