"""Runs on a cluster whose parts are killed at random, against one that was left in peace.

    python -m tests.chaos [--rounds 200] [--seed 1] [--model DIR]

A round is one kill, by SIGKILL: of a replica, of a node with all that runs on it, of the driver, or
of everything at once. It comes at a drawn moment after a drawn number of commits. A killed node is
replaced, a killed driver is started again, and a killed cluster is followed by another one; when a
run is over the next one begins. Each must end by itself with exit code 0, and hold every example
once, with the records and the numbers of the quiet run, bit for bit. The seed decides what is
killed after how many commits; what else is under way at that moment is the machine's luck.

The scripted engine answers, and grades a third of the examples; with `--model` vLLM does, and no
judge.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from typing_extensions import override

from cluster import local
from raveval.types import Completion, Generate, Reply, Request
from tests.end_to_end.conftest import numbers

KINDS = ("replica", "node", "driver") * 3 + ("everything",)
"""What is killed, drawn without putting back: any ten rounds hold all of it."""
CPUS = (1, 1)
"""Of the nodes that replicas run on; the head has none for them."""
STUCK_SECONDS = 240.0
"""Without a commit for so long, a run is taken to hang."""
LONGEST_PAUSE = 0.5
SECONDS_BETWEEN_LOOKS = 10.0
"""At the nodes: whether one has ended that nobody killed."""
_COMMITS = ("replies", "verdicts", "states")

Config = dict[str, Any]
Say = Callable[[str], None]


@dataclass(slots=True)
class Tally:
    """What was killed, and what came of it."""

    kills: Counter[str] = field(default_factory=Counter)
    n_runs: int = 0
    n_examples: int = 0
    n_lost: int = 0
    n_doubled: int = 0
    n_other_results: int = 0
    n_not_started: int = 0
    gave_up: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether all runs ended by themselves with the results of the quiet one."""
        return not (self.n_lost or self.n_doubled or self.n_other_results or self.gave_up)

    @override
    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {n}" for kind, n in sorted(self.kills.items()))
        return (
            f"{self.kills.total()} kills ({kinds}) in {self.n_runs} runs, {self.n_examples} "
            f"examples: {self.n_lost} lost, {self.n_doubled} doubled, {self.n_other_results} runs "
            f"with other results, {len(self.gave_up)} that gave up"
            + f"; {self.n_not_started} nodes that Ray did not start in time"
            * bool(self.n_not_started)
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run made: the numbers of its results, and its records by task, in order of ids."""

    numbers: str
    records: dict[str, pa.Table]

    @classmethod
    def of(cls, directory: Path) -> Outcome:
        """Read a finished run."""
        records = {}
        for task in sorted((directory / "records").iterdir()):
            files = sorted(task.glob("*.parquet"))
            tables = [pq.read_table(file, partitioning=None) for file in files]
            records[task.name] = pa.concat_tables(tables).sort_by("id").replace_schema_metadata()
        return cls(numbers(directory), records)

    @property
    def ids(self) -> Counter[tuple[str, str]]:
        """How often each example of each task is there."""
        return Counter(
            (task, id) for task, table in self.records.items() for id in table["id"].to_pylist()
        )


class Chaos:
    """A cluster, the run that is under way on it, and what kills them."""

    def __init__(self, config: Config, folder: Path, seed: int, say: Say) -> None:
        self.tally = Tally()
        self._config = config
        self._folder = folder
        self._rng = random.Random(seed)
        self._say = say
        self._output = folder / "quiet"
        self._driver: subprocess.Popen[bytes] | None = None
        self._cluster_holder = contextlib.ExitStack()
        self._cluster = self._new_cluster()

    def close(self) -> None:
        """End whatever is under way."""
        self._kill_driver()
        self._cluster_holder.close()

    def strike(self, n_rounds: int) -> Tally:
        """Carry out a run in peace, then others under so many kills, and compare.

        Raises:
            AssertionError: the quiet run fails, or a run hangs.
        """
        self._drive()
        self._goes_on(None)
        assert not self.tally.gave_up, f"the quiet run failed: {self.tally.gave_up[0]}"
        expected, n_commits = Outcome.of(self._output), self._n_commits()
        self._say(f"quiet run: {expected.ids.total()} examples, {n_commits} commits")
        kinds: list[str] = []
        self._next_run()
        while self.tally.kills.total() < n_rounds:
            kinds = kinds or self._rng.sample(KINDS, len(KINDS))
            wanted = self._n_commits() + self._rng.randint(1, n_commits // 5)
            pause = self._rng.random() * LONGEST_PAUSE
            if self._goes_on(wanted):
                time.sleep(pause)
                self._kill(kinds.pop())
            else:
                self._finish(expected)
                self._next_run()
        self._goes_on(None)
        self._finish(expected)
        return self.tally

    def _kill(self, kind: str) -> None:
        if kind == "replica" and (process := self._replica()) is not None:
            process.kill()
        elif kind == "node":
            local.replace_node(self._cluster, self._rng.randint(1, len(CPUS)))
        elif kind == "driver":
            self._kill_driver()
            self._drive()
        elif kind == "everything":
            self._kill_driver()
            for number in range(1 + len(CPUS)):
                local.kill_node(self._cluster, number)
            self._cluster_holder.close()
            self._cluster = self._new_cluster()
            self._drive()
        else:
            return  # no replica: it is between two of them
        self.tally.kills[kind] += 1
        self._say(f"kill {self.tally.kills.total()}: {kind}, after {self._n_commits()} commits")

    def _replica(self) -> psutil.Process | None:
        """Return one of the replicas that have loaded their model and live."""
        living = []
        for report in sorted((self._output / "workers").glob("*.json")):
            with contextlib.suppress(psutil.NoSuchProcess, OSError, ValueError):
                content = json.loads(report.read_text())
                process = psutil.Process(content["process"])
                is_ray = "ray::" in process.name()
                is_ray = is_ray or any("ray::" in word for word in process.cmdline()[:1])
                if is_ray and "loaded" in content:
                    living.append(process)
        return self._rng.choice(living) if living else None

    def _goes_on(self, wanted: int | None) -> bool:
        """Wait until a run has so many commits, or is over; return whether it still goes on.

        A driver that gives up is noted, and started again as its user would.
        """
        seen, since = self._n_commits(), time.monotonic()
        next_look = since + SECONDS_BETWEEN_LOOKS
        while True:
            n = self._n_commits()
            if wanted is not None and n >= wanted:
                return True
            code = self._exit_code()
            if code == 0:
                return False
            if code is not None:
                self.tally.gave_up.append(self._last_words())
                self._say(f"gave up: {self.tally.gave_up[-1]}")
                assert len(self.tally.gave_up) < 5, self._last_words()
                self._drive()
            if n != seen:
                seen, since = n, time.monotonic()
            if time.monotonic() > next_look:
                self._replace_what_is_down()
                next_look = time.monotonic() + SECONDS_BETWEEN_LOOKS
            silent = time.monotonic() - since
            assert silent < STUCK_SECONDS, f"no commit for {silent:.0f} s: {self._last_words()}"
            time.sleep(0.02)

    def _replace_what_is_down(self) -> None:
        """Start nodes again that Ray gave up, as it does where the machine is too busy."""
        for number in range(1, 1 + len(CPUS)):
            if local.is_down(self._cluster, number):
                self.tally.n_not_started += 1
                self._say(f"node {number} did not come up: another one")
                local.replace_node(self._cluster, number)

    def _finish(self, expected: Outcome) -> None:
        """Compare a run that is over with the quiet one."""
        found = Outcome.of(self._output)
        tally, ids = self.tally, found.ids
        tally.n_runs += 1
        tally.n_examples += expected.ids.total()
        tally.n_lost += (expected.ids - ids).total()
        tally.n_doubled += (ids - expected.ids).total()
        if found != expected:
            tally.n_other_results += 1
            kept = self._folder / f"other-{tally.n_runs}"
            shutil.copytree(self._output, kept)
            self._say(f"run {tally.n_runs} differs from the quiet one, see {kept}")

    def _next_run(self) -> None:
        if self._output.name != "quiet":
            shutil.rmtree(self._output)
        self._output = self._folder / f"run-{self.tally.n_runs + 1}"
        self._drive()

    def _drive(self) -> None:
        """Start a driver on the run that is under way, new or not."""
        address = (self._cluster.directory / local.DOOR).read_text().strip()
        run = {**self._config["run"], "output": str(self._output), "address": address}
        path = self._folder / "run.yaml"
        path.write_text(yaml.safe_dump({**self._config, "run": run}))
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        with (self._folder / "driver.log").open("wb") as log:
            self._driver = subprocess.Popen(
                [sys.executable, "-m", "raveval", "run", str(path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**kept, **self._cluster.variables},
                start_new_session=True,
            )

    def _kill_driver(self) -> None:
        if self._driver is not None:
            self._driver.kill()
            self._driver.wait()

    def _exit_code(self) -> int | None:
        assert self._driver is not None
        return self._driver.poll()

    def _last_words(self) -> str:
        return (self._folder / "driver.log").read_text(errors="replace")[-2000:]

    def _n_commits(self) -> int:
        return sum(1 for layer in _COMMITS for _ in (self._output / layer).glob("*/*"))

    def _new_cluster(self) -> local.Cluster:
        return self._cluster_holder.enter_context(local.running(cpus=CPUS))


def strike(
    folder: Path, *, n_rounds: int, seed: int, model: Path | None = None, say: Say = print
) -> Tally:
    """Kill at random, so many times; `folder` holds the runs, and keeps those that differ."""
    chaos = Chaos(make_config(folder, model), folder, seed, say)
    try:
        return chaos.strike(n_rounds)
    finally:
        chaos.close()


def make_config(folder: Path, model: Path | None) -> Config:
    """Write the tasks of a run, and return its config."""
    n = 60 if model is None else 24
    asked = [f"What comes after {i} and before {i + 2}?" for i in range(n)]
    rows = [
        {"question": text, "answers": [str(i + 1)], "choices": [str(i + 1), str(i + 3), "none"]}
        for i, text in enumerate(asked)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shown = {"source": {"path": "rows.jsonl"}, "prompt": "Question: {{ question }}\nAnswer:"}
    tasks: dict[str, Config] = {
        "choices": {"protocol": "multiple_choice", **shown, "choices": "choices", "gold": "0"},
        "answers": {
            "protocol": "question_answering",
            **shown,
            "references": "answers",
            "sampling": {"max_output_tokens": 16},
        },
    }
    evaluate: Config = {}
    if model is None:
        engine = {"name": "scripted", "latency_seconds": 0.4}
        evaluate["judge"] = {
            "model": "scripted",
            "engine": {**engine, "script": "tests.chaos:grades"},
        }
        template = "{{ question }}\n{{ response }}\nFeedback:"
        tasks["graded"] = {
            "protocol": "open_generation",
            **shown,
            "grading": {"plain": True, "template": template},
        }
    else:
        engine = {"name": "vllm"}
    for name, content in tasks.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content))
    evaluate |= {
        "model": {"id": "scripted"}
        if model is None
        else {"path": str(model), "max_model_len": 512},
        "engine": engine,
        "tasks": [str(folder / f"{name}.yaml") for name in tasks],
    }
    placed = {"replicas": len(CPUS), "cpus_per_replica": 1}
    # A node that was killed is waited for, as where an autoscaler brings another.
    waiting = {"autoscaling": True, "gpus_per_replica": 0}
    run = {**placed, **waiting, "judge": placed, "shard_size": 2, "examples_in_flight": 8}
    return {"evaluate": evaluate, "run": run}


def grades(request: Request) -> Reply:
    """Grade as a digest of the question, the answer and the seed says."""
    assert isinstance(request, Generate)
    asked = json.dumps([request.prompt, request.sampling.seed], default=asdict)
    score = 1 + hashlib.blake2b(asked.encode(), digest_size=1).digest()[0] % 5
    return Completion(f"So. [RESULT] {score}", "stop", n_prompt_tokens=9, n_output_tokens=4)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", type=Path, help="a checkpoint, for vLLM")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the cluster is ended first
    folder = Path(tempfile.mkdtemp(prefix="raveval-chaos-"))
    tally = strike(folder, n_rounds=given.rounds, seed=given.seed, model=given.model)
    print(tally)
    if not tally.is_clean:
        sys.exit(f"not what the quiet run made; see {folder}")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
