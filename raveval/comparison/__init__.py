"""Compares runs on the same examples: how large a difference is, and whether it is one.

The first run is the baseline; every other one is compared with it, task by task and estimate by
estimate, on the examples that were scored in both. Run directories are all it needs. Who may be
compared with whom stands in `pairing`, how an estimate is compared in `estimates`, the statistics
in `paired` and `mcnemar`.

Many tests find differences by chance. The tests that a conclusion rests on are the family: the one
estimate of each task and compared run that the task is quoted by, or those that were asked for by
name. Holm's correction holds over the family; p-values outside of it are unadjusted and shown as
such. Other scorings of the same answers are near-duplicates, and would only dilute it.

A run that was imported from another tool's files is compared as far as it can be (`imported`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from raveval.comparison import imported
from raveval.comparison.estimates import differences_of
from raveval.comparison.paired import holm
from raveval.comparison.pairing import (
    WINDOWS,
    OpenRun,
    Paired,
    check_comparable,
    check_finished,
    open_run,
    other_windows,
    pair,
    read_records,
)
from raveval.comparison.results import ComparedRun, Comparison, Difference, Pairing, Verdict
from raveval.errors import ConfigError, MismatchError, nearest
from raveval.evaluate import load_metric
from raveval.metrics._headline import PER_TOKEN, primary

__all__ = [
    "ComparedRun",
    "Comparison",
    "Difference",
    "Pairing",
    "Verdict",
    "compare",
    "verdict_of",
]

ALPHA = 0.05
_MOST_TASKS_NAMED = 8


def compare(
    runs: Sequence[str | Path], *, metrics: Sequence[str] = (), tasks: Sequence[str] = ()
) -> Comparison:
    """Compare finished runs with the first of them, from their files alone.

    Args:
        runs: run directories; the first one is the baseline.
        metrics: names of estimates to compare, which are then the family; all where there are none.
        tasks: the tasks to compare; all that the runs have in common where there are none.

    Raises:
        ConfigError: fewer than two runs, or an unknown name.
        DataError: no run there, or one that is not finished.
        MismatchError: runs that were asked or scored differently; the message names the key.
    """
    if isinstance(runs, str | Path) or len(runs) < 2:
        raise ConfigError("comparing takes at least two run directories, the baseline first")
    baseline, *others = [open_run(directory) for directory in runs]
    names = [run.name for run in others]
    if len(set(names)) < len(names):
        raise ConfigError(f"a run stands twice among {', '.join(names)}; name each once")
    shared, remarks = _shared_tasks([baseline, *others], tasks)
    _check_metrics(metrics, [baseline, *others], shared)
    for run in others:
        for task in shared:
            if not imported.is_foreign(baseline, run):
                check_comparable(baseline, run, task)
    for run in (baseline, *others):
        check_finished(run, [task for task in shared if task in run.tasks])
    pairings: list[Pairing] = []
    differences: list[Difference] = []
    for task in shared:
        for run, compared in _compared(baseline, others, task, metrics):
            pairings.append(compared.pairing)
            differences += compared.differences
            remarks += [f"{task}, {run.name}: {remark}" for remark in compared.remarks]
    return Comparison(
        ComparedRun(baseline.name, baseline.model),
        tuple(ComparedRun(run.name, run.model) for run in others),
        tuple(pairings),
        _judged(differences, are_asked=bool(metrics)),
        tuple(remarks),
    )


@dataclass(frozen=True, slots=True)
class _Compared:
    """One task of one run, held against the baseline."""

    pairing: Pairing
    differences: Sequence[Difference]
    remarks: Sequence[str] = ()


def _compared(
    baseline: OpenRun, others: Sequence[OpenRun], task: str, metrics: Sequence[str]
) -> Iterator[tuple[OpenRun, _Compared]]:
    """Yield each run with its differences in a task; the baseline's records are read once."""
    columns = [*baseline.columns(task), *WINDOWS] if task in baseline.tasks else []
    records = None
    for run in others:
        if imported.is_foreign(baseline, run):
            yield run, _compared_with_foreign(baseline, run, task, metrics)
            continue
        if records is None:
            records = read_records(baseline, baseline.shards(task), columns)
        found = pair(
            records,
            read_records(run, run.shards(task), columns),
            where=f"{baseline.name} and {run.name}: task {task!r}",
        )
        compared = _on_pairs(found, task, run, run.tasks[task]["metrics"], metrics)
        remark = other_windows(found)
        yield run, replace(compared, remarks=() if remark is None else (remark,))


