"""Says which checkpoints need not be finished, because they are shown to be worse than the best.

A checkpoint is hopeless when, on every task that decides, the sequential test (`sequential`) shows
it to be worse than the best finished checkpoint of that task, by the estimate that the task is
quoted by. All tasks have to agree, so one on which a checkpoint may still be the best keeps it.
Those that decide are the ones named in `stop_hopeless.tasks`; where none is named, all whose quoted
estimate is right or wrong on each example, without clusters, and that no judge grades. A task that
cannot be tested has no say, and that is said; one that is named and cannot be tested keeps all.

What is promised: `alpha` bounds the chance that the sweep ever stops a checkpoint that is, on one
of the deciding tasks, truly as good as the one it was compared with. Three things could break that:

- Many looks: each test is valid at any time (Ville's inequality).
- Many tasks: wrong is only who is stopped though as good on some task, and that takes a wrong
  decision on this very task. An intersection of tests needs no correction.
- Many checkpoints, and a best that was chosen by the same examples, some by luck: alpha is shared
  by all pairs of checkpoints. If none of the tests between all pairs would ever be wrong, it does
  not matter which of them are looked at, nor why. Of n checkpoints each pair has
  alpha / (n (n - 1)^2): the n - 1 pairs of the n-th have alpha / (n (n - 1)) together, which adds
  up to alpha however many more come. More checkpoints only make the evidence asked for grow with
  the logarithm of their number.

Equal means equal in expectation over examples like these. The numbers of a checkpoint that was
stopped are not reported: a difference looks largest when a test on it has just succeeded.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raveval.errors import DataError, RavevalError
from raveval.reduce import reduce_task
from raveval.runner import load_results
from raveval.sequential import SequentialTest, compare_prefix, why_untestable
from raveval.store import RunDirectory
from raveval.sweep.best import best_of
from raveval.sweep.config import StopSection
from raveval.types import TaskResults

_LEAST_PAUSE_SECONDS = 1.0
_SHARE_OF_TIME = 0.05


def level(alpha: float, n_checkpoints: int) -> float:
    """Return the chance of being wrong that each pair has, of so many checkpoints known by now.

    >>> level(0.05, 2), level(0.06, 3)
    (0.025, 0.005)
    """
    n = max(n_checkpoints, 2)
    return alpha / (n * (n - 1) ** 2)


class Stopping:
    """Looks at runs while they are under way, from their files alone.

    Attributes:
        remarks: what a reader of the report has to know.
    """

    def __init__(self, output: Path, section: StopSection) -> None:
        self.remarks = [
            "stop_hopeless: a checkpoint is ended where a sequential test shows it to be worse "
            f"than the best finished one on {_each(section.tasks)}; the chance that this sweep "
            f"ever ends one wrongly is at most {section.alpha:g}"
        ]
        self._output = output
        self._section = section
        self._numbers: dict[str, Mapping[str, TaskResults]] = {}
        self._untested: dict[str, bool] = {}
        self._seen: dict[str, tuple[int, int]] = {}
        self._next_look: dict[str, float] = {}
        self._test_seconds = 0.0

    def look(self, name: str, finished: Sequence[str], n_checkpoints: int) -> str | None:
        """Return `why`, if there is something new in a run's files and it is not too soon.

        For each checkpoint under way, testing takes at most a twentieth of the time.
        """
        if not finished or time.monotonic() < self._next_look.get(name, 0.0):
            return None
        seen = (len(list((self._output / name / "states").glob("*/*.json"))), len(finished))
        self._test_seconds, found = 0.0, None
        if seen != self._seen.get(name):
            self._seen[name] = seen
            found = self.why(name, finished, n_checkpoints)
        pause = max(self._test_seconds / _SHARE_OF_TIME, _LEAST_PAUSE_SECONDS)
        self._next_look[name] = time.monotonic() + pause
        return found

    def why(self, name: str, finished: Sequence[str], n_checkpoints: int) -> str | None:
        """Return why a checkpoint is hopeless; None where it is not, or not yet.

        Args:
            name: of the checkpoint under way.
            finished: those that are done, or have answered all that no judge grades.
            n_checkpoints: how many checkpoints the sweep knows of.
        """
        try:
            return self._why(name, finished, level(self._section.alpha, n_checkpoints))
        except (RavevalError, OSError) as exc:
            self._remark(f"stop_hopeless: {name} cannot be tested, and goes on: {exc}")
            return None

    def _why(self, name: str, finished: Sequence[str], alpha: float) -> str | None:
        best = self._best(finished)
        tested = {task: each for task, each in best.items() if not self._is_left_out(task, each)}
        manifest = RunDirectory(self._output / name).read_manifest()
        if manifest is None:
            return None  # still being planned
        n_examples = {
            task: entry["n_examples"]
            for task, entry in manifest["tasks"].items()
            if self._decides(task) and not _is_graded(entry)
        }
        if not n_examples.keys() <= best.keys():
            return None  # there is nothing to compare with
        if self._section.tasks is not None and len(tested) < len(self._section.tasks):
            return None
        began = time.monotonic()
        said = []
        for task in [task for task in n_examples if task in tested]:
            place, other = self._output / name, self._output / tested[task]
            test = compare_prefix(other, place, task, alpha=alpha)
            self._test_seconds = time.monotonic() - began
            if test.decision != "baseline is better":
                return None
            said.append(_words(test, tested[task], task, n_examples[task]))
        return "; ".join(said) or None

    def _decides(self, task: str) -> bool:
        """Whether a task decides, as far as the sweep's file says it."""
        return self._section.tasks is None or task in self._section.tasks

    def _best(self, finished: Sequence[str]) -> dict[str, str]:
        """Return the best finished checkpoint of each task, or any where none can be the best."""
        known = {name: self._tasks_of(name) for name in finished}
        tasks = dict.fromkeys(task for each in known.values() for task in each)
        found = {}
        for task in filter(self._decides, tasks):
            having = {name: each[task] for name, each in known.items() if task in each}
            found[task] = next(iter(best_of(having).names or having))
        return found

    def _tasks_of(self, name: str) -> Mapping[str, TaskResults]:
        """Return what a finished checkpoint has of each task that no judge grades."""
        if name not in self._numbers:
            directory = RunDirectory(self._output / name)
            entries = directory.manifest()["tasks"]
            ungraded = [task for task, entry in entries.items() if not _is_graded(entry)]
            for task in filter(self._decides, entries):
                if task not in ungraded:
                    self._leave_out(task, "a judge grades it, after all checkpoints have answered")
            try:
                known = load_results(directory.path).tasks
            except DataError:  # it waits for the judge
                known = {task: reduce_task(directory, task, entries[task]) for task in ungraded}
            self._numbers[name] = {task: known[task] for task in ungraded}
        return self._numbers[name]

    def _is_left_out(self, task: str, best: str) -> bool:
        """Whether a task, of which `best` has finished, cannot be tested."""
        if task not in self._untested:
            why = why_untestable(self._output / best, task)
            self._untested[task] = why is not None
            if why is not None:
                self._leave_out(task, why)
        return self._untested[task]

    def _leave_out(self, task: str, why: str) -> None:
        tail = "and has no say" if self._section.tasks is None else "so none is ended"
        self._remark(f"stop_hopeless: {task} cannot be tested, {tail}: {why}")

    def _remark(self, text: str) -> None:
        if text not in self.remarks:
            self.remarks.append(text)


def _is_graded(entry: Mapping[str, Any]) -> bool:
    """Whether a judge grades a task of run.json."""
    return entry.get("verdict_fingerprint") is not None


def _each(tasks: Sequence[str] | None) -> str:
    return "every task that can be tested" if tasks is None else f"each of {', '.join(tasks)}"


def _words(tested: SequentialTest, best: str, task: str, n_examples: int) -> str:
    return (
        f"worse than {best} on {task}: {tested.n_only_run} against {tested.n_only_baseline} "
        f"discordant pairs, p {tested.p:.1g}, after {tested.n_prefix} of {n_examples} examples"
    )
