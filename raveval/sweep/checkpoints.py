"""Finds the checkpoints of a training run, reads their steps, and says in which order to go."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

Item = TypeVar("Item")

# A number may be of thousands or millions: "10k", "1.5M". "7b" and "v2" are hardly steps.
_COUNT = r"(?P<number>\d+(?:\.\d+(?=[kKM]))?)(?:(?P<unit>[kKM])(?![A-Za-z]))?"
_AFTER_ITS_WORD = re.compile(rf"(?i:steps?|checkpoint|ckpt|iter)[-_=]?{_COUNT}")
_BEFORE_ITS_WORD = re.compile(
    r"(?P<number>\d+(?:\.\d+(?=[kKM]))?)(?P<unit>[kKM])?[-_]?(?i:steps?|iters?)(?![A-Za-z])"
)
_ALONE = re.compile(rf"(?<![A-Za-z0-9.]){_COUNT}(?![A-Za-z0-9])")
_NUMBER = re.compile(r"(?P<number>\d+)(?P<unit>)(?!\d|[bB](?![A-Za-z]))")
_SIZE = re.compile(r"(?<![A-Za-z0-9.])(?P<number>\d+(?:\.\d+)?)(?P<unit>[mMbB])(?![A-Za-z0-9])")
_SIZES = {"m": 1e6, "b": 1e9}
_MAX_DIGITS = 15
_FACTORS = {"k": 1_000, "K": 1_000, "M": 1_000_000}


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

    @property
    def real_place(self) -> str:
        """The same however it is written; links are followed."""
        path = self.source.get("path")
        return self.place if path is None else str(Path(path).expanduser().resolve())

    @property
    def is_gone(self) -> bool:
        """Whether its directory is not there (any more); nobody knows of the hub's."""
        path = self.source.get("path")
        return path is not None and not Path(path).expanduser().is_dir()

    @property
    def rank(self) -> tuple[bool, int, float, str]:
        """Its place among others: by step, those without one last, by size, and by name."""
        return self.step is None, self.step or 0, size_of(self.name), self.name


def found(pattern: str) -> list[Checkpoint]:
    """Return the directories that a pattern of the shell fits (`**` for any depth)."""
    places = sorted(glob.glob(str(Path(pattern).expanduser()), recursive=True))
    return [
        Checkpoint(Path(place).name, step_of(Path(place).name), {"path": place})
        for place in places
        if Path(place).is_dir()
    ]


def step_of(name: str) -> int | None:
    """Return the training step in a checkpoint's name: the number beside "step", else the last.

    >>> [step_of(n) for n in ("step_200", "epoch1-step300", "checkpoint-50", "v2-1000", "final")]
    [200, 300, 50, 1000, None]
    >>> [step_of(n) for n in ("llama-7b-1000steps-v2", "step_10k", "1.5M", "llama-7b", "v2")]
    [1000, 10000, 1500000, None, 2]
    """
    for named in (_AFTER_ITS_WORD, _BEFORE_ITS_WORD):
        match = named.search(name)
        if match:
            return _steps(match)
    numbers = list(_ALONE.finditer(name)) or list(_NUMBER.finditer(name))
    return _steps(numbers[-1]) if numbers else None


def size_of(name: str) -> float:
    """Return the parameters of a model as its name says them; 0 where it does not.

    >>> [size_of(n) for n in ("pythia-70m__step143000", "pythia-1.4b-deduped", "step_10k")]
    [70000000.0, 1400000000.0, 0.0]
    """
    match = _SIZE.search(name)
    return float(match["number"]) * _SIZES[match["unit"].lower()] if match else 0.0


def _steps(match: re.Match[str]) -> int | None:
    """Return the step that is meant; a number of very many digits is none."""
    if len(match["number"]) > _MAX_DIGITS:
        return None
    if match["unit"]:
        return round(float(match["number"]) * _FACTORS[match["unit"]])
    return int(match["number"])


def same_steps(checkpoints: Sequence[tuple[str, int | None]]) -> list[str]:
    """Say which of some (name, step) share a step, so that their order is that of their names."""
    by_step: dict[int, list[str]] = {}
    for name, step in checkpoints:
        if step is not None:
            by_step.setdefault(step, []).append(name)
    return [
        f"{' and '.join(names)} are all at step {step}, and stand in the order of their names; "
        "where a step was misread, give `checkpoints.list` with a `path` and a `step` each"
        for step, names in by_step.items()
        if len(names) > 1
    ]


def in_order(checkpoints: Sequence[Checkpoint], *, bisecting: bool) -> list[Checkpoint]:
    """Return checkpoints by step, those without one last; or the ends first, then halves."""
    ordered = sorted(checkpoints, key=lambda checkpoint: checkpoint.rank)
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
