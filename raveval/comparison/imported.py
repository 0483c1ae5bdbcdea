"""Compares with runs that were imported from another tool's files.

Such a run was asked by another program, and only what its files say of that can be held against
ours. Two runs are paired where both have records of a task, of the same examples: the same ids,
with the same right answers, lengths and shots. Whether the prompts were the same is counted and
said. Everything else is compared unpaired, and the reason is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raveval.comparison.differing import differing
from raveval.comparison.pairing import OpenRun, Paired, pair, read_records
from raveval.comparison.results import Difference
from raveval.comparison.unpaired import difference_of
from raveval.errors import MismatchError
from raveval.types import Estimate, Example, Prompt

_SAME_EXAMPLE: Mapping[str, tuple[str, ...]] = {
    # columns that are the same in any run of an example; null where a file does not say
    "multiple_choice": ("gold", "n_bytes"),
    "question_answering": ("references",),
    "language_modelling": ("n_words", "n_bytes"),
}


class Unpairable(Exception):
    """Why two runs cannot be paired on a task."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """What two runs say of the same examples, the metric families of both, and what to know."""

    found: Paired
    metrics: tuple[str, ...]
    remark: str


def is_foreign(a: OpenRun, b: OpenRun) -> bool:
    """Whether at least one of two runs was imported."""
    return a.imported is not None or b.imported is not None


def pairs(a: OpenRun, b: OpenRun, task: str) -> Pairs:
    """Return the records of two runs on the examples that both have.

    Raises:
        MismatchError: the prompts had other numbers of shots.
        Unpairable: there are no such examples; says why.
    """
    _check_shots(a, b, task)
    for run in (a, b):
        if task not in run.tasks:
            raise Unpairable(f"{run.name} has no records of it")
    entries = a.tasks[task], b.tasks[task]
    protocols = [entry["protocol"] for entry in entries]
    if protocols[0] != protocols[1]:
        raise Unpairable(f"it is {protocols[0]} in {a.name}, {protocols[1]} in {b.name}")
    metrics = tuple(name for name in entries[0]["metrics"] if name in entries[1]["metrics"])
    if not metrics:
        raise Unpairable("the two have no metric in common")
    columns = list(dict.fromkeys((*a.columns(task), *b.columns(task))))
    tables = [read_records(run, run.shards(task), columns) for run in (a, b)]
    common, only_a, only_b = _common(*tables)
    aligned = _with_clusters(_with_one_scoring(common, is_imported=a.imported is not None))
    found = pair(*aligned, where=f"{a.name} and {b.name}: task {task!r}")
    _check_same_examples(found, protocols[0], only=len(common[0]))
    found = Paired(
        found.a,
        found.b,
        found.n_only_a + only_a,
        found.n_only_b + only_b,
        found.n_neither,
        found.clusters,
    )
    return Pairs(found, metrics, _prompt_remark(a, b, task))


def _check_shots(a: OpenRun, b: OpenRun, task: str) -> None:
    shots = [_num_fewshot(run, task) for run in (a, b)]
    if None not in shots and shots[0] != shots[1]:
        raise MismatchError(
            f"{b.name}: not comparable with {a.name}: num_fewshot of task {task!r} is {shots[1]} "
            f"here, {shots[0]} there. Compare runs with the same number of shots"
        )


def _num_fewshot(run: OpenRun, task: str) -> int | None:
    if run.imported is not None:
        return run.imported.tasks[task].num_fewshot
    found: int | None = run.tasks[task].get("num_fewshot")
    return found


def _common(a: pa.Table, b: pa.Table) -> tuple[tuple[pa.Table, pa.Table], int, int]:
    """Return the rows of the examples in both tables, and how many others each has."""
    in_b = pc.is_in(a["id"], value_set=b["id"].combine_chunks())
    in_a = pc.is_in(b["id"], value_set=a["id"].combine_chunks())
    both = a.filter(in_b), b.filter(in_a)
    if not len(both[0]):
        raise Unpairable(
            f"the two have no example id in common ({a['id'][0].as_py()!r:.40} and "
            f"{b['id'][0].as_py()!r:.40} are the first)"
        )
    return both, len(a) - len(both[0]), len(b) - len(both[1])


def _with_one_scoring(
    tables: tuple[pa.Table, pa.Table], *, is_imported: bool
) -> tuple[pa.Table, pa.Table]:
    """Give both tables the primary scoring of the run that was not imported."""
    if "scoring" not in tables[0].column_names or "scoring" not in tables[1].column_names:
        return tables
    scoring = tables[1 if is_imported else 0]["scoring"][0]
    column = pa.array([scoring.as_py()], pa.string())
    a, b = (
        table.set_column(
            table.schema.get_field_index("scoring"),
            "scoring",
            pa.chunked_array([pa.repeat(column[0], len(table))]),
        )
        for table in tables
    )
    return a, b


def _with_clusters(tables: tuple[pa.Table, pa.Table]) -> tuple[pa.Table, pa.Table]:
    """Give the baseline the other run's clusters where it knows of none."""
    a, b = tables
    if a["cluster"].null_count < len(a):
        return tables
    place = pc.index_in(a["id"], value_set=b["id"].combine_chunks()).combine_chunks()
    column = a.schema.get_field_index("cluster")
    return a.set_column(column, "cluster", b["cluster"].take(place)), b


