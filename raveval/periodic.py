"""Calls a function again and again while something else is under way."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def periodically(function: Callable[[], object], *, seconds: float) -> Iterator[None]:
    """Call a function so many seconds after the block began, and again, in a thread of its own.

    No call outlives the block. A function that raises is not called again.
    """
    is_over = threading.Event()

    def call() -> None:
        while not is_over.wait(seconds):
            function()

    thread = threading.Thread(target=call, name="raveval-periodic", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
