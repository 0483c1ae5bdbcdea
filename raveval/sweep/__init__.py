"""Evaluates many checkpoints of a training run: one run each, one cluster, one judge for all.

Each checkpoint is a run with a directory and a process of its own; a broken one is one failed run,
and the sweep goes on. Several are under way at once, and share a Ray cluster: while one has the
accelerators, the next one is planned and its weights are brought nearer. Where a judge grades,
all checkpoints answer first; then one judge, loaded once, grades all that they answered. The same
sweep again does what is missing, and nothing else.

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
from raveval.store import RunDirectory
from raveval.sweep.checkpoints import Checkpoint, size_if_whole
from raveval.sweep.config import SweepConfig, load_sweep
from raveval.sweep.results import Comparisons, SweepResults, SweptCheckpoint, collect, to_json
from raveval.sweep.schedule import Outcome, State, carry_out

__all__ = ["State", "SweepResults", "SweptCheckpoint", "load_sweep", "sweep"]

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
    checked.checkpoints()  # before the directory is made
    directory = RunDirectory(checked.output)
    if (directory.path / "run.json").exists():
        raise MismatchError(
            f"run.output: {checked.output} is a run, not a sweep; choose another output"
        )
    with directory.held(), contextlib.ExitStack() as stack:
        return _Sweep(checked, directory, stack, say).carry_on()


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
        self._outcomes: dict[str, Outcome] = {}
        self._sizes: dict[str, int] = {}
        self._comparisons: Comparisons = {}

    def carry_on(self) -> SweepResults:
        """Go on until there is nothing left to evaluate, or to wait for."""
        last_new = time.monotonic()
        while True:
            todo = self._new()
            if todo:
                self._evaluate(todo)
                last_new = time.monotonic()
            results = self._written()
            if not self._config.watch:
                return results
            idle = self._config.idle_minutes
            if idle is not None and time.monotonic() - last_new >= idle * 60:
                self._say(f"no new checkpoint for {idle:g} minutes")
                return results
            time.sleep(self._config.poll_seconds)

    def _new(self) -> list[Work]:
        """Return the checkpoints that nothing is known of yet, and are whole where they are new."""
        found = [c for c in self._config.checkpoints() if c.name not in self._outcomes]
        if self._config.watch:
            found = [checkpoint for checkpoint in found if self._has_settled(checkpoint)]
        return [(checkpoint, self._config.run_of(checkpoint)) for checkpoint in found]

    def _has_settled(self, checkpoint: Checkpoint) -> bool:
        """Whether a checkpoint is whole, and was as large when it was last looked at."""
        size = size_if_whole(checkpoint)
        before = self._sizes.get(checkpoint.name)
        if size is None:
            return False
        self._sizes[checkpoint.name] = size
        return size == before

    def _evaluate(self, todo: Sequence[Work]) -> None:
        left = [work for work in todo if not self._is_settled_already(*work)]
        if left:
            self._say(f"{len(left)} of {len(todo)} checkpoints to evaluate")
            runs = {checkpoint.name: config for checkpoint, config in left}
            answered = carry_out(
                left,
                parallel=self._config.parallel,
                address=self._cluster(left[0][1]),
                folder=self._directory.path / "logs",
                say=self._say,
            )
            for outcome in answered:
                self._note(outcome)
                self._written()
            self._grade(runs)

    def _is_settled_already(self, checkpoint: Checkpoint, config: RunConfig) -> bool:
        """Note a checkpoint of which nothing is to do, because it is done or because it cannot."""
        try:
            if not runner.is_done(config):
                return False
            self._note(Outcome(checkpoint, State.UNCHANGED))
        except MismatchError as exc:
            self._note(Outcome(checkpoint, State.FAILED, str(exc)))
        except RavevalError:
            return False  # its own process says it better
        return True

    def _grade(self, runs: Mapping[str, RunConfig]) -> None:
        """Have one judge grade all that was answered."""
        waiting = [o for o in self._outcomes.values() if o.state is State.ANSWERED]
        if not waiting:
            return
        self._say(f"one judge grades the answers of {len(waiting)} checkpoints")
        state, message = State.DONE, ""
        try:
            runner.grade([_once(runs[o.checkpoint.name]) for o in waiting], say=self._say)
        except RavevalError as exc:
            state, message = State.FAILED, str(exc)
        for outcome in waiting:
            self._note(replace(outcome, state=state, message=message))

    def _note(self, outcome: Outcome) -> None:
        """Keep what became of a checkpoint, and say it."""
        self._outcomes[outcome.checkpoint.name] = outcome
        took = f" in {outcome.seconds:.0f} s" if outcome.seconds else ""
        why = f": {outcome.message}" if outcome.message else ""
        self._say(f"{outcome.checkpoint.name}: {outcome.state}{took}{why}")

    def _cluster(self, config: RunConfig) -> str:
        """Return the address of the cluster that all share; starts one where none is named."""
        if self._address is None:
            self._stack.enter_context(pipeline.cluster(config.run.address))
            self._address = config.run.address or pipeline.address()
        return self._address

    def _written(self) -> SweepResults:
        """Write sweep.json and the report of all that is known."""
        from raveval import report

        outcomes = list(self._outcomes.values())
        results = collect(self._directory.path, outcomes, known=self._comparisons)
        self._directory.write_text("sweep.json", to_json(results))
        self._directory.write_text("report.md", report.sweep_to_markdown(results))
        self._directory.write_text("report.html", report.sweep_to_html(results))
        return results


def _once(config: RunConfig) -> RunConfig:
    """Return a run that drops nothing: its own process did so already, where that was asked for."""
    section = config.run.model_copy(update={"retry_failed": False})
    return config.model_copy(update={"run": section})
