"""What an engine is: one coroutine that turns a request into a reply.

Each module of this package with a public name is one backend; the file's name is its key. It holds

- `Options`, a frozen dataclass that can be imported without the backend;
- `OPERATIONAL`, the names of those options that cannot move a number (memory, threads): they may
  differ between a run and its resumption;
- `encoder(model, options)`, which tells the plan how many tokens a request needs before anything is
  loaded (`raveval.lengths.Encoder` says what it has);
- `start(model, options)`, which loads the model and returns an `Engine`;
- where it does not answer 256 requests side by side at most, `slots(options, on_gpu=...)`, which
  says how many: a replica keeps half as many again waiting;
- where the model is elsewhere, `IS_CLIENT = True`: a replica then needs neither a GPU nor many
  cores, and is given one CPU unless the run says otherwise;
- where it applies `ModelRef.adapter`, `TAKES_ADAPTERS = True`: a run with an adapter is else
  refused.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from raveval.types import Reply, Request


class Capability(StrEnum):
    """What an engine can do; a plan that needs more is refused before anything is loaded."""

    GENERATE = "generate"
    SCORE = "score"
    ENTROPY = "entropy"  # over the full vocabulary; an engine that sees the top k must not claim it
    SEEDED = "seeded"  # the same seed gives the same text, whatever else is in the batch


class Engine(Protocol):
    """A loaded model. Any number of `reply` coroutines may wait at the same time."""

    capabilities: frozenset[Capability]

    async def reply(self, request: Request) -> Reply:
        """Answer one request.

        A request that cannot be answered is a `Failure` value. A dead engine raises `EngineDied`,
        and every later call does too: the process is to be ended and replaced.
        """
        ...

    def describe(self) -> dict[str, str | int | None]:
        """Return what moves numbers and is known only once loaded (dtype, context, versions)."""
        ...

    async def close(self) -> None:
        """Release what the engine holds; pending replies fail."""
        ...


class EngineDied(RuntimeError):
    """The backend is gone; the message holds its own last words."""
