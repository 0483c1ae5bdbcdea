"""The application: how a command is registered, how it speaks, and how its failures are told."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import raveval
from raveval.errors import RavevalError

if TYPE_CHECKING:
    from rich.console import Console

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


Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="A run directory.", show_default=False)
]


@contextlib.contextmanager
def failures_in_words() -> Iterator[None]:
    """Turn whatever goes wrong into a message on stderr and an exit code."""
    try:
        yield
        sys.stdout.flush()
    except typer.Exit:
        raise
    except RavevalError as exc:
        say(f"error: {exc}")
        sys.exit(exc.exit_code)
    except KeyboardInterrupt:
        say("interrupted; run the same command again to go on where it stopped")
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        # the reader of a pipe has left (`| head`); keep the interpreter from flushing into it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_FAILED)
    except Exception as exc:
        traceback.print_exc()
        say(f"this is a bug in raveval {raveval.__version__}; please report it with the above")
        raise SystemExit(EXIT_FAILED) from exc


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


def console() -> Console:
    """Return where tables are printed."""
    from rich.console import Console

    return Console(file=sys.stdout)


def say(text: str) -> None:
    """Tell a person what is going on, on stderr."""
    print("\n".join(map(harmless, text.split("\n"))), file=sys.stderr, flush=True)


def harmless(line: str) -> str:
    """Return a line with nothing of foreign origin that a terminal would obey."""
    from raveval.report.numbers import plain

    return plain(line, limit=10_000) if not line.isprintable() else line
