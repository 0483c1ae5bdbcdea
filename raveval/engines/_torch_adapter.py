"""Applies a LoRA adapter to a model of transformers, as PEFT does: beside each layer, unmerged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from safetensors.torch import load_file

from raveval.adapters import PREFIX, WEIGHTS_NAME, Adapter
from raveval.errors import ModelError


def apply(adapter: Adapter, whole: Any) -> None:
    """Have each changed layer add `scale` * B (A x) to what it gives.

    The weights stay as they are, so that nothing is rounded that vLLM does not round.

    Raises:
        ModelError: the model has no such layer, or one of another shape.
    """
    tensors = load_file(adapter.directory / WEIGHTS_NAME)
    layers = dict(whole.named_modules())
    for name, change in adapter.changes.items():
        weight = getattr(layers.get(name), "weight", None)
        shape = adapter.shape_of(change)
        if weight is None or tuple(weight.shape) != shape:
            there = "no such layer" if weight is None else f"one of shape {list(weight.shape)}"
            raise ModelError(
                f"adapter {adapter.name!r}: it changes {name} of shape {list(shape)}, and the "
                f"model has {there}. Was the adapter trained on this model?"
            )
        a, b = (_half(tensors, name, half).to(weight) for half in "AB")
        layers[name].register_forward_hook(_addition(a, b, change.scale))


def _half(tensors: dict[str, torch.Tensor], name: str, half: str) -> torch.Tensor:
    names = (f"{prefix}{name}.lora_{half}.weight" for prefix in (PREFIX, ""))
    return next(tensors[each] for each in names if each in tensors)


def _addition(
    a: torch.Tensor, b: torch.Tensor, scale: float
) -> Callable[[Any, tuple[Any, ...], torch.Tensor], torch.Tensor]:
    def add(_: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
        return output + (inputs[0] @ a.T) @ b.T * scale

    return add
