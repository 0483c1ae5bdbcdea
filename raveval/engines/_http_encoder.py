"""What is known of a served model's tokens without asking the server, and prompts ready to send."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from raveval.engines import _http_wire
from raveval.engines._http_wire import Api, Asked
from raveval.engines._tokens import folded
from raveval.errors import ConfigError, ModelError
from raveval.types import (
    Failure,
    Generate,
    Message,
    ModelRef,
    Prompt,
    Request,
    Sampling,
    Status,
)

if TYPE_CHECKING:
    from raveval.engines._encoding import Encoder

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


@dataclass(frozen=True, slots=True)
class HttpEncoder:
    """Prompts in the form that the API takes, and their size where a tokenizer is at hand.

    Attributes:
        api: which of the two.
        has_extensions: whether the server takes vLLM's sampling parameters.
        max_model_len: tokens of context; 0 where nothing says before the server is asked.
        length_source: "given", "model", "assumed" or "unknown".
        has_chat_template: whether prompts of chat turns can be asked.
        local: the model's tokenizer, where it is at hand.
        system_role: what becomes of a system turn, as the local chat template has it, or as the
            server showed it; None where nobody has tried.
        commit: None, as nobody says which commit of a hub model is served.
    """

    api: Api
    has_extensions: bool
    max_model_len: int
    length_source: str
    has_chat_template: bool
    local: Encoder | None = None
    system_role: str | None = None
    commit: str | None = None

    def size(self, request: Request) -> int:
        """Return the tokens a request needs, output included; 0 where no tokenizer can say.

        Raises:
            ConfigError: see `check`.
        """
        self.check(request)
        if self.local is None or not isinstance(request, Generate):
            return 0
        return self.local.size(replace(request, prompt=self._shown(request.prompt)))

    def check(self, request: Request) -> None:
        """Refuse a sampling that the server, as the options describe it, cannot do.

        Raises:
            ConfigError: what is needed, and what to do.
        """
        if isinstance(request, Generate):
            lacking = _http_wire.lacking(request.sampling, has_extensions=self.has_extensions)
            if lacking is not None:
                raise ConfigError(
                    f"engine http: the sampling has {lacking}, which only servers with vLLM's "
                    "extensions can do; change it, or set extensions: true if this one can"
                )

    def ask(self, request: Generate) -> Asked | Failure:
        """Return a prompt as it is to be sent."""
        prompt = self._shown(request.prompt)
        if self.local is None or (self.api == "chat" and not self.local.has_chat_template):
            return _unencoded(prompt, request.sampling, api=self.api)
        is_sent_as_ids = self.api == "completions"
        may_truncate = request.may_truncate and is_sent_as_ids
        encoded = self.local.generate(replace(request, prompt=prompt, may_truncate=may_truncate))
        if isinstance(encoded, Failure):
            return encoded
        ids = encoded.token_ids
        return Asked(ids if is_sent_as_ids else prompt, ids, encoded.n_truncated_tokens)

    def _shown(self, prompt: Prompt) -> Prompt:
        """Return a prompt in the form that the API and the chat template take."""
        if isinstance(prompt, str):
            return (Message("user", prompt),) if self.api == "chat" else prompt
        return folded(prompt) if self.system_role == "folded into the user turn" else prompt


def load(
    model: ModelRef,
    *,
    api: Api,
    has_extensions: bool,
    max_model_len: int | None,
    wants_local: bool,
) -> HttpEncoder:
    """Return the encoder of a served model; its tokenizer is read where it is at hand.

    Raises:
        ModelError: `model.path` is no directory, or its tokenizer cannot be loaded.
    """
    directory = _tokenizer_directory(model) if wants_local else None
    if directory is None:
        return HttpEncoder(
            api,
            has_extensions,
            max_model_len=max_model_len or 0,
            length_source="given" if max_model_len else "unknown",
            has_chat_template=api == "chat",
        )
    from raveval.engines._encoding import Encoder

    try:
        # As an id: a directory without weights will do here.
        local = Encoder.load(ModelRef(id=str(directory), max_model_len=max_model_len))
    except ModelError as exc:
        raise ModelError(
            f"{exc}. Or set local_tokenizer: false to leave the prompts to the server"
        ) from exc
    return HttpEncoder(
        api,
        has_extensions,
        max_model_len=local.max_model_len,
        length_source=local.length_source,
        has_chat_template=api == "chat" or local.has_chat_template,
        local=local,
        system_role=local.system_role if local.has_chat_template else None,
    )


def _tokenizer_directory(model: ModelRef) -> Path | None:
    """Return where the model's tokenizer lies on this machine, if it does."""
    has_backend = importlib.util.find_spec("transformers") is not None
    if model.path is not None:
        if not Path(model.path).is_dir():
            raise ModelError(
                f"model path {model.path!r}: no such directory. For a model that only the server "
                "has give its name as model.id"
            )
        if not has_backend:
            raise ModelError(
                "engine http: the tokenizer of a local model needs an extra: pip install "
                "'raveval[transformers]'; or set local_tokenizer: false"
            )
        return Path(model.path)
    if not has_backend or not model.id:
        return None
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(model.id, "config.json", revision=model.revision)
    except ValueError:
        return None  # no name of the hub
    if not isinstance(found, str):
        return None
    directory = Path(found).parent
    # Without its settings a tokenizer loads all the same, but knows neither BOS nor template.
    is_whole = (directory / "tokenizer_config.json").is_file() and any(
        (directory / name).is_file() for name in _TOKENIZER_FILES
    )
    return directory if is_whole else None


def _unencoded(prompt: Prompt, sampling: Sampling, *, api: Api) -> Asked | Failure:
    """Return a prompt that the server encodes, with the checks that need no tokenizer."""
    texts = [prompt] if isinstance(prompt, str) else [turn.content for turn in prompt]
    try:
        for text in texts:
            text.encode()
    except UnicodeEncodeError:
        return Failure(Status.INVALID, "not valid Unicode: a lone surrogate")
    if sampling.max_output_tokens < 1:
        n = sampling.max_output_tokens
        return Failure(Status.INVALID, f"max_output_tokens is {n}; it must be >= 1")
    if api == "completions" and not isinstance(prompt, str):
        return Failure(
            Status.INVALID, "chat turns need api: chat, or the model's tokenizer at hand"
        )
    return Asked(prompt)
