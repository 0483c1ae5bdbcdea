"""The command line. Each module but `app`, `arguments` and `flags` holds a few of its commands.

A thin skin: each command reads its flags, calls one function of the package and prints what it
gives back. Results go to stdout, everything else to stderr. Heavy imports stand inside the
commands, so that `raveval --help` answers at once.
"""

from __future__ import annotations

import sys

from raveval.cli.app import app, failures_in_words

# Importing a module registers its commands, and the help shows them in this order.
from raveval.cli import running  # noqa: F401 # isort: skip
from raveval.cli import submission  # noqa: F401 # isort: skip
from raveval.cli import sweeping  # noqa: F401 # isort: skip
from raveval.cli import numbers  # noqa: F401 # isort: skip
from raveval.cli import exchange  # noqa: F401 # isort: skip
from raveval.cli import catalog  # noqa: F401 # isort: skip

__all__ = ["app", "main"]


def main() -> None:
    """Run the command line (the entry point `raveval`)."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # an ASCII terminal must not crash a run
    with failures_in_words():
        app()
