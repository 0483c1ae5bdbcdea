"""How a process of raveval speaks to people: lines on stderr, and an exit code.

The command line and the processes of a sweep's checkpoints share it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator

import typer

import raveval
from raveval.errors import RavevalError

EXIT_FAILED = 1
EXIT_MISSING_EXAMPLES = 3
EXIT_INTERRUPTED = 130


@contextlib.contextmanager
def failures_in_words() -> Iterator[None]:
    """Turn whatever goes wrong into a message on stderr and an exit code."""
    try:
        with sigterm_interrupts():
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


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Have SIGTERM, by which schedulers end what they started, do what Ctrl-C does.

    A handler that a program has set for itself stays.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def say(text: str) -> None:
    """Tell a person what is going on, on stderr."""
    sys.stderr.write("\n".join(map(harmless, text.split("\n"))) + "\n")
    sys.stderr.flush()


def harmless(line: str) -> str:
    """Return a line, indented as it is, with nothing of foreign origin that a terminal obeys."""
    from raveval.report.numbers import plain

    if line.isprintable():
        return line
    indent = " " * (len(line) - len(line.lstrip(" ")))
    return indent + plain(line, limit=10_000)
