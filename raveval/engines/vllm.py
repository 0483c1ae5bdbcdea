"""vLLM, the product's engine: in this process on CPUs, in a process of its own on GPUs.

Everything asked at the same time shares one continuous batch. vLLM gets token ids only. Scores are
sums formed beside the logits, over the scored positions alone, with the exact entropy of the full
vocabulary (see `_vllm_sums`); where this vLLM does not let us in, its own log-probabilities are
used, and the engine does not offer ENTROPY. Texts are generated one sample a request, with explicit
sampling parameters: of the checkpoint's `generation_config.json` only the end tokens count.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

from raveval.engines import Capability, Engine, EngineDied, _vllm_scorer
from raveval.engines._encoding import (
    EncodedChoices,
    EncodedDocument,
    EncodedPrompt,
    Encoder,
    choice_scores,
    document_score,
)
from raveval.engines._vllm_backends import Backend, RequestFailed
from raveval.engines._vllm_scorer import Scorer
from raveval.errors import ConfigError, RunError
from raveval.types import (
    ChoiceScores,
    Completion,
    DocumentScore,
    Failure,
    Generate,
    ModelRef,
    Reply,
    Request,
    Sampling,
    Status,
)

OPERATIONAL = frozenset({"gpu_memory_utilization", "kv_cache_memory_bytes", "max_num_seqs"})
"""Options that cannot move a number; all others are part of a run's fingerprint."""

