"""Reads columns as the types a metric asks for: the same rules for records, Parquet and JSON.

A value is never reinterpreted: a text is no number, a fraction is no count, true is not 1.
Integers pass as doubles where that loses nothing. What may be null is said by the field: its own
`nullable` for rows, its item's for the elements of a list. A field made by `number_or_numbers`
takes a column of numbers as well as one of lists.
"""

from __future__ import annotations

import pyarrow as pa
from pyarrow import types as kinds

from raveval.errors import DataError


def list_of(item: pa.DataType, *, nullable: bool = False) -> pa.ListType:
    """Return the type of a list whose elements may or may not be null."""
    return pa.list_(pa.field("item", item, nullable=nullable))


_OR_ONE = {b"raveval": b"a number stands for itself"}


def number_or_numbers(name: str) -> pa.Field:
    """Return the field of a rating: a number, or a list of numbers whose mean is meant; nullable.

    `conform` returns such a column as it is, integers as integers.
    """
    return pa.field(name, list_of(pa.float64(), nullable=True), metadata=_OR_ONE)


def column(records: pa.Table, field: pa.Field) -> pa.Array | None:
    """Return a column of `records` as one array of the field's type; None where it is absent.

    Raises:
        DataError: the column has another type, or nulls where none may be.
    """
    if field.name not in records.column_names:
        return None
    return conform(records.column(field.name), field)


def required(records: pa.Table, field: pa.Field) -> pa.Array:
    """Return a column that must be there, as one array of the field's type.

    Raises:
        DataError: the column is missing, has another type, or nulls where none may be.
    """
    found = column(records, field)
    if found is None:
        raise DataError(
            f"{field.name}: no such column; columns present: {', '.join(records.column_names)}"
        )
    return found


def conform(values: pa.Array | pa.ChunkedArray, field: pa.Field) -> pa.Array:
    """Return `values` as one array of the field's type, with nothing lost.

    Numbers of a field made by `number_or_numbers` keep their own type.

    Raises:
        DataError: they are of another type, do not fit, or have nulls where none may be.
    """
    if field.metadata == _OR_ONE and _is_number(values.type):
        return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if not _is_kind(values.type, field.type):
        wanted = describe(field.type)
        if field.metadata == _OR_ONE:
            wanted = f"a number or {wanted}"
        raise DataError(f"{field.name}: expected {wanted}, found {values.type}")
    if values.null_count and not field.nullable:
        raise DataError(f"{field.name}: expected {describe(field.type)}, found null")
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    target = field.type
    is_list = kinds.is_list(target)
    try:
        array = values.cast(pa.list_(target.value_type) if is_list else target)
    except pa.ArrowInvalid as exc:
        raise DataError(f"{field.name}: expected {describe(target)}: {exc}") from exc
    if is_list and not target.value_field.nullable and array.flatten().null_count:
        raise DataError(f"{field.name}: expected {describe(target)}, found null inside")
    return array


def describe(kind: pa.DataType) -> str:
    """Return a type in words.

    >>> describe(pa.list_(pa.int32()))
    'a list of integers'
    """
    if kinds.is_list(kind):
        return f"a list of {describe(kind.value_type).split(' ', 1)[1]}s"
    if kinds.is_floating(kind):
        return "a number"
    if kinds.is_integer(kind):
        return "an integer"
    return "a boolean" if kinds.is_boolean(kind) else "a text"


def _is_kind(found: pa.DataType, wanted: pa.DataType) -> bool:
    if kinds.is_null(found):
        return True
    if kinds.is_list(wanted):
        return _is_list(found) and _is_kind(found.value_type, wanted.value_type)
    if kinds.is_floating(wanted):
        return _is_number(found)
    if kinds.is_integer(wanted):
        return bool(kinds.is_integer(found))
    if kinds.is_boolean(wanted):
        return bool(kinds.is_boolean(found))
    return _is_text(found)


def _is_number(found: pa.DataType) -> bool:
    return bool(kinds.is_floating(found) or kinds.is_integer(found))


def _is_list(found: pa.DataType) -> bool:
    return bool(
        kinds.is_list(found) or kinds.is_large_list(found) or kinds.is_fixed_size_list(found)
    )


def _is_text(found: pa.DataType) -> bool:
    if kinds.is_dictionary(found):
        return _is_text(found.value_type)
    return bool(
        kinds.is_string(found) or kinds.is_large_string(found) or kinds.is_string_view(found)
    )
