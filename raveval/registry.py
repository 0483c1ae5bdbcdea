"""Finds a plugin by name: the file's name is its key; a dotted name reaches outside the package.

`load("metrics", "squad")` imports raveval/metrics/squad.py, `load("metrics", "mylab.rouge")`
imports that module: one that is installed, or `mylab/rouge.py` in the current directory. There is
no table to register in; nothing is imported before it is asked for.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from types import ModuleType
from typing import Literal

from raveval.errors import ConfigError, nearest, raised_at

Family = Literal["metrics", "protocols", "engines"]

_PARTS: dict[Family, tuple[str, ...]] = {
    "metrics": ("METRIC",),
    "protocols": (
        *("ANSWER_VERSION", "SCORE_VERSION", "PREFERS_CHAT", "NEEDS", "COLUMNS", "METRICS"),
        *("answer", "score", "derive", "tally"),
    ),
    "engines": ("Options", "OPERATIONAL", "encoder", "start"),
}
"""What a module of each family holds; the family's own docstring says what it means."""


def names(family: Family) -> tuple[str, ...]:
    """Return the names of a family's plugins, sorted; a leading underscore makes one private."""
    package = importlib.import_module(f"raveval.{family}")
    found = (module.name for module in pkgutil.iter_modules(package.__path__))
    return tuple(sorted(name for name in found if not name.startswith("_")))


def load(family: Family, name: str) -> ModuleType:
    """Import the plugin `name` of a family.

    Raises:
        ConfigError: no such plugin, with the nearest names; or a module of one's own that cannot be
            imported, or lacks what every plugin of the family has.
    """
    if name in names(family):
        return importlib.import_module(f"raveval.{family}.{name}")
    kind = family.removesuffix("s")
    if "." not in name:
        raise ConfigError(
            f"unknown {kind} {name!r}: {nearest(name, names(family))} (a module of your own "
            f"has a dotted name, such as mylab.{name})"
        )
    module = _imported(kind, name)
    lacking = [part for part in _PARTS[family] if not hasattr(module, part)]
    if lacking:
        raise ConfigError(
            f"{kind} {name!r}: {module.__file__} has no {lacking[0]}; a module of {family} holds "
            f"{', '.join(_PARTS[family])}"
        )
    return module


def _imported(kind: str, name: str) -> ModuleType:
    """Import a module of one's own; what is installed comes before the current directory."""
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
        importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except Exception as exc:
        if isinstance(exc, ModuleNotFoundError) and f"{name}.".startswith(f"{exc.name}."):
            raise ConfigError(
                f"unknown {kind} {name!r}: {exc}. A dotted name is a module that is installed, or "
                f"{name.replace('.', '/')}.py in the current directory ({here})"
            ) from exc
        raise ConfigError(f"{kind} {name!r} cannot be imported: {raised_at(exc)}") from exc
