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

`probability_mass` is the mean over examples of sum_j exp(l_j): how much of the model's belief the
offered choices hold at all. It has no better direction.

Unit: fraction in [0, 1], relative improvements as a ratio; higher is better. `n` counts the
examples that the scoring can rank. One with a choice of length zero, or with a log-likelihood that
is no number, is invalid for the scorings that need it, left out there and counted in the notes.
Undefined: "n=0", "not measured" where the scoring's column is absent, "no valid example".

Intervals: Wilson, taken as a proportion (conservative for the tie-aware one). Given the numbers of
choices, which are known and not sampled, relative improvements are sums of proportions with fixed
weights: the pooled one maps Wilson's limits through (x - r) / r, the other two combine the Wilson
limits of each K (MOVER), which is the same for a single K. Probability mass: delta method, none
below two examples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
import pyarrow as pa

from raveval.metrics import Contribution, Json, Metric, Ratio
from raveval.metrics import _intervals as intervals
from raveval.metrics._choices import (
    GOLD,
    LENGTHS,
    LOGPROB,
    SCORING,
    SCORINGS,
    UNCONDITIONAL,
    VALID,
    Booleans,
    Choices,
    Invalid,
    Ranking,
    primary_scorings,
    rank,
    read_choices,
)
from raveval.metrics._exact import Doubles, Integers, Moments, moments, root
from raveval.metrics._intervals import Stratum
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

_PRIMARY = 0
"""Code of the primary scoring in the tables; the others follow in the order of SCORINGS."""

_NAMES = ("accuracy", *(f"accuracy_{scoring}" for scoring in SCORINGS))
_SAME = Ratio()
_OVER_BASELINE = Ratio(shift=-1.0)
_MOST_NATS = 700.0  # exp of more is near the largest double, and no log-likelihood


@dataclass(frozen=True, slots=True)
class AccuracyState:
    """What all numbers of the family are made of.

    Attributes:
        ranked: (scoring, choices, choices tied at the maximum, right one among them) → examples.
        invalid: (scoring, reason) → examples.
        mass: of (probability mass, 1) over the examples whose log-likelihoods are numbers.
    """

    ranked: Counts = field(default_factory=dict)
    invalid: Counts = field(default_factory=dict)
    mass: Moments = field(default_factory=Moments)


class Accuracy:
    """Accuracies by scoring, relative improvements and probability mass."""

    name = "accuracy"
    version = 1
    columns: tuple[pa.Field, ...] = (GOLD, LOGPROB, SCORING, UNCONDITIONAL, *LENGTHS.values())
    needs: tuple[str, ...] = ("gold", "logprob_nats")
    optional: tuple[str, ...] = ("scoring", "unconditional_nats", "n_tokens", "n_chars", "n_bytes")
    ratios: Mapping[str, Ratio] = {
        **dict.fromkeys((*_NAMES, "accuracy_tie_aware"), _SAME),
        "relative_improvement": _OVER_BASELINE,
        "relative_improvement_per_example": _OVER_BASELINE,
        "probability_mass": _SAME,
    }

    def init(self) -> AccuracyState:
        """Return the state of no examples."""
        return AccuracyState()

    def update(self, state: AccuracyState, records: pa.Table) -> AccuracyState:
        """Add examples; a null gold is one without a right choice, and invalid."""
        choices, primary = read_choices(records), primary_scorings(records)
        if not len(choices):
            return state
        ranked, invalid = [state.ranked], [state.invalid]
        for code, (scoring, ranking) in enumerate(rank(choices, records), start=_PRIMARY + 1):
            everyone = np.ones(len(choices), np.bool_)
            for key, members in ((code, everyone), (_PRIMARY, primary == scoring)):
                is_valid = members & (ranking.invalid == VALID)
                ranked.append(_count_ranked(key, choices, ranking, is_valid))
                reasons = ranking.invalid[members & ~is_valid]
                invalid.append(_count_rows(np.full(len(reasons), key), reasons))
        mass = state.mass + _mass(choices)
        return AccuracyState(add_counts(*ranked), add_counts(*invalid), mass)

    def merge(self, a: AccuracyState, b: AccuracyState) -> AccuracyState:
        """Add the tables and sums."""
        return AccuracyState(
            add_counts(a.ranked, b.ranked), add_counts(a.invalid, b.invalid), a.mass + b.mass
        )

    def compute(self, state: AccuracyState) -> Mapping[str, Estimate]:
        """Return all numbers of the family."""
        strict = {name: _accuracy(state, code) for code, name in enumerate(_NAMES)}
        return {
            **strict,
            "accuracy_tie_aware": _tie_aware(state, strict["accuracy"]),
            **_improvements(state, strict["accuracy"]),
            "probability_mass": _probability_mass(state),
        }

    def notes(self, state: AccuracyState) -> Mapping[str, int]:
        """Return ties and invalid examples of each scoring that was measured."""
        counts: dict[str, int] = {}
        for code, name in enumerate(_NAMES):
            cells = _cells(state, code)
            ties = sum(count for (_, tied, _), count in cells.items() if tied > 1)
            if ties:
                counts[f"{name}_ties"] = ties
            for reason in Invalid:
                count = state.invalid.get((code, reason), 0)
                if count and (cells or reason != Invalid.NOT_MEASURED):
                    counts[f"{name}_{reason.name.lower()}"] = count
        return counts

    def contributions(self, records: pa.Table) -> Mapping[str, Contribution]:
        """Return each example's credit and whether the scoring ranks it, and what follows."""
        choices, primary = read_choices(records), primary_scorings(records)
        found, strict, tie_aware = {}, _nothing(choices), _nothing(choices)
        for scoring, ranking in rank(choices, records):
            is_valid = ranking.invalid == VALID
            credit = np.where(
                is_valid & ranking.gold_is_best, 1.0 / np.maximum(ranking.tied, 1), 0.0
            )
            own = Contribution((credit == 1.0).astype(np.float64), is_valid.astype(np.float64))
            found[f"accuracy_{scoring}"] = own
            members = primary == scoring
            for total, x in ((strict, own.x), (tie_aware, credit)):
                total.x[members], total.u[members] = x[members], own.u[members]
        k = choices.n_choices.astype(np.float64)
        mass = _nothing(choices)
        is_number = _has_mass(choices)
        mass.x[is_number], mass.u[is_number] = _masses(choices, is_number), 1.0
        return {
            "accuracy": strict,
            **found,
            "accuracy_tie_aware": tie_aware,
            "relative_improvement": Contribution(strict.x, strict.u / k),
            "relative_improvement_per_example": Contribution(strict.x * k, strict.u),
            "probability_mass": mass,
        }

    def encode(self, state: AccuracyState) -> Json:
        """Return the tables and sums."""
        body = {
            "ranked": write_counts(state.ranked),
            "invalid": write_counts(state.invalid),
            "mass": write_moments(state.mass),
        }
        return write_state(self.name, self.version, body)

    def decode(self, content: Json) -> AccuracyState:
        """Return the state of `encode`."""
        read = read_state(content, self.name, self.version, ("ranked", "invalid", "mass"))
        state = AccuracyState(
            read.counts("ranked", width=4), read.counts("invalid", width=2), read.moments("mass")
        )
        _check(state, read)
        return state


