"""Speed of the multiple-choice accuracies against a loop over examples, in one run.

    python -m tests.bench.accuracy_speed

Ours: five scorings with ties, what cannot be ranked, tallies and probability mass, through
`METRIC.update` on an Arrow table of 65 536 examples of four choices; with the kernels, and with
the plain path that smaller tables take. The loop: for each example five argmaxes on numpy arrays,
the predicted indices and the mass, as evaluation harnesses do it, without ties or checks.
torchmetrics, where it is installed: one accuracy of the five, an update for each example and one
for the whole. Times are CPU seconds, the least of several.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from raveval.metrics import _kernels as kernels
from raveval.metrics.accuracy import METRIC
from tests.bench.timing import cpu_seconds

N = 1 << 16
"""As many examples as `raveval measure` reads at once."""
N_LOOP = 10_000
"""Examples for what takes long; its time for each example does not depend on their number."""
N_PLAIN = 20_000
N_CHOICES = 4
SCORINGS = ("raw", "per_token", "per_char", "per_byte", "unconditional")


def examples(n: int) -> pa.Table:
    """Return random examples with all columns, a few ties among them."""
    rng = np.random.default_rng(0)
    size = n * N_CHOICES
    offsets = pa.array(np.arange(0, size + 1, N_CHOICES, dtype=np.int32))

    def per_choice(values: np.ndarray) -> pa.Array:
        return pa.ListArray.from_arrays(offsets, pa.array(values))

    def nats() -> np.ndarray:
        return -np.round(rng.exponential(8, size) * 1024) / 1024

    n_tokens = rng.integers(1, 9, size, np.int32)
    return pa.table(
        {
            "gold": rng.integers(0, N_CHOICES, n, np.int32),
            "scoring": ["per_char"] * n,
            "logprob_nats": per_choice(nats()),
            "unconditional_nats": per_choice(nats()),
            "n_tokens": per_choice(n_tokens),
            "n_chars": per_choice(4 * n_tokens + rng.integers(0, 3, size, np.int32)),
            "n_bytes": per_choice(4 * n_tokens + rng.integers(0, 4, size, np.int32)),
        }
    )


def loop(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the accuracies and the mean mass, example by example."""
    correct: Counter[str] = Counter()
    predicted: Counter[tuple[str, int]] = Counter()
    mass = 0.0
    for row in rows:
        nats = np.array(row["logprob_nats"])
        scores = {
            "raw": nats,
            "per_token": nats / np.array(row["n_tokens"]),
            "per_char": nats / np.array(row["n_chars"]),
            "per_byte": nats / np.array(row["n_bytes"]),
            "unconditional": nats - np.array(row["unconditional_nats"]),
        }
        for scoring, values in scores.items():
            best = int(np.argmax(values))
            predicted[scoring, best] += 1
            correct[scoring] += best == row["gold"]
        mass += float(np.exp(nats).sum())
    return {**{s: correct[s] / len(rows) for s in SCORINGS}, "mass": mass / len(rows)}


def torchmetrics_times(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, float]:
    """Return seconds for each example of one accuracy, by example and at once."""
    import torch

    module = importlib.import_module("torchmetrics.classification")
    accuracy = functools.partial(module.MulticlassAccuracy, validate_args=False)
    scores = torch.tensor([row["logprob_nats"] for row in rows])
    gold = torch.tensor([row["gold"] for row in rows], dtype=torch.int64)

    def one_by_one() -> None:
        metric = accuracy(N_CHOICES, average="micro")
        for i in range(0, len(rows), 10):
            metric.update(scores[i : i + 1], gold[i : i + 1])
        metric.compute()

    def at_once() -> None:
        metric = accuracy(N_CHOICES, average="micro")
        metric.update(scores, gold)
        metric.compute()

    torch.set_num_threads(1)
    return {
        "torchmetrics, one scoring, example by example": cpu_seconds(one_by_one, repetitions=3)
        / (len(rows) / 10),
        "torchmetrics, one scoring, one batch": cpu_seconds(at_once) / len(rows),
    }


def check(table: pa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Fail where the loop finds other numbers than ours, but for ties."""
    found, state = loop(rows), METRIC.update(METRIC.init(), table)
    ours, notes = METRIC.compute(state), METRIC.notes(state)
    for scoring in SCORINGS:
        value, slack = ours[f"accuracy_{scoring}"].value, notes.get(f"accuracy_{scoring}_ties", 0)
        assert value is not None
        assert abs(found[scoring] - value) <= slack / len(rows) + 1e-12, scoring
    assert ours["probability_mass"].value is not None
    assert abs(found["mass"] - ours["probability_mass"].value) < 1e-9


def main() -> None:
    """Print nanoseconds for each example, and how many times the loop takes of them."""
    table = examples(N)
    few = table.slice(0, N_LOOP)
    rows = few.to_pylist()
    check(few, rows)
    plain = table.slice(0, N_PLAIN)
    assert len(plain) < kernels.ROWS_WORTH_COMPILING
    times = {
        "loop over examples, numpy": cpu_seconds(lambda: loop(rows), repetitions=3) / len(rows),
        "ours, plain path": cpu_seconds(lambda: METRIC.update(METRIC.init(), plain)) / N_PLAIN,
    }
    if kernels.available():
        times["ours, kernels"] = (
            cpu_seconds(lambda: METRIC.update(METRIC.init(), table), repetitions=20) / N
        )
    if importlib.util.find_spec("torchmetrics"):
        times |= torchmetrics_times(rows)
    slowest = times["loop over examples, numpy"]
    for name, seconds in times.items():
        ratio = slowest / seconds
        print(f"{name:<46} {seconds * 1e9:10,.0f} ns an example   loop / this {ratio:7.2f}")


if __name__ == "__main__":
    main()
