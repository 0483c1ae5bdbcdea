"""Paths as people write them: what can be none is refused, and looking at one raises no OSError."""

from __future__ import annotations

import os
import re
from pathlib import Path

from raveval.errors import ConfigError

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,79}$"
"""Names of tasks and runs become folders and, with an ending, files: no separators, no leading dot,
bounded length. What is committed has a temporary name that is longer by some 40 bytes."""

MAX_NAME_BYTES = 255
MAX_PATH_BYTES = 4095


def path_of(text: str) -> Path:
    """Return the path that a text means; `~` at its beginning is a home directory.

    >>> path_of("runs/first")
    PosixPath('runs/first')

    Raises:
        ConfigError: no file can be called so.
    """
    try:
        encoded = text.encode()
    except UnicodeEncodeError as exc:
        raise ConfigError(f"{text!a:.60}: half of a surrogate pair is in no file's name") from exc
    if b"\x00" in encoded:
        raise ConfigError(f"{text!r:.60}: a NUL character is in no file's name")
    longest = max(map(len, encoded.split(b"/")))
    if longest > MAX_NAME_BYTES or len(encoded) > MAX_PATH_BYTES:
        raise ConfigError(
            f"{text[:40]}…: too long for a path: {len(encoded)} bytes, {longest} in one name; "
            f"file systems take {MAX_PATH_BYTES}, {MAX_NAME_BYTES} in one name"
        )
    try:
        return Path(text).expanduser()
    except RuntimeError as exc:
        raise ConfigError(f"{text}: nobody of that name has a home directory here") from exc


def is_name(text: str) -> bool:
    r"""Whether a text can be the name of a task or a run.

    >>> is_name("arc_easy"), is_name("../arc_easy"), is_name("arc_easy\n")
    (True, False, False)
    """
    return re.fullmatch(NAME_PATTERN, text) is not None


def exists(path: Path) -> bool:
    """Whether there is something of that path.

    Raises:
        ConfigError: this user may not look.
    """
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{path}: cannot be looked at: {exc}") from exc
    return True
