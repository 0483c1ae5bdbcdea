"""How often the 95 % intervals hold the truth: simulated populations whose numbers are known.

    python -m tests.bench.interval_coverage [REPETITIONS]

Every interval is the one that `compute` (or `compare`) gives for a sample drawn from a population;
the share of samples whose interval holds the population's own number should be 95 %, within
93 to 97 %. With 2000 repetitions (the default) a share has a standard error of half a percent.
Intervals that are bootstrapped are repeated half as often.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from scipy.stats import multivariate_normal, norm

from raveval.comparison import paired, resampling
from raveval.comparison.delta import PairedContributions
from raveval.comparison.inference import Inference
from raveval.evaluate import load_metric
from raveval.metrics import Contribution, Ratio
from raveval.types import Estimate

Rng = np.random.Generator
SIZES = (100, 1000)
BOOTSTRAPPED = 2
"""A bootstrapped interval is repeated so many times less often."""


class Population(NamedTuple):
    """A population of examples: how a sample is drawn, and which numbers are true of it."""

    metric: str
    draw: Callable[[Rng, int], pa.Table]
    truth: Mapping[str, float]
    cost: int = 1


def choices(rng: Rng, n: int, p: float) -> pa.Table:
    """Draw examples of four choices, each right with probability p."""
    gold = (rng.random(n) >= p).astype(np.int32)  # the first choice is always the best one
    scores = pa.ListArray.from_arrays(
        np.arange(0, 4 * n + 1, 4, dtype=np.int32), np.tile([-1.0, -2.0, -3.0, -4.0], n)
    )
    return pa.table({"gold": gold, "logprob_nats": scores})


ANSWERS = ("w1 w2 w3 w4", "w1 w2 w3", "w1 w2", "w1 x", "y")
"""F1 against `w1 w2 w3 w4`: 1, 6/7, 2/3, 1/3, 0."""
ANSWER_SHARES = (0.5, 0.1, 0.1, 0.1, 0.2)
ANSWER_F1 = (1.0, 6 / 7, 2 / 3, 1 / 3, 0.0)


def answers(rng: Rng, n: int) -> pa.Table:
    """Draw answers, most of them right or wrong and some half right."""
    predicted = rng.choice(ANSWERS, n, p=ANSWER_SHARES)
    return pa.table({"prediction": predicted, "references": [[ANSWERS[0]]] * n})


LENGTH_SPREAD = 0.8
"""Standard deviation of the logarithm of a document's tokens."""


def documents(rng: Rng, n: int) -> pa.Table:
    """Draw documents of lognormal length, each with its own difficulty (3 ± 0.5 nats a token)."""
    tokens = np.maximum(1, rng.lognormal(5.5, LENGTH_SPREAD, n)).astype(np.int64)
    nats = np.maximum(0.1, rng.normal(3.0, 0.5, n))
    entropy = np.maximum(0.1, rng.normal(2.8, 0.6, n))
    return pa.table(
        {"logprob_nats": -nats * tokens, "entropy_nats": entropy * tokens, "n_tokens": tokens}
    )


def _joint(rho: float, cuts: Any) -> Any:
    """Return the probabilities of pairs of grades cut from a bivariate normal."""
    edges = np.concatenate([[-9.0], cuts, [9.0]])
    normal = multivariate_normal([0, 0], [[1, rho], [rho, 1]])
    below = np.array([[normal.cdf([x, y]) for y in edges] for x in edges])
    return np.diff(np.diff(below, axis=0), axis=1)


CUTS = norm.ppf([0.1, 0.3, 0.6, 0.85])
GRADES = _joint(0.7, CUTS)


def ratings(rng: Rng, n: int) -> pa.Table:
    """Draw pairs of grades from 1 to 5, correlated like those of two careful raters."""
    cell = rng.choice(GRADES.size, n, p=GRADES.ravel() / GRADES.sum())
    x, y = np.divmod(cell, GRADES.shape[1])
    return pa.table({"rating": x + 1, "reference_rating": y + 1})


