"""Sends requests to a server, again where that can help, and keeps the key to itself.

Asked again, with a pause that doubles and is drawn at random below its bound: status 408, 425, 429
and 5xx, time-outs, connections refused, reset or cut short, and what is not JSON of the right form.
A `Retry-After` is obeyed up to `LONGEST_PAUSE_SECONDS`. Anything else is the caller's to judge.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx
import tenacity
from typing_extensions import override

from raveval.engines._http_secret import Secret
from raveval.engines._http_wire import Fault, Malformed, read_fault, tidy

T = TypeVar("T")

LONGEST_PAUSE_SECONDS = 60.0
MOST_BYTES = 16 * 2**20
"""The most bytes of an answer, decompressed."""

_CONNECT_SECONDS = 15.0
_AGAIN = frozenset({408, 425, 429})


class Rejected(Exception):
    """The server answered, and asking again would not change the answer."""

    def __init__(self, status: int, fault: Fault) -> None:
        self.status = status
        self.fault = fault
        super().__init__(f"status {status}: {fault.words}")


class GaveUp(Exception):
    """Each attempt failed; `is_unreachable`: at the last one nothing could be connected to."""

    def __init__(self, words: str, *, is_unreachable: bool = False) -> None:
        self.is_unreachable = is_unreachable
        super().__init__(words)


class _Transient(Exception):
    """One attempt failed in a way that another may not."""

    def __init__(
        self, words: str, *, pause_seconds: float | None = None, is_unreachable: bool = False
    ) -> None:
        self.pause_seconds = pause_seconds
        self.is_unreachable = is_unreachable
        super().__init__(words)


class _Bearer(httpx.Auth):
    """Adds the key when a request leaves, so that no client or setting holds it in clear."""

    def __init__(self, secret: Secret) -> None:
        self._secret = secret

    @override
    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        request.headers["Authorization"] = self._secret.header()
        yield request


@dataclass(frozen=True, slots=True)
class Limits:
    """How patient a transport is; seconds, and counts of at least 1."""

    concurrency: int
    timeout_seconds: float
    max_attempts: int
    backoff_seconds: float
    trust_env: bool


@dataclass(slots=True)
class _Session:
    """What belongs to one event loop."""

    loop: asyncio.AbstractEventLoop
    client: httpx.AsyncClient
    slots: asyncio.Semaphore
    closing: asyncio.Event = field(default_factory=asyncio.Event)


class Transport:
    """Connections to one server, made in the event loop that first asks.

    At most `limits.concurrency` requests are in flight; one that pauses before its next attempt
    keeps its place, so that a server which is overwhelmed is asked less.
    """

    def __init__(self, base_url: str, limits: Limits, secret: Secret | None) -> None:
        self._base_url = base_url.rstrip("/")
        self._limits = limits
        self._secret = secret
        self._session: _Session | None = None
        self._is_closed = False
        if secret:
            secret.guard_logs()

    def hide(self, text: str) -> str:
        """Return a text without the key."""
        return self._secret.hide(text) if self._secret else text

    def is_leaking(self, text: str) -> bool:
        """Whether a generated text holds the key."""
        return self._secret is not None and self._secret.is_leaked_by(text)

    async def get(
        self, path: str, *, read: Callable[[Any], T], max_attempts: int | None = None
    ) -> T:
        """Return what `read` makes of the JSON at a path, or at a whole address.

        Raises:
            Rejected: the server refuses.
            GaveUp: no attempt succeeded.
        """
        return await self._send("GET", path, None, read, max_attempts)

    async def post(self, path: str, body: Any, *, read: Callable[[Any], T]) -> T:
        """Return what `read` makes of the answer to a JSON body.

        Raises:
            Rejected: the server refuses.
            GaveUp: no attempt succeeded.
        """
        return await self._send("POST", path, json.dumps(body).encode(), read, None)

    async def leave(self) -> None:
        """Close the connections of the event loop that runs; another one may ask afterwards."""
        session, self._session = self._session, None
        if session is not None and session.loop is asyncio.get_running_loop():
            session.closing.set()
            await session.client.aclose()

    async def close(self) -> None:
        """Close for good; who still waits gets `GaveUp`."""
        self._is_closed = True
        await self.leave()
        if self._secret:
            self._secret.leave_logs()

    async def _send(
        self,
        method: str,
        path: str,
        body: bytes | None,
        read: Callable[[Any], T],
        max_attempts: int | None,
    ) -> T:
        session = self._here()
        max_attempts = max_attempts or self._limits.max_attempts
        retrying = tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(max_attempts),
            wait=self._pause,
            retry=tenacity.retry_if_exception_type(_Transient),
            sleep=lambda seconds: _sleep_unless(session.closing, seconds),
            reraise=True,
        )
        async with session.slots:
            try:
                return await retrying(self._attempt, session, method, path, body, read)
            except _Transient as exc:
                words = f"{exc} (after {max_attempts} attempt{'s' * (max_attempts > 1)})"
                raise GaveUp(words, is_unreachable=exc.is_unreachable) from None

    def _here(self) -> _Session:
        """Return what belongs to the running loop; that of a loop which ended is dropped."""
        loop = asyncio.get_running_loop()
        if self._is_closed:
            raise GaveUp("the engine is closed", is_unreachable=True)
        if self._session is None or self._session.loop is not loop:
            limits = self._limits
            client = httpx.AsyncClient(
                auth=_Bearer(self._secret) if self._secret else None,
                headers={"Accept-Encoding": "identity", "User-Agent": "raveval"},
                timeout=httpx.Timeout(
                    limits.timeout_seconds, connect=min(limits.timeout_seconds, _CONNECT_SECONDS)
                ),
                limits=httpx.Limits(
                    max_connections=limits.concurrency, max_keepalive_connections=limits.concurrency
                ),
                follow_redirects=False,
                trust_env=limits.trust_env,
            )
            self._session = _Session(loop, client, asyncio.Semaphore(limits.concurrency))
        return self._session

    def _pause(self, state: tenacity.RetryCallState) -> float:
        """Return the seconds until the next attempt."""
        first = self._limits.backoff_seconds
        exc = state.outcome.exception() if state.outcome else None
        if isinstance(exc, _Transient) and exc.pause_seconds is not None:
            # Not all that were told the same time at the same moment.
            return min(exc.pause_seconds, LONGEST_PAUSE_SECONDS) + random.uniform(0, first)
        doubled = tenacity.wait_random_exponential(multiplier=first, max=LONGEST_PAUSE_SECONDS)
        return doubled(state)

    async def _attempt(
        self,
        session: _Session,
        method: str,
        path: str,
        body: bytes | None,
        read: Callable[[Any], T],
    ) -> T:
        if session.closing.is_set():
            raise GaveUp("the engine is closed", is_unreachable=True)
        address = path if "://" in path else f"{self._base_url}/{path}"
        with self._translating():
            async with asyncio.timeout(self._limits.timeout_seconds):
                headers = {"Content-Type": "application/json"} if body is not None else {}
                async with session.client.stream(
                    method, address, content=body, headers=headers
                ) as response:
                    content = await _read(response.aiter_bytes())
        return self._judge(response, content, read)

    @contextlib.contextmanager
    def _translating(self) -> Generator[None, None, None]:
        """Turn what the HTTP library raises into words; its exceptions hold the request."""
        try:
            yield
        except (TimeoutError, httpx.ReadTimeout, httpx.WriteTimeout):
            words = f"no answer within {self._limits.timeout_seconds:g} s"
            raise _Transient(words) from None
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as exc:
            raise _Transient(self._words(exc), is_unreachable=True) from None
        except (httpx.RequestError, httpx.InvalidURL, OSError) as exc:
            raise _Transient(self._words(exc)) from None

    def _words(self, exc: Exception) -> str:
        return f"{type(exc).__name__}: {tidy(self.hide(str(exc)))}".removesuffix(": ")

    def _judge(self, response: httpx.Response, content: bytes, read: Callable[[Any], T]) -> T:
        """Return what the answer means, or raise what is to be done about it."""
        status = response.status_code
        if not response.is_success:
            fault = self._fault(content)
            if (status in _AGAIN or status >= 500) and fault.code != "insufficient_quota":
                raise _Transient(
                    f"status {status}: {fault.words}",
                    pause_seconds=_retry_after(response.headers.get("Retry-After")),
                )
            raise Rejected(status, fault)
        try:
            return read(json.loads(content))
        except Malformed as exc:
            raise _Transient(f"{exc}: {self._fault(content).words}") from None
        except (ValueError, RecursionError):
            raise _Transient(f"the answer is not JSON: {self._fault(content).words}") from None

    def _fault(self, content: bytes) -> Fault:
        """Return what the server says went wrong, without the key: hidden first, shortened last."""
        text = content.decode("utf-8", "replace")
        try:
            # Written anew, so that no escape of JSON can disguise the key.
            said = json.loads(self.hide(json.dumps(json.loads(text), ensure_ascii=False)))
        except (ValueError, RecursionError):
            said = self.hide(text)
        return read_fault(said or "no more was said")


async def _read(pieces: AsyncIterator[bytes]) -> bytes:
    """Return a whole answer of bounded size."""
    content = bytearray()
    async for piece in pieces:
        content += piece
        if len(content) > MOST_BYTES:
            raise Rejected(200, Fault(f"the answer is larger than {MOST_BYTES >> 20} MiB"))
    return bytes(content)


async def _sleep_unless(closing: asyncio.Event, seconds: float) -> None:
    """Sleep, but wake up when the transport is closed."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(closing.wait(), seconds)


def _retry_after(value: str | None) -> float | None:
    """Return the seconds that a `Retry-After` asks for; it is a number of them, or a date.

    >>> _retry_after("2"), _retry_after("soon"), _retry_after("-1"), _retry_after(None)
    (2.0, None, None, None)
    """
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
        return max(seconds, 0.0)
    return seconds if 0 <= seconds < float("inf") else None
