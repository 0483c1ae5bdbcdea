"""The two ways to drive vLLM: in this process, and in a process of its own. One interface.

`submit` takes token ids and sampling parameters from any thread and returns a future of vLLM's
output; everything submitted shares one continuous batch. Cancelling the future aborts the request.
A request that vLLM refuses is that future's `RequestFailed`; a broken engine is `EngineDied` for
all that wait and all that come later.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import multiprocessing
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from raveval.engines import EngineDied

STOP_SECONDS = 60.0  # how long closing waits for a step that is under way


class RequestFailed(Exception):
    """vLLM refused or did not do one request; the engine is fine."""


class Backend(Protocol):
    """A running vLLM engine."""

    def submit(self, token_ids: tuple[int, ...], params: Any) -> Future[Any]:
        """Queue one request; the future gives vLLM's finished `RequestOutput`."""
        ...

    def call(self, method: str) -> list[Any]:
        """Call a method of every worker; only before the first `submit`."""
        ...

    def close(self) -> None:
        """End the engine; what still waits gets `EngineDied`."""
        ...


def words(exc: BaseException) -> str:
    """Return an exception's type and text: the last words of what raised it."""
    text = str(exc).strip()
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__


def _settle(future: Future[Any], outcome: Any) -> None:
    """Give a future its result or exception, unless it was cancelled meanwhile."""
    if not future.set_running_or_notify_cancel():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def _outcome(run: Callable[[], Any]) -> Any:
    """Return what a call returns, or the exception that it raises."""
    try:
        return run()
    except BaseException as exc:  # noqa: BLE001 - raised where the call was asked for
        return exc


@dataclass(frozen=True, slots=True)
class _Job:
    name: str
    token_ids: tuple[int, ...]
    params: Any
    future: Future[Any]


@dataclass(frozen=True, slots=True)
class _Abort:
    name: str


@dataclass(frozen=True, slots=True)
class _Errand:
    run: Callable[[], Any]
    future: Future[Any]


