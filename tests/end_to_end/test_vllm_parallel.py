"""One model spread over several processes, as over several GPUs: the same numbers as in one.

The model is a small one with random weights; each start here takes several processes that import
vLLM one after the other. Tolerance: 2e-4 nats a token, both sides in float32.
"""

import asyncio
import gc
import importlib

import pytest
from transformers import LlamaConfig

from raveval.engines import vllm
from raveval.types import AdapterRef, Generate, ModelRef, Sampling, ScoreChoices, ScoreDocument
from tests.adapters import write_adapter
from tests.checkpoints import CORPUS, write_model

pytestmark = pytest.mark.model

TOKEN_NATS = 2e-4
TEXT = " ".join(CORPUS[:3])
REQUESTS = (
    ScoreChoices("choices", TEXT, (" yes", " no, it is not", " Paris"), "Answer:"),
    ScoreDocument("document", TEXT * 3),
    Generate("greedy", TEXT, Sampling(8, temperature=0.0)),
)
WIDTH, N_VALUES = 128, 64


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Four layers, four heads, a vocabulary that does not divide by two blocks of 64."""
    importlib.import_module("llvmlite.binding.ffi")
    path = tmp_path_factory.mktemp("parallel") / "model"
    config = LlamaConfig(
        vocab_size=400,
        hidden_size=WIDTH,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=256,
        bos_token_id=0,
        eos_token_id=1,
    )
    write_model(path, config, sharpness=5)
    adapter = path.parent / "adapter"
    shapes = {"q_proj": (WIDTH, WIDTH), "v_proj": (WIDTH, N_VALUES), "o_proj": (WIDTH, WIDTH)}
    names = {
        f"model.layers.{i}.self_attn.{n}": shape for i in range(4) for n, shape in shapes.items()
    }
    write_adapter(adapter, names, size=0.1)
    return ModelRef(path=str(path), dtype="float32", adapter=AdapterRef(path=str(adapter)))


async def ask(engine):
    try:
        return await asyncio.gather(*(engine.reply(request) for request in REQUESTS))
    finally:
        await engine.close()


def replies(model, options):
    engine = vllm.start(model, options)
    assert engine.describe()["score_hook"] != "none"
    found = asyncio.run(ask(engine))
    del engine
    gc.collect()  # here, where what vLLM leaves open is excused
    return found


@pytest.fixture(scope="module")
def alone(model):
    return replies(model, vllm.Options())


@pytest.mark.filterwarnings("ignore:Unclosed:ResourceWarning")  # sockets that vLLM leaves open
@pytest.mark.parametrize(
    "split",
    [vllm.Options(tensor_parallel_size=2), vllm.Options(pipeline_parallel_size=2)],
    ids=["tensors", "layers"],
)
def test_two_processes_give_the_numbers_of_one(model, alone, split, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # one for each of the two
    choices, document, greedy = replies(model, split)
    expected = alone[0]
    assert choices.is_greedy == expected.is_greedy
    for found, own, n in zip(
        (*choices.logprob_nats, *choices.unconditional_nats),
        (*expected.logprob_nats, *expected.unconditional_nats),
        choices.n_tokens * 2,
        strict=True,
    ):
        assert found == pytest.approx(own, abs=TOKEN_NATS * n)
    n_tokens = document.n_tokens
    assert document.logprob_nats == pytest.approx(alone[1].logprob_nats, abs=TOKEN_NATS * n_tokens)
    assert document.entropy_nats == pytest.approx(alone[1].entropy_nats, abs=TOKEN_NATS * n_tokens)
    assert greedy == alone[2]
