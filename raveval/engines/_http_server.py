"""One model of one server: asks it, and gets to know it before the first example is asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from raveval.engines import _http_wire
from raveval.engines._http_transport import GaveUp, Rejected, Transport
from raveval.engines._http_wire import Answer, Api, Asked, Card
from raveval.engines._tokens import SystemRole
from raveval.errors import ModelError, ResourceError
from raveval.types import Failure, Generate, Message, Sampling

# White space, digits, accents and another script: what tokenizers differ in.
_CANARY = Generate("start", "«yes»  1234\n\n日本", Sampling(16, seed=0))
# Too long to be as long as what a template says where there is no system turn.
_SYSTEM = (Message("system", "Sing like a canary. " * 40), Message("user", "Now."))
_MODELS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Served:
    """What a server shows of itself and of the model; None is what it does not say.

    `gives_ids`: it sends back the token ids that it made of a prompt. `system_role`: what has to
    become of a system turn, where that was tried.
    """

    owned_by: str | None = None
    root: str | None = None
    max_model_len: int | None = None
    version: str | None = None
    counts_tokens: bool = True
    gives_ids: bool = False
    system_role: SystemRole | None = None


@dataclass(frozen=True, slots=True)
class Server:
    """How to ask one model of a server.

    Attributes:
        url: where the API begins, for messages.
        model: the model's name there.
        has_extensions: the server takes vLLM's sampling parameters.
        is_seeded: it takes seeds.
        has_key: a key is sent.
    """

    transport: Transport
    url: str
    model: str
    api: Api
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"]
    has_extensions: bool
    is_seeded: bool
    has_key: bool

    async def send(
        self, asked: Asked, sampling: Sampling, *, wants_ids: bool = False
    ) -> Answer | Failure:
        """Return the answer to a prompt.

        Raises:
            Rejected: the server refuses it.
            GaveUp: no attempt succeeded.
        """
        body = _http_wire.form_request(
            asked,
            sampling,
            model=self.model,
            max_tokens_field=self.max_tokens_field if self.api == "chat" else "max_tokens",
            is_seeded=self.is_seeded,
            has_extensions=self.has_extensions,
        )
        if wants_ids:
            body["return_token_ids"] = True
        read = partial(_http_wire.read_answer, api=self.api, stop=sampling.stop)
        path = "chat/completions" if self.api == "chat" else "completions"
        return await self.transport.post(path, body, read=read)

    async def get_acquainted(
        self,
        encode: Callable[[Generate], Awaitable[Asked | Failure]],
        *,
        max_model_len: int,
        has_tokenizer: bool,
        tries_system_role: bool,
    ) -> Served:
        """Return what must be known before the first example; closes its connections again.

        `max_model_len` is what the run takes for granted, 0 for nothing.

        Raises:
            ModelError: the key is refused, the model is not served, its context is shorter than
                the run's, or prompts are not read as the local tokenizer reads them.
            ResourceError: the server does not answer, or not as such a server does.
        """
        try:
            card = await self._card()
            self._check_length(card, max_model_len)
            is_vllm = card.owned_by == "vllm"
            served = Served(
                owned_by=card.owned_by and self.transport.hide(card.owned_by),
                root=card.root and self.transport.hide(card.root),
                max_model_len=card.max_model_len,
                version=await self._version() if is_vllm else None,
                gives_ids=is_vllm and has_tokenizer and self.has_extensions,
            )
            served = await self._try_out(served, encode)
            if tries_system_role:
                served = replace(served, system_role=await self._system_role())
            return served
        except Rejected as exc:
            raise ModelError(f"{self.url}: {exc}{self._advice(exc)}") from None
        except GaveUp as exc:
            fault = "does not answer" if exc.is_unreachable else "gives no answer that can be used"
            raise ResourceError(
                f"{self.url}: the server {fault}: {exc}. Is it up, and is this its address as seen "
                "from where replicas run?"
            ) from None
        finally:
            await self.transport.leave()

    async def _card(self) -> Card:
        """Return what the server says of the model."""
        try:
            cards = await self.transport.get("models", read=_http_wire.read_cards)
        except Rejected as exc:
            if exc.status in (404, 405):
                return Card(self.model)  # it has no list; the first prompt will tell
            raise
        found = next((card for card in cards if card.id == self.model), None)
        if found is not None:
            return found
        names = sorted(self.transport.hide(card.id) for card in cards)
        shown = ", ".join(_http_wire.tidy(name) for name in names[:_MODELS_SHOWN]) or "nothing"
        more = f" and {len(names) - _MODELS_SHOWN} more" if names[_MODELS_SHOWN:] else ""
        raise ModelError(
            f"{self.url} does not serve {self.model!r}; it serves {shown}{more}. Give one of them "
            "as the engine's option `model`"
        )

    def _check_length(self, card: Card, max_model_len: int) -> None:
        if card.max_model_len is not None and max_model_len > card.max_model_len:
            raise ModelError(
                f"{self.url}: {self.model!r} is served with a context of {card.max_model_len} "
                f"tokens, the run takes {max_model_len} for granted; set model.max_model_len to "
                f"{card.max_model_len} or less"
            )

    async def _version(self) -> str | None:
        """Return the version of a vLLM server; a proxy in between may not pass it on."""
        address = f"{self.url.rstrip('/').removesuffix('/v1')}/version"
        try:
            version = await self.transport.get(
                address, read=_http_wire.read_version, max_attempts=1
            )
        except (GaveUp, Rejected):
            return None
        return _http_wire.tidy(self.transport.hide(version))

    async def _try_out(
        self, served: Served, encode: Callable[[Generate], Awaitable[Asked | Failure]]
    ) -> Served:
        """Ask one small prompt, which the server must read as the local tokenizer does."""
        asked = await encode(_CANARY)
        if isinstance(asked, Failure):
            raise ModelError(
                f"{self.model!r} cannot even be asked {_CANARY.prompt!r}: {asked.message}"
            )
        answer = await self.send(asked, _CANARY.sampling, wants_ids=served.gives_ids)
        if isinstance(answer, Failure):
            raise ModelError(
                f"{self.url}: a first small prompt failed: {self.transport.hide(answer.message)}"
            )
        difference = _http_wire.difference(asked, answer)
        if difference is not None:
            raise ModelError(
                f"{self.url}: the server does not read prompts as the tokenizer of {self.model!r} "
                f"does: {difference}. It serves another model or has another chat template; serve "
                "this one, ask with api: completions (which sends token ids), or set "
                "local_tokenizer: false to take the server's own reading"
            )
        return replace(
            served,
            counts_tokens=None not in (answer.n_prompt_tokens, answer.n_output_tokens),
            gives_ids=served.gives_ids and answer.prompt_token_ids is not None,
        )

    async def _system_role(self) -> SystemRole | None:
        """Try whether the server's chat template takes system turns, or leaves them out."""
        try:
            answer = await self.send(Asked(_SYSTEM), _CANARY.sampling)
        except Rejected as exc:
            if exc.status not in (400, 422):
                raise
            return "folded into the user turn"
        except GaveUp as exc:  # some servers call a template's refusal their own fault
            if exc.is_unreachable:
                raise
            return "folded into the user turn"
        without = await self.send(Asked(_SYSTEM[1:]), _CANARY.sampling)
        counts = [a.n_prompt_tokens for a in (answer, without) if isinstance(a, Answer)]
        if len(counts) < 2 or None in counts:
            return None
        return "folded into the user turn" if counts[0] == counts[1] else "own turn"

    def _advice(self, exc: Rejected) -> str:
        """Return what may help against a refusal."""
        if exc.status in (401, 403):
            return (
                ". Is the key in the variable that api_key_env names the right one?"
                if self.has_key
                else ". Name the environment variable that holds a key in api_key_env"
            )
        if exc.status == 404:
            return ". Is base_url right (most end in /v1), and does the server have this api?"
        if exc.status in (400, 422):
            return (
                ". If it does not take one of the parameters, see the options extensions, seeded "
                "and max_tokens_field; if it takes no token ids, local_tokenizer"
            )
        return ""
