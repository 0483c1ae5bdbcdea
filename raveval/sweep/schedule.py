"""Runs checkpoints side by side, each in a process of its own, and says what became of each."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import yaml

from raveval.cli.app import EXIT_MISSING_EXAMPLES
from raveval.config import RunConfig
from raveval.errors import Refused
from raveval.sweep.checkpoints import Checkpoint
from raveval.sweep.child import EXIT_WAITS_FOR_JUDGE
from raveval.sweep.prefetch import prefetch

_SECONDS_BETWEEN_LOOKS = 0.1

Say = Callable[[str], None]


class State(StrEnum):
    """What became of a checkpoint."""

    DONE = "done"  # answered, and graded where a judge is needed
    UNCHANGED = "unchanged"  # done by an earlier sweep; nothing was to do
    ANSWERED = "answered"  # waits for the judge
    FAILED = "failed"


_STATES = {
    0: State.DONE,
    EXIT_MISSING_EXAMPLES: State.DONE,
    EXIT_WAITS_FOR_JUDGE: State.ANSWERED,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """A checkpoint's run and what became of it; `message` says why it failed."""

    checkpoint: Checkpoint
    state: State
    message: str = ""
    seconds: float = 0.0


@dataclass(slots=True)
class _Child:
    checkpoint: Checkpoint
    process: subprocess.Popen[bytes]
    log: Path
    log_start: int
    started: float


def carry_out(
    work: Iterable[tuple[Checkpoint, RunConfig]],
    *,
    parallel: int,
    address: str,
    folder: Path,
    say: Say,
) -> Iterator[Outcome]:
    """Run each checkpoint in a process of its own, so many at once, and yield what became of it.

    Args:
        work: checkpoints with their runs, in the order in which they are begun.
        parallel: how many are under way at once.
        address: the Ray cluster that they share; what finds no free resources there waits.
        folder: where the logs go, one for each checkpoint.
        say: hears of beginnings.
    """
    waiting, children = deque(work), list[_Child]()
    try:
        while waiting or children:
            while waiting and len(children) < parallel:
                checkpoint, config = waiting.popleft()
                say(f"{checkpoint.name}: begun")
                children.append(_begin(checkpoint, config, address, folder))
                if waiting:
                    _fetch_meanwhile(waiting[0][1])
            for child in [each for each in children if each.process.poll() is not None]:
                children.remove(child)
                yield _outcome(child)
            time.sleep(_SECONDS_BETWEEN_LOOKS)
    finally:
        _end(children)


def _begin(checkpoint: Checkpoint, config: RunConfig, address: str, folder: Path) -> _Child:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{checkpoint.name}.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
    log = folder / f"{checkpoint.name}.log"
    with log.open("ab") as file:
        start = file.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "raveval.sweep.child", str(path)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env={**os.environ, "RAY_ADDRESS": address},
            process_group=0,  # Ctrl-C reaches the sweep alone, which passes it on
        )
    return _Child(checkpoint, process, log, start, time.monotonic())


def _outcome(child: _Child) -> Outcome:
    code = child.process.returncode
    seconds = time.monotonic() - child.started
    if code in _STATES:
        return Outcome(child.checkpoint, _STATES[code], seconds=seconds)
    with child.log.open("rb") as file:
        file.seek(child.log_start)
        said = file.read().decode(errors="replace").strip().splitlines()
    errors = [index for index, line in enumerate(said) if line.startswith("error: ")]
    if errors:
        message = "\n".join(said[errors[-1] :]).removeprefix("error: ")
    elif code < 0:
        message = f"its process was ended by signal {signal.Signals(-code).name}"
    else:
        message = said[-1] if said else f"its process ended with code {code}"
    return Outcome(child.checkpoint, State.FAILED, message, seconds)


def _end(children: Iterable[_Child]) -> None:
    """Have the children stop as Ctrl-C would, and wait for them: what they committed is kept."""
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            child.process.send_signal(signal.SIGINT)
    for child in children:
        try:
            child.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()


def _fetch_meanwhile(config: RunConfig) -> None:
    """Bring the next checkpoint's weights nearer while the others run; it may fail unheard."""

    def fetch() -> None:
        with contextlib.suppress(Refused, OSError):
            prefetch(config.evaluate.model)

    threading.Thread(target=fetch, name="raveval-prefetch", daemon=True).start()
