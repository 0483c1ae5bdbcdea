"""A Ray cluster of several nodes on this one machine: to try `raveval submit`, and for tests.

    python cluster/local.py --nodes 3 --cpus 1

Node 1 is the head, with the job server and no CPUs for replicas; each further one is a raylet with
its own CPUs and its own temporary directory. The job server listens on the loopback alone, and all
doors of the cluster want a token that only this user can read. Only Linux; accelerators are not
shared out. What was started is ended by process id, together with what it started.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

try:
    import psutil
except ImportError:
    sys.exit(
        f"{sys.executable} has no psutil: use the Python that raveval is installed for "
        "(source .venv/bin/activate), or pip install 'raveval[cluster]'"
    )

START_SECONDS = 300.0
"""A busy machine is slow."""
STOP_SECONDS = 5.0
OBJECT_STORE_BYTES = 128 * 1024**2
DOOR = "n0/ray_current_cluster"
"""Where the head writes by which address other nodes join, once it is up."""
_LOOPBACK = "127.0.0.1"


class NotStarted(RuntimeError):
    """A node that did not come up."""


@dataclass(slots=True)
class Cluster:
    """A running cluster.

    Attributes:
        address: URL of the job server.
        directory: all that the cluster writes; gone when it is stopped.
        variables: what a client's environment needs to be let in.
        start_seconds: how long a node may take to come up.
        cpus: of each node, the head's first.
        nodes: the processes of `ray start`, the head's first.
    """

    address: str
    directory: Path
    variables: Mapping[str, str]
    start_seconds: float
    cpus: Sequence[int]
    nodes: list[psutil.Popen] = field(default_factory=list)


@contextlib.contextmanager
def running(
    *,
    cpus: Sequence[int] = (1, 1),
    head_cpus: int = 0,
    start_seconds: float = START_SECONDS,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[Cluster]:
    """Start a cluster with one worker node for each entry of `cpus`, and stop it afterwards.

    Node k (the head is 0) also has one of the resource "node_k", so that work can be sent to it.
    Each step may take `start_seconds`; `say` hears of it.

    Raises:
        NotStarted: a node did not come up; the message holds the end of its log.
    """
    # Sockets need a short path; Ray opens its own folder to everybody, so it lies in a closed one.
    directory = Path(tempfile.mkdtemp(prefix="rv-", dir="/tmp"))
    cluster: Cluster | None = None
    try:
        say(f"starting the head, node 1 of {1 + len(cpus)}")
        cluster = _with_head(directory, (head_cpus, *cpus), start_seconds)
        for number, n_cpus in enumerate(cpus, start=1):
            say(f"starting node {1 + number} of {1 + len(cpus)}, with {n_cpus} CPUs")
            cluster.nodes.append(_start_node(cluster, number, *_joining(cluster, number)))
        _wait_for_nodes(cluster, 1 + len(cpus))
        yield cluster
    finally:
        if cluster is not None:
            _stop(cluster.nodes)
        shutil.rmtree(directory, ignore_errors=True)


def _with_head(directory: Path, cpus: Sequence[int], start_seconds: float) -> Cluster:
    token = directory / "token"
    token.touch(mode=0o600)
    token.write_text(os.urandom(32).hex())
    dashboard_port, client_port = _free_ports(2)
    cluster = Cluster(
        address=f"http://{_LOOPBACK}:{dashboard_port}",
        directory=directory,
        variables={"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)},
        start_seconds=start_seconds,
        cpus=cpus,
    )
    try:
        head = _start_node(
            cluster,
            0,
            *("--head", "--port=0", f"--num-cpus={cpus[0]}"),
            *(f"--dashboard-host={_LOOPBACK}", f"--dashboard-port={dashboard_port}"),
            f"--ray-client-server-port={client_port}",
        )
        cluster.nodes.append(head)
        _wait_for_nodes(cluster, 1)
    except BaseException:
        _stop(cluster.nodes)
        raise
    return cluster


def kill_node(cluster: Cluster, number: int) -> None:
    """Kill a node with all that runs on it, as a power cut would; 0 is the head."""
    _kill(_with_descendants(cluster.nodes[number : number + 1]))


def replace_node(cluster: Cluster, number: int) -> None:
    """Kill a node that is not the head, and start another in its place.

    Returns at once: the new node joins when it is up, and the head notices the old one's death.
    """
    kill_node(cluster, number)
    shutil.rmtree(cluster.directory / f"n{number}", ignore_errors=True)
    cluster.nodes[number] = _start_node(cluster, number, *_joining(cluster, number))


def is_down(cluster: Cluster, number: int) -> bool:
    """Whether a node has ended by itself: Ray's gives up where its agents start too slowly."""
    node = cluster.nodes[number]
    try:
        children = node.children()
        return node.poll() is not None or any(
            child.name() == "raylet" and child.status() == psutil.STATUS_ZOMBIE
            for child in children
        )
    except psutil.NoSuchProcess:
        return node.poll() is not None


def _joining(cluster: Cluster, number: int) -> tuple[str, str]:
    door = (cluster.directory / DOOR).read_text().strip()
    return f"--address={door}", f"--num-cpus={cluster.cpus[number]}"


