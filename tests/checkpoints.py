"""Small checkpoints that tests write: real tokenizers of each habit, trained on a few sentences."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

CORPUS = [
    "Question: what is the Answer to it? Answer: yes, the Answer is yes.",
    "Answer: no. Ans. Answer Answer Answer er he the cat sat on the mat. No answer was right",
    "The capital of France is Paris and the capital of Italy is Rome; 1, 2, 12, 1234 and 12345.",
    "这是一个问题。答案是 我们在 北京 。 Ünïcödé naïve café 🙂 🙂",
] * 20

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Spells its own BOS and knows no system turns, as several published templates do.
SPELLS_BOS = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "[{{ m['role'] }}] {{ m['content'] }} {% endfor %}[assistant]"
)


def write_checkpoint(
    path: Path,
    *,
    bos: str | None = "<s>",
    eos: str | None = "</s>",
    adds_bos: bool = False,
    chat_template: str | None = None,
    sentencepiece: bool = False,
    config: dict[str, Any] | None = None,
) -> Path:
    """Write a BPE tokenizer, a configuration and weights that are none.

    The tokenizer is byte-level, or of SentencePiece's kind: white space is the letter "▁", and one
    is put in front of every text.
    """
    special = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = (
        pre_tokenizers.Metaspace()
        if sentencepiece
        else pre_tokenizers.ByteLevel(add_prefix_space=False)
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=400,
            special_tokens=special,
            initial_alphabet=["▁"] if sentencepiece else pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    if sentencepiece:
        tokenizer.pre_tokenizer = None
        spaces = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        tokenizer.normalizer = normalizers.Sequence(spaces)
        tokenizer.decoder = decoders.Metaspace()
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(str(bos), special.index(str(bos)))]
        )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=bos, eos_token=eos)
    fast.chat_template = chat_template
    path.mkdir(parents=True)
    fast.save_pretrained(path)
    content = {
        "model_type": "llama",
        "vocab_size": 400,
        "max_position_embeddings": 64,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        **(config or {}),
    }
    content = {key: value for key, value in content.items() if value is not None}
    (path / "config.json").write_text(json.dumps(content))
    write_weights(path)
    return path


def write_model(
    path: Path, config: Any, *, sharpness: float, change: Callable[[Any], None] | None = None
) -> Path:
    """Write a tokenizer, and a model of random weights; 1 for `sharpness` is all but uniform."""
    import torch
    from transformers import AutoModelForCausalLM

    write_checkpoint(path)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(sharpness)
    if change:
        change(model)
    model.save_pretrained(path)
    return path


def write_weights(folder: Path, n_bytes: int = 8, *, cut: int = 0) -> None:
    """Write weights of one tensor, of which the end may be missing; a configuration if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "config.json").exists():
        (folder / "config.json").write_text("{}")
    header = json.dumps({"w": {"dtype": "U8", "shape": [n_bytes], "data_offsets": [0, n_bytes]}})
    whole = len(header).to_bytes(8, "little") + header.encode() + bytes(n_bytes)
    (folder / "model.safetensors").write_bytes(whole[: len(whole) - cut])
