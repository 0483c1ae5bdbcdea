"""Scripts for the scripted engine: models that answer, and models that break in one known way.

Each is named in a config as "tests.end_to_end.scripts:NAME" and runs inside a replica, so what it
has to know stands in the prompt.
"""

import asyncio
import os
import re
from pathlib import Path

from raveval.engines.scripted import default_reply
from raveval.types import Failure, Generate, Reply, Request, Status


def _text(request: Request) -> str:
    return str(request.prompt) if isinstance(request, Generate) else ""


def dies_on_poison(request: Request) -> Reply:
    """End the whole process on one example, as a segmentation fault would."""
    if "poison" in _text(request):
        os._exit(139)
    return default_reply(request)


def raises_on_poison(request: Request) -> Reply:
    """Raise on one example only."""
    if "poison" in _text(request):
        raise ValueError("this row is more than I can take")
    return default_reply(request)


def dies_once(request: Request) -> Reply:
    """End the process at the first prompt that names a file which is not there yet."""
    named = re.search(r"unless (\S+) exists", _text(request))
    if named and not Path(named[1]).exists():
        Path(named[1]).touch()
        os._exit(139)
    return default_reply(request)


async def hangs(request: Request) -> Reply:
    """Never answer one example, and hold up the others that come after it."""
    if "hang" in _text(request):
        await asyncio.sleep(3600)
    return default_reply(request)


_turn = asyncio.Lock()


async def one_at_a_time(request: Request) -> Reply:
    """Answer in a queue that is longer than the deadline, each within it."""
    async with _turn:
        await asyncio.sleep(0.05)
    return default_reply(request)


def fails_until(request: Request) -> Reply:
    """Fail where the prompt names a file that is not there."""
    named = re.search(r"unless (\S+) exists", _text(request))
    if named and not Path(named[1]).exists():
        return Failure(Status.FAILED, "not yet")
    return default_reply(request)
