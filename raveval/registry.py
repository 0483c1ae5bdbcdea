"""Finds a plugin by name: the file's name is its key; a dotted name reaches outside the package.

`load("metrics", "squad")` imports raveval/metrics/squad.py, `load("metrics", "mylab.rouge")`
imports that module. There is no table to register in; nothing is imported before it is asked for.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType
from typing import Literal

from raveval.errors import ConfigError, nearest

Family = Literal["metrics", "protocols", "engines"]


def names(family: Family) -> tuple[str, ...]:
    """Return the names of a family's plugins, sorted; a leading underscore makes one private."""
    package = importlib.import_module(f"raveval.{family}")
    found = (module.name for module in pkgutil.iter_modules(package.__path__))
    return tuple(sorted(name for name in found if not name.startswith("_")))


def load(family: Family, name: str) -> ModuleType:
    """Import the plugin `name` of a family.

    Raises:
        ConfigError: no such plugin; the message gives the nearest names.
    """
    if name in names(family):
        return importlib.import_module(f"raveval.{family}.{name}")
    kind = family.removesuffix("s")
    if "." in name:
        try:
            return importlib.import_module(name)
        except ImportError as exc:
            raise ConfigError(
                f"unknown {kind} {name!r}: {exc}. A dotted name must be an importable module"
            ) from exc
    raise ConfigError(f"unknown {kind} {name!r}: {nearest(name, names(family))}")
