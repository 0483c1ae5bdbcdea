"""Whether a model fits the memory of CPUs, where what takes too much is killed unheard."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

from raveval.errors import ResourceError
from raveval.weights import read_kinds

GIB = 1 << 30
CPU_KV_BYTES = GIB  # the usual bound on the KV cache; a model whose context needs more gets more
CPU_KV_TOKENS = 16384  # what a batch of some dozens of sequences fills
_FLOAT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


def cache_bytes(config: Any) -> int:
    """Return the size of a process's KV cache on CPUs; vLLM's default is a share of all memory.

    As given; else a few whole contexts or some dozens of shorter ones fit, and one whole context
    always does.

    Raises:
        ResourceError: weights and cache do not fit the memory.
    """
    model, given = config.model_config, config.cache_config.kv_cache_memory_bytes
    n_processes = config.parallel_config.world_size
    weights = _weight_bytes(model)
    available = int(importlib.import_module("psutil").virtual_memory().available)
    least = context_bytes(config)
    asked = least if given is None else given
    if weights + n_processes * asked > available:
        whose = (
            f"one context of {model.max_model_len} tokens"
            if given is None
            else "kv_cache_memory_bytes"
        )
        lower = "model.max_model_len" if given is None else "kv_cache_memory_bytes"
        raise ResourceError(
            f"model {model.model}: its weights take {weights / GIB:.1f} GiB and the KV cache of "
            f"{whose} {n_processes * asked / GIB:.1f} GiB, and {available / GIB:.1f} GiB of memory "
            f"are free; lower {lower}, or take a smaller model or dtype, or more memory"
        )
    if given is not None:
        return int(given)
    wanted = max(4 * model.max_model_len, CPU_KV_TOKENS) * _token_bytes(config)
    return int(max(least, min(wanted, CPU_KV_BYTES, (available - weights) // (2 * n_processes))))


def context_bytes(config: Any) -> int:
    """Return how much of a process's KV cache one whole context takes."""
    block = config.cache_config.block_size or 16  # vLLM's own where none is set yet
    n_blocks = -(-config.model_config.max_model_len // block) + 1  # vLLM keeps one for itself
    return int(n_blocks * block * _token_bytes(config))


def _token_bytes(config: Any) -> int:
    model, parallel = config.model_config, config.parallel_config
    per_layer = 2 * model.get_num_kv_heads(parallel) * model.get_head_size()
    return int(model.get_num_layers(parallel) * per_layer * model.dtype.itemsize)


def _weight_bytes(model: Any) -> int:
    """Return how much memory a directory's weights take; 0 where no header says it."""
    n_bytes = 0
    for path in Path(model.model).glob("*.safetensors"):
        try:
            kinds = read_kinds(path).values()
        except (OSError, ValueError):
            continue  # loading it will tell
        if all(kind.dtype in _FLOAT_BYTES for kind in kinds):
            n_bytes += model.dtype.itemsize * sum(math.prod(kind.shape) for kind in kinds)
        else:
            n_bytes += path.stat().st_size  # quantised
    return n_bytes


def refusal(config: Any, said: str) -> str:
    """Say what is short where vLLM did not start for want of memory, in its own words first."""
    model, cache = config.model_config, config.cache_config
    size = (
        ""
        if cache.kv_cache_memory_bytes is None
        else f" (kv_cache_memory_bytes is {cache.kv_cache_memory_bytes / GIB:.3f} GiB, and one "
        f"context of {model.max_model_len} tokens takes about {context_bytes(config) / GIB:.3f})"
    )
    return (
        f"vLLM: {model.model} does not fit the memory: {said}{size}. Lower model.max_model_len, "
        "change kv_cache_memory_bytes or gpu_memory_utilization, or use more GPUs a replica "
        "(tensor_parallel_size)"
    )
