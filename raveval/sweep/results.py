"""What a sweep found out: each checkpoint's numbers, and which changes between them are real."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from raveval import runner
from raveval.comparison import Difference, compare, verdict_of
from raveval.comparison.paired import holm
from raveval.errors import DataError, RavevalError
from raveval.run_status import status
from raveval.sweep.best import best_of, quoted_name
from raveval.sweep.checkpoints import same_steps
from raveval.sweep.outcome import Outcome, Progress, State
from raveval.types import Results, TaskResults


@dataclass(frozen=True, slots=True)
class SweptCheckpoint:
    """A checkpoint of a sweep.

    Attributes:
        name, step, place: what it is called, its training step, where it lies.
        state: what became of it; `message` says why it failed, or why it was left as it is.
        seconds: that its process took, the judge's part not counted.
        results: its numbers; None where it failed, was stopped, or still waits for the judge.
        progress: where it was stopped, how many examples of each task are done.
    """

    name: str
    step: int | None
    place: str
    state: State
    message: str
    seconds: float
    results: Results | None
    progress: Mapping[str, Progress] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SweepResults:
    """A sweep's checkpoints by step, and paired differences between them.

    `from_previous` compares each checkpoint with the one before it, `from_best` with the best one,
    each task by the one estimate that it is quoted by. p-values are Holm's over each of the two
    families. The best is chosen by the same examples: differences from it are a little too large;
    one with missing examples is not chosen where others have all. `best` names it for each task,
    and then those that are as good.
    `remarks` say what could not be compared, and what to know of what was.
    """

    checkpoints: tuple[SweptCheckpoint, ...]
    from_previous: tuple[Difference, ...] = ()
    from_best: tuple[Difference, ...] = ()
    remarks: tuple[str, ...] = ()
    best: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def failed(self) -> list[SweptCheckpoint]:
        """The checkpoints without numbers because something went wrong."""
        return [each for each in self.checkpoints if each.state is State.FAILED]

    @property
    def stopped(self) -> list[SweptCheckpoint]:
        """The checkpoints that were ended early on purpose."""
        return [each for each in self.checkpoints if each.state is State.STOPPED]

    @property
    def is_complete(self) -> bool:
        """Whether every checkpoint was evaluated, and each of its examples scored."""
        return self.is_carried_out and not self.stopped

    @property
    def is_carried_out(self) -> bool:
        """Whether nothing is missing but what was stopped on purpose."""
        asked = [each for each in self.checkpoints if each.state is not State.STOPPED]
        return all(each.results is not None and each.results.is_complete for each in asked)


Pair = tuple[str, str, str]
"""Two checkpoints, and the task by which the second is compared with the first."""

Comparisons = dict[Pair, Difference | str | None]
"""The differences of pairs: why there is none, or None, where not."""


def collect(
    output: Path,
    outcomes: Sequence[Outcome],
    *,
    known: Comparisons | None = None,
    remarks: Sequence[str] = (),
) -> SweepResults:
    """Read what the runs of a sweep found, and compare them.

    `known` keeps the comparisons for the next call: a run that is done does not change. `remarks`
    stand before those that are made here.
    """
    known = {} if known is None else known
    ordered = sorted(outcomes, key=lambda outcome: outcome.checkpoint.rank)
    checkpoints = tuple(swept(output, outcome) for outcome in ordered)
    of_ours = [each for each in checkpoints if each.state is not State.IMPORTED]
    said = [*remarks, *same_steps([(each.name, each.step) for each in of_ours])]
    done = [each for each in checkpoints if each.results is not None]
    tasks = dict.fromkeys(name for each in done if each.results for name in each.results.tasks)
    previous, against_best = list[Pair](), list[Pair]()
    names: dict[str, tuple[str, ...]] = {}
    for task in tasks:
        having = {
            each.name: each.results.tasks[task]
            for each in done
            if each.results is not None and task in each.results.tasks
        }
        ordered_names = itertools.pairwise(each for each in done if each.name in having)
        previous += [(a.name, b.name, task) for a, b in ordered_names if _is_before(a, b)]
        best = _best(task, having, said)
        if best:
            names[task] = best
            against_best += [(best[0], name, task) for name in having if name != best[0]]
    _compare(output, [*previous, *against_best], known)
    said += [d for pair in (*previous, *against_best) if isinstance(d := known[pair], str)]
    return SweepResults(
        checkpoints,
        _adjusted([d for pair in previous if isinstance(d := known[pair], Difference)]),
        _adjusted([d for pair in against_best if isinstance(d := known[pair], Difference)]),
        tuple(dict.fromkeys(said)),
        names,
    )


def _is_before(a: SweptCheckpoint, b: SweptCheckpoint) -> bool:
    """Whether one checkpoint comes before the next in training, as far as their names say."""
    return a.step is None or a.step != b.step


def progress_of(run: Path) -> dict[str, Progress]:
    """Return how many examples of each task of a run are done.

    Raises:
        DataError: no run there.
    """
    return {
        name: Progress(sum(task.by_status.values()), task.n_examples)
        for name, task in status(run).tasks.items()
    }


def swept(output: Path, outcome: Outcome) -> SweptCheckpoint:
    """Return a checkpoint with the numbers of its run; failed, where it should have some."""
    results = None
    if outcome.state.is_done:
        try:
            results = runner.load_results(output / outcome.checkpoint.name)
        except DataError as exc:
            outcome = replace(outcome, state=State.FAILED, message=str(exc))
    checkpoint = outcome.checkpoint
    return SweptCheckpoint(
        checkpoint.name,
        checkpoint.step,
        checkpoint.place,
        outcome.state,
        outcome.message,
        outcome.seconds,
        results,
        outcome.progress,
    )


def _compare(output: Path, pairs: Sequence[Pair], known: Comparisons) -> None:
    """Add to `known` how the second of each pair differs from the first, in the quoted estimate.

    Runs are read once for all of their tasks, and once for each where that is refused.
    """
    tasks: dict[tuple[str, str], list[str]] = {}
    for a, b, task in dict.fromkeys(pairs):
        if (a, b, task) not in known:
            tasks.setdefault((a, b), []).append(task)
    for (a, b), of_pair in tasks.items():
        try:
            known |= {(a, b, task): d for task, d in _compared(output, a, b, of_pair).items()}
        except RavevalError:
            known |= {(a, b, task): _compared_or_why(output, a, b, task) for task in of_pair}


def _compared_or_why(output: Path, a: str, b: str, task: str) -> Difference | str | None:
    try:
        return _compared(output, a, b, [task])[task]
    except RavevalError as exc:
        return str(exc)


def _compared(
    output: Path, a: str, b: str, tasks: Sequence[str]
) -> dict[str, Difference | str | None]:
    found = compare([output / a, output / b], tasks=tasks).differences
    by_task = {task: {d.metric: d for d in found if d.task == task} for task in tasks}
    quoted = {
        task: quoted_name({name: d.higher_is_better for name, d in each.items()})
        for task, each in by_task.items()
    }
    return {
        task: None if name is None else replace(by_task[task][name], run=b)
        for task, name in quoted.items()
    }


def _adjusted(differences: Sequence[Difference]) -> tuple[Difference, ...]:
    """Return the differences with Holm's correction over all of them, and what it makes of them."""
    adjusted = iter(holm([d.p for d in differences if d.p is not None]))
    family = [replace(d, p_holm=None if d.p is None else next(adjusted)) for d in differences]
    return tuple(replace(d, verdict=verdict_of(d)) for d in family)


def _best(task: str, found: Mapping[str, TaskResults], remarks: list[str]) -> tuple[str, ...]:
    """Return the best checkpoints of a task, and remark on those that cannot be among them."""
    best = best_of(found)
    if best.ineligible:
        remarks.append(
            f"{task}: {', '.join(best.ineligible)} cannot be the best checkpoint: examples are "
            f"missing, and {'none' if best.share == 1 else 'fewer'} are of others"
        )
    return best.names
