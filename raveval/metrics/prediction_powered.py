"""The mean human rating, from few human ratings and many of a judge: prediction-powered inference.

Estimand: the expected `reference_rating` over all rows, where every row has the judge's `rating`
but only some, chosen at random, have the reference. With y the reference ratings and f the judge's
on the n labelled rows, and f' the judge's on the N unlabelled ones,

    prediction_powered_mean = mean(y) + w (mean(f') - mean(f)),
    stderr^2 = var(y - w f) / n + w^2 var(f') / N,
    w = cov(y, f) / ((1 + n / N) var(f and f' together)),

with divisors of one less than the rows: PPI++ with the power-tuned weight of Angelopoulos, Duchi
and Zrnic (2023, arXiv 2311.01453, section 6; closed form for a mean). The judge need not be right:
what it gets wrong on average is corrected, and a judge that tells nothing gets the weight 0. The
weight is not cut to [0, 1], so that a judge on another scale, or a reversed one, helps as much (the
authors' package cuts it, and divides by n and N). Normal interval: in simulations of whole-number
ratings it held the truth in 90 % of the runs with 10 labelled rows, 93 % with 20, 95 % from 50 on.
There is none where the standard error is 0.

Without unlabelled rows, or with a judge that gives one rating only, the weight is 0 and
`prediction_powered_mean` is the mean of the references.

Beside it: `tuning_weight`, the w above, which describes the method and has no interval;
`reference_mean`, the mean over labelled rows alone, and `rating_mean`, the judge's mean over all
rows, both with Student's interval, none where all ratings are equal.

Unit: that of the ratings, a ratio of the two for the weight; higher is better. `n` counts the
labelled rows, for `rating_mean` all with a judge's rating. A row without a judge's rating is left
out of everything and counted, as its reference alone would not be comparable. Undefined: "n=0"; "no
valid example" where rows lack the ratings that a name needs; "n<2" where fewer than two rows are
labelled; "non-finite" where ratings are infinite; "overflow".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pyarrow as pa

from raveval.metrics import Contribution, Json, Metric, Ratio
from raveval.metrics import _intervals as intervals
from raveval.metrics._exact import SCALE_BITS, Booleans, root
from raveval.metrics._rating_counts import (
    MISSING,
    check_ratings,
    count_ratings,
    number,
    whole,
)
from raveval.metrics._ratings import (
    RATING,
    RATING_DENOMINATOR,
    REFERENCE_RATING,
    REFERENCE_RATING_DENOMINATOR,
    read_both,
)
from raveval.metrics._state import Counts, add_counts, read_state, write_counts, write_state
from raveval.metrics._value_counts import RATING_UNIT, mean
from raveval.types import Estimate

_SCALE = 1 << SCALE_BITS


@dataclass(frozen=True, slots=True)
class _Sums:
    """Exact sums over rows of the judge's ratings f and the references y (0 where unlabelled)."""

    n: int = 0
    f: int = 0
    y: int = 0
    ff: int = 0
    fy: int = 0
    yy: int = 0

    def plus(self, f: int, y: int, count: int) -> _Sums:
        """Return the sums with `count` rows more."""
        return _Sums(
            self.n + count,
            self.f + count * f,
            self.y + count * y,
            self.ff + count * f * f,
            self.fy + count * f * y,
            self.yy + count * y * y,
        )

    def joined(self, other: _Sums) -> _Sums:
        """Return the sums over both sets of rows."""
        return _Sums(
            self.n + other.n,
            self.f + other.f,
            self.y + other.y,
            self.ff + other.ff,
            self.fy + other.fy,
            self.yy + other.yy,
        )

    def variance(self, weight: Fraction, of_y: int) -> Fraction:
        """Return the sample variance of of_y * y - weight * f; 0 for fewer than two rows."""
        if self.n < 2:
            return Fraction(0)
        total = of_y * self.y - weight * self.f
        squares = of_y * self.yy - 2 * of_y * weight * self.fy + weight**2 * self.ff
        return (squares - total**2 / self.n) / (self.n - 1)

    def covariance(self) -> Fraction:
        """Return the sample covariance of f and y, of two rows or more."""
        return Fraction(self.n * self.fy - self.f * self.y, self.n * (self.n - 1))


