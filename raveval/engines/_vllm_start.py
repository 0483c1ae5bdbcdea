"""Starts vLLM: what is set for which hardware, and what is said when it does not start.

On CPUs: float32 (bfloat16 is slower there without AMX, and differs), eager execution (compiling
costs a minute at each start), an explicit KV cache (vLLM's default is a share of all memory), small
cache blocks (the shorter, the more of a shared context is reused), and the threads that
OMP_NUM_THREADS says, which Ray sets to the actor's CPUs.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raveval import adapters
from raveval.adapters import Adapter
from raveval.engines import _vllm_lora, _vllm_memory
from raveval.engines._vllm_backends import Backend, InProcess, OwnProcess, words
from raveval.engines._vllm_imports import check_torchvision, narrow_kernel_search
from raveval.engines._vllm_log import End, EngineLog, last_words
from raveval.errors import ModelError, ResourceError, RunError
from raveval.types import ModelRef

if TYPE_CHECKING:
    from raveval.engines.vllm import Options

CPU_BLOCK_TOKENS = 32  # the smallest that vLLM's CPU kernels take
GPU_BATCH_TOKENS = 8192  # bounds the logits where vLLM forms log-probabilities itself
_SILENT_END = (
    "The engine's process ended before it could say why: it may have been killed for want of "
    'memory, or the script that starts it lacks `if __name__ == "__main__":`'
)
EXTENSION = "raveval.engines._vllm_hook.WorkerExtension"


def n_threads() -> int:
    """Return how many threads the engine gets: OMP_NUM_THREADS, else the CPUs we may use."""
    with contextlib.suppress(ValueError, KeyError):
        return max(int(os.environ["OMP_NUM_THREADS"]), 1)
    return len(os.sched_getaffinity(0))


@contextlib.contextmanager
def environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Set variables that are not set yet, and take back all that happens to the environment."""
    saved = dict(os.environ)
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    try:
        yield
    finally:
        for name in set(os.environ) - set(saved):
            del os.environ[name]
        os.environ.update(saved)


@dataclass(frozen=True, slots=True)
class Launched:
    """A running engine; `config` is vLLM's own, `mode` "in_process" or "async"."""

    backend: Backend
    config: Any
    mode: str


def launch(model: ModelRef, options: Options, *, max_model_len: int) -> Launched:
    """Start vLLM.

    Raises:
        ModelError: vLLM cannot run this model, or not with its adapter.
        ResourceError: it does not fit the memory.
        RunError: the engine did not start; the message holds its own last words.
    """
    adapter = None if model.adapter is None else adapters.fetched(model.adapter)
    check_torchvision()
    settings = {
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else replicas on one machine share their cores
    }
    # Read at every step, so it stays set: attention that splits long contexts over idle threads
    # would round by what else is under way.
    os.environ.setdefault("VLLM_CPU_ATTN_SPLIT_KV", "0")
    with environment(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of vLLM's imports are not the user's to act on
        on_cpu = _on_cpu()
        mode = options.mode
        if mode == "auto":
            mode = "in_process" if on_cpu and options.n_devices == 1 else "async"
        if on_cpu:
            narrow_kernel_search()
            n = max(n_threads() // options.n_devices, 1)  # a process each
            os.environ["OMP_NUM_THREADS"] = str(n)
            importlib.import_module("torch").set_num_threads(n)
            if options.enforce_eager is not False:
                # vLLM's own log-probabilities go through one compiled function, which is not worth
                # the ten seconds that compiling it takes.
                os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")
                # torch read it when it was imported, which the tokenizer may have done.
                dynamo: Any = importlib.import_module("torch._dynamo.config")
                dynamo.disable = os.environ["TORCH_COMPILE_DISABLE"] == "1"
        if mode == "in_process" or (on_cpu and options.n_devices == 1):
            os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # async: 2 processes, not 3
        config = _configure(model, options, adapter, max_model_len=max_model_len)
        backend = _run(config, mode)
        if adapter is not None:
            _vllm_lora.apply(adapter, backend)
        return Launched(backend, config, mode)


def _on_cpu() -> bool:
    on_cpu: bool = importlib.import_module("vllm.platforms").current_platform.is_cpu()
    return on_cpu


def _configure(
    model: ModelRef, options: Options, adapter: Adapter | None, *, max_model_len: int
) -> Any:
    """Return vLLM's configuration, with the model's own config read and checked."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext

    on_cpu = _on_cpu()
    eager = on_cpu if options.enforce_eager is None else options.enforce_eager
    dtype = "float32" if model.dtype == "auto" and on_cpu else model.dtype
    device = {"block_size": CPU_BLOCK_TOKENS} if on_cpu else {}
    lora = {} if adapter is None else _vllm_lora.settings(adapter)
    try:
        config = EngineArgs(
            model=model.name,
            revision=model.revision,
            tokenizer_revision=model.revision,
            dtype=dtype,
            max_model_len=max_model_len,
            seed=0,
            enforce_eager=eager,
            enable_prefix_caching=options.prefix_reuse,
            tensor_parallel_size=options.tensor_parallel_size,
            pipeline_parallel_size=options.pipeline_parallel_size,
            gpu_memory_utilization=options.gpu_memory_utilization,
            kv_cache_memory_bytes=options.kv_cache_memory_bytes,
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=None if on_cpu else GPU_BATCH_TOKENS,
            quantization=options.quantization,
            trust_remote_code=options.trust_remote_code,
            worker_extension_cls=EXTENSION,
            disable_log_stats=True,
            use_tqdm_on_load=False,
            **device,
            **lora,
        ).create_engine_config(UsageContext.LLM_CLASS)  # the limits of a batch, not of a server
    except (ValueError, OSError, RuntimeError, NotImplementedError, ImportError) as exc:
        raise ModelError(f"model {model.name}: vLLM cannot run it: {_reasons(exc)}") from exc
    if on_cpu:
        config.cache_config.kv_cache_memory_bytes = _vllm_memory.cache_bytes(config)
    return config


def _reasons(exc: Exception) -> str:
    """Return what vLLM holds against a setting, without the trimmings of its validation."""
    faults = getattr(exc, "errors", None)
    if not callable(faults):
        return words(exc)
    return "; ".join(str(fault.get("msg")).removeprefix("Value error, ") for fault in faults())


def _run(config: Any, mode: str) -> InProcess | OwnProcess:
    """Start the engine, and say why where it does not start."""
    log = None
    try:
        if mode == "in_process":
            from vllm.v1.engine.llm_engine import LLMEngine

            gc.collect()
            gc.freeze()  # as vLLM itself does a little later, and takes back when it is closed
            return InProcess(lambda: LLMEngine.from_vllm_config(config, disable_log_stats=True))
        logs = config.logging_config
        log = EngineLog(logs.log_level)
        if logs.configure_logging and logs.pylogging_config_file is None:
            logs.pylogging_config_file = str(log.config)
        return OwnProcess(config, log.last_words)
    except Exception as exc:
        ends = (End.of(exc),) if log is None else log.ends()
        said = last_words(ends) or f"{words(exc)}. {_SILENT_END}"
        if any(end.is_want_of_memory for end in ends):
            raise ResourceError(_vllm_memory.refusal(config, said)) from exc
        raise RunError(f"vLLM did not start with {config.model_config.model}: {said}") from exc
