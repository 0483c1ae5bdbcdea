"""What is mended around loading vLLM and all that it brings."""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from raveval.engines._vllm_backends import words
from raveval.errors import ModelError

_WITHOUT_KERNELS = frozenset(
    {
        "llvmlite",
        "numba",
        "numpy",
        "pandas",
        "ray",
        "scipy",
        "sklearn",
        "sympy",
        "torch",
        "transformers",
    }
)
"""Libraries below vLLM: none of its kernels is an attribute of their modules."""


def check_torchvision() -> None:
    """Refuse a torchvision that cannot be imported.

    vLLM for CPUs pulls in builds of it that do not match its torch; transformers imports it where
    it is there, and everything then fails with a message about an operator.

    Raises:
        ModelError: with what to do.
    """
    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except Exception as exc:
        raise ModelError(
            f"no model can be loaded: the installed torchvision does not fit the installed torch "
            f"({words(exc)}). It is not needed: pip uninstall torchvision torchaudio torchcodec"
        ) from exc


def narrow_kernel_search() -> None:
    """Let vLLM look for its kernels where they can be.

    On CPUs it looks among the attributes of all loaded modules, which takes a second, and which one
    of llvmlite's breaks, if numba is loaded: it answers any name with a function.
    """
    with contextlib.suppress(ImportError, AttributeError):
        dispatcher: Any = importlib.import_module("vllm.triton_utils.dispatcher")
        rebind = dispatcher._rebind_kernels
        if getattr(rebind, "is_narrow", False) or dispatcher.sys is not sys:
            return

        def rebind_where_they_can_be(overrides: Any) -> None:
            searched = {
                name: module
                for name, module in sys.modules.items()
                if name.partition(".")[0] not in _WITHOUT_KERNELS
            }
            dispatcher.sys = SimpleNamespace(modules=searched)
            try:
                rebind(overrides)
            finally:
                dispatcher.sys = sys

        rebind_where_they_can_be.is_narrow = True  # type: ignore[attr-defined]
        dispatcher._rebind_kernels = rebind_where_they_can_be


@contextlib.contextmanager
def few_collections() -> Iterator[None]:
    """Spare the collector what a start leaves behind for good: half a million objects of modules.

    Else it looks through them again and again while they are loaded, and vLLM has it look through
    all of them five times more: over three seconds in all.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