def rank_truths() -> dict[str, float]:
    """Return the population's correlations of `ratings`, from its cell probabilities."""
    p = GRADES / GRADES.sum()
    x, y = p.sum(axis=1), p.sum(axis=0)
    k = len(x)
    less = np.tril(np.ones((k, k)), -1)
    concordant = (p * (less @ p @ less.T)).sum() * 2
    discordant = (p * (less @ p @ less)).sum() * 2
    ranks_x, ranks_y = (np.cumsum(m) - m / 2 for m in (x, y))

    def pearson(a: Any, b: Any) -> float:
        mean_a, mean_b = a @ x, b @ y
        covariance = ((a - mean_a)[:, None] * (b - mean_b)[None, :] * p).sum()
        return float(covariance / math.sqrt(((a - mean_a) ** 2 @ x) * ((b - mean_b) ** 2 @ y)))

    grades = np.arange(1.0, k + 1)
    tau_b = (concordant - discordant) / math.sqrt((1 - x @ x) * (1 - y @ y))
    agreement, chance = np.trace(p), x @ y
    return {
        "kendall_tau_b": float(tau_b),
        "kendall_tau_c": float((concordant - discordant) * k / (k - 1)),
        "spearman": pearson(ranks_x, ranks_y),
        "pearson": pearson(grades, grades),
        "exact_agreement": float(agreement),
        "cohen_kappa": float((agreement - chance) / (1 - chance)),
    }


Verdicts = Mapping[tuple[str, str | None], float]

JUDGED: Verdicts = {
    # (verdict, verdict_swapped) → share: mostly a, with a liking for the response shown first
    ("a", "a"): 0.42,
    ("b", "b"): 0.23,
    ("a", "b"): 0.2,
    ("b", "a"): 0.05,
    ("a", "tie"): 0.03,
    ("tie", "tie"): 0.03,
    ("a", None): 0.03,
    ("b", None): 0.01,
}
"""Verdicts of a judge on a run's response (a) and a baseline's (b), in both orders."""

ONE_SIDED: Verdicts = {("a", "a"): 0.9, ("a", "b"): 0.05, ("b", "a"): 0.02, ("b", "b"): 0.03}
"""The same where one response is nearly always better."""


def verdicts(rng: Rng, n: int, shares: Verdicts) -> pa.Table:
    """Draw pairs that a judge was asked about in both orders."""
    drawn = rng.choice(len(shares), n, p=list(shares.values()))
    given, swapped = zip(*(list(shares)[k] for k in drawn), strict=True)
    return pa.table(
        {
            "verdict": pa.array(given, pa.string()),
            "verdict_swapped": pa.array(swapped, pa.string()),
        }
    )


def win_rates(shares: Verdicts) -> dict[str, float]:
    """Return the population's numbers from the shares of its verdicts."""
    both = {pair: share for pair, share in shares.items() if None not in pair}
    total = sum(both.values())
    wins, losses = both["a", "a"] / total, both["b", "b"] / total
    single = sum(s * {"a": 1.0, "tie": 0.5, "b": 0.0}[given] for (given, _), s in shares.items())
    preferences = [
        (verdict == first, share)
        for pair, share in shares.items()
        for verdict, first in zip(pair, ("a", "b"), strict=True)
        if verdict in ("a", "b")
    ]
    return {
        "win_rate": (1 + wins - losses) / 2,
        "win_rate_single_order": single,
        "win_share": wins,
        "tie_share": 1 - wins - losses,
        "loss_share": losses,
        "order_consistency": sum(s for (x, y), s in both.items() if x == y) / total,
        "first_position_rate": sum(s for is_first, s in preferences if is_first)
        / sum(s for _, s in preferences),
    }


def populations() -> Iterator[Population]:
    """Yield what is simulated."""
    for p in (0.3, 0.7, 0.95):
        yield Population("accuracy", partial(choices, p=p), {"accuracy": p})
    f1 = float(np.dot(ANSWER_SHARES, ANSWER_F1))
    yield Population("squad", answers, {"f1": f1, "exact_match": ANSWER_SHARES[0]})
    yield Population("perplexity", documents, {"token_perplexity": math.exp(3.0)})
    yield Population("entropy", documents, {"entropy_nats": 2.8})
    truths = rank_truths()
    agreement = {name: truths.pop(name) for name in ("exact_agreement", "cohen_kappa")}
    yield Population("correlation", ratings, truths, BOOTSTRAPPED)
    yield Population("agreement", ratings, agreement, BOOTSTRAPPED)
    for shares in (JUDGED, ONE_SIDED):
        yield Population("win_rate", partial(verdicts, shares=shares), win_rates(shares))


class Difference(NamedTuple):
    """Two models on the same examples: what a sample says of the difference, and its truth."""

    name: str
    infer: Callable[[Rng, int], Inference]
    truth: float
    cost: int = 1


def _both(x_a: Any, x_b: Any, u: Any) -> PairedContributions:
    return PairedContributions(
        Contribution(np.asarray(x_a, np.float64), np.asarray(u, np.float64)),
        Contribution(np.asarray(x_b, np.float64), np.asarray(u, np.float64)),
    )


