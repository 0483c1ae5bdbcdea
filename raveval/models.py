"""A model and the engine that hosts it, as far as both are known without loading it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from raveval import adapters, registry
from raveval.config import EngineConfig, ModelConfig, engine_options
from raveval.errors import ConfigError, ModelError, RavevalError, raised_at
from raveval.fingerprint import checkpoint_digest
from raveval.lengths import Encoder
from raveval.types import AdapterRef, ModelRef

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
        found = _contents(self.ref)
        return (
            found if self.ref.adapter is None else {**found, "adapter": _contents(self.ref.adapter)}
        )

    def line(self, role: str) -> str:
        """Describe it for a person, on one line that begins with its role."""
        return (
            f"{role:<7} {self.ref.title} (engine {self.engine}, dtype {self.ref.dtype}, "
            f"max_model_len {self.encoder.max_model_len or 'unknown'})"
        )


def _contents(ref: ModelRef | AdapterRef) -> dict[str, Any]:
    """Return what tells weights from others: a digest of a directory, an id with its commit."""
    if ref.path is not None and Path(ref.path).is_dir():
        return {"weights": checkpoint_digest(Path(ref.path))}
    return {"id": ref.id or ref.path, "revision": ref.revision}


def choose(
    model: ModelConfig, engine: EngineConfig, *, where: str, say: Callable[[str], None]
) -> ChosenModel:
    """Return the model that a config names; `where` is the section that does, for errors.

    Raises:
        ConfigError: unknown engine or option.
        ModelError: no such model, a tokenizer that cannot be used, or an adapter that does not fit.
        RavevalError: the demo model cannot be fetched.
    """
    options = engine_options(engine, where=f"{where}.engine")
    ref = model.ref(say=say)
    encoder = _encoder(engine.name, ref, options)
    if ref.id is not None and encoder.commit is not None:
        ref = replace(ref, revision=encoder.commit)  # what "main" means may move
    if ref.adapter is not None:
        ref = replace(ref, adapter=_adapter(engine.name, ref, ref.adapter, where=where))
    return ChosenModel(ref, engine.name, options, encoder)


def _adapter(engine: str, ref: ModelRef, adapter: AdapterRef, *, where: str) -> AdapterRef:
    """Return an adapter with its commit, checked as far as no engine is needed.

    Raises:
        ConfigError: the engine takes none.
        ModelError: it cannot be used, or not with this model.
    """
    if not getattr(registry.load("engines", engine), "TAKES_ADAPTERS", False):
        raise ConfigError(
            f"{where}.model.adapter: the engine {engine!r} takes no adapter; vllm and transformers "
            "do. Where a server has adapters, each is a model of its own there"
        )
    found = adapters.located(adapter)
    if found.path is not None:
        whole = adapters.fetched(found)
        if ref.path is not None:
            adapters.check_base(whole, Path(ref.path))
    return found


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
