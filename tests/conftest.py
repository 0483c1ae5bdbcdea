"""Fixtures that several test folders share."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Elsewhere examples are drawn anew each time; a change must not fail on another one's luck.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("local", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "local")

# OpenMP's threads spin while they wait for each other, on CPUs that other processes want: texts of
# vLLM's own server then took seven times the CPU seconds. libgomp reads this when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real benchmark files beside the checkout; skips where it is absent."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"the real benchmark files are not here ({SHARED_DATA} does not exist)")
    return SHARED_DATA


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The checkpoint of the demo model; a machine's first session fetches it."""
    from raveval import demo_model

    return demo_model.fetch()
