"""How far the samples of a row agree: counts of their combinations, and what follows from those.

A combination is the ordinals of a row's samples, ascending, so that their order does not matter.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from itertools import groupby

import numpy as np
import pyarrow as pa

from raveval.metrics import Json
from raveval.metrics import _agreement_table as tables
from raveval.metrics import _intervals as intervals
from raveval.metrics._columns import required
from raveval.metrics._exact import Doubles
from raveval.metrics._rating_counts import count_ratings, number, whole
from raveval.metrics._ratings import RATING, RATING_DENOMINATOR, Samples, read_samples
from raveval.metrics._state import Counts, StateReader, add_counts, write_counts
from raveval.types import Estimate


def samples_of(records: pa.Table) -> Samples:
    """Return the samples of rows of lists; a column of plain numbers has none to compare."""
    if pa.types.is_list(required(records, RATING).type):
        return read_samples(records, RATING, RATING_DENOMINATOR)
    nothing = np.zeros(0, np.int64)
    return Samples(np.zeros(0), nothing, np.zeros(len(records), np.int64))


def count_samples(samples: Samples) -> Counts:
    """Return how often each combination of samples occurs, whatever their order in the row."""
    tables_by_size = []
    size_of = samples.n_samples[samples.rows]
    for size in np.unique(samples.n_samples[samples.n_samples > 1]).tolist():
        combinations = np.sort(samples.values[size_of == size].reshape(-1, size), axis=1)
        tables_by_size.append(count_ratings(*np.ascontiguousarray(combinations.T)))
    return add_counts(*tables_by_size)


def agreeing_pairs(samples: Samples) -> Doubles:
    """Return how many ordered pairs of each row's samples are equal."""
    order = np.lexsort((samples.values, samples.rows))
    values, rows = samples.values[order], samples.rows[order]
    starts = np.ones(len(values), np.bool_)
    starts[1:] = (values[1:] != values[:-1]) | (rows[1:] != rows[:-1])
    sizes = np.diff(np.append(np.flatnonzero(starts), len(values)))
    agreeing = np.bincount(rows[starts], sizes * (sizes - 1), minlength=len(samples.n_samples))
    return np.asarray(agreeing, np.float64)


def among_samples(counts: Counts, *, has_rows: bool) -> dict[str, Estimate]:
    """Return how far the samples of a row agree; `has_rows`: there are rows of any kind."""
    credits = squares = Fraction(0)
    for key, count in counts.items():
        sizes = [len(list(equal)) for _, equal in groupby(key)]
        share = Fraction(sum(m * (m - 1) for m in sizes), len(key) * (len(key) - 1))
        credits += count * share
        squares += count * share**2
    n = sum(counts.values())
    values = {key: number(key) for combination in counts for key in combination}
    is_finite = all(map(math.isfinite, values.values()))
    wholes = {key: whole(value) for key, value in values.items()} if is_finite else {}
    ordered = sorted(counts) if is_finite else []
    units = tables.Units(
        [tuple(wholes[key] for key in combination) for combination in ordered],
        [counts[combination] for combination in ordered],
    )
    estimates = {
        "sample_agreement": intervals.proportion(credits, n, squares=squares),
        "krippendorff_alpha_samples": tables.alpha_interval(units),
    }
    if not is_finite:
        alpha = replace(estimates["krippendorff_alpha_samples"], n=n, reason="non-finite")
        return {**estimates, "krippendorff_alpha_samples": alpha}
    if n == 0 and has_rows:
        return {name: replace(e, reason="not measured") for name, e in estimates.items()}
    return estimates


def encode_samples(counts: Counts) -> Json:
    """Return the table in parts, one for each number of samples, with that number."""
    return [
        [size, write_counts({key: counts[key] for key in keys})]
        for size, keys in groupby(sorted(counts, key=len), key=len)
    ]


def decode_samples(read: StateReader) -> Counts:
    """Return the table of `encode_samples` from the state's key "samples".

    Raises:
        DataError: it is no such table.
    """
    parts = read.content["samples"]
    if not isinstance(parts, list):
        raise read.fail(f"samples: expected a list of tables, found {type(parts).__name__}")
    tables_by_size: list[Counts] = []
    sizes = []
    for part in parts:
        if not (isinstance(part, list) and len(part) == 2 and type(part[0]) is int and part[0] > 1):
            raise read.fail(f"samples: expected [samples per row, table], found {part!r}")
        sizes.append(part[0])
        of_size = StateReader(read.where, {"samples": part[1]})
        tables_by_size.append(of_size.counts("samples", width=part[0]))
    if sizes != sorted(set(sizes)):
        raise read.fail("samples: the tables are not in the order of their number of samples")
    samples = add_counts(*tables_by_size)
    if any(list(key) != sorted(key) for key in samples):
        raise read.fail("samples: those of a row are not ascending")
    return samples
