"""Who may import what: the package's order, held by fresh interpreters."""

import pkgutil
import subprocess
import sys

import pytest

import raveval

HEAVY = (
    *("ray", "vllm", "torch", "transformers", "huggingface_hub"),
    *("pandas", "numba", "scipy.stats", "httpx", "matplotlib"),
)
MODULES = sorted(
    module.name for module in pkgutil.walk_packages(raveval.__path__, prefix="raveval.")
)


def _loads(module: str) -> set[str]:
    """Return which of the heavy packages an import of `module` alone brings in."""
    code = f"import sys, {module}; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_the_package_is_found() -> None:
    assert "raveval.pipeline" in MODULES
    assert "raveval.engines.vllm" in MODULES


def test_no_module_imports_a_backend_before_it_is_used() -> None:
    # One interpreter for all of them: if none is loaded at the end, no module loads one.
    names = [name for name in MODULES if name != "raveval.__main__" and not _is_worker_side(name)]
    imports = ", ".join(names)
    assert _loads(imports) == set()


def _is_worker_side(name: str) -> bool:
    """Modules that only run where the backend is loaded already."""
    return name.startswith("raveval.engines._")


def test_public_names_are_importable() -> None:
    assert sorted(raveval.__all__) == raveval.__all__
    for name in raveval.__all__:
        assert getattr(raveval, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        raveval.nonsense  # noqa: B018


def test_submodules_do_not_shadow_public_names() -> None:
    submodules = {module.name for module in pkgutil.iter_modules(raveval.__path__)}
    assert not submodules & set(raveval.__all__)
