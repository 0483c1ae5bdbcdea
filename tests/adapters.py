"""Small LoRA adapters that tests write, as PEFT would."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

Layers = Mapping[str, tuple[int, int]]
"""(n_in, n_out) of each layer, by its name."""


def write_adapter(
    path: Path, layers: Layers, *, rank: int = 4, size: float = 0.05, **settings: Any
) -> dict[str, np.ndarray[Any, Any]]:
    """Write random changes of some layers; return what is to be added to each one's weights."""
    random = np.random.default_rng(sum(map(ord, path.name)))
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": "base",
        "r": rank,
        "lora_alpha": 8,
        "target_modules": sorted({name.rpartition(".")[2] for name in layers}),
        **settings,
    }
    path.mkdir(parents=True)
    (path / "adapter_config.json").write_text(json.dumps(config))
    tensors, added = {}, {}
    for name, (n_in, n_out) in layers.items():
        a, b = (
            (random.standard_normal(shape) * size).astype(np.float32)
            for shape in ((rank, n_in), (n_out, rank))
        )
        tensors[f"base_model.model.{name}.lora_A.weight"] = a
        tensors[f"base_model.model.{name}.lora_B.weight"] = b
        scale = config["lora_alpha"] / (np.sqrt(rank) if config.get("use_rslora") else rank)
        added[name] = (b.astype(np.float64) @ a * scale).astype(np.float32)
    save_file(tensors, path / "adapter_model.safetensors")
    return added
