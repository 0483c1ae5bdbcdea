"""How far engines and dtypes agree, example by example, on real benchmark files.

    python -m tests.bench.engine_agreement MODEL DATA [--output DIR]

runs ARC-Easy (100 examples, 0- and 5-shot), SQuAD (50) and WikiText-2 (the first 20 000 words) once
with each engine and dtype, compares every run with transformers in float32, and prints: the largest
and mean difference of a log-likelihood per scored token, the examples whose choice flips, and the
ratio of perplexities. Rerunning goes on where it stopped.
"""

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import raveval
from raveval.types import Results

REFERENCE = ("transformers", "float32")
OTHERS = (("vllm", "float32"), ("vllm", "bfloat16"))
N_WORDS = 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("--output", type=Path, default=Path("runs/engine_agreement"))
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    wikitext = _first_words(arguments.data / "text" / "wikitext2.valid.raw", arguments.output)
    arc = str(arguments.data / "choice" / "ai2_arc_ARC-Easy_validation.jsonl")
    tasks: list[dict[str, Any]] = [
        {"task": "arc_easy", "name": "arc_0shot", "path": arc, "limit": 100},
        {"task": "arc_easy", "name": "arc_5shot", "path": arc, "limit": 100, "num_fewshot": 5},
        {"task": "squad", "path": str(arguments.data / "squad" / "dev-v1.1.json"), "limit": 50},
        {"task": "wikitext2", "path": str(wikitext)},
    ]
    found = {}
    for engine, dtype in (REFERENCE, *OTHERS):
        directory = arguments.output / f"{engine}-{dtype}"
        config = {
            "evaluate": {
                "model": {"path": arguments.model, "dtype": dtype, "max_model_len": 2048},
                "engine": engine,
                "tasks": tasks,
            },
            "run": {"output": str(directory)},
        }
        found[engine, dtype] = (directory, raveval.run(config, say=print))
    for other in OTHERS:
        print(f"\n{' '.join(other)} against {' '.join(REFERENCE)}")
        for task in tasks:
            name = task.get("name", task["task"])
            _compare(name, *found[REFERENCE], *found[other])


def _first_words(source: Path, folder: Path) -> Path:
    """Write the first words of a text, whole lines, and return the new file."""
    kept, n_words = [], 0
    for line in source.read_text(encoding="utf-8").splitlines(keepends=True):
        n_words += len(line.split())
        if n_words > N_WORDS:
            break
        kept.append(line)
    path = folder / source.name
    path.write_text("".join(kept), encoding="utf-8")
    return path


def _compare(task: str, a_dir: Path, a: Results, b_dir: Path, b: Results) -> None:
    ours, theirs = (_records(directory, task) for directory in (a_dir, b_dir))
    assert ours.keys() == theirs.keys()
    pairs = [(ours[id], theirs[id]) for id in sorted(ours)]
    if "prediction" in pairs[0][0]:
        flips = [x["id"] for x, y in pairs if x["prediction"] != y["prediction"]]
        print(f"  {task}: {len(pairs)} completions, {len(flips)} differ: {flips}")
    elif "predicted" in pairs[0][0]:
        _print_differences(task, _per_choice(pairs))
        for x, y in pairs:
            if x["predicted"] != y["predicted"]:
                margin = _margin(x)
                print(
                    f"    flip {x['id']}: {x['predicted']} -> {y['predicted']}, gold {x['gold']}, "
                    f"its margin was {margin:.4f}"
                )
    else:
        _print_differences(
            task, [((y["logprob_nats"] - x["logprob_nats"]), x["n_tokens"]) for x, y in pairs]
        )
    for metric, estimate in a.tasks[task].metrics.items():
        other = b.tasks[task].metrics[metric]
        if estimate.value is None or other.value is None:
            assert dataclasses.astuple(estimate) == dataclasses.astuple(other)
        elif metric in ("accuracy", "accuracy_raw", "exact_match", "f1") or "perp" in metric:
            print(
                f"    {metric}: {estimate.value:.6g} and {other.value:.6g}, "
                f"ratio - 1 = {other.value / estimate.value - 1 if estimate.value else 0:+.2e}"
            )


def _records(directory: Path, task: str) -> dict[str, dict[str, Any]]:
    files = sorted((directory / "records" / task).glob("*.parquet"))
    table = pa.concat_tables(pq.read_table(file, partitioning=None) for file in files)
    return {row["id"]: row for row in table.to_pylist()}


def _per_choice(pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> list[tuple[float, int]]:
    return [
        (b - a, n)
        for x, y in pairs
        for a, b, n in zip(x["logprob_nats"], y["logprob_nats"], x["n_tokens"], strict=True)
    ]


def _margin(record: dict[str, Any]) -> float:
    """Return by how much the best choice led under the primary scoring (per character or raw)."""
    lengths = record["n_chars"] if record["scoring"] == "per_char" else [1] * 99
    scores = sorted(a / n for a, n in zip(record["logprob_nats"], lengths, strict=False))
    return float(scores[-1] - scores[-2])


def _print_differences(task: str, differences: list[tuple[float, int]]) -> None:
    per_token = [abs(difference) / n for difference, n in differences]
    print(
        f"  {task}: {len(per_token)} log-likelihoods, per token |difference| max "
        f"{max(per_token):.2e}, mean {sum(per_token) / len(per_token):.2e} nats; of the sum max "
        f"{max(abs(difference) for difference, _ in differences):.2e}"
    )


if __name__ == "__main__":
    main()
