"""A LoRA adapter as PEFT writes it: what it changes of a model, and whether it can be used.

Only its configuration and the header of its weights are read, so no engine is needed. What cannot
be used in the same way by every engine is refused here, before one starts: weights that are whole
instead of low in rank, changes of the embedding or of the output layer (vLLM does not apply these
where it scores a prompt), and variants of LoRA that compute something else.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from raveval.errors import ModelError
from raveval.types import AdapterRef
from raveval.weights import TensorKind, fault_of_file, read_kinds

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"
FILES = (CONFIG_NAME, WEIGHTS_NAME)
PREFIX = "base_model.model."
"""What the names of tensors may begin with, before the layer's."""

_MERGE = (
    "Merge the adapter into its model (PEFT's merge_and_unload, then save_pretrained) and evaluate "
    "that"
)
_HALF = re.compile(r"(?P<layer>.+)\.lora_(?P<half>[AB])\.weight")
_FLOATS = ("F64", "F32", "F16", "BF16")
_WITHOUT = (
    *("use_dora", "lora_bias", "alora_invocation_tokens", "layer_replication", "use_qalora"),
    *("use_bdlora", "modules_to_save", "trainable_token_indices", "target_parameters"),
)
"""Settings that make something else of LoRA."""
_PLAIN_STARTS = ("gaussian", "eva", "orthogonal", "mica", "lora_ga")
"""Ways to initialise an adapter that leave the model's own weights alone."""


class Change(NamedTuple):
    """What an adapter adds to one linear layer: `scale` * B @ A, of shape `(n_out, n_in)`."""

    rank: int
    n_in: int
    n_out: int
    scale: float


@dataclass(frozen=True, slots=True)
class Adapter:
    """A whole adapter on this machine.

    Attributes:
        name: what it was asked for by.
        changes: by the layer's name in the model that it was trained on.
        is_transposed: the model's weights lie as (n_in, n_out), as GPT-2's do.
    """

    name: str
    directory: Path
    changes: Mapping[str, Change]
    is_transposed: bool

    def shape_of(self, change: Change) -> tuple[int, int]:
        """Return the shape in which the model has the weights of a changed layer."""
        shape = (change.n_out, change.n_in)
        return shape[::-1] if self.is_transposed else shape

    @property
    def rank(self) -> int:
        """The largest rank of its changes."""
        return max(change.rank for change in self.changes.values())

    @property
    def targets(self) -> list[str]:
        """The last parts of its layers' names, and that of the whole of a layer's experts."""
        names = {layer.rpartition(".")[2] for layer in self.changes}
        return sorted(names | {"experts" for layer in self.changes if ".experts" in layer})


def located(ref: AdapterRef) -> AdapterRef:
    """Return an adapter with its commit where it is the hub's; of that only the settings come.

    Raises:
        ModelError: there is none, or one that cannot be used.
    """
    if ref.path is not None:
        return ref
    file = _from_hub(ref, CONFIG_NAME)
    _settings(ref.name, file)
    return replace(ref, revision=file.parent.name)  # it lies in `snapshots/<commit>/`


def fetched(ref: AdapterRef) -> Adapter:
    """Return an adapter that lies on this machine, or comes from the hub now.

    Raises:
        ModelError: there is none, or one that cannot be used.
    """
    if ref.path is not None:
        return _read(ref.name, Path(ref.path))
    files = [_from_hub(ref, name) for name in FILES]
    return _read(ref.name, files[0].parent)


def _from_hub(ref: AdapterRef, file: str) -> Path:
    """Fetch a file of an adapter on the hub.

    Raises:
        ModelError: it is not there, or the hub does not answer.
    """
    try:
        from huggingface_hub import hf_hub_download
    except ImportError as exc:
        raise ModelError(
            f"adapter {ref.name!r}: fetching it needs huggingface_hub: pip install 'raveval[hub]'"
        ) from exc
    try:
        return Path(hf_hub_download(ref.id, file, revision=ref.revision))
    except Exception as exc:  # the hub's client raises many kinds, of several libraries
        words = str(exc).strip().splitlines() or [type(exc).__name__]
        raise ModelError(
            f"adapter {ref.name!r} (revision {ref.revision or 'main'}): no {file} there, or the "
            f"hub does not answer: {words[0]}"
        ) from exc


def _read(name: str, directory: Path) -> Adapter:
    """Read what an adapter in a directory changes.

    Raises:
        ModelError: there is none, it is not whole, or it cannot be used.
    """
    if not directory.is_dir():
        raise ModelError(
            f"adapter {name!r}: no such directory (looked from {Path.cwd()}). Give the directory "
            f"that holds {CONFIG_NAME}, or use `id` for an adapter on the hub"
        )
    settings = _settings(name, directory / CONFIG_NAME)
    weights = directory / WEIGHTS_NAME
    if not weights.is_file():
        held = sorted(entry.name for entry in directory.iterdir())[:5]
        raise ModelError(
            f"adapter {name!r}: it has no {WEIGHTS_NAME} (it holds {', '.join(held)}). Save it "
            "with PEFT's save_pretrained, in safetensors"
        )
    fault = fault_of_file(weights)
    if fault is not None:
        raise ModelError(
            f"adapter {name!r}: {fault}. Is it still being written, or a copy that was cut short?"
        )
    halves = _halves(name, read_kinds(weights))
    changes = {layer: _change(name, layer, settings, pair) for layer, pair in halves.items()}
    if not changes:
        raise ModelError(f"adapter {name!r}: {WEIGHTS_NAME} holds no tensor of LoRA")
    return Adapter(name, directory, changes, bool(settings.get("fan_in_fan_out")))


