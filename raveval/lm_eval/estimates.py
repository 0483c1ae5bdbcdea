"""The numbers of a results file as estimates: value and standard error as they stand.

What a file does not say is taken from what it does, or is None with a reason. How many examples a
number rests on is `n-samples`, or the samples themselves, or follows from a proportion p and its
standard error, since lm-eval's is sqrt(p (1 - p) / (n - 1)): n is then a whole number, and so is
p n, which is checked. Where even that is unknown, `n` is 0 and the task's `source` says so.

Intervals are Wilson's where the samples are there and each is right or wrong, else "wald95": value
± 1.96 of the file's standard errors, cut where such numbers end (a fraction at 0 and 1). Of a
standard error of 0 there is none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from raveval.lm_eval.conventions import (
    FRACTIONS,
    LOWER_IS_BETTER,
    NOT_AVAILABLE,
    PERPLEXITIES,
    MetricKey,
)
from raveval.lm_eval.reading import ResultsFile, mapping
from raveval.lm_eval.sample_lines import Sample
from raveval.metrics import _intervals as intervals
from raveval.types import Estimate

UNKNOWN_UNIT = "unknown"
_LOWEST = {"fraction": 0.0, "perplexity": 1.0, "bits": 0.0}
"""Where numbers of a unit begin, and so their intervals."""

_BESIDE = {each.name for each in fields(Estimate)} - {"value", "stderr"}
_WHOLE = 1e-6
"""How far rounding of a printed double may take a number of examples from a whole one."""


def estimates_of(
    file: ResultsFile, task: str, samples: Sequence[Sample] = ()
) -> dict[str, Estimate]:
    """Return a task's numbers by the keys of the file.

    Args:
        file: the results file.
        task: the task, or a group of tasks.
        samples: the task's samples, where they are there; in some filter's order.
    """
    metrics = file.metrics(task)
    numbers = {key: _estimate(file, task, key, parts) for key, parts in metrics.items()}
    n = n_examples(file, task, samples, numbers)
    found = {}
    for key, number in numbers.items():
        known = _ours(file, task, metrics[key].metric)
        if known:
            found[key] = replace(number, **known)
            continue
        shaped = _with_unit(replace(number, n=n or 0), metrics[key])
        found[key] = _with_interval(shaped, _scores(samples, metrics[key]))
    return found


def _ours(file: ResultsFile, task: str, metric: str) -> Mapping[str, Any]:
    """Return what raveval itself wrote of a number beside its value and standard error."""
    content = mapping(mapping(file.ours(task).get("estimates")).get(metric))
    return {key: value for key, value in content.items() if key in _BESIDE}


def n_examples(
    file: ResultsFile, task: str, samples: Sequence[Sample], numbers: Mapping[str, Estimate]
) -> int | None:
    """Return how many examples a task's numbers rest on; None where the file does not tell."""
    stated = file.n_samples(task)
    if stated is not None:
        return stated
    if samples:
        return len({sample.doc_id for sample in samples})
    found = {implied_n(each.value, each.stderr) for each in numbers.values()} - {None}
    return found.pop() if len(found) == 1 else None


def implied_n(p: float | None, stderr: float | None) -> int | None:
    """Return how many examples a proportion with this standard error is of; None if it is none.

    >>> implied_n(0.25, (0.25 * 0.75 / 99) ** 0.5)
    100
    >>> implied_n(0.251, (0.251 * 0.749 / 99) ** 0.5) is None
    True
    """
    if p is None or not stderr or not 0 < p < 1:
        return None
    unrounded = p * (1 - p) / stderr**2 + 1
    n = round(unrounded)
    is_whole = abs(unrounded - n) < _WHOLE * n and abs(p * n - round(p * n)) < _WHOLE * n
    return n if n > 1 and is_whole else None


def _estimate(file: ResultsFile, task: str, key: str, parts: MetricKey) -> Estimate:
    """Return value and standard error of a metric, without what follows from others."""
    given = file.tasks[task][key]
    stderr = _number(file.tasks[task].get(parts.stderr_key))
    value = _number(given)
    direction = _direction(file, task, parts.metric)
    if value is None:
        reason = _why(given)
        return Estimate(None, UNKNOWN_UNIT, 0, reason=reason, higher_is_better=direction)
    return Estimate(value, UNKNOWN_UNIT, 0, stderr=stderr, higher_is_better=direction)


def _number(given: Any) -> float | None:
    if isinstance(given, bool) or not isinstance(given, int | float):
        return None
    return float(given) if math.isfinite(given) else None


def _why(given: Any) -> str:
    if given == NOT_AVAILABLE or given is None:
        return "not in the file"
    return f"the file says {given!r:.40}"


def _direction(file: ResultsFile, task: str, metric: str) -> bool | None:
    stated = file.of("higher_is_better", task)
    if isinstance(stated, Mapping) and type(stated.get(metric)) is bool:
        return bool(stated[metric])
    if isinstance(stated, Mapping) and metric in stated:
        return None
    if metric in LOWER_IS_BETTER:
        return False
    return True if metric in FRACTIONS - {"pct_stereotype"} else None


def _with_unit(estimate: Estimate, parts: MetricKey) -> Estimate:
    """Say what a number is, by its name or by its standard error being that of a proportion."""
    value, metric = estimate.value, parts.metric
    if metric in PERPLEXITIES:
        return replace(estimate, unit="perplexity")
    if metric == "bits_per_byte":
        return replace(estimate, unit="bits")
    is_proportion = implied_n(value, estimate.stderr) is not None
    if is_proportion or (metric in FRACTIONS and value is not None and 0 <= value <= 1):
        return replace(estimate, unit="fraction")
    return estimate


def _scores(samples: Sequence[Sample], parts: MetricKey) -> list[Any]:
    """Return what each sample has of a metric, after its own filter."""
    return [
        sample.columns.get(parts.metric)
        for sample in samples
        if parts.filter is None or sample.filter == parts.filter
    ]


def _with_interval(estimate: Estimate, scores: Sequence[Any]) -> Estimate:
    if estimate.value is None:
        return estimate
    if scores and all(score in (0, 1) for score in scores):
        exact = intervals.proportion(int(sum(scores)), len(scores))
        if exact.value == estimate.value and _agree(exact.stderr, estimate.stderr):
            low, high = exact.low, exact.high
            return replace(estimate, n=len(scores), low=low, high=high, interval=exact.interval)
    if not estimate.stderr:
        why = "no standard error" if estimate.stderr is None else "no spread"
        return replace(estimate, no_interval=why)
    half_width = intervals.Z95 * estimate.stderr
    low, high = estimate.value - half_width, estimate.value + half_width
    if estimate.unit == "fraction":
        high = min(1.0, high)
    low = max(low, min(_LOWEST.get(estimate.unit, low), estimate.value))
    return replace(estimate, low=low, high=high, interval="wald95")


def _agree(exact: float | None, given: float | None) -> bool:
    """Whether a standard error is that of independent examples; of clusters it is another."""
    return given is None or math.isclose(exact or 0.0, given, rel_tol=1e-9)
