"""The scores of SQuAD straight from Arrow's buffers, compiled: the same integers, much faster.

`squad.match` and `squad2.match` say what an answer is worth; this says the same of many rows at
once, and is tested against them. Each text is decoded, lower cased and split in one pass, and words
are compared by hash, then by content. A row that it cannot do as CPython does is left to them: one
with a letter whose lower case depends on its neighbours or is longer than one, with a code point
beyond the table, or with a very long text.

numba is imported by `compiled` alone. The functions from `_decode` to `_score_rows` are what it
compiles, from the smallest step to the whole. They are plain loops, and take each array by itself:
arrays that travel in a tuple are reference counted at each call, which takes as long as the work.
"""

from __future__ import annotations

import math
import string
import unicodedata
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from raveval.metrics import _kernels as kernels
from raveval.metrics._kernels import Booleans, Bytes, Int32s, Integers

_N_CODES = 0x20000  # beyond are rare ideographs, tags and private use; the table stays small
_WORD, _OTHER, _SPACE, _DELETED, _LEFT = range(5)
_KIND_BITS = 24  # an entry of the table is kind << 24 | lower case
_CHAR_MASK = (1 << _KIND_BITS) - 1
_MULTIPLIER = 0x9E3779B97F4A7C15 - (1 << 64)  # odd, its bits well mixed; as a signed number
_A, _E, _H, _N, _T = map(ord, "aehnt")


class Scores(NamedTuple):
    """Exact match and the reduced fraction of F1 of each row; one that `is_left` has none yet."""

    exact: Booleans
    numerator: Integers
    denominator: Integers
    is_left: Booleans


class Texts(NamedTuple):
    """Arrow strings as arrays: text k is `content[ends[k] : ends[k + 1]]`, in UTF-8."""

    content: Bytes
    ends: Int32s


class Room(NamedTuple):
    """Where the words of a prediction are written, and behind them those of one reference.

    Attributes:
        chars, ends, hashes: word k is `chars[ends[k] : ends[k + 1]]`, and has hash k.
        slots: hash table of the prediction's words, with open addressing: a word plus one, or 0.
        counts: how often the prediction has each of its words, kept at the first of them.
        unused: the same, less what the reference at hand has used up.
    """

    chars: Int32s
    ends: Int32s
    hashes: Integers
    slots: Int32s
    counts: Int32s
    unused: Int32s


@cache
def compiled() -> Callable[..., None] | None:
    """Return `_score_rows`, compiled or from numba's cache; None where numba is not at hand."""
    if not kernels.available():
        return None
    import numba

    steps = (_decode, _next, _is_article, _split, _are_equal, _is_same, _are_same, _find, _count)
    for step in (*steps, _overlap, _score):
        numba.extending.register_jitable(step)
    return kernels.compiled(_score_rows, nogil=True)


@cache
def character_table() -> Int32s:
    """Return the kind and the lower case of each code point, as this Python has them.

    One more entry at the end stands for all that is beyond.
    """
    entries = [_entry(chr(code)) for code in range(_N_CODES)]
    table = np.array([*entries, _LEFT << _KIND_BITS], np.int32)
    table.setflags(write=False)
    return table


def _entry(char: str) -> int:
    lower = char.lower()
    # Behind a letter, the capital sigma has another lower case than alone.
    is_plain = len(lower) == 1 and ("a" + char).lower() == "a" + lower
    if not is_plain or unicodedata.category(char) == "Cs":  # surrogates are no text
        return _LEFT << _KIND_BITS
    if lower in string.punctuation:  # the underscore too, the one word character besides isalnum
        kind = _DELETED
    elif lower.isspace():
        kind = _SPACE
    else:
        kind = _WORD if lower.isalnum() else _OTHER
    return kind << _KIND_BITS | ord(lower)


