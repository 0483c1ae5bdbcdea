"""Reads ratings as canonical doubles: equal ratings are equal bits, whatever way they were written.

A rating is a number, or a list of a judge's samples whose mean is meant. Summed in floating point,
the mean of (4.1, 4.2, 4.3) depends on their order and differs from that of (4.2, 4.2, 4.2), and a
rank correlation sees different ratings where the judge gave equal ones. So the mean is formed
exactly and rounded once. A number such as 4.1 is still only near the decimal that was meant; where
a column of denominators declares the ratings' grid, each number stands for the nearest multiple of
1/denominator, and ratings are equal exactly where those multiples are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raveval.errors import DataError
from raveval.metrics._columns import column, number_or_numbers, required
from raveval.metrics._exact import Booleans, Doubles, Integers

RATING = number_or_numbers("rating")
REFERENCE_RATING = number_or_numbers("reference_rating")
RATING_DENOMINATOR = pa.field("rating_denominator", pa.int64())
REFERENCE_RATING_DENOMINATOR = pa.field("reference_rating_denominator", pa.int64())

_PER_UNIT = 10**6
"""A number may lie 1/_PER_UNIT off its grid: well above float dust, well below a step."""

# Within these limits all sums below fit the 53 bits of a double, so that adding is exact; the few
# rows beyond them go through integers of any size.
_PLAIN_BITS = 20  # magnitudes up to 2^20, in steps of 2^-20
_PLAIN_DENOMINATOR = 1 << 16
_PLAIN_SAMPLES = 1 << 12


class Samples(NamedTuple):
    """The numbers behind the ratings of `n` rows, missing ones left out.

    Attributes:
        values: each number as its canonical double; infinite ones kept; shape `(n_samples,)`.
        rows: the row of each, ascending; shape `(n_samples,)`.
        n_samples: how many each row has; shape `(n,)`.
    """

    values: Doubles
    rows: Integers
    n_samples: Integers


class _Numbers(NamedTuple):
    """Samples as they stand in the column, beside the denominators of their rows.

    `steps` are the samples in units of 1/denominator, whole numbers where `is_plain` and there is a
    grid; rows without a grid have the denominator 1 and are their own steps.
    """

    raw: Doubles
    steps: Doubles
    rows: Integers
    n_samples: Integers
    denominators: Integers
    has_grid: Booleans
    is_plain: Booleans

    def divisor(self, row: int) -> int | None:
        """Return the denominator of a row's grid; None where it has none."""
        return int(self.denominators[row]) if self.has_grid[row] else None


def read_ratings(records: pa.Table, field: pa.Field, denominator: pa.Field | None) -> Doubles:
    """Return each row's rating as its canonical double, shape `(n,)`; NaN where it is missing.

    The canonical double is the exact mean of the row's numbers, rounded once; 0 has no sign. Null,
    NaN, an empty list and one of nothing else are missing, and left out of the mean of a list.
    Infinite ratings stay; a list with both infinities has no mean, and is missing.

    Args:
        records: holds the column `field`, and may hold the column `denominator`.
        field: made by `number_or_numbers`.
        denominator: the column of the grid; a row where it is null has none.

    Raises:
        DataError: the column is missing or no numbers, a whole number is beyond 2^53, a
            denominator is below 1, or a number is not on the grid it should be on.
    """
    array, denominators = _read(records, field, denominator)
    if denominators is None and not pa.types.is_list(array.type):
        return _doubles(array, field.name) + 0.0  # -0.0 becomes 0.0
    numbers = _numbers(array, denominators, field.name)
    return _means(numbers)


def read_both(records: pa.Table) -> tuple[Doubles, Doubles]:
    """Return the rating and the reference rating of each row, as `read_ratings` does.

    Raises:
        DataError: as `read_ratings`.
    """
    return (
        read_ratings(records, RATING, RATING_DENOMINATOR),
        read_ratings(records, REFERENCE_RATING, REFERENCE_RATING_DENOMINATOR),
    )


def read_samples(records: pa.Table, field: pa.Field, denominator: pa.Field | None) -> Samples:
    """Return the numbers behind each row's rating; a number that is no list is a single sample.

    Raises:
        DataError: as `read_ratings`.
    """
    array, denominators = _read(records, field, denominator)
    numbers = _numbers(array, denominators, field.name)
    values = numbers.steps / numbers.denominators[numbers.rows] + 0.0
    for place in np.flatnonzero(~numbers.is_plain & np.isfinite(numbers.raw)).tolist():
        row = numbers.rows[place]
        values[place] = _exact_mean([numbers.raw[place].item()], numbers.divisor(row))
    return Samples(values, numbers.rows, numbers.n_samples)


def _read(
    records: pa.Table, field: pa.Field, denominator: pa.Field | None
) -> tuple[pa.Array, pa.Array | None]:
    array = required(records, field)
    if denominator is None:
        return array, None
    denominators = column(records, denominator)
    if denominators is None or denominators.null_count == len(denominators):
        return array, None
    lowest = pc.min(denominators).as_py()
    if lowest < 1:
        raise DataError(
            f"{denominator.name}: {lowest} is no denominator; give the number of steps between "
            "two whole ratings, at least 1, or null where there is no grid"
        )
    return array, denominators


def _doubles(array: pa.Array, name: str) -> Doubles:
    """Return numbers as doubles, NaN where null; whole ones beyond 2^53 are refused."""
    if pa.types.is_integer(array.type):
        try:
            array = array.cast(pa.float64())
        except pa.ArrowInvalid as exc:
            raise DataError(
                f"{name}: {exc}: beyond 2^53 not every whole number is a double, and ratings that "
                "differ could become equal; give them on a smaller scale"
            ) from exc
    values: Doubles = array.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
    return values


