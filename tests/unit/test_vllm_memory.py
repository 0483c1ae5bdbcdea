"""What vLLM on CPUs is given of the memory, and what is refused before it takes too much."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from raveval.engines import _vllm_memory
from raveval.engines._vllm_log import End
from raveval.errors import ResourceError

GIB = 1 << 30
TOKEN = 2 * 2 * 8 * 64 * 4  # two layers of keys and values, 8 heads of 64 floats


def config(model: str = "org/model", *, length: int = 1000, given: int | None = None) -> Any:
    """What is asked of vLLM's own: a model of two layers, in two processes."""
    return SimpleNamespace(
        model_config=SimpleNamespace(
            model=model,
            max_model_len=length,
            dtype=SimpleNamespace(itemsize=4),
            get_num_layers=lambda _: 2,
            get_num_kv_heads=lambda _: 8,
            get_head_size=lambda: 64,
        ),
        cache_config=SimpleNamespace(block_size=32, kv_cache_memory_bytes=given),
        parallel_config=SimpleNamespace(world_size=2),
    )


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Say how much memory is free."""

    def say(n_bytes: float) -> None:
        memory = SimpleNamespace(available=int(n_bytes))
        monkeypatch.setattr("psutil.virtual_memory", lambda: memory)

    return say


def test_the_cache_holds_a_context_and_leaves_half_of_the_memory(free: Any) -> None:
    free(64 * GIB)
    assert _vllm_memory.cache_bytes(config()) == 16384 * TOKEN
    assert _vllm_memory.cache_bytes(config(length=10_000)) == 40_000 * TOKEN
    assert _vllm_memory.cache_bytes(config(length=100_000)) == GIB
    least = (300_000 + 32) * TOKEN
    assert _vllm_memory.cache_bytes(config(length=300_000)) == least > GIB
    free(GIB / 4)
    assert _vllm_memory.cache_bytes(config()) == GIB // 16
    assert _vllm_memory.cache_bytes(config(given=12345)) == 12345


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"length": 100_000}, r"cache of one context of 100000 tokens 1\.5 GiB.*max_model_len"),
        ({"given": GIB}, r"cache of kv_cache_memory_bytes 2\.0 GiB.*lower kv_cache_memory_bytes"),
    ],
)
def test_a_cache_that_does_not_fit_is_refused(
    free: Any, settings: dict[str, Any], said: str
) -> None:
    free(1.5 * GIB)
    with pytest.raises(ResourceError, match=said) as refused:
        _vllm_memory.cache_bytes(config(**settings))
    assert "and 1.5 GiB of memory are free" in str(refused.value)


def test_weights_count_as_they_are_loaded(free: Any, tmp_path: Path) -> None:
    """In half precision on disk, in float32 in memory; quantised ones as they are."""
    save_file({"a": np.zeros((64, 1 << 20), np.float16)}, tmp_path / "model.safetensors")
    free(0.25 * GIB)
    with pytest.raises(ResourceError, match=r"weights take 0\.2 GiB .* or take a smaller model"):
        _vllm_memory.cache_bytes(config(str(tmp_path)))
    save_file({"a": np.zeros((64, 1 << 20), np.uint8)}, tmp_path / "model.safetensors")
    assert _vllm_memory.cache_bytes(config(str(tmp_path), given=GIB // 16)) == GIB // 16


def test_want_of_memory_is_known_by_what_was_raised_and_where() -> None:
    assert End("torch.OutOfMemoryError: CUDA out of memory", "a.py").is_want_of_memory
    assert End("MemoryError", None).is_want_of_memory
    assert End("ValueError: too small", "/v/core/kv_cache_utils.py").is_want_of_memory
    assert not End("ValueError: MemoryError", "/v/core/loader.py").is_want_of_memory
    try:
        raise MemoryError
    except MemoryError as exc:
        end = End.of(exc)
    assert end == End("MemoryError", __file__)
    said = _vllm_memory.refusal(config(given=1 << 20), end.words)
    assert "org/model does not fit the memory: MemoryError" in said
    assert "is 0.001 GiB, and one context of 1000 tokens takes about 0.008" in said
