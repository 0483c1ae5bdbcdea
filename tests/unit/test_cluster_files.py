"""The files under cluster/ and jobs/, as far as they can be checked without a cluster."""

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import raveval
from raveval.config import load_config

ROOT = Path(raveval.__file__).parents[1]
CLUSTER = ROOT / "cluster"
RAY = importlib.metadata.version("ray")

# The keys of KubeRay's types (ray-operator/apis/ray/v1, release 1.6) and of Kubernetes' own that
# such a file may have; a misspelled one would be pruned by the API server without a word.
RAY_JOB = {
    *("activeDeadlineSeconds", "backoffLimit", "rayClusterSpec", "submitterPodTemplate"),
    *("metadata", "clusterSelector", "submitterConfig", "managedBy", "deletionStrategy"),
    *("entrypoint", "runtimeEnvYAML", "jobId", "submissionMode", "entrypointResources"),
    *("entrypointNumCpus", "entrypointNumGpus", "ttlSecondsAfterFinished"),
    *("shutdownAfterJobFinishes", "suspend"),
}
RAY_CLUSTER = {
    *("upgradeStrategy", "authOptions", "suspend", "managedBy", "autoscalerOptions"),
    *("headServiceAnnotations", "enableInTreeAutoscaling", "gcsFaultToleranceOptions"),
    *("headGroupSpec", "rayVersion", "workerGroupSpecs"),
}
HEAD_GROUP = {
    *("serviceType", "headService", "enableIngress", "rayStartParams", "template", "resources"),
}
WORKER_GROUP = {
    *("groupName", "replicas", "minReplicas", "maxReplicas", "numOfHosts", "rayStartParams"),
    *("template", "scaleStrategy", "suspend", "idleTimeoutSeconds", "resources"),
}
AUTOSCALER = {
    *("resources", "image", "imagePullPolicy", "env", "envFrom", "volumeMounts"),
    *("securityContext", "idleTimeoutSeconds", "upscalingMode", "version"),
}
POD = {
    *("containers", "volumes", "restartPolicy", "nodeSelector", "tolerations", "affinity"),
    *("serviceAccountName", "imagePullSecrets", "securityContext", "priorityClassName"),
}
CONTAINER = {
    *("name", "image", "ports", "env", "envFrom", "resources", "volumeMounts", "command", "args"),
    *("imagePullPolicy", "securityContext", "lifecycle", "readinessProbe", "livenessProbe"),
}


def documents(name: str) -> dict[str, dict[str, Any]]:
    """Return the documents of a Kubernetes file by their kind."""
    found = yaml.safe_load_all((CLUSTER / "kuberay" / name).read_text())
    return {document["kind"]: document for document in found}


def ray_cluster(name: str) -> dict[str, Any]:
    """Return the spec of the Ray cluster in a file."""
    kinds = documents(name)
    spec: dict[str, Any] = (
        kinds["RayJob"]["spec"]["rayClusterSpec"]
        if "RayJob" in kinds
        else kinds["RayCluster"]["spec"]
    )
    return spec


