"""Cohen's kappa of two lists of labels by statsmodels, which takes tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from statsmodels.stats.inter_rater import cohens_kappa


def statsmodels_kappa(
    x: Sequence[Any],
    y: Sequence[Any],
    *,
    weights: Literal["linear", "quadratic"] | None = None,
    labels: Sequence[Any] | None = None,
) -> float:
    """Return kappa; `labels` in their order, which weights go by, are those in use if not given."""
    places = {label: i for i, label in enumerate(labels or sorted({*x, *y}))}
    table = np.zeros((len(places), len(places)))
    np.add.at(table, ([places[label] for label in x], [places[label] for label in y]), 1)
    return float(cohens_kappa(table, wt=weights).kappa)
