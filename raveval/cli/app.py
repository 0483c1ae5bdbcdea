"""The application: how a command is registered, and where its tables go."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup
from typing_extensions import override

import raveval
from raveval.speech import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_MISSING_EXAMPLES,
    failures_in_words,
    harmless,
    say,
)

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "EXIT_FAILED",
    "EXIT_INTERRUPTED",
    "EXIT_MISSING_EXAMPLES",
    "Directory",
    "app",
    "command",
    "console",
    "failures_in_words",
    "harmless",
    "say",
    "show",
]

EPILOG = (
    "Exit codes: 0 complete, 3 finished with missing examples, 2 refused before anything was "
    "started, 1 failed. After an interruption the same command goes on where it stopped."
)


class _Commands(TyperGroup):
    """Says what is wrong with a flag's value without the prefix of the library that checks it."""

    @override
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as exc:
            exc.message = exc.message.removeprefix("Value error, ")
            raise


app = typer.Typer(
    name="raveval",
    cls=_Commands,
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


Directory = Annotated[
    str,  # no Path: it may be the URL of a place in an object store
    typer.Argument(metavar="DIR", help="A run directory.", show_default=False),
]


def command(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command whose failures are told in words."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        return app.command(name)(failures_in_words()(function))

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


def show(line: str) -> None:
    """Print a line, some of which may come from a run directory of somebody else."""
    print(harmless(line))


def console() -> Console:
    """Return where tables are printed."""
    from rich.console import Console

    return Console(file=sys.stdout)
