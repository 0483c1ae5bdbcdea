"""What a run of a million examples needs beside its engine: seconds, CPUs and memory, by phase.

    python -m tests.bench.million_examples [ROWS…] [--kinds choice answers] [--phases PHASE…]

Rows are generated as JSONL, for a task of multiple choice and one of question answering, and a run
on the scripted engine is made of each, every phase in a process of its own:

    plan     `raveval plan`: what is asked is rendered and measured
    run      `raveval run`, which plans again, asks, and reports
    report   the receipts are reduced, and the report is drawn
    again    `raveval run` of the finished run

Printed for each: seconds by the clock and CPU seconds of the driver, its peak resident memory, and
the peak of the workers' own memory, all replicas together.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from raveval.periodic import periodically
from tests.bench.timing import replicas_below

MEBIBYTE = 1 << 20
SECONDS_BETWEEN_LOOKS = 0.5
TASKS = {
    "choice": (
        "protocol: multiple_choice\nsource: {path: choice.jsonl}\n"
        'prompt: "Question: {{ question }}\\nAnswer:"\nchoices: options\ngold: right\n'
    ),
    "answers": (
        "protocol: question_answering\nsource: {path: answers.jsonl}\n"
        'prompt: "Question: {{ question }}\\nAnswer:"\nreferences: answers\n'
        "sampling: {max_output_tokens: 16}\n"
    ),
}
PHASES = ("plan", "run", "report", "again")
REPORT = (
    "import sys; from raveval.reduce import reduce_run; from raveval.report import to_html; "
    "from raveval.store import RunDirectory; directory = RunDirectory(sys.argv[1]); "
    "to_html(reduce_run(directory, directory.manifest()))"
)


@dataclass(slots=True)
class Cost:
    """What a phase took; memory in MiB."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    driver_mib: float = 0.0
    workers_mib: float = 0.0


def main() -> None:
    """Print one line for each number of rows, kind and phase."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rows", type=int, nargs="*", default=[100_000, 1_000_000])
    parser.add_argument("--kinds", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--phases", nargs="+", choices=PHASES, default=PHASES)
    parser.add_argument("--num-fewshot", type=int, default=0)
    parser.add_argument("--shard-size", type=int, default=32)
    given = parser.parse_args()
    for n_rows in given.rows:
        for kind in given.kinds:
            with tempfile.TemporaryDirectory(prefix="raveval-bench-") as folder:
                write_rows(Path(folder), kind, n_rows)
                for phase, command in phases(Path(folder), kind, given):
                    if phase not in given.phases:
                        continue
                    cost = cost_of(command)
                    print(
                        f"{n_rows:>10,} {kind:<8} {phase:<7} {cost.seconds:8.1f} s, "
                        f"CPU {cost.cpu_seconds:8.1f} s, driver {cost.driver_mib:6.0f} MiB, "
                        f"workers {cost.workers_mib:6.0f} MiB",
                        flush=True,
                    )


def write_rows(folder: Path, kind: str, n_rows: int) -> None:
    """Write a task file, and rows for it that are all different."""
    (folder / f"{kind}.yaml").write_text(TASKS[kind])
    with (folder / f"{kind}.jsonl").open("w") as file:
        for i in range(n_rows):
            row: dict[str, object] = {
                "id": f"q{i}",
                "question": f"How many pages are in book {i} of the library of {i % 977} rooms?",
            }
            if kind == "choice":
                row |= {"options": [f"{i + k} of them" for k in range(4)], "right": i % 4}
            else:
                row |= {"answers": [f"{i} pages", str(i)]}
            file.write(json.dumps(row) + "\n")


def phases(folder: Path, kind: str, given: argparse.Namespace) -> Iterator[tuple[str, list[str]]]:
    """Yield each phase's name and command."""
    config = {
        "evaluate": {
            "model": {"id": "scripted"},
            "engine": "scripted",
            "tasks": [{"task": str(folder / f"{kind}.yaml"), "num_fewshot": given.num_fewshot}],
        },
        "run": {"output": str(folder / "run"), "shard_size": given.shard_size},
    }
    (folder / "run.yaml").write_text(json.dumps(config))
    raveval, asked = [sys.executable, "-m", "raveval"], str(folder / "run.yaml")
    yield "plan", [*raveval, "plan", asked]
    yield "run", [*raveval, "run", asked]
    yield "report", [sys.executable, "-c", REPORT, str(folder / "run")]
    yield "again", [*raveval, "run", asked]


def cost_of(command: list[str]) -> Cost:
    """Run a command and return what it cost.

    The driver's peak is the kernel's; the workers are looked at twice a second, and their memory is
    what is theirs alone (USS): Ray's shared store is nobody's.
    """
    cost, start = Cost(), time.perf_counter()
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(command, stdout=said, stderr=said) as process,
    ):
        with _watched(process.pid, cost):
            # The usage of this one child: that of all children would keep an earlier one's peak.
            _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            raise SystemExit(f"{' '.join(command)}: {said.read().decode()[-2000:]}")
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB elsewhere
    cost.seconds = time.perf_counter() - start
    cost.cpu_seconds = usage.ru_utime + usage.ru_stime
    cost.driver_mib = usage.ru_maxrss * unit / MEBIBYTE
    return cost


@contextmanager
def _watched(pid: int, cost: Cost) -> Iterator[None]:
    """Note the most memory that a driver's workers have while the block runs."""

    def look() -> None:
        cost.workers_mib = max(cost.workers_mib, _workers_bytes(pid) / MEBIBYTE)

    with periodically(look, seconds=SECONDS_BETWEEN_LOOKS):
        yield


def _workers_bytes(pid: int) -> int:
    total = 0
    try:
        for replica in replicas_below(psutil.Process(pid)):
            total += replica.memory_full_info().uss
    except psutil.Error:
        pass  # ended between two looks
    return total


if __name__ == "__main__":
    main()
