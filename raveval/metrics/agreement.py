"""Agreement of two raters on the same scale: of a judge's ratings with reference ratings.

Estimands, over rows where both `rating` and `reference_rating` are there (numbers, or lists of
samples with their mean; `*_denominator` declares the grid they are on):

- `exact_agreement`: the probability that both are equal; `adjacent_agreement`: that they are at
  most 1 apart, in the unit of the scale (and 1e-9, for what is 1 apart on a grid of thirds).
  Fractions, higher is better, Wilson's interval.
- `mean_difference`: the mean of rating - reference, the judge's bias; no better direction.
  `mean_absolute_difference`: the mean of |rating - reference|, lower is better. Both in the unit of
  the ratings, with Student's interval, which there is not where all differences are equal.
- `cohen_kappa`, `cohen_kappa_linear`, `cohen_kappa_quadratic`: agreement beyond chance, with no
  credit for ratings that differ, or less the farther they are apart. The categories are the ratings
  that either rater gives, and a distance is the difference of the numbers. (scikit-learn counts
  places in the sorted list of those that occur instead: on a scale 1…5 of which 3 is never used,
  it has 2 and 4 one step apart, here they are two. Where every step is used, it is the same.)
  Higher is better, 1 at most; the large-sample interval of Fleiss, Cohen and Everitt (Psychological
  Bulletin 72 (1969) 323-327), which there is not where it has no width, as in full agreement.
- `krippendorff_alpha_nominal`, `_ordinal`, `_interval`: the same idea with chance as if both raters
  drew from one pool, for three kinds of scale (Krippendorff, Content Analysis, 4th edition 2019,
  chapter 12). Higher is better, 1 at most; bootstrap over rows, "bootstrap95" (with more than 4096
  different pairs the delta method's error, "normal95"). None where it would have no width, for
  fewer than 4 rows, and where more than one replicate in 20 is undefined.

Kappa's and alpha's intervals are those of many rows, and too narrow for few: of independent raters'
quadratic kappa they held 73 % at 4 rows and 84 % at 10, of nominal alpha 81 and 89 %.

`n` counts the rows with both ratings; others are left out and counted in the notes. Undefined:
"n=0"; "no valid example" where no row has both; "constant" for kappa and alpha where there is only
one rating to be seen; "non-finite" where an infinite rating has no distance (equality and ranks
still count it, and the notes do); "overflow".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from raveval.metrics import Contribution, Json, Metric, Ratio, Replicator
from raveval.metrics import _agreement_replicates as replicates
from raveval.metrics import _agreement_table as tables
from raveval.metrics import _intervals as intervals
from raveval.metrics._count_tables import rating_tables
from raveval.metrics._exact import Booleans, Doubles
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
from raveval.metrics._value_counts import mean
from raveval.types import CountTable, Estimate

_ADJACENT = 1 + 1e-9
"""What is 1 apart on a grid of thirds is not quite so in doubles."""

_NAMES = (
    *("exact_agreement", "adjacent_agreement", "mean_difference", "mean_absolute_difference"),
    *("cohen_kappa", "cohen_kappa_linear", "cohen_kappa_quadratic"),
    *("krippendorff_alpha_nominal", "krippendorff_alpha_ordinal", "krippendorff_alpha_interval"),
)


class Agreement:
    """Shares of equal ratings, differences, kappa and alpha.

    Its state is how often each (rating, reference rating) occurs, by their ordinals.
    """

    name = "agreement"
    version = 2
    columns: tuple[pa.Field, ...] = (
        *(RATING, REFERENCE_RATING, RATING_DENOMINATOR, REFERENCE_RATING_DENOMINATOR),
    )
    needs: tuple[str, ...] = ("rating", "reference_rating")
    optional: tuple[str, ...] = ("rating_denominator", "reference_rating_denominator")
    ratios: Mapping[str, Ratio] = {
        "exact_agreement": Ratio(),
        "adjacent_agreement": Ratio(),
        "mean_difference": Ratio(),
        "mean_absolute_difference": Ratio(),
    }

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
        both = {(x, y): count for (x, y), count in state.items() if MISSING not in (x, y)}
        found = {**_by_order(both), **_by_distance(both)}
        estimates = {name: found[name] for name in _NAMES}
        if both or not state:
            return estimates
        return {name: replace(e, reason="no valid example") for name, e in estimates.items()}

    def notes(self, state: Counts) -> Mapping[str, int]:
        """Return rows that lack a rating, and those with an infinite one."""
        counts = {
            "rating_missing": sum(c for (x, _), c in state.items() if x == MISSING),
            "reference_rating_missing": sum(c for (_, y), c in state.items() if y == MISSING),
            "infinite_ratings": sum(
                c for cell, c in state.items() if np.isinf([number(key) for key in cell]).any()
            ),
        }
        return {name: count for name, count in counts.items() if count}

    def tables(self, state: Counts) -> Mapping[str, CountTable]:
        """Return how often each pair of ratings occurs."""
        both = {cell: count for cell, count in state.items() if MISSING not in cell}
        x, y = np.array([[number(key) for key in cell] for cell in both]).reshape(-1, 2).T
        return rating_tables(x, y, np.array(list(both.values()), np.int64))

    def contributions(self, records: pa.Table) -> Mapping[str, Contribution]:
        """Return each row's agreement and difference; one without both ratings adds nothing."""
        x, y = read_both(records)
        is_pair = ~(np.isnan(x) | np.isnan(y))
        difference = np.where(is_pair, _difference(x, y), 0.0)
        u = is_pair.astype(np.float64)
        return {
            "exact_agreement": Contribution(u * (x == y), u),
            "adjacent_agreement": Contribution(u * _is_adjacent(difference), u),
            "mean_difference": Contribution(difference, u),
            "mean_absolute_difference": Contribution(np.abs(difference), u),
        }

    def usable(self, records: pa.Table) -> Mapping[str, Booleans]:
        """Return which rows have both ratings: every number rests on those."""
        x, y = read_both(records)
        return dict.fromkeys(_NAMES, ~(np.isnan(x) | np.isnan(y)))

    def reweighted(self, records: pa.Table) -> Replicator:
        """Return what makes replicates of kappa and alpha."""
        rows = replicates.rows_of(*read_both(records))
        return replicates.coefficients(
            rows,
            {
                "cohen_kappa": replicates.kappa("nominal"),
                "cohen_kappa_linear": replicates.kappa("linear"),
                "cohen_kappa_quadratic": replicates.kappa("quadratic"),
                "krippendorff_alpha_nominal": replicates.alpha("nominal"),
                "krippendorff_alpha_ordinal": replicates.alpha("ordinal"),
                "krippendorff_alpha_interval": replicates.alpha("interval"),
            },
        )

    def encode(self, state: Counts) -> Json:
        """Return the counts."""
        return write_state(self.name, self.version, {"pairs": write_counts(state)})

    def decode(self, content: Json) -> Counts:
        """Return the state of `encode`."""
        read = read_state(content, self.name, self.version, ("pairs",))
        state = read.counts("pairs", width=2)
        check_ratings("pairs", state, read)
        return state


