"""What is stored of a shard, and how far one under way is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from raveval.evaluate import ShardStates
from raveval.types import Shard


@dataclass(frozen=True, slots=True)
class Replies:
    """What a model made of a shard, under which fingerprint, by what engine, at what cost.

    The candidate's, or a judge's verdicts on them.
    """

    table: pa.Table
    fingerprint: str
    engine: Mapping[str, Any]
    engine_seconds: float


@dataclass(frozen=True, slots=True)
class Receipt:
    """A finished shard: what it adds to the run, and what its numbers depend on.

    `judge` is the engine of the judge that graded it; None where none did.
    """

    shard: Shard
    reply_fingerprint: str
    score_fingerprint: str
    engine: Mapping[str, Any]
    states: ShardStates
    judge: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """A shard under way, as its last process left it.

    Attributes:
        session: the driver's pass under which it was begun; a death of the driver is nobody's
            fault.
        n_deaths: how often its process died while the driver lived.
        in_flight: the only example in flight, where the shard is run example by example.
        example_deaths: deaths by the example that was alone in flight.
        last_words: of the engine that died on `in_flight`, where it had time for any.
        example_words: the same of earlier deaths, by the example.
    """

    session: str
    n_deaths: int = 0
    in_flight: str | None = None
    example_deaths: Mapping[str, int] = field(default_factory=dict)
    last_words: str = ""
    example_words: Mapping[str, str] = field(default_factory=dict)


def shards_of(task: str, n_examples: int, shard_size: int) -> list[Shard]:
    """Return the shards of a task: consecutive ranges of its fixed order.

    >>> [(s.start, s.stop) for s in shards_of("t", 5, 2)]
    [(0, 2), (2, 4), (4, 5)]
    """
    starts = range(0, n_examples, shard_size)
    return [
        Shard(task, index, start, min(start + shard_size, n_examples))
        for index, start in enumerate(starts)
    ]
