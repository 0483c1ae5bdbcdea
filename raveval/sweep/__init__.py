"""Evaluates many checkpoints of a training run: one run each, one cluster, one judge for all.

Each checkpoint is a run with a directory and a process of its own; a broken one is one failed run,
and the sweep goes on. Several are under way at once, and share a Ray cluster: while one has the
accelerators, the next one is planned and its weights are brought nearer. Where a judge grades,
all checkpoints answer first; then one judge, loaded once, grades all that they answered. Where
`stop_hopeless` asks for it, a checkpoint that is shown to be worse than the best is ended early
(`hopeless`). The same sweep again does what is missing, and nothing else.

    <output>/
    ├── <checkpoint>/     a run
    ├── logs/             of each checkpoint, the run as it was asked for and what it said
    └── sweep.json  report.md  report.html
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from raveval import pipeline, runner
from raveval.config import RunConfig
from raveval.errors import MismatchError, RavevalError
from raveval.speech import sigterm_interrupts
from raveval.store import LAYOUT, RunDirectory
from raveval.sweep.checkpoints import Checkpoint
from raveval.sweep.config import RESERVED, SweepConfig, load_sweep
from raveval.sweep.files import (
    SweepStatus,
    earlier,
    is_sweep,
    kept,
    load_sweep_results,
    read_entries,
    sweep_status,
    sweep_to_json,
    write_sweep,
)
from raveval.sweep.hopeless import Stopping
from raveval.sweep.imported import report_imported
from raveval.sweep.outcome import Outcome, State, anew
from raveval.sweep.results import (
    Comparisons,
    SweepResults,
    SweptCheckpoint,
    collect,
    progress_of,
)
from raveval.sweep.schedule import carry_out
from raveval.sweep.watching import Watch

__all__ = [
    "State",
    "SweepResults",
    "SweepStatus",
    "SweptCheckpoint",
    "is_sweep",
    "load_sweep",
    "load_sweep_results",
    "report_imported",
    "sweep",
    "sweep_status",
    "sweep_to_json",
]

Say = Callable[[str], None]
Work = tuple[Checkpoint, RunConfig]


def _silent(_: str) -> None:
    return


def sweep(
    config: str | Path | Mapping[str, Any] | SweepConfig, *, say: Say = _silent
) -> SweepResults:
    """Evaluate the checkpoints of a sweep, or those that are missing, and write its report.

    Args:
        config: a sweep file, the same as nested dictionaries, or a `SweepConfig`.
        say: hears what is going on, a line at a time.

    Returns:
        The checkpoints by step, failed ones included, and the differences between them.

    Raises:
        Refused: the sweep cannot be carried out as asked; nothing was started.
    """
    checked = config if isinstance(config, SweepConfig) else load_sweep(config)
    if not checked.watch:
        checked.checkpoints()  # before the directory is made
    _check_ours(checked.output)
    directory = RunDirectory(checked.output)
    with directory.held(), contextlib.ExitStack() as stack:
        return _Sweep(checked, directory, stack, say).carry_on()


def _check_ours(output: Path) -> None:
    """Refuse a directory that holds what is no sweep's, and would be written over."""
    if (output / "run.json").exists():
        raise MismatchError(f"run.output: {output} is a run, not a sweep; choose another output")
    if not output.is_dir() or read_entries(output) is not None:
        return
    # A sweep that was ended early has logs and runs, but no report: sweep.json is written first.
    foreign = sorted(
        path.name
        for path in output.glob("[!.]*")
        if path.name in set(RESERVED) - {"logs"} or not _may_be_a_sweeps(path)
    )
    if foreign:
        raise MismatchError(
            f"run.output: {output} holds files but no sweep of raveval ({foreign[0]}); choose an "
            "empty directory"
        )


def _may_be_a_sweeps(path: Path) -> bool:
    """Whether a path may be a sweep's logs, or a run that was begun."""
    if path.name == "logs" or not path.is_dir():
        return path.is_dir()
    return {entry.name for entry in path.glob("[!.]*")} <= LAYOUT


