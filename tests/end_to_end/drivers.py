"""Runs in processes of their own, to be killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import yaml

from tests.end_to_end.conftest import Config, receipts


def start_driver(settings: Config, folder: Path) -> subprocess.Popen[bytes]:
    """Start `raveval run` in its own process, with a Ray of its own."""
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(json.loads(json.dumps(settings))))
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    log = (folder / "driver.log").open("wb")
    with log:
        return subprocess.Popen(
            [sys.executable, "-m", "raveval", "run", str(path)],
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )


def run_and_kill(settings: Config, folder: Path, *, after_shards: int) -> None:
    """Kill a driver once so many shards are done, and wait for its replicas to notice."""
    driver = start_driver(settings, folder)
    directory = Path(settings["run"]["output"])
    try:
        wait_for(lambda: len(receipts(directory)) >= after_shards, "some shards", driver)
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
    wait_for_quiet(directory)


def wait_for(
    condition: Callable[[], bool], what: str, driver: subprocess.Popen[bytes], seconds: float = 90
) -> None:
    """Wait while a driver lives.

    Raises:
        AssertionError: it ended, or it took too long.
    """
    end = time.monotonic() + seconds
    while not condition():
        assert driver.poll() is None, f"the driver ended before {what}"
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.02)


def wait_for_quiet(directory: Path) -> None:
    """Wait until orphaned replicas are gone: nothing is committed for three seconds."""
    last, since = receipts(directory), time.monotonic()
    while time.monotonic() - since < 3.0:
        time.sleep(0.2)
        now = receipts(directory)
        if now != last:
            last, since = now, time.monotonic()
