"""A judge's ratings: their mean, distribution, and agreement among samples.

Estimands, with a row's rating its number or the mean of its list of samples (`rating_denominator`
declares the grid of the numbers):

- `mean_rating`: the expected rating; Student's interval, none where all ratings are equal.
- `standard_deviation`: of the ratings, with divisor n - 1; Bonett's interval ("bonett95"), which
  assumes no shape, none below 5 ratings or where all are equal. With a long tail it needs many
  ratings: of exponential ones, 88 % of simulated intervals held the truth at n = 30, 92 % at 100,
  95 % at 1000; of grades 94 to 95 %.
- `median_rating`: the middle rating, the mean of the two middle ones where n is even; interval from
  order statistics (binomial, at least 95 %), none below 6 ratings.
- `mean_rating_if_missing_lowest`, `_highest`: the mean with each missing rating at the end of the
  scale that its row declares (`scale_lowest`, `scale_highest`), so that the mean over all rows lies
  between the two, whatever an unreadable judge would have said. Intervals as for the mean; they
  describe the rows, not the doubt about missing ones.
- `sample_agreement`: over rows of two samples or more, the probability that two different samples
  of a row are equal. Wilson's interval, conservative for shares.
- `krippendorff_alpha_samples`: on the same rows, agreement beyond chance with squared differences
  (Krippendorff, Content Analysis, 4th edition 2019, chapter 12), for any number of samples per row;
  at most 1; bootstrap over rows, "bootstrap95" (with more than 4096 different rows the delta
  method's error, "normal95"). None where it would have no width, for fewer than 4 rows, and where
  more than one replicate in 20 is undefined.

Units: that of the ratings, a fraction for `sample_agreement`, a coefficient for alpha. Higher is
better, but for the standard deviation, which has no better direction. `n` counts rows.

A rating that is null, NaN, an empty list or one of those is missing: left out and counted, as
unreadable judge output is. Undefined: "n=0"; "no valid example" where every rating is missing;
"n<2" for the standard deviation; "non-finite" where ratings are infinite; "no scale" where a row
whose rating is missing does not declare that end (null or not finite); "not measured" where no row
has two samples; "constant" for alpha where all samples are equal; "overflow".

The notes hold the distribution (rows of each rating, up to 21 different ones), the missing ratings,
those outside of the scale that their row declares, and the samples that are missing in lists.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raveval.errors import DataError
from raveval.metrics import Contribution, Json, Metric, Ratio, Replicator
from raveval.metrics import _intervals as intervals
from raveval.metrics._columns import column, required
from raveval.metrics._count_tables import distribution
from raveval.metrics._exact import Booleans, Doubles, Integers
from raveval.metrics._rating_counts import (
    MISSING,
    check_ratings,
    count_ratings,
    number,
    whole,
)
from raveval.metrics._rating_replicates import locations, sample_alpha
from raveval.metrics._rating_samples import (
    agreeing_pairs,
    among_samples,
    count_samples,
    decode_samples,
    encode_samples,
    samples_of,
)
from raveval.metrics._ratings import RATING, RATING_DENOMINATOR, read_ratings
from raveval.metrics._state import (
    Counts,
    add_counts,
    read_state,
    write_counts,
    write_state,
)
from raveval.metrics._value_counts import mean, median, standard_deviation
from raveval.types import CountTable, Estimate

SCALE_LOWEST = pa.field("scale_lowest", pa.float64())
SCALE_HIGHEST = pa.field("scale_highest", pa.float64())

_MOST_RATINGS_NOTED = 21


@dataclass(frozen=True, slots=True)
class RatingState:
    """Counts by ordinals of ratings.

    Attributes:
        ratings: (rating,) → rows.
        missing: (lowest, highest) of the scale → rows without a rating.
        samples: the samples of a row, ascending, two or more → rows.
        n_outside: rows whose rating is outside of their scale.
        n_samples_missing: samples that are null or NaN, in rows with lists of them.
    """

    ratings: Counts = field(default_factory=dict)
    missing: Counts = field(default_factory=dict)
    samples: Counts = field(default_factory=dict)
    n_outside: int = 0
    n_samples_missing: int = 0


class _Rows(NamedTuple):
    """Ratings and the ends of their scales, NaN where not there; shape `(n,)` each."""

    ratings: Doubles
    lowest: Doubles
    highest: Doubles


class Rating:
    """Location and spread of ratings, and how far the samples of a row agree."""

    name = "rating"
    version = 2
    columns: tuple[pa.Field, ...] = (RATING, RATING_DENOMINATOR, SCALE_LOWEST, SCALE_HIGHEST)
    needs: tuple[str, ...] = ("rating",)
    optional: tuple[str, ...] = ("rating_denominator", "scale_lowest", "scale_highest")
    ratios: Mapping[str, Ratio] = {
        "mean_rating": Ratio(),
        "mean_rating_if_missing_lowest": Ratio(),
        "mean_rating_if_missing_highest": Ratio(),
        "sample_agreement": Ratio(),
    }

    def init(self) -> RatingState:
        """Return the state of no rows."""
        return RatingState()

    def update(self, state: RatingState, records: pa.Table) -> RatingState:
        """Add rows."""
        rows = _read(records)
        is_missing = np.isnan(rows.ratings)
        is_outside = (rows.ratings < rows.lowest) | (rows.ratings > rows.highest)
        added = RatingState(
            count_ratings(rows.ratings[~is_missing]),
            count_ratings(rows.lowest[is_missing], rows.highest[is_missing]),
            count_samples(samples_of(records)),
            int(is_outside.sum()),
            _n_samples_missing(records),
        )
        return self.merge(state, added)

    def merge(self, a: RatingState, b: RatingState) -> RatingState:
        """Add the counts."""
        return RatingState(
            add_counts(a.ratings, b.ratings),
            add_counts(a.missing, b.missing),
            add_counts(a.samples, b.samples),
            a.n_outside + b.n_outside,
            a.n_samples_missing + b.n_samples_missing,
        )

    def compute(self, state: RatingState) -> Mapping[str, Estimate]:
        """Return all numbers of the family."""
        return {
            **_location(state),
            **among_samples(state.samples, has_rows=bool(state.ratings or state.missing)),
        }

    def notes(self, state: RatingState) -> Mapping[str, int]:
        """Return the distribution, and missing ratings and those outside of their scale."""
        counts: dict[str, int] = {}
        if len(state.ratings) <= _MOST_RATINGS_NOTED:
            for (key,), count in sorted(state.ratings.items()):
                counts[f"rating_{repr(number(key)).removesuffix('.0')}"] = count
        counts["rating_missing"] = sum(state.missing.values())
        counts["rating_outside_scale"] = state.n_outside
        counts["rating_samples_missing"] = state.n_samples_missing
        return {name: count for name, count in counts.items() if count}

    def tables(self, state: RatingState) -> Mapping[str, CountTable]:
        """Return how often each rating occurs."""
        values = np.array([number(key) for (key,) in state.ratings], np.float64)
        counts = np.array(list(state.ratings.values()), np.int64)
        return {"rating": distribution(values, counts, name="rating")} if state.ratings else {}

    def contributions(self, records: pa.Table) -> Mapping[str, Contribution]:
        """Return each row's rating, with either end for a missing one, and share of agreement."""
        rows = _read(records)
        is_missing = np.isnan(rows.ratings)
        found = {"mean_rating": _finite(rows.ratings)}
        for name, end in (("lowest", rows.lowest), ("highest", rows.highest)):
            imputed = np.where(is_missing, end, rows.ratings)
            found[f"mean_rating_if_missing_{name}"] = _finite(imputed)
        samples = samples_of(records)
        pairs = samples.n_samples * (samples.n_samples - 1)
        shares = agreeing_pairs(samples) / np.maximum(pairs, 1)
        return {**found, "sample_agreement": Contribution(shares, (pairs > 0).astype(np.float64))}

    def usable(self, records: pa.Table) -> Mapping[str, Booleans]:
        """Return which rows have a rating, or for alpha two samples."""
        has_rating = ~np.isnan(_read(records).ratings)
        return {
            "standard_deviation": has_rating,
            "median_rating": has_rating,
            "krippendorff_alpha_samples": samples_of(records).n_samples > 1,
        }

    def reweighted(self, records: pa.Table) -> Replicator:
        """Return what makes replicates of spread, median and alpha."""
        of_ratings = locations(_read(records).ratings)
        of_samples = sample_alpha(samples_of(records))

        def replicates(weights: Integers) -> Mapping[str, Doubles]:
            return {**of_ratings(weights), **of_samples(weights)}

        return replicates

    def encode(self, state: RatingState) -> Json:
        """Return the counts; those of samples by how many there are."""
        body = {
            "ratings": write_counts(state.ratings),
            "missing": write_counts(state.missing),
            "samples": encode_samples(state.samples),
            "n_outside": state.n_outside,
            "n_samples_missing": state.n_samples_missing,
        }
        return write_state(self.name, self.version, body)

    def decode(self, content: Json) -> RatingState:
        """Return the state of `encode`."""
        keys = ("ratings", "missing", "samples", "n_outside", "n_samples_missing")
        read = read_state(content, self.name, self.version, keys)
        state = RatingState(
            read.counts("ratings", width=1),
            read.counts("missing", width=2),
            decode_samples(read),
            read.count("n_outside"),
            read.count("n_samples_missing"),
        )
        for key in ("ratings", "missing", "samples"):
            check_ratings(key, getattr(state, key), read)
        if (MISSING,) in state.ratings or any(MISSING in key for key in state.samples):
            raise read.fail("a missing rating is counted among those that are there")
        return state


