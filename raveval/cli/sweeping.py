"""The command of many checkpoints: sweep."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raveval.cli.app import EXIT_FAILED, EXIT_MISSING_EXAMPLES, command, console, say, show

if TYPE_CHECKING:
    from raveval.sweep.files import CheckpointStatus


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


def show_sweep(directory: str, form: str) -> None:
    """Print the results of a sweep.

    Raises:
        ConfigError: a sweep has no such format.
    """
    from raveval import report
    from raveval.errors import ConfigError
    from raveval.sweep import load_sweep_results, sweep_to_json

    render = {
        "markdown": report.sweep_to_markdown,
        "html": report.sweep_to_html,
        "json": sweep_to_json,
    }
    if form != "table" and form not in render:
        raise ConfigError(
            f"--format {form}: {directory} is a sweep, which is shown as table, "
            f"{', '.join(render)}; a checkpoint's own directory there has the other formats, too"
        )
    results = load_sweep_results(directory)
    if form == "table":
        report.print_sweep(results, console())
    else:
        print(render[form](results), end="")


def show_sweep_status(directory: str) -> None:
    """Print how far each checkpoint of a sweep is, a line each."""
    from raveval.sweep import sweep_status

    found = sweep_status(directory)
    print(f"{found.directory}: a sweep; {found.n_done} of {len(found.checkpoints)} begun are done")
    for each in found.checkpoints:
        show(f"  {each.name}: {'; '.join(_parts(each))}")
    if any(each.state is not None for each in found.checkpoints):
        print("`raveval report` shows its numbers")
    if found.is_running:
        show(f"at work: {found.driver}")
    elif found.n_done < len(found.checkpoints):
        print("nothing is at work; the same `raveval sweep` goes on where it stopped")


def _parts(each: CheckpointStatus) -> list[str]:
    """Return what there is to say of a checkpoint."""
    from raveval.report.numbers import plain

    state = "not finished" if each.state is None else each.state.words
    parts = [f"{state}, {each.n_done} of {each.n_examples} examples" if each.n_examples else state]
    if each.n_missing:
        parts.append(f"{each.n_missing} without a score")
    if each.n_to_grade:
        parts.append(f"{each.n_to_grade} shards wait for the judge")
    return [*parts, plain(each.message, limit=500)] if each.message else parts
