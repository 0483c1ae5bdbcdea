"""Scripts for the scripted engine: models that answer, and models that break in one known way.

Each is named in a config as "tests.end_to_end.scripts:NAME" and runs inside a replica, so what it
has to know stands in the prompt.
"""

import asyncio
import os
import re
from dataclasses import replace
from pathlib import Path

from raveval.engines.scripted import default_reply
from raveval.types import Completion, Failure, Generate, Reply, Request, Status
from tests.judges import draws


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


async def waits_until(request: Request) -> Reply:
    """Answer once the file that the prompt names is there."""
    named = re.search(r"once (\S+) exists", _text(request))
    while named and not Path(named[1]).exists():
        await asyncio.sleep(0.1)
    return default_reply(request)


def says_its_kind(request: Request) -> Reply:
    """Answer "This is a KIND answer", as `tests.judges.draws` reads it, of the kind asked for."""
    asked = re.search(r"in a (\w+) way", _text(request))
    if re.search(r"\bfail\b", _text(request)):
        return Failure(Status.FAILED, "the candidate is out of words")
    return Completion(
        f"This is a {asked[1] if asked else 'plain'} answer. [RESULT] 5",
        "stop",
        n_prompt_tokens=7,
        n_output_tokens=5,
    )


def says_its_kind_anew(request: Request) -> Reply:
    """Answer as `says_its_kind`, in other words."""
    reply = says_its_kind(request)
    return replace(reply, text=f"Well. {reply.text}") if isinstance(reply, Completion) else reply


def says_its_kind_or_fails(request: Request) -> Reply:
    """Answer as `says_its_kind`, but fail where the prompt names a file that is not there."""
    reply = fails_until(request)
    return reply if isinstance(reply, Failure) else says_its_kind(request)


def judge_fails_now_and_then(request: Request) -> Reply:
    """Grade, but fail at the first sample where the prompt names a file that is not there."""
    assert isinstance(request, Generate)
    reply = fails_until(request)
    if isinstance(reply, Failure) and request.key.rpartition("#")[2].startswith("0"):
        return reply
    return draws(request)


def judge_dies_on_poison(request: Request) -> Reply:
    """Grade, but end the whole process on one example."""
    if "poison" in _text(request):
        os._exit(139)
    return draws(request)


def judge_fails_until(request: Request) -> Reply:
    """Grade, but fail where the prompt names a file that is not there."""
    reply = fails_until(request)
    return reply if isinstance(reply, Failure) else draws(request)
