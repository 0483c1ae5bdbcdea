"""What a replica is given of a cluster; where shards run is tested with real Ray, end to end."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from raveval import pipeline
from raveval.engines import http, scripted, transformers, vllm
from raveval.errors import ResourceError
from raveval.pipeline import Placement, _devices, _resources, _room
from raveval.types import ModelRef
from raveval.worker import WorkerSpec
from raveval.worker.watch import Patience

CPUS_ALONE = ({"CPU": 8.0}, {"CPU": 4.0})
PATIENCE = Patience(1.0, 2.0)
WITH_GPUS = ({"CPU": 8.0, "GPU": 4.0}, {"CPU": 4.0})


def given(
    engine: str,
    options: Any,
    *,
    nodes: Sequence[dict[str, float]] = CPUS_ALONE,
    replicas: int = 1,
    cpus: float | None = None,
    gpus: float | None = None,
) -> tuple[float, float]:
    """Return the CPUs and GPUs of each replica."""
    placement = Placement(replicas, cpus, gpus, shard_size=8, examples_in_flight=8, address=None)
    spec = WorkerSpec((), engine, options, ModelRef(id="m"), patience=PATIENCE)
    found = _resources(placement, nodes, devices_per_replica=_devices(spec))
    return found["num_cpus"], found["num_gpus"]


@pytest.mark.parametrize(("replicas", "cpus"), [(1, 8), (2, 4), (3, 4), (4, 2), (6, 2), (12, 1)])
def test_cpus_are_shared_where_there_is_nothing_else(replicas: int, cpus: int) -> None:
    for engine, options in (("vllm", vllm.Options()), ("transformers", transformers.Options())):
        assert given(engine, options, replicas=replicas) == (cpus, 0)


@pytest.mark.parametrize(
    ("engine", "options", "on_cpu", "on_gpu"),
    [
        ("vllm", vllm.Options(), 384, 1536),
        ("vllm", vllm.Options(max_num_seqs=7), 11, 11),
        ("http", http.Options(base_url="http://localhost/v1", concurrency=20), 30, 30),
        ("transformers", transformers.Options(), 384, 384),
        ("scripted", scripted.Options(), 384, 384),
    ],
)
def test_half_as_many_examples_again_wait_as_are_answered(
    engine: str, options: Any, on_cpu: int, on_gpu: int
) -> None:
    spec = WorkerSpec((), engine, options, ModelRef(id="m"), patience=PATIENCE)
    assert pipeline.examples_in_flight(spec, on_gpu=False) == on_cpu
    assert pipeline.examples_in_flight(spec, on_gpu=True) == on_gpu


def test_a_model_gets_the_devices_it_is_split_over_and_one_cpu() -> None:
    assert given("vllm", vllm.Options(), nodes=WITH_GPUS, replicas=4) == (1, 1)
    split = vllm.Options(tensor_parallel_size=4)
    assert given("vllm", split, nodes=WITH_GPUS) == (1, 4)
    split = vllm.Options(tensor_parallel_size=2, pipeline_parallel_size=2)
    assert given("vllm", split, nodes=WITH_GPUS) == (1, 4)
    with pytest.raises(ResourceError, match="2 replicas of 1 CPUs and 4 GPUs do not fit"):
        given("vllm", split, nodes=WITH_GPUS, replicas=2)


@pytest.mark.parametrize("nodes", [CPUS_ALONE, WITH_GPUS], ids=["no-gpu", "gpus"])
def test_a_client_gets_one_cpu_and_no_gpu(nodes: Sequence[dict[str, float]]) -> None:
    options = http.Options("http://host/v1")
    assert given("http", options, nodes=nodes) == (1, 0)
    assert given("http", options, nodes=nodes, replicas=12) == (1, 0)
    with pytest.raises(ResourceError, match="13 replicas of 1 CPUs and 0 GPUs do not fit"):
        given("http", options, nodes=nodes, replicas=13)


def test_what_the_run_says_goes_first() -> None:
    options = http.Options("http://host/v1")
    assert given("http", options, nodes=WITH_GPUS, cpus=0.25, gpus=0.5) == (0.25, 0.5)
    assert given("vllm", vllm.Options(), nodes=WITH_GPUS, cpus=3.0, gpus=0.0) == (3, 0)
    assert given("scripted", scripted.Options(), nodes=WITH_GPUS, gpus=0.0) == (8, 0)


def test_nodes_that_will_come_are_waited_for() -> None:
    placement = Placement(3, None, 1.0, 8, 8, None, autoscaling=True)
    found = _resources(placement, CPUS_ALONE, devices_per_replica=1)
    assert found == {"num_cpus": 1, "num_gpus": 1}


def test_what_is_waited_for_is_told_by_what_the_cluster_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 4.0})
    monkeypatch.setattr("ray.available_resources", lambda: {"CPU": 3.0})
    words = pipeline._waiting_words({"num_cpus": 1.0, "num_gpus": 2.0}, 31.0)
    assert words == (
        "no replica is ready after 31 s: "
        "none has a place yet (1 CPUs and 2 GPUs each; of the cluster's 4 and 0, 3 and 0 are free)"
    )


@pytest.mark.parametrize(
    ("address", "said"),
    [(None, "Ray does not start here: "), ("auto", "run.address: no Ray cluster at auto: ")],
)
def test_a_ray_that_does_not_start_is_no_bug(
    address: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**_: object) -> None:
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr("ray.init", init)
    with pytest.raises(ResourceError, match=f"^{said}The current node timed out"):
        pipeline._connect(address)


def test_a_cluster_is_told_how_many_of_its_nodes_have_room() -> None:
    nodes: tuple[dict[str, float], ...] = ({}, {"CPU": 4.0, "GPU": 2.0}, {"CPU": 4.0, "GPU": 1.0})
    resources = {"num_cpus": 1.0, "num_gpus": 1.0}
    assert _room(nodes, resources) == "; 2 of 3 nodes have room, for 3"
    assert _room(nodes[1:2], resources) == ""


def test_a_ray_of_our_own_serves_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No dashboard, no cluster that happens to be there, and a token that others cannot read."""
    import ray

    monkeypatch.setenv("HOME", str(tmp_path))
    token = tmp_path / ".ray" / "auth_token"
    token.parent.mkdir()
    asked: dict[str, Any] = {}

    def begin(**settings: Any) -> None:
        asked.update(settings)
        token.write_text("secret")
        token.chmod(0o644)

    monkeypatch.setattr(ray, "init", begin)
    pipeline._connect(None)
    assert asked["address"] == "local"
    assert asked["include_dashboard"] is False
    assert token.stat().st_mode & 0o777 == 0o600