def _start_node(cluster: Cluster, number: int, *arguments: str) -> psutil.Popen:
    """Start one node; each gets whatever ports are free, and a directory of its own."""
    log = cluster.directory / f"node-{number}.log"
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-gpus=0"),
        *(f"--temp-dir={cluster.directory}/n{number}", "--disable-usage-stats"),
        f"--resources={json.dumps({f'node_{number}': 1})}",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        *("--min-worker-port=0", "--max-worker-port=0", "--metrics-export-port=0"),
        *("--dashboard-agent-listen-port=0", "--dashboard-agent-grpc-port=0"),
        *("--runtime-env-agent-port=0", *arguments),
    ]
    with log.open("wb") as file:
        return psutil.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=_environment(cluster),
            start_new_session=True,
        )


def _environment(cluster: Cluster) -> dict[str, str]:
    """Return this process's environment without another cluster's settings.

    Jobs are started as `python` by the head: that has to be this interpreter.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    path = os.pathsep.join((str(Path(sys.executable).parent), kept.get("PATH", "")))
    return {
        **kept,
        **cluster.variables,
        "PATH": path,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_raylet_start_wait_time_s": f"{cluster.start_seconds:g}",
        "RAY_memory_monitor_refresh_ms": "0",  # each node would take the others' memory for its own
    }


def _free_ports(n: int) -> list[int]:
    sockets = [socket.create_server((_LOOPBACK, 0)) for _ in range(n)]
    ports = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


def _wait_for_nodes(cluster: Cluster, n_nodes: int) -> None:
    deadline = time.monotonic() + cluster.start_seconds
    while (n_alive := _n_alive(cluster)) < n_nodes or not (cluster.directory / DOOR).exists():
        for number, node in enumerate(cluster.nodes):
            if node.poll() is not None:
                raise NotStarted(f"node {1 + number} did not start: {_last_words(cluster, number)}")
        if time.monotonic() > deadline:
            raise NotStarted(
                f"{n_alive} of {n_nodes} nodes came up within {cluster.start_seconds:g} s; on a "
                "busy machine give them longer (--timeout)"
            )
        time.sleep(0.2)


def _last_words(cluster: Cluster, number: int) -> str:
    """Return the end of a node's log, without the colours of a terminal."""
    log = (cluster.directory / f"node-{number}.log").read_text(errors="replace")
    return "\n".join(re.sub(r"\x1b\[[0-9;]*m", "", log).strip().splitlines()[-12:])


def _n_alive(cluster: Cluster) -> int:
    """Return how many nodes the job server's neighbour, the state server, knows to be alive."""
    token = Path(cluster.variables["RAY_AUTH_TOKEN_PATH"]).read_text()
    request = urllib.request.Request(
        f"{cluster.address}/api/v0/nodes", headers={"Authorization": f"Bearer {token}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            content = json.load(reply)
    except (OSError, ValueError):
        return 0  # not up yet
    found = ((content.get("data") or {}).get("result") or {}).get("result") or []
    return sum(node["state"] == "ALIVE" for node in found)


def _stop(nodes: Sequence[psutil.Popen]) -> None:
    """End nodes and whatever descends from them; the head last, so that the others can leave."""
    started = _with_descendants(nodes)
    for node in reversed(nodes):
        with contextlib.suppress(psutil.NoSuchProcess):
            node.terminate()
    _, remaining = psutil.wait_procs(started, timeout=STOP_SECONDS)
    _kill(remaining)


def _with_descendants(nodes: Sequence[psutil.Popen]) -> list[psutil.Process]:
    found = list[psutil.Process](nodes)
    for node in nodes:
        with contextlib.suppress(psutil.NoSuchProcess):
            found += node.children(recursive=True)
    return found


def _kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=STOP_SECONDS)


def main() -> None:
    """Run a cluster until this program is told to end."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=3, help="with the head (default 3)")
    parser.add_argument(
        "--cpus", default="1", help="of each worker node: one number, or one a node, as 1,2"
    )
    parser.add_argument("--head-cpus", type=int, default=0, help="for replicas on the head")
    parser.add_argument(
        "--timeout",
        type=float,
        default=START_SECONDS,
        help=f"seconds that a node may take to come up (default {START_SECONDS:g})",
    )
    asked = parser.parse_args()
    cpus = [int(part) for part in asked.cpus.split(",")]
    n_workers = asked.nodes - 1
    if n_workers < 0 or len(cpus) not in (1, n_workers):
        parser.error(f"--cpus {asked.cpus}: one number, or {max(n_workers, 0)} of them")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    cluster = running(
        cpus=cpus * n_workers if len(cpus) == 1 else cpus,
        head_cpus=asked.head_cpus,
        start_seconds=asked.timeout,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )
    try:
        with cluster as it:
            for name, value in it.variables.items():
                print(f"export {name}={value}")
            print(f"raveval submit CONFIG --address {it.address} --shared /")
            print("ctrl-c ends the cluster", flush=True)
            while (dead := _dead(it)) is None:
                time.sleep(1)
            sys.exit(f"node {1 + dead} has died: {_last_words(it, dead)}")
    except KeyboardInterrupt:
        print("the cluster has ended", file=sys.stderr)
    except NotStarted as exc:
        sys.exit(str(exc))


def _dead(cluster: Cluster) -> int | None:
    return next((n for n in range(len(cluster.nodes)) if is_down(cluster, n)), None)


if __name__ == "__main__":
    main()
