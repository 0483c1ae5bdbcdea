"""Draws the few-shot examples of an example: a pure function of (seed, example id) and the pool."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Generic, Literal, Protocol, TypeVar

from raveval.errors import DataError


class Drawable(Protocol):
    """What a shot must tell about itself; equal contexts are duplicates."""

    @property
    def id(self) -> str:
        """The example's id."""
        ...

    @property
    def context(self) -> str:
        """The rendered question."""
        ...

    @property
    def group(self) -> str | None:
        """The subject."""
        ...


Shot = TypeVar("Shot", bound=Drawable)


class Pool(Generic[Shot]):
    """Candidates for shots, with `within_group` kept apart by group.

    In random order each question is a candidate once. The order `first` keeps the pool as it was
    published, repetitions included: MMLU's college physics shows one of its five questions twice.

    `is_apart`: the pool is another set than the examples. Where such a pool has exactly as many
    members as are shown, as MMLU's have, an example that is found among them is shown the others
    alone; in a pool of the examples themselves that would befall every one, and is refused.
    """

    def __init__(
        self,
        candidates: Iterable[Shot],
        *,
        within_group: bool,
        order: Literal["random", "first"],
        name: str,
        is_apart: bool = False,
    ) -> None:
        self._within_group = within_group
        self._order = order
        self._name = name
        self._is_apart = is_apart
        self._members: dict[str | None, list[Shot]] = {}
        self._places: dict[tuple[str | None, str], list[int]] = {}
        for shot in candidates:
            key = self._key(shot)
            members = self._members.setdefault(key, [])
            places = self._places.setdefault((key, shot.context), [])
            if not places or order == "first":
                places.append(len(members))
                members.append(shot)

    def _key(self, shot: Drawable) -> str | None:
        return shot.group if self._within_group else None

    def draw(self, example: Drawable, n: int, *, seed: int) -> tuple[Shot, ...]:
        """Return `n` shots, neither the example nor one with the same question among them.

        Raises:
            DataError: the pool has too few others.
        """
        key = self._key(example)
        members = self._members.get(key, [])
        own = self._places.get((key, example.context), [])
        n_others = len(members) - len(own)
        if self._is_apart and own and len(members) == n:
            n = n_others
        if n_others < n:
            group = f" of group {key!r}" if self._within_group else ""
            raise DataError(
                f"{self._name} has {n_others} different questions{group} beside example "
                f"{example.id!r}, but {n} shots are asked for; ask for fewer, or give another pool"
            )
        if self._order == "first":
            others = (place for place in range(len(members)) if place not in own)
            return tuple(members[place] for place in islice(others, n))
        places = _sample(n_others, n, key=f"{seed}/shots/{example.id}")
        return tuple(members[place + 1 if own and place >= own[0] else place] for place in places)


def _sample(n: int, k: int, *, key: str) -> Iterator[int]:
    """Yield k different numbers below n, in random order: Fisher and Yates on the touched part."""
    moved: dict[int, int] = {}
    for i in range(k):
        digest = hashlib.blake2b(f"{key}/{i}".encode(), digest_size=8).digest()
        j = i + int.from_bytes(digest, "big") % (n - i)
        yield moved.get(j, j)
        moved[j] = moved.get(i, i)
