"""Speed of the bootstrap from counts against resampling rows, in one run.

    pip install scikit-learn
    python -m tests.bench.bootstrap_speed [N_ROWS]

Each statistic over 100 000 replicates of 10 000 rows. Ours: tables drawn by `count_replicates`,
then the statistic of all of them at once. Against it, as evaluation harnesses do it: rows drawn
with replacement, then the statistic of the rows by scikit-learn, scipy or numpy; its time is that
of a few resamples times 100 000, since all of them would take hours. For tau-b the closed-form
error, which needs no replicate, is timed as well. Both ways give a standard error, printed so that
the two can be compared; 40 resamples know it to 11 %. Times are CPU seconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy import stats

from raveval.metrics import _correlation_errors as errors
from raveval.metrics import _ranks as ranks
from raveval.metrics._bootstrap import count_replicates
from raveval.metrics._joint_counts import count
from tests.bench.timing import cpu_seconds

N_REPLICATES = 100_000
N_ROWS = 10_000
N_RESAMPLES = 40
"""Of the rows; what is measured on them is multiplied up."""


@dataclass(frozen=True)
class Case:
    """A statistic of two columns of small integers, in both ways.

    `of_tables` takes tables of shape `(n_tables, n_cells)`, x-major; `of_rows` two columns.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    of_tables: Callable[[np.ndarray], np.ndarray]
    of_rows: Callable[[np.ndarray, np.ndarray], float]


def from_counts(counts: np.ndarray, of_tables: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return the statistic of each replicate."""
    chunks = count_replicates(counts, n_replicates=N_REPLICATES)
    return np.concatenate([of_tables(chunk.astype(np.float64)) for chunk in chunks])


def from_rows(case: Case) -> np.ndarray:
    """Return the statistic of a few resamples of the rows."""
    rng = np.random.default_rng(0)
    n, found = len(case.x), []
    for _ in range(N_RESAMPLES):
        rows = rng.integers(0, n, n)
        found.append(case.of_rows(case.x[rows], case.y[rows]))
    return np.array(found)


def counts_of(case: Case) -> np.ndarray:
    """Return how often each pair of values occurs, flat."""
    width = int(case.y.max()) + 1
    return np.bincount(case.x * width + case.y, minlength=(int(case.x.max()) + 1) * width)


def f1(t: np.ndarray) -> np.ndarray:
    """F1 of the value 1 from 2 x 2 tables (true, predicted)."""
    return np.asarray(2 * t[:, 3] / (2 * t[:, 3] + t[:, 1] + t[:, 2]))


def kappa(t: np.ndarray) -> np.ndarray:
    """Cohen's kappa from 2 x 2 tables."""
    n = t.sum(1)
    agreed = (t[:, 0] + t[:, 3]) / n
    by_chance = (
        (t[:, 0] + t[:, 1]) * (t[:, 0] + t[:, 2]) + (t[:, 2] + t[:, 3]) * (t[:, 1] + t[:, 3])
    ) / n**2
    return np.asarray((agreed - by_chance) / (1 - by_chance))


def cases(n: int) -> list[Case]:
    """Return the statistics on rows of 2 and of 5 values."""
    from sklearn.metrics import cohen_kappa_score, f1_score  # what no test needs is not installed

    rng = np.random.default_rng(1)
    x = rng.normal(size=n)
    y = x + rng.normal(size=n)
    x2, y2 = (x > 0).astype(np.int64), (y > 0).astype(np.int64)
    x5, y5 = (np.clip(np.rint(2 + v), 0, 4).astype(np.int64) for v in (x, y))
    cells = ranks.tabulate(count(x5.astype(np.float64), y5.astype(np.float64)).consolidated())
    signs = errors.orders(cells)
    filled = 5 * cells.x.of_cell + cells.y.of_cell

    def tau_b(tables: np.ndarray) -> np.ndarray:
        return errors.kendall_replicates(tables[:, filled], cells, signs)["kendall_tau_b"]

    return [
        Case("F1", x2, y2, f1, f1_score),
        Case("Cohen's kappa", x2, y2, kappa, cohen_kappa_score),
        Case("tau-b, 5 x 5", x5, y5, tau_b, lambda a, b: float(stats.kendalltau(a, b).statistic)),
        Case("mean of 5 values", x5, y5 * 0, partial(mean_of_five, n=n), lambda a, _: a.mean()),
    ]


def mean_of_five(tables: np.ndarray, n: int) -> np.ndarray:
    """Return the mean of the values 0…4 from the counts of each."""
    return np.asarray(tables @ np.arange(5.0) / n)


def main() -> None:
    """Print all of it."""
    n = int(sys.argv[1]) if len(sys.argv) > 1 else N_ROWS
    print(f"{N_REPLICATES:,} replicates of {n:,} rows, CPU seconds")
    for case in cases(n):
        counts = counts_of(case)
        ours = cpu_seconds(partial(from_counts, counts, case.of_tables), repetitions=2)
        from_rows(case)  # to warm up
        start = time.process_time()
        resampled = from_rows(case)
        theirs = (time.process_time() - start) / N_RESAMPLES * N_REPLICATES
        stderr = from_counts(counts, case.of_tables).std()
        print(
            f"{case.name:>17}: from counts {ours:.3g}; from rows {theirs:,.4g} "
            f"(extrapolated from {N_RESAMPLES}), {theirs / ours:,.3g}x; standard error "
            f"{stderr:.5f} and {resampled.std(ddof=1):.5f}"
        )
        if case.name.startswith("tau-b"):
            report_closed_form(case, theirs)


def report_closed_form(case: Case, theirs: float) -> None:
    """Print the time of the error that needs no replicate."""
    cells = ranks.tabulate(count(case.x + 0.0, case.y + 0.0).consolidated())

    def closed_form() -> float:
        difference = ranks.concordance(cells)
        value = ranks.kendall_tau_b(cells, difference)
        return errors.standard_error(cells, errors.tau_b_influence(cells, difference, value))

    seconds = cpu_seconds(closed_form, repetitions=20)
    print(
        f"{'closed form':>17}: {seconds * 1e6:.3g} us, {theirs / seconds:,.3g}x; "
        f"standard error {closed_form():.5f}"
    )


if __name__ == "__main__":
    main()
