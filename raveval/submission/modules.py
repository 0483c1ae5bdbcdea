"""A person's own metrics, engines and protocols: modules that a config names by dotted names.

Those in the current directory are uploaded with the folder that they lie in, as it is their
package; those that are installed here are left to the nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from raveval import tasks
from raveval.config import RunConfig


def own_packages(config: RunConfig) -> tuple[dict[str, Path], tuple[str, ...]]:
    """Return the files of the packages in this directory by their place, and modules elsewhere."""
    files: dict[str, Path] = {}
    elsewhere = []
    for name in sorted(set(_dotted_names(config))):
        package = name.partition(".")[0]
        found = {str(place): Path.cwd() / place for place in _files(Path(package))}
        files |= found
        if not found:
            elsewhere.append(name)
    return files, tuple(elsewhere)


def _dotted_names(config: RunConfig) -> Iterator[str]:
    evaluate = config.evaluate
    named = [evaluate.engine.name]
    if evaluate.judge is not None:
        named.append(evaluate.judge.engine.name)
    for entry in evaluate.tasks:
        task = tasks.load_task(entry.task)
        named += [task.protocol, *(entry.metrics or task.metrics or ())]
    yield from (name for name in named if "." in name)


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, but for caches and what is hidden."""
    for path in sorted(folder.rglob("*")):
        is_left_out = any(part.startswith(".") or part == "__pycache__" for part in path.parts)
        if path.is_file() and not is_left_out:
            yield path
