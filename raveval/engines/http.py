"""Any OpenAI-compatible server as an engine: vLLM's own, Ray Serve LLM, a commercial API.

It generates; it does not score, because such servers do not give the log-likelihood of a given text
exactly. What a run needs to know is asked at the start, before any example: whether the server
answers, whether the key works, whether the model is served, how long its context is, and (with one
small prompt) whether it takes the sampling parameters, counts tokens, and reads prompts as the
model's own tokenizer does where that is at hand.

- *Prompts.* With `api: completions` and a local tokenizer (`model.path`, or a hub id in the cache)
  prompts are encoded here as for every other engine and sent as token ids, chat turns through the
  model's own template included: the same tokens by construction. Without a tokenizer the text is
  sent. With `api: chat` the server applies its template; a plain prompt is sent as one user turn.
  Where a tokenizer is at hand the server's reading is compared with ours, at the start and at every
  reply (id for id where the server is vLLM, else by the count): one that differs is refused, so
  that nothing is cut or added in silence.
- *System turns* that the chat template refuses or leaves out become part of the user turn, as for
  every engine: the local template tells, or the server is tried at the start.
- *Length.* Known in advance with a local tokenizer only. Without one the plan refuses nothing, and
  what the server finds too long (or what it counts as longer than the context with the output) is
  overlong. Prompts are shortened, where a task allows it, only where token ids are sent.
- *Faults.* See `_http_transport` for what is asked again. An answer that stays wrong fails its
  example. A refused key, a missing model or a server that is gone ends the engine, and with it the
  run, once a new one finds the same at its start; what was committed is kept.
- *The key* is read from the environment where replicas run, and sent as a bearer token; it is never
  part of an option, a message, a log or a reply. Redirects are not followed, certificates are
  verified, and proxies of the environment count only with `trust_env`.
"""

from __future__ import annotations

import asyncio
import math
import re
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from raveval.engines import Capability, Engine, EngineDied, _http_encoder, _http_secret, _http_wire
from raveval.engines._http_encoder import HttpEncoder
from raveval.engines._http_wire import Answer, Api, Asked
from raveval.errors import ConfigError, ResourceError
from raveval.types import (
    Completion,
    Failure,
    Generate,
    ModelRef,
    Reply,
    Request,
    Sampling,
    Status,
)

if TYPE_CHECKING:
    from raveval.engines._http_server import Served, Server
    from raveval.engines._http_transport import Rejected

OPERATIONAL = frozenset(
    {
        "base_url",
        "api_key_env",
        "concurrency",
        "timeout_seconds",
        "max_attempts",
        "backoff_seconds",
        "trust_env",
    }
)
"""Options that cannot move a number. Where a server stands is one of them: a server that says other
things of its model than the one before (`describe`) is refused."""

