"""LoRA adapters against a float32 forward pass through the model they are merged into.

The adapters are random and large enough to move every log-likelihood. Tolerances: 2e-4 nats a
token, 1e-4 for an entropy a token, as without one; a rank of four adds nothing to the rounding.
"""

import asyncio
import gc
import importlib
import json
from dataclasses import replace

import pytest
import torch

from raveval.engines import transformers, vllm
from raveval.errors import ModelError
from raveval.types import (
    AdapterRef,
    Generate,
    ModelRef,
    Sampling,
    ScoreChoices,
    ScoreDocument,
)
from tests.adapters import write_adapter
from tests.end_to_end.direct import Direct

pytestmark = pytest.mark.model

TOKEN_NATS = 2e-4
ENTROPY_NATS = 1e-4
TEXT = (
    "The lighthouse stood on the last rock before the open sea. Every evening its keeper climbed "
    "one hundred and twelve steps, trimmed the wick, and wrote the hour into a book that nobody "
    "had read for thirty years. Ships passed far out, and some of them blinked an answer."
)
QUESTION = f"{TEXT}\nQuestion: what did the keeper climb?\nAnswer:"
CHOICES = ScoreChoices(
    "choices",
    QUESTION,
    (" steps", " a mountain", " the mast", " the last rock before the open sea"),
    unconditional_context="Answer:",
)
DOCUMENT = ScoreDocument("document", TEXT)
BEGINNING = TEXT[:80]
GREEDY = Generate("greedy", BEGINNING, Sampling(12, temperature=0.0))
SAMPLED = Generate("sampled", TEXT[:120], Sampling(8, temperature=1.0, top_p=0.9, seed=5))
REQUESTS = (CHOICES, DOCUMENT, GREEDY, SAMPLED)


@pytest.fixture(scope="module")
def layers(demo_model):
    """(n_in, n_out) of the layers to change: the queries and the values of every block."""
    config = json.loads((demo_model / "config.json").read_text())
    width, n_heads = config["hidden_size"], config["num_attention_heads"]
    n_values = width // n_heads * config["num_key_value_heads"]
    blocks = range(config["num_hidden_layers"])
    return {
        f"model.layers.{i}.self_attn.{name}": (width, n_out)
        for i in blocks
        for name, n_out in (("q_proj", width), ("v_proj", n_values))
    }


@pytest.fixture(scope="module")
def written(layers, tmp_path_factory):
    """The adapter's directory, and what it adds to each layer's weights."""
    path = tmp_path_factory.mktemp("adapters") / "tuned"
    return path, write_adapter(path, layers)


@pytest.fixture(scope="module")
def model(demo_model, written):
    importlib.import_module("llvmlite.binding.ffi")  # as metrics do, before an engine starts
    adapter = AdapterRef(path=str(written[0]))
    return ModelRef(path=str(demo_model), dtype="float32", max_model_len=256, adapter=adapter)


@pytest.fixture(scope="module")
def merged(demo_model, written):
    """The model with the adapter in its weights."""
    direct = Direct.load(demo_model)
    with torch.no_grad():
        for name, added in written[1].items():
            direct.model.get_submodule(name).weight += torch.from_numpy(added)
    return direct


@pytest.fixture(scope="module")
def engine(model):
    running = vllm.start(model, vllm.Options())
    yield running
    asyncio.run(running.close())


def ask(engine, *requests):
    async def all_at_once():
        return await asyncio.gather(*(engine.reply(request) for request in requests))

    return asyncio.run(all_at_once())


def assert_is(merged, choices, document):
    """Replies are those of the merged model."""
    for context, found in (
        (QUESTION, choices.logprob_nats),
        ("Answer:", choices.unconditional_nats),
    ):
        for continuation, nats in zip(CHOICES.continuations, found, strict=True):
            ids = merged.ids(context + continuation)
            n = len(ids) - len(merged.ids(context))
            expected = float(merged.score(ids, n).logprob.sum())
            assert nats == pytest.approx(expected, abs=TOKEN_NATS * n)
    ids = [merged.tokenizer.bos_token_id, *merged.ids(TEXT)]
    expected = merged.score(ids, len(ids) - 1)
    assert document.n_tokens == len(ids) - 1
    assert document.logprob_nats / document.n_tokens == pytest.approx(
        float(expected.logprob.mean()), abs=TOKEN_NATS
    )
    assert document.entropy_nats / document.n_tokens == pytest.approx(
        float(expected.entropy.mean()), abs=ENTROPY_NATS
    )


def test_vllm_gives_what_the_merged_model_gives(engine, merged, direct):
    assert engine.describe()["score_hook"] != "none"
    choices, document, greedy, _ = ask(engine, *REQUESTS)
    assert_is(merged, choices, document)
    ids = [merged.tokenizer.bos_token_id, *merged.ids(TEXT)]
    alone = direct.score(ids, len(ids) - 1)
    assert abs(document.logprob_nats - float(alone.logprob.sum())) > 1, "the adapter did nothing"
    prompt = torch.tensor([merged.ids(BEGINNING)])
    with torch.inference_mode():
        text = merged.model.generate(prompt, max_new_tokens=12, do_sample=False)[0]
    assert greedy.text == merged.tokenizer.decode(text[prompt.shape[1] :])


on_cpus = pytest.mark.skipif(torch.cuda.is_available(), reason="on GPUs the batch moves digits")


@on_cpus
def test_a_reply_is_the_same_bits_alone_and_in_company(engine):
    alone = [ask(engine, request)[0] for request in REQUESTS]
    assert ask(engine, *REQUESTS) == alone
    assert ask(engine, *REQUESTS[::-1])[::-1] == alone


@on_cpus
@pytest.mark.filterwarnings("ignore:Unclosed:ResourceWarning")  # sockets that vLLM leaves open
def test_the_engine_in_its_own_process_gives_the_same(engine, model):
    other = vllm.start(model, vllm.Options(mode="async"))
    try:
        assert ask(other, *REQUESTS) == ask(engine, *REQUESTS)
    finally:
        asyncio.run(other.close())
        del other
        gc.collect()  # here, where they are excused


def test_transformers_gives_what_the_merged_model_gives(model, merged, engine):
    running = transformers.start(model, transformers.Options())
    try:
        choices, document, greedy, _ = ask(running, *REQUESTS)
    finally:
        asyncio.run(running.close())
    assert_is(merged, choices, document)
    assert greedy.text == ask(engine, GREEDY)[0].text


def test_what_vllm_would_leave_out_is_refused(model, layers, tmp_path):
    """It fits a change of a smaller model into the larger one, and passes over unknown layers."""
    width = layers["model.layers.0.self_attn.q_proj"][0]
    strange = {
        "model.layers.0.self_attn.q_proj": (width // 2, width),
        "model.layers.77.self_attn.q_proj": (width, width),
    }
    write_adapter(tmp_path / "strange", strange)
    other = replace(model, adapter=AdapterRef(path=str(tmp_path / "strange")))
    with pytest.raises(ModelError, match=r"would leave out 2 of its changes.*of another shape"):
        vllm.start(other, vllm.Options())
    write_adapter(tmp_path / "wide", layers, rank=513)
    other = replace(model, adapter=AdapterRef(path=str(tmp_path / "wide")))
    with pytest.raises(ModelError, match="its rank is 513, and vLLM takes up to 512"):
        vllm.start(other, vllm.Options())
