"""One replica with all cores against one replica for each core: equal numbers, and at what rates.

    python -m tests.bench.replica_scaling MODEL DATA [--limit N] [--output DIR]

evaluates ARC-Easy (5-shot) and SQuAD with vLLM in float32 both ways, twice in turn, and prints
wall seconds with all that loading takes, tokens per second of each task while it is answered, and
whether every metric has the same bits.
"""

import argparse
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import raveval
from raveval.types import Results


def main() -> None:
    """Run and print; exit with 1 where a number differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("--limit", type=int, default=60)
    parser.add_argument("--output", type=Path, default=Path("runs/replica_scaling"))
    given = parser.parse_args()
    n_cores = len(os.sched_getaffinity(0))
    arc = str(given.data / "choice" / "ai2_arc_ARC-Easy_validation.jsonl")
    squad = str(given.data / "squad" / "dev-v1.1.json")
    tasks = [
        {"task": "arc_easy", "path": arc, "limit": given.limit, "num_fewshot": 5},
        {"task": "squad", "path": squad, "limit": given.limit},
    ]
    found: list[Results] = []
    for turn in range(2):
        for replicas in (1, n_cores):
            directory = given.output / f"{replicas}-{turn}"
            shutil.rmtree(directory, ignore_errors=True)
            config: dict[str, Any] = {
                "evaluate": {
                    "model": {"path": given.model, "dtype": "float32", "max_model_len": 2048},
                    "tasks": tasks,
                },
                "run": {
                    "output": str(directory),
                    "replicas": replicas,
                    "cpus_per_replica": n_cores / replicas,
                    "shard_size": 5,
                },
            }
            began = time.monotonic()
            results = raveval.run(config)
            wall = time.monotonic() - began
            found.append(results)
            print(
                f"{replicas} x {n_cores // replicas} cores: {rates(results, wall, replicas)}",
                flush=True,
            )
    first, *others = (numbers(results) for results in found)
    are_equal = all(other == first for other in others)
    print(f"all metrics of all runs: {'the same bits' if are_equal else 'DIFFER'}")
    sys.exit(int(not are_equal))


def rates(results: Results, wall: float, replicas: int) -> str:
    """Return seconds and rates in words; a task's engine seconds are summed over replicas."""
    parts = [f"{wall:.0f} s in all"]
    for name, task in results.tasks.items():
        n_tokens = task.usage.n_prompt_tokens + task.usage.n_output_tokens
        rate = n_tokens / (task.usage.engine_seconds / replicas)
        parts.append(f"{name} {rate:.0f} tokens/s while answering")
    return ", ".join(parts)


def numbers(results: Results) -> dict[str, Any]:
    """Return all metrics of all tasks."""
    return {name: (task.metrics, task.notes) for name, task in results.tasks.items()}


if __name__ == "__main__":
    main()
