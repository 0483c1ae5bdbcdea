"""The command line: run, plan, status, score, report, compare, tasks, measure, demo-model.

A thin skin: each command reads its flags, calls one function of the package and prints what it
gives back. Results go to stdout, everything else to stderr. Heavy imports stand inside the
commands, so that `raveval --help` answers at once.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import raveval
from raveval.arguments import evaluation_flags
from raveval.errors import RavevalError

if TYPE_CHECKING:
    from rich.console import Console

    from raveval.config import RunConfig
    from raveval.tasks import Task
    from raveval.tasks.sections import Source
    from raveval.types import Results

EXIT_FAILED = 1
EXIT_MISSING_EXAMPLES = 3
EXIT_INTERRUPTED = 130

EPILOG = (
    "Exit codes: 0 complete, 3 finished with missing examples, 2 refused before anything was "
    "started, 1 failed. After an interruption the same command goes on where it stopped."
)

app = typer.Typer(
    name="raveval",
    help="Distributed batch evaluation of language models on Ray.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    # --num_fewshot and --num-fewshot are the same flag
    context_settings={
        "token_normalize_func": lambda token: token.replace("_", "-"),
        "help_option_names": ["-h", "--help"],
    },
)


class Format(StrEnum):
    """How `raveval report` and `raveval compare` show numbers."""

    TABLE = "table"
    MARKDOWN = "markdown"
    JSON = "json"
    CSV = "csv"


Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="A run directory.", show_default=False)
]


def main() -> None:
    """Run the command line (the entry point `raveval`)."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # an ASCII terminal must not crash a run
    with _failures_in_words():
        app()


@contextlib.contextmanager
def _failures_in_words() -> Iterator[None]:
    """Turn whatever goes wrong into a message on stderr and an exit code."""
    try:
        yield
        sys.stdout.flush()
    except typer.Exit:
        raise
    except RavevalError as exc:
        _say(f"error: {exc}")
        sys.exit(exc.exit_code)
    except KeyboardInterrupt:
        _say("interrupted; run the same command again to go on where it stopped")
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        # the reader of a pipe has left (`| head`); keep the interpreter from flushing into it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_FAILED)
    except Exception as exc:
        traceback.print_exc()
        _say(f"this is a bug in raveval {raveval.__version__}; please report it with the above")
        raise SystemExit(EXIT_FAILED) from exc


