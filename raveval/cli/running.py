"""Commands of one run: run, plan, status, score."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from raveval.cli.app import EXIT_MISSING_EXAMPLES, Directory, command, console, say, show
from raveval.cli.arguments import evaluation_flags
from raveval.cli.sweeping import show_sweep_status

if TYPE_CHECKING:
    from raveval.config import RunConfig
    from raveval.store import Lost
    from raveval.types import Results

_LOST_SHOWN = 3


def evaluation_command(name: str) -> Callable[[Callable[[RunConfig], None]], None]:
    """Register a command that takes a config file or flags, and hands its function the config."""

    def register(function: Callable[[RunConfig], None]) -> None:
        @functools.wraps(evaluation_flags)
        def of_flags(config: Path | None = None, **flags: Any) -> None:
            from raveval.cli.flags import read_flags

            function(read_flags(config, {key: _text(value) for key, value in flags.items()}))

        of_flags.__doc__ = inspect.getdoc(function)
        command(name)(of_flags)

    return register


def _text(value: Any) -> Any:
    """Return paths and choices as the text that a config file would hold."""
    return str(value) if isinstance(value, Path | StrEnum) else value


@evaluation_command("run")
def _run(config: RunConfig) -> None:
    """Evaluate a model: `raveval run CONFIG`, or with flags instead of a config file.

    A run that was interrupted goes on where it stopped when it is started again.
    """
    from raveval import runner

    results = runner.run(config, say=say)
    _show_results(results, config.run.output)


@evaluation_command("plan")
def _plan(config: RunConfig) -> None:
    """Check everything that can be checked and say what would run; no model is loaded."""
    from raveval import runner

    for line in runner.plan(config, say=say).lines():
        show(line)


@command("status")
def _status(directory: Directory) -> None:
    """Say how far a run is, or the checkpoints of a sweep."""
    from raveval.run_status import status as status_of
    from raveval.sweep import is_sweep

    if is_sweep(directory):
        show_sweep_status(directory)
        return
    status = status_of(directory)
    show(f"{status.directory}: {status.model}")
    for name, task in status.tasks.items():
        kinds = ", ".join(f"{n} {kind}" for kind, n in task.by_status.items())
        waiting = f", {task.n_shards_to_grade} wait for the judge" * bool(task.n_shards_to_grade)
        shards = f"{task.n_shards_done} of {task.n_shards} shards done{waiting}"
        show(f"  {name}: {shards}, {task.n_examples} examples{f' ({kinds})' if kinds else ''}")
    for line in _lost_lines(status.lost):
        show(line)
    if status.complete:
        print("complete; `raveval report` shows its numbers")
    elif status.is_running:
        show(f"at work: {status.driver}")
    else:
        print("not complete, and nothing is at work; the same command goes on where it stopped")


def _lost_lines(lost: Sequence[Lost]) -> Iterator[str]:
    """Say how many replicas were lost, and how the last ones were."""
    if lost:
        died = sum(not each.gave_up for each in lost)
        yield f"  replicas: {died} died, {len(lost) - died} could not start; the last of them:"
    for each in lost[-_LOST_SHOWN:]:
        yield f"    {each.when}: {each.in_words()}"


@command("score")
def _score(directory: Directory) -> None:
    """Score the stored replies of a run again and rewrite its results; no model is loaded."""
    from raveval import runner

    results = runner.rescore(directory, say=say)
    _show_results(results, directory)


def _show_results(results: Results, directory: str) -> None:
    """Print the table and where the files are; exit 3 where examples are missing."""
    from raveval import report

    report.print_table(results, console())
    place = directory.rstrip("/")
    print(f"results: {place}/results.json")
    print(f"report:  {place}/report.html")
    if not results.is_complete:
        raise typer.Exit(EXIT_MISSING_EXAMPLES)