def pods(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the pods of a Ray cluster, the head's first."""
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        yield group["template"]["spec"]


@pytest.mark.parametrize("name", ["raycluster.yaml", "rayjob.yaml"])
def test_a_kuberay_file_has_no_key_that_would_be_pruned(name: str) -> None:
    for document in documents(name).values():
        api = "v1" if document["kind"] == "ConfigMap" else "ray.io/v1"
        assert document["apiVersion"] == api
        assert re.fullmatch(r"[a-z][a-z0-9-]*", document["metadata"]["name"])
    spec = ray_cluster(name)
    assert not spec.keys() - RAY_CLUSTER
    assert not spec["headGroupSpec"].keys() - HEAD_GROUP
    assert not spec.get("autoscalerOptions", {}).keys() - AUTOSCALER
    for group in spec["workerGroupSpecs"]:
        assert not group.keys() - WORKER_GROUP
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    for pod in pods(spec):
        assert not pod.keys() - POD
        for container in pod["containers"]:
            assert not container.keys() - CONTAINER


@pytest.mark.parametrize("name", ["raycluster.yaml", "rayjob.yaml"])
def test_a_kuberay_cluster_is_whole_and_closed(name: str) -> None:
    spec = ray_cluster(name)
    assert spec["rayVersion"] == RAY
    assert spec["authOptions"] == {"mode": "token"}
    assert spec["headGroupSpec"]["serviceType"] == "ClusterIP"
    assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    for pod in pods(spec):
        volumes = {volume["name"] for volume in pod["volumes"]}
        (container,) = pod["containers"]
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounts.keys() == volumes
        assert mounts["storage"] == "/mnt/raveval"
        assert container["resources"]["requests"] == container["resources"]["limits"]
        environment = {entry["name"]: entry["value"] for entry in container["env"]}
        assert environment["HF_HOME"].startswith(mounts["storage"])
        assert environment["RAVEVAL_CACHE"].startswith(mounts["storage"])


def test_the_run_of_the_rayjob_fits_the_cluster_that_is_made_for_it() -> None:
    kinds = documents("rayjob.yaml")
    job = kinds["RayJob"]["spec"]
    assert not job.keys() - RAY_JOB
    head, worker = pods(job["rayClusterSpec"])
    (volume,) = (entry for entry in head["volumes"] if "configMap" in entry)
    assert volume["configMap"]["name"] == kinds["ConfigMap"]["metadata"]["name"]
    mounts = head["containers"][0]["volumeMounts"]
    (folder,) = (mount["mountPath"] for mount in mounts if mount["name"] == volume["name"])
    (name,) = kinds["ConfigMap"]["data"]
    assert job["entrypoint"] == f"python -m raveval run {folder}/{name}"

    config = load_config(yaml.safe_load(kinds["ConfigMap"]["data"][name]))
    assert config.run.output.startswith("/mnt/raveval/")
    assert str(config.evaluate.model.path).startswith("/mnt/raveval/")
    (group,) = job["rayClusterSpec"]["workerGroupSpecs"]
    n_gpus = group["replicas"] * int(
        worker["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
    )
    assert config.run.replicas * (config.run.gpus_per_replica or 0) == n_gpus


def test_all_files_name_one_image_and_the_versions_that_are_tested() -> None:
    texts = {
        path: path.read_text()
        for path in (CLUSTER / "Dockerfile", *CLUSTER.glob("*.yaml"), *CLUSTER.glob("*/*.yaml"))
    }
    images = {
        (path.name, image)
        for path, text in texts.items()
        for image in re.findall(r"registry\.example\.com/\S+", text)
    }
    assert {image for _, image in images} == {f"registry.example.com/raveval:{raveval.__version__}"}
    assert {name for name, _ in images} == {path.name for path in texts}
    assert f"FROM rayproject/ray:{RAY}-py311" in texts[CLUSTER / "Dockerfile"]
    assert f"ray=={RAY}\n" in (CLUSTER / "requirements-cpu.txt").read_text()


def test_the_autoscaler_file_is_one_of_rays() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = yaml.safe_load((CLUSTER / "autoscaler.yaml").read_text())
    place = importlib.metadata.distribution("ray").locate_file("ray/autoscaler/ray-schema.json")
    schema = json.loads(Path(str(place)).read_text())
    jsonschema.validate(config, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**config, "max_worker": 1}, schema)
    prepared = prepare_config(config)
    validate_config(prepared)
    assert prepared["available_node_types"][config["head_node_type"]]["resources"] == {"CPU": 0}
    start = " ".join(config["head_start_ray_commands"])
    assert "--dashboard-host=127.0.0.1" in start
    assert "--env=RAY_AUTH_MODE=token" in config["docker"]["run_options"]


def test_the_slurm_file_passes_shellcheck() -> None:
    beside_python = Path(sys.executable).with_name("shellcheck")
    shellcheck = shutil.which(beside_python) or shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed")
    subprocess.run([shellcheck, CLUSTER / "slurm.sbatch"], check=True)


def test_the_slurm_file_gives_ray_only_options_that_it_has() -> None:
    from ray.scripts.scripts import start
    from ray.scripts.symmetric_run import symmetric_run

    text = (CLUSTER / "slurm.sbatch").read_text()
    (given,) = re.findall(r"ray symmetric-run (.*?) -- ", text.replace("\\\n", " "))
    known = {name for command in (symmetric_run, start) for p in command.params for name in p.opts}
    asked = set(re.findall(r"--[a-z-]+", given))
    assert {"--address", "--min-nodes", "--num-gpus"} <= asked <= known


STAND_INS = {
    "scontrol": 'printf "node-a\\nnode-b\\n"',
    "srun": 'while [[ $1 == --* ]]; do shift; done; "$@"',
    "hostname": 'echo "10.0.0.7 fe80::7 "',
    # As the real one: its own options, what it runs on the head, and 0 where it could not start.
    "ray": 'echo "$@" >"$ASKED"; [[ ${BROKEN:-} ]] && exit 0; '
    'while [[ $1 != -- ]]; do shift; done; shift; "$@"',
    "raveval": 'echo "raveval $*"; exit "$CODE"',
}


@pytest.mark.parametrize(("code", "broken"), [(0, ""), (3, ""), (1, "yes")])
def test_the_slurm_job_ends_as_the_run_does(tmp_path: Path, code: int, broken: str) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, body in STAND_INS.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    environment = {
        "PATH": f"{folder}:/usr/bin:/bin",
        "CODE": str(code),
        "BROKEN": broken,
        "ASKED": str(tmp_path / "asked"),
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "node-[a-b]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_CPUS_ON_NODE": "16",
        "SLURM_GPUS_ON_NODE": "8",
    }
    done = subprocess.run(
        ["bash", CLUSTER / "slurm.sbatch", "my run.yaml", "--replicas", "16"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr
    asked = (tmp_path / "asked").read_text()
    assert asked.startswith(
        "symmetric-run --address 10.0.0.7:6379 --min-nodes 2 --num-cpus 16 --num-gpus 8 -- "
    )
    if broken:
        assert "the run was not started" in done.stderr
    else:
        assert done.stdout == "raveval run my run.yaml --replicas 16 --address auto\n"
    assert not list(tmp_path.glob(".raveval-*"))


def test_the_entry_point_of_a_job_is_a_run_and_nothing_else(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "jobs" / "evaluate.py", "missing.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "missing.yaml: no such file" in done.stderr


def test_the_readme_names_only_files_that_are_there() -> None:
    named = re.findall(r"\b(?:cluster|jobs)/[\w./-]+\w", (ROOT / "README.md").read_text())
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []
