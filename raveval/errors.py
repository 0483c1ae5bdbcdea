"""What raveval raises; the command line prints the message alone and exits with the code.

RavevalError
├── Refused            exit 2: the request cannot be carried out as asked; nothing was started
│   ├── ConfigError    a config, task file or flag says something that is not allowed
│   ├── DataError      a dataset, prediction or reference file is missing, empty or malformed
│   ├── ModelError     the model is missing, is no model, or cannot do what the task needs
│   ├── ResourceError  the machine or cluster has not what the run asks for
│   └── MismatchError  the output directory holds a run that differs in what moves numbers
└── RunError           exit 1: something broke after the start; what was committed is kept
    └── StoreError     an object store denies access, is not there, or does not answer

A message says what, where, what was given, what is allowed, and what to do next.
Failures of single examples are not exceptions: they are `types.Failure` values and are counted.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from difflib import get_close_matches


class RavevalError(Exception):
    """Root of all errors that raveval raises on purpose."""

    exit_code = 1


class Refused(RavevalError):
    """The request cannot be carried out as asked; nothing was started."""

    exit_code = 2


class ConfigError(Refused):
    """A config, task file or flag says something that is not allowed."""


class DataError(Refused):
    """A dataset, prediction or reference file is missing, empty or malformed."""


class ModelError(Refused):
    """The model is missing, is no model, or cannot do what the task needs."""


class ResourceError(Refused):
    """The machine or cluster has not what the run asks for."""


class MismatchError(Refused):
    """The output directory holds a run that differs in what moves numbers."""


class RunError(RavevalError):
    """Something broke after the start; what was committed is kept."""


class StoreError(RunError):
    """An object store denies access, is not there, or does not answer."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the tail of an error message: the known names nearest to `name`, or all of them.

    >>> nearest("arc_esay", ["arc_easy", "piqa"])
    "did you mean 'arc_easy'?"
    >>> nearest("zzz", ["arc_easy", "piqa"])
    'known: arc_easy, piqa'
    """
    names = sorted(known)
    return meant(name, names) or f"known: {', '.join(names)}"


def meant(name: str, known: Iterable[str]) -> str:
    """Return the question whether one of the nearest names was meant; empty where none is near.

    >>> meant("arc_esay", ["arc_easy", "piqa"])
    "did you mean 'arc_easy'?"
    >>> meant("zzz", ["arc_easy", "piqa"])
    ''
    """
    close = get_close_matches(name, sorted(known), n=3, cutoff=0.6)
    return f"did you mean {' or '.join(map(repr, close))}?" if close else ""


def raised_at(exc: BaseException) -> str:
    """Return what an exception of foreign code says, and the line of it where it was raised.

    >>> try:
    ...     {}["a"]
    ... except KeyError as exc:
    ...     raised_at(exc).split(", line")[0]
    "KeyError: 'a' (<doctest raveval.errors.raised_at[0]>"
    """
    what = f"{type(exc).__name__}: {exc}"
    frames = traceback.extract_tb(exc.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith("<frozen ")]
    if isinstance(exc, SyntaxError) or not own:  # which names the place itself
        return what
    return f"{what} ({own[-1].filename}, line {own[-1].lineno})"
