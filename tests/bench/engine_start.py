"""Starts the CPU engine in a process of its own, asks it once, and says where the seconds went.

    python -m tests.bench.engine_start MODEL BEGAN

BEGAN is when the process was begun (`time.time()`). Prints JSON: of each phase the seconds on the
clock and the CPU seconds.
"""

import time

ENTERED, ENTERED_CPU = time.time(), time.process_time()

import asyncio  # noqa: E402 - what is imported from here on is timed
import json  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable  # noqa: E402
from typing import Any  # noqa: E402


def main() -> None:
    model, began = sys.argv[1], float(sys.argv[2])
    phases = {"interpreter": [ENTERED - began, ENTERED_CPU]}
    last = [ENTERED, ENTERED_CPU]

    def done(phase: str) -> None:
        now = [time.time(), time.process_time()]
        before = phases.get(phase, [0.0, 0.0])
        phases[phase] = [p + n - b for p, n, b in zip(before, now, last, strict=True)]
        last[:] = now

    from raveval.engines import _vllm_start, vllm
    from raveval.types import ChoiceScores, ModelRef, ScoreChoices

    done("import raveval")

    def timed(owner: Any, name: str, phase: str) -> None:
        """Count what a function takes as a phase, and what came before it as another."""
        function: Callable[..., Any] = getattr(owner, name)

        def wrapped(*arguments: Any, **named: Any) -> Any:
            done("between")
            try:
                return function(*arguments, **named)
            finally:
                done(phase)

        setattr(owner, name, wrapped)

    timed(vllm, "encoder", "tokenizer (transformers imported)")
    timed(_vllm_start, "_on_cpu", "import torch, vllm")
    timed(_vllm_start, "_configure", "vLLM's configuration")
    timed(_vllm_start, "_run", "worker, weights, KV cache")
    timed(vllm.VllmEngine, "_install_hook", "hook, and its check")
    ref = ModelRef(path=model, max_model_len=2048)
    engine = vllm.start(ref, vllm.Options())
    done("between")
    question = ScoreChoices("q", "The capital of France is", (" Paris", " Rome"))
    reply = asyncio.run(engine.reply(question))
    done("first reply")
    assert isinstance(reply, ChoiceScores), reply
    assert reply.logprob_nats[0] > reply.logprob_nats[1], reply
    print(json.dumps({"whole": [time.time() - began, time.process_time()], **phases}), flush=True)


if __name__ == "__main__":
    main()
