"""Commands that show and compare numbers that exist: report, compare, measure."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from raveval.cli.app import Directory, command, console
from raveval.cli.sweeping import show_sweep


class Format(StrEnum):
    """How `raveval compare` shows numbers."""

    TABLE = "table"
    MARKDOWN = "markdown"
    JSON = "json"
    CSV = "csv"


class ReportFormat(StrEnum):
    """How `raveval report` shows numbers."""

    TABLE = "table"
    MARKDOWN = "markdown"
    HTML = "html"
    JSON = "json"
    CSV = "csv"


@command("report")
def _report(
    directory: Directory,
    form: Annotated[
        ReportFormat, typer.Option("--format", help="How to show the results.")
    ] = ReportFormat.TABLE,
) -> None:
    """Show the results of a finished run, or of a sweep as far as it is."""
    from raveval import report, runner
    from raveval.sweep import is_sweep

    if is_sweep(directory):
        show_sweep(directory, str(form))
        return
    results = runner.load_results(directory)
    if form is ReportFormat.TABLE:
        report.print_table(results, console())
        return
    render = {
        ReportFormat.MARKDOWN: report.to_markdown,
        ReportFormat.HTML: report.to_html,
        ReportFormat.JSON: report.to_json,
        ReportFormat.CSV: report.to_csv,
    }[form]
    print(render(results), end="")


@command("compare")
def _compare(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN", help="Two or more run directories, the baseline first."),
    ],
    metrics: Annotated[
        list[str] | None,
        typer.Option("--metrics", help="Only these numbers, separated by commas: the family."),
    ] = None,
    tasks: Annotated[
        list[str] | None, typer.Option("--task", help="Only these tasks, separated by commas.")
    ] = None,
    form: Annotated[
        Format, typer.Option("--format", help="How to show the differences.")
    ] = Format.TABLE,
    as_json: Annotated[bool, typer.Option("--json", help="Print strict JSON.")] = False,
) -> None:
    """Compare finished runs on the examples they have in common; no model is loaded.

    Each difference has a 95 % interval and a paired test. Runs may differ in the model and the
    engine; anything else that moves numbers is refused.
    """
    from raveval import report
    from raveval.comparison import compare

    comparison = compare(runs, metrics=_each_of(metrics), tasks=_each_of(tasks))
    form = Format.JSON if as_json else form
    if form is Format.TABLE:
        report.print_comparison(comparison, console())
        return
    render = {
        Format.MARKDOWN: report.comparison_to_markdown,
        Format.JSON: report.comparison_to_json,
        Format.CSV: report.comparison_to_csv,
    }[form]
    print(render(comparison), end="")


def _each_of(values: list[str] | None) -> list[str]:
    return [name.strip() for value in values or [] for name in value.split(",") if name.strip()]


@command("measure")
def _measure(
    metric: Annotated[
        str, typer.Argument(help="A metric family, as squad, accuracy or correlation.")
    ],
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="JSONL or Parquet files of predictions.", show_default=False),
    ] = None,
    column_map: Annotated[
        list[str] | None,
        typer.Option("--map", help="column=field: read a column of the metric from that field."),
    ] = None,
    constant: Annotated[
        list[str] | None,
        typer.Option("--set", help="column=value: a column that has one value for all rows."),
    ] = None,
    references: Annotated[
        Path | None, typer.Option("--references", help="SQuAD's dev-v1.1.json or dev-v2.0.json.")
    ] = None,
    predictions: Annotated[
        Path | None, typer.Option("--predictions", help="SQuAD's predictions.json.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print strict JSON.")] = False,
) -> None:
    """Compute a metric on predictions that exist; no model, no run directory."""
    from raveval import report
    from raveval.cli.flags import read_columns, read_constants
    from raveval.measurement import measure

    measurement = measure(
        metric,
        files or None,
        columns=read_columns(column_map or []),
        constants=read_constants(constant or []),
        references=references,
        predictions=predictions,
    )
    if as_json:
        print(report.measurement_to_json(measurement), end="")
    else:
        report.print_measurement(measurement, console())
