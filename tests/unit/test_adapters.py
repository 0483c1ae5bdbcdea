"""What is read of a LoRA adapter, and which are refused before an engine starts."""

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from raveval import adapters
from raveval.adapters import Change
from raveval.config import EngineConfig, ModelConfig
from raveval.errors import ConfigError, ModelError
from raveval.models import ChosenModel, choose
from raveval.types import AdapterRef
from tests.adapters import write_adapter
from tests.checkpoints import write_checkpoint

Q, V = "model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.v_proj"
LAYERS = {Q: (32, 48), V: (32, 16)}


def read(path: Path) -> adapters.Adapter:
    return adapters.fetched(AdapterRef(path=str(path)))


def write_base(path: Path, layers: dict[str, tuple[int, int]], dtype: Any = np.float32) -> Path:
    path.mkdir(exist_ok=True)
    tensors = {f"{name}.weight": np.zeros(shape[::-1], dtype) for name, shape in layers.items()}
    save_file(tensors, path / "model.safetensors")
    return path


def test_changes_have_rank_shape_and_scale(tmp_path: Path) -> None:
    write_adapter(tmp_path / "a", LAYERS)
    found = read(tmp_path / "a")
    assert found.changes == {Q: Change(4, 32, 48, 2.0), V: Change(4, 32, 16, 2.0)}
    assert (found.rank, found.targets) == (4, ["q_proj", "v_proj"])
    write_adapter(tmp_path / "b", LAYERS, use_rslora=True, alpha_pattern={"layers.1.*v_proj": 1})
    assert read(tmp_path / "b").changes == {
        Q: Change(4, 32, 48, 8 / math.sqrt(4)),
        V: Change(4, 32, 16, 1 / math.sqrt(4)),
    }
    write_adapter(tmp_path / "c", {"model.layers.0.mlp.experts.3.up_proj": (8, 8)})
    assert read(tmp_path / "c").targets == ["experts", "up_proj"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"use_dora": True}, "use_dora: True, which is more than LoRA"),
        ({"bias": "all"}, "bias: 'all'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights"),
    ],
)
def test_what_is_more_than_lora_is_refused(
    tmp_path: Path, settings: dict[str, Any], said: str
) -> None:
    write_adapter(tmp_path / "a", LAYERS, **settings)
    with pytest.raises(ModelError, match=said):
        read(tmp_path / "a")


def test_what_is_no_whole_adapter_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with pytest.raises(ModelError, match="no such directory"):
        read(path)
    path.mkdir()
    with pytest.raises(ModelError, match=r"it has no adapter_config\.json"):
        read(path)
    path.rmdir()
    write_adapter(path, LAYERS)
    weights = path / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-4])
    with pytest.raises(ModelError, match=rf"has {len(whole) - 4} of {len(whole)} bytes"):
        read(path)
    weights.rename(path / "adapter_model.bin")
    with pytest.raises(ModelError, match=r"no adapter_model\.safetensors .*Save it"):
        read(path)
    (path / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4}')
    with pytest.raises(ModelError, match="lora_alpha"):
        read(path)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({f"{Q}.lora_A.weight": (4, 32)}, r"lora_B of shape \[\]"),
        ({f"{Q}.lora_A.weight": (4, 32), f"{Q}.lora_B.weight": (8, 2)}, "do not fit each other"),
        ({"lm_head.lora_A.weight": (4, 32)}, "lm_head.*Merge the adapter"),
        ({"model.embed_tokens.lora_embedding_A": (4, 32)}, "embed_tokens"),
        ({f"{Q}.lora_magnitude_vector": (8,)}, "magnitude"),
        ({}, "no tensor of LoRA"),
    ],
)
def test_tensors_that_are_no_changes_of_linear_layers(
    tmp_path: Path, tensors: dict[str, tuple[int, ...]], said: str
) -> None:
    write_adapter(tmp_path / "a", LAYERS)
    zeros = {f"base_model.model.{name}": np.zeros(shape) for name, shape in tensors.items()}
    save_file(zeros, tmp_path / "a" / "adapter_model.safetensors")
    with pytest.raises(ModelError, match=said):
        read(tmp_path / "a")