def accuracy_difference(rng: Rng, n: int) -> Inference:
    """Draw two models of accuracy .70 and .75 that mostly agree."""
    cells = rng.choice(4, n, p=(0.62, 0.08, 0.13, 0.17))  # both, first only, second only, neither
    return paired.binary(_both(cells < 2, (cells == 0) | (cells == 2), np.ones(n)))


F1_PAIRS = np.array([(1, 1), (1, 2 / 3), (2 / 3, 1), (0, 1), (1, 0), (0, 0), (1 / 3, 0.5)])
F1_PAIR_SHARES = np.array([0.45, 0.1, 0.1, 0.1, 0.05, 0.15, 0.05])


def f1_difference(rng: Rng, n: int) -> Inference:
    """Draw two models' F1 on the same questions."""
    drawn = F1_PAIRS[rng.choice(len(F1_PAIRS), n, p=F1_PAIR_SHARES)]
    pairs = _both(drawn[:, 0], drawn[:, 1], np.ones(n))
    return resampling.bootstrap([(pairs, Ratio(), np.ones(n, np.bool_))])[0]


def perplexity_difference(rng: Rng, n: int) -> Inference:
    """Draw two models' log-likelihoods of the same documents; the second is 0.05 nats better."""
    tokens = np.maximum(1, rng.lognormal(5.5, LENGTH_SPREAD, n)).astype(np.int64)
    nats = rng.normal(3.0, 0.5, n)
    gained = rng.normal(0.05, 0.2, n)
    pairs = _both(-nats * tokens, -(nats - gained) * tokens, tokens)
    ratio = Ratio(scale=-1.0, is_exponential=True)
    return resampling.bootstrap([(pairs, ratio, np.ones(n, np.bool_))])[0]


def differences() -> Iterator[Difference]:
    """Yield the comparisons that are simulated."""
    yield Difference("accuracy difference", accuracy_difference, 0.05)
    truth = float(F1_PAIR_SHARES @ (F1_PAIRS[:, 1] - F1_PAIRS[:, 0]))
    yield Difference("f1 difference", f1_difference, truth, BOOTSTRAPPED)
    truth = math.exp(2.95) - math.exp(3.0)
    yield Difference("perplexity diff.", perplexity_difference, truth, BOOTSTRAPPED)


def covered(population: Population, n: int, repetitions: int) -> dict[str, tuple[float, Estimate]]:
    """Return for each number how often its interval held, and the last estimate."""
    metric, rng = load_metric(population.metric), np.random.default_rng(n)
    hits = dict.fromkeys(population.truth, 0)
    estimates: Mapping[str, Estimate] = {}
    for _ in range(repetitions):
        sample = population.draw(rng, n)
        estimates = metric.compute(metric.update(metric.init(), sample))
        for name, truth in population.truth.items():
            low, high = estimates[name].low, estimates[name].high
            hits[name] += low is not None and high is not None and low <= truth <= high
    return {name: (count / repetitions, estimates[name]) for name, count in hits.items()}


def difference_covered(difference: Difference, n: int, repetitions: int) -> tuple[float, str]:
    """Return how often the interval of a difference held, and how it was made."""
    rng, hits, interval = np.random.default_rng(n), 0, ""
    for _ in range(repetitions):
        found = difference.infer(rng, n)
        if found.low is not None and found.high is not None:
            hits += found.low <= difference.truth <= found.high
        interval = found.interval or interval
    return hits / repetitions, interval


def report(name: str, truth: float, n: int, interval: str, share: float) -> bool:
    """Print one line, and return whether the interval holds too seldom or too often."""
    is_outside = not 0.93 <= share <= 0.97
    mark = "  OUTSIDE" if is_outside else ""
    print(f"{name:<21} truth {truth:<8.4f} n {n:<5} {interval:<20} {100 * share:5.1f} %{mark}")
    return is_outside


def main(repetitions: int) -> int:
    """Print one line for each interval; return how many are out of bounds."""
    n_outside = 0
    for population in populations():
        for n in SIZES:
            for name, (share, last) in covered(
                population, n, max(1, repetitions // population.cost)
            ).items():
                interval = last.interval or "-"
                n_outside += report(name, population.truth[name], n, interval, share)
    for difference in differences():
        for n in SIZES:
            share, interval = difference_covered(
                difference, n, max(1, repetitions // difference.cost)
            )
            n_outside += report(difference.name, difference.truth, n, interval, share)
    return n_outside


if __name__ == "__main__":
    sys.exit(1 if main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000) else 0)
