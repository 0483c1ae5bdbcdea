"""Says while two runs are under way whether one is better, with an error rate that peeking keeps.

A test that is repeated whenever more examples are done finds a difference sooner or later, also
where there is none: a z test at 5 % looked at after each of 2000 pairs is wrong in about half of
all cases. Here the chance of ever being wrong is at most alpha, however often one looks.

Only examples that one run gets right and the other wrong count (discordant pairs). With b of them
for A and c for B, under the null hypothesis fair coins, evidence is the e-value

    e = B(b + 1/2, c + 1/2) / B(1/2, 1/2) * 2^(b + c),

the likelihood ratio of a coin of unknown bias (mixed over Beta(1/2, 1/2)) to a fair one. It is a
martingale of expectation 1, so it ever reaches 1 / alpha with probability at most alpha (Ville
1939; Robbins, Annals of Mathematical Statistics 41 (1970) 1397-1409), and 1 / max e is a p-value at
any time.

That holds for pairs taken in an order fixed beforehand. In order of completion it does not: short
answers finish first and are often the easier ones. Examples are stored in a fixed pseudo-random
order, so only the longest prefix of it that is finished in both runs is looked at; what is finished
beyond it waits. Examples are taken to be independent: where any that is finished names a cluster,
in the prefix or beyond it, the test is refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from raveval.comparison import ALPHA
from raveval.comparison.delta import kept
from raveval.comparison.estimates import contributions, usable
from raveval.comparison.mcnemar import SMALLEST_P
from raveval.comparison.paired import is_binary
from raveval.comparison.pairing import (
    OpenRun,
    check_comparable,
    open_run,
    pair,
    read_records,
)
from raveval.errors import ConfigError, DataError, nearest
from raveval.evaluate import load_metric
from raveval.metrics._exact import Doubles
from raveval.metrics._headline import primary
from raveval.types import Shard

Decision = Literal["baseline is better", "run is better", "undecided"]


@dataclass(frozen=True, slots=True)
class SequentialTest:
    """What the complete prefix of two runs says.

    Attributes:
        n_prefix: examples at the start of the fixed order that are finished in both runs.
        n_pairs: those of them that both runs' estimate could use; missing examples are no evidence.
        n_only_baseline, n_only_run: discordant pairs, b and c, by the run that is right.
        log_e: natural logarithm of the e-value now.
        p: anytime-valid p-value: 1 over the largest e-value so far.
        n_to_decide: discordant pairs after which e reached 1 / alpha first; None where it has not.
        decision: which run is better; once it is made, further examples do not unmake it.
    """

    n_prefix: int
    n_pairs: int
    n_only_baseline: int
    n_only_run: int
    log_e: float
    p: float
    n_to_decide: int | None
    decision: Decision

    @property
    def e_value(self) -> float:
        """The evidence now; infinite where it is beyond the largest double."""
        return math.exp(self.log_e) if self.log_e < 709 else math.inf


def log_e_values(n_baseline: Doubles, n_run: Doubles) -> Doubles:
    """Return ln e for counts of discordant pairs, b and c.

    >>> log_e_values(np.array([0.0, 10.0]), np.array([0.0, 0.0])).round(3).tolist()
    [0.0, 5.195]
    """
    b, c = np.asarray(n_baseline, np.float64), np.asarray(n_run, np.float64)
    mixed = special.betaln(b + 0.5, c + 0.5) - special.betaln(0.5, 0.5)
    values: Doubles = mixed + (b + c) * math.log(2)
    return values


def sequential_test(
    baseline_is_right: NDArray[np.bool_], run_is_right: NDArray[np.bool_], *, alpha: float = ALPHA
) -> SequentialTest:
    """Test pairs that stand in an order fixed before they were answered.

    Args:
        baseline_is_right: shape `(n,)`, pair by pair.
        run_is_right: the same pairs in the other run.
        alpha: the largest chance of ever deciding where the runs are equally good.

    Raises:
        ConfigError: alpha is not between 0 and 1.
    """
    if not 0 < alpha < 1:
        raise ConfigError(f"alpha is {alpha!r}; give a chance between 0 and 1, such as {ALPHA}")
    is_discordant = baseline_is_right != run_is_right
    favours_run = run_is_right[is_discordant]
    c = np.concatenate([[0], np.cumsum(favours_run)]).astype(np.float64)
    b = np.arange(len(c)) - c
    log_e = log_e_values(b, c)
    reached = np.flatnonzero(log_e >= -math.log(alpha))
    decision: Decision = "undecided"
    if len(reached):
        decision = "run is better" if c[reached[0]] > b[reached[0]] else "baseline is better"
    return SequentialTest(
        n_prefix=len(baseline_is_right),
        n_pairs=len(baseline_is_right),
        n_only_baseline=int(b[-1]),
        n_only_run=int(c[-1]),
        log_e=float(log_e[-1]),
        p=max(SMALLEST_P, math.exp(-float(log_e.max()))),
        n_to_decide=int(reached[0]) if len(reached) else None,
        decision=decision,
    )


def compare_prefix(
    baseline: str | Path,
    run: str | Path,
    task: str,
    *,
    estimate: str | None = None,
    alpha: float = ALPHA,
) -> SequentialTest:
    """Test what two runs, finished or not, have done of a task; call it as often as you like.

    Args:
        baseline: a run directory; with `run`, in any state and of any shard size.
        run: the other one.
        task: a task of both.
        estimate: a share of right answers; the task's primary one where none is named.
        alpha: the largest chance of ever deciding where the runs are equally good.

    Raises:
        ConfigError: no such task, no such estimate that is right or wrong on each example, or alpha
            is not between 0 and 1.
        DataError: no run there, a file that cannot be read, or examples that come in clusters.
        MismatchError: runs that were asked or scored differently; the message names the key.
    """
    runs = open_run(baseline), open_run(run)
    for each in runs:
        if task not in each.tasks:
            raise ConfigError(f"{each.name}: no task {task!r}; {nearest(task, each.tasks)}")
    check_comparable(*runs, task)
    family, name = _family_of(runs[0], task, estimate)
    done = [[shard for shard in each.shards(task) if each.is_done(shard)] for each in runs]
    n_prefix = min(_prefix(shards) for shards in done)
    if n_prefix == 0:
        return SequentialTest(0, 0, 0, 0, 0.0, 1.0, None, "undecided")
    where = f"{runs[0].name} and {runs[1].name}: task {task!r}"
    if any(_names_clusters(each, shards) for each, shards in zip(runs, done, strict=True)):
        raise DataError(
            f"{where}: its examples come in clusters and are not independent; `raveval compare` "
            "tests them once both runs are finished"
        )
    metric = load_metric(family)
    columns = runs[0].columns(task)
    records = [
        read_records(each, [shard for shard in shards if shard.start < n_prefix], columns)
        for each, shards in zip(runs, done, strict=True)
    ]
    found = pair(*(table.slice(0, n_prefix) for table in records), where=where)
    pairs = contributions(metric, found)
    entering = kept(pairs[name], usable(metric, found, pairs)[name])
    if not is_binary(entering, metric.ratios[name]):
        raise ConfigError(f"{name}: not right or wrong on each example; name a share of right ones")
    tested = sequential_test(entering.a.x == 1, entering.b.x == 1, alpha=alpha)
    return replace(tested, n_prefix=n_prefix)


def why_untestable(directory: str | Path, task: str) -> str | None:
    """Return why a task of a finished run cannot be tested; None where it can.

    Raises:
        DataError: no run there, or a file that cannot be read.
    """
    run = open_run(directory)
    if _names_clusters(run, run.shards(task)):
        return "its examples come in clusters"
    try:
        compare_prefix(directory, directory, task)
    except ConfigError as exc:
        return str(exc)
    return None


def _prefix(done: Sequence[Shard]) -> int:
    """Return how many examples at the start of the order are in finished shards without a gap."""
    stop = 0
    for shard in done:
        if shard.start != stop:
            break
        stop = shard.stop
    return stop


def _names_clusters(run: OpenRun, done: Sequence[Shard]) -> bool:
    clusters = read_records(run, done, ["cluster"])["cluster"]
    return bool(clusters.null_count < len(clusters))


def _family_of(run: OpenRun, task: str, estimate: str | None) -> tuple[str, str]:
    """Return the metric family that gives an estimate, and the estimate."""
    families = {
        name: family for family in run.tasks[task]["metrics"] for name in load_metric(family).ratios
    }
    wanted = estimate or primary(families)
    if wanted is None:
        raise ConfigError(f"task {task!r}: is not quoted by a share of right answers")
    if wanted not in families:
        known = nearest(wanted, families)
        raise ConfigError(f"task {task!r}: no share of right answers {wanted!r}; {known}")
    return families[wanted], wanted
