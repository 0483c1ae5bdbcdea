"""Turns counts of ranked choices into the estimates of the metric `accuracy`.

What each of them means is said there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from raveval.metrics import _intervals as intervals
from raveval.metrics._choices import SCORINGS, Invalid
from raveval.metrics._exact import Moments, root
from raveval.metrics._intervals import Stratum
from raveval.metrics._state import Counts
from raveval.types import Estimate

PRIMARY = 0
"""Code of the primary scoring in the tables; the others follow in the order of SCORINGS."""

NAMES = ("accuracy", *(f"accuracy_{scoring}" for scoring in SCORINGS))
"""The strict accuracy of each code."""


@dataclass(frozen=True, slots=True)
class AccuracyState:
    """What all numbers of the family are made of.

    Attributes:
        ranked: (scoring, choices, choices tied at the maximum, right one among them) → examples.
        invalid: (scoring, reason) → examples.
        predicted: (index of the single best choice by the primary scoring,) → examples.
        mass: of (probability mass, 1) over the examples whose log-likelihoods are numbers.
    """

    ranked: Counts = field(default_factory=dict)
    invalid: Counts = field(default_factory=dict)
    predicted: Counts = field(default_factory=dict)
    mass: Moments = field(default_factory=Moments)


def estimates(state: AccuracyState) -> Mapping[str, Estimate]:
    """Return all numbers of the family."""
    strict = {name: _accuracy(state, code) for code, name in enumerate(NAMES)}
    return {
        **strict,
        "accuracy_tie_aware": _tie_aware(state, strict["accuracy"]),
        **_improvements(state, strict["accuracy"]),
        "most_frequent_index_share": _most_frequent_index(state, strict["accuracy"]),
        "probability_mass": _probability_mass(state),
    }


def cells(state: AccuracyState, code: int) -> Mapping[tuple[int, int, int], int]:
    """Return the table of one scoring: (choices, tied, right one among them) → examples."""
    return {
        (n_choices, tied, gold_is_best): count
        for (scoring, n_choices, tied, gold_is_best), count in state.ranked.items()
        if scoring == code
    }


def _by_n_choices(state: AccuracyState, code: int) -> Mapping[int, tuple[int, int]]:
    """Return (correct, examples) of one scoring for each number of choices."""
    found: dict[int, tuple[int, int]] = {}
    for (n_choices, tied, gold_is_best), count in cells(state, code).items():
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
    for (_, tied, gold_is_best), count in cells(state, PRIMARY).items():
        credits += Fraction(count * gold_is_best, tied)
        squares += Fraction(count * gold_is_best, tied**2)
    return intervals.proportion(credits, strict.n, squares=squares)


def _improvements(state: AccuracyState, strict: Estimate) -> Mapping[str, Estimate]:
    """Return the random baseline and the three relative improvements over it."""
    groups = _by_n_choices(state, PRIMARY)
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
        "random_baseline": Estimate(
            float(baseline), "fraction", n, no_interval=intervals.NO_METHOD
        ),
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


def _most_frequent_index(state: AccuracyState, strict: Estimate) -> Estimate:
    """Return how often the index that is predicted most is; it has no direction and no interval.

    The largest of several shares is biased upwards, and a proportion's interval does not hold.
    """
    n = sum(state.predicted.values())
    if n == 0:
        reason = strict.reason or "no valid example"
        return intervals.undefined(reason, unit="fraction")
    share = max(state.predicted.values()) / n
    return Estimate(share, "fraction", n, no_interval=intervals.NO_METHOD)


def _probability_mass(state: AccuracyState) -> Estimate:
    if state.mass.n == 0:
        reason = "no valid example" if state.ranked or state.invalid else "n=0"
        return intervals.undefined(reason, unit="fraction")
    estimate = intervals.ratio(state.mass, unit="fraction", higher_is_better=None)
    return estimate if estimate.low is None else replace(estimate, low=max(0.0, estimate.low))
