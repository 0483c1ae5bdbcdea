"""The command of many checkpoints: sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raveval.cli.app import EXIT_FAILED, EXIT_MISSING_EXAMPLES, command, console, say


@command("sweep")
def _sweep(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A sweep file.")],
    parallel: Annotated[
        int | None,
        typer.Option("--parallel", min=1, help="How many checkpoints are under way at once."),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Wait for more checkpoints to appear.")
    ] = False,
) -> None:
    """Evaluate many checkpoints of a training run, each as a run of its own.

    The same command again evaluates what is missing. Exit code 3: a checkpoint failed, or examples
    are missing, but for those of checkpoints that the file has stopped early; 1: no checkpoint
    could be evaluated.
    """
    from raveval import report
    from raveval.sweep import load_sweep, sweep

    checked = load_sweep(config, parallel=parallel, watch=watch or None)
    results = sweep(checked, say=say)
    report.print_sweep(results, console())
    print(f"results: {checked.output / 'sweep.json'}")
    print(f"report:  {checked.output / 'report.html'}")
    for failed in results.failed:
        say(f"failed: {failed.name}: {failed.message}")
    for stopped in results.stopped:
        n_left = sum(each.n_left for each in stopped.progress.values())
        say(f"stopped early, {n_left} examples not asked: {stopped.name}: {stopped.message}")
    if results.checkpoints and len(results.failed) == len(results.checkpoints):
        raise typer.Exit(EXIT_FAILED)
    if not results.is_carried_out:
        raise typer.Exit(EXIT_MISSING_EXAMPLES)
