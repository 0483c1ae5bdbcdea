"""How fast the engine is: against vLLM alone and lm-eval, with and without entropies, to start.

    python -m tests.bench.engine_speed MODEL DATA [--lm-eval PYTHON] [--only PART ...]

prints, in one run, as ratios of seconds on the clock and of CPU seconds (of the process and those
below it; they count where the machine has other things to do):

- raw: a replica's worker (reading, encoding, scoring and commits included) against vLLM given all
  prompts at once, in turns, both loaded before and with the same settings; ARC-Easy 0- and 5-shot,
  SQuAD. For scoring vLLM alone is asked for log-probabilities of the prompts and may share
  contexts; to only read the same prompts is printed too, and so are the worker's own requests
  handed to its engine all at once: what a replica loses around its engine.
- lm-eval: against its vLLM backend, once with its defaults and once with our dtype, threads and
  prefix cache, on the same few-shot prompts: lm-eval is given the rendered ones of the run as a
  zero-shot task. Seconds of its requests alone; its start is not counted.
- entropy: WikiText-2 with entropies, with sums alone, and with vLLM's own log-probabilities.
- start: seconds from the start of a process to the first reply, with its parts.

`--lm-eval` is the interpreter of an environment of its own; without it that part is left out. Where
PYTHON is the interpreter that runs this:

    PYTHON -m venv lm_eval; packages=$(echo lm_eval/lib/python3*/site-packages)
    PYTHON -c "import sysconfig; print(sysconfig.get_path('purelib'))" > $packages/shared.pth
    lm_eval/bin/pip install lm-eval==0.4.13 datasets
    mkdir $packages/vllm-0.32.0+cpu.dist-info  # on CPUs: lm-eval asks for a distribution of that
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' \
        > $packages/vllm-0.32.0+cpu.dist-info/METADATA  # name, and vLLM reads the platform from it
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raveval.engines import _vllm_start
from tests.bench.engine_raw import Raw
from tests.bench.engine_sides import Asked, Ours, Side, Spent

PARTS = ("raw", "entropy", "start", "lm-eval")
RAW_TASKS = ("arc_0shot", "arc_5shot", "squad")
N_WORDS = 2000
TOKEN_NATS = 2e-4
"""Between two ways to the same float32 log-likelihood, per token: as in test_vllm_engine."""
HALF_TOKEN_NATS = 0.5
"""Between bfloat16 and float32, per token: engine_agreement finds 0.38."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("--lm-eval", help="the interpreter of an environment that has it")
    parser.add_argument("--examples", type=int, default=100, help="of each task")
    parser.add_argument("--rounds", type=int, default=3, help="of which medians are taken")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--tasks", nargs="+", choices=RAW_TASKS, default=RAW_TASKS, help="of raw")
    given = parser.parse_args()
    print(f"{_vllm_start.n_threads()} threads, load of the machine {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(prefix="raveval-bench-") as folder:
        if {"raw", "entropy", "lm-eval"} & set(given.only):
            _with_engine(given, Path(folder))
    if "start" in given.only:
        _start(given.model, given.rounds)


def _with_engine(given: argparse.Namespace, folder: Path) -> None:
    ours = Side(Ours, _config(given.model, given.data, given.examples, folder), folder)
    try:
        if "raw" in given.only:
            _against_vllm(given, ours)
        if "entropy" in given.only:
            _entropy(ours, given.rounds)
        if "lm-eval" in given.only:
            _against_lm_eval(given, ours, folder)
    finally:
        ours.close()


def _config(model: str, data: Path, n: int, folder: Path) -> dict[str, Any]:
    text = (data / "text" / "wikitext2.valid.raw").read_text(encoding="utf-8")
    words = text.split(" ")[:N_WORDS]
    (folder / "text.txt").write_text(" ".join(words), encoding="utf-8")
    arc = str(data / "choice" / "ai2_arc_ARC-Easy_validation.jsonl")
    squad = str(data / "squad" / "dev-v1.1.json")
    tasks: list[dict[str, Any]] = [
        {"task": "arc_easy", "name": "arc_0shot", "path": arc, "limit": n},
        {"task": "arc_easy", "name": "arc_5shot", "path": arc, "limit": n, "num_fewshot": 5},
        {"task": "squad", "path": squad, "limit": n},
        {"task": "wikitext2", "path": str(folder / "text.txt")},
    ]
    return {
        "evaluate": {"model": {"path": model, "max_model_len": 2048}, "tasks": tasks},
        "run": {"output": str(folder / "run")},
    }


def _against_vllm(given: argparse.Namespace, ours: Side) -> None:
    settings = ours.call("settings")
    print(f"\nvLLM alone, given all prompts at once; both with {settings}")
    raw = Side(Raw, given.model, settings)
    try:
        for task in given.tasks:
            n_requests, prompts = ours.call("record", task)
            took = _in_turns(task, ours, raw, prompts, given.rounds)
            _print_raw(task, given.examples, n_requests, prompts, took)
    finally:
        raw.close()


def _in_turns(
    task: str, ours: Side, raw: Side, prompts: list[Asked], rounds: int
) -> dict[str, list[Spent]]:
    """Have each side do a task again and again, in turns; what is first changes."""
    ways: dict[str, tuple[Side, str, tuple[Any, ...]]] = {
        "ours": (ours, "run", (task,)),
        "vLLM alone": (raw, "run", (prompts, "logprobs")),
        "our requests, all at once": (ours, "replay", ()),
    }
    if task != "squad":
        ways["vLLM alone, only reading"] = (raw, "run", (prompts, "prefill"))
    took: dict[str, list[Spent]] = {name: [] for name in ways}
    for turn in range(rounds):
        for name in list(ways)[:: 1 if turn % 2 == 0 else -1]:
            side, method, arguments = ways[name]
            took[name].append(side.call(method, *arguments))
    return took


def _print_raw(
    task: str, n: int, n_requests: int, prompts: list[Asked], took: dict[str, list[Spent]]
) -> None:
    n_tokens = sum(len(prompt.token_ids) for prompt in prompts)
    print(
        f"  {task}: {n} examples, {len(prompts)} prompts of {n_tokens} tokens; we send vLLM "
        f"{n_requests} requests"
    )
    for name, times in took.items():
        wall, cpu = _wall(times), _cpu(times)
        ratios = (
            ""
            if name == "ours"
            else f"; ours is {wall / _wall(took['ours']):.3f} times as fast, by CPU seconds "
            f"{cpu / _cpu(took['ours']):.3f}"
        )
        print(f"    {name}: {n / wall:.2f} items/s, {wall:.2f} s, {cpu:.2f} CPU s{ratios}")


def _wall(times: Sequence[Spent]) -> float:
    return statistics.median(each.wall_seconds for each in times)


def _cpu(times: Sequence[Spent]) -> float:
    return statistics.median(each.cpu_seconds for each in times)


def _entropy(ours: Side, rounds: int) -> None:
    ways = ("entropy", "sums", "plain")
    took: dict[str, list[Spent]] = {way: [] for way in ways}
    ours.call("answer", "arc_0shot", "entropy")  # what comes first is slower
    for turn in range(rounds):
        for way in ways[:: 1 if turn % 2 == 0 else -1]:
            took[way].append(ours.call("answer", "wikitext2", way))
    wall, cpu = _wall(took["entropy"]), _cpu(took["entropy"])
    print(f"\nentropy over {N_WORDS} words of WikiText-2: {wall:.2f} s, {cpu:.2f} CPU s")
    for way, said in (("sums", "the same without it"), ("plain", "vLLM's own log-probabilities")):
        print(
            f"  {said}: {_wall(took[way]):.2f} s, {_cpu(took[way]):.2f} CPU s; with entropy "
            f"{wall / _wall(took[way]):.3f} times that, by CPU seconds {cpu / _cpu(took[way]):.3f}"
        )


def _start(model: str, rounds: int) -> None:
    found = []
    for _ in range(rounds):
        command = [sys.executable, "-m", "tests.bench.engine_start", model, str(time.time())]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    print("\nfrom the start of a process to the engine's first reply, medians:")
    for phase in found[0]:
        wall, cpu = (statistics.median(each[phase][i] for each in found) for i in (0, 1))
        print(f"  {phase}: {wall:.2f} s, {cpu:.2f} CPU s")


def _against_lm_eval(given: argparse.Namespace, ours: Side, folder: Path) -> None:
    if given.lm_eval is None:
        print("\nlm-eval: left out, no --lm-eval (see the head of this file)")
        return
    examples = ours.call("choices", "arc_5shot")
    prompts = folder / "prompts.jsonl"
    keys = ("query", "choices", "gold")
    prompts.write_text("".join(json.dumps({k: e[k] for k in keys}) + "\n" for e in examples))
    settings = ours.call("settings")
    room = {"kv_cache_memory_bytes": settings["kv_cache_memory_bytes"]}  # else all memory
    alike = {key: settings[key] for key in ("dtype", "max_model_len", "block_size")}
    alike |= {"enable_prefix_caching": True, "enforce_eager": True, **room}
    threads = _vllm_start.n_threads()
    bound = {"VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}", "OMP_NUM_THREADS": str(threads)}
    print(f"\nlm-eval on {len(examples)} ARC-Easy examples, 5-shot, the same prompts on both sides")
    ways: list[tuple[str, str, dict[str, Any], dict[str, str], float]] = [
        ("our dtype, threads and prefix cache", "auto", alike, bound, TOKEN_NATS),
        ("its defaults", "1", room, {}, HALF_TOKEN_NATS),
    ]
    times = [ours.call("run", "arc_5shot")]
    for said, batch_size, arguments, environment, tolerance in ways:
        output = folder / "lm_eval.json"
        script = str(Path(__file__).with_name("engine_lm_eval.py"))
        command = [given.lm_eval, script, given.model, str(prompts), str(output), batch_size]
        done = subprocess.run(
            [*command, json.dumps(arguments)],
            env={**os.environ, **environment, "HF_HOME": str(folder), "HF_HUB_OFFLINE": "1"},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"lm-eval failed:\n{done.stderr[-3000:]}")
        times.append(ours.call("run", "arc_5shot"))
        theirs = json.loads(output.read_text())
        wall, cpu = _wall(times), _cpu(times)
        print(
            f"  {said} (batch size {batch_size}): {theirs['wall_seconds']:.1f} s, "
            f"{theirs['cpu_seconds']:.1f} CPU s, {theirs['whole_seconds']:.1f} s with its start; "
            f"ours {wall:.2f} s, {cpu:.2f} CPU s: {theirs['wall_seconds'] / wall:.2f} times as "
            f"fast, by CPU seconds {theirs['cpu_seconds'] / cpu:.2f}"
        )
        _compare(examples, theirs["logprob_nats"], tolerance)


def _compare(examples: list[dict[str, Any]], theirs: list[list[float]], tolerance: float) -> None:
    """Print how far log-likelihoods differ, and every example whose likeliest choice does."""
    differences = [
        abs(a - b) / n
        for example, scores in zip(examples, theirs, strict=True)
        for a, b, n in zip(example["logprob_nats"], scores, example["n_tokens"], strict=True)
    ]
    is_within = max(differences) <= tolerance
    print(
        f"    {len(differences)} log-likelihoods, per token |difference| max "
        f"{max(differences):.2e}, mean {statistics.mean(differences):.2e} nats: "
        f"{'within' if is_within else 'BEYOND'} {tolerance:g}"
    )
    for example, scores in zip(examples, theirs, strict=True):
        ours = example["logprob_nats"]
        a, b = (max(range(len(s)), key=s.__getitem__) for s in (ours, scores))
        if a != b:
            print(
                f"    flip {example['id']}: {a} here, {b} there, gold {example['gold']}; by "
                f"{ours[a] - ours[b]:.4f} nats here, {scores[b] - scores[a]:.4f} there"
            )


if __name__ == "__main__":
    main()