IS_CLIENT = True
"""The model is elsewhere: a replica takes one CPU and no GPU unless the run says otherwise."""

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")  # keys are not written in capitals alone
# 200 stands for an answer that is too large; all others refuse the prompt, not who asks.
_OF_THE_EXAMPLE = frozenset({200, 400, 409, 413, 415, 422, 451})


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of this engine.

    Attributes:
        base_url: where the API begins, mostly ending in /v1: "http://host:8000/v1".
        model: the model's name on the server; by default what the run's `model` is called.
        api: "chat" (chat/completions) or "completions".
        api_key_env: name of the environment variable that holds the key, in capitals; it must be
            set where replicas run. None sends no key.
        concurrency: most requests in flight.
        timeout_seconds: of one attempt, from connecting to the answer's last byte; long outputs
            need more. All attempts together should fit `run.deadline_seconds`, or a slow server is
            taken to hang.
        max_attempts: how often a request is sent at most.
        backoff_seconds: most seconds before the second attempt; doubles up to a minute.
        max_model_len: tokens of context, output included, where `model.max_model_len` is not
            given; by default the local tokenizer's model's, or what the server says.
        local_tokenizer: use the model's tokenizer where it is at hand.
        max_tokens_field: what the server calls the most tokens of output.
        extensions: the server takes vLLM's parameters (`top_k`, `min_p`, `repetition_penalty`, more
            than four stop strings); without them a sampling that needs one is refused.
        seeded: the server takes `seed`; without it sampled texts are different ones each time.
        trust_env: use proxies and certificates that the environment names.
    """

    base_url: str
    model: str = ""
    api: Api = "chat"
    api_key_env: str | None = None
    concurrency: int = 32
    timeout_seconds: float = 300.0
    max_attempts: int = 5
    backoff_seconds: float = 1.0
    max_model_len: int | None = None
    local_tokenizer: bool = True
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    extensions: bool = True
    seeded: bool = True
    trust_env: bool = False

    def __post_init__(self) -> None:
        """Refuse settings that cannot be.

        Raises:
            ConfigError: an address with credentials, a key instead of a variable's name, a size
                below 1, a time that is no positive number.
        """
        _check_address(self.base_url)
        if self.api_key_env is not None and not _VARIABLE.fullmatch(self.api_key_env):
            raise ConfigError(
                "engine http: api_key_env: give the NAME of the environment variable that holds "
                "the key, in capital letters, digits and underscores; never the key itself (what "
                "was given is not repeated here)"
            )
        _check_choice("api", self.api, ("chat", "completions"))
        fields = ("max_tokens", "max_completion_tokens")
        _check_choice("max_tokens_field", self.max_tokens_field, fields)
        for name in ("concurrency", "max_attempts", "max_model_len"):
            size = getattr(self, name)
            if size is not None and size < 1:
                raise ConfigError(f"engine http: {name}: must be at least 1, given {size}")
        for name in ("timeout_seconds", "backoff_seconds"):
            seconds = getattr(self, name)
            if not 0 < seconds < math.inf:
                raise ConfigError(f"engine http: {name}: must be above 0, given {seconds}")


def _check_choice(name: str, given: str, allowed: tuple[str, ...]) -> None:
    if given not in allowed:
        raise ConfigError(f"engine http: {name}: given {given!r}, allowed are {', '.join(allowed)}")


def _check_address(address: str) -> None:
    """Refuse what is no plain address; one with credentials is not repeated."""
    try:
        parts = urllib.parse.urlsplit(address)
        is_secret = "@" in parts.netloc or bool(parts.query or parts.fragment)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
        is_address = is_address and not re.search(r"[\s\x00-\x1f]", address)
        _ = parts.port  # raises where it is no port
    except ValueError:
        is_secret, is_address = "@" in address, False
    if is_secret:
        raise ConfigError(
            "engine http: base_url: it holds a user, a password, a query or a fragment, which "
            "would end up in files (so it is not repeated here); put the key into an environment "
            "variable and its name into api_key_env"
        )
    if not is_address:
        raise ConfigError(
            f"engine http: base_url: {address!r} is no address; give one like http://host:8000/v1"
        )


def slots(options: Options, *, on_gpu: bool) -> int:
    """Return the most requests in flight."""
    return options.concurrency


def encoder(model: ModelRef, options: Options) -> HttpEncoder:
    """Return what can be known of the served model's tokens without asking anybody.

    Raises:
        ModelError: `model.path` is no directory, or its tokenizer cannot be loaded.
    """
    return _http_encoder.load(
        model,
        api=options.api,
        has_extensions=options.extensions,
        max_model_len=model.max_model_len or options.max_model_len,
        wants_local=options.local_tokenizer,
    )


def start(model: ModelRef, options: Options) -> Engine:
    """Get to know the server; blocks until it has answered one small prompt.

    Raises:
        ConfigError: the key's variable is not set here, or does not hold a key.
        ModelError: the key is refused, the model is not served, its context is shorter than the
            run's, or it does not read prompts as the local tokenizer does.
        ResourceError: the server gives no usable answer, or the extra is not installed.
    """
    encodes = encoder(model, options)
    try:
        from raveval.engines import _http_server, _http_transport
    except ImportError as exc:
        raise ResourceError(
            f"engine http needs an extra ({exc.name} is missing): pip install 'raveval[http]'"
        ) from exc
    limits = _http_transport.Limits(
        concurrency=options.concurrency,
        timeout_seconds=options.timeout_seconds,
        max_attempts=options.max_attempts,
        backoff_seconds=options.backoff_seconds,
        trust_env=options.trust_env,
    )
    secret = None if options.api_key_env is None else _http_secret.read(options.api_key_env)
    server = _http_server.Server(
        _http_transport.Transport(options.base_url, limits, secret),
        url=options.base_url,
        model=options.model or model.name,
        api=options.api,
        max_tokens_field=options.max_tokens_field,
        has_extensions=options.extensions,
        is_seeded=options.seeded,
        has_key=secret is not None,
    )
    engine = HttpEngine(server, encodes)
    with ThreadPoolExecutor(1) as thread:  # a loop may already run in this one
        thread.submit(asyncio.run, engine.get_acquainted()).result()
    return engine


class HttpEngine:
    """One model of one server; one event loop at a time may ask."""

    def __init__(self, server: Server, encoder: HttpEncoder) -> None:
        self._server = server
        self._encoder = encoder
        self._served: Served | None = None
        self._last_words: str | None = None
        self._encoding = ThreadPoolExecutor(1, "http-encode")  # tokenizers are not thread-safe
        seeded = {Capability.SEEDED} if server.is_seeded else set()
        self.capabilities = frozenset({Capability.GENERATE, *seeded})

    async def reply(self, request: Request) -> Reply:
        """Answer one request.

        Raises:
            EngineDied: the server is gone or refuses the key or the model, or the engine is closed.
        """
        from raveval.engines._http_transport import GaveUp, Rejected

        if self._last_words is not None:
            raise EngineDied(self._last_words)
        if not isinstance(request, Generate):
            return Failure(Status.FAILED, "a server does not score given texts; use engine vllm")
        try:
            self._encoder.check(request)
        except ConfigError as exc:
            return Failure(Status.FAILED, str(exc))
        asked = await self._encode(request)
        if isinstance(asked, Failure):
            return asked
        wants_ids = self._served is not None and self._served.gives_ids
        try:
            answer = await self._server.send(asked, request.sampling, wants_ids=wants_ids)
        except Rejected as exc:
            return self._rejected(exc)
        except GaveUp as exc:
            if exc.is_unreachable:
                raise self._died(f"{self._server.url}: {exc}") from None
            return Failure(Status.FAILED, f"no usable answer of the server: {exc}")
        return self._completion(asked, answer, request.sampling)

    def describe(self) -> dict[str, str | int | None]:
        """Return what moves numbers and is known only once the server has answered.

        `usage` is "absent" where the server counts no tokens: then those of the output count as 0,
        and those of the prompt are ours, or 0 where no tokenizer is at hand.
        """
        served = self._served
        assert served is not None
        is_local = self._encoder.local is not None
        prompts = {"chat": "turns", "completions": "token ids" if is_local else "text"}
        return {
            "engine": "http",
            "api": self._server.api,
            "prompts": prompts[self._server.api],
            "tokenizer": "local" if is_local else "none",
            "model": self._server.model,
            "owned_by": served.owned_by,
            "root": served.root,
            "max_model_len": self._max_model_len(),
            "server_version": served.version,
            "usage": "server" if served.counts_tokens else "absent",
            "system_role": self._encoder.system_role,
        }

    async def close(self) -> None:
        """Close all connections; replies that still wait fail."""
        self._last_words = self._last_words or "the engine is closed"
        await self._server.transport.close()
        self._encoding.shutdown(wait=False)

    async def get_acquainted(self) -> None:
        """Ask what must be known before the first example; where it fails the engine is closed.

        Raises:
            ModelError: see `start`.
            ResourceError: see `start`.
        """
        try:
            self._served = await self._server.get_acquainted(
                self._encode,
                max_model_len=self._encoder.max_model_len,
                has_tokenizer=self._encoder.local is not None,
                tries_system_role=self._server.api == "chat" and self._encoder.system_role is None,
            )
            if self._served.system_role is not None:
                self._encoder = replace(self._encoder, system_role=self._served.system_role)
        except BaseException:
            await self.close()
            raise

    async def _encode(self, request: Generate) -> Asked | Failure:
        if self._encoder.local is None:
            return self._encoder.ask(request)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._encoding, self._encoder.ask, request)

    def _completion(
        self, asked: Asked, answer: Answer | Failure, sampling: Sampling
    ) -> Completion | Failure:
        if isinstance(answer, Failure):
            return Failure(answer.status, self._server.transport.hide(answer.message))
        if self._server.transport.is_leaking(answer.text):
            return Failure(
                Status.FAILED, "the server's answer holds the key; nothing of it is kept"
            )
        difference = _http_wire.difference(asked, answer)
        if difference is not None:
            return Failure(Status.FAILED, f"the server read another prompt: {difference}")
        n_own = 0 if asked.token_ids is None else len(asked.token_ids)
        n_prompt = answer.n_prompt_tokens or n_own
        n_needed, length = n_prompt + sampling.max_output_tokens, self._max_model_len()
        if length is not None and n_needed > length:
            # vLLM's server would have left less room for the output without saying so.
            return Failure(
                Status.OVERLONG,
                f"needs {n_needed} tokens ({n_prompt} of the prompt, "
                f"{sampling.max_output_tokens} of output), max_model_len is {length}",
            )
        return Completion(
            text=answer.text,
            finish_reason=answer.finish_reason,
            n_prompt_tokens=n_prompt,
            n_output_tokens=answer.n_output_tokens or 0,
            n_truncated_tokens=asked.n_truncated_tokens,
        )

    def _max_model_len(self) -> int | None:
        """Return the tokens of context: ours where they are known, else the server's."""
        return self._encoder.max_model_len or (self._served.max_model_len if self._served else None)

    def _rejected(self, exc: Rejected) -> Failure:
        """Return what a refusal means for the example; the run's own fault ends the engine."""
        if exc.fault.is_overlong and exc.status in _OF_THE_EXAMPLE:
            return Failure(Status.OVERLONG, f"the server says: {exc.fault.words}")
        if exc.status not in _OF_THE_EXAMPLE:
            raise self._died(f"{self._server.url}: {exc}")
        return Failure(Status.FAILED, f"the server refuses: {exc}")

    def _died(self, last_words: str) -> EngineDied:
        self._last_words = self._last_words or last_words
        return EngineDied(self._last_words)
