"""Sweeps over checkpoints: one process each, one cluster, one judge, and nothing done twice."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

import raveval
from raveval.errors import ConfigError, MismatchError
from raveval.sweep import State, sweep
from tests.end_to_end.conftest import receipts

pytestmark = pytest.mark.ray

Make = Callable[..., dict[str, Any]]
SCRIPTS = "tests.end_to_end.scripts"


@pytest.fixture
def checkpoints(tmp_path: Path) -> Make:
    """Make a sweep over checkpoints of these steps; "broken" is a directory without a model."""

    def make(
        *names: str, evaluate: dict[str, Any] | None = None, run: Any = None, **changes: Any
    ) -> dict[str, Any]:
        for name in names:
            folder = tmp_path / "training" / name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "model.bin").write_bytes(name.encode())
            if "broken" not in name:
                (folder / "config.json").write_text("{}")
        return {
            "base": {
                "evaluate": {
                    "engine": {"name": "scripted", "by_model": True},
                    "tasks": ["demo_choice"],
                    **(evaluate or {}),
                },
                "run": {"output": str(tmp_path / "swept"), "cpus_per_replica": 1, **(run or {})},
            },
            "checkpoints": {"pattern": str(tmp_path / "training" / "*")},
            **changes,
        }

    return make


def test_a_sweep_from_start_to_finish(checkpoints: Make, tmp_path: Path) -> None:
    config = checkpoints("step_5", "step_10", "step_20", "step_15-broken")
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(config))
    first = command(tmp_path, "sweep", "sweep.yaml")
    assert first.returncode == 3
    assert "failed: step_15-broken: " in first.stderr
    assert "no model here (no config.json)" in first.stderr
    found = json.loads((tmp_path / "swept" / "sweep.json").read_text())
    states = {each["name"]: each["state"] for each in found["checkpoints"]}
    assert list(states.items()) == [
        ("step_5", "done"),
        ("step_10", "done"),
        ("step_15-broken", "failed"),
        ("step_20", "done"),
    ]
    pairs = [each["run"] for each in found["from_previous"]]
    assert pairs == ["step_10", "step_20"]
    assert all(0 <= each["p_holm"] <= 1 for each in found["from_previous"])
    assert len(found["from_best"]) == 2
    page = (tmp_path / "swept" / "report.html").read_text()
    assert "3 of 4 checkpoints evaluated; failed: step_15-broken" in page
    assert "step_15-broken (failed)" in (tmp_path / "swept" / "report.md").read_text()

    before = receipts(tmp_path / "swept" / "step_10")
    again = command(tmp_path, "sweep", "sweep.yaml")
    assert again.returncode == 3
    assert [line for line in again.stderr.splitlines() if "unchanged" in line] == [
        "step_5: unchanged",
        "step_10: unchanged",
        "step_20: unchanged",
    ]
    assert "1 of 4 checkpoints to evaluate" in again.stderr
    assert receipts(tmp_path / "swept" / "step_10") == before
    once_more = json.loads((tmp_path / "swept" / "sweep.json").read_text())["checkpoints"]
    taken = {each["name"]: each["seconds"] for each in found["checkpoints"]}
    assert taken["step_10"] > 0
    assert all(
        each["seconds"] == taken[each["name"]] for each in once_more if each["state"] == "unchanged"
    ), "what it cost stays known"

    training = tmp_path / "training"
    (training / "step_15-broken" / "config.json").write_text("{}")
    (training / "step_5" / "model.bin").write_bytes(b"trained once more")
    shutil.rmtree(training / "step_10")
    other = command(tmp_path, "sweep", "sweep.yaml")
    assert other.returncode == 3
    assert raveval.load_results(tmp_path / "swept" / "step_15-broken").is_complete
    found = json.loads((tmp_path / "swept" / "sweep.json").read_text())
    states = {each["name"]: each["state"] for each in found["checkpoints"]}
    assert states == {
        "step_5": "failed",
        "step_10": "kept",
        "step_15-broken": "done",
        "step_20": "unchanged",
    }
    assert [each["run"] for each in found["from_previous"]] == ["step_15-broken", "step_20"]
    failure = next(line for line in other.stderr.splitlines() if "failed: step_5: " in line)
    assert f"delete {tmp_path / 'swept' / 'step_5'} and sweep again" in failure


def test_one_judge_grades_the_answers_of_all(
    checkpoints: Make, tmp_path: Path, cluster: None
) -> None:
    rows = "".join(json.dumps({"q": f"say it in a {kind} way"}) + "\n" for kind in ("poor", "fine"))
    (tmp_path / "rows.jsonl").write_text(rows)
    task = {
        "protocol": "open_generation",
        "source": {"path": "rows.jsonl"},
        "grading": {
            "instruction": "{{ q }}",
            "rubric": {
                "criteria": "Is it good?",
                **{f"score{n}_description": f"{n}." for n in range(1, 6)},
            },
        },
    }
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(task))
    config = checkpoints(
        "step_1",
        "step_2",
        evaluate={
            "engine": {"name": "scripted", "script": f"{SCRIPTS}:says_its_kind"},
            "judge": {
                "model": {"id": "judge"},
                "engine": {"name": "scripted", "script": "tests.judges:draws"},
            },
            "tasks": [str(tmp_path / "task.yaml")],
        },
        run={"judge": {"cpus_per_replica": 0.5}},
    )
    heard: list[str] = []

    def say(line: str) -> None:
        heard.append(line)
        if line.startswith("step_1: answered"):  # nobody needs its weights any more
            shutil.rmtree(tmp_path / "training" / "step_1")

    results = sweep(config, say=say)
    assert [each.state for each in results.checkpoints] == [State.DONE, State.DONE]
    assert sum("judge replica of judge" in line for line in heard) == 1
    assert "graded 4 examples" in "\n".join(heard)
    (difference,) = results.from_previous
    assert (difference.metric, difference.verdict) == ("mean_rating", "identical")
    reports = [
        json.loads(path.read_text())
        for name in ("step_1", "step_2")
        for path in (tmp_path / "swept" / name / "workers").glob("*.json")
    ]
    judges = {each["process"] for each in reports if each["stage"] == "grade"}
    assert len(judges) == 1


def test_a_sweep_that_watches_takes_what_appears(checkpoints: Make, tmp_path: Path) -> None:
    config = checkpoints("step_1", "_tmp_step_0", watch=True, poll_seconds=0.2)
    (tmp_path / "training" / "step_2").mkdir()
    (tmp_path / "training" / "step_2" / "config.json").write_text("{}")
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(config))
    with (tmp_path / "log").open("wb") as log:
        watching = subprocess.Popen(
            arguments("sweep", "sweep.yaml"), stdout=log, stderr=log, cwd=tmp_path, env=own_ray()
        )
    try:
        wait_for(lambda: "step_1: done" in (tmp_path / "log").read_text(), watching)
        assert "step_2" not in (tmp_path / "log").read_text()
        (tmp_path / "training" / "step_2" / "model.bin").write_bytes(b"late")
        written = tmp_path / "swept" / "sweep.json"
        wait_for(lambda: written.read_text().count('"done"') == 2, watching)
    finally:
        watching.send_signal(signal.SIGTERM)
        code = watching.wait(timeout=60)
    assert code == 130
    said = (tmp_path / "log").read_text()
    assert "'_tmp_step_0' cannot be the name of a run" in said
    assert said.splitlines()[-1].startswith("interrupted")
    assert "SIGTERM" not in said
    found = json.loads((tmp_path / "swept" / "sweep.json").read_text())
    assert [each["state"] for each in found["checkpoints"]] == ["done", "done"]


def test_ctrl_c_ends_the_checkpoints_at_work_too(
    checkpoints: Make, questions: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    hanging = {"name": "scripted", "script": f"{SCRIPTS}:hangs"}
    evaluate = {"engine": hanging, "tasks": [questions("hang")]}
    config = checkpoints("step_1", "step_2", evaluate=evaluate)
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(config))
    with (tmp_path / "log").open("wb") as log:
        sweeping = subprocess.Popen(
            arguments("sweep", "sweep.yaml"), stdout=log, stderr=log, cwd=tmp_path, env=own_ray()
        )
    at_work: list[psutil.Process] = []
    try:
        wait_for(lambda: any((tmp_path / "swept").glob("step_*/workers/*.json")), sweeping)
        below = psutil.Process(sweeping.pid).children()
        at_work = [each for each in below if "raveval.sweep.child" in each.cmdline()]
    finally:
        sweeping.send_signal(signal.SIGINT)
        code = sweeping.wait(timeout=90)
    assert code == 130
    assert len(at_work) == 2
    assert not any(each.is_running() for each in at_work)
    assert (tmp_path / "log").read_text().splitlines()[-1].startswith("interrupted")


class TestRefusals:
    def test_of_what_cannot_be_a_sweep(self, checkpoints: Make, tmp_path: Path) -> None:
        nothing = checkpoints()
        with pytest.raises(ConfigError, match="fits no directory"):
            sweep(nothing)
        assert not (tmp_path / "swept").exists()
        twice = {"list": [str(tmp_path / "a" / "step_1"), str(tmp_path / "b" / "step_1")]}
        with pytest.raises(ConfigError, match="are both called 'step_1'"):
            sweep(checkpoints(checkpoints=twice))
        with pytest.raises(ConfigError, match=r"revisions: are those of the base's model"):
            sweep(checkpoints(checkpoints={"revisions": ["step1000"]}))
        with pytest.raises(ConfigError, match="give one of pattern, list and revisions"):
            sweep(checkpoints(checkpoints={}))

    def test_of_a_run_as_a_sweep(self, checkpoints: Make, tmp_path: Path) -> None:
        config = checkpoints("step_1")
        (tmp_path / "swept").mkdir()
        (tmp_path / "swept" / "run.json").write_text("{}")
        with pytest.raises(MismatchError, match="is a run, not a sweep"):
            sweep(config)


def command(folder: Path, *given: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments(*given), capture_output=True, text=True, cwd=folder, env=own_ray(), check=False
    )


def arguments(*given: str) -> list[str]:
    return [sys.executable, "-m", "raveval", *given]


def own_ray() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    return {**kept, "PYTHONPATH": str(Path(__file__).parents[2])}


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 90
    while not condition():
        assert process.poll() is None, "it ended by itself"
        assert time.monotonic() < end, "waited 90 s"
        time.sleep(0.1)
