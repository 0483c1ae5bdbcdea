"""An engine with a number of slots in which requests sleep, for a pseudo-random but fixed time.

An engine of its own name for `pipeline_overhead`: what a replica does around its engine is real,
the accelerator is not. Replicas wait for each other at the start, so that all begin at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

from raveval.engines import Capability, Engine
from raveval.engines.scripted import ScriptedEncoder, default_reply
from raveval.types import ModelRef, Reply, Request

OPERATIONAL = frozenset({"slots", "median_seconds", "sigma", "meeting", "n_replicas"})


@dataclass(frozen=True, slots=True)
class Options:
    """How many requests sleep at once, for how long, and where `n_replicas` meet before."""

    slots: int = 64
    median_seconds: float = 0.3
    sigma: float = 0.7
    meeting: str = ""
    n_replicas: int = 1


def encoder(model: ModelRef, options: Options) -> ScriptedEncoder:
    """Return a counter of tokens."""
    return ScriptedEncoder(model.max_model_len or 4096)


def slots(options: Options, *, on_gpu: bool) -> int:
    """Return how many requests sleep at once."""
    return options.slots


def latency_seconds(key: str, options: Options) -> float:
    """Return how long a request sleeps: lognormal, and a function of its key alone."""
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    uniform = (int.from_bytes(digest, "big") + 0.5) / 2**64
    return options.median_seconds * math.exp(options.sigma * NormalDist().inv_cdf(uniform))


def start(model: ModelRef, options: Options) -> Engine:
    """Return the engine, once all replicas are here."""
    meeting = Path(options.meeting)
    (meeting / str(os.getpid())).touch()
    while len(list(meeting.iterdir())) < options.n_replicas:
        time.sleep(0.05)
    return Sleeping(options)


class Sleeping:
    """Answers as the scripted engine does, once a slot was free and has been slept in."""

    capabilities = frozenset({Capability.GENERATE})

    def __init__(self, options: Options) -> None:
        self._options = options
        self._free = asyncio.Semaphore(options.slots)

    async def reply(self, request: Request) -> Reply:
        """Answer one request."""
        async with self._free:
            await asyncio.sleep(latency_seconds(request.key, self._options))
        return default_reply(request)

    def describe(self) -> dict[str, str | int | None]:
        """Return what moves numbers."""
        return {"engine": "sleeping"}

    async def close(self) -> None:
        """Do nothing: there is nothing to release."""
