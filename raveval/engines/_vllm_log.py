"""What vLLM's own processes say before they end."""

from __future__ import annotations

import atexit
import json
import re
import shutil
import tempfile
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Self

from raveval.engines._vllm_backends import words

_FRAME = re.compile(r' +File "(.+)", line \d+')
_MEMORY_ERROR = re.compile(r"(torch\.|torch\.cuda\.)?OutOfMemoryError\b|MemoryError\b")


class End(NamedTuple):
    """An exception that ended something: its type and text, and the file that raised it."""

    words: str
    file: str | None

    @classmethod
    def of(cls, exc: BaseException) -> Self:
        """Return the end that an exception of this process was."""
        frames = traceback.extract_tb(exc.__traceback__)
        return cls(words(exc), frames[-1].filename if frames else None)

    @property
    def is_want_of_memory(self) -> bool:
        """Whether an allocation failed, or what sizes vLLM's cache found it too small."""
        is_from_cache = Path(self.file or "").name == "kv_cache_utils.py"
        return is_from_cache or _MEMORY_ERROR.match(self.words) is not None


def last_words(ends: Iterable[End]) -> str | None:
    """Return the first few of some ends, as one text; None if there are none."""
    return "; ".join(list(dict.fromkeys(end.words for end in ends))[:3]) or None


class EngineLog:
    """A file into which the engine's own processes write their errors, to quote them.

    It stays until this process ends, because vLLM keeps a handler on it.
    """

    def __init__(self, level: str) -> None:
        directory = Path(tempfile.mkdtemp(prefix="raveval-vllm-"))
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        self._file = directory / "errors.log"
        self.config = directory / "logging.json"
        plain = {"format": "%(name)s %(levelname)s: %(message)s"}
        console = {"class": "logging.StreamHandler", "level": level, "formatter": "plain"}
        errors = {
            "class": "logging.FileHandler",
            "filename": str(self._file),
            "level": "ERROR",
            "formatter": "plain",
            "delay": True,
        }
        vllm = {"handlers": ["console", "errors"], "level": level, "propagate": False}
        settings = {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"plain": plain},
            "handlers": {"console": console, "errors": errors},
            "loggers": {"vllm": vllm},
        }
        self.config.write_text(json.dumps(settings))

    def ends(self) -> tuple[End, ...]:
        """Return the exceptions that the processes logged, the cause first."""
        if not self._file.exists():
            return ()
        found: dict[End, None] = {}
        file: str | None = None
        in_traceback = False
        for line in self._file.read_text(errors="replace").splitlines():
            if line.startswith("Traceback (most recent call last)"):
                in_traceback = True
            elif match := _FRAME.match(line):
                file = match[1]
            elif in_traceback and line and not line.startswith(" "):
                in_traceback = False
                found[End(line, file)] = None
        return tuple(found)

    def last_words(self) -> str | None:
        """Return what the processes logged about their end; None if nothing."""
        return last_words(self.ends())
