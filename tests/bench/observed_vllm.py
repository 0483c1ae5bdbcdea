"""The engine vllm as it is, with a note of every seeded text that it asks vLLM for.

An engine of its own name, so that replicas of a real run can be watched: a config says
`engine: {name: tests.bench.observed_vllm, notes: FILE}`. What is noted are the token ids and the
sampling parameters as they are handed to vLLM, one JSON object a line.
"""

from __future__ import annotations

import json
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raveval.engines import Engine, vllm
from raveval.engines._vllm_backends import Backend
from raveval.types import ModelRef

OPERATIONAL = vllm.OPERATIONAL | {"notes"}

encoder = vllm.encoder


@dataclass(frozen=True, slots=True)
class Options(vllm.Options):
    """Those of the engine vllm, and the file that notes are added to."""

    notes: str = ""


def start(model: ModelRef, options: Options) -> Engine:
    """Load a model into vLLM, and watch what it is asked from here on."""
    engine = vllm.start(model, options)
    assert isinstance(engine, vllm.VllmEngine)
    engine._backend = _Watched(engine._backend, Path(options.notes))
    return engine


class _Watched:
    """Hands everything on to a backend of vLLM; one event loop at a time submits."""

    def __init__(self, backend: Backend, notes: Path) -> None:
        self._backend = backend
        self._notes = notes
        self.call = backend.call
        self.close = backend.close

    def submit(self, token_ids: tuple[int, ...], params: Any) -> Future[Any]:
        """Note a request and queue it."""
        note = {
            "seed": params.seed,
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "repetition_penalty": params.repetition_penalty,
            "stop": params.stop,
            "prompt": token_ids,
        }
        with self._notes.open("a", encoding="utf-8") as file:
            file.write(json.dumps(note) + "\n")
        return self._backend.submit(token_ids, params)
