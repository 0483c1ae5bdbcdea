"""What can be said of a difference: what every test gives back, and what none may claim."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from raveval.comparison.mcnemar import SMALLEST_P

MCNEMAR, BOOTSTRAP, CLUSTER_T = "mcnemar-exact", "paired-bootstrap", "cluster-t"
"""The tests."""


class LogDifference(NamedTuple):
    """95 % interval and standard error of the difference of two estimates' natural logarithms."""

    low: float
    high: float
    stderr: float


@dataclass(frozen=True, slots=True)
class Inference:
    """What can be said of a difference.

    Attributes:
        n_units: independent units it rests on, examples or clusters.
        n_differing: those in which the runs differ in any example.
        p, test: two-sided, and by which test; p is 1 where no unit differs.
        low, high, interval: 95 % interval and how it was made; None where none can be given.
        stderr: standard error of the difference, by the delta method or over the replicates.
        log: the same of the logarithms, where the estimate is an exponential of a ratio.
        n_replicates: of the bootstrap; None for other methods.
        reason: why there is no test.
    """

    n_units: int
    n_differing: int
    p: float | None = None
    test: str | None = None
    low: float | None = None
    high: float | None = None
    interval: str | None = None
    stderr: float | None = None
    log: LogDifference | None = None
    n_replicates: int | None = None
    reason: str | None = None


def least_p(n_differing: int) -> float:
    """Return the least p of so many units that differ, all of them in one direction."""
    return max(2.0 ** (1 - min(n_differing, 1000)), SMALLEST_P)


def with_interval(found: Inference, low: float, high: float, method: str) -> Inference:
    """Add an interval whose ends are numbers."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return found
    return replace(found, low=low, high=high, interval=method)


def finite(number: float) -> float | None:
    """Return a number; None for what is beyond the largest double."""
    return number if math.isfinite(number) else None
