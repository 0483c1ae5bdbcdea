"""Fixtures that several test folders share."""

import os
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from typing_extensions import override

from tests.object_stores import STORES, served

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadFileScheduling

# Elsewhere examples are drawn anew each time; a change must not fail on another one's luck.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("local", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "local")

# OpenMP's threads spin while they wait for each other, on CPUs that other processes want: texts of
# vLLM's own server then took seven times the CPU seconds. libgomp reads this when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# A shell without job control starts what runs in the background with Ctrl-C ignored, and that goes
# down to every process that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put models first where workers share the tests: what takes longest must not start last."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not _holds_models(item.path))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: "Producer") -> "LoadFileScheduling":
    """Give a worker whole modules, and all that load models to one: memory holds one at a time."""
    config.option.loadscopereorder = False  # the order of the collection, not of the most tests
    from xdist.scheduler import LoadFileScheduling

    class ByModule(LoadFileScheduling):  # type: ignore[misc]  # xdist is not typed
        @override
        def _split_scope(self, nodeid: str) -> str:
            module = super()._split_scope(nodeid)
            return "models" if _holds_models(config.rootpath / module) else module

    return ByModule(config, log)


@cache
def _holds_models(module: Path) -> bool:
    return "pytest.mark.model" in module.read_text(encoding="utf-8")


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


@pytest.fixture(params=STORES)
def bucket(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The URL of an empty place in a store: one of flat files, and S3 where moto is installed."""
    with served(request.param, tmp_path, monkeypatch) as url:
        yield url