def _command(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command whose failures are told in words."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        return app.command(name)(_failures_in_words()(function))

    return register


def _version(shown: bool) -> None:
    if shown:
        print(f"raveval {raveval.__version__}")
        raise typer.Exit


@app.callback()
def _top(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Distributed batch evaluation of language models on Ray."""


def _evaluation_command(name: str) -> Callable[[Callable[[RunConfig], None]], None]:
    """Register a command that takes a config file or flags, and hands its function the config."""

    def register(function: Callable[[RunConfig], None]) -> None:
        @functools.wraps(evaluation_flags)
        def command(config: Path | None = None, **flags: Any) -> None:
            from raveval.flags import read_flags

            function(read_flags(config, {key: _text(value) for key, value in flags.items()}))

        command.__doc__ = inspect.getdoc(function)
        _command(name)(command)

    return register


def _text(value: Any) -> Any:
    """Return paths and choices as the text that a config file would hold."""
    return str(value) if isinstance(value, Path | StrEnum) else value


@_evaluation_command("run")
def _run(config: RunConfig) -> None:
    """Evaluate a model: `raveval run CONFIG`, or with flags instead of a config file.

    A run that was interrupted goes on where it stopped when it is started again.
    """
    from raveval import runner

    results = runner.run(config, say=_say)
    _show_results(results, Path(config.run.output))


@_evaluation_command("plan")
def _plan(config: RunConfig) -> None:
    """Check everything that can be checked and say what would run; no model is loaded."""
    from raveval import runner

    for line in runner.plan(config, say=_say).lines():
        print(line)


@_command("status")
def _status(directory: Directory) -> None:
    """Say how far a run is."""
    from raveval import runner

    status = runner.status(directory)
    print(f"{status.directory}: {status.model}")
    for name, task in status.tasks.items():
        kinds = ", ".join(f"{n} {kind}" for kind, n in task.by_status.items())
        shards = f"{task.n_shards_done} of {task.n_shards} shards done"
        print(f"  {name}: {shards}, {task.n_examples} examples{f' ({kinds})' if kinds else ''}")
    if status.complete:
        print("complete; `raveval report` shows its numbers")
    else:
        print("not complete; run the same command again to go on where it stopped")


@_command("score")
def _score(directory: Directory) -> None:
    """Score the stored replies of a run again and rewrite its results; no model is loaded."""
    from raveval import runner

    results = runner.rescore(directory, say=_say)
    _show_results(results, directory)


@_command("report")
def _report(
    directory: Directory,
    form: Annotated[
        Format, typer.Option("--format", help="How to show the results.")
    ] = Format.TABLE,
) -> None:
    """Show the results of a finished run."""
    from raveval import report, runner

    results = runner.load_results(directory)
    if form is Format.TABLE:
        report.print_table(results, _console())
        return
    render = {
        Format.MARKDOWN: report.to_markdown,
        Format.JSON: report.to_json,
        Format.CSV: report.to_csv,
    }[form]
    print(render(results), end="")


@_command("compare")
def _compare(
    runs: Annotated[
        list[Path],
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
        report.print_comparison(comparison, _console())
        return
    render = {
        Format.MARKDOWN: report.comparison_to_markdown,
        Format.JSON: report.comparison_to_json,
        Format.CSV: report.comparison_to_csv,
    }[form]
    print(render(comparison), end="")


def _each_of(values: list[str] | None) -> list[str]:
    return [name.strip() for value in values or [] for name in value.split(",") if name.strip()]


@_command("tasks")
def _tasks(
    name: Annotated[
        str | None,
        typer.Argument(help="A task; without it all are listed.", show_default=False),
    ] = None,
) -> None:
    """List the tasks, or show the card of one."""
    from raveval import tasks

    if name is not None:
        print("\n".join(map(_harmless, _card(tasks.load_task(name)))))
        return
    from raveval.report.render import print_cells
    from raveval.report.tables import Column, Table

    rows = []
    for known in tasks.names():
        task = tasks.load_task(known)
        rows.append((known, task.protocol, task.card.license, task.card.description))
    columns = [Column(title, "name") for title in ("Task", "Protocol", "License", "Description")]
    print_cells(Table(columns, rows), _console())


def _card(task: Task) -> list[str]:
    """Return a task's card: what it is, where it comes from, how it is asked by default."""
    card = task.card.model_dump()
    facts = {
        "protocol": task.protocol,
        "version": task.version,
        **{key: card[key] for key in ("kind", "language")},
        "source": _place(task.source),
        "shots": f"{task.fewshot.num} by default",
        "scoring": task.scoring if task.protocol == "multiple_choice" else "",
        "group": task.group,
        **{key: card[key] for key in ("license", "homepage", "paper", "notes")},
    }
    lines = [f"{task.name}: {card['description']}"]
    return lines + [f"  {key:<9} {value}" for key, value in facts.items() if value]


def _place(source: Source) -> str:
    if source.path is not None:
        return os.path.normpath(source.path)
    if source.fetch is not None:
        return f"{source.fetch}; fetch it and name it with --path"
    parts = (source.hub, source.config, f"split {source.split}", f"revision {source.revision}")
    return ", ".join(part for part in parts if part)


@_command("measure")
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
    from raveval.flags import read_columns, read_constants
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
        report.print_measurement(measurement, _console())


@_command("demo-model")
def _demo_model() -> None:
    """Fetch the small model of the demo and print the path of its checkpoint as the last line."""
    from raveval import demo_model

    print(demo_model.fetch(say=_say))


def _show_results(results: Results, directory: Path) -> None:
    """Print the table and where the files are; exit 3 where examples are missing."""
    from raveval import report

    report.print_table(results, _console())
    print(f"results: {directory / 'results.json'}")
    print(f"report:  {directory / 'report.md'}")
    if not results.is_complete:
        raise typer.Exit(EXIT_MISSING_EXAMPLES)


def _console() -> Console:
    from rich.console import Console

    return Console(file=sys.stdout)


def _say(text: str) -> None:
    print("\n".join(map(_harmless, text.split("\n"))), file=sys.stderr, flush=True)


def _harmless(line: str) -> str:
    """Return a line with nothing of foreign origin that a terminal would obey."""
    from raveval.report.numbers import plain

    return plain(line, limit=10_000) if not line.isprintable() else line
