"""Compares the estimates of one metric family between two runs, on their paired records.

An example that one of the runs cannot use for an estimate (a log-likelihood that is no number, a
rating that is missing) is left out of that estimate in both, and both values are those of the
examples that remain. One that a run's own answer takes out of a share (a judge that calls a tie)
stays: leaving it out of the other run too would hide what the answer did.

Ratios of sums are compared by what each example adds (`Metric.contributions`). Estimates that are
no ratios (correlations, kappa) are compared by drawing the records of both runs together, many
replicates at once where the metric can (`Reweighted`); in a family that has ratios too, only those
asked for by name are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raveval.comparison import delta, paired, resampling
from raveval.comparison.delta import PairedContributions
from raveval.comparison.differing import differing
from raveval.comparison.inference import CLUSTER_T, MCNEMAR, Inference, LogDifference
from raveval.comparison.pairing import Paired
from raveval.comparison.results import Difference
from raveval.metrics import Metric, Replicator, Reweighted, Selective
from raveval.metrics._bootstrap import count_replicates
from raveval.metrics._clusters import Clustered
from raveval.metrics._exact import Doubles, Integers
from raveval.types import Estimate

FEWEST_REPLICATES = 200
MOST_REPLICATES = 2000
_MOST_NUMBERS = 20_000_000
"""Replicates of estimates that are no ratios: as many of up to 2000 as draw so many rows."""

MOST_ANEW = 1000
_MOST_ROWS_ANEW = 1_000_000
"""The same where each replicate computes the metric anew."""

_NUMBERS_AT_ONCE = 1 << 20
"""Bounds the memory of a part of the replicates: 8 MiB for each column of weights."""

_SEED = 0x0BADCAB1E

Booleans = NDArray[np.bool_]


def differences_of(
    metric: Metric[Any], found: Paired, wanted: Sequence[str], *, task: str, run: str
) -> list[Difference]:
    """Return how a run differs from the baseline in each estimate, or in those that are wanted.

    `p_holm` and `verdict` are not set yet.
    """
    if isinstance(metric, Clustered):
        metric = metric.inner  # clusters are the units of the comparison, not of its values
    a, b = _estimates(metric, found.a), _estimates(metric, found.b)
    names = [name for name in a if not wanted or name in wanted]
    compared = {name: _bare(a[name], b[name], name, task, run) for name in names}
    pairs = contributions(metric, found)
    masks = usable(metric, found, pairs)
    defined = {name: d for name, d in compared.items() if d.difference is not None}
    compared |= _on_usable(metric, found, defined, masks)
    defined = {name: d for name, d in compared.items() if d.difference is not None}
    ratios = {name: pairs[name] for name in defined if name in metric.ratios}
    others = [name for name in defined if name not in metric.ratios]
    inferences = _of_ratios(metric, found, ratios, masks)
    if wanted or not metric.ratios:
        inferences |= _of_others(metric, found, others, masks)
    for name, inference in inferences.items():
        compared[name] = _with(compared[name], inference)
        if name in ratios:
            compared[name] = _with_counts(compared[name], delta.kept(ratios[name], masks[name]))
    return list(compared.values())


def contributions(metric: Metric[Any], found: Paired) -> Mapping[str, PairedContributions]:
    """Return what each paired example adds to each ratio of a metric."""
    a, b = metric.contributions(found.a), metric.contributions(found.b)
    return {name: PairedContributions(a[name], b[name]) for name in a}


def usable(
    metric: Metric[Any], found: Paired, pairs: Mapping[str, PairedContributions]
) -> Mapping[str, Booleans]:
    """Return which paired examples both runs can use, for each estimate that this is known of."""
    masks = {name: delta.entering(each) for name, each in pairs.items()}
    if isinstance(metric, Selective):
        a, b = metric.usable(found.a), metric.usable(found.b)
        masks |= {name: a[name] & b[name] for name in a}
    return masks


def _estimates(metric: Metric[Any], records: pa.Table) -> Mapping[str, Estimate]:
    return metric.compute(metric.update(metric.init(), records))


def _bare(a: Estimate, b: Estimate, name: str, task: str, run: str) -> Difference:
    """Return a difference without a test; where it is undefined, why."""
    difference, reason = None, a.reason or b.reason
    if a.value is not None and b.value is not None:
        difference = b.value - a.value
        if not math.isfinite(difference):
            difference, reason = None, "overflow"
    return Difference(
        task=task,
        run=run,
        metric=name,
        unit=b.unit,
        higher_is_better=b.higher_is_better,
        baseline=a.value,
        value=b.value,
        difference=difference,
        reason=reason,
        n=min(a.n, b.n),
    )


def _on_usable(
    metric: Metric[Any],
    found: Paired,
    bare: Mapping[str, Difference],
    masks: Mapping[str, Booleans],
) -> Iterator[tuple[str, Difference]]:
    """Yield the differences on the examples that both runs can use; most often all of them."""
    for mask, names in _by_mask(bare, masks):
        n = int(mask.sum())
        if n == len(mask):
            yield from ((name, replace(bare[name], n=n)) for name in names)
            continue
        part = _part(found, mask)
        a, b = _estimates(metric, part.a), _estimates(metric, part.b)
        for name in names:
            d = _bare(a[name], b[name], name, bare[name].task, bare[name].run)
            yield name, replace(d, n=n)


def _by_mask(
    names: Iterable[str], masks: Mapping[str, Booleans]
) -> Iterator[tuple[Booleans, list[str]]]:
    """Yield each distinct mask, and the names that have it."""
    alike: dict[bytes, list[str]] = {}
    for name in names:
        if name in masks:
            alike.setdefault(masks[name].tobytes(), []).append(name)
    yield from ((masks[each[0]], each) for each in alike.values())


class _Part(NamedTuple):
    """Paired records that an estimate uses; `units` numbers the independent unit of each row."""

    a: pa.Table
    b: pa.Table
    units: Integers


def _part(found: Paired, mask: Booleans) -> _Part:
    rows = pa.array(mask)
    return _Part(found.a.filter(rows), found.b.filter(rows), _units(found, mask))


def _units(found: Paired, mask: Booleans) -> Integers:
    if found.clusters is None:
        return np.arange(int(mask.sum()))
    units: Integers = np.unique(found.clusters[mask], return_inverse=True)[1]
    return units


def _of_ratios(
    metric: Metric[Any],
    found: Paired,
    pairs: Mapping[str, PairedContributions],
    masks: Mapping[str, Booleans],
) -> dict[str, Inference]:
    inferences: dict[str, Inference] = {}
    drawn = []
    for name, each in pairs.items():
        ratio, entering = metric.ratios[name], delta.kept(each, masks[name])
        if found.clusters is not None:
            inferences[name] = paired.cluster_t(entering, ratio, _units(found, masks[name]))
        elif paired.is_binary(entering, ratio):
            inferences[name] = paired.binary(entering)
        else:
            drawn.append(name)
    by_bootstrap = resampling.bootstrap([(pairs[n], metric.ratios[n], masks[n]) for n in drawn])
    return inferences | dict(zip(drawn, by_bootstrap, strict=True))


def _of_others(
    metric: Metric[Any], found: Paired, names: Sequence[str], masks: Mapping[str, Booleans]
) -> dict[str, Inference]:
    everywhere = np.ones(len(found.a), np.bool_)
    known = {name: masks.get(name, everywhere) for name in names}
    inferences = {}
    for mask, alike in _by_mask(names, known):
        part = _part(found, mask)
        read = [name for name in (*metric.needs, *metric.optional) if name in part.a.column_names]
        is_different = differing(part.a.select(read), part.b.select(read))
        n_differing = len(np.unique(part.units[is_different]))
        replicates = _replicates(metric, part, alike, n_differing)
        for name in alike:
            inferences[name] = resampling.resampled(
                replicates[name],
                replicates[name],
                n_units=int(part.units.max()) + 1,
                n_differing=n_differing,
                stderr=None,
            )
    return inferences


def _replicates(
    metric: Metric[Any], part: _Part, names: Sequence[str], n_differing: int
) -> Mapping[str, Doubles]:
    """Return replicates of the difference of each estimate: whole units, drawn in both runs alike.

    NaN where either is undefined; there are none where no unit differs.
    """
    parts: dict[str, list[Doubles]] = {name: [] for name in names}
    if n_differing == 0:
        return dict.fromkeys(names, np.empty(0))
    of_a, of_b = _replicator(metric, part.a), _replicator(metric, part.b)
    for weights in _weights(part.units, _n_replicates(metric, len(part.a))):
        a, b = of_a(weights), of_b(weights)
        for name in names:
            parts[name].append(resampling.without_rounding(a[name], b[name]))
    return {name: np.concatenate(each) for name, each in parts.items()}


def _n_replicates(metric: Metric[Any], n_rows: int) -> int:
    if isinstance(metric, Reweighted):
        return min(MOST_REPLICATES, max(FEWEST_REPLICATES, _MOST_NUMBERS // n_rows))
    return min(MOST_ANEW, max(FEWEST_REPLICATES, _MOST_ROWS_ANEW // n_rows))


def _weights(units: Integers, n_replicates: int) -> Iterator[Integers]:
    """Yield how often each row is drawn in some of the replicates: as often as its unit."""
    at_once = max(1, _NUMBERS_AT_ONCE // len(units))
    every_unit = np.ones(int(units.max()) + 1, np.int64)
    for draws in count_replicates(every_unit, n_replicates=n_replicates, seed=_SEED):
        for start in range(0, len(draws), at_once):
            yield draws[start : start + at_once, units]


def _replicator(metric: Metric[Any], records: pa.Table) -> Replicator:
    if isinstance(metric, Reweighted):
        return metric.reweighted(records)
    every_row = np.arange(len(records))

    def replicates(weights: Integers) -> Mapping[str, Doubles]:
        found = [_estimates(metric, records.take(np.repeat(every_row, each))) for each in weights]
        return {name: np.array([_number(e[name].value) for e in found]) for name in found[0]}

    return replicates


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _with(difference: Difference, inference: Inference) -> Difference:
    low, high = inference.low, inference.high
    if difference.unit == "fraction" and low is not None and high is not None:
        low, high = max(-1.0, low), min(1.0, high)
    stderr = inference.stderr
    n_clusters = inference.n_units if inference.test == CLUSTER_T else None
    detectable = paired.detectable(stderr, n_clusters=n_clusters) if stderr else None
    if inference.log is not None:
        difference = with_quotient(difference, inference.log, n_clusters=n_clusters)
    return replace(
        difference,
        reason=inference.reason,
        low=low,
        high=high,
        interval=inference.interval,
        p=inference.p,
        test=inference.test,
        stderr=stderr,
        detectable=detectable if detectable and math.isfinite(detectable) else None,
        n_units=inference.n_units,
        n_differing=inference.n_differing,
        n_replicates=inference.n_replicates,
    )


def with_quotient(
    difference: Difference, log: LogDifference, *, n_clusters: int | None = None
) -> Difference:
    """Add how often the baseline goes into the value."""
    if difference.baseline is None or difference.value is None:
        return difference
    found = paired.quotient(difference.baseline, difference.value, log, n_clusters=n_clusters)
    return replace(difference, **found._asdict())


def _with_counts(difference: Difference, entering: PairedContributions) -> Difference:
    """Add what the contributions say of the examples."""
    differs = bool((entering.a.u != entering.b.u).any())
    with_counts = replace(difference, has_other_denominators=differs)
    if difference.test != MCNEMAR:
        return with_counts
    table = paired.fourfold(entering)
    return replace(with_counts, n_only_baseline=table.only_a, n_only_run=table.only_b)