def test_an_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    write_adapter(tmp_path / "a", LAYERS)
    adapter = read(tmp_path / "a")
    base = write_base(tmp_path / "base", LAYERS)
    adapters.check_base(adapter, base)
    write_base(base, {Q: (32, 48), V: (32, 8)})
    with pytest.raises(ModelError, match=r"shape \[16, 32\], which is of shape \[8, 32\]"):
        adapters.check_base(adapter, base)
    write_base(base, {Q: (32, 48)})
    with pytest.raises(ModelError, match=r"layers\.1\.self_attn\.v_proj .*not there"):
        adapters.check_base(adapter, base)
    # What says nothing: quantised weights, and names that are others altogether.
    write_base(base, {Q: (4, 48), V: (4, 16)}, np.uint8)
    adapters.check_base(adapter, base)
    write_base(base, {"h.0.attn": (32, 48)})
    adapters.check_base(adapter, base)


def chosen(tmp_path: Path, engine: str = "vllm", **adapter: Any) -> ChosenModel:
    model = {"path": str(tmp_path / "base"), "adapter": adapter or {"path": str(tmp_path / "a")}}
    config = ModelConfig.model_validate(model)
    return choose(config, EngineConfig(name=engine), where="evaluate", say=print)


def test_an_adapter_is_a_part_of_what_the_model_is(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "base")
    write_adapter(tmp_path / "a", LAYERS)
    with_adapter = chosen(tmp_path)
    alone = ModelConfig(path=str(tmp_path / "base"))
    plain = choose(alone, EngineConfig(name="vllm"), where="evaluate", say=print)
    first, without = with_adapter.identity(), plain.identity()
    assert set(first["model"]) - set(without["model"]) == {"adapter"}
    assert first["model"]["weights"] == without["model"]["weights"]
    assert f"base + {tmp_path}/a (engine vllm" in with_adapter.line("model")
    settings = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    (tmp_path / "a" / "adapter_config.json").write_text(json.dumps(settings | {"lora_alpha": 9}))
    assert chosen(tmp_path).identity()["model"]["adapter"] != first["model"]["adapter"]
    with pytest.raises(
        ConfigError, match=r"evaluate\.model\.adapter: the engine 'scripted' takes n"
    ):
        chosen(tmp_path, "scripted")


def test_an_adapter_instead_of_a_model_is_named(tmp_path: Path) -> None:
    write_adapter(tmp_path / "base", LAYERS)
    with pytest.raises(ModelError, match="is a LoRA adapter, not a model"):
        chosen(tmp_path)


def test_an_adapter_of_the_hub_is_taken_at_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path / "base")
    snapshot = tmp_path / "snapshots" / "c0ffee"
    write_adapter(snapshot, LAYERS)
    asked = []

    def download(id: str, file: str, *, revision: str | None) -> str:
        asked.append((id, file, revision))
        if not (snapshot / file).exists():
            raise FileNotFoundError("404 Client Error\nand more")
        return str(snapshot / file)

    hub = SimpleNamespace(hf_hub_download=download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    model = chosen(tmp_path, id="org/adapter", revision="v1")
    assert asked == [("org/adapter", "adapter_config.json", "v1")], "the plan fetches no weights"
    assert model.ref.adapter == AdapterRef(id="org/adapter", revision="c0ffee")
    assert model.identity()["model"]["adapter"] == {"id": "org/adapter", "revision": "c0ffee"}
    found = adapters.fetched(model.ref.adapter)
    assert (found.name, found.rank) == ("org/adapter", 4)
    assert {revision for _, _, revision in asked[1:]} == {"c0ffee"}
    (snapshot / "adapter_config.json").unlink()
    with pytest.raises(ModelError, match=r"'org/adapter' \(revision main\).*404"):
        chosen(tmp_path, id="org/adapter")