class InProcess:
    """vLLM's synchronous engine, and one thread that makes it, adds what waits, and steps.

    The fastest to start; what breaks it is raised here and not in another process's log.

    All that computes does so in that one thread: each thread that does has OpenMP threads of its
    own, and where those are more than the CPUs, they do not spin until the next piece of work, but
    sleep. That costs up to a third of the speed at which texts are generated.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        """Make the engine; raises what making it raises."""
        self._engine: Any = None
        self._inbox: queue.SimpleQueue[_Job | _Abort | _Errand | None] = queue.SimpleQueue()
        self._waiting: dict[str, Future[Any]] = {}
        self._numbers = itertools.count()
        self._lock = threading.Lock()  # between the last look into the inbox and a late submit
        self._end: str | None = None
        self._adapter: Any = None
        in_context = contextvars.copy_context().run  # torch's own settings are of a context
        self._thread = threading.Thread(
            target=in_context, args=(self._pump,), name="vllm-pump", daemon=True
        )
        self._thread.start()
        try:
            self._engine = self._errand(make)
        except BaseException:
            self._inbox.put(None)
            raise

    def submit(self, token_ids: tuple[int, ...], params: Any) -> Future[Any]:
        """Queue one request."""
        job = _Job(f"r{next(self._numbers)}", token_ids, params, Future())
        with self._lock:
            if self._end is not None:
                job.future.set_exception(EngineDied(self._end))
                return job.future
            self._inbox.put(job)
        job.future.add_done_callback(
            lambda future: self._inbox.put(_Abort(job.name)) if future.cancelled() else None
        )
        return job.future

    def call(self, method: str) -> list[Any]:
        """Call a method of the worker."""
        replies: list[Any] = self._errand(lambda: self._engine.collective_rpc(method))
        return replies

    def adopt(self, adapter: Any) -> None:
        """Load a LoRA adapter, as vLLM asks for one, and use it for all requests to come."""
        self._errand(lambda: self._engine.add_lora(adapter))
        self._adapter = adapter

    def close(self) -> None:
        """Stop after the step that is under way, and release the engine."""
        if self._engine is None:
            return
        self._inbox.put(None)
        self._thread.join(STOP_SECONDS)
        self._finish("the engine was closed")
        self._engine.engine_core.shutdown()
        self._engine = None  # weights and cache with it

    def _errand(self, run: Callable[[], Any]) -> Any:
        """Have the thread do something between two steps; return what it gives, or raise."""
        errand = _Errand(run, Future())
        with self._lock:
            if self._end is not None:
                raise EngineDied(self._end)
            self._inbox.put(errand)
        return errand.future.result()

    def _pump(self) -> None:
        try:
            while self._take():
                outputs = self._engine.step() if self._waiting else ()
                for output in outputs:
                    if output.finished and (future := self._waiting.pop(output.request_id, None)):
                        _settle(future, output)
        except BaseException as exc:  # noqa: BLE001 - whatever it is, somebody waits for an answer
            self._finish(f"vLLM died: {words(exc)}")
        else:
            self._finish("the engine was closed")

    def _take(self) -> bool:
        """Do all that waits in the inbox, sleeping while there is nothing; False means stop."""
        with contextlib.suppress(queue.Empty):
            while True:
                job = self._inbox.get(block=not self._waiting)
                if job is None:
                    return False
                if isinstance(job, _Job):
                    self._add(job)
                elif isinstance(job, _Errand):
                    _settle(job.future, _outcome(job.run))
                elif self._waiting.pop(job.name, None) is not None:
                    self._engine.abort_request([job.name])
        return True

    def _add(self, job: _Job) -> None:
        from vllm.exceptions import VLLMClientError

        if job.future.cancelled():
            return
        try:
            prompt = {"prompt_token_ids": list(job.token_ids)}
            self._engine.add_request(job.name, prompt, job.params, lora_request=self._adapter)
        except (ValueError, TypeError, VLLMClientError) as exc:
            _settle(job.future, RequestFailed(words(exc)))
        else:
            self._waiting[job.name] = job.future

    def _finish(self, end: str) -> None:
        """Fail all that waits and all that comes; of several ends the first one counts."""
        with self._lock:
            self._end = self._end or end
        with contextlib.suppress(queue.Empty):
            while True:
                job = self._inbox.get_nowait()
                if isinstance(job, _Job | _Errand):
                    _settle(job.future, EngineDied(self._end))
        while self._waiting:
            _settle(self._waiting.popitem()[1], EngineDied(self._end))


class OwnProcess:
    """vLLM's asynchronous engine, which runs in a process of its own; one thread talks to it.

    As with all of vLLM's processes, a script that starts one needs `if __name__ == "__main__":`
    around what it does, because the new process imports the script again.
    """

    def __init__(self, config: Any, last_words: Callable[[], str | None]) -> None:
        """Start the engine.

        Args:
            config: vLLM's own, complete.
            last_words: returns what the engine's process said about its end, if anything.
        """
        self._last_words = last_words
        self._numbers = itertools.count()
        self._closed = False
        self._adapter: Any = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="vllm-client", daemon=True)
        self._thread.start()
        before = set(multiprocessing.active_children())
        try:
            self._engine = self._wait(self._start(config))
        except BaseException:
            self._stop_loop()
            raise
        self.processes = tuple(set(multiprocessing.active_children()) - before)

    def submit(self, token_ids: tuple[int, ...], params: Any) -> Future[Any]:
        """Queue one request."""
        if self._closed:
            future: Future[Any] = Future()
            future.set_exception(EngineDied("the engine was closed"))
            return future
        reply = self._reply(f"r{next(self._numbers)}", token_ids, params)
        return asyncio.run_coroutine_threadsafe(reply, self._loop)

    def call(self, method: str) -> list[Any]:
        """Call a method of every worker."""
        replies: list[Any] = self._wait(self._engine.collective_rpc(method))
        return replies

    def adopt(self, adapter: Any) -> None:
        """Load a LoRA adapter, as vLLM asks for one, and use it for all requests to come."""
        self._wait(self._engine.add_lora(adapter))
        self._adapter = adapter

    def close(self) -> None:
        """End the engine's process."""
        if self._closed:
            return
        self._closed = True
        self._wait(self._cancel_all())  # vLLM's own reader too, which else reports a dead engine
        self._engine.shutdown()
        self._engine = None  # its finaliser is not made for the end of the interpreter
        self._stop_loop()

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    def _wait(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_SECONDS)

    async def _start(self, config: Any) -> Any:
        from vllm.v1.engine.async_llm import AsyncLLM

        return AsyncLLM.from_vllm_config(config, disable_log_stats=True)

    async def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _reply(self, name: str, token_ids: tuple[int, ...], params: Any) -> Any:
        from vllm.exceptions import VLLMClientError
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        finished = None
        try:
            prompt = {"prompt_token_ids": list(token_ids)}
            outputs = self._engine.generate(prompt, params, name, lora_request=self._adapter)
            async for output in outputs:
                finished = output
        except EngineDeadError as exc:
            raise EngineDied(self._obituary(exc)) from exc
        except EngineGenerateError as exc:
            raise RequestFailed(words(exc.__cause__ or exc)) from exc
        except (ValueError, TypeError, VLLMClientError) as exc:
            raise RequestFailed(words(exc)) from exc
        except asyncio.CancelledError:
            if self._closed:
                raise EngineDied("the engine was closed") from None
            raise
        return finished

    def _obituary(self, exc: BaseException) -> str:
        """Say how the engine's process ended, in its own words where it had time for any."""
        codes = [p.exitcode for p in self.processes if p.exitcode is not None]
        ends = [f"killed by signal {-c}" if c < 0 else f"exit code {c}" for c in codes]
        return "; ".join(["vllm's process died", *ends, self._last_words() or words(exc)])