TAKES_ADAPTERS = True


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of this engine; None leaves the choice to what the hardware wants.

    Attributes:
        mode: "in_process", "async" (an engine process of its own) or "auto": in this process on
            CPUs, its own on GPUs.
        tensor_parallel_size: over how many devices each layer is split.
        pipeline_parallel_size: over how many groups of so many devices the layers are spread.
        gpu_memory_utilization: share of a GPU's memory for weights and KV cache.
        kv_cache_memory_bytes: size of the KV cache, instead of that share.
        enforce_eager: do not compile; the default on CPUs, where it costs a minute a start.
        quantization: vLLM's name of a quantisation; None takes the checkpoint's own.
        prefix_reuse: compute a context shared by several requests once.
        score_hook: form sums and entropies in the workers.
        max_num_seqs: most sequences of one step.
        trust_remote_code: run code that comes with the checkpoint.
    """

    mode: Literal["auto", "in_process", "async"] = "auto"
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    gpu_memory_utilization: float = 0.85
    kv_cache_memory_bytes: int | None = None
    enforce_eager: bool | None = None
    quantization: str | None = None
    prefix_reuse: bool = True
    score_hook: bool = True
    max_num_seqs: int | None = None
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        """Refuse settings that cannot be.

        Raises:
            ConfigError: an unknown mode, a size below 1, a share outside (0, 1].
        """
        if self.mode not in ("auto", "in_process", "async"):
            raise ConfigError(
                f"engine vllm: mode: given {self.mode!r}, allowed are auto, in_process, async"
            )
        sizes = ("tensor_parallel_size", "pipeline_parallel_size", "kv_cache_memory_bytes")
        for name in (*sizes, "max_num_seqs"):
            size = getattr(self, name)
            if size is not None and size < 1:
                raise ConfigError(f"engine vllm: {name}: must be at least 1, given {size}")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError(
                f"engine vllm: gpu_memory_utilization: a share above 0 and up to 1, "
                f"given {self.gpu_memory_utilization}"
            )

    @property
    def n_devices(self) -> int:
        """Over how many devices one model lies; on CPUs, processes."""
        return self.tensor_parallel_size * self.pipeline_parallel_size


def slots(options: Options, *, on_gpu: bool) -> int:
    """Return the most sequences of one step; where vLLM chooses, its choice for a large GPU."""
    return options.max_num_seqs or (1024 if on_gpu else 256)


def encoder(model: ModelRef, options: Options) -> Encoder:
    """Return the encoder that the engine will use; no weights are loaded.

    Raises:
        ModelError: see `Encoder.load`.
    """
    return Encoder.load(model, trust_remote_code=options.trust_remote_code)


def start(model: ModelRef, options: Options) -> Engine:
    """Load a model into vLLM.

    Raises:
        ModelError: it is missing, is no model, or vLLM cannot run it, or not with its adapter.
        ResourceError: it does not fit the memory.
        RunError: the engine did not start; the message holds its own last words.
    """
    from raveval.engines import _vllm_start
    from raveval.engines._vllm_imports import few_collections

    with few_collections():
        encodes = encoder(model, options)
        launched = _vllm_start.launch(model, options, max_model_len=encodes.max_model_len)
    try:
        return VllmEngine(launched.backend, encodes, launched.config, options, launched.mode)
    except (EngineDied, RequestFailed) as exc:
        launched.backend.close()
        raise RunError(f"vLLM did not survive its first request: {exc}") from exc


class VllmEngine:
    """One running vLLM."""

    def __init__(
        self, backend: Backend, encoder: Encoder, config: Any, options: Options, mode: str
    ) -> None:
        self._backend = backend
        self._encoder = encoder
        self._encoding = ThreadPoolExecutor(1, "vllm-encode")  # tokenizers are not thread-safe
        self._is_closed = False
        self._config = config
        self._mode = mode
        self._hook, self._hook_problem = self._install_hook(wanted=options.score_hook)
        self._scorer = Scorer(
            backend,
            has_hook=self._hook != "none",
            block_tokens=config.cache_config.block_size,
            prefix_reuse=options.prefix_reuse,
        )
        capabilities = {Capability.GENERATE, Capability.SCORE, Capability.SEEDED}
        if self._hook != "none":
            capabilities.add(Capability.ENTROPY)
        self.capabilities = frozenset(capabilities)

    async def reply(self, request: Request) -> Reply:
        """Answer one request.

        Raises:
            EngineDied: the engine broke, or is closed.
        """
        if self._is_closed:
            raise EngineDied("the engine was closed")
        encode = self._encoder.encode
        encoded = await asyncio.get_running_loop().run_in_executor(self._encoding, encode, request)
        try:
            if isinstance(encoded, Failure):
                return encoded
            if isinstance(encoded, EncodedChoices):
                return await self._choices(encoded)
            if isinstance(encoded, EncodedDocument):
                return await self._document(encoded)
            assert isinstance(request, Generate)
            return await self._complete(encoded, request.sampling)
        except RequestFailed as exc:
            return Failure(Status.FAILED, str(exc))

    def describe(self) -> dict[str, str | int | None]:
        """Return what moves numbers and is known only once loaded."""
        import torch
        import vllm

        return {
            "engine": "vllm",
            "vllm": vllm.__version__,
            "torch": torch.__version__,
            "device": self._config.device_config.device_type,
            "dtype": str(self._config.model_config.dtype).removeprefix("torch."),
            "max_model_len": self._encoder.max_model_len,
            "system_role": self._encoder.system_role,
            "mode": self._mode,
            "score_hook": self._hook,
            "score_hook_problem": self._hook_problem,
        }

    async def close(self) -> None:
        """End the engine; replies that still wait fail."""
        if not self._is_closed:
            self._is_closed = True
            await asyncio.to_thread(self._backend.close)
            self._encoding.shutdown(wait=False)

    def _install_hook(self, *, wanted: bool) -> tuple[str, str | None]:
        """Return the kind of hook that is in place and checked, "none" with the reason why."""
        if self._config.device_config.device_type == "cpu":
            self._backend.call("raveval_withhold_generators")
            if self._config.parallel_config.pipeline_parallel_size > 1:
                self._backend.call("raveval_join_stages")
        if not wanted:
            return "none", "switched off"
        kinds = {str(kind) for kind in self._backend.call("raveval_install")}
        if len(kinds) != 1 or not kinds <= {"v1", "v2"}:
            return "none", "; ".join(sorted(kinds))
        is_eager_on_cpu = self._config.model_config.enforce_eager and (
            self._config.device_config.device_type == "cpu"
        )
        if is_eager_on_cpu:
            self._backend.call("raveval_pad_single_rows")
        problem = _vllm_scorer.check(
            self._backend,
            n_vocabulary=self._config.model_config.get_vocab_size(),
            max_model_len=self._encoder.max_model_len,
        )
        return ("none", problem) if problem else (kinds.pop(), None)

    async def _choices(self, encoded: EncodedChoices) -> ChoiceScores | Failure:
        if encoded.unconditional is None:
            return choice_scores(encoded, await self._scorer.continuations(encoded.sequences), None)
        spans, unconditional = await asyncio.gather(
            self._scorer.continuations(encoded.sequences),
            self._scorer.recurring(encoded.unconditional),
        )
        return choice_scores(encoded, spans, unconditional)

    async def _document(self, encoded: EncodedDocument) -> DocumentScore | Failure:
        return document_score(encoded, await self._scorer.windows(encoded.windows))

    async def _complete(self, prompt: EncodedPrompt, sampling: Sampling) -> Completion:
        future = self._backend.submit(prompt.token_ids, _sampling_params(sampling))
        output = (await asyncio.wrap_future(future)).outputs[0]
        token_ids, reason = tuple(output.token_ids), output.finish_reason
        # The end token counts as output and is not in the text; after a stop string `stop_reason`
        # is that string, after an end token its id or None.
        is_end_token = reason == "stop" and not isinstance(output.stop_reason, str)
        text = self._encoder.decode(token_ids[:-1] if is_end_token else token_ids)
        stops = [text.find(stop) for stop in sampling.stop if stop in text]
        if stops:
            text, reason = text[: min(stops)], "stop"
        elif reason == "length":
            text = text.rstrip("\ufffd")  # half a character at the very end is no text yet
        return Completion(
            text=text,
            finish_reason="stop" if reason == "stop" else "length",
            n_prompt_tokens=len(prompt.token_ids),
            n_output_tokens=len(token_ids),
            n_truncated_tokens=prompt.n_truncated_tokens,
        )


def _sampling_params(sampling: Sampling) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        max_tokens=sampling.max_output_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        repetition_penalty=sampling.repetition_penalty,
        seed=None if sampling.seed is None else sampling.seed % 2**63,
        stop=list(sampling.stop),
        detokenize=bool(sampling.stop),  # the text is decoded here; vLLM only looks for the stops
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
