"""Runs checkpoints side by side, each in a process of its own, and says what became of each."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from raveval.config import RunConfig
from raveval.errors import Refused
from raveval.speech import EXIT_MISSING_EXAMPLES
from raveval.sweep.checkpoints import Checkpoint
from raveval.sweep.outcome import EXIT_WAITS_FOR_JUDGE, SIDE_BY_SIDE, Outcome, State
from raveval.sweep.prefetch import prefetch

_SECONDS_BETWEEN_LOOKS = 0.1
_SECONDS_TO_END = {signal.SIGINT: 30, signal.SIGTERM: 10}
"""How long a child has after each signal, before it is killed."""

Say = Callable[[str], None]
WhyStop = Callable[[Checkpoint], str | None]

_STATES = {
    0: State.DONE,
    EXIT_MISSING_EXAMPLES: State.DONE,
    EXIT_WAITS_FOR_JUDGE: State.ANSWERED,
}


@dataclass(slots=True)
class _Child:
    checkpoint: Checkpoint
    process: subprocess.Popen[bytes]
    log: Path
    log_start: int
    started: float
    stop: _Stop | None = None


@dataclass(slots=True)
class _Stop:
    """That a child is being ended: why, since when, and how many signals it was sent."""

    why: str
    since: float
    n_signals: int = 0


def carry_out(
    work: Iterable[tuple[Checkpoint, RunConfig]],
    *,
    parallel: int,
    address: str,
    folder: Path,
    say: Say,
    why_stop: WhyStop | None = None,
) -> Generator[Outcome, None, None]:
    """Run each checkpoint in a process of its own, so many at once, and yield what became of it.

    Args:
        work: checkpoints with their runs, in the order in which they are begun.
        parallel: how many are under way at once.
        address: the Ray cluster that they share; what finds no free resources there waits.
        folder: where the logs go, one for each checkpoint.
        say: hears of beginnings.
        why_stop: says of a checkpoint under way why it is to be ended, else None; asked often.

    Close what is returned where it is left early: that ends the processes.
    """
    waiting, children = deque(work), list[_Child]()
    try:
        while waiting or children:
            while waiting and len(children) < parallel:
                checkpoint, config = waiting.popleft()
                say(f"{checkpoint.name}: begun")
                is_watched = why_stop is not None
                children.append(
                    _begin(checkpoint, config, address, folder, is_side_by_side=is_watched)
                )
                if waiting:
                    _fetch_meanwhile(waiting[0][1])
            for child in [each for each in children if each.process.poll() is not None]:
                children.remove(child)
                yield _outcome(child)
            if why_stop is not None:
                _stop_some(children, why_stop, say)
            time.sleep(_SECONDS_BETWEEN_LOOKS)
    finally:
        _end(children)


def _begin(
    checkpoint: Checkpoint, config: RunConfig, address: str, folder: Path, *, is_side_by_side: bool
) -> _Child:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{checkpoint.name}.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
    log = folder / f"{checkpoint.name}.log"
    with log.open("ab") as file:
        start = file.tell()
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "raveval.sweep.child", str(path)),
                *([SIDE_BY_SIDE] if is_side_by_side else []),
            ],
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
    if child.stop is not None:
        return Outcome(child.checkpoint, State.STOPPED, child.stop.why, seconds)
    message = f"{_why(code, _said(child))} (its log: {child.log})"
    return Outcome(child.checkpoint, State.FAILED, message, seconds)


def _stop_some(children: Iterable[_Child], why_stop: WhyStop, say: Say) -> None:
    """End the children that are not to go on, without waiting for them."""
    for child in children:
        why = None if child.stop is not None else why_stop(child.checkpoint)
        if why is not None:
            say(f"{child.checkpoint.name}: is being stopped: {why}")
            child.stop = _Stop(why, time.monotonic())
        if child.stop is not None:
            _press(child, child.stop)


def _press(child: _Child, stop: _Stop) -> None:
    """Send a child that is being ended the next signal, if it is time for it."""
    waited = time.monotonic() - stop.since
    numbers = (*_SECONDS_TO_END, signal.SIGKILL)
    due = list(itertools.accumulate(_SECONDS_TO_END.values(), initial=0.0))
    while stop.n_signals < len(numbers) and waited >= due[stop.n_signals]:
        _signal([child], numbers[stop.n_signals])
        stop.n_signals += 1


def _said(child: _Child) -> list[str]:
    with child.log.open("rb") as file:
        file.seek(child.log_start)
        return file.read().decode(errors="replace").strip().splitlines()


def _why(code: int, said: Sequence[str]) -> str:
    """Return why a child failed; what ended it counts before what it said."""
    if code < 0:
        is_known = -code in set(signal.Signals)
        name = signal.Signals(-code).name if is_known else str(-code)
        hint = ", as the system does where memory runs out" if -code == signal.SIGKILL else ""
        return f"its process was ended by signal {name}{hint}"
    errors = [index for index, line in enumerate(said) if line.startswith("error: ")]
    if errors:
        return "\n".join(said[errors[-1] :]).removeprefix("error: ")
    return said[-1] if said else f"its process ended with code {code}"


def _end(children: Sequence[_Child]) -> None:
    """Have the children stop as Ctrl-C would, and wait for them: what they committed is kept.

    Who is asked twice to end does not want to wait: then they are killed.
    """
    try:
        for number, patience in _SECONDS_TO_END.items():
            _signal(children, number)
            end = time.monotonic() + patience
            while any(child.process.poll() is None for child in children):
                if time.monotonic() > end:
                    break
                time.sleep(_SECONDS_BETWEEN_LOOKS)
    finally:
        _signal(children, signal.SIGKILL)
        for child in children:
            child.process.wait()


def _signal(children: Iterable[_Child], number: signal.Signals) -> None:
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            child.process.send_signal(number)  # of one that has ended, does nothing


def _fetch_meanwhile(config: RunConfig) -> None:
    """Bring the next checkpoint's weights nearer while the others run; it may fail unheard."""

    def fetch() -> None:
        with contextlib.suppress(Refused, OSError):
            prefetch(config.evaluate.model)

    threading.Thread(target=fetch, name="raveval-prefetch", daemon=True).start()
