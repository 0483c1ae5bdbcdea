"""Finds the checkpoints of a training run, reads their steps, and says in which order to go."""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

Item = TypeVar("Item")

_STEP = re.compile(r"(?:steps?|checkpoint|ckpt|iter)[-_]?(\d+)", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint: `step` is None where its name has no number; `source` says where it is."""

    name: str
    step: int | None
    source: Mapping[str, str]

    @property
    def place(self) -> str:
        """The directory, or the hub's id and revision."""
        return self.source.get("path") or "@".join(self.source.values())


def found(pattern: str) -> list[Checkpoint]:
    """Return the directories that a pattern of the shell fits (`**` for any depth)."""
    places = sorted(glob.glob(str(Path(pattern).expanduser()), recursive=True))
    return [
        Checkpoint(Path(place).name, step_of(Path(place).name), {"path": place})
        for place in places
        if Path(place).is_dir()
    ]


def step_of(name: str) -> int | None:
    """Return the training step in a checkpoint's name: the number after "step", else the last.

    >>> [step_of(n) for n in ("step_200", "epoch1-step300", "checkpoint-50", "v2-1000", "final")]
    [200, 300, 50, 1000, None]
    """
    named = _STEP.search(name)
    if named:
        return int(named[1])
    numbers = _NUMBER.findall(name)
    return int(numbers[-1]) if numbers else None


def in_order(checkpoints: Sequence[Checkpoint], *, bisecting: bool) -> list[Checkpoint]:
    """Return checkpoints by step, those without one last; or the ends first, then halves."""
    ordered = sorted(
        checkpoints, key=lambda c: (c.step is None, c.step if c.step is not None else 0, c.name)
    )
    return list(_bisected(ordered)) if bisecting else ordered


def _bisected(items: Sequence[Item]) -> Iterator[Item]:
    """Yield the last, the first, the middle, then the middles of what lies between.

    >>> "".join(_bisected("abcdefg"))
    'gadbecf'
    """
    if not items:
        return
    yield items[-1]
    if len(items) > 1:
        yield items[0]
    spans = [(0, len(items) - 1)]
    while spans:
        halves = []
        for low, high in spans:
            if high - low < 2:
                continue
            middle = (low + high) // 2
            yield items[middle]
            halves += [(low, middle), (middle, high)]
        spans = halves


def size_if_whole(checkpoint: Checkpoint) -> int | None:
    """Return the bytes of a local checkpoint that looks whole; None of one that is being written.

    A whole one has its configuration, and all the weight files that its index names.
    """
    folder = Path(checkpoint.source.get("path", ""))
    files = [path for pattern in _WEIGHTS for path in folder.glob(pattern)]
    if not files or not (folder / "config.json").is_file():
        return None
    for index in folder.glob("*.index.json"):
        try:
            named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError):
            return None  # half written
        if not named <= {path.name for path in files}:
            return None
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
