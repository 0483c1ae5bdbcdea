"""Compares the estimates of one metric family between two runs, on their paired records.

Ratios of sums are compared by what each example adds (`Metric.contributions`). An example that one
of the runs cannot use (a log-likelihood that is no number) is left out of that estimate in both,
and both values are those of the examples that remain. Estimates that are no ratios (correlations,
kappa) are compared by drawing the records of both runs together and computing the metric anew,
which is slow: in a family that has ratios too, only those asked for by name are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raveval.comparison import paired
from raveval.comparison.paired import Inference, Pairs
from raveval.comparison.pairing import Paired
from raveval.comparison.results import Difference
from raveval.metrics import Metric
from raveval.metrics._exact import Integers
from raveval.types import Estimate

MOST_REPLICATES = 1000
FEWEST_REPLICATES = 200
_MOST_ROWS = 1_000_000
"""Replicates that compute the metric anew: as many of up to 1000 as draw a million rows."""

_SEED = 0x0BADCAB1E


def differences_of(
    metric: Metric[Any], found: Paired, wanted: Sequence[str], *, task: str, run: str
) -> list[Difference]:
    """Return how a run differs from the baseline in each estimate, or in those that are wanted.

    `p_holm` and `verdict` are not set yet.
    """
    both = _estimates(metric, found.a), _estimates(metric, found.b)
    names = [name for name in both[0] if not wanted or name in wanted]
    bare = {name: _bare(both[0][name], both[1][name], name, task, run) for name in names}
    defined = [name for name in names if bare[name].difference is not None]
    ratios = [name for name in defined if name in metric.ratios]
    others = [name for name in defined if name not in metric.ratios]
    compared = {**bare, **_ratio_differences(metric, found, {n: bare[n] for n in ratios})}
    if others and (wanted or not metric.ratios):
        compared |= _other_differences(metric, found, {name: bare[name] for name in others})
    return list(compared.values())


def _estimates(metric: Metric[Any], records: pa.Table) -> Mapping[str, Estimate]:
    return metric.compute(metric.update(metric.init(), records))


def _bare(a: Estimate, b: Estimate, name: str, task: str, run: str) -> Difference:
    """Return a difference without a test; where it is undefined, why."""
    reason = a.reason or b.reason
    return Difference(
        task=task,
        run=run,
        metric=name,
        unit=b.unit,
        higher_is_better=b.higher_is_better,
        baseline=a.value,
        value=b.value,
        difference=None if a.value is None or b.value is None else b.value - a.value,
        reason=reason,
        n=min(a.n, b.n),
    )


def _ratio_differences(
    metric: Metric[Any], found: Paired, bare: Mapping[str, Difference]
) -> dict[str, Difference]:
    if not bare:
        return {}
    added_a, added_b = metric.contributions(found.a), metric.contributions(found.b)
    pairs = {name: Pairs(added_a[name], added_b[name]) for name in bare}
    masks = {name: paired.usable(each) for name, each in pairs.items()}
    compared = dict(_on_usable(metric, found, bare, masks))
    inferences: dict[str, Inference] = {}
    drawn: list[str] = []
    for name in [name for name, d in compared.items() if d.difference is not None]:
        entering = paired.kept(pairs[name], masks[name])
        if found.clusters is not None:
            clusters = np.unique(found.clusters[masks[name]], return_inverse=True)[1]
            inferences[name] = paired.cluster_t(
                paired.summed(entering, clusters), metric.ratios[name]
            )
        elif paired.is_binary(entering, metric.ratios[name]):
            inferences[name] = paired.binary(entering)
        else:
            drawn.append(name)
    by_bootstrap = paired.bootstrap([(pairs[name], metric.ratios[name]) for name in drawn])
    inferences |= zip(drawn, by_bootstrap, strict=True)
    for name, inference in inferences.items():
        entering = paired.kept(pairs[name], masks[name])
        with_test = _with(compared[name], inference)
        differs = bool((entering.a.u != entering.b.u).any())
        compared[name] = replace(with_test, n=len(entering.a.x), has_other_denominators=differs)
        if inference.test == "mcnemar_exact":
            table = paired.agreement(entering)
            compared[name] = replace(
                compared[name], n_only_baseline=table.only_a, n_only_run=table.only_b
            )
    return compared


def _on_usable(
    metric: Metric[Any],
    found: Paired,
    bare: Mapping[str, Difference],
    masks: Mapping[str, NDArray[np.bool_]],
) -> Iterator[tuple[str, Difference]]:
    """Yield the differences on the examples that both runs can use; most often all of them."""
    computed: dict[bytes, tuple[Mapping[str, Estimate], Mapping[str, Estimate]]] = {}
    for name, difference in bare.items():
        mask = masks[name]
        if mask.all():
            yield name, difference
            continue
        key = mask.tobytes()
        if key not in computed:
            rows = pa.array(mask)
            parts = (found.a.filter(rows), found.b.filter(rows))
            computed[key] = _estimates(metric, parts[0]), _estimates(metric, parts[1])
        a, b = (estimates[name] for estimates in computed[key])
        yield name, _bare(a, b, name, difference.task, difference.run)


def _with(difference: Difference, inference: Inference) -> Difference:
    low, high = inference.low, inference.high
    if difference.unit == "fraction" and low is not None and high is not None:
        low, high = max(-1.0, low), min(1.0, high)
    return replace(
        difference,
        low=low,
        high=high,
        interval=inference.interval,
        p=inference.p,
        test=inference.test,
        stderr=inference.stderr,
        detectable=paired.detectable(inference.stderr) if inference.stderr else None,
        n_units=inference.n_units,
        n_differing=inference.n_differing,
        n_replicates=inference.n_replicates,
    )


def _other_differences(
    metric: Metric[Any], found: Paired, bare: Mapping[str, Difference]
) -> dict[str, Difference]:
    n_rows = len(found.a)
    clusters = np.arange(n_rows) if found.clusters is None else found.clusters
    is_different = _differing(metric, found)
    n_differing = len(np.unique(clusters[is_different]))
    n_units = int(clusters.max()) + 1
    draws: Iterator[Integers] = iter(())
    if n_differing:
        n = min(MOST_REPLICATES, max(FEWEST_REPLICATES, _MOST_ROWS // n_rows))
        draws = _draws(clusters, n_units, n)
    replicates = np.array(
        [
            [_difference(a[name], b[name]) for name in bare]
            for a, b in (
                (_estimates(metric, found.a.take(rows)), _estimates(metric, found.b.take(rows)))
                for rows in draws
            )
        ]
    ).reshape(-1, len(bare))
    compared = {}
    for (name, difference), values in zip(bare.items(), replicates.T, strict=True):
        inference = paired.resampled(
            values, values, n_units=n_units, n_differing=n_differing, stderr=None
        )
        compared[name] = replace(_with(difference, inference), n=n_rows)
    return compared


def _difference(a: Estimate, b: Estimate) -> float:
    return float("nan") if a.value is None or b.value is None else b.value - a.value


def _differing(metric: Metric[Any], found: Paired) -> NDArray[np.bool_]:
    """Return in which rows the runs differ in anything that the metric reads."""
    read = [name for name in (*metric.needs, *metric.optional) if name in found.a.column_names]
    rows = zip(found.a.select(read).to_pylist(), found.b.select(read).to_pylist(), strict=True)
    return np.array([repr(a) != repr(b) for a, b in rows], np.bool_)


def _draws(clusters: Integers, n_units: int, n_replicates: int) -> Iterator[Integers]:
    """Yield the rows of each replicate: whole clusters, drawn with replacement."""
    order = np.argsort(clusters, kind="stable")
    starts = np.searchsorted(clusters[order], np.arange(n_units + 1))
    rng = np.random.Generator(np.random.PCG64(_SEED))
    for _ in range(n_replicates):
        units = rng.integers(0, n_units, n_units)
        yield np.concatenate([order[starts[unit] : starts[unit + 1]] for unit in units])
