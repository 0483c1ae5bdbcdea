"""What a metric is: an exact integer state that adds, and one division at the end.

Each module of this package with a public name holds one metric family as `METRIC`; the file's name
is its key. A state is a commutative monoid of integers (count tables, exact big-integer sums of
doubles), so any sharding, order and merge tree gives the same bits; floating point happens once, in
`compute`. A metric has no options: its variants come out under several names.

Most estimates are a ratio of two sums over examples. A metric says which ones are (`ratios`) and
what each example adds to them (`contributions`); clustered standard errors and paired comparisons
of runs follow from that alone, for metrics of any origin. What comparisons cannot know from it, a
metric may add: which examples an estimate can use (`Selective`), and many bootstrap replicates at
once (`Reweighted`). One whose state is a distribution may give it to be drawn (`Tabular`).

A family of plain means over examples need not be written out: `Means` is one, given what each
example is worth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raveval.types import CountTable, Estimate

if TYPE_CHECKING:
    from raveval.metrics._means import Mean as Mean
    from raveval.metrics._means import Means as Means

State = TypeVar("State")
Contra = TypeVar("Contra", contravariant=True)

Json = Any
"""A value that strict JSON can hold; integers of any size are allowed."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """How an estimate follows from R = sum(x) / sum(u) over the examples.

    Its value is `scale * R + shift`, or the exponential of that.
    """

    scale: float = 1.0
    shift: float = 0.0
    is_exponential: bool = False

    def value(self, ratio: float) -> float:
        """Return the estimate's value.

        Raises:
            OverflowError: the exponential is beyond the largest double.
        """
        value = self.scale * ratio + self.shift
        return math.exp(value) if self.is_exponential else value


class Contribution(NamedTuple):
    """What each example adds to the two sums of a ratio; doubles of shape `(n,)`, all finite.

    An example that the estimate cannot use adds 0 to both.
    """

    x: NDArray[np.float64]
    u: NDArray[np.float64]


class Metric(Protocol[State]):
    """One metric family.

    Attributes:
        name: the key, equal to the module's name.
        needs: record columns that `update` reads; `optional` ones may be absent from the table.
        columns: the type of each of them; nullable where a row may lack the value.
        version: raised whenever a value it gives can change.
        ratios: those of its estimates that are a ratio of sums over examples.
    """

    name: str
    needs: tuple[str, ...]
    optional: tuple[str, ...]
    columns: tuple[pa.Field, ...]
    version: int
    ratios: Mapping[str, Ratio]

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
        """Return every estimate of the family by name.

        Undefined ones carry their reason, values without an interval the reason for that.
        """
        ...

    def notes(self, state: State) -> Mapping[str, int]:
        """Return counts that explain the estimates (ties, examples left out), zeros omitted."""
        ...

    def contributions(self, records: pa.Table) -> Mapping[str, Contribution]:
        """Return what each record adds, for every name of `ratios`; depends on each row alone.

        Where `compute` gives a value, it is that of the ratio of the summed contributions, but for
        rounding.
        """
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


@runtime_checkable
class Selective(Protocol):
    """A metric that says which examples its estimates can use.

    A comparison leaves out of both runs what one of them cannot use. Without this, a ratio uses the
    examples that add anything to it, and any other estimate all of them.
    """

    def usable(self, records: pa.Table) -> Mapping[str, NDArray[np.bool_]]:
        """Return which records have what an estimate needs, for some of the estimates by name.

        A record that the answer itself takes out of a share (a judge that calls a tie) is usable,
        although it adds nothing: left out of both runs, it would hide what the answer did. One that
        is no example of the share whatever the answer says (a human tie) is not.
        """
        ...


@runtime_checkable
class Tabular(Protocol[Contra]):
    """A metric whose state holds distributions that are worth looking at."""

    def tables(self, state: Contra) -> Mapping[str, CountTable]:
        """Return tables of counts by name; metrics that count the same give it the same name."""
        ...


Replicator = Callable[[NDArray[np.int64]], Mapping[str, NDArray[np.float64]]]
"""Gives replicates of estimates: those of records that count as often as each row of weights says.

The weights have shape `(n_replicates, n_records)`, the replicates of each estimate
`(n_replicates,)`; NaN is undefined.
"""


@runtime_checkable
class Reweighted(Protocol):
    """A metric that makes many replicates at once of the estimates that are no ratios.

    Without this, their bootstrap computes the metric anew for each replicate.
    """

    def reweighted(self, records: pa.Table) -> Replicator:
        """Return what makes replicates, from some of these records, of the estimates by name.

        They are in floating point: good for the spread of an estimate, never for its value. Where
        each record counts once, they are the value but for rounding.
        """
        ...


def __getattr__(name: str) -> Any:
    """Return `Mean` and `Means`, which rest on what stands above."""
    if name not in ("Mean", "Means"):
        raise AttributeError(f"module 'raveval.metrics' has no attribute {name!r}")
    return getattr(import_module("raveval.metrics._means"), name)
