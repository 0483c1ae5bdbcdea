"""Fixtures that several test folders share."""

from pathlib import Path

import pytest

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
