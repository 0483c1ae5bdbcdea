"""An engine that finds no room at its first starts: the scripted one on a crowded machine."""

import os
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from raveval.engines import Engine, scripted
from raveval.types import ModelRef

OPERATIONAL: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Options:
    """Settings of this engine.

    Attributes:
        room: an empty folder, in which starts are counted.
        n_refused: how many starts find no room.
        crashes: whether these end their process, and do not only raise.
    """

    room: str
    n_refused: int = 0
    crashes: bool = False


def encoder(model: ModelRef, options: Options) -> scripted.ScriptedEncoder:
    """Return the scripted engine's."""
    return scripted.encoder(model, scripted.Options())


def start(model: ModelRef, options: Options) -> Engine:
    """Start, unless there is no room yet."""
    number = next(n for n in count() if _is_first(Path(options.room, str(n))))
    if number >= options.n_refused:
        return scripted.start(model, scripted.Options())
    if options.crashes:
        os._exit(139)
    raise RuntimeError("CUDA out of memory: \x1b[31mtried to allocate 20 GiB")


def _is_first(path: Path) -> bool:
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
