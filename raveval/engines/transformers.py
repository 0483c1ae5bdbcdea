"""The reference engine: a model in PyTorch through transformers; float32 on CPUs.

It is the oracle for the other engines and the fallback where they do not run. One thread owns the
model; whatever requests wait when it comes free are measured together in padded batches.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from raveval.engines import Capability, Engine, EngineDied
from raveval.engines._encoding import (
    EncodedChoices,
    EncodedDocument,
    EncodedPrompt,
    Encoder,
    Sequence,
    Span,
    choice_scores,
    document_score,
)
from raveval.errors import ConfigError
from raveval.types import Failure, Generate, ModelRef, Reply, Request, Status

if TYPE_CHECKING:
    from raveval.engines._torch_model import TorchModel

# Batch size and threads reorder additions in the last digits of a float32, no more.
OPERATIONAL = frozenset({"batch_size", "threads"})
TAKES_ADAPTERS = True

T = TypeVar("T")
_REQUESTS_AT_ONCE = 64  # so that the first replies do not wait for a queue of any length


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of this engine.

    Attributes:
        batch_size: most sequences of one forward pass.
        threads: CPU threads; None leaves PyTorch's choice.
        trust_remote_code: run code that comes with the checkpoint.
    """

    batch_size: int = 8
    threads: int | None = None
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        """Refuse sizes that cannot be.

        Raises:
            ConfigError: a size below 1.
        """
        for name, size in (("batch_size", self.batch_size), ("threads", self.threads)):
            if size is not None and size < 1:
                raise ConfigError(f"engine transformers: {name}: must be at least 1, given {size}")


def encoder(model: ModelRef, options: Options) -> Encoder:
    """Return the encoder that the engine will use; no weights are loaded.

    Raises:
        ModelError: see `Encoder.load`.
    """
    return Encoder.load(model, trust_remote_code=options.trust_remote_code)


def start(model: ModelRef, options: Options) -> Engine:
    """Load a model.

    Raises:
        ModelError: it is missing, is no model, or its weights or its adapter cannot be loaded.
    """
    encodes = encoder(model, options)
    import torch

    from raveval.engines import _torch_model

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    # In a thread that ends, and its OpenMP threads with it: with more of those than CPUs, none
    # would spin for the next piece of work (see `_vllm_backends.InProcess`).
    with ThreadPoolExecutor(1) as thread:
        loaded = thread.submit(
            _torch_model.load,
            model,
            end_id=encodes.tokenizer.eos_token_id,
            trust_remote_code=options.trust_remote_code,
        ).result()
    return TransformersEngine(loaded, encodes, batch_size=options.batch_size)


@dataclass(frozen=True, slots=True)
class _Job:
    request: Request
    reply: Future[Reply]