def predicted(records: pa.Table) -> pa.Array:
    """Return the index of each example's choice under its primary scoring; null where none is best.

    Raises:
        DataError: a column has the wrong type or a value that cannot be.
    """
    choices, primary = read_choices(records), primary_scorings(records)
    chosen = np.full(len(choices), -1)
    for scoring, ranking in rank(choices, records):
        is_single = (primary == scoring) & (ranking.invalid == VALID) & (ranking.tied == 1)
        chosen[is_single] = ranking.predicted[is_single]
    return pa.array(chosen, pa.int32(), mask=chosen < 0)


def _count_rows(*columns: Integers) -> Counts:
    """Return how often each row of numbers occurs that the columns make side by side."""
    if not len(columns[0]):
        return {}
    shape = tuple(int(column.max()) + 1 for column in columns)
    flat, counts = np.unique(np.ravel_multi_index(columns, shape), return_counts=True)
    rows = zip(*(column.tolist() for column in np.unravel_index(flat, shape)), strict=True)
    return dict(zip(rows, counts.tolist(), strict=True))


def _count_ranked(code: int, choices: Choices, ranking: Ranking, members: Booleans) -> Counts:
    n_choices = choices.n_choices[members]
    gold_is_best = ranking.gold_is_best[members].astype(np.int64)
    codes = np.full(len(n_choices), code)
    return _count_rows(codes, n_choices, ranking.tied[members], gold_is_best)


def _nothing(choices: Choices) -> Contribution:
    return Contribution(np.zeros(len(choices)), np.zeros(len(choices)))


def _has_mass(choices: Choices) -> Booleans:
    return ~choices.any_in(~(choices.logprob_nats <= _MOST_NATS))


def _masses(choices: Choices, members: Booleans) -> Doubles:
    """Return the probability mass of each of some examples.

    The exponentials are the C library's, one by one: numpy's may differ in the last bit with an
    element's place in the array, and so with the sharding.
    """
    terms = choices.logprob_nats[np.repeat(members, choices.n_choices)].tolist()
    masses, start = [], 0
    for n in choices.n_choices[members].tolist():
        masses.append(math.fsum(map(math.exp, terms[start : start + n])))
        start += n
    return np.array(masses, np.float64)


def _mass(choices: Choices) -> Moments:
    masses = _masses(choices, _has_mass(choices))
    return moments(masses, np.ones(len(masses), np.int64))


def _cells(state: AccuracyState, code: int) -> Mapping[tuple[int, int, int], int]:
    """Return the table of one scoring: (choices, tied, right one among them) → examples."""
    return {
        (n_choices, tied, gold_is_best): count
        for (scoring, n_choices, tied, gold_is_best), count in state.ranked.items()
        if scoring == code
    }


