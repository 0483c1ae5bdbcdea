"""Replicas on the real engine that load almost the same checkpoint: those unlike the first one are
refused. The checkpoints are small and random, so that each start takes a second or two.
"""

import asyncio
import importlib
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from raveval.engines import vllm
from raveval.evaluate import TaskSpec
from raveval.protocols import TaskSettings
from raveval.store import RunDirectory
from raveval.types import Example, ModelRef, Sampling
from raveval.worker import RunPart, ShardWorker, WorkerSpec
from raveval.worker.watch import Patience
from tests.checkpoints import CHATML, write_checkpoint

pytestmark = pytest.mark.model
torch = pytest.importorskip("torch")

TASK = TaskSpec("multiple_choice", TaskSettings(Sampling(8)), ("accuracy",), "r", "s")
SIZES = {"hidden_size": 128, "intermediate_size": 256, "max_position_embeddings": 256}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    importlib.import_module("llvmlite.binding.ffi")  # see test_vllm_engine
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("vllm")
        from transformers import LlamaConfig, LlamaForCausalLM
    path = tmp_path_factory.mktemp("checkpoint") / "model"
    write_checkpoint(path, bos="<s>", adds_bos=True, chat_template=CHATML, config=SIZES)
    torch.manual_seed(3)
    LlamaForCausalLM(LlamaConfig(**json.loads((path / "config.json").read_text()))).save_pretrained(
        path
    )
    return path


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory(tmp_path / "run")
    directory.begin_session("mine")
    example = Example(
        id="1", prompt="Question: yes?\nAnswer:", continuations=(" yes", " no"), gold=0
    )
    directory.write_examples("t", [example], digest="d")
    return directory


def outcome(run: RunDirectory, checkpoint: Path, dtype: str = "float32") -> dict[str, Any]:
    """Start a replica of a checkpoint, give it the run's only shard, and end its engine."""
    started: list[Any] = []

    class Replica(ShardWorker):
        @override
        def _start(self) -> Any:
            started.append(super()._start())
            return started[0]

    model = ModelRef(path=str(checkpoint), dtype=dtype, max_model_len=128)
    parts = (RunPart(str(run.path), "mine", {"t": TASK}, None),)
    replica = Replica(WorkerSpec(parts, "vllm", vllm.Options(), model, Patience(60.0, 2.0)))

    async def first() -> dict[str, Any]:
        batch = {"run": [0], "task": ["t"], "index": [0], "start": [0], "stop": [1]}
        (row,) = [row async for row in replica(batch)]
        return row

    found = {key: values[0] for key, values in asyncio.run(first()).items()}
    for engine in started:
        asyncio.run(engine.close())
    return found


def test_a_replica_of_other_weights_or_another_template_is_refused(
    checkpoint: Path, run: RunDirectory, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    assert not outcome(run, checkpoint)["error"]
    alike = shutil.copytree(checkpoint, tmp_path / "alike")
    assert not outcome(run, alike)["error"]

    disturbed = shutil.copytree(checkpoint, tmp_path / "disturbed")
    weights = load_file(disturbed / "model.safetensors")
    weights["model.layers.1.mlp.down_proj.weight"] *= 1.5
    save_file(weights, disturbed / "model.safetensors", metadata={"format": "pt"})
    found = outcome(run, disturbed)
    assert found["error_kind"] == "MismatchError"
    assert "asked in plain text, the log-likelihood of" in found["error"]

    template = shutil.copytree(checkpoint, tmp_path / "template")
    assert (template / "chat_template.jinja").read_text() == CHATML
    (template / "chat_template.jinja").write_text(CHATML.replace("assistant", "bot"))
    found = outcome(run, template)
    assert found["error_kind"] == "MismatchError"
    assert "asked in chat turns, " in found["error"]


def test_a_replica_with_another_bos_or_dtype_is_refused(
    checkpoint: Path, run: RunDirectory, tmp_path: Path
) -> None:
    assert not outcome(run, checkpoint)["error"]
    bare = shutil.copytree(checkpoint, tmp_path / "bare")
    tokenizer = json.loads((bare / "tokenizer.json").read_text())
    assert tokenizer.pop("post_processor")
    (bare / "tokenizer.json").write_text(json.dumps({**tokenizer, "post_processor": None}))
    found = outcome(run, bare)
    assert found["error_kind"] == "MismatchError"
    assert "asked in plain text, n_prompt_tokens is" in found["error"]

    found = outcome(run, checkpoint, dtype="bfloat16")
    assert found["error_kind"] == "MismatchError"
    assert "dtype 'float32', this replica" in found["error"]
