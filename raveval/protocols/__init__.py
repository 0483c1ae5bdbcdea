"""What a protocol is: how a model is questioned, and how its answers become a record.

Each module of this package with a public name is one protocol; the file's name is its key. `answer`
is a coroutine, so that an adaptive recipe reads like the paper's pseudo-code while the engine's
batch stays full; `score` is pure, so that rescoring is calling it again on stored answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import pyarrow as pa

from raveval.engines import Capability
from raveval.types import Answers, Example, Reply, Request, Sampling, Status

Ask = Callable[[Request], Awaitable[Reply]]
"""Sends a request to the model under evaluation."""

Record = Mapping[str, Any]
"""One example's row: the common columns and those of its protocol."""

COMMON_COLUMNS: tuple[pa.Field, ...] = (
    pa.field("id", pa.string(), nullable=False),
    pa.field("row_key", pa.uint64(), nullable=False),
    pa.field("group", pa.string()),
    pa.field("cluster", pa.string()),
    pa.field("status", pa.string(), nullable=False),
    pa.field("message", pa.string()),
)


class TaskSettings(Protocol):
    """What a protocol may know of a task beside its examples; all of it moves numbers."""

    sampling: Sampling
    scoring: str
    no_answer: str | None
    may_truncate: bool


class EvaluationProtocol(Protocol):
    """The shape of a protocol module."""

    VERSION: int
    NEEDS: frozenset[Capability]
    COLUMNS: tuple[pa.Field, ...]
    METRICS: tuple[str, ...]

    async def answer(self, example: Example, ask: Ask, settings: TaskSettings) -> Answers:
        """Question the model about one example."""
        ...

    def score(
        self, example: Example, answers: Answers, settings: TaskSettings
    ) -> tuple[Status, str | None, Record]:
        """Turn the answers into a status, a message where the example is missing, its columns."""
        ...


def schema(columns: tuple[pa.Field, ...]) -> pa.Schema:
    """Return the schema of a protocol's records: the common columns, then its own."""
    return pa.schema([*COMMON_COLUMNS, *columns])
