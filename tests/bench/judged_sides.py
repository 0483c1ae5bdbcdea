"""Runs an evaluator both ways, and notes what its model was given where it arrived.

What is noted stays in the output folder, so that a check that is started again compares what is
there and does what is missing.
"""

import json
import time
import urllib.request
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import raveval
from raveval.types import ModelRef, Prompt, Results, Sampling
from tests.bench.judged_run import JudgedTask, read_task
from tests.bench.observed_wire import Wire
from tests.openai_server import vllm_server

CONCURRENCY = 32
"""Prompts that the server has at the same time: all of them fit into one of its steps."""


@dataclass(frozen=True)
class Given:
    """What a model was given for one attempt, as seen where it arrived.

    `counted` and `read` are the prompt's tokens as the server counts and names them.
    """

    token_ids: tuple[int, ...]
    sampling: Sampling
    counted: int | None = None
    read: tuple[int, ...] | None = None


Asked = tuple[int | None, float]
"""Seed and temperature, which tell the attempts of a run apart."""


@dataclass(frozen=True)
class Side:
    """One of the two ways, after its run.

    `seconds` is the wall time of the session that finished it. `readings` are the token ids that
    the server itself makes of prompts (see `reading_key`), with its own template and tokenizer.
    """

    name: str
    results: Results
    seconds: float
    tasks: Mapping[str, JudgedTask]
    given: Mapping[Asked, list[Given]]
    readings: Mapping[str, tuple[int, ...]]


def in_replicas(model: ModelRef, entries: list[dict[str, Any]], output: Path) -> Side:
    """Return the side of the engine vllm."""
    notes = output / "replicas.jsonl"
    engine = {"name": "tests.bench.observed_vllm", "notes": str(notes.absolute())}
    results, seconds = _run(model, engine, entries, output / "replicas")
    given = defaultdict(list)
    for line in notes.read_text(encoding="utf-8").splitlines():
        note = json.loads(line)
        if note["seed"] is not None:  # else a question of the engine to itself
            given[note["seed"], note["temperature"]].append(_given(note))
    read = {name: read_task(output / "replicas", name, t) for name, t in results.tasks.items()}
    return Side("vllm in the replicas", results, seconds, read, given, {})


def on_server(model: ModelRef, entries: list[dict[str, Any]], output: Path) -> Side:
    """Return the side of the engine http and vLLM's own server."""
    readings_path = output / "readings.json"
    if not readings_path.exists():
        _ask_server(model, entries, output, readings_path)
    results, seconds = _results(output / "server")
    given = defaultdict(list)
    for line in (output / "server.jsonl").read_text(encoding="utf-8").splitlines():
        note = json.loads(line)
        asked = note["asked"]
        answered = note["answered"] if note["status"] == 200 else None
        given[asked["seed"], asked["temperature"]].append(_given(asked, answered))
    read = {name: read_task(output / "server", name, t) for name, t in results.tasks.items()}
    readings = json.loads(readings_path.read_text(encoding="utf-8"))
    return Side(
        "http, vLLM's server",
        results,
        seconds,
        read,
        given,
        {key: tuple(token_ids) for key, token_ids in readings.items()},
    )


def _ask_server(
    model: ModelRef, entries: list[dict[str, Any]], output: Path, readings_path: Path
) -> None:
    assert model.path is not None
    assert model.max_model_len is not None
    began = time.monotonic()
    served = vllm_server(
        Path(model.path),
        output / "server.log",
        max_model_len=model.max_model_len,
        kv_cache_bytes=2**31,
        step_tokens=CONCURRENCY * model.max_model_len,
    )
    with served as url, Wire(url, output / "server.jsonl") as wire:
        print(f"vLLM's server is up after {time.monotonic() - began:.0f} s", flush=True)
        engine: dict[str, Any] = {"name": "http", "base_url": wire.url, "api": "completions"}
        engine |= {"concurrency": CONCURRENCY}
        results, _ = _run(model, engine, entries, output / "server")
        readings = {
            reading_key(attempt.request.prompt): attempt.request.prompt
            for name, task in results.tasks.items()
            for attempt in read_task(output / "server", name, task).attempts.values()
        }
        found = {key: _own_reading(url, model.path, prompt) for key, prompt in readings.items()}
    readings_path.write_text(json.dumps(found), encoding="utf-8")


def _run(
    model: ModelRef, engine: dict[str, Any], entries: list[dict[str, Any]], output: Path
) -> tuple[Results, float]:
    """Return the results of a run, and the wall seconds of the session that finished it."""
    clock = output.with_suffix(".seconds")
    if not clock.exists():
        evaluate = {
            "model": {"path": model.path, "max_model_len": model.max_model_len},
            "engine": engine,
            "tasks": entries,
        }
        began = time.monotonic()
        raveval.run(
            {"evaluate": evaluate, "run": {"output": str(output)}},
            say=lambda line: print(line, flush=True),
        )
        clock.write_text(str(time.monotonic() - began), encoding="utf-8")
    return _results(output)


def _results(output: Path) -> tuple[Results, float]:
    seconds = float(output.with_suffix(".seconds").read_text(encoding="utf-8"))
    return raveval.load_results(output), seconds


def _given(asked: Mapping[str, Any], answered: Mapping[str, Any] | None = None) -> Given:
    token_ids = tuple(asked["prompt"])
    sampling = Sampling(
        max_output_tokens=asked["max_tokens"],
        temperature=asked["temperature"],
        top_p=asked["top_p"],
        repetition_penalty=asked["repetition_penalty"],
        stop=tuple(asked.get("stop") or ()),
        seed=asked["seed"],
    )
    if answered is None:
        return Given(token_ids, sampling)
    read = answered["choices"][0].get("prompt_token_ids")
    return Given(
        token_ids,
        sampling,
        counted=answered["usage"]["prompt_tokens"],
        read=None if read is None else tuple(read),
    )


def reading_key(prompt: Prompt) -> str:
    """Return a prompt in the form in which the server is asked for its tokens, as JSON."""
    if isinstance(prompt, str):
        return json.dumps({"prompt": prompt})
    turns = [{"role": turn.role, "content": turn.content} for turn in prompt]
    return json.dumps({"messages": turns})


def _own_reading(url: str, model: str, prompt: Prompt) -> tuple[int, ...]:
    body = {"model": model, **json.loads(reading_key(prompt))}
    request = urllib.request.Request(
        f"{url.removesuffix('/v1')}/tokenize",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=600) as answer:
        return tuple(json.load(answer)["tokens"])
