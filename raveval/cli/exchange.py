"""Commands that exchange results with other tools: export, import."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raveval.cli.app import Directory, command, console, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raveval.lm_eval.importing import Imported


class Target(StrEnum):
    """Where `raveval export` sends a run."""

    LM_EVAL = "lm-eval"
    MLFLOW = "mlflow"
    WANDB = "wandb"


@command("export")
def _export(
    directory: Directory,
    target: Annotated[
        Target, typer.Option("--to", help="lm-eval's files, or a tracker of experiments.")
    ] = Target.LM_EVAL,
    output_path: Annotated[
        str | None,
        typer.Option(
            "--output-path",
            "-o",
            help="Of lm-eval's files: a folder, or a name ending in .json (default: DIR/lm_eval).",
        ),
    ] = None,
    log_samples: Annotated[
        bool, typer.Option("--log-samples", "-s", help="Write lm-eval's samples files, too.")
    ] = False,
    tracker_args: Annotated[
        str | None,
        typer.Option(
            "--tracker-args",
            "--wandb-args",
            "--mlflow-args",
            help="project=…,name=… (wandb), or tracking_uri=…,experiment=…,name=… (mlflow).",
        ),
    ] = None,
) -> None:
    """Write a finished run in the formats of other tools; no model is loaded.

    For lm-eval: results_<date>.json, and samples_<task>_<date>.jsonl with --log-samples.
    """
    if target is Target.LM_EVAL:
        _refuse(f"--to {target}", tracker_args=tracker_args)
        _write_lm_eval(directory, output_path, log_samples=log_samples)
        return
    _refuse(f"--to {target}", output_path=output_path, log_samples=log_samples)
    from raveval import trackers
    from raveval.cli.flags import parse_arguments

    options = parse_arguments(tracker_args or "", flag="--tracker-args")
    print(trackers.send(directory, str(target), options))


def _refuse(what: str, **flags: object) -> None:
    """Refuse flags that belong to another target."""
    from raveval.errors import ConfigError

    for name, value in flags.items():
        if value:
            raise ConfigError(f"--{name.replace('_', '-')}: {what} has no use for it; leave it out")


def _write_lm_eval(directory: str, output_path: str | None, *, log_samples: bool) -> None:
    from raveval.lm_eval.exporting import export_run

    exported = export_run(directory, output_path, log_samples=log_samples)
    for task in exported.without_samples:
        say(f"{task}: no samples: lm-eval has no such way to ask a model")
    for path in (exported.results, *exported.samples.values()):
        print(path)


@command("import")
def _import(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE_OR_FOLDER",
            help="lm-eval's results_*.json and samples_*.jsonl, or folders that hold them.",
        ),
    ],
    output_path: Annotated[
        str,
        typer.Option(
            "--output-path",
            "-o",
            help="The run directory to write; with several results files, the folder of several.",
            show_default=False,
        ),
    ],
) -> None:
    """Turn results of lm-eval into run directories, for `raveval report` and `raveval compare`.

    Several of them, such as the checkpoints of a training run, get a report together as well.
    """
    from raveval.lm_eval.importing import import_runs
    from raveval.sweep import report_imported

    imported = import_runs(files, output_path, say=say)
    _show_imported(imported)
    for folder in report_imported(imported):
        print(f"report:  {folder / 'report.html'}")


def _show_imported(imported: Sequence[Imported]) -> None:
    """Print the table of a single run, and of several what each is."""
    from raveval import report
    from raveval.report.numbers import plain

    if len(imported) == 1:
        report.print_table(imported[0].results, console())
    for each in imported:
        results = each.results
        parts = [plain(results.model), *_shown("revision", results.settings.get("revision"))]
        shots = sorted({t.num_fewshot for t in results.tasks.values() if t.num_fewshot is not None})
        parts += _shown("shots", ", ".join(map(str, shots)))
        print(f"{each.directory}: {'; '.join(parts)}; {len(results.tasks)} tasks")


def _shown(name: str, value: object) -> list[str]:
    from raveval.report.numbers import plain

    return [f"{name} {plain(value)}"] if value not in (None, "") else []
