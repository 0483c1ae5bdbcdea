"""Our worker's path and vLLM alone, each in a process of its own that waits while the other works.

A side that waits sleeps on a pipe, so both can be loaded and asked in turn: what else the machine
does then hits both.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from raveval import pipeline
from raveval.config import load_config
from raveval.engines import Engine, _vllm_sums, vllm
from raveval.engines._encoding import EncodedChoices, EncodedDocument, EncodedPrompt, Sequence
from raveval.engines._vllm_scorer import Scorer
from raveval.evaluate import answer_examples
from raveval.passes import task_spec
from raveval.plan import Plan, make_plan, manifest_of
from raveval.store import RunDirectory, shards_of
from raveval.types import ChoiceScores, Generate, ModelRef, Request, Sampling, Shard
from raveval.worker import RunPart, ShardWorker, WorkerSpec
from raveval.worker.watch import Patience

Options = vllm.Options
OPERATIONAL = vllm.OPERATIONAL
encoder = vllm.encoder


@dataclass(frozen=True, slots=True)
class Spent:
    """What some work took: seconds on the clock, and CPU seconds of a process and its children."""

    wall_seconds: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Asked:
    """One prompt as vLLM alone is given it.

    `sampling` is how a text is to go on; None where the last `n_scored` tokens are to be scored.
    """

    token_ids: tuple[int, ...]
    n_scored: int = 0
    sampling: Sampling | None = None


def tree_cpu_seconds() -> float:
    """Return the CPU seconds that this process and those below it have taken so far."""
    me = psutil.Process()
    times = [process.cpu_times() for process in (me, *me.children(recursive=True))]
    return float(sum(t.user + t.system for t in times))


def spent(work: Callable[[], object]) -> Spent:
    """Do some work and say what it took."""
    cpu, began = tree_cpu_seconds(), time.perf_counter()
    work()
    return Spent(time.perf_counter() - began, tree_cpu_seconds() - cpu)


class Side:
    """A process that holds an engine; `call` has it do something and waits."""

    def __init__(self, make: Callable[..., object], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, arguments))
        self._process.start()
        theirs.close()
        self._receive()

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the object that the process holds.

        Raises:
            RuntimeError: with the traceback of what it raised there.
        """
        self._pipe.send((method, arguments))
        return self._receive()

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join()

    def _receive(self) -> Any:
        result, error = self._pipe.recv()
        if error:
            raise RuntimeError(error)
        return result


