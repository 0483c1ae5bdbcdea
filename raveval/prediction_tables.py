"""Brings rows of predictions into the columns that a metric reads, or says which row cannot be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from raveval.errors import ConfigError, DataError
from raveval.metrics import Metric
from raveval.metrics._clusters import CLUSTER
from raveval.metrics._columns import conform, describe
from raveval.prediction_files import ABSENT, Rows

GROUP = pa.field("group", pa.string())
"""What a row is counted under besides the whole: a subject, a source."""

_LABELS = (GROUP.name, CLUSTER.name)


def table_of(
    plugin: Metric[Any], rows: Rows, mapping: Mapping[str, str], constants: Mapping[str, Any]
) -> pa.Table:
    """Return the metric's columns and the group, typed; an optional one that no row has is absent.

    Args:
        plugin: the metric.
        rows: where the values are.
        mapping: the field that holds a column, where it has another name.
        constants: the value of a column that is the same in all rows.

    Raises:
        DataError: a field is missing or of another type; the message says in which row.
        ConfigError: a constant is of another type.
    """
    arrays: dict[str, pa.Array] = {}
    for column in (*plugin.columns, GROUP):
        if column.name in constants:
            arrays[column.name] = _constant(constants[column.name], column, len(rows))
            continue
        path = mapping.get(column.name, column.name)
        values = rows.values(path)
        is_required = column.name in plugin.needs or column.name in mapping
        if values is None and is_required:
            raise missing_field(rows, 0, column.name, path)
        if values is None:
            continue
        if not isinstance(values, pa.Array):
            absent = [index for index, value in enumerate(values) if value is ABSENT]
            if absent and is_required:
                raise missing_field(rows, absent[0], column.name, path)
            values = [None if value is ABSENT else value for value in values]
        if column.name in _LABELS:
            values = _as_labels(values)
        arrays[column.name] = _typed(values, column, rows, path)
    return pa.table(arrays)


def _as_labels(values: Sequence[Any] | pa.Array) -> Sequence[Any] | pa.Array:
    """Return whole numbers as the texts that name them; anything else as it is."""
    if isinstance(values, pa.Array):
        return values.cast(pa.string()) if pa.types.is_integer(values.type) else values
    return [str(value) if type(value) is int else value for value in values]


def _constant(value: Any, field: pa.Field, n: int) -> pa.Array:
    try:
        return _as_array([value] * n, field)
    except DataError as exc:
        raise ConfigError(f"the value given for column {field.name!r}: {exc}") from exc


def missing_field(rows: Rows, index: int, name: str, path: str) -> DataError:
    """Return the error for a row that has no field for a column."""
    present = rows.keep([index]).fields()
    return DataError(
        f"{rows.place(index)}: no field {path!r} for the metric's column {name!r}; "
        f"fields present: {', '.join(present)}. Name the right one with "
        f"--map {name}=FIELD (in Python: columns={{{name!r}: FIELD}})"
    )


def _typed(values: Sequence[Any] | pa.Array, field: pa.Field, rows: Rows, path: str) -> pa.Array:
    try:
        return _as_array(values, field)
    except DataError as whole:
        index = first_failing(lambda n: _as_array(values[:n], field), len(rows))
        try:
            _as_array(values[index : index + 1], field)
        except DataError as exc:
            raise DataError(f"{rows.place(index)}: field {path!r} as {exc}") from exc
        raise DataError(f"{rows.place(index)}: field {path!r} as {whole}") from whole


def _holds_boolean(value: object) -> bool:
    return isinstance(value, bool) or (
        isinstance(value, list) and any(isinstance(element, bool) for element in value)
    )


def _as_array(values: Sequence[Any] | pa.Array, field: pa.Field) -> pa.Array:
    if isinstance(values, pa.Array):
        return conform(values, field)
    if not pa.types.is_boolean(field.type) and any(map(_holds_boolean, values)):
        # Arrow would read a true among numbers as 1.
        raise DataError(f"{field.name}: expected {describe(field.type)}, found a boolean")
    try:
        found = pa.array([None if value is ABSENT else value for value in values])
    except (pa.ArrowException, OverflowError, UnicodeError) as exc:
        raise DataError(f"{field.name}: {exc}") from exc
    return conform(found, field)


def first_failing(take: Callable[[int], object], n: int) -> int:
    """Return the row with which the first rows fail; all `n` together do."""
    low, high = 0, n  # the first `low` rows pass, the first `high` fail
    while high - low > 1:
        middle = (low + high) // 2
        try:
            take(middle)
            low = middle
        except DataError:
            high = middle
    return low