def _settings(name: str, path: Path) -> dict[str, Any]:
    """Read an adapter's configuration.

    Raises:
        ModelError: there is none, or it asks for more than LoRA of linear layers.
    """
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        kind, start = settings["peft_type"], settings.get("init_lora_weights", True)
        float(settings["lora_alpha"])
    except OSError as exc:
        raise ModelError(
            f"adapter {name!r}: not an adapter: it has no {CONFIG_NAME}, which PEFT writes"
        ) from exc
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise ModelError(
            f"adapter {name!r}: {CONFIG_NAME} is no configuration of LoRA: {exc!r}"
        ) from exc
    if kind != "LORA":
        raise ModelError(f"adapter {name!r}: peft_type is {kind!r}; only LORA can be used")
    asked = [f"{key}: {settings[key]!r}" for key in _WITHOUT if settings.get(key)]
    if settings.get("bias", "none") != "none":
        asked.append(f"bias: {settings['bias']!r}")
    if isinstance(start, str) and start.lower() not in _PLAIN_STARTS:
        asked.append(f"init_lora_weights: {start!r}")
    if asked:
        raise ModelError(
            f"adapter {name!r}: {CONFIG_NAME} has {', '.join(asked)}, which is more than LoRA of "
            f"linear layers. {_MERGE}"
        )
    return dict(settings)


def _halves(name: str, kinds: Mapping[str, TensorKind]) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return the shapes of the halves "A" and "B" of each layer's change."""
    halves: dict[str, dict[str, tuple[int, ...]]] = {}
    for tensor, kind in kinds.items():
        match = _HALF.fullmatch(tensor.removeprefix(PREFIX))
        layer = match["layer"] if match else tensor
        if match is None or layer.rpartition(".")[2] in ("embed_tokens", "lm_head"):
            raise ModelError(
                f"adapter {name!r}: {WEIGHTS_NAME} holds {tensor!r}; only linear layers between "
                f"the embedding and the output layer can be adapted. {_MERGE}"
            )
        halves.setdefault(layer, {})[match["half"]] = kind.shape
    return halves


def _change(
    name: str, layer: str, settings: Mapping[str, Any], halves: Mapping[str, tuple[int, ...]]
) -> Change:
    """Return one layer's change; its rank is that of the tensors, as PEFT's is."""
    a, b = halves.get("A", ()), halves.get("B", ())
    if len(a) != 2 or len(b) != 2 or a[0] != b[1]:
        raise ModelError(
            f"adapter {name!r}: layer {layer!r} has lora_A of shape {list(a)} and lora_B of shape "
            f"{list(b)}, which do not fit each other; is the file complete?"
        )
    rank = a[0]
    alpha = _of_pattern(settings.get("alpha_pattern"), layer, settings["lora_alpha"])
    root = math.sqrt(rank) if settings.get("use_rslora") else rank
    return Change(rank, a[1], b[0], float(alpha) / root)


def _of_pattern(patterns: Any, layer: str, otherwise: Any) -> Any:
    """Return what the first pattern that a layer's name ends with sets, as PEFT looks it up."""
    for pattern, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", layer):
            return value
    return otherwise


def check_base(adapter: Adapter, base: Path) -> None:
    """Refuse an adapter that was trained on another model, as far as the headers of weights tell.

    Layers are looked up by name. Where none is known, the weights are named or stored otherwise
    (quantised, or not in safetensors), and the engine will say.

    Raises:
        ModelError: a layer that the model lacks, or has in another shape.
    """
    kinds: dict[str, TensorKind] = {}
    for path in base.glob("*.safetensors"):
        if path.name != WEIGHTS_NAME:
            kinds |= read_kinds(path)
    there = {name.rpartition(".")[0] for name in kinds}
    shapes = {name: kind.shape for name, kind in kinds.items() if kind.dtype in _FLOATS}
    if not there & adapter.changes.keys():
        return
    for layer, change in adapter.changes.items():
        shape = adapter.shape_of(change)
        found = shapes.get(f"{layer}.weight", shape)  # of quantised weights it says nothing
        if layer not in there or found != shape:
            what = f"of shape {list(found)}" if layer in there else "not there"
            raise ModelError(
                f"adapter {adapter.name!r}: it changes {layer} of shape {list(shape)}, which is "
                f"{what} in {str(base)!r}. It was trained on another model ({CONFIG_NAME} says on "
                "which: base_model_name_or_path)"
            )
