"""Scores many answers: one by one, or by the kernel where that pays; the same integers.

The semantics are those of a `Rule`; the kernel is told which of its two it is to follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raveval.metrics import _squad_kernel
from raveval.metrics._answers import Answers, Match, Matches
from raveval.metrics._squad_kernel import Room, Scores, Texts

_KERNEL_ROWS = 50_000
"""Answers from which on the kernel is used. To load it takes about half a second where it was
compiled before (some seconds where not), and plain Python scores about as many in that time: who
stops at any number of answers waits at most twice as long as with the better choice."""

_MOST_BYTES = 1 << 20
"""Longest text that the kernel is given room for, some 60 MB; longer ones are scored one by one."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What an answer is worth, given its references.

    Attributes:
        match: the semantics.
        drops_empty: what the kernel has to know of them, see `_kernel_scores`.
    """

    match: Callable[[str | None, Sequence[str]], Match]
    drops_empty: bool


def matches(answers: Answers, rule: Rule, *, n_before: int = 0) -> Matches:
    """Return the match of each answer, by the kernel where that pays.

    It does where enough answers come at once, or have come before these (`n_before`).
    """
    if n_before + len(answers.predictions) >= _KERNEL_ROWS:
        return kernel_matches(answers, rule) or plain_matches(answers, rule)
    return plain_matches(answers, rule)


def plain_matches(answers: Answers, rule: Rule) -> Matches:
    """Return the match of each answer, one by one."""
    predictions = answers.predictions.to_numpy(zero_copy_only=False).tolist()
    texts = answers.references.flatten().to_numpy(zero_copy_only=False).tolist()
    ends = np.cumsum(answers.n_references()).tolist()
    references = (texts[start:end] for start, end in pairwise([0, *ends]))
    scores = chain.from_iterable(map(rule.match, predictions, references))
    columns = np.fromiter(scores, np.int64, 3 * len(predictions)).reshape(-1, 3).T
    return Matches(columns[0] == 1, columns[1], columns[2])


def kernel_matches(answers: Answers, rule: Rule) -> Matches | None:
    """Return the match of each answer, from the kernel but for the rows that it leaves.

    None where it is not at hand.
    """
    found = _kernel_scores(*answers, drops_empty=rule.drops_empty)
    if found is None:
        return None
    rows = np.flatnonzero(found.is_left)
    if len(rows):
        rest = plain_matches(answers.take(rows), rule)
        found.exact[rows] = rest.exact
        found.numerator[rows] = rest.numerator
        found.denominator[rows] = rest.denominator
    return Matches(found.exact, found.numerator, found.denominator)


def _kernel_scores(
    predictions: pa.StringArray, references: pa.ListArray, *, drops_empty: bool
) -> Scores | None:
    """Return the scores of all rows but those left to Python; None where numba is not at hand.

    Args:
        predictions: a null scores 0.
        references: lists of texts; neither they nor the texts are null.
        drops_empty: as in v2, references without a word do not count; where none is left the empty
            text is the only one; and an exact match has F1 1.
    """
    kernel = _squad_kernel.compiled()
    if kernel is None:
        return None
    n = len(predictions)
    scores = Scores(
        np.zeros(n, np.bool_), np.zeros(n, np.int64), np.ones(n, np.int64), np.zeros(n, np.bool_)
    )
    if n == 0:
        return scores
    list_ends = _view(references.buffers()[1], np.int32)[references.offset :][: n + 1]
    n_texts = int(list_ends[-1] - list_ends[0])
    predicted = _texts(predictions)
    referenced = _texts(references.values.slice(list_ends[0], n_texts))
    longest = max(int(np.diff(texts.ends).max(initial=0)) for texts in (predicted, referenced))
    kernel(
        predicted,
        np.array(predictions.is_valid()),
        referenced,
        list_ends - list_ends[0],
        _squad_kernel.character_table(),
        drops_empty,
        _room(min(longest, _MOST_BYTES)),
        scores,
    )
    return scores


def _texts(array: pa.StringArray) -> Texts:
    _, ends, content = array.buffers()
    first = array.offset
    return Texts(_view(content, np.uint8), _view(ends, np.int32)[first : first + len(array) + 1])


def _view(buffer: pa.Buffer | None, kind: Any) -> NDArray[Any]:
    """Return the buffer as a read-only array: whether it is one is part of a compiled type."""
    # Arrow may leave the buffers of an array without values empty, or out.
    view = np.frombuffer(buffer if buffer is not None and buffer.size else bytes(4), kind)
    view.setflags(write=False)
    return view


def _room(n_bytes: int) -> Room:
    """Return room for two texts of so many bytes: they have no more characters, and no more words.

    `_split` leaves what is longer to Python.
    """
    size = n_bytes + 1
    return Room(
        np.zeros(2 * size, np.int32),
        np.zeros(2 * size, np.int32),
        np.zeros(2 * size, np.int64),
        np.zeros(1 << (2 * size).bit_length(), np.int32),  # at most half of it in use
        np.zeros(size, np.int32),
        np.zeros(size, np.int32),
    )
