"""Correlation of ratings with reference ratings: Pearson, Spearman, Kendall's tau-b and tau-c.

Estimands: how far the ratings agree with the reference ratings over examples drawn like these, in
value (`pearson`), in rank (`spearman`) and in the order of two examples (`kendall_tau_b`,
`kendall_tau_c`). With x_i and y_i the two ratings of example i, of n examples that have both:

    pearson        cov(x, y) / sqrt(var(x) var(y))
    spearman       the same of the mid-ranks (equal ratings share the mean of their ranks)
    kendall_tau_b  (P - Q) / sqrt((N - Tx) (N - Ty))
    kendall_tau_c  2 m (P - Q) / (n^2 (m - 1))

with P and Q the pairs of examples ordered alike and oppositely, N = n (n - 1) / 2, Tx and Ty the
pairs tied in x and in y, m the smaller number of distinct ratings (Kendall, Biometrika 33 (1945)
239-251; Stuart, Biometrika 40 (1953) 105-110). Unit: correlation, in [-1, 1]; higher is better; `n`
counts examples with both ratings.

A rating is a number, or a list of a judge's samples whose exact mean is meant. Where ratings are on
a grid, give its denominator (3 for the means of three whole scores): without it, ratings that are
equal on paper can differ in their last bit, and rank correlations change.

A null or NaN rating is missing: the example is left out and counted in the notes (one that lacks
both counts in both). Infinite ratings have ranks as others do, but no Pearson correlation.
Undefined: "n<2"; "constant" where either side has one value only; "non-finite".

All values are exact ratios of integers, or roots of such, rounded once: the state is how often each
pair of ratings occurs, so neither sharding nor a common offset of the ratings can move a digit.

Intervals, for n of at least 4:

- `pearson`: the wider of two, both on the scale of Fisher's z = atanh(r). Fisher's own (Biometrika
  10 (1915) 507-521), atanh(r) ± 1.96 / sqrt(n - 3), "fisher-z95", supposes ratings that are about
  normal, and is far too narrow where they are not: on a scale of three of which most ratings are
  the middle one (r = 0.64), 62 % of simulated intervals held the truth at n = 100, and 68 % at
  1000. The delta method's error, "delta-z95", supposes nothing, but is too small for few examples.
  The wider one holds the truth in 96 % for normal ratings and 95 to 97 % for grades of five, at
  n = 30 to 1000; in 93 % (100) and 95 % (1000) on that scale of three; in 88 % (30), 92 % (100) and
  94 % (1000) for exponential ratings.
- `kendall_tau_b`, `kendall_tau_c`: the large-sample error in closed form (Brown and Benedetti, JASA
  72 (1977) 309-315), carried over to the scale of Fisher's z, where it covers better than as
  tau ± 1.96 errors, "brown-benedetti-z95".
- `spearman`: percentiles of 2000 bootstrap replicates, drawn from the counts, "bootstrap95"; with
  more than 2048 distinct pairs, or 100 000 examples, the delta method's error on the scale of
  Fisher's z, "delta-z95". It supposes nothing about the ratings, unlike the error of Bonett and
  Wright (Psychometrika 65 (2000) 23-28), which is too small on coarse scales.

Where examples have a `cluster`, whole clusters are drawn with replacement, "cluster-bootstrap95"
(in simulation 92 to 93 % held the truth with 20 clusters, 93 to 94 % with 100). With more than 2048
distinct pairs, or 65536 rows of cluster and pair, the delta method's error among clusters and
Student's quantile take their place, "cluster-t95". There is no interval with fewer than 4 clusters,
or where some examples have a cluster and others not; the notes count both.

An interval is widened to its value where it does not reach it. A perfect correlation, or another
without any spread over replicates, has neither error nor interval: that no spread was seen is no
proof that there is none. Nor is there an interval from replicates of which more than one in 20 is
undefined, a side being constant in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from raveval.metrics import Contribution, Json, Metric, Ratio, Replicator
from raveval.metrics import _intervals as intervals
from raveval.metrics import _ranks as ranks
from raveval.metrics._clusters import CLUSTER
from raveval.metrics._correlation_intervals import spreads
from raveval.metrics._correlation_replicates import correlations
from raveval.metrics._count_tables import rating_tables
from raveval.metrics._exact import Booleans
from raveval.metrics._joint_counts import NO_CLUSTER, RUN_KEYS, Run, read_run, write_run
from raveval.metrics._ranks import Cells
from raveval.metrics._rating_pairs import RatingPairs, read_rating_pairs
from raveval.metrics._ratings import (
    RATING,
    RATING_DENOMINATOR,
    REFERENCE_RATING,
    REFERENCE_RATING_DENOMINATOR,
    read_both,
)
from raveval.metrics._state import read_state, write_state
from raveval.types import CountTable, Estimate

NAMES = ("pearson", "spearman", "kendall_tau_b", "kendall_tau_c")

_UNIT = "correlation"


class Correlation:
    """Pearson, Spearman, tau-b and tau-c of ratings and reference ratings."""

    name = "correlation"
    version = 2
    columns: tuple[pa.Field, ...] = (
        RATING,
        REFERENCE_RATING,
        RATING_DENOMINATOR,
        REFERENCE_RATING_DENOMINATOR,
        CLUSTER,
    )
    needs: tuple[str, ...] = ("rating", "reference_rating")
    optional: tuple[str, ...] = ("rating_denominator", "reference_rating_denominator", "cluster")
    ratios: Mapping[str, Ratio] = {}

    def init(self) -> RatingPairs:
        """Return the state of no examples."""
        return RatingPairs()

    def update(self, state: RatingPairs, records: pa.Table) -> RatingPairs:
        """Add examples; one that lacks a rating is left out and counted."""
        return state + read_rating_pairs(records)

    def merge(self, a: RatingPairs, b: RatingPairs) -> RatingPairs:
        """Add the counts of each pair."""
        return a + b

    def compute(self, state: RatingPairs) -> Mapping[str, Estimate]:
        """Return all coefficients; the cost depends on the distinct pairs alone."""
        run = state.joint.consolidated()
        cells = ranks.tabulate(run)
        reasons = _reasons(cells)
        found = {} if "spearman" in reasons else _estimates(run, cells)
        undefined = {
            name: intervals.undefined(reason, unit=_UNIT, n=cells.n, higher_is_better=True)
            for name, reason in reasons.items()
        }
        estimates = {**undefined, **found}
        return {name: estimates[name] for name in NAMES}

    def notes(self, state: RatingPairs) -> Mapping[str, int]:
        """Return examples left out, and where there are clusters, these and examples without."""
        notes = state.notes()
        run = state.joint.consolidated()
        if run.clusters is not None:
            keys = run.clusters[run.clusters != NO_CLUSTER]
            notes["clusters"] = len(np.unique(keys))
            without = int(run.counts[run.clusters == NO_CLUSTER].sum())
            if without:
                notes["without_cluster"] = without
        return notes

    def tables(self, state: RatingPairs) -> Mapping[str, CountTable]:
        """Return how often each pair of ratings occurs."""
        run = state.joint.consolidated()
        return rating_tables(run.pairs.real, run.pairs.imag, run.counts)

    def contributions(self, records: pa.Table) -> Mapping[str, Contribution]:
        """Return nothing: a correlation is no ratio of sums over examples."""
        return {}

    def usable(self, records: pa.Table) -> Mapping[str, Booleans]:
        """Return which examples have both ratings."""
        x, y = read_both(records)
        return dict.fromkeys(NAMES, ~(np.isnan(x) | np.isnan(y)))

    def reweighted(self, records: pa.Table) -> Replicator:
        """Return what makes replicates of the coefficients.

        tau-c is scaled by the distinct ratings of all examples, not of those in a replicate.
        """
        return correlations(*read_both(records))

    def encode(self, state: RatingPairs) -> Json:
        """Return the distinct rows in order, with their counts, and the examples left out."""
        body = {
            **write_run(state.joint.consolidated()),
            "rating_missing": state.n_rating_missing,
            "reference_rating_missing": state.n_reference_missing,
        }
        return write_state(self.name, self.version, body)

    def decode(self, content: Json) -> RatingPairs:
        """Return the state of `encode`."""
        keys = (*RUN_KEYS, "rating_missing", "reference_rating_missing")
        read = read_state(content, self.name, self.version, keys)
        return RatingPairs(
            read_run(read), read.count("rating_missing"), read.count("reference_rating_missing")
        )


def _reasons(cells: Cells) -> Mapping[str, str]:
    """Return why a coefficient is undefined, for each that is."""
    if cells.n < 2:
        return dict.fromkeys(NAMES, "n<2")
    reasons = dict.fromkeys(NAMES, "constant") if cells.is_constant else {}
    return reasons if cells.is_finite else reasons | {"pearson": "non-finite"}


def _estimates(run: Run, cells: Cells) -> Mapping[str, Estimate]:
    """Return the coefficients that are defined; neither side is constant."""
    difference = ranks.concordance(cells)
    values = {
        "spearman": ranks.spearman(cells),
        "kendall_tau_b": ranks.kendall_tau_b(cells, difference),
        "kendall_tau_c": ranks.kendall_tau_c(cells, difference),
    }
    if cells.is_finite:
        values["pearson"] = ranks.pearson(cells)
    estimates = {
        name: Estimate(value, _UNIT, cells.n, higher_is_better=True)
        for name, value in values.items()
    }
    for name, spread in spreads(run, cells, values, difference).items():
        found = {"no_interval": spread} if isinstance(spread, str) else spread._asdict()
        estimates[name] = replace(estimates[name], **found)
    return estimates


METRIC: Metric[RatingPairs] = Correlation()
