"""Compares two estimates by nothing but their standard errors.

For numbers of which no examples are there, such as those of another tool's results file. What makes
an example hard for both models does not cancel, so the interval is wider than a paired one on the
same examples, and a difference that pairing would show may not be shown. Test and interval are the
normal ones: z = difference / sqrt(se_a^2 + se_b^2), difference ± 1.96 of that error. Perplexities
are tested on the logarithm, where errors are nearly symmetric: with se / value for se.
"""

from __future__ import annotations

import math
from dataclasses import replace

from raveval.comparison.estimates import with_quotient
from raveval.comparison.inference import LogDifference
from raveval.comparison.mcnemar import SMALLEST_P
from raveval.comparison.paired import detectable
from raveval.comparison.results import UNPAIRED, Difference
from raveval.metrics._intervals import Z95
from raveval.types import Estimate

INTERVAL = "unpaired-wald95"


def difference_of(a: Estimate, b: Estimate, name: str, *, task: str, run: str) -> Difference:
    """Return how an estimate of a run differs from the baseline's; `verdict` is not set yet."""
    value, reason = _difference(a, b)
    stderr = _stderr(a, b)
    bare = Difference(
        task=task,
        run=run,
        metric=name,
        unit=b.unit,
        higher_is_better=b.higher_is_better if a.higher_is_better is None else a.higher_is_better,
        baseline=a.value,
        value=b.value,
        difference=value,
        reason=reason or ("no standard error" if not stderr else None),
    )
    if value is None or not stderr:
        return bare
    tested = _tested(bare, value, stderr)
    log = _on_logarithm(a, b)
    if log is None:
        return tested
    shift = (log.low + log.high) / 2
    return with_quotient(replace(tested, p=_p(shift / log.stderr)), log)


def _on_logarithm(a: Estimate, b: Estimate) -> LogDifference | None:
    """Return the difference of the logarithms of two perplexities; None of other estimates."""
    logs = [_log_and_error(each) for each in (a, b)]
    if a.unit != "perplexity" or logs[0] is None or logs[1] is None:
        return None
    (log_a, error_a), (log_b, error_b) = logs[0], logs[1]
    error = math.hypot(error_a, error_b)
    if error == 0:
        return None
    shift = log_b - log_a
    return LogDifference(shift - Z95 * error, shift + Z95 * error, error)


def _log_and_error(estimate: Estimate) -> tuple[float, float] | None:
    value, stderr = estimate.value, estimate.stderr
    if value is None or value <= 0 or stderr is None:
        return None
    return math.log(value), stderr / value


def _p(z: float) -> float:
    return max(math.erfc(abs(z) / math.sqrt(2)), SMALLEST_P)


def _difference(a: Estimate, b: Estimate) -> tuple[float | None, str | None]:
    """Return the difference, or why there is none."""
    if a.value is None or b.value is None:
        return None, a.reason or b.reason
    if a.unit != b.unit:
        return None, f"in other units ({a.unit}, {b.unit})"
    difference = b.value - a.value
    return (difference, None) if math.isfinite(difference) else (None, "overflow")


def _stderr(a: Estimate, b: Estimate) -> float | None:
    """Return the error of the difference of two independent numbers."""
    if a.stderr is None or b.stderr is None:
        return None
    error = math.hypot(a.stderr, b.stderr)
    return error if math.isfinite(error) else None


def _tested(bare: Difference, difference: float, stderr: float) -> Difference:
    low, high = difference - Z95 * stderr, difference + Z95 * stderr
    if bare.unit == "fraction":
        low, high = max(-1.0, low), min(1.0, high)
    return replace(
        bare,
        low=low,
        high=high,
        interval=INTERVAL,
        p=_p(difference / stderr),
        test=UNPAIRED,
        stderr=stderr,
        detectable=detectable(stderr),
    )
