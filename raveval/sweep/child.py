"""One checkpoint in a process of its own: `python -m raveval.sweep.child CONFIG [--side-by-side]`.

Whatever a checkpoint does to its process, the sweep goes on. A judge comes later, once for all.
"""

from __future__ import annotations

import signal
import sys

from raveval.config import RunConfig, load_config
from raveval.errors import MismatchError
from raveval.speech import EXIT_MISSING_EXAMPLES, failures_in_words, say
from raveval.sweep.outcome import EXIT_WAITS_FOR_JUDGE, SIDE_BY_SIDE, anew
from raveval.types import Results


def main() -> None:
    """Do all of a run that needs no judge; exit codes are those of `raveval run`, and one more."""
    # A shell starts what is in its background with SIGINT ignored, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with failures_in_words():
        results = _answered(load_config(sys.argv[1]), SIDE_BY_SIDE in sys.argv[2:])
        if results is None:
            sys.exit(EXIT_WAITS_FOR_JUDGE)
        if not results.is_complete:
            sys.exit(EXIT_MISSING_EXAMPLES)


def _answered(config: RunConfig, is_side_by_side: bool) -> Results | None:
    from raveval import runner

    try:
        return runner.answer(config, say=say, side_by_side=is_side_by_side)
    except MismatchError as exc:
        raise MismatchError(anew(str(exc), config.run.output)) from exc


if __name__ == "__main__":
    main()