def _compared_with_foreign(
    baseline: OpenRun, run: OpenRun, task: str, metrics: Sequence[str]
) -> _Compared:
    """Compare runs of which one was imported: paired where both have the same examples."""
    try:
        pairs = imported.pairs(baseline, run, task)
    except imported.Unpairable as exc:
        pairing = Pairing(task, run.name, 0, 0, 0, 0, None, is_paired=False)
        differences = imported.unpaired(baseline, run, task, metrics)
        return _Compared(pairing, differences, [f"not paired: {exc}"])
    compared = _on_pairs(pairs.found, task, run, pairs.metrics, metrics)
    return replace(compared, remarks=[pairs.remark])


def _on_pairs(
    found: Paired, task: str, run: OpenRun, families: Sequence[str], metrics: Sequence[str]
) -> _Compared:
    differences: list[Difference] = []
    for name in families:
        differences += differences_of(load_metric(name), found, metrics, task=task, run=run.name)
    return _Compared(_pairing(task, run.name, found), differences)


def _shared_tasks(runs: Sequence[OpenRun], wanted: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the tasks that all runs have, and remarks on those that only some have."""
    known = list(dict.fromkeys(task for run in runs for task in run.names))
    for task in wanted:
        if task not in known:
            raise ConfigError(f"no run has a task {task!r}; {nearest(task, known)}")
    shared: list[str] = []
    only_in: dict[str, list[str]] = {}
    for task in [task for task in known if not wanted or task in wanted]:
        having = [run.name for run in runs if task in run.names]
        if len(having) == len(runs):
            shared.append(task)
            continue
        if task in wanted:
            raise MismatchError(f"task {task!r} is only in {', '.join(having)}; evaluate it there")
        only_in.setdefault(", ".join(having), []).append(task)
    remarks = [f"{_few(t)}: not compared, only in {runs}" for runs, t in only_in.items()]
    if not shared:
        raise MismatchError(f"the runs have no task in common ({'; '.join(remarks)})")
    return shared, remarks


def _few(tasks: Sequence[str]) -> str:
    rest = len(tasks) - _MOST_TASKS_NAMED
    return ", ".join(tasks[:_MOST_TASKS_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _pairing(task: str, run: str, found: Paired) -> Pairing:
    counts = (found.n_only_a, found.n_only_b, found.n_neither)
    return Pairing(task, run, len(found.a), *counts, found.n_clusters)


def _check_metrics(metrics: Sequence[str], runs: Sequence[OpenRun], tasks: Sequence[str]) -> None:
    entries = [run.tasks[task] for run in runs for task in tasks if task in run.tasks]
    loaded = [load_metric(name) for name in sorted({m for e in entries for m in e["metrics"]})]
    known = [estimate for metric in loaded for estimate in metric.compute(metric.init())]
    known += [name for run in runs for name in imported.names(run, tasks)]
    for name in metrics:
        if name not in known:
            raise ConfigError(f"no task has an estimate {name!r}; {nearest(name, known)}")


def _judged(differences: Sequence[Difference], *, are_asked: bool) -> tuple[Difference, ...]:
    """Return the differences with p adjusted in the family, and what each of them says."""
    family = [d for d in differences if d.p is not None]
    if not are_asked:
        by_comparison = groupby(family, key=lambda d: (d.task, d.run))
        family = [_primary(list(several)) for _, several in by_comparison]
    adjusted = holm([d.p for d in family if d.p is not None])
    places = {(d.task, d.run, d.metric): p for d, p in zip(family, adjusted, strict=True)}
    found = (replace(d, p_holm=places.get((d.task, d.run, d.metric))) for d in differences)
    return tuple(replace(d, verdict=verdict_of(d)) for d in found)


def _primary(differences: Sequence[Difference]) -> Difference:
    """Return the one that the task's conclusion rests on."""
    by_name = {d.metric: d for d in differences}
    with_direction = [d for d in differences if d.higher_is_better is not None]
    name = primary(by_name)
    return (with_direction or list(differences))[0] if name is None else by_name[name]


def verdict_of(d: Difference) -> Verdict:
    """Return what a difference says at the 5 % level, by its adjusted p-value where it has one."""
    p = d.p if d.p_holm is None else d.p_holm
    if p is None or d.difference is None:
        return Verdict.NOT_TESTED
    if d.is_identical:
        return Verdict.IDENTICAL
    if d.metric in PER_TOKEN and d.has_other_denominators:
        return Verdict.NOT_COMPARABLE
    if p > ALPHA or d.difference == 0:
        return Verdict.NOT_SHOWN
    if d.higher_is_better is None:
        return Verdict.DIFFERENT
    return Verdict.BETTER if (d.difference > 0) == d.higher_is_better else Verdict.WORSE
