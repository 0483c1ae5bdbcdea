"""A judge's verdicts on pairs of responses, as codes: which of them is better, or a tie.

`verdict` is the judge's where response a was shown first, `verdict_swapped` where b was; a and b
name the same responses in both.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raveval.errors import DataError

VERDICT = pa.field("verdict", pa.string())
VERDICT_SWAPPED = pa.field("verdict_swapped", pa.string())

Codes = NDArray[np.int64]

UNJUDGED, A, TIE, B = range(4)  # in the order of the linear distance
WORDS = {"a": A, "tie": TIE, "b": B}


def codes_of(words: pa.Array, name: str) -> Codes:
    """Return the codes of the words in a column; null is unjudged.

    Raises:
        DataError: a word that is not allowed.
    """
    encoded = words.dictionary_encode()
    known = encoded.dictionary.to_pylist()
    for word in known:
        if word not in WORDS:
            raise DataError(
                f"{name}: {word!r} is not allowed; allowed: {', '.join(map(repr, WORDS))}"
            )
    codes = np.array([*(WORDS[word] for word in known), UNJUDGED], np.int64)
    places: Codes = encoded.indices.fill_null(len(known)).to_numpy(zero_copy_only=False)
    return codes[places]
