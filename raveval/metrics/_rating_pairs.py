"""Reads pairs of a rating and a reference rating from records, and counts them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as kinds

from raveval.metrics._clusters import CLUSTER
from raveval.metrics._columns import column, required
from raveval.metrics._exact import Doubles
from raveval.metrics._joint_counts import NO_CLUSTER, JointCounts, Keys, count, count_codes
from raveval.metrics._kernels import N_CODES, Bytes
from raveval.metrics._ratings import (
    RATING,
    RATING_DENOMINATOR,
    REFERENCE_RATING,
    REFERENCE_RATING_DENOMINATOR,
    read_both,
)
from raveval.types import row_key


@dataclass(frozen=True, slots=True)
class RatingPairs:
    """Pairs of ratings, and the rows that lack one; a row that lacks both counts in both."""

    joint: JointCounts = field(default_factory=JointCounts)
    n_rating_missing: int = 0
    n_reference_missing: int = 0

    def __add__(self, other: RatingPairs) -> RatingPairs:
        """Return the pairs of both; neither is changed."""
        return RatingPairs(
            self.joint + other.joint,
            self.n_rating_missing + other.n_rating_missing,
            self.n_reference_missing + other.n_reference_missing,
        )

    def notes(self) -> dict[str, int]:
        """Return how many rows lack either rating, zeros omitted."""
        return missing_notes(self.n_rating_missing, self.n_reference_missing)


class _Codes(NamedTuple):
    """Whole ratings as bytes: rating = byte + lowest."""

    bytes: Bytes
    lowest: int

    def values(self) -> Doubles:
        """Return the rating of each byte, as far as it is a double."""
        return (np.arange(N_CODES) + self.lowest).astype(np.float64)


def missing_notes(n_rating: int, n_reference: int) -> dict[str, int]:
    """Return the notes on rows that lack a rating, zeros omitted."""
    counts = {"rating_missing": n_rating, "reference_rating_missing": n_reference}
    return {name: count for name, count in counts.items() if count}


def read_rating_pairs(records: pa.Table) -> RatingPairs:
    """Return the pairs of ratings of records that may name clusters.

    Raises:
        DataError: a column is missing, of another type, or off the grid it declares.
    """
    clusters = column(records, CLUSTER)
    if clusters is not None and clusters.null_count == len(clusters):
        clusters = None
    if clusters is None and not (
        _declares(records, RATING_DENOMINATOR) or _declares(records, REFERENCE_RATING_DENOMINATOR)
    ):
        x, y = _codes(required(records, RATING)), _codes(required(records, REFERENCE_RATING))
        if x is not None and y is not None:
            return RatingPairs(count_codes(x.bytes, y.bytes, x.values(), y.values()))
    ratings, references = read_both(records)
    lacks_rating, lacks_reference = np.isnan(ratings), np.isnan(references)
    is_pair = ~(lacks_rating | lacks_reference)
    keys = None if clusters is None else _keys(clusters)
    if not is_pair.all():
        ratings, references = ratings[is_pair], references[is_pair]
        keys = None if keys is None else keys[is_pair]
    return RatingPairs(
        count(ratings, references, keys),
        int(np.count_nonzero(lacks_rating)),
        int(np.count_nonzero(lacks_reference)),
    )


def _declares(records: pa.Table, field: pa.Field) -> bool:
    """Whether a row has a denominator: the ratings are then read, and the denominators checked."""
    found = column(records, field)
    return found is not None and found.null_count < len(found)


def _codes(array: pa.Array) -> _Codes | None:
    """Return whole ratings that span fewer than 256 as bytes; None for others, and for nulls."""
    if not kinds.is_integer(array.type) or array.null_count or not len(array):
        return None
    if kinds.is_uint8(array.type):
        return _Codes(array.to_numpy(), 0)
    ends = pc.min_max(array).as_py()
    lowest, highest = ends["min"], ends["max"]
    if highest - lowest >= N_CODES or max(abs(lowest), abs(highest)) > 1 << 53:
        return None
    values = array.to_numpy()
    return _Codes((values - values.dtype.type(lowest)).astype(np.uint8), lowest)


def _keys(clusters: pa.Array) -> Keys:
    """Return the key of each row's cluster, that of its text; NO_CLUSTER where it is null."""
    encoded = clusters.dictionary_encode()
    # The one text in 2^64 whose key is NO_CLUSTER shares the next one.
    keys = [max(row_key(text), NO_CLUSTER + 1) for text in encoded.dictionary.to_pylist()]
    index = pc.fill_null(encoded.indices, len(keys)).to_numpy(zero_copy_only=False)
    key_of_row: Keys = np.array([*keys, NO_CLUSTER], np.uint64)[index]
    return key_of_row
