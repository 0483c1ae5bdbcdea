"""Runs an evaluator both ways, and notes what its model was given where it arrived."""

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
from tests.bench.observed_wire import Exchange, Wire
from tests.openai_server import vllm_server

CONCURRENCY = 16
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
    """One of the two ways, after its run."""

    name: str
    results: Results
    seconds: float
    tasks: Mapping[str, JudgedTask]
    given: Mapping[Asked, list[Given]]


def in_replicas(model: ModelRef, entries: list[dict[str, Any]], output: Path) -> Side:
    notes = output / "given.jsonl"
    engine = {"name": "tests.bench.observed_vllm", "notes": str(notes.absolute())}
    results, seconds = _run(model, engine, entries, output / "replicas")
    given = defaultdict(list)
    for line in notes.read_text(encoding="utf-8").splitlines():
        note = json.loads(line)
        if note["seed"] is not None:  # else a question of the engine to itself
            given[note["seed"], note["temperature"]].append(_given(note))
    read = {name: read_task(output / "replicas", name, t) for name, t in results.tasks.items()}
    return Side("vllm in the replicas", results, seconds, read, given)


def on_server(
    model: ModelRef, entries: list[dict[str, Any]], output: Path
) -> tuple[Side, dict[Prompt, tuple[int, ...]]]:
    """Return the server's side, and what its own chat template and tokenizer make of prompts."""
    assert model.path is not None
    assert model.max_model_len is not None
    began = time.monotonic()
    served = vllm_server(
        Path(model.path),
        output / "server.log",
        max_model_len=model.max_model_len,
        kv_cache_bytes=2**30,
        step_tokens=CONCURRENCY * model.max_model_len,
    )
    with served as url, Wire(url) as wire:
        print(f"vLLM's server is up after {time.monotonic() - began:.0f} s")
        engine = {
            "name": "http",
            "base_url": wire.url,
            "api": "completions",
            "concurrency": CONCURRENCY,
        }
        results, seconds = _run(model, engine, entries, output / "server")
        read = {name: read_task(output / "server", name, t) for name, t in results.tasks.items()}
        prompts = {a.request.prompt for task in read.values() for a in task.attempts.values()}
        readings = {prompt: _own_reading(url, model.path, prompt) for prompt in prompts}
    given = defaultdict(list)
    for exchange in wire.exchanges:
        asked = exchange.asked
        given[asked["seed"], asked["temperature"]].append(_given(asked, exchange))
    return Side("http, vLLM's server", results, seconds, read, given), readings


def _run(
    model: ModelRef, engine: dict[str, Any], entries: list[dict[str, Any]], output: Path
) -> tuple[Results, float]:
    """Return the results of a run from nothing, and its wall seconds."""
    began = time.monotonic()
    evaluate = {
        "model": {"path": model.path, "max_model_len": model.max_model_len},
        "engine": engine,
        "tasks": entries,
    }
    config = {"evaluate": evaluate, "run": {"output": str(output)}}
    return raveval.run(config, say=lambda line: print(line, flush=True)), time.monotonic() - began


def _given(asked: Mapping[str, Any], exchange: Exchange | None = None) -> Given:
    sampling = Sampling(
        max_output_tokens=asked["max_tokens"],
        temperature=asked["temperature"],
        top_p=asked["top_p"],
        repetition_penalty=asked["repetition_penalty"],
        stop=tuple(asked.get("stop") or ()),
        seed=asked["seed"],
    )
    if exchange is None or exchange.status != 200:
        return Given(tuple(asked["prompt"]), sampling)
    answered = exchange.answered
    read = answered["choices"][0].get("prompt_token_ids")
    return Given(
        tuple(asked["prompt"]),
        sampling,
        counted=answered["usage"]["prompt_tokens"],
        read=None if read is None else tuple(read),
    )


def _own_reading(url: str, model: str, prompt: Prompt) -> tuple[int, ...]:
    """Return the token ids that the server itself makes of a prompt, with its own template."""
    body: dict[str, Any] = {"model": model}
    if isinstance(prompt, str):
        body["prompt"] = prompt
    else:
        body["messages"] = [{"role": turn.role, "content": turn.content} for turn in prompt]
    request = urllib.request.Request(
        f"{url.removesuffix('/v1')}/tokenize",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return tuple(json.load(answer)["tokens"])