def _decode(content: Bytes, i: int, stop: int) -> tuple[int, int]:
    """Return the code point that begins at `i`, not ASCII, and where the next one begins.

    The code is `_N_CODES`, the last of the table, where it is beyond the table or no UTF-8.
    """
    lead = content[i]
    if lead < 0xE0:
        n_more, code, least = 1, lead & 0x1F, 0x80
    elif lead < 0xF0:
        n_more, code, least = 2, lead & 0x0F, 0x800
    else:
        n_more, code, least = 3, lead & 0x0F, 0x10000
    if lead < 0xC0 or lead > 0xF0 or i + n_more >= stop:
        return _N_CODES, stop
    for k in range(i + 1, i + 1 + n_more):
        if content[k] & 0xC0 != 0x80:
            return _N_CODES, stop
        code = code << 6 | content[k] & 0x3F
    if code < least or code >= _N_CODES:
        return _N_CODES, stop
    return code, i + 1 + n_more


def _next(content: Bytes, i: int, stop: int, table: Int32s) -> tuple[int, int]:
    """Return the entry of the code point at `i`, and where the next one begins."""
    if i == stop:
        return _SPACE << _KIND_BITS, i + 1  # one space more ends the last word
    if content[i] < 0x80:
        return int(table[content[i]]), i + 1
    code, i = _decode(content, i, stop)
    return int(table[code]), i


def _is_article(chars: Int32s, start: int, stop: int) -> bool:
    """Return whether these characters are a, an or the."""
    length = stop - start
    if length == 3:
        return bool(chars[start] == _T and chars[start + 1] == _H and chars[start + 2] == _E)
    if length == 2:
        return bool(chars[start] == _A and chars[start + 1] == _N)
    return length == 1 and bool(chars[start] == _A)


def _split(
    content: Bytes,
    i: int,
    stop: int,
    table: Int32s,
    chars: Int32s,
    ends: Int32s,
    hashes: Integers,
    n: int,
) -> int:
    """Write the words of `content[i:stop]` as number `n` and so on; return the number after them.

    It is -1 where the text is left to Python.
    """
    if 2 * (stop - i + 1) > len(chars):
        return -1
    end, mixed = ends[n], 0
    run, mixed_before = end, 0  # where word characters began that may turn out to be an article
    while i <= stop:
        entry, i = _next(content, i, stop, table)
        kind, char = entry >> _KIND_BITS, entry & _CHAR_MASK
        if kind == _WORD:
            chars[end] = char
            end += 1
            mixed = (mixed ^ char) * _MULTIPLIER
            continue
        if kind == _DELETED:
            continue
        if kind == _LEFT:
            return -1
        is_space = kind == _SPACE
        if _is_article(chars, run, end):
            end, mixed, is_space = run, mixed_before, True
        if is_space and end > ends[n]:
            hashes[n], mixed = mixed, 0
            n += 1
            ends[n] = end
        if kind == _OTHER:
            chars[end] = char
            end += 1
            mixed = (mixed ^ char) * _MULTIPLIER
        run, mixed_before = end, mixed
    return n


def _are_equal(values: NDArray[Any], a: int, b: int, length: int) -> bool:
    """Return whether what begins at `a` equals what begins at `b`."""
    for k in range(length):  # noqa: SIM110 - numba compiles no generators
        if values[a + k] != values[b + k]:
            return False
    return True


def _is_same(chars: Int32s, ends: Int32s, hashes: Integers, a: int, b: int) -> bool:
    """Return whether words `a` and `b` are equal."""
    length = ends[a + 1] - ends[a]
    if hashes[a] != hashes[b] or length != ends[b + 1] - ends[b]:
        return False
    return _are_equal(chars, ends[a], ends[b], length)


def _are_same(chars: Int32s, ends: Int32s, hashes: Integers, n_predicted: int, stop: int) -> bool:
    """Return whether the words before and from `n_predicted` on are the same, in order."""
    if stop != 2 * n_predicted:
        return False
    for word in range(n_predicted):
        if not _is_same(chars, ends, hashes, word, n_predicted + word):
            return False
    return True


def _find(
    chars: Int32s, ends: Int32s, hashes: Integers, slots: Int32s, mask: int, word: int
) -> int:
    """Return the slot of a word equal to this one, or the free slot where it would go."""
    slot = hashes[word] >> 32 & mask
    while slots[slot] != 0 and not _is_same(chars, ends, hashes, slots[slot] - 1, word):
        slot = slot + 1 & mask
    return int(slot)