def _serve(pipe: Any, make: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    try:
        held = make(*arguments)
    except Exception:  # noqa: BLE001 - the other process raises it
        pipe.send((None, traceback.format_exc()))
        return
    pipe.send((None, None))
    while True:
        try:
            method, given = pipe.recv()
        except EOFError:
            os._exit(0)  # an engine in this process need not be taken down nicely
        try:
            pipe.send((getattr(held, method)(*given), None))
        except Exception:  # noqa: BLE001 - the other process raises it
            pipe.send((None, traceback.format_exc()))


_kept: dict[str, Engine] = {}


def start(model: ModelRef, options: Options) -> Engine:
    """Load a model once in this process: replicas that come later get the same engine."""
    if model.name not in _kept:
        _kept[model.name] = vllm.start(model, options)
    return _kept[model.name]


class Ours:
    """The worker of a run: it reads its shards, answers, scores and commits them."""

    def __init__(self, config: dict[str, Any], folder: Path) -> None:
        self._plan: Plan = make_plan(load_config(config))
        self._manifest = manifest_of(self._plan, None, started="")
        self._tasks = {task.name: task for task in self._plan.tasks}
        self._folder = folder
        self._numbers = itertools.count()
        self._engine: Any = start(self._plan.model.loadable, self._plan.model.options)
        self._recorded: list[tuple[tuple[int, ...], Any]] = []

    def settings(self) -> dict[str, Any]:
        """Return what vLLM runs with here, for the other side to do the same."""
        config = self._engine._config
        return {
            "dtype": self._engine.describe()["dtype"],
            "max_model_len": config.model_config.max_model_len,
            "block_size": config.cache_config.block_size,
            "enable_prefix_caching": config.cache_config.enable_prefix_caching,
            "kv_cache_memory_bytes": config.cache_config.kv_cache_memory_bytes,
            "enforce_eager": config.model_config.enforce_eager,
            "max_num_seqs": config.scheduler_config.max_num_seqs,
            "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        }

    def run(self, task: str) -> Spent:
        """Answer all of a task's shards as a replica does in a run, from an empty prefix cache."""
        directory = RunDirectory(self._folder / f"{task}-{next(self._numbers)}")
        directory.begin_session("bench")
        directory.write_examples(task, self._tasks[task].examples, digest="bench")
        specs = {task: task_spec(self._manifest["tasks"][task])}
        spec = WorkerSpec(
            runs=(RunPart(str(directory.path), "bench", specs, None),),
            engine="tests.bench.engine_sides",
            options=self._plan.model.options,
            model=self._plan.model.loadable,
            patience=Patience(1800.0, 2.0),
        )
        in_flight = pipeline.examples_in_flight(spec, on_gpu=False)
        worker = ShardWorker(spec, examples_in_flight=in_flight)
        self._forget()
        return spent(lambda: asyncio.run(self._through(worker, task, in_flight)))

    def record(self, task: str) -> tuple[int, list[Asked]]:
        """Run a task once and note what is asked of the engine and what it asks of vLLM.

        Returns:
            How many requests `replay` will make; the prompts as vLLM alone is to be given them,
            each once.
        """
        backend, encoder = self._engine._backend, self._engine._encoder
        requests, prompts = [], dict[Asked, None]()

        def submit(token_ids: tuple[int, ...], params: Any) -> Future[Any]:
            requests.append((token_ids, params))
            future: Future[Any] = type(backend).submit(backend, token_ids, params)
            return future

        def encode(request: Request) -> Any:
            encoded = type(encoder).encode(encoder, request)
            prompts.update(dict.fromkeys(_asked(encoded, request)))
            return encoded

        backend.submit, encoder.encode = submit, encode
        try:
            self.run(task)
        finally:
            del backend.submit, encoder.encode  # those of their classes again
        self._recorded = requests
        return len(requests), list(prompts)

    def replay(self) -> Spent:
        """Hand the same engine the recorded requests all at once, and do nothing else."""
        self._forget()

        def all_at_once() -> None:
            for future in [self._engine._backend.submit(*each) for each in self._recorded]:
                future.result()

        return spent(all_at_once)

    def answer(self, task: str, scoring: Literal["entropy", "sums", "plain"]) -> Spent:
        """Have the engine answer all examples at once: with entropies, sums alone, or no hook."""
        engine, planned = self._engine, self._tasks[task]
        scorer, formed = engine._scorer, _vllm_sums.Distribution.__dict__["of"]
        self._forget()
        if scoring == "plain":
            block_tokens = engine._config.cache_config.block_size
            engine._scorer = Scorer(
                engine._backend, has_hook=False, block_tokens=block_tokens, prefix_reuse=True
            )
        if scoring == "sums":
            _vllm_sums.Distribution.of = _without_entropy  # type: ignore[method-assign]
        spec = task_spec(self._manifest["tasks"][task])
        try:
            return spent(lambda: asyncio.run(answer_examples(planned.examples, engine, spec)))
        finally:
            engine._scorer = scorer
            _vllm_sums.Distribution.of = formed  # type: ignore[method-assign]

    def choices(self, task: str) -> list[dict[str, Any]]:
        """Return a multiple-choice task's prompts, and how the engine scores their choices."""
        self._forget()
        examples = self._tasks[task].examples
        spec = task_spec(self._manifest["tasks"][task])
        answers = asyncio.run(answer_examples(examples, self._engine, spec))
        found = []
        for example, (reply,) in zip(examples, answers, strict=True):
            assert isinstance(reply, ChoiceScores), reply
            found.append(
                {
                    "id": example.id,
                    "query": example.prompt,
                    "choices": list(example.continuations),
                    "gold": example.gold,
                    "logprob_nats": list(reply.logprob_nats),
                    "n_tokens": list(reply.n_tokens),
                }
            )
        return found

    def _forget(self) -> None:
        """Empty the caches that one repetition would leave to the next."""
        self._engine._scorer._known.clear()
        assert self._engine._backend._engine.reset_prefix_cache()

    async def _through(self, worker: ShardWorker, task: str, examples_in_flight: int) -> None:
        """Give the worker as many shards at a time as its actor would be given."""
        shard_size = self._plan.config.run.shard_size
        shards = shards_of(task, len(self._tasks[task].examples), shard_size)
        room = asyncio.Semaphore(
            pipeline.shards_in_flight(examples_in_flight, shard_size, len(shards))
        )

        async def one(shard: Shard) -> None:
            row = {"run": 0, **asdict(shard)}
            async with room:
                async for outcome in worker({key: [value] for key, value in row.items()}):
                    assert not outcome["error"][0], outcome["error"][0]

        await asyncio.gather(*map(one, shards))


def _asked(encoded: Any, request: Request) -> list[Asked]:
    """Return the prompts that answer a request, without any sharing between them."""
    if isinstance(encoded, EncodedPrompt):
        assert isinstance(request, Generate)
        return [Asked(encoded.token_ids, sampling=request.sampling)]
    rows: tuple[Sequence, ...]
    if isinstance(encoded, EncodedDocument):
        rows = encoded.windows
    else:
        assert isinstance(encoded, EncodedChoices), encoded
        rows = (*encoded.sequences, *(encoded.unconditional or ()))
    return [Asked(row.token_ids, row.n_scored) for row in rows]


def _without_entropy(logits: Any) -> _vllm_sums.Distribution:
    """Do what `Distribution.of` does, but for the entropy."""
    n = len(logits)
    x = logits.float()
    if n == 1:
        x = x.repeat(2, 1)
    x = x - x.amax(dim=-1, keepdim=True)
    log_z = x.exp().sum(dim=-1).log()
    is_single = (x == 0).sum(dim=-1) == 1
    return _vllm_sums.Distribution(x[:n], log_z[:n], log_z[:n] * 0, is_single[:n])
