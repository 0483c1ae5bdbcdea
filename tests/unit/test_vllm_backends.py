"""The thread that drives vLLM in this process, against an engine that can be told to misbehave; the
environment around a start; and the last words of an engine's own process.
"""

import asyncio
import os
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import CancelledError, ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from typing_extensions import override

from raveval.engines import EngineDied, _vllm_start
from raveval.engines._vllm_backends import InProcess, RequestFailed
from raveval.engines._vllm_log import End, EngineLog
from raveval.engines.vllm import Options
from raveval.errors import ConfigError, ModelError

pytestmark = pytest.mark.model  # importing vLLM takes many seconds


@pytest.fixture(scope="module", autouse=True)
def vllm():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("vllm.exceptions")


class Engine:
    """Finishes each request after `params` steps of a millisecond."""

    def __init__(self):
        self.left: dict[str, int] = {}
        self.ids: dict[str, list[int]] = {}
        self.aborted: list[str] = []
        self.adapters: list[object] = []
        self.most_at_once = 0
        self.breaks = False
        self.engine_core = SimpleNamespace(shutdown=lambda: None)

    def add_lora(self, adapter):
        self.adapters.append(adapter)

    def add_request(self, name, prompt, params, lora_request=None):
        self.adapters.append(lora_request)
        if not prompt["prompt_token_ids"]:
            raise ValueError("the prompt is empty")
        self.left[name] = params
        self.ids[name] = prompt["prompt_token_ids"]

    def abort_request(self, names):
        self.aborted += names
        for name in names:
            del self.left[name]

    def step(self):
        if self.breaks:
            raise MemoryError("no room for the cache")
        time.sleep(0.001)
        self.most_at_once = max(self.most_at_once, len(self.left))
        outputs = []
        for name in list(self.left):
            self.left[name] -= 1
            done = self.left[name] <= 0
            if done:
                del self.left[name]
            output = SimpleNamespace(request_id=name, finished=done, ids=self.ids[name])
            outputs.append(output)
        return outputs


@pytest.fixture
def running():
    engine = Engine()
    backend = InProcess(lambda: engine)
    yield engine, backend
    backend.close()


def test_what_many_threads_submit_is_batched_and_answered(running):
    engine, backend = running
    with ThreadPoolExecutor(8) as pool:
        futures = list(pool.map(lambda i: backend.submit((i,), 3), range(1, 400)))
    assert [f.result(10).ids for f in futures] == [[i] for i in range(1, 400)]
    assert engine.most_at_once > 8


def test_a_refused_request_fails_alone(running):
    _, backend = running
    good, bad = backend.submit((1,), 2), backend.submit((), 2)
    with pytest.raises(RequestFailed, match="the prompt is empty"):
        bad.result(10)
    assert good.result(10).ids == [1]


def test_an_adapter_goes_with_every_request(running):
    engine, backend = running
    backend.submit((1,), 1).result(10)
    backend.adopt("adapter")
    for i in (1, 2):
        backend.submit((i,), 1).result(10)
    assert engine.adapters == [None, "adapter", "adapter", "adapter"]


def test_all_that_computes_does_so_in_one_thread():
    threads: list[str] = []

    class Noting(Engine):
        def __init__(self):
            super().__init__()
            self.note()

        def note(self, *_):
            threads.append(threading.current_thread().name)

        def collective_rpc(self, method):
            self.note()
            return [method]

        @override
        def add_lora(self, adapter):
            self.note()

        @override
        def step(self):
            self.note()
            return super().step()

    backend = InProcess(Noting)
    assert backend.call("raveval_install") == ["raveval_install"]
    backend.adopt("adapter")
    backend.submit((1,), 1).result(10)
    backend.close()
    assert threads == ["vllm-pump"] * 4
    with pytest.raises(EngineDied, match="closed"):
        backend.call("raveval_install")


