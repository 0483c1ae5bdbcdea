"""Many bootstrap replicates at once of a judge's ratings' spread and middle, in floating point."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from raveval.metrics import Replicator
from raveval.metrics._exact import Doubles, Integers
from raveval.metrics._ratings import Samples


def locations(ratings: Doubles) -> Replicator:
    """Return what makes replicates of standard deviation and median; NaN is no rating."""
    rows = np.flatnonzero(~np.isnan(ratings))
    values, value_of_row, counts = np.unique(ratings[rows], return_inverse=True, return_counts=True)
    order = rows[np.argsort(value_of_row, kind="stable")]
    starts = np.cumsum(counts) - counts
    if not len(values) or not np.isfinite(values[[0, -1]]).all():
        return lambda weights: {
            name: np.full(len(weights), np.nan) for name in ("standard_deviation", "median_rating")
        }

    def replicates(weights: Integers) -> Mapping[str, Doubles]:
        tables = np.add.reduceat(weights[:, order], starts, axis=1)
        return {
            "standard_deviation": _deviations(tables, values),
            "median_rating": _medians(tables, values),
        }

    return replicates


def _deviations(tables: Integers, values: Doubles) -> Doubles:
    n = tables.sum(axis=1)
    unit = float(np.abs(values).max()) or 1.0  # so that no square overflows or vanishes
    scaled = values / unit
    with np.errstate(invalid="ignore", divide="ignore"):  # 0 / 0 for fewer than two ratings
        centre = (tables * scaled).sum(axis=1) / n
        squares = (tables * (scaled - centre[:, None]) ** 2).sum(axis=1)
        deviations: Doubles = np.where(n > 1, unit * np.sqrt(squares / (n - 1)), np.nan)
    return deviations


def _medians(tables: Integers, values: Doubles) -> Doubles:
    """Return the mean of the two middle ratings, which are one where their number is odd."""
    through = np.cumsum(tables, axis=1)
    n = through[:, -1]
    lower, upper = (
        values[(through > middle[:, None]).argmax(axis=1)] for middle in ((n - 1) // 2, n // 2)
    )
    medians: Doubles = np.where(n > 0, lower / 2 + upper / 2, np.nan)
    return medians


def sample_alpha(samples: Samples) -> Replicator:
    """Return what makes replicates of alpha over rows of two samples or more."""
    n_samples = samples.n_samples.astype(np.float64)
    rows = np.flatnonzero(samples.n_samples > 1)
    is_in_rows = samples.n_samples[samples.rows] > 1
    values, row_of = samples.values[is_in_rows], samples.rows[is_in_rows]
    if not len(rows) or not np.isfinite(values).all():
        return lambda weights: {"krippendorff_alpha_samples": np.full(len(weights), np.nan)}
    values = values / (float(np.abs(values).max()) or 1.0)
    values = values - values.mean()
    n_rows = len(n_samples)
    sizes = n_samples[rows]
    s1, s2 = (np.bincount(row_of, values**k, n_rows)[rows] for k in (1, 2))
    lowest, highest = np.full(n_rows, np.inf), np.full(n_rows, -np.inf)
    np.minimum.at(lowest, row_of, values)
    np.maximum.at(highest, row_of, values)
    seen = (sizes * s2 - s1 * s1) / (sizes - 1)

    def replicates(weights: Integers) -> Mapping[str, Doubles]:
        of_rows = weights[:, rows]
        size, total, squares, apart = (
            (of_rows * each).sum(axis=1) for each in (sizes, s1, s2, seen)
        )
        is_drawn = of_rows > 0
        least = np.where(is_drawn, lowest[rows], np.inf).min(axis=1)
        most = np.where(is_drawn, highest[rows], -np.inf).max(axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):  # where all samples are equal
            alphas = 1 - (size - 1) * apart / (size * squares - total * total)
        return {"krippendorff_alpha_samples": np.where(least < most, alphas, np.nan)}

    return replicates
