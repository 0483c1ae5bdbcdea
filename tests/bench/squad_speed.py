"""How long SQuAD's scores take, by row and against others, all in one run.

    python -m tests.bench.squad_speed [DATA]

takes synthetic short answers and, from a folder of the official files, the real ones, and prints
for each way of scoring them: microseconds a row, how many times faster that is than the published
semantics written in plain Python, and the values, so that one sees that it is the same thing. Times
are CPU seconds of the process, the least of several runs; ours include all of `update`, from an
Arrow table to the state. Others that are not installed are named as such.
"""

import argparse
import importlib
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from raveval.metrics import squad, squad2
from raveval.metrics._squad_kernel import compiled
from tests.official_squad import plain_v1, plain_v2

N_ROWS = 10_000
N_REPEATS = 20  # of those rows, for the kernel: what it is for
N_RUNS = 5

Values = tuple[float, float]
"""Exact match and F1 in percent."""


@dataclass(frozen=True)
class Rows:
    predictions: Sequence[str]
    references: Sequence[Sequence[str]]

    def table(self, n_repeats: int = 1) -> pa.Table:
        part = pa.table({"prediction": self.predictions, "references": self.references})
        return pa.concat_tables([part] * n_repeats).combine_chunks()


@dataclass(frozen=True)
class Timing:
    microseconds: float
    values: Values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, nargs="?")
    arguments = parser.parse_args()
    start = time.process_time()
    if compiled() is None:
        raise SystemExit("numba is not installed: there is no kernel to time")
    METRICS[1].METRIC.update(METRICS[1].METRIC.init(), synthetic(0.5).table(N_REPEATS))
    print(f"first use of the kernel: {time.process_time() - start:.2f} s of CPU time")
    compare("v1.1, synthetic, 5 % of the rows not ASCII", synthetic(0.05), version=1)
    compare("v1.1, synthetic, all rows not ASCII", synthetic(1.0), version=1)
    if arguments.data is not None:
        for dataset, predictions, version in OFFICIAL:
            rows = real(arguments.data / "squad", dataset, predictions)
            compare(f"v{version}, {predictions}", rows, version=version)


OFFICIAL = (
    ("dev-v1.1", "predictions-v1.1-bert-ensemble", 1),
    ("dev-v1.1", "predictions-v1.1-logistic-regression", 1),
    ("dev-v2.0", "predictions-v2.0-nlnet", 2),
)
METRICS: Mapping[int, Any] = {1: squad, 2: squad2}
PLAIN = {1: plain_v1, 2: plain_v2}


def synthetic(share_not_ascii: float) -> Rows:
    """Answers of a few words, each with three references of which some repeat each other."""
    rng = random.Random(2016)
    ascii_words = ["the", "a", "an", "of", "in", "1990s,", "Saint-Denis", "U.S."]
    ascii_words += ["".join(rng.choices("abcdefghijklmnoprstuvw", k=n)) for n in range(2, 11)] * 9
    other_words = [
        "Beyoncé",
        "1066\u20131087",
        "\u201cnaïve\u201d",
        "Żółć",
        "北京",
        "μm",
        "José\u2019s",
    ]

    def text(is_ascii: bool) -> str:
        words = rng.choices(ascii_words, k=rng.choice([1, 1, 2, 2, 3, 4, 5, 8]))
        if not is_ascii:
            words[rng.randrange(len(words))] = rng.choice(other_words)
        return " ".join(word.capitalize() if rng.random() < 0.3 else word for word in words)

    predictions, references = [], []
    for _ in range(N_ROWS):
        is_ascii = rng.random() >= share_not_ascii
        right = text(is_ascii)
        others = [right if rng.random() < 0.6 else f"the {right}, {text(True)}" for _ in range(2)]
        predictions.append(right if rng.random() < 0.5 else f"{text(is_ascii)} {right}")
        references.append([right, *others])
    return Rows(predictions, references)


