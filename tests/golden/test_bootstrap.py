"""What the bootstrap draws, to the bit.

numpy does not promise the same random numbers in all of its versions (NEP 19). These were drawn by
numpy 2.3. Where another numpy draws others, intervals change: raise the version of each metric that
draws (see `raveval.metrics._bootstrap.SEED`), and put the new draws here.
"""

import numpy as np
import pytest

from raveval.metrics._bootstrap import count_replicates


@pytest.mark.parametrize(
    ("counts", "first", "totals"),
    [
        (  # drawn row by row
            [3, 0, 1, 7, 2, 11, 1],
            [2, 0, 1, 7, 1, 12, 2],
            [5922, 0, 1992, 14041, 4100, 21971, 1974],
        ),
        (  # drawn cell by cell
            [3000, 0, 1, 7000, 2, 11_000, 1999],
            [3015, 0, 2, 6984, 3, 10974, 2024],
            [5999410, 0, 2058, 13999081, 3967, 21999971, 3999513],
        ),
    ],
)
def test_the_draws_are_those_of_numpy_2_3(counts: list[int], first: list[int], totals: list[int]):
    tables = np.concatenate(list(count_replicates(np.array(counts))))
    assert tables[0].tolist() == first
    assert tables.sum(axis=0).tolist() == totals