def _by_n_choices(state: AccuracyState, code: int) -> Mapping[int, tuple[int, int]]:
    """Return (correct, examples) of one scoring for each number of choices."""
    found: dict[int, tuple[int, int]] = {}
    for (n_choices, tied, gold_is_best), count in _cells(state, code).items():
        correct, n = found.get(n_choices, (0, 0))
        is_correct = gold_is_best and tied == 1
        found[n_choices] = (correct + count * is_correct, n + count)
    return dict(sorted(found.items()))


def _accuracy(state: AccuracyState, code: int) -> Estimate:
    groups = _by_n_choices(state, code)
    if groups:
        correct, n = (sum(counts) for counts in zip(*groups.values(), strict=True))
        return intervals.proportion(correct, n)
    reasons = {reason for scoring, reason in state.invalid if scoring == code}
    reason = "n=0"
    if reasons:
        is_unmeasured = reasons == {Invalid.NOT_MEASURED}
        reason = "not measured" if is_unmeasured else "no valid example"
    return intervals.undefined(reason, unit="fraction", higher_is_better=True)


def _tie_aware(state: AccuracyState, strict: Estimate) -> Estimate:
    if strict.value is None:
        return strict
    credits = squares = Fraction(0)
    for (_, tied, gold_is_best), count in _cells(state, _PRIMARY).items():
        credits += Fraction(count * gold_is_best, tied)
        squares += Fraction(count * gold_is_best, tied**2)
    return intervals.proportion(credits, strict.n, squares=squares)


def _improvements(state: AccuracyState, strict: Estimate) -> Mapping[str, Estimate]:
    """Return the random baseline and the three relative improvements over it."""
    groups = _by_n_choices(state, _PRIMARY)
    if not groups:
        missing = replace(strict, unit="ratio")
        return {
            "random_baseline": replace(strict, higher_is_better=None),
            "relative_improvement": missing,
            "relative_improvement_per_example": missing,
            "relative_improvement_per_n_choices": missing,
        }
    n = strict.n
    correct = sum(correct for correct, _ in groups.values())
    baseline = sum((Fraction(size, k) for k, (_, size) in groups.items()), Fraction(0)) / n
    per_example = [Stratum(Fraction(k * m, n), c, m) for k, (c, m) in groups.items()]
    per_group = [Stratum(Fraction(k, len(groups)), c, m) for k, (c, m) in groups.items()]
    return {
        "random_baseline": Estimate(float(baseline), "fraction", n),
        "relative_improvement": _pooled_improvement(strict, Fraction(correct, n), baseline),
        "relative_improvement_per_example": _weighted_improvement(per_example, n),
        "relative_improvement_per_n_choices": _weighted_improvement(per_group, n),
    }


def _pooled_improvement(strict: Estimate, accuracy: Fraction, baseline: Fraction) -> Estimate:
    """Map the accuracy and its Wilson limits through (x - r) / r; r is not sampled."""
    r = float(baseline)
    low, high = intervals.wilson(accuracy, strict.n)
    return replace(
        strict,
        value=float(accuracy / baseline - 1),
        unit="ratio",
        stderr=None if strict.stderr is None else strict.stderr / r,
        low=low / r - 1,
        high=high / r - 1,
    )


def _weighted_improvement(strata: list[Stratum], n: int) -> Estimate:
    value, variance = Fraction(-1), Fraction(0)
    for weight, successes, size in strata:
        share = Fraction(successes, size)
        value += weight * share
        variance += weight**2 * share * (1 - share) / max(1, size - 1)
    low, high = intervals.weighted_proportions(strata)
    return Estimate(
        float(value),
        "ratio",
        n,
        stderr=root(variance) if all(stratum.n > 1 for stratum in strata) else None,
        low=low - 1,
        high=high - 1,
        interval="mover95",
        higher_is_better=True,
    )


def _probability_mass(state: AccuracyState) -> Estimate:
    if state.mass.n == 0:
        reason = "no valid example" if state.ranked or state.invalid else "n=0"
        return intervals.undefined(reason, unit="fraction")
    estimate = intervals.ratio(state.mass, unit="fraction", higher_is_better=None)
    return estimate if estimate.low is None else replace(estimate, low=max(0.0, estimate.low))


def _check(state: AccuracyState, read: StateReader) -> None:
    """Refuse keys that no example can have."""
    for code, n_choices, tied, gold_is_best in state.ranked:
        if not (code < len(_NAMES) and 1 <= tied <= n_choices and gold_is_best <= 1):
            raise read.fail(f"ranked: no example is {[code, n_choices, tied, gold_is_best]}")
    for code, reason in state.invalid:
        if not (code < len(_NAMES) and reason < len(Invalid)):
            raise read.fail(f"invalid: there is no reason {[code, reason]}")
    if state.mass.u != state.mass.n:
        raise read.fail("mass: each example counts once")


METRIC: Metric[AccuracyState] = Accuracy()
