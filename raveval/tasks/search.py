"""Searches the catalogue by what its cards say."""

from __future__ import annotations

from difflib import get_close_matches

from raveval import tasks
from raveval.errors import ConfigError, nearest
from raveval.tasks import Task


def search(words: str = "", *, protocol: str | None = None) -> list[Task]:
    """Return the catalogue's tasks in whose name, protocol or card each of the words stands.

    Case does not matter, and a part of a word is enough. Those whose name holds all of the words
    come first.

    Raises:
        ConfigError: no task of the catalogue has this protocol, or these words.
    """
    found = [tasks.load_task(name) for name in tasks.names()]
    if protocol is not None:
        known = {task.protocol for task in found}
        if protocol not in known:
            raise ConfigError(f"--protocol {protocol}: no task has it; {nearest(protocol, known)}")
        found = [task for task in found if task.protocol == protocol]
    wanted = words.casefold().split()
    matching = [task for task in found if _holds(_text(task), wanted)]
    if not matching:
        among = "" if protocol is None else f" of protocol {protocol}"
        raise ConfigError(f"no task{among} matches {words!r}; {_near(words, found)}")
    return sorted(matching, key=lambda task: not _holds(task.name, wanted))


def _near(words: str, found: list[Task]) -> str:
    """Return what a person may have meant: a task, or a part of a task's name."""
    names = [task.name for task in found]
    parts = {part for name in names for part in (name, *name.split("_"))}
    return nearest(words, parts if get_close_matches(words, parts) else names)


def _holds(text: str, wanted: list[str]) -> bool:
    folded = text.casefold()
    return all(word in folded for word in wanted)


def _text(task: Task) -> str:
    """Return all that is said of a task, in one text."""
    said = (value for value in task.card.model_dump().values() if isinstance(value, str))
    return " ".join((task.name, task.protocol, task.protocol.replace("_", " "), *said))
