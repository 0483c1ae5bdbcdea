"""Anything in place of what is expected: only errors of `raveval.errors` come out, or a result.

In the suite each test draws the same examples every time. To search further, by hand:

    RAVEVAL_FUZZ=50 pytest --timeout 0 tests/fuzz    # 50 times as many examples, others each time
"""

import os
from collections.abc import Callable

from hypothesis import HealthCheck, settings

from raveval.errors import RavevalError

_TIMES = int(os.environ.get("RAVEVAL_FUZZ", "0"))


def fuzzed(max_examples: int) -> settings:
    """Return how many examples a test draws; each writes its files into a folder of its own."""
    return settings(
        max_examples=max_examples * max(_TIMES, 1),
        derandomize=not _TIMES,
        deadline=None,
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
        ],
    )


def refused(call: Callable[[], object]) -> str | None:
    """Do something, and return how it was refused; None where it was not.

    Whatever else it raises comes through, and is the fault that is searched for.
    """
    try:
        call()
    except RavevalError as exc:
        return str(exc).strip()
    return None
