"""A sweep over six checkpoints against six runs one by one: wall seconds, and equal numbers.

    python -m tests.bench.sweep_speed FOLDER [--parallel N] [--only sweep|runs]

Writes five copies of the demo model to FOLDER, their weights disturbed less and less as training
goes on, and one that is cut short. Prints the seconds of both, their ratio, and the curve.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file, save_file

import raveval
from raveval import demo_model

STEPS = {100: 0.5, 200: 0.25, 300: 0.12, 400: 0.05, 600: 0.0}
"""Noise of each step, as a share of a weight matrix's own spread."""
BROKEN = 500
TASKS = ["demo_choice", "demo_qa", "demo_text"]


def main() -> None:
    """Time both and print the ratio; exit with 1 where numbers differ."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--only", choices=("sweep", "runs"))
    given = parser.parse_args()
    folder: Path = given.folder.absolute()
    write_checkpoints(folder / "training")
    base = {
        "evaluate": {"tasks": TASKS},
        "run": {"output": str(folder / "swept"), "cpus_per_replica": 2 / given.parallel},
    }
    pattern = str(folder / "training" / "step_*")
    sweep = {"base": base, "checkpoints": {"pattern": pattern}, "parallel": given.parallel}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    swept = singles = 0.0
    if given.only != "runs":
        shutil.rmtree(folder / "swept", ignore_errors=True)
        swept = seconds("sweep", str(folder / "sweep.yaml"), expected=3)
        again = seconds("sweep", str(folder / "sweep.yaml"), expected=3)
        print(f"sweep: {swept:.0f} s; again, with nothing but the broken one to do: {again:.0f} s")
    if given.only != "sweep":
        shutil.rmtree(folder / "single", ignore_errors=True)
        for step in sorted([*STEPS, BROKEN]):
            singles += run_alone(folder, step)
        print(f"six runs one by one, each with all cores: {singles:.0f} s")
    if swept and singles:
        print(f"ratio {swept / singles:.2f}")
        compare(folder)


def write_checkpoints(folder: Path) -> None:
    """Write the checkpoints that are not there yet."""
    model = demo_model.fetch(say=print)
    weights = load_file(model / "model.safetensors")
    for step, noise in {**STEPS, BROKEN: 0.0}.items():
        target = folder / f"step_{step}"
        if target.exists():
            continue
        shutil.copytree(model, target)
        draw = torch.Generator().manual_seed(step)
        disturbed = {name: with_noise(w, noise, draw) for name, w in weights.items()}
        save_file(disturbed, target / "model.safetensors", metadata={"format": "pt"})
        if step == BROKEN:
            with (target / "model.safetensors").open("r+b") as file:
                file.truncate(1_000_000)


def with_noise(weights: torch.Tensor, noise: float, draw: torch.Generator) -> torch.Tensor:
    exact = weights.float()
    added = noise * exact.std() * torch.randn(exact.shape, generator=draw)
    return (exact + added).to(weights.dtype)


def run_alone(folder: Path, step: int) -> float:
    config = {
        "evaluate": {"model": {"path": str(folder / "training" / f"step_{step}")}, "tasks": TASKS},
        "run": {"output": str(folder / "single" / f"step_{step}")},
    }
    path = folder / "single.yaml"
    path.write_text(yaml.safe_dump(config))
    return seconds("run", str(path), expected=2 if step == BROKEN else 0)


def seconds(*arguments: str, expected: int) -> float:
    began = time.monotonic()
    command = [sys.executable, "-m", "raveval", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    took = time.monotonic() - began
    if run.returncode != expected:
        print(f"{' '.join(arguments)}: exit code {run.returncode}, expected {expected}")
        print(run.stderr[-3000:])
    return took


def compare(folder: Path) -> None:
    """Print both curves; a difference ends the program with 1."""
    differ = False
    for step in STEPS:
        found: list[Any] = []
        for kind in ("swept", "single"):
            tasks = raveval.load_results(folder / kind / f"step_{step}").tasks
            found.append({name: task.metrics for name, task in tasks.items()})
        differ |= found[0] != found[1]
        numbers = [
            f"{task} {metric} {found[0][task][metric].value:.4g}"
            for task, metric in (("demo_choice", "accuracy"), ("demo_text", "word_perplexity"))
        ]
        print(f"step {step}: {', '.join(numbers)}, {'equal' if found[0] == found[1] else 'DIFFER'}")
    sys.exit(int(differ))


if __name__ == "__main__":
    main()