def real(folder: Path, dataset: str, predictions: str) -> Rows:
    """The questions of an official file that the official predictions answer."""
    answers = json.loads((folder / f"{predictions}.json").read_text("utf-8"))
    found = [
        (answers[question["id"]], [answer["text"] for answer in question["answers"]])
        for article in json.loads((folder / f"{dataset}.json").read_text("utf-8"))["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
        if question["id"] in answers
    ]
    texts, references = zip(*found, strict=True)
    return Rows(texts, references)


def compare(title: str, rows: Rows, *, version: int) -> None:
    n, n_references = len(rows.predictions), sum(map(len, rows.references))
    texts = [*rows.predictions, *(text for texts in rows.references for text in texts)]
    n_bytes = sum(len(text.encode()) for text in texts)
    print(f"\n{title}: {n_references / n:.1f} references and {n_bytes / n:.0f} bytes a row")
    contenders: dict[str, Callable[[], Timing | str]] = {
        "published semantics, Python": lambda: official(rows, version),
        "raveval, plain": lambda: ours(rows.table(), version),
        "raveval, kernel": lambda: ours(rows.table(N_REPEATS), version),
    }
    if version == 1:
        contenders["evaluate"] = lambda: hugging_face(rows)
        contenders["torchmetrics"] = lambda: torchmetrics(rows)
    base = None
    for name, contender in contenders.items():
        found = contender()
        if isinstance(found, str):
            print(f"  {name:28} {found}")
            continue
        base = base or found.microseconds
        exact_match, f1 = found.values
        print(
            f"  {name:28} {found.microseconds:8.2f} µs/row {base / found.microseconds:7.1f} x"
            f"   exact match {exact_match:.4f}   F1 {f1:.9f}"
        )


def timed(run: Callable[[], Values], n_rows: int, n_runs: int = N_RUNS) -> Timing:
    best, values = float("inf"), (0.0, 0.0)
    for _ in range(n_runs):
        squad.tokens.cache_clear()
        start = time.process_time()
        values = run()
        best = min(best, time.process_time() - start)
    return Timing(1e6 * best / n_rows, values)


def official(rows: Rows, version: int) -> Timing:
    def run() -> Values:
        pairs = zip(rows.predictions, rows.references, strict=True)
        scores = [PLAIN[version](prediction, references) for prediction, references in pairs]
        exact, f1 = (100 * sum(column) / len(scores) for column in zip(*scores, strict=True))
        return exact, f1

    return timed(run, len(rows.predictions), n_runs=3)


def ours(table: pa.Table, version: int) -> Timing:
    metric = METRICS[version].METRIC

    def run() -> Values:
        estimates = metric.compute(metric.update(metric.init(), table))
        return 100 * estimates["exact_match"].value, 100 * estimates["f1"].value

    return timed(run, len(table))


def hugging_face(rows: Rows) -> Timing | str:
    try:
        evaluate = importlib.import_module("evaluate")
    except ImportError:
        return "not installed"
    try:
        metric = evaluate.load("squad")
    except Exception as exc:  # noqa: BLE001 - it fetches the metric's code from the hub
        return f"installed, but squad does not load: {type(exc).__name__}"
    return _by_dictionaries(rows, lambda p, r: metric.compute(predictions=p, references=r))


def torchmetrics(rows: Rows) -> Timing | str:
    try:
        score = importlib.import_module("torchmetrics.functional.text").squad
    except ImportError:
        return "not installed"
    return _by_dictionaries(rows, score)


def _by_dictionaries(rows: Rows, score: Callable[..., Mapping[str, Any]]) -> Timing:
    """Time what takes a dictionary for each prediction and for its references."""
    predictions = [
        {"id": str(row), "prediction_text": text} for row, text in enumerate(rows.predictions)
    ]
    references = [
        {"id": str(row), "answers": {"text": list(texts), "answer_start": [0] * len(texts)}}
        for row, texts in enumerate(rows.references)
    ]

    def run() -> Values:
        found = score(predictions, references)
        return float(found["exact_match"]), float(found["f1"])

    return timed(run, len(rows.predictions), n_runs=2)


if __name__ == "__main__":
    main()
