"""A LoRA adapter in vLLM: one, in front of every request, and all of it or none.

Its layers alone are made ready for it, and after loading each of its changes is looked for in the
model's layers, since vLLM passes in silence over what has no place there.
"""

from __future__ import annotations

from typing import Any

from raveval.adapters import Adapter
from raveval.engines._vllm_backends import InProcess, OwnProcess, words
from raveval.errors import ModelError

_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # `MaxLoRARanks` of vLLM


def settings(adapter: Adapter) -> dict[str, Any]:
    """Return what makes room for one adapter, in those layers that it changes and in no others.

    Were all layers made ready, the output layer would be too, and refuse to form the logits of any
    positions but those that are sampled from.

    Raises:
        ModelError: vLLM has no room for its rank.
    """
    ranks = [rank for rank in _LORA_RANKS if rank >= adapter.rank]
    if not ranks:
        raise ModelError(
            f"adapter {adapter.name!r}: its rank is {adapter.rank}, and vLLM takes up to "
            f"{max(_LORA_RANKS)}; merge it into its model, or use the engine transformers"
        )
    return {
        "enable_lora": True,
        "max_loras": 1,
        "max_lora_rank": min(ranks),
        "lora_target_modules": adapter.targets,
    }


def apply(adapter: Adapter, backend: InProcess | OwnProcess) -> None:
    """Load an adapter for all requests to come, and see that vLLM took all of it.

    Raises:
        ModelError: vLLM refuses it, or would leave out a part of it.
    """
    from vllm.lora.request import LoRARequest

    # The prefix cache knows an adapter by its name and directory.
    request = LoRARequest(adapter.name, 1, str(adapter.directory.absolute()))
    try:
        backend.adopt(request)
        leftovers = [set(layers) for layers in backend.call("raveval_leftover_changes")]
    except Exception as exc:  # vLLM raises all kinds, and across processes one for all
        backend.close()
        raise ModelError(f"adapter {adapter.name!r}: vLLM cannot apply it: {words(exc)}") from exc
    nowhere = sorted(set.intersection(*leftovers))  # each stage of a pipeline holds some layers
    if nowhere:
        backend.close()
        raise ModelError(
            f"adapter {adapter.name!r}: vLLM would leave out {len(nowhere)} of its changes, such "
            f"as that of {nowhere[0]}: the model has no such layer, or one of another shape. Was "
            "the adapter trained on this model?"
        )


def leftover_changes(manager: Any) -> list[str]:
    """Return the layers that the only adapter changes, and vLLM's manager of adapters does not.

    It goes through the model's layers and takes the change of each, so that one of another layer is
    left out in silence; and it copies a change into the room that there is, so that one of a
    smaller model fits.
    """
    (adapter,) = manager.list_adapters().values()
    fitting = {
        name
        for name, layer in manager.modules.items()
        if name in adapter.loras and _fits(adapter.loras[name], layer.base_layer)
    }
    return sorted(adapter.loras.keys() - fitting)


def _fits(change: Any, layer: Any) -> bool:
    """Whether a change of a linear layer, or of several packed into one, has its very shape."""
    if not hasattr(layer, "input_size"):
        return True  # the experts of a mixture, which vLLM checks
    if not isinstance(change.lora_a, list):
        shape = (change.lora_a.shape[1], change.lora_b.shape[0])
        return bool(shape == (layer.input_size, layer.output_size))
    parts = zip(change.lora_a, change.lora_b, layer.output_sizes, strict=True)
    return all(
        a is None or (a.shape[1], b.shape[0]) == (layer.input_size, size) for a, b, size in parts
    )