def _check_same_examples(found: Paired, protocol: str, *, only: int) -> None:
    for name in _SAME_EXAMPLE.get(protocol, ()):
        if name not in found.a.column_names or name not in found.b.column_names:
            continue
        both = pc.and_(found.a[name].is_valid(), found.b[name].is_valid())
        a, b = (table.filter(both).select([name]) for table in (found.a, found.b))
        n_other = int(differing(a, b).sum())
        if n_other:
            raise Unpairable(
                f"{only} examples have the same ids, but of {n_other} of them {name} differs: "
                "other examples, or another order of the choices"
            )


def _prompt_remark(a: OpenRun, b: OpenRun, task: str) -> str:
    """Say whether the models saw the same prompts."""
    asked = [{example.id: example for example in _examples(run, task)} for run in (a, b)]
    ids = asked[0].keys() & asked[1].keys()
    n_same = sum(_seen(asked[0][id]) == _seen(asked[1][id]) for id in ids)
    if n_same == len(ids):
        return f"both models saw the same prompts ({len(ids)} of {len(ids)})"
    return (
        f"the prompts differ in {len(ids) - n_same} of {len(ids)} examples, so the difference is "
        "one of models and prompts together"
    )


def _examples(run: OpenRun, task: str) -> list[Example]:
    return run.files.read_examples(task, 0, run.tasks[task]["n_examples"])


def _seen(example: Example) -> tuple[Prompt, tuple[str, ...], str]:
    return example.prompt, example.continuations, example.text


def unpaired(a: OpenRun, b: OpenRun, task: str, wanted: Sequence[str]) -> list[Difference]:
    """Return how a run differs from the baseline in the numbers that both have, unpaired."""
    numbers_a, numbers_b = _numbers(a, task), _numbers(b, task)
    return [
        difference_of(numbers_a[name], numbers_b[name], name, task=task, run=b.name)
        for name in numbers_a
        if name in numbers_b and (not wanted or is_wanted(name, wanted))
    ]


def is_wanted(name: str, wanted: Sequence[str]) -> bool:
    """Whether a number is asked for: by its whole name, or by that without a filter."""
    return name in wanted or name.partition(",")[0] in wanted


def _numbers(run: OpenRun, task: str) -> Mapping[str, Estimate]:
    """Return a task's numbers by names that are the same for both tools."""
    from raveval.lm_eval.conventions import canonical
    from raveval.lm_eval.finished import open_finished

    if run.imported is not None:
        metrics: Mapping[str, Any] = run.imported.tasks[task].metrics
        return {canonical(key): value for key, value in metrics.items()}
    tasks = {each.name: each for each in open_finished(run.name).tasks}
    return tasks[task].estimates()


def names(run: OpenRun, tasks: Sequence[str]) -> list[str]:
    """Return the names of the numbers that an imported run has."""
    if run.imported is None:
        return []
    found = (name for task in tasks for name in _numbers(run, task))
    return list(dict.fromkeys(name.partition(",")[0] for name in found))