class PredictionPowered:
    """Means of the references: with the judge's help, without it, and the judge's own.

    Its state is how often each (rating, reference rating) occurs, by their ordinals; a missing
    reference is an unlabelled row.
    """

    name = "prediction_powered"
    version = 1
    columns: tuple[pa.Field, ...] = (
        *(RATING, REFERENCE_RATING, RATING_DENOMINATOR, REFERENCE_RATING_DENOMINATOR),
    )
    needs: tuple[str, ...] = ("rating", "reference_rating")
    optional: tuple[str, ...] = ("rating_denominator", "reference_rating_denominator")
    ratios: Mapping[str, Ratio] = {"reference_mean": Ratio(), "rating_mean": Ratio()}

    def init(self) -> Counts:
        """Return the state of no rows."""
        return {}

    def update(self, state: Counts, records: pa.Table) -> Counts:
        """Add rows."""
        return add_counts(state, count_ratings(*read_both(records)))

    def merge(self, a: Counts, b: Counts) -> Counts:
        """Add the counts."""
        return add_counts(a, b)

    def compute(self, state: Counts) -> Mapping[str, Estimate]:
        """Return all numbers of the family."""
        judged = {(f, y): count for (f, y), count in state.items() if f != MISSING}
        estimates = _estimates(judged)
        if not state:
            return estimates
        return {
            key: replace(e, reason="no valid example") if e.reason == "n=0" else e
            for key, e in estimates.items()
        }

    def notes(self, state: Counts) -> Mapping[str, int]:
        """Return labelled and unlabelled rows, and those without a judge's rating."""
        kinds = [((f == MISSING), (y == MISSING), count) for (f, y), count in state.items()]
        counts = {
            "labelled": sum(count for f, y, count in kinds if not f and not y),
            "unlabelled": sum(count for f, y, count in kinds if not f and y),
            "rating_missing": sum(count for f, _, count in kinds if f),
        }
        return {name: count for name, count in counts.items() if count}

    def contributions(self, records: pa.Table) -> Mapping[str, Contribution]:
        """Return what each row adds to the two plain means."""
        f, y = read_both(records)
        is_judged = np.isfinite(f)
        is_labelled = ~np.isnan(f) & np.isfinite(y)
        return {
            "reference_mean": Contribution(np.where(is_labelled, y, 0.0), is_labelled * 1.0),
            "rating_mean": Contribution(np.where(is_judged, f, 0.0), is_judged * 1.0),
        }

    def usable(self, records: pa.Table) -> Mapping[str, Booleans]:
        """Return which rows the judge rated; a row without a reference helps all the same."""
        is_judged = ~np.isnan(read_both(records)[0])
        return {"prediction_powered_mean": is_judged, "tuning_weight": is_judged}

    def encode(self, state: Counts) -> Json:
        """Return the counts."""
        return write_state(self.name, self.version, {"pairs": write_counts(state)})

    def decode(self, content: Json) -> Counts:
        """Return the state of `encode`."""
        read = read_state(content, self.name, self.version, ("pairs",))
        state = read.counts("pairs", width=2)
        check_ratings("pairs", state, read)
        return state


def _estimates(judged: Mapping[tuple[int, int], int]) -> dict[str, Estimate]:
    """Return all numbers from the rows that the judge rated."""
    values = {key: number(key) for cell in judged for key in cell if key != MISSING}
    n_labelled = sum(count for (_, y), count in judged.items() if y != MISSING)
    if not all(map(math.isfinite, values.values())):
        n_of = {"rating_mean": sum(judged.values())}
        return {
            key: replace(e, n=n_of.get(key, n_labelled), reason="non-finite")
            for key, e in _estimates({}).items()
        }
    wholes = {key: whole(value) for key, value in values.items()}
    labelled = unlabelled = _Sums()
    for (f, y), count in judged.items():
        if y == MISSING:
            unlabelled = unlabelled.plus(wholes[f], 0, count)
        else:
            labelled = labelled.plus(wholes[f], wholes[y], count)
    references = [(wholes[y], count) for (_, y), count in judged.items() if y != MISSING]
    ratings = [(wholes[f], count) for (f, _), count in judged.items()]
    return {
        **_prediction_powered(labelled, unlabelled),
        "reference_mean": mean(references, higher_is_better=True),
        "rating_mean": mean(ratings, higher_is_better=True),
    }


def _prediction_powered(labelled: _Sums, unlabelled: _Sums) -> dict[str, Estimate]:
    n = labelled.n
    if n < 2:
        reason = "n<2" if n else "n=0"
        return {
            "prediction_powered_mean": intervals.undefined(
                reason, unit=RATING_UNIT, n=n, higher_is_better=True
            ),
            "tuning_weight": intervals.undefined(reason, unit="ratio", n=n),
        }
    weight = _tuning_weight(labelled, unlabelled)
    value = Fraction(labelled.y, n)
    variance = labelled.variance(weight, of_y=1) / n
    if unlabelled.n:
        value += weight * (Fraction(unlabelled.f, unlabelled.n) - Fraction(labelled.f, n))
        variance += unlabelled.variance(weight, of_y=0) / unlabelled.n
    try:
        estimate = Estimate(
            float(value / _SCALE),
            RATING_UNIT,
            n,
            stderr=root(variance / _SCALE**2),
            higher_is_better=True,
        )
        tuning = Estimate(float(weight), "ratio", n, no_interval=intervals.NO_METHOD)
    except OverflowError:
        overflow = intervals.undefined("overflow", unit=RATING_UNIT, n=n, higher_is_better=True)
        return {
            "prediction_powered_mean": overflow,
            "tuning_weight": replace(overflow, unit="ratio", higher_is_better=None),
        }
    if estimate.stderr == 0:
        estimate = replace(estimate, no_interval="no spread")
    elif estimate.stderr and estimate.value is not None:
        low, high = intervals.normal(
            estimate.value,
            estimate.stderr,
            at_least=-intervals.LARGEST,
            at_most=intervals.LARGEST,
        )
        estimate = replace(estimate, low=low, high=high, interval="normal95")
    return {"prediction_powered_mean": estimate, "tuning_weight": tuning}


def _tuning_weight(labelled: _Sums, unlabelled: _Sums) -> Fraction:
    """Return the weight of the judge with the least variance of the estimate."""
    together = labelled.joined(unlabelled).variance(Fraction(1), of_y=0)
    if unlabelled.n == 0 or together == 0:
        return Fraction(0)
    return labelled.covariance() / ((1 + Fraction(labelled.n, unlabelled.n)) * together)


METRIC: Metric[Counts] = PredictionPowered()
