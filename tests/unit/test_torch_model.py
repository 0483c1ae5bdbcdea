"""The numerics of the reference engine on logits and tiny models, and what it does when it breaks.

The demo model is measured in end_to_end/test_transformers_engine.py.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import Gemma2Config, GPT2Config, LlamaConfig

from raveval.engines import Engine, EngineDied, _torch_generation, _torch_model
from raveval.engines import transformers as engine
from raveval.engines._encoding import Sequence
from raveval.errors import ConfigError, ModelError
from raveval.types import (
    AdapterRef,
    ChoiceScores,
    Failure,
    Generate,
    ModelRef,
    Request,
    Sampling,
    ScoreChoices,
    ScoreDocument,
    Status,
)
from tests.adapters import write_adapter
from tests.checkpoints import write_model

TINY = {
    "vocab_size": 400,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "head_dim": 16,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
CONFIGS: dict[str, Any] = {
    "llama": LlamaConfig(**TINY),
    # Caps its logits behind the head, so trunk and head alone would give other numbers.
    "gemma2": Gemma2Config(**TINY, final_logit_softcapping=0.5, sliding_window=8),
    "gpt2": GPT2Config(
        vocab_size=400,
        n_embd=32,
        n_layer=2,
        n_head=2,
        n_positions=64,
        bos_token_id=0,
        eos_token_id=1,
    ),
}


def save(path: Path, config: Any, change: Callable[[Any], None] | None = None) -> ModelRef:
    """Write a model with random weights, sharp enough that its distributions are not flat."""
    return ModelRef(path=str(write_model(path, config, sharpness=8, change=change)))


def load(model: ModelRef) -> _torch_model.TorchModel:
    return _torch_model.load(model, end_id=1, trust_remote_code=False)


@pytest.mark.parametrize("name", CONFIGS)
def test_scores_of_any_architecture_equal_its_own_logits(tmp_path: Path, name: str) -> None:
    model = load(save(tmp_path / "m", CONFIGS[name]))
    assert (model.trunk is None) == (name == "gemma2")
    source = np.random.default_rng(1)
    sequences = tuple(
        Sequence(tuple(map(int, source.integers(0, 400, size))), n_scored)
        for size, n_scored in ((2, 1), (9, 3), (40, 39), (17, 1), (5, 4))
    )
    # Two more that differ from the fourth in their last token alone: they share a forward pass.
    sequences += (Sequence((*sequences[3].token_ids[:-1], 7), 1),)
    sequences += (Sequence((*sequences[3].token_ids[:-1], 9), 3),)
    for batch_size in (1, 3, 8):
        spans = _torch_model.score(model, sequences, batch_size=batch_size)
        for sequence, span in zip(sequences, spans, strict=True):
            with torch.inference_mode():
                logits = model.whole(torch.tensor([sequence.token_ids])).logits[0].double()
            rows = torch.log_softmax(logits, -1)[-sequence.n_scored - 1 : -1]
            targets = sequence.token_ids[-sequence.n_scored :]
            expected = sum(float(row[t]) for row, t in zip(rows, targets, strict=True))
            entropy = float(-(rows.exp() * rows).sum())
            n = sequence.n_scored
            assert span.logprob_nats == pytest.approx(expected, abs=1e-4 * n)
            assert span.entropy_nats == pytest.approx(entropy, abs=1e-4 * n)
            assert span.is_greedy == (rows.argmax(-1).tolist() == list(targets))


@pytest.mark.parametrize(
    ("name", "layers", "settings"),
    [
        ("llama", {"model.layers.1.mlp.up_proj": (32, 64)}, {"use_rslora": True}),
        ("gpt2", {"transformer.h.0.attn.c_attn": (32, 96)}, {"fan_in_fan_out": True}),
    ],
)
def test_an_adapter_adds_to_the_weights(
    tmp_path: Path, name: str, layers: dict[str, tuple[int, int]], settings: dict[str, Any]
) -> None:
    base = save(tmp_path / "m", CONFIGS[name])
    added = write_adapter(tmp_path / "a", layers, size=0.5, **settings)
    adapted = load(replace(base, adapter=AdapterRef(path=str(tmp_path / "a"))))
    merged = load(base)
    for layer, change in added.items():
        weight = merged.whole.get_submodule(layer).weight
        weight += torch.from_numpy(change if weight.shape == change.shape else change.T)
    sequences = (Sequence(tuple(range(9, 49)), 30), Sequence((7, 8, 9), 1))
    alone = _torch_model.score(load(base), sequences, batch_size=2)
    spans = _torch_model.score(adapted, sequences, batch_size=2)
    for span, expected, without in zip(
        spans, _torch_model.score(merged, sequences, batch_size=2), alone, strict=True
    ):
        assert span.logprob_nats == pytest.approx(expected.logprob_nats, rel=1e-4)
        assert span.entropy_nats == pytest.approx(expected.entropy_nats, rel=1e-4)
        assert abs(span.logprob_nats - without.logprob_nats) > 1e-2


def test_an_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    base = save(tmp_path / "m", CONFIGS["llama"])
    up, down = "model.layers.1.mlp.up_proj", "model.layers.2.mlp.up_proj"
    for name, layers, said in (
        ("a", {up: (16, 64)}, r"of shape \[64, 16\], and the model has one of shape \[64, 32\]"),
        ("b", {down: (32, 64)}, r"layers\.2.*the model has no such layer"),
    ):
        write_adapter(tmp_path / name, layers)
        with pytest.raises(ModelError, match=said):
            load(replace(base, adapter=AdapterRef(path=str(tmp_path / name))))


def test_measures_equal_scipy_on_hard_logits() -> None:
    rows = np.array(
        [
            [0.0, 0.0, 0.0, 0.0],
            [1e4, 0.0, -1e4, 5.0],
            [3.0, 3.0, 1.0, -2.0],
            [-np.inf, 2.0, -np.inf, 1.0],
            [-500.0, -501.0, -502.0, -503.0],
        ]
    )
    targets = [2, 0, 1, 1, 0]
    measured = _torch_model.measure(torch.tensor(rows, dtype=torch.float32), torch.tensor(targets))
    with np.errstate(divide="ignore"):
        p = np.exp(rows - rows.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        logprobs = np.log(p[np.arange(5), targets])
    np.testing.assert_allclose(measured.logprob_nats, logprobs, atol=1e-6)
    np.testing.assert_allclose(measured.entropy_nats, stats.entropy(p, axis=1), atol=1e-6)
    # Ties are not greedy: no token is the single most probable one.
    assert measured.is_greedy.tolist() == [False, True, False, True, True]
    impossible = _torch_model.measure(torch.tensor([[0.0, -math.inf]]), torch.tensor([1]))
    assert impossible.logprob_nats.tolist() == [-math.inf]
    assert impossible.entropy_nats.tolist() == [0.0]


@pytest.mark.parametrize(
    ("sampling", "seen", "probabilities"),
    [
        (Sampling(1, temperature=1.0), (), [0.1, 0.2, 0.3, 0.4]),
        (Sampling(1, temperature=0.5), (), [1 / 30, 4 / 30, 9 / 30, 16 / 30]),
        # 0.4 alone does not reach 0.5; with 0.3 it does.
        (Sampling(1, temperature=1.0, top_p=0.5), (), [0.0, 0.0, 3 / 7, 4 / 7]),
        (Sampling(1, temperature=1.0, top_p=0.01), (), [0.0, 0.0, 0.0, 1.0]),
        # Logits are logs of probabilities, so negative: a penalty of 2 squares the probability.
        (
            Sampling(1, temperature=1.0, repetition_penalty=2.0),
            (3, 3),
            [0.1 / 0.76, 0.2 / 0.76, 0.3 / 0.76, 0.16 / 0.76],
        ),
    ],
)
def test_samples_follow_their_distribution(
    sampling: Sampling, seen: tuple[int, ...], probabilities: list[float]
) -> None:
    logits = torch.tensor([0.1, 0.2, 0.3, 0.4]).log()
    source = torch.Generator().manual_seed(0)
    n = 4000
    drawn = [_torch_generation.choose(logits, seen, sampling, source) for _ in range(n)]
    counts = np.bincount(drawn, minlength=4)
    possible = np.array(probabilities) > 0
    assert counts[~possible].sum() == 0
    if possible.sum() > 1:
        expected = np.array(probabilities)[possible] * n
        assert stats.chisquare(counts[possible], expected).pvalue > 1e-3


def test_positive_logits_are_penalised_too() -> None:
    logits = torch.tensor([2.0, 1.5, -1.0])
    sampling = Sampling(1, repetition_penalty=2.0)
    source = torch.Generator()
    assert _torch_generation.choose(logits, (), sampling, source) == 0
    assert _torch_generation.choose(logits, (0,), sampling, source) == 1
    assert logits.tolist() == [2.0, 1.5, -1.0]


# --- checkpoints that are broken


def test_weights_that_are_missing_are_refused(tmp_path: Path) -> None:
    model = save(tmp_path / "m", CONFIGS["llama"])
    content = (tmp_path / "m" / "config.json").read_text()
    more_layers = content.replace('"num_hidden_layers": 2', '"num_hidden_layers": 3')
    assert more_layers != content
    (tmp_path / "m" / "config.json").write_text(more_layers)
    with pytest.raises(ModelError, match=r"lacks \d+ weights .*layers\.2"):
        load(model)


def test_weights_that_are_no_weights_are_refused(tmp_path: Path) -> None:
    model = save(tmp_path / "m", CONFIGS["llama"])
    (tmp_path / "m" / "model.safetensors").write_bytes(b"<!doctype html>")
    with pytest.raises(ModelError, match="its weights cannot be loaded"):
        load(model)


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    model = save(tmp_path / "m", CONFIGS["llama"])
    config = tmp_path / "m" / "config.json"
    config.write_text(config.read_text().replace('"vocab_size": 400', '"vocab_size": 500'))
    with pytest.raises(ModelError, match=r"weights|shape"):
        load(model)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dtype_is_as_asked(tmp_path: Path, dtype: str) -> None:
    path = save(tmp_path / "m", CONFIGS["llama"]).path
    assert load(ModelRef(path=path, dtype=dtype)).dtype == dtype


# --- the engine around the model


def run(model: ModelRef, script: Callable[[Engine], Any]) -> Any:
    async def main() -> Any:
        return await script(engine.start(model, engine.Options(batch_size=2)))

    return asyncio.run(main())


def test_says_what_moves_numbers(tmp_path: Path) -> None:
    async def script(running: Engine) -> dict[str, Any]:
        said = running.describe()
        await running.close()
        return said

    said = run(save(tmp_path / "m", CONFIGS["llama"]), script)
    assert said["engine"] == "transformers"
    assert said["max_model_len"] == 64
    assert said["dtype"] in ("float32", "bfloat16")
    assert said["torch"] == torch.__version__


def test_weights_that_overflow_are_a_failure_not_a_number(tmp_path: Path) -> None:
    def spoil(model: Any) -> None:
        with torch.no_grad():
            model.model.norm.weight.fill_(math.nan)

    async def script(running: Engine) -> list[Any]:
        requests: tuple[Request, ...] = (
            ScoreChoices("c", "the cat", (" sat",)),
            ScoreDocument("d", "the cat"),
            Generate("g", "the cat", Sampling(4)),
        )
        return list(await asyncio.gather(*map(running.reply, requests)))

    for reply in run(save(tmp_path / "m", CONFIGS["llama"], spoil), script):
        assert isinstance(reply, Failure)
        assert reply.status is Status.FAILED
        assert "not finite" in reply.message


def test_broken_model_fails_all_that_wait_and_all_that_come(tmp_path: Path) -> None:
    request = ScoreChoices("c", "the cat", (" sat",))

    async def script(running: Any) -> None:
        assert isinstance(await running.reply(request), ChoiceScores)
        running._model.whole.model.embed_tokens = None  # as if the device had gone
        replies = await asyncio.gather(
            *(running.reply(request) for _ in range(5)), return_exceptions=True
        )
        assert [type(reply) for reply in replies] == [EngineDied] * 5
        assert "NoneType" in str(replies[0])
        with pytest.raises(EngineDied, match="NoneType"):
            await running.reply(request)

    run(save(tmp_path / "m", CONFIGS["llama"]), script)


def test_closing_fails_what_waits(tmp_path: Path) -> None:
    async def script(running: Engine) -> None:
        request = Generate("g", "the cat", Sampling(60, temperature=1.0, seed=1))
        waiting = [asyncio.create_task(running.reply(request)) for _ in range(100)]
        await asyncio.sleep(0)
        await running.close()
        replies = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(replies[-1], EngineDied)
        with pytest.raises(EngineDied, match="closed"):
            await running.reply(request)

    run(save(tmp_path / "m", CONFIGS["llama"]), script)


def test_reply_that_nobody_waits_for_is_dropped(tmp_path: Path) -> None:
    async def script(running: Engine) -> None:
        request = Generate("g", "the cat", Sampling(60, temperature=1.0, seed=1))
        tasks = [asyncio.create_task(running.reply(request)) for _ in range(20)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        reply = await running.reply(ScoreChoices("c", "the cat", (" sat",)))
        assert isinstance(reply, ChoiceScores)
        await running.close()

    run(save(tmp_path / "m", CONFIGS["llama"]), script)


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"threads": 0}])
def test_sizes_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must be at least 1, given 0"):
        engine.Options(**options)