def test_what_stands_in_the_way_of_an_engine_is_raised_and_no_thread_stays():
    def make():
        raise MemoryError("no room for the weights")

    with pytest.raises(MemoryError, match="no room for the weights"):
        InProcess(make)
    deadline = time.monotonic() + 10
    while "vllm-pump" in {t.name for t in threading.enumerate()}:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_broken_step_fails_all_that_wait_and_all_that_come(running):
    engine, backend = running
    waiting = [backend.submit((i,), 10**6) for i in range(1, 20)]
    engine.breaks = True
    for future in [*waiting, backend.submit((1,), 1)]:
        with pytest.raises(EngineDied, match="MemoryError: no room for the cache"):
            future.result(10)


def test_a_cancelled_request_is_aborted_and_the_others_go_on(running):
    engine, backend = running
    endless, other = backend.submit((1,), 10**6), backend.submit((2,), 200)
    while not engine.left:
        time.sleep(0.001)
    assert endless.cancel()
    assert other.result(10).ids == [2]
    with pytest.raises(CancelledError):
        endless.result(10)
    assert engine.aborted == ["r0"]


def test_cancelling_the_coroutine_cancels_the_request(running):
    engine, backend = running

    async def give_up():
        async with asyncio.timeout(0.1):
            await asyncio.wrap_future(backend.submit((1,), 10**6))

    with pytest.raises(TimeoutError):
        asyncio.run(give_up())
    backend.submit((2,), 1).result(10)
    assert engine.aborted == ["r0"]


def test_closing_fails_what_waits():
    backend = InProcess(Engine)
    future = backend.submit((1,), 10**6)
    backend.close()
    for late in (future, backend.submit((1,), 1)):
        with pytest.raises(EngineDied, match="closed"):
            late.result(10)
    assert "vllm-pump" not in {t.name for t in threading.enumerate() if t.is_alive()}


def test_the_environment_is_given_back(monkeypatch):
    monkeypatch.setenv("MINE", "kept")
    monkeypatch.delenv("THEIRS", raising=False)
    before = dict(os.environ)
    with _vllm_start.environment({"MINE": "default", "THEIRS": "1"}):
        assert os.environ["MINE"] == "kept"
        assert os.environ["THEIRS"] == "1"
        os.environ["MINE"] = "changed"
        os.environ["LD_PRELOAD"] = "something"
    assert dict(os.environ) == before


def test_threads_are_those_of_the_actor(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert _vllm_start.n_threads() == 3
    for nonsense in ("", "0", "many"):
        monkeypatch.setenv("OMP_NUM_THREADS", nonsense)
        assert _vllm_start.n_threads() >= 1
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert _vllm_start.n_threads() == len(os.sched_getaffinity(0))


def test_a_broken_torchvision_is_named_with_its_cure(tmp_path):
    (tmp_path / "torchvision.py").write_text(
        'raise RuntimeError("operator torchvision::nms does not exist")'
    )
    script = "from raveval.engines import _vllm_imports; _vllm_imports.check_torchvision()"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(ModelError.__module__)
    assert "operator torchvision::nms does not exist" in last
    assert "pip uninstall torchvision torchaudio torchcodec" in last


def test_last_words_are_the_causes_first():
    log = EngineLog("ERROR")
    assert log.last_words() is None
    script = f"""
import json, logging.config
logging.config.dictConfig(json.load(open({str(log.config)!r})))
logger = logging.getLogger("vllm.v1.engine.core")
try:
    try:
        raise ValueError("the cache is too small\\nby far")
    except ValueError as exc:
        raise RuntimeError("the worker failed") from exc
except RuntimeError:
    logger.exception("EngineCore failed to start.")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert log.last_words() == "ValueError: the cache is too small; RuntimeError: the worker failed"
    assert "EngineCore failed to start." in done.stderr
    assert log.ends()[0] == End("ValueError: the cache is too small", "<string>")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"mode": "fast"}, "mode: given 'fast', allowed are auto, in_process, async"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size: must be at least 1, given 0"),
        ({"pipeline_parallel_size": -1}, "pipeline_parallel_size: must be at least 1, given -1"),
        ({"gpu_memory_utilization": 85}, "up to 1, given 85"),
    ],
)
def test_impossible_options_are_refused(settings, said):
    with pytest.raises(ConfigError, match=said):
        Options(**settings)