class _Sweep:
    """A sweep under way: what became of its checkpoints so far."""

    def __init__(
        self, config: SweepConfig, directory: RunDirectory, stack: contextlib.ExitStack, say: Say
    ) -> None:
        self._config = config
        self._directory = directory
        self._stack = stack
        self._say = say
        self._address: str | None = None
        self._watch = Watch()
        self._remarks: list[str] = []
        self._comparisons: Comparisons = {}
        self._earlier = earlier(config.output)
        self._outcomes = dict(self._earlier)
        section = config.stop_hopeless
        self._stopping = None if section is None else Stopping(config.output, section)
        self._names = set(self._outcomes)

    def carry_on(self) -> SweepResults:
        """Go on until there is nothing left to evaluate, or to wait for."""
        self._stack.enter_context(sigterm_interrupts())
        todo = self._new()
        asked_for = {checkpoint.name for checkpoint, _ in todo}
        for name in self._earlier.keys() - asked_for:
            self._note(self._earlier[name], says_seconds=False)
        while True:
            if todo or self._waiting():
                self._evaluate(todo)
                self._grade()
                self._watch.news()
            results = self._written()
            if not self._config.watch or self._has_waited_enough():
                return results
            time.sleep(self._config.poll_seconds)
            todo = self._new()

    def _has_waited_enough(self) -> bool:
        idle = self._config.idle_minutes
        if idle is None or self._watch.idle_seconds < idle * 60:
            return False
        self._say(f"no new checkpoint for {idle:g} minutes")
        if self._watch.unsettled:
            self._say(f"not whole until now: {', '.join(self._watch.unsettled)}")
        return True

    def _new(self) -> list[Work]:
        """Return the checkpoints that are to be evaluated; of a watch those that have settled."""
        found = self._config.checkpoints() if not self._config.watch else self._appeared()
        return [(checkpoint, self._config.run_of(checkpoint)) for checkpoint in found]

    def _appeared(self) -> list[Checkpoint]:
        known = {name: outcome.checkpoint for name, outcome in self._outcomes.items()}
        found, faults = self._config.named_well(known)
        for fault in faults:
            if fault not in self._remarks:
                self._remarks.append(fault)
                self._say(fault)
        goes_on = (State.STOPPED,) if self._stopping is None else ()
        outcomes = {n: o for n, o in self._outcomes.items() if o.state not in goes_on}
        return self._watch.due(found, outcomes)

    def _evaluate(self, todo: Sequence[Work]) -> None:
        self._names |= {checkpoint.name for checkpoint, _ in todo}
        left = [work for work in todo if not self._is_settled_already(*work)]
        if not left:
            return
        self._say(f"{len(left)} of {len(todo)} checkpoints to evaluate")
        answered = carry_out(
            left,
            parallel=self._config.parallel,
            address=self._cluster(),
            folder=self._config.output / "logs",
            say=self._say,
            why_stop=self._why_stop if self._stopping else None,
        )
        with contextlib.closing(answered):  # its processes end before the cluster does
            for outcome in answered:
                self._note(self._ended(outcome))
                self._written()

    def _ended(self, outcome: Outcome) -> Outcome:
        """Return an outcome; of one that was stopped with how far it came.

        One that was stopped when nothing was left to ask is finished instead.
        """
        if outcome.state is not State.STOPPED:
            return outcome
        progress = progress_of(self._config.output / outcome.checkpoint.name)
        if any(each.n_left for each in progress.values()):
            return replace(outcome, progress=progress)
        try:
            results = runner.answer(self._config.run_of(outcome.checkpoint))
        except RavevalError as exc:
            return replace(outcome, state=State.FAILED, message=str(exc))
        state = State.ANSWERED if results is None else State.DONE
        return replace(outcome, state=state, message="")

    def _why_stop(self, checkpoint: Checkpoint) -> str | None:
        """Return why a checkpoint under way is hopeless, if it is known to be."""
        if self._stopping is None:
            return None
        finished = [name for name, each in self._outcomes.items() if each.state.is_answered]
        return self._stopping.look(checkpoint.name, finished, len(self._names))

    def _is_settled_already(self, checkpoint: Checkpoint, config: RunConfig) -> bool:
        """Note a checkpoint of which nothing is to do, because it is done or because it cannot."""
        left = self._earlier.get(checkpoint.name)
        if checkpoint.is_gone and left is not None:
            stands = kept(checkpoint, left.seconds) if left.state is State.KEPT else left
            self._note(stands, says_seconds=False)
            return True
        try:
            if self._stays_stopped(checkpoint, config):
                self._note(self._earlier[checkpoint.name], says_seconds=False)
                self._say(f"{checkpoint.name}: without stop_hopeless, the sweep finishes it")
                return True
            if not runner.is_done(config):
                return False
            seconds = 0.0 if left is None else left.seconds
            self._note(Outcome(checkpoint, State.UNCHANGED, seconds=seconds), says_seconds=False)
        except MismatchError as exc:
            self._note(Outcome(checkpoint, State.FAILED, anew(str(exc), config.run.output)))
        except RavevalError:
            return False  # its own process says it better
        return True

    def _stays_stopped(self, checkpoint: Checkpoint, config: RunConfig) -> bool:
        """Whether an earlier sweep stopped a checkpoint, and this one asks for that, too.

        Raises:
            Refused: as `runner.plan`, such as where the weights have changed since.
        """
        left = self._earlier.get(checkpoint.name)
        if self._stopping is None or left is None or left.state is not State.STOPPED:
            return False
        runner.plan(config)
        return True

    def _waiting(self) -> list[Outcome]:
        return [o for o in self._outcomes.values() if o.state is State.ANSWERED]

    def _grade(self) -> None:
        """Have one judge grade all that was answered; the weights that answered may be gone."""
        waiting = self._waiting()
        if not waiting:
            return
        self._say(f"one judge grades the answers of {len(waiting)} checkpoints")
        self._cluster()
        directories = [self._config.output / outcome.checkpoint.name for outcome in waiting]
        graded = runner.grade(directories, say=self._say)
        for outcome, found in zip(waiting, graded, strict=True):
            if isinstance(found, RavevalError):
                self._note(replace(outcome, state=State.FAILED, message=str(found)))
            else:
                self._note(replace(outcome, state=State.DONE), says_seconds=False)

    def _note(self, outcome: Outcome, *, says_seconds: bool = True) -> None:
        """Keep what became of a checkpoint, and say it; seconds of this sweep are its process's."""
        self._outcomes[outcome.checkpoint.name] = outcome
        took = f" in {outcome.seconds:.0f} s" if outcome.seconds and says_seconds else ""
        why = f": {outcome.message}" if outcome.message else ""
        self._say(f"{outcome.checkpoint.name}: {outcome.state}{took}{why}")

    def _cluster(self) -> str:
        """Return the address of the cluster that all share; starts one where none is named."""
        if self._address is None:
            given = self._config.base["run"].get("address")
            self._stack.enter_context(pipeline.cluster(given))
            self._address = given or pipeline.address()
        return self._address

    def _written(self) -> SweepResults:
        """Write sweep.json and the report of all that is known."""
        outcomes = list(self._outcomes.values())
        remarks = [*self._remarks, *(self._stopping.remarks if self._stopping else ())]
        results = collect(self._config.output, outcomes, known=self._comparisons, remarks=remarks)
        write_sweep(results, self._directory.write_text)
        return results
