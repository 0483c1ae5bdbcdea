"""OpenAI-compatible servers for tests: a small one that misbehaves as told, and vLLM's own."""

import contextlib
import ctypes
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Body = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What the small server sends.

    `delay_seconds` comes before it; with `cut_bytes` the connection is closed after so many bytes
    of the body, with `is_reset` before the first one.
    """

    content: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay_seconds: float = 0.0
    cut_bytes: int | None = None
    is_reset: bool = False

    def body(self) -> bytes:
        if isinstance(self.content, bytes):
            return self.content
        return json.dumps(self.content).encode()


def completion(
    text: str | None = "fine",
    *,
    finish_reason: str | None = "stop",
    usage: Any = (3, 2),
    **choice: Any,
) -> dict[str, Any]:
    """Return the body of an answer that both endpoints could give."""
    content: dict[str, Any] = {
        "choices": [
            {
                "message": {"role": "assistant", "content": text, "reasoning_content": "hm"},
                "text": text,
                "finish_reason": finish_reason,
                **choice,
            }
        ]
    }
    if usage is not None:
        content["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
    return content


def error(status: int, message: str, **more: Any) -> Answer:
    """Return an error in the API's form."""
    return Answer({"error": {"message": message, "type": "test", **more}}, status)


def prompt_of(body: Body) -> Any:
    """Return what a request asks: token ids, a text, or the last turn's text."""
    return body["messages"][-1]["content"] if "messages" in body else body["prompt"]


class SmallServer:
    """Answers each prompt with itself, unless told otherwise.

    `then` lines up answers to come; `script` decides on those after them. What was asked is kept in
    `asked` (the paths too, in `paths`, and the headers), with the time of each.
    """

    def __init__(self) -> None:
        self.card: dict[str, Any] = {"id": "m", "owned_by": "somebody"}
        self.models: Answer | None = None
        self.script: Callable[[Body], Answer] = lambda body: Answer(
            completion(_echo(body), usage=(2 + _n_words(body), 2))
        )
        self.asked: list[Body] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.times: list[float] = []
        self.most_in_flight = 0
        self._in_flight = 0
        self._lined_up: list[Answer] = []
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer._note(self)
                self._send(outer._listing(self.path))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer._note(self)
                with outer._flight():
                    answer = outer._next(body)
                    time.sleep(answer.delay_seconds)
                    self._send(answer)

            def _send(self, answer: Answer) -> None:
                if answer.is_reset:
                    linger = struct.pack("ii", 1, 0)
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    self.close_connection = True
                    return
                content = answer.body()
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[: answer.cut_bytes])
                if answer.cut_bytes is not None:
                    self.close_connection = True

            def log_message(self, *_: Any) -> None:  # type: ignore[explicit-override]
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False
            request_queue_size = 64

            def handle_error(self, *_: Any) -> None:  # type: ignore[explicit-override]
                pass  # the client went away, as some tests want it to

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> "SmallServer":
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def then(self, *answers: Answer) -> None:
        self._lined_up += answers

    @contextlib.contextmanager
    def _flight(self) -> Iterator[None]:
        with self._lock:
            self._in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self._in_flight)
        try:
            yield
        finally:
            with self._lock:
                self._in_flight -= 1

    def _note(self, handler: BaseHTTPRequestHandler) -> None:
        with self._lock:
            self.paths.append(handler.path)
            self.headers.append(dict(handler.headers))

    def _listing(self, path: str) -> Answer:
        if path == "/version":
            return Answer({"version": "9.9"})
        return self.models or Answer({"object": "list", "data": [{"id": "other"}, self.card]})

    def _next(self, body: Body) -> Answer:
        with self._lock:
            self.asked.append(body)
            self.times.append(time.monotonic())
            if self._lined_up:
                return self._lined_up.pop(0)
        return self.script(body)


def _echo(body: Body) -> str:
    prompt = prompt_of(body)
    return prompt if isinstance(prompt, str) else " ".join(map(str, prompt))


def _n_words(body: Body) -> int:
    turns = body.get("messages") or [{"content": _echo(body)}]
    return sum(len(turn["content"].split()) for turn in turns)


@contextlib.contextmanager
def vllm_server(
    model: Path,
    log: Path,
    *,
    max_model_len: int,
    kv_cache_bytes: int = 2**28,
    step_tokens: int = 16384,
) -> Iterator[str]:
    """Run vLLM's own OpenAI server on CPUs; yields where its API begins.

    A prompt that is cut over two steps and sampled with a seed would end this server: all prompts
    that are asked at the same time must fit into `step_tokens`.

    Its front end is started as a module: the command `vllm serve` asks for a distribution named
    `vllm`, which the CPU build is not.
    """
    port = _free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"]
    command += ["--enforce-eager", "--kv-cache-memory-bytes", str(kv_cache_bytes)]
    command += ["--max-model-len", str(max_model_len)]
    command += ["--max-num-batched-tokens", str(step_tokens)]
    environment = os.environ | {
        "OMP_NUM_THREADS": str(min(len(os.sched_getaffinity(0)), 2)),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # other processes want CPUs, too
        # The model runs in the engine's process: one process less to start, and no two that poll
        # the memory between them at each step.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
        try:
            _wait_for(f"http://127.0.0.1:{port}/health", process, log)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its session: what it started itself
            process.wait()


def _end_with_parent() -> None:
    """Let the kernel end this process with the one that started it: tests can be killed, too."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


def _wait_for(address: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=5):
            return
        time.sleep(0.5)
    raise AssertionError(f"vLLM's server did not start:\n{log.read_text()[-3000:]}")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
