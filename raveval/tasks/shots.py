"""Draws the few-shot examples of an example: a pure function of (seed, example id) and the pool."""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import Literal

from raveval.errors import DataError
from raveval.spool import Entry, Spool
from raveval.tasks.question import Question

_SHOTS_AT_HAND = 16384


class Pool:
    """Candidates for shots, with `within_group` kept apart by group.

    In random order each question is a candidate once. The order `first` keeps the pool as it was
    published, repetitions included: MMLU's college physics shows one of its five questions twice.

    `is_apart`: the pool is another set than the examples. Where such a pool has exactly as many
    members as are shown, as MMLU's have, an example that is found among them is shown the others
    alone; in a pool of the examples themselves that would befall every one, and is refused.

    The candidates lie in a file: a pool may be as large as the data.
    """

    def __init__(
        self,
        candidates: Iterable[Question],
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
        self._shots = Spool(Question, (self._entry(shot) for shot in candidates))
        self._shots.index_keys()
        self._members: dict[str | None, array[int]] = {}
        for position, group in self._shots.labels(once_each_key=order == "random"):
            self._members.setdefault(group, array("q")).append(position)
        self._shown = lru_cache(_SHOTS_AT_HAND)(self._shots.__getitem__)

    def _group(self, shot: Question) -> str | None:
        return shot.group if self._within_group else None

    def _entry(self, shot: Question) -> Entry:
        return Entry(self._key(shot), self._group(shot), shot)

    def _key(self, shot: Question) -> bytes:
        """Return the digest of a question within its group: equal ones are duplicates."""
        content = f"{self._group(shot) or ''}\x00{shot.context}".encode()
        return hashlib.blake2b(content, digest_size=16).digest()

    def _own(self, example: Question, members: array[int]) -> list[int]:
        """Return where the example's question stands among the members."""
        found = self._shots.positions(self._key(example))
        if self._order == "random":
            found = found[:1]
        return [bisect_left(members, position) for position in found]

    def draw(self, example: Question, n: int, *, seed: int) -> tuple[Question, ...]:
        """Return `n` shots, neither the example nor one with the same question among them.

        Raises:
            DataError: the pool has too few others.
        """
        group = self._group(example)
        members = self._members.get(group, array("q"))
        own = self._own(example, members)
        n_others = len(members) - len(own)
        if self._is_apart and own and len(members) == n:
            n = n_others
        if n_others < n:
            among = f" of group {group!r}" if self._within_group else ""
            raise DataError(
                f"{self._name} has {n_others} different questions{among} beside example "
                f"{example.id!r}, but {n} shots are asked for; ask for fewer, or give another pool"
            )
        if self._order == "first":
            others = (place for place in range(len(members)) if place not in own)
            return tuple(self._shown(members[place]) for place in islice(others, n))
        places = _sample(n_others, n, key=f"{seed}/shots/{example.id}")
        return tuple(
            self._shown(members[place + 1 if own and place >= own[0] else place])
            for place in places
        )


def _sample(n: int, k: int, *, key: str) -> Iterator[int]:
    """Yield k different numbers below n, in random order: Fisher and Yates on the touched part."""
    moved: dict[int, int] = {}
    for i in range(k):
        digest = hashlib.blake2b(f"{key}/{i}".encode(), digest_size=8).digest()
        j = i + int.from_bytes(digest, "big") % (n - i)
        yield moved.get(j, j)
        moved[j] = moved.get(i, i)