class TransformersEngine:
    """One loaded model and the thread that runs it."""

    capabilities = frozenset(
        {Capability.GENERATE, Capability.SCORE, Capability.ENTROPY, Capability.SEEDED}
    )

    def __init__(self, model: TorchModel, encoder: Encoder, *, batch_size: int) -> None:
        self._model = model
        self._encoder = encoder
        self._batch_size = batch_size
        self._last_words: str | None = None
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="transformers", daemon=True)
        self._thread.start()

    async def reply(self, request: Request) -> Reply:
        """Answer one request.

        Raises:
            EngineDied: the model broke, or the engine is closed.
        """
        job = _Job(request, Future())
        with self._lock:
            if self._last_words is not None:
                raise EngineDied(self._last_words)
            self._jobs.put(job)
        return await asyncio.wrap_future(job.reply)

    def describe(self) -> dict[str, str | int | None]:
        """Return what moves numbers and is known only once loaded."""
        import torch
        import transformers

        return {
            "engine": "transformers",
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "device": self._model.device,
            "dtype": self._model.dtype,
            "attention": self._model.whole.config._attn_implementation,
            "max_model_len": self._encoder.max_model_len,
            "system_role": self._encoder.system_role,
        }

    async def close(self) -> None:
        """Stop the thread after the batch at hand; replies that still wait fail."""
        self._die("the engine is closed")
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    def _die(self, last_words: str) -> None:
        """Refuse later requests, and fail those that wait."""
        with self._lock:
            self._last_words = self._last_words or last_words
            while not self._jobs.empty():
                job = self._jobs.get()
                if job is not None and job.reply.set_running_or_notify_cancel():
                    job.reply.set_exception(EngineDied(self._last_words))

    def _work(self) -> None:
        """Answer what waits, until the engine is closed or breaks."""
        is_open = True
        while is_open:
            taken = self._take()
            is_open = None not in taken
            jobs = [job for job in taken if job and job.reply.set_running_or_notify_cancel()]
            try:
                self._answer(jobs)
            except Exception as exc:  # noqa: BLE001 - whatever broke, nobody may wait for ever
                self._die(f"{type(exc).__name__}: {exc}")
                is_open = False
            for job in jobs:
                if not job.reply.done():
                    job.reply.set_exception(EngineDied(self._last_words or "no answer"))

    def _take(self) -> list[_Job | None]:
        """Wait for one job (None: the engine is closed), and take along what else is there."""
        taken = [self._jobs.get()]
        while len(taken) < _REQUESTS_AT_ONCE and taken[-1] is not None:
            try:
                taken.append(self._jobs.get_nowait())
            except queue.Empty:
                break
        return taken

    def _answer(self, jobs: list[_Job]) -> None:
        scored: list[tuple[_Job, EncodedChoices | EncodedDocument]] = []
        prompts: list[tuple[_Job, EncodedPrompt]] = []
        for job in jobs:
            encoded = self._encoder.encode(job.request)
            if isinstance(encoded, Failure):
                job.reply.set_result(encoded)
            elif isinstance(encoded, EncodedPrompt):
                prompts.append((job, encoded))
            else:
                scored.append((job, encoded))
        if scored:
            self._score(scored)
        for job, prompt in prompts:
            if self._last_words is not None:
                return  # closed meanwhile; texts can take minutes
            job.reply.set_result(self._generate(job.request, prompt))

    def _score(self, jobs: list[tuple[_Job, EncodedChoices | EncodedDocument]]) -> None:
        """Measure the sequences of all jobs together; where memory lacks, one job at a time."""
        rows = tuple(row for _, encoded in jobs for row in _rows(encoded))
        spans = _unless_out_of_memory(partial(self._measure, rows, self._batch_size))
        if spans is not None:
            for job, encoded in jobs:
                n_rows = len(_rows(encoded))
                job.reply.set_result(_form_reply(encoded, spans[:n_rows]))
                spans = spans[n_rows:]
            return
        for job, encoded in jobs:
            rows = _rows(encoded)
            spans = _unless_out_of_memory(partial(self._measure, rows, 1))
            job.reply.set_result(
                _out_of_memory(max(len(row.token_ids) for row in rows))
                if spans is None
                else _form_reply(encoded, spans)
            )

    def _measure(self, rows: tuple[Sequence, ...], batch_size: int) -> tuple[Span, ...]:
        from raveval.engines import _torch_model

        return tuple(_torch_model.score(self._model, rows, batch_size=batch_size))

    def _generate(self, request: Request, prompt: EncodedPrompt) -> Reply:
        from raveval.engines import _torch_generation

        assert isinstance(request, Generate)
        complete = partial(
            _torch_generation.generate,
            self._model,
            prompt,
            request.sampling,
            decode=self._encoder.decode,
        )
        reply = _unless_out_of_memory(complete)
        return _out_of_memory(len(prompt.token_ids)) if reply is None else reply


def _rows(encoded: EncodedChoices | EncodedDocument) -> tuple[Sequence, ...]:
    if isinstance(encoded, EncodedDocument):
        return encoded.windows
    return encoded.sequences + (encoded.unconditional or ())


def _form_reply(encoded: EncodedChoices | EncodedDocument, spans: tuple[Span, ...]) -> Reply:
    if isinstance(encoded, EncodedDocument):
        return document_score(encoded, spans)
    k = len(encoded.sequences)
    return choice_scores(encoded, spans[:k], None if encoded.unconditional is None else spans[k:])


def _unless_out_of_memory(compute: Callable[[], T]) -> T | None:
    import torch

    try:
        return compute()
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return None


def _out_of_memory(n_tokens: int) -> Failure:
    return Failure(
        Status.FAILED,
        f"the GPU's memory does not hold a sequence of {n_tokens} tokens by itself; lower "
        f"model.max_model_len or use a GPU with more memory",
    )
