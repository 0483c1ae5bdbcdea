"""A sweep that ends hopeless checkpoints: who is ended, what is said, and how it goes on.

It takes its time: five runs one after the other, most of them in a process of their own, since what
is tested is what becomes of a process that is ended and of a run that goes on.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import raveval
from raveval.cli import app
from raveval.sweep import load_sweep_results, sweep
from raveval.sweep.files import sweep_to_json
from tests.end_to_end.conftest import numbers, receipts

pytestmark = pytest.mark.ray

N_EXAMPLES = 160
SKILLS = {"step_1": "0.8 0", "step_2": "0.3 1", "step_3": "0.8 0"}
"""The share of answers that each knows, and how slow it is."""

Make = Callable[..., dict[str, Any]]


@pytest.fixture
def skilled(tmp_path: Path) -> Make:
    """Make a sweep over checkpoints that know so many of the answers to two tasks."""
    for name, skill in SKILLS.items():
        folder = tmp_path / "training" / name
        folder.mkdir(parents=True)
        (folder / "skill").write_text(skill)
        (folder / "config.json").write_text("{}")
        (folder / "model.bin").write_bytes(name.encode())
    tasks = []
    for task in ("t", "u"):
        rows = [{"q": f"{task} {i}", "o": ["right", "wrong"]} for i in range(N_EXAMPLES // 2)]
        (tmp_path / f"{task}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        content = {
            "protocol": "multiple_choice",
            "source": {"path": f"{task}.jsonl"},
            "prompt": "{{ q }}",
            "choices": "o",
            "gold": "0",
        }
        tasks.append(str(tmp_path / f"{task}.yaml"))
        Path(tasks[-1]).write_text(yaml.safe_dump(content))

    def make(latency: float = 0.0, output: str = "swept", **changes: Any) -> dict[str, Any]:
        engine = {"name": "tests.end_to_end.skilled", "latency_seconds": latency}
        run = {"cpus_per_replica": 1, "shard_size": 4, "examples_in_flight": 4}
        return {
            "base": {
                "evaluate": {"engine": engine, "tasks": tasks},
                "run": {"output": str(tmp_path / output), **run},
            },
            "checkpoints": {"pattern": str(tmp_path / "training" / "step_*")},
            "parallel": 1,  # so that the second has one to be compared with
            **changes,
        }

    return make


def test_a_hopeless_checkpoint_is_ended_and_can_be_finished(
    skilled: Make, tmp_path: Path, cluster: None
) -> None:
    swept = tmp_path / "swept"
    heard: list[str] = []
    stopping = skilled(1.0, stop_hopeless=True)
    found = sweep(stopping, say=heard.append)
    states = {each.name: each.state for each in found.checkpoints}
    assert states == {"step_1": "done", "step_2": "stopped", "step_3": "done"}
    (stopped,) = found.stopped
    assert stopped.message.startswith("worse than step_1 on t: ")
    assert "worse than step_1 on u: " in stopped.message
    n_done = sum(each.n_done for each in stopped.progress.values())
    assert 20 < n_done < N_EXAMPLES
    assert all(each.n_done > 0 for each in stopped.progress.values())
    assert stopped.results is None
    assert found.is_carried_out
    assert not found.is_complete
    assert all("step_2" not in names for names in found.best.values())
    assert {d.run for d in found.from_previous} == {"step_3"}
    assert any("at most 0.05" in remark for remark in found.remarks)
    reported = (swept / "report.md").read_text()
    n_of_t = stopped.progress["t"].n_done
    assert f"| step_2 (stopped early) | {n_of_t} of 80 done |" in reported
    assert f"step_2: t: {n_of_t} of 80 examples done, {80 - n_of_t} not asked" in reported
    assert (
        "2 of 3 checkpoints evaluated; stopped early: step_2" in (swept / "report.html").read_text()
    )

    before = receipts(swept / "step_2")
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(stopping))
    again = CliRunner().invoke(app, ["sweep", str(tmp_path / "sweep.yaml")])
    assert again.exit_code == 0
    said = again.stderr.splitlines()
    assert f"step_2: stopped: {stopped.message}" in said
    assert "step_2: without stop_hopeless, the sweep finishes it" in said
    n_left = N_EXAMPLES - n_done
    assert said[-1] == f"stopped early, {n_left} examples not asked: step_2: {stopped.message}"
    left = load_sweep_results(swept).stopped
    assert [(each.message, each.progress) for each in left] == [(stopped.message, stopped.progress)]
    assert receipts(swept / "step_2") == before

    weights = tmp_path / "training" / "step_2" / "model.bin"
    weights.write_bytes(b"trained once more")
    changed = sweep(stopping)
    assert [each.state for each in changed.checkpoints] == ["unchanged", "failed", "unchanged"]
    assert f"delete {swept / 'step_2'} and sweep again" in changed.failed[0].message
    weights.write_bytes(b"step_2")
    (swept / "sweep.json").write_text(sweep_to_json(found))

    finished = sweep(skilled())
    assert [each.state for each in finished.checkpoints] == ["unchanged", "done", "unchanged"]
    assert finished.is_complete
    kept = receipts(swept / "step_2")
    assert {name: kept[name] for name in before} == before
    config = skilled(output="alone")["base"]
    config["evaluate"]["model"] = {"path": str(tmp_path / "training" / "step_2")}
    raveval.run(config)
    assert numbers(swept / "step_2") == numbers(tmp_path / "alone")