def _read(records: pa.Table) -> _Rows:
    ratings = read_ratings(records, RATING, RATING_DENOMINATOR)
    ends = []
    for scale_end in (SCALE_LOWEST, SCALE_HIGHEST):
        found = column(records, scale_end)
        values = (
            np.full(len(ratings), np.nan) if found is None else found.to_numpy(zero_copy_only=False)
        )
        ends.append(np.where(np.isfinite(values), values, np.nan) + 0.0)
    is_upside_down = ends[0] > ends[1]
    if is_upside_down.any():
        lowest, highest = (end[is_upside_down][0] for end in ends)
        raise DataError(f"scale_lowest is {lowest} and scale_highest is {highest}: swap them")
    return _Rows(ratings, *ends)


def _n_samples_missing(records: pa.Table) -> int:
    array = required(records, RATING)
    if not pa.types.is_list(array.type):
        return 0
    samples = pc.fill_null(array.flatten().cast(pa.float64()), math.nan)
    return int(np.isnan(samples.to_numpy(zero_copy_only=False)).sum())


def _finite(values: Doubles) -> Contribution:
    is_finite = np.isfinite(values)
    return Contribution(np.where(is_finite, values, 0.0), is_finite.astype(np.float64))


def _location(state: RatingState) -> dict[str, Estimate]:
    """Return mean, spread and bounds."""
    values = {number(key): count for (key,), count in state.ratings.items()}
    is_finite = all(map(math.isfinite, values))
    wholes = {whole(value): count for value, count in values.items()} if is_finite else {}
    estimates = {
        "mean_rating": mean(wholes.items(), higher_is_better=True),
        "standard_deviation": standard_deviation(wholes.items()),
        "median_rating": median(wholes, higher_is_better=True),
    }
    if state.missing and not values:
        estimates = {k: replace(e, reason="no valid example") for k, e in estimates.items()}
    for place, end in enumerate(("lowest", "highest")):
        imputed = [
            (whole(number(key[place])), count)
            for key, count in state.missing.items()
            if key[place] != MISSING
        ]
        estimate = mean([*wholes.items(), *imputed], higher_is_better=True)
        if len(imputed) < len(state.missing):
            estimate = _without_value(estimate, "no scale")
        estimates[f"mean_rating_if_missing_{end}"] = estimate
    if is_finite:
        return estimates
    n = sum(values.values())
    return {k: replace(_without_value(e, "non-finite"), n=n) for k, e in estimates.items()}


def _without_value(estimate: Estimate, reason: str) -> Estimate:
    better = estimate.higher_is_better
    return intervals.undefined(reason, unit=estimate.unit, n=estimate.n, higher_is_better=better)


METRIC: Metric[RatingState] = Rating()
