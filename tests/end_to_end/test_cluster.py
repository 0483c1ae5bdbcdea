"""A run as a job of a cluster of three nodes: where it runs, what it returns, what survives."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster import local
from tests.end_to_end.conftest import receipts

pytestmark = pytest.mark.ray

Submit = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module")
def nodes() -> Iterator[local.Cluster]:
    """A head without CPUs for replicas, a node with one CPU and a node with two."""
    with local.running(cpus=(1, 2)) as running:
        yield running


@pytest.fixture
def submit(nodes: local.Cluster, tmp_path: Path) -> Submit:
    """Start `raveval submit`, with the environment of another machine's user."""

    def start(content: dict[str, Any], *flags: str) -> subprocess.Popen[str]:
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(content))
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "raveval", "submit", "run.yaml"),
                *("--address", nodes.address, *flags),
            ],
            cwd=tmp_path,
            env={**os.environ, **nodes.variables, "RAY_ADDRESS": "another:6379"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def ended(client: subprocess.Popen[str], *, code: int) -> tuple[str, str]:
    """Return what a client wrote, stdout and stderr, once it has ended as expected."""
    out, err = client.communicate(timeout=120)
    assert client.returncode == code, out + err
    return out, err


def known_to(nodes: local.Cluster, kind: str) -> list[dict[str, Any]]:
    """Return the nodes or actors that a cluster knows."""
    token = Path(nodes.variables["RAY_AUTH_TOKEN_PATH"]).read_text()
    url = f"{nodes.address}/api/v0/{kind}?detail=1&limit=1000"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=30) as reply:
        found: list[dict[str, Any]] = json.load(reply)["data"]["result"]["result"]
    return found


def wait_for(output: Path, *, n_receipts: int, n_replicas: int) -> None:
    deadline = time.monotonic() + 120
    while (
        len(receipts(output)) < n_receipts or len(list(output.glob("workers/*.json"))) < n_replicas
    ):
        assert time.monotonic() < deadline, "the run does not get so far"
        time.sleep(0.1)


def test_a_submitted_run_survives_its_client_and_goes_on(
    nodes: local.Cluster,
    submit: Submit,
    config: Callable[..., dict[str, Any]],
    questions: Callable[..., dict[str, str]],
    tmp_path: Path,
) -> None:
    gate, output = tmp_path / "gate", tmp_path / "run"
    questions(
        *(f"Number {n}?" for n in range(4)),
        *(f"What, once {gate} exists, is {n}?" for n in range(4)),
    )
    content = config(
        engine={"script": "tests.end_to_end.scripts:waits_until"},
        tasks=[{"task": "questions.yaml"}],
        replicas=2,
        cpus_per_replica=1,
        shard_size=1,
        address="ignored:1",
    )

    # The client dies; the job does not notice. A replica that is ready first may have all that
    # waits for the gate, and two of the other shards behind that.
    client = submit(content)
    wait_for(output, n_receipts=2, n_replicas=2)
    client.kill()
    out, err = client.communicate()
    assert "run.address ignored:1 is left out" in err
    assert "2 of 3 nodes have room, for 3" in out
    (job_id,) = (line.split()[1] for line in err.splitlines() if line.startswith("submitted"))
    assert job_id.startswith("raveval-run-")

    # The same run is followed, not started twice; another one in its place is refused.
    client = submit(content)
    assert client.stdout is not None
    assert job_id in client.stdout.readline() + client.stdout.readline()
    client.send_signal(signal.SIGINT)
    _, err = ended(client, code=130)
    assert f"{job_id} goes on without this client" in err
    _, err = ended(submit({**content, "run": {**content["run"], "shard_size": 2}}), code=2)
    assert f"{job_id} is running in {output}, with another config" in err

    # Stopped, it keeps what it has; submitted again, it goes on, under an id of its own.
    _, err = ended(submit(content, "--stop"), code=0)
    assert f"{job_id} is stopped" in err
    gate.touch()
    kept = receipts(output)
    assert 2 <= len(kept) <= 4
    out, err = ended(submit(content), code=0)
    assert f"submitted {job_id}-2" in err
    assert f"{len(kept)} of 8 shards are done already" in out
    after = receipts(output)
    assert len(after) == 8
    assert {shard: after[shard] for shard in kept} == kept

    # Its replicas were on the worker nodes, and on both of them.
    workers = {node["node_id"] for node in known_to(nodes, "nodes") if not node["is_head_node"]}
    actors = [actor for actor in known_to(nodes, "actors") if "MapWorker" in actor["class_name"]]
    # One that was never placed, because the run was over before, has no node.
    assert {actor["node_id"] for actor in actors} - {None} == workers


def test_a_job_returns_the_exit_code_of_its_run(
    submit: Submit,
    config: Callable[..., dict[str, Any]],
    questions: Callable[..., dict[str, str]],
    tmp_path: Path,
) -> None:
    questions("What is six times nine?", "What is six times seven? " * 30)
    small: dict[str, Any] = {"model": {"id": "scripted", "max_model_len": 128}}
    content = config(tasks=[{"task": "questions.yaml"}], evaluate=small, cpus_per_replica=1)

    out, _ = ended(submit(content), code=2)
    assert "error: " in out
    assert not (tmp_path / "run").exists()

    small["on_overlong"] = "count"
    content = config(tasks=[{"task": "questions.yaml"}], evaluate=small, cpus_per_replica=1)
    job_id, err = ended(submit(content, "--no-wait"), code=0)
    assert f"submitted {job_id.strip()} " in err
    out, err = ended(submit(content), code=3)
    assert f"{job_id.strip()} " in err
    assert f"job {job_id.strip()}:" in out
    assert "questions: 1 of 2" in out
    assert "overlong" in out
