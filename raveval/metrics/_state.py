"""Writes states as strict JSON and reads them back, refusing whatever is not such a state.

Big integers go as [mantissa, shift] with the trailing zero bits trimmed, count tables as sorted
rows of key and count, so that equal states are equal text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from raveval.errors import DataError
from raveval.metrics import Json
from raveval.metrics._exact import Moments

Counts = Mapping[tuple[int, ...], int]
"""A sparse count table: key → how often, never zero."""

_MOST_SHIFT = 1 << 13  # beyond any sum of products of doubles; a bound on what a bad file can ask


def add_counts(*tables: Counts) -> Counts:
    """Return the sum of count tables; none of them is changed.

    >>> add_counts({(1,): 2}, {(1,): 1, (2,): 5})
    {(1,): 3, (2,): 5}
    """
    total: dict[tuple[int, ...], int] = {}
    for table in tables:
        for key, count in table.items():
            total[key] = total.get(key, 0) + count
    return total


def tally(keys: Iterable[tuple[int, ...]]) -> Counts:
    """Return how often each key occurs."""
    total: dict[tuple[int, ...], int] = {}
    for key in keys:
        total[key] = total.get(key, 0) + 1
    return total


def write_state(metric: str, version: int, body: Mapping[str, Json]) -> Json:
    """Return the state's content under its metric's name and version."""
    return {"metric": metric, "version": version, **body}


def write_counts(table: Counts) -> Json:
    """Return a count table as rows [*key, count] in the order of the keys."""
    return [[*key, table[key]] for key in sorted(table)]


def write_integer(value: int) -> Json:
    """Return an integer of any size as [mantissa, shift], value = mantissa * 2^shift.

    >>> write_integer(3 << 1074)
    [3, 1074]
    """
    shift = (value & -value).bit_length() - 1 if value else 0
    return [value >> shift, shift]


def write_moments(moments: Moments) -> Json:
    """Return exact moments, each sum in its own unit."""
    return {
        "n": moments.n,
        "x": write_integer(moments.x),
        "u": moments.u,
        "xx": write_integer(moments.xx),
        "xu": write_integer(moments.xu),
        "uu": moments.uu,
    }


@dataclass(frozen=True, slots=True)
class StateReader:
    """Content that is read key by key; the reader knows where it stands for the errors."""

    where: str
    content: Mapping[str, Json]

    def fail(self, message: str) -> DataError:
        """Return the error for this place."""
        return DataError(f"state of {self.where}: {message}; rebuild it from the records")

    def section(self, key: str, keys: Iterable[str]) -> StateReader:
        """Return the reader of a mapping with exactly the keys given."""
        return _reader(f"{self.where}.{key}", self.content[key], keys)

    def count(self, key: str) -> int:
        """Return a whole number that is not negative."""
        return self._count(key, self.content[key])

    def integer(self, key: str) -> int:
        """Return an integer of any size, written by `write_integer`."""
        pair = self.content[key]
        if not (isinstance(pair, list) and len(pair) == 2 and all(type(p) is int for p in pair)):
            raise self.fail(f"{key}: expected [mantissa, shift], found {pair!r}")
        mantissa, shift = pair
        if not 0 <= shift <= _MOST_SHIFT:
            raise self.fail(f"{key}: the shift is {shift}, not in 0…{_MOST_SHIFT}")
        value: int = mantissa << shift
        if write_integer(value) != pair:
            raise self.fail(f"{key}: the mantissa has trailing zeros")
        return value

    def counts(self, key: str, *, width: int) -> Counts:
        """Return a count table whose keys are `width` numbers each."""
        rows = self.content[key]
        if not isinstance(rows, list):
            raise self.fail(f"{key}: expected a list of rows, found {type(rows).__name__}")
        table: dict[tuple[int, ...], int] = {}
        for row in rows:
            if not (isinstance(row, list) and len(row) == width + 1):
                raise self.fail(f"{key}: expected rows of {width + 1} numbers, found {row!r}")
            *cell, count = (self._count(key, number) for number in row)
            if count == 0 or tuple(cell) in table:
                raise self.fail(f"{key}: the row {row!r} is empty or there twice")
            table[tuple(cell)] = count
        return table

    def moments(self, key: str) -> Moments:
        """Return exact moments, written by `write_moments`."""
        part = self.section(key, ("n", "x", "u", "xx", "xu", "uu"))
        found = Moments(
            n=part.count("n"),
            x=part.integer("x"),
            u=part.count("u"),
            xx=part.integer("xx"),
            xu=part.integer("xu"),
            uu=part.count("uu"),
        )
        if found.xx < 0 or (found.n == 0 and found != Moments()):
            raise self.fail(f"{key}: no pairs have these sums")
        return found

    def _count(self, key: str, value: Json) -> int:
        if type(value) is not int or value < 0:
            raise self.fail(f"{key}: expected a whole number, not negative, found {value!r}")
        return value


def read_state(content: Json, metric: str, version: int, keys: Iterable[str]) -> StateReader:
    """Return the reader of a state with exactly the keys given.

    Raises:
        DataError: the content is no state of this metric and version.
    """
    reader = _reader(metric, content, ("metric", "version", *keys))
    found = (reader.content["metric"], reader.content["version"])
    if found != (metric, version) or type(found[1]) is not int:
        raise reader.fail(f"it is of {found[0]!r} version {found[1]!r}, expected version {version}")
    return reader


def _reader(where: str, content: Json, keys: Iterable[str]) -> StateReader:
    reader = StateReader(where, content if isinstance(content, dict) else {})
    expected = sorted(keys)
    if not isinstance(content, dict) or sorted(map(str, content)) != expected:
        found = sorted(map(str, content)) if isinstance(content, dict) else type(content).__name__
        raise reader.fail(f"expected the keys {expected}, found {found}")
    return reader
