"""One checkpoint in a process of its own: `python -m raveval.sweep.child CONFIG`.

Whatever a checkpoint does to its process, the sweep goes on. A judge comes later, once for all.
"""

from __future__ import annotations

import sys

from raveval.cli.app import EXIT_MISSING_EXAMPLES, failures_in_words, say

EXIT_WAITS_FOR_JUDGE = 4


def main() -> None:
    """Do all of a run that needs no judge; exit codes are those of `raveval run`, and one more."""
    with failures_in_words():
        from raveval import runner

        results = runner.answer(sys.argv[1], say=say)
        if results is None:
            sys.exit(EXIT_WAITS_FOR_JUDGE)
        if not results.is_complete:
            sys.exit(EXIT_MISSING_EXAMPLES)


if __name__ == "__main__":
    main()
