"""What a metric is: an exact integer state that adds, and one division at the end.

Each module of this package with a public name holds one metric family as `METRIC`; the file's name
is its key. A state is a commutative monoid of integers (count tables, exact big-integer sums of
doubles), so any sharding, order and merge tree gives the same bits; floating point happens once, in
`compute`. A metric has no options: its variants come out under several names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from raveval.types import Estimate

State = TypeVar("State")

Json = Any
"""A value that strict JSON can hold; integers of any size are allowed."""


class Metric(Protocol[State]):
    """One metric family.

    Attributes:
        name: the key, equal to the module's name.
        needs: record columns that `update` reads; `optional` ones may be absent from the table.
        columns: the type of each of them; nullable where a row may lack the value.
        version: raised whenever a value it gives can change.
    """

    name: str
    needs: tuple[str, ...]
    optional: tuple[str, ...]
    columns: tuple[pa.Field, ...]
    version: int

    def init(self) -> State:
        """Return the identity of `merge`."""
        ...

    def update(self, state: State, records: pa.Table) -> State:
        """Return `state` with the records added; neither argument is changed.

        `records` holds scored examples only (`Status.is_scored`) and at least the columns `needs`.

        Raises:
            DataError: a column has the wrong type or a value that cannot be.
        """
        ...

    def merge(self, a: State, b: State) -> State:
        """Return the state of both parts together: associative and commutative to the last bit."""
        ...

    def compute(self, state: State) -> Mapping[str, Estimate]:
        """Return every estimate of the family by name; undefined ones carry their reason."""
        ...

    def notes(self, state: State) -> Mapping[str, int]:
        """Return counts that explain the estimates (ties, examples left out), zeros omitted."""
        ...

    def encode(self, state: State) -> Json:
        """Return the state as strict JSON, with nothing lost."""
        ...

    def decode(self, content: Json) -> State:
        """Return the state of `encode`.

        Raises:
            DataError: not such a state, or one of another version.
        """
        ...
