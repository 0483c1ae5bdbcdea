"""A model and the engine that hosts it, as far as both are known without loading it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from raveval import registry
from raveval.config import EngineConfig, ModelConfig, engine_options
from raveval.errors import ConfigError, ModelError, RavevalError, raised_at
from raveval.fingerprint import checkpoint_digest
from raveval.lengths import Encoder
from raveval.types import ModelRef

_ENCODER_PARTS = ("max_model_len", "has_chat_template", "commit", "size")


@dataclass(frozen=True, slots=True)
class ChosenModel:
    """What is asked: the candidate, or a judge.

    `encoder` is what the engine's module knows of the model's tokens. `options` are the engine's.
    """

    ref: ModelRef
    engine: str
    options: Any
    encoder: Encoder

    @property
    def loadable(self) -> ModelRef:
        """The model as a replica loads it: with the context that the plan counted on."""
        return replace(self.ref, max_model_len=self.encoder.max_model_len)

    @property
    def system_role(self) -> str | None:
        """What becomes of a system turn; None where nothing is to be said about it."""
        return getattr(self.encoder, "system_role", None)

    def identity(self) -> dict[str, Any]:
        """Return what tells this model, as it is hosted, from another."""
        operational = registry.load("engines", self.engine).OPERATIONAL
        options = {k: v for k, v in asdict(self.options).items() if k not in operational}
        return {
            "model": self._weights(),
            "engine": {"name": self.engine, "options": options},
            "dtype": self.ref.dtype,
            "max_model_len": self.encoder.max_model_len,
        }

    def _weights(self) -> dict[str, Any]:
        """Tell this model also from one that was saved later under the same path."""
        if self.ref.path is not None and Path(self.ref.path).is_dir():
            return {"weights": checkpoint_digest(Path(self.ref.path))}
        return {"id": self.ref.id or self.ref.path, "revision": self.ref.revision}

    def line(self, role: str) -> str:
        """Describe it for a person, on one line that begins with its role."""
        return (
            f"{role:<7} {self.ref.name} (engine {self.engine}, dtype {self.ref.dtype}, "
            f"max_model_len {self.encoder.max_model_len or 'unknown'})"
        )


def choose(
    model: ModelConfig, engine: EngineConfig, *, where: str, say: Callable[[str], None]
) -> ChosenModel:
    """Return the model that a config names; `where` is the section that does, for errors.

    Raises:
        ConfigError: unknown engine or option.
        ModelError: no such model, or a tokenizer that cannot be used.
        RavevalError: the demo model cannot be fetched.
    """
    options = engine_options(engine, where=f"{where}.engine")
    ref = model.ref(say=say)
    encoder = _encoder(engine.name, ref, options)
    if ref.id is not None and encoder.commit is not None:
        ref = replace(ref, revision=encoder.commit)  # what "main" means may move
    return ChosenModel(ref, engine.name, options, encoder)


def _encoder(engine: str, ref: ModelRef, options: Any) -> Encoder:
    """Return what an engine's module knows of a model; one's own may fail in any way."""
    module = registry.load("engines", engine)
    if "." not in engine:
        return cast("Encoder", module.encoder(ref, options))
    try:
        encoder: Encoder = module.encoder(ref, options)
        lacking = [part for part in _ENCODER_PARTS if not hasattr(encoder, part)]
    except RavevalError:
        raise
    except Exception as exc:
        raise ModelError(f"engine {engine!r}: its encoder fails: {raised_at(exc)}") from exc
    if lacking:
        raise ConfigError(
            f"engine {engine!r}: its encoder has no `{lacking[0]}` (what one has stands in "
            "raveval/lengths.py)"
        )
    return encoder