def _difference(x: Doubles, y: Doubles) -> Doubles:
    """Return x - y, 0 for equal infinities and finite throughout; NaN where either is."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.clip(np.where(x == y, 0.0, x - y), -intervals.LARGEST, intervals.LARGEST)


def _is_adjacent(difference: Doubles) -> Booleans:
    return np.asarray(np.abs(difference) <= _ADJACENT, np.bool_)


def _by_order(both: tables.CellCounts) -> dict[str, Estimate]:
    """Return the estimates that infinite ratings have, too: ordinals tell what is equal or next."""
    table = tables.category_table(both)
    values = np.array([(number(x), number(y)) for x, y in both]).reshape(-1, 2)
    is_adjacent = _is_adjacent(_difference(*values.T)).tolist()
    n_equal = sum(count for (x, y), count in both.items() if x == y)
    n_adjacent = sum(c for c, is_near in zip(both.values(), is_adjacent, strict=True) if is_near)
    return {
        "exact_agreement": intervals.proportion(n_equal, table.n),
        "adjacent_agreement": intervals.proportion(n_adjacent, table.n),
        "cohen_kappa": tables.kappa(table, "nominal"),
        "krippendorff_alpha_nominal": tables.alpha(table, "nominal"),
        "krippendorff_alpha_ordinal": tables.alpha(table, "ordinal"),
    }


def _by_distance(both: tables.CellCounts) -> dict[str, Estimate]:
    """Return the estimates that rest on the distance of ratings."""
    values = {key: number(key) for cell in both for key in cell}
    is_finite = all(map(math.isfinite, values.values()))
    wholes = {key: whole(value) for key, value in values.items()} if is_finite else {}
    cells = {(wholes[x], wholes[y]): count for (x, y), count in both.items()} if is_finite else {}
    table = tables.category_table(cells)
    differences = [(x - y, count) for (x, y), count in cells.items()]
    sizes = [(abs(difference), count) for difference, count in differences]
    estimates = {
        "mean_difference": mean(differences, higher_is_better=None),
        "mean_absolute_difference": mean(sizes, higher_is_better=False, at_least=0.0),
        "cohen_kappa_linear": tables.kappa(table, "linear"),
        "cohen_kappa_quadratic": tables.kappa(table, "quadratic"),
        "krippendorff_alpha_interval": tables.alpha(table, "interval"),
    }
    if is_finite:
        return estimates
    n = sum(both.values())
    return {key: replace(e, n=n, reason="non-finite") for key, e in estimates.items()}


METRIC: Metric[Counts] = Agreement()
