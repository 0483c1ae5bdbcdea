"""Metrics that are means over examples: all that is left to say is what one example is worth.

A value is true or false, a number, or None where it cannot be had; those are left out and counted.
The estimand is the expected value of an example; the formula is the sum over the measured examples
divided by their number, and `n` counts them. The sums are exact (`_exact`), so no order of the
examples moves a bit.

Intervals: a mean of true and false, or of 0 and 1, in the unit "fraction" has Wilson's; any other
Student's of a mean, from the exact sample variance ("t95"), a fraction's cut to [0, 1]. Where all
values are equal a fraction has Wilson's, conservative for values in [0, 1], and other units have
none: that no spread was seen is no proof that there is none. Undefined: "n=0", "not measured" where
there are examples and none has a value, "overflow".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raveval.errors import DataError
from raveval.metrics import Contribution, Json, Ratio
from raveval.metrics import _intervals as intervals
from raveval.metrics._columns import required
from raveval.metrics._exact import SCALE_BITS, Doubles, Moments, value_moments
from raveval.metrics._state import StateReader, read_state, write_moments, write_state
from raveval.types import Estimate

Values: TypeAlias = Sequence[bool | int | float | None] | pa.Array | pa.ChunkedArray
"""What each example is worth, in the order of the records; shape `(n,)`."""


@dataclass(frozen=True, slots=True)
class Mean:
    """How a mean is reported.

    Attributes:
        unit: "fraction" is reported in percent, and its values lie in [0, 1]; any other word
            ("characters") stands for itself.
        higher_is_better: None where neither direction is.
    """

    unit: str = "fraction"
    higher_is_better: bool | None = True


@dataclass(frozen=True, slots=True)
class MeanState:
    """Exact sums of the values of one mean, and examples without one."""

    moments: Moments = field(default_factory=Moments)
    n_unmeasured: int = 0

    def __add__(self, other: MeanState) -> MeanState:
        """Return the sums over both sets of examples."""
        return MeanState(self.moments + other.moments, self.n_unmeasured + other.n_unmeasured)


MeansState: TypeAlias = Mapping[str, MeanState]
"""The sums of each mean, by its name."""


class Means:
    """A metric family whose estimates are means over examples.

    Args:
        name: the key by which tasks name it: the module's.
        version: raised whenever a value can change; runs are then scored again.
        columns: the record columns that `values` reads.
        means: the estimates by name.
        values: given a table of those columns, returns what each row is worth, by the name of the
            mean. It depends on each row alone: rows come in parts of any size, in any order.

    >>> def values(records):
    ...     return {"answer_length": [len(text) for text in records["prediction"].to_pylist()]}
    >>> metric = Means(
    ...     "mylab.lengths",
    ...     version=1,
    ...     columns=(pa.field("prediction", pa.string()),),
    ...     means={"answer_length": Mean(unit="characters", higher_is_better=None)},
    ...     values=values,
    ... )
    >>> state = metric.update(metric.init(), pa.table({"prediction": ["Paris", "Rome"]}))
    >>> metric.compute(state)["answer_length"].value
    4.5
    """

    def __init__(
        self,
        name: str,
        *,
        version: int,
        columns: Sequence[pa.Field],
        means: Mapping[str, Mean],
        values: Callable[[pa.Table], Mapping[str, Values]],
    ) -> None:
        self.name = name
        self.version = version
        self.columns: tuple[pa.Field, ...] = tuple(columns)
        self.needs: tuple[str, ...] = tuple(column.name for column in columns)
        self.optional: tuple[str, ...] = ()
        self.ratios: Mapping[str, Ratio] = dict.fromkeys(means, Ratio())
        self._means = dict(means)
        self._values = values

    def init(self) -> MeansState:
        """Return the state of no examples."""
        return {name: MeanState() for name in self._means}

    def update(self, state: MeansState, records: pa.Table) -> MeansState:
        """Add examples.

        Raises:
            DataError: a column has another type, or a value is no finite number, or is outside of
                [0, 1] where the unit is "fraction".
        """
        added = {}
        for name, values in self._read(records).items():
            measured = values[~np.isnan(values)]
            added[name] = MeanState(value_moments(measured), len(values) - len(measured))
        return self.merge(state, added)

    def merge(self, a: MeansState, b: MeansState) -> MeansState:
        """Add the sums."""
        return {name: a[name] + b[name] for name in self._means}

    def compute(self, state: MeansState) -> Mapping[str, Estimate]:
        """Return the means."""
        return {name: _estimate(state[name], mean) for name, mean in self._means.items()}

    def notes(self, state: MeansState) -> Mapping[str, int]:
        """Return how many examples each mean leaves out."""
        counts = {f"{name}_unmeasured": state[name].n_unmeasured for name in self._means}
        return {name: count for name, count in counts.items() if count}

    def contributions(self, records: pa.Table) -> Mapping[str, Contribution]:
        """Return the value of each example, and 1 where it has one."""
        found = {}
        for name, values in self._read(records).items():
            is_measured = ~np.isnan(values)
            found[name] = Contribution(np.where(is_measured, values, 0.0), is_measured * 1.0)
        return found

    def encode(self, state: MeansState) -> Json:
        """Return the sums of each mean."""
        body = {
            name: {"moments": write_moments(part.moments), "n_unmeasured": part.n_unmeasured}
            for name, part in state.items()
        }
        return write_state(self.name, self.version, body)

    def decode(self, content: Json) -> MeansState:
        """Return the state of `encode`."""
        read = read_state(content, self.name, self.version, self._means)
        return {name: _read_state(read, name, mean) for name, mean in self._means.items()}

    def _read(self, records: pa.Table) -> Mapping[str, Doubles]:
        """Return what each example is worth, by mean; NaN where it has no value."""
        read = pa.table({each.name: required(records, each) for each in self.columns})
        given = self._values(read)
        if sorted(given) != sorted(self._means):
            raise DataError(
                f"metric {self.name!r}: its values are of {sorted(given)}, its means are "
                f"{sorted(self._means)}"
            )
        return {
            name: _doubles(given[name], mean, len(read), f"metric {self.name!r}: {name}")
            for name, mean in self._means.items()
        }


def _doubles(given: Values, mean: Mean, n: int, where: str) -> Doubles:
    if len(given) != n:
        raise DataError(f"{where}: {len(given)} values for {n} records")
    is_arrow = isinstance(given, pa.Array | pa.ChunkedArray)
    try:
        found: Any = given if is_arrow else pa.array(given, from_pandas=False)
        if not (pa.types.is_null(found.type) or pa.types.is_boolean(found.type)):
            found = found.cast(pa.float64())
        is_missing = np.asarray(found.is_null())
        values: Doubles = np.asarray(pc.fill_null(found.cast(pa.float64()), 0.0), np.float64)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as exc:
        raise DataError(f"{where}: a value is true, false, a number or None: {exc}") from exc
    low, high = (0.0, 1.0) if mean.unit == "fraction" else (-np.inf, np.inf)
    is_wrong = ~(np.isfinite(values) & (values >= low) & (values <= high))
    if is_wrong.any():
        allowed = "a number in [0, 1]" if mean.unit == "fraction" else "a finite number"
        raise DataError(
            f"{where}: {values[is_wrong][0]} is not {allowed}; None leaves an example out"
        )
    return np.where(is_missing, np.nan, values)


def _estimate(state: MeanState, mean: Mean) -> Estimate:
    moments, unit = state.moments, mean.unit
    if moments.n == 0:
        reason = "not measured" if state.n_unmeasured else "n=0"
        return intervals.undefined(reason, unit=unit, higher_is_better=mean.higher_is_better)
    found = intervals.ratio(moments, unit=unit, higher_is_better=mean.higher_is_better)
    if unit == "fraction" and (not found.stderr or moments.xx == moments.x << SCALE_BITS):
        total = Fraction(moments.x, 1 << SCALE_BITS)
        squares = Fraction(moments.xx, 1 << (2 * SCALE_BITS))
        found = intervals.proportion(total, moments.n, squares=squares)
        return replace(found, higher_is_better=mean.higher_is_better)
    if found.low is None or found.high is None:
        return found
    if unit == "fraction":
        found = replace(found, low=max(0.0, found.low), high=min(1.0, found.high))
    return replace(found, interval="t95")


def _read_state(read: StateReader, name: str, mean: Mean) -> MeanState:
    part = read.section(name, ("moments", "n_unmeasured"))
    found = part.moments("moments")
    if found != Moments(found.n, found.x, found.n, found.xx, found.x, found.n):
        raise part.fail("moments: these are no sums of values that count once each")
    is_fraction = 0 <= found.xx <= found.x << SCALE_BITS and found.x <= found.n << SCALE_BITS
    if mean.unit == "fraction" and not is_fraction:
        raise part.fail("moments: these are no sums of values in [0, 1]")
    return MeanState(found, part.count("n_unmeasured"))
