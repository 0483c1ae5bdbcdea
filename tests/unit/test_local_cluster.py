"""The cluster on one machine, without Ray: which of its nodes have ended by themselves."""

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from cluster.local import Cluster, _dead, is_down

START = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:]); time.sleep(60)"
"""What `ray start --block` is here: it begins another program and does not look after it."""


@contextmanager
def node(*child: str) -> Iterator[psutil.Popen]:
    process = psutil.Popen([sys.executable, "-c", START, *child])
    started = [process]
    try:
        deadline = time.monotonic() + 30
        while not process.children():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        started += process.children()
        yield process
    finally:
        for each in started:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait()


def test_a_node_whose_raylet_has_ended_is_down(tmp_path: Path) -> None:
    raylet = str(shutil.copy(shutil.which("sleep") or "", tmp_path / "raylet"))
    with node(raylet, "60") as whole, node(raylet, "60") as broken, node("sleep", "0.01") as other:
        cluster = Cluster("", tmp_path, {}, 1.0, (1, 1, 1), [whole, broken, other])
        assert [is_down(cluster, n) for n in range(3)] == [False, False, False]
        assert _dead(cluster) is None
        (child,) = broken.children()
        child.kill()
        deadline = time.monotonic() + 30
        while not is_down(cluster, 1):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert [is_down(cluster, n) for n in range(3)] == [False, True, False], "not any child"
        assert _dead(cluster) == 1
        whole.kill()
        whole.wait()
        assert _dead(cluster) == 0