def _numbers(array: pa.Array, denominators: pa.Array | None, name: str) -> _Numbers:
    """Split ratings into their samples and place these on the grid of their row."""
    n = len(array)
    if pa.types.is_list(array.type):
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
        raw = _doubles(array.flatten(), name)
    else:
        lengths = np.ones(n, np.int64)
        raw = _doubles(array, name)
    rows = np.repeat(np.arange(n), lengths)
    is_given = ~np.isnan(raw)
    if not is_given.all():
        raw, rows = raw[is_given], rows[is_given]
    divisors, has_grid = np.ones(n, np.int64), np.zeros(n, np.bool_)
    if denominators is not None:
        divisors = pc.fill_null(denominators, 1).to_numpy(zero_copy_only=False)
        has_grid = pc.is_valid(denominators).to_numpy(zero_copy_only=False)
        steps, is_plain = _steps(raw, divisors[rows], has_grid[rows])
    else:
        steps, is_plain = raw, _is_plain(raw)
    numbers = _Numbers(
        raw, steps, rows, np.bincount(rows, minlength=n), divisors, has_grid, is_plain
    )
    _check_grid(numbers, name)
    return numbers


def _steps(raw: Doubles, divisors: Integers, has_grid: Booleans) -> tuple[Doubles, Booleans]:
    """Return each sample in units of its grid, and whether sums of such samples are exact."""
    is_small = (np.abs(raw) <= 1 << _PLAIN_BITS) & (divisors <= _PLAIN_DENOMINATOR)
    scaled = np.where(is_small, raw, 0.0) * divisors
    steps = np.where(is_small, np.where(has_grid, np.rint(scaled), scaled), raw)
    return steps, is_small & (has_grid | _is_plain(raw))


def _is_plain(raw: Doubles) -> Booleans:
    """Return which numbers without a grid are so short that their sums are exact."""
    with np.errstate(over="ignore"):
        fine = raw * (1 << _PLAIN_BITS)
    is_plain: Booleans = fine == np.rint(fine)
    is_plain &= np.abs(raw) <= 1 << _PLAIN_BITS
    return is_plain


def _check_grid(numbers: _Numbers, name: str) -> None:
    """Refuse a number that is not on the grid of its row."""
    on_grid = numbers.has_grid[numbers.rows]
    if not on_grid.any():
        return
    divisors = numbers.denominators[numbers.rows]
    distance = np.abs(np.where(numbers.is_plain, numbers.raw, 0.0) * divisors - numbers.steps)
    is_off = on_grid & numbers.is_plain & (distance * _PER_UNIT > divisors)
    for place in np.flatnonzero(on_grid & ~numbers.is_plain & np.isfinite(numbers.raw)).tolist():
        numerator, unit = numbers.raw[place].item().as_integer_ratio()
        divisor = int(divisors[place])
        off = abs(numerator * divisor - _nearest(numerator * divisor, unit) * unit)
        is_off[place] = off * _PER_UNIT > divisor * unit
    if is_off.any():
        place = int(np.flatnonzero(is_off)[0])
        raise DataError(
            f"{name}: {numbers.raw[place].item()!r} is no multiple of 1/{divisors[place]}, the "
            "grid that its denominator declares; declare the one that the numbers are on, or none"
        )


def _means(numbers: _Numbers) -> Doubles:
    """Return the exact mean of each row's samples, rounded once."""
    n = len(numbers.n_samples)
    is_finite = np.isfinite(numbers.raw)
    sums = np.bincount(numbers.rows, np.where(is_finite, numbers.steps, 0.0), minlength=n)
    # 0 / 0 where a row has no sample; a row whose product is beyond 64 bits is done again below.
    with np.errstate(invalid="ignore", divide="ignore"):
        means: Doubles = sums / (numbers.denominators * numbers.n_samples) + 0.0
    is_exact = np.bincount(numbers.rows, ~numbers.is_plain, minlength=n) == 0
    is_exact &= numbers.n_samples <= _PLAIN_SAMPLES
    if is_exact.all():
        return means
    values, ends = numbers.raw.tolist(), np.cumsum(numbers.n_samples).tolist()
    for row in np.flatnonzero(~is_exact).tolist():
        start = ends[row - 1] if row else 0
        means[row] = _exact_mean(values[start : ends[row]], numbers.divisor(row))
    return means


def _exact_mean(values: Sequence[float], divisor: int | None) -> float:
    """Return the mean of one row's samples, on their grid if there is one, rounded once."""
    infinite = {value for value in values if math.isinf(value)}
    if infinite:
        return infinite.pop() if len(infinite) == 1 else math.nan
    ratios = [value.as_integer_ratio() for value in values]
    if divisor:
        ratios = [(_nearest(p * divisor, q), divisor) for p, q in ratios]
    # All denominators are powers of two, or all are the grid's.
    unit = max(q for _, q in ratios)
    # Integer by integer is rounded correctly by Python.
    return sum(p * (unit // q) for p, q in ratios) / (unit * len(values)) + 0.0


def _nearest(numerator: int, denominator: int) -> int:
    """Return the integer nearest to a fraction.

    >>> _nearest(-7, 2), _nearest(8, 3)
    (-3, 3)
    """
    return (2 * numerator + denominator) // (2 * denominator)
