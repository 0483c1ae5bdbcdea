"""What a sweep found out: each checkpoint's numbers, and which changes between them are real."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from raveval import runner
from raveval.comparison import Difference, compare, verdict_of
from raveval.comparison.paired import holm
from raveval.errors import DataError, RavevalError
from raveval.run_status import status
from raveval.sweep.best import best_of, quoted_name
from raveval.sweep.checkpoints import Checkpoint, same_steps
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


Comparisons = dict[tuple[str, str, str], Difference | str | None]
"""The differences of pairs by (first, second, task): why there is none, or None, where not."""


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
    checkpoints = tuple(_checkpoint(output, outcome) for outcome in ordered)
    said = [*remarks, *same_steps([(each.name, each.step) for each in checkpoints])]
    done = [each for each in checkpoints if each.results is not None]
    from_previous, from_best = list[Difference](), list[Difference]()
    names: dict[str, tuple[str, ...]] = {}
    tasks = dict.fromkeys(name for each in done if each.results for name in each.results.tasks)
    for task in tasks:
        having = {
            each.name: each.results.tasks[task]
            for each in done
            if each.results is not None and task in each.results.tasks
        }
        pairs = list(itertools.pairwise(having))
        from_previous += _differences(output, task, pairs, known, said)
        best = _best(task, having, said)
        if best:
            names[task] = best
            others = [(best[0], name) for name in having if name != best[0]]
            from_best += _differences(output, task, others, known, said)
    return SweepResults(
        checkpoints,
        _adjusted(from_previous),
        _adjusted(from_best),
        tuple(dict.fromkeys(said)),
        names,
    )


def earlier(output: Path) -> dict[str, Outcome]:
    """Return what an earlier sweep left in its directory: runs done, not graded yet, or stopped.

    Their weights may be gone, and what is asked for now may be others: the runs stand.
    """
    left = {}
    for entry in read_sweep(output) or ():
        checkpoint = Checkpoint(entry["name"], entry["step"], {"path": entry["place"]})
        if (output / checkpoint.name / "results.json").is_file():
            left[checkpoint.name] = kept(checkpoint)
        elif entry["state"] == State.ANSWERED:
            left[checkpoint.name] = Outcome(checkpoint, State.ANSWERED)
        elif entry["state"] == State.STOPPED and (output / checkpoint.name / "run.json").is_file():
            progress = progress_of(output / checkpoint.name)
            why = str(entry.get("message", ""))
            left[checkpoint.name] = Outcome(checkpoint, State.STOPPED, why, progress=progress)
    return left


def progress_of(run: Path) -> dict[str, Progress]:
    """Return how many examples of each task of a run are done.

    Raises:
        DataError: no run there.
    """
    return {
        name: Progress(sum(task.by_status.values()), task.n_examples)
        for name, task in status(run).tasks.items()
    }


def kept(checkpoint: Checkpoint) -> Outcome:
    """Return the outcome of a checkpoint whose run stands as an earlier sweep left it."""
    why = "its weights are gone; " if checkpoint.is_gone else ""
    return Outcome(checkpoint, State.KEPT, f"{why}its run stands as an earlier sweep left it")


def read_sweep(output: Path) -> list[dict[str, Any]] | None:
    """Return the checkpoints of sweep.json; None where there is none, or it is not a sweep's."""
    try:
        content = json.loads((output / "sweep.json").read_text(encoding="utf-8"))
        entries = content["checkpoints"]
        content["from_previous"], content["from_best"]
        keys = ("name", "step", "place", "state")
        return [{**entry, **{key: entry[key] for key in keys}} for entry in entries]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _checkpoint(output: Path, outcome: Outcome) -> SweptCheckpoint:
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


def _differences(
    output: Path,
    task: str,
    pairs: Sequence[tuple[str, str]],
    known: Comparisons,
    remarks: list[str],
) -> list[Difference]:
    """Return how the second of each pair differs from the first, by the task's quoted estimate."""
    found = []
    for a, b in pairs:
        place = (a, b, task)
        if place not in known:
            known[place] = _difference(output, *place)
        difference = known[place]
        if isinstance(difference, str):
            remarks.append(difference)
        elif difference is not None:
            found.append(difference)
    return found


def _difference(output: Path, a: str, b: str, task: str) -> Difference | str | None:
    try:
        compared = compare([output / a, output / b], tasks=[task])
    except RavevalError as exc:
        return str(exc)
    name = quoted_name({d.metric: d.higher_is_better for d in compared.differences})
    return next((replace(d, run=b) for d in compared.differences if d.metric == name), None)


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


def to_json(results: SweepResults) -> str:
    """Return sweep.json: what became of each checkpoint, and the differences; strict JSON.

    The numbers of a checkpoint stand in its own results.json.
    """
    content: dict[str, Any] = {
        "checkpoints": [
            {key: value for key, value in asdict(each).items() if key != "results"}
            for each in results.checkpoints
        ],
        "from_previous": [asdict(each) for each in results.from_previous],
        "from_best": [asdict(each) for each in results.from_best],
        "best": {task: list(names) for task, names in results.best.items()},
        "remarks": list(results.remarks),
    }
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
