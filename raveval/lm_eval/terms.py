"""Our numbers in lm-eval's words: which of its metrics are which of our estimates.

`acc` is `accuracy_raw`, and a tie at the maximum is wrong, as everywhere in raveval; lm-eval gives
it to the first of the tied choices. `acc_norm` divides by the characters of the choice without the
boundary space that stands before it, `accuracy_per_char` with it: they are two numbers, and both
are written. LAMBADA's `perplexity` is per example, whatever its words; its `acc` is
`greedy_accuracy`. Estimates that lm-eval has no word for keep their names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raveval.evaluate import load_metric
from raveval.metrics import Contribution, Metric
from raveval.types import Estimate, Status

BOUNDARY = "n_boundary_chars"
"""Column that `acc_norm` needs beside a record's own: characters that are not the choice's."""


def _as_it_is(records: pa.Table) -> pa.Table:
    return records


def _without_boundary(records: pa.Table) -> pa.Table:
    """Return records whose lengths in characters are those of the choices alone."""
    lengths = records["n_chars"].combine_chunks()
    n_choices = pc.fill_null(pc.list_value_length(lengths), 0).to_numpy(zero_copy_only=False)
    boundaries = np.repeat(records[BOUNDARY].to_numpy(), n_choices)
    values = pa.array(lengths.flatten().to_numpy() - boundaries, pa.int32())
    offsets = pa.array(np.concatenate([[0], np.cumsum(n_choices)]), pa.int32())
    bare = pa.ListArray.from_arrays(offsets, values, mask=lengths.is_null())
    return _replaced(records, "n_chars", bare)


def _one_word_each(records: pa.Table) -> pa.Table:
    """Return records whose perplexity per word is the one per example."""
    return _replaced(records, "n_words", pa.array(np.ones(len(records), np.int64)))


def _replaced(records: pa.Table, name: str, column: pa.Array) -> pa.Table:
    return records.set_column(records.schema.get_field_index(name), name, column)


@dataclass(frozen=True, slots=True)
class Term:
    """One of lm-eval's metrics.

    Attributes:
        name: what lm-eval calls it.
        estimate: our estimate that it is, on the records that `adapted` returns.
        is_rate: lm-eval logs both sums of the ratio for each example, not one number.
    """

    name: str
    estimate: str
    adapted: Callable[[pa.Table], pa.Table] = _as_it_is
    is_rate: bool = False

    @property
    def is_renaming(self) -> bool:
        """Whether it is our estimate itself under another name."""
        return self.adapted is _as_it_is


_TERMS: Mapping[str, tuple[Term, ...]] = {
    "multiple_choice": (
        Term("acc", "accuracy_raw"),
        Term("acc_norm", "accuracy_per_char", _without_boundary),
    ),
    "generate_until": (Term("exact_match", "exact_match"), Term("f1", "f1")),
    "loglikelihood": (
        Term("acc", "greedy_accuracy"),
        Term("perplexity", "word_perplexity", _one_word_each),
    ),
    "loglikelihood_rolling": (
        Term("word_perplexity", "word_perplexity", is_rate=True),
        Term("byte_perplexity", "byte_perplexity", is_rate=True),
        Term("bits_per_byte", "bits_per_byte", is_rate=True),
    ),
}
"""By what lm-eval calls the way in which a task is asked."""

LM_EVAL_WORDS = frozenset(
    term.name for terms in _TERMS.values() for term in terms if term.name != term.estimate
)
"""Names that mean nothing, or something else, among our estimates."""


def terms_of(output_type: str, metrics: Sequence[str]) -> tuple[Term, ...]:
    """Return lm-eval's metrics of a task, as far as its metric families compute them."""
    known = _TERMS.get(output_type, ())
    return tuple(term for term in known if _family(term, metrics) is not None)


def _family(term: Term, metrics: Sequence[str]) -> Metric[Any] | None:
    """Return the first of the families that computes the estimate."""
    loaded = (load_metric(name) for name in metrics)
    return next((m for m in loaded if term.estimate in m.compute(m.init())), None)


def estimate(term: Term, metrics: Sequence[str], records: pa.Table) -> Estimate:
    """Return a metric of lm-eval's over the records that are scored."""
    metric = _family(term, metrics)
    assert metric is not None  # or it were no term of this task
    scored = term.adapted(records.filter(_is_scored(records)))
    return metric.compute(metric.update(metric.init(), scored))[term.estimate]


def values(term: Term, metrics: Sequence[str], records: pa.Table) -> list[Any]:
    """Return what lm-eval logs of a metric for each record; None where it has no number."""
    metric = _family(term, metrics)
    assert metric is not None
    x, u = _contribution(metric, term, records)
    if term.is_rate:
        return [[a, int(b)] if b else None for a, b in zip(x.tolist(), u.tolist(), strict=True)]
    return [a if b else None for a, b in zip(x.tolist(), u.tolist(), strict=True)]


def _contribution(metric: Metric[Any], term: Term, records: pa.Table) -> Contribution:
    return metric.contributions(term.adapted(records))[term.estimate]


def _is_scored(records: pa.Table) -> pa.Array:
    return pa.array([Status(status).is_scored for status in records["status"].to_pylist()])


def in_their_terms(
    own: Mapping[str, Estimate], terms: Sequence[Term], metrics: Sequence[str], records: pa.Table
) -> dict[str, Estimate]:
    """Return estimates under lm-eval's names first, then those it has no name for.

    Args:
        own: the task's estimates, or those of one of its groups.
        terms: lm-eval's metrics of the task.
        metrics: the task's metric families.
        records: the same examples' records, with the column `BOUNDARY`.
    """
    renamed = {term.estimate: term.name for term in terms if term.is_renaming}
    theirs = {term.name: own[term.estimate] for term in terms if term.estimate in own}
    for term in terms:
        if not term.is_renaming:
            theirs[term.name] = estimate(term, metrics, records)
    return theirs | {name: value for name, value in own.items() if name not in renamed}


def boundary_chars(continuations: Sequence[str]) -> int:
    """Return how many characters before the choices are not theirs: the one space, or none.

    >>> boundary_chars([" yes", " no"]), boundary_chars(["yes", "no"]), boundary_chars([])
    (1, 0, 0)
    """
    first = {text[:1] for text in continuations}
    return 1 if len(first) == 1 and first.pop().isspace() else 0
