"""Reads what a checkpoint says of itself: its tokenizer and its context length, not its weights.

A path that holds no model, or only a part of one, is refused here in words, before any engine
starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raveval import adapters
from raveval.errors import ModelError
from raveval.types import ModelRef
from raveval.weights import fault_of

ASSUMED_MODEL_LEN = 2048
SHORTEST_MODEL_LEN = 4  # a window holds one token of context and one that is scored; one is spare

_LENGTH_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
# Tokenizers that know no length say int(1e30).
_NO_LENGTH = 10**9
# These rope types state a length that already holds their scaling.
_SCALED_ROPES = ("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint without its weights.

    Attributes:
        max_model_len: tokens of context that are used, output included.
        length_source: where that number comes from, for the record: "given", "model" or "assumed".
        vocab_size: rows of the embedding; None where the configuration does not say.
        commit: the hub's commit that was read; None for a local directory.
    """

    tokenizer: Any
    max_model_len: int
    length_source: str
    vocab_size: int | None
    commit: str | None = None


def read(model: ModelRef, *, trust_remote_code: bool = False) -> Checkpoint:
    """Read a checkpoint's tokenizer and configuration.

    Raises:
        ModelError: no such path, not a model, no tokenizer, or a context longer than the model's.
    """
    if model.path is not None:
        _check_directory(Path(model.path))
    elif not model.id:
        raise ModelError("model: neither a path nor an id is given; give one of them")
    config = _config(model, trust_remote_code=trust_remote_code)
    tokenizer = _tokenizer(model, trust_remote_code=trust_remote_code)
    text_config = config.get_text_config()
    own, default = _lengths(text_config, tokenizer)
    max_model_len, source = _choose_length(model, own=own, default=default)
    return Checkpoint(
        tokenizer,
        max_model_len,
        source,
        vocab_size=getattr(text_config, "vocab_size", None),
        commit=getattr(config, "_commit_hash", None) if model.path is None else None,
    )


def _check_directory(path: Path) -> None:
    if not path.exists():
        raise ModelError(
            f"model path {str(path)!r}: no such directory (looked from {Path.cwd()}). Give the "
            f"directory of a checkpoint, or use `id` for a model on the hub"
        )
    if not path.is_dir():
        raise ModelError(
            f"model path {str(path)!r}: is a file; give the directory that holds config.json, the "
            f"tokenizer and the weights"
        )
    if not (path / "config.json").is_file():
        if (path / adapters.CONFIG_NAME).is_file():
            raise ModelError(
                f"model path {str(path)!r}: is a LoRA adapter, not a model; give the model that it "
                f"was trained on, and this directory as the model's `adapter`"
            )
        held = sorted(entry.name for entry in path.iterdir())[:5]
        raise ModelError(
            f"model path {str(path)!r}: not a model: it has no config.json (it holds "
            f"{', '.join(held) or 'nothing'}). Give the directory of a checkpoint"
        )
    fault = fault_of(path)
    if fault is not None:
        raise ModelError(
            f"model path {str(path)!r}: {fault}. Is the checkpoint still being written, or a copy "
            f"that was cut short?"
        )


def _config(model: ModelRef, *, trust_remote_code: bool) -> Any:
    from transformers import AutoConfig, PretrainedConfig

    try:
        return AutoConfig.from_pretrained(
            model.name, revision=model.revision, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError, KeyError, TypeError, ImportError) as exc:
        error = exc
    try:
        content, _ = PretrainedConfig.get_config_dict(model.name, revision=model.revision)
    except (OSError, ValueError) as exc:
        raise ModelError(f"model {model.name!r}: no configuration: {_first_line(exc)}") from exc
    if not content or "auto_map" in content:
        hint = " (its own code runs only with trust_remote_code: true)" if content else ""
        raise ModelError(
            f"model {model.name!r}: its configuration is not usable{hint}: {_first_line(error)}"
        ) from error
    # An architecture that transformers does not know; another engine may, and its length is stated.
    return PretrainedConfig.from_dict(content)


def _tokenizer(model: ModelRef, *, trust_remote_code: bool) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            model.name, revision=model.revision, trust_remote_code=trust_remote_code
        )
        # A missing file can end in an empty tokenizer instead of an error.
        works = bool(tokenizer("x", add_special_tokens=False)["input_ids"])
    except Exception as exc:  # the tokenizers package raises no narrower one
        raise ModelError(
            f"model {model.name!r}: its tokenizer cannot be loaded: {_first_line(exc)} The "
            f"checkpoint needs its tokenizer's files (tokenizer.json, tokenizer_config.json) too"
        ) from exc
    if not works:
        raise ModelError(
            f"model {model.name!r}: its tokenizer is empty. The checkpoint needs its tokenizer's "
            f"files (tokenizer.json, tokenizer_config.json) too"
        )
    return tokenizer


def _lengths(config: Any, tokenizer: Any) -> tuple[int | None, int | None]:
    """Return the longest context the model states, and the one it is used with by default."""
    stated = [getattr(config, key, None) for key in _LENGTH_KEYS]
    stated.append(getattr(tokenizer, "model_max_length", None))
    known = [int(n) for n in stated if isinstance(n, int | float) and 0 < n < _NO_LENGTH]
    if not known:
        return None, None
    own = min(known)
    ropes = _ropes(config)
    if "gemma3" not in getattr(config, "model_type", ""):
        factors = [r.get("factor") for r in ropes if r.get("rope_type") not in _SCALED_ROPES]
        own = int(own * max((float(f) for f in factors if f), default=1.0))
    original = getattr(config, "original_max_position_embeddings", None)
    if original and any(rope.get("rope_type") == "longrope" for rope in ropes):
        return own, int(original)  # beyond it such a model switches its factors, and its numbers
    return own, own


def _ropes(config: Any) -> list[dict[str, Any]]:
    """Return the rotary parameters, which are one mapping, or one by layer type."""
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    if not isinstance(parameters, dict):
        return []
    if "rope_type" in parameters or "type" in parameters:
        return [{"rope_type": parameters.get("type"), **parameters}]
    return [rope for rope in parameters.values() if isinstance(rope, dict)]


def _choose_length(model: ModelRef, *, own: int | None, default: int | None) -> tuple[int, str]:
    given = model.max_model_len
    if given is None:
        return (default, "model") if default is not None else (ASSUMED_MODEL_LEN, "assumed")
    if given < SHORTEST_MODEL_LEN:
        raise ModelError(
            f"model.max_model_len: {given} is too short; the least is {SHORTEST_MODEL_LEN} tokens"
        )
    if own is not None and given > own:
        raise ModelError(
            f"model.max_model_len: {given} is more than the {own} tokens that {model.name!r} was "
            f"made for; give at most {own}, or leave it out"
        )
    return given, "given"


def _first_line(exc: BaseException) -> str:
    """Return an exception's first line as a sentence; the hub's own run over many."""
    lines = str(exc).strip().splitlines()
    text = lines[0].strip() if lines else type(exc).__name__
    return text if text.endswith((".", "!", "?")) else f"{text}."