def _count(
    chars: Int32s, ends: Int32s, hashes: Integers, slots: Int32s, counts: Int32s, n: int
) -> int:
    """Fill in the hash table of `n` words and their counts; return the table's mask, not 0."""
    n_slots = 2
    while n_slots <= 2 * n:
        n_slots *= 2
    for slot in range(n_slots):
        slots[slot] = 0
    for word in range(n):
        slot = _find(chars, ends, hashes, slots, n_slots - 1, word)
        if slots[slot] == 0:
            slots[slot] = word + 1
        counts[word] = 0
        counts[slots[slot] - 1] += 1
    return n_slots - 1


def _overlap(
    chars: Int32s,
    ends: Int32s,
    hashes: Integers,
    slots: Int32s,
    counts: Int32s,
    unused: Int32s,
    mask: int,
    n_predicted: int,
    stop: int,
) -> int:
    """Return the size of the multiset intersection of words before and from `n_predicted` on."""
    for word in range(n_predicted):
        unused[word] = counts[word]
    n_shared = 0
    for word in range(n_predicted, stop):
        first = slots[_find(chars, ends, hashes, slots, mask, word)] - 1
        if first >= 0 and unused[first] > 0:
            unused[first] -= 1
            n_shared += 1
    return n_shared


def _score(
    content: Bytes,
    text_ends: Int32s,
    first: int,
    last: int,
    table: Int32s,
    drops_empty: bool,
    chars: Int32s,
    ends: Int32s,
    hashes: Integers,
    slots: Int32s,
    counts: Int32s,
    unused: Int32s,
    n_predicted: int,
) -> tuple[bool, int, int]:
    """Return the scores against a row's references; the last is 0 where it is left to Python."""
    exact, numerator, denominator, n_kept, mask = False, 0, 1, 0, 0
    for k in range(first, last):
        start, stop = text_ends[k], text_ends[k + 1]
        if k > first:  # the references of a question often repeat each other
            before, length = text_ends[k - 1], stop - start
            if length == start - before and _are_equal(content, before, start, length):
                continue
        n = _split(content, start, stop, table, chars, ends, hashes, n_predicted)
        if n < 0:
            return False, 0, 0
        if drops_empty and n == n_predicted:
            continue
        n_kept += 1
        if _are_same(chars, ends, hashes, n_predicted, n):
            exact = True
            if n > 0:
                return True, 1, 1
        mask = mask or _count(chars, ends, hashes, slots, counts, n_predicted)
        n_shared = _overlap(chars, ends, hashes, slots, counts, unused, mask, n_predicted, n)
        if 2 * n_shared * denominator > numerator * n:
            numerator, denominator = 2 * n_shared, n
    if drops_empty and n_kept == n_predicted == 0:
        return True, 1, 1
    divisor = math.gcd(numerator, denominator)
    return exact, numerator // divisor, denominator // divisor


def _score_rows(
    predictions: Texts,
    is_answered: Booleans,
    references: Texts,
    list_ends: Int32s,
    table: Int32s,
    drops_empty: bool,
    room: Room,
    scores: Scores,
) -> None:
    """Write the scores of every row; one without a prediction has them already."""
    predicted, predicted_ends = predictions
    referenced, referenced_ends = references
    chars, ends, hashes, slots, counts, unused = room
    exact, numerator, denominator, is_left = scores
    for row in range(len(is_answered)):
        if not is_answered[row]:
            continue
        start, stop = predicted_ends[row], predicted_ends[row + 1]
        n = _split(predicted, start, stop, table, chars, ends, hashes, 0)
        if n < 0:
            is_left[row] = True
            continue
        exact[row], numerator[row], denominator[row] = _score(
            referenced,
            referenced_ends,
            list_ends[row],
            list_ends[row + 1],
            table,
            drops_empty,
            chars,
            ends,
            hashes,
            slots,
            counts,
            unused,
            n,
        )
        is_left[row] = denominator[row] == 0
