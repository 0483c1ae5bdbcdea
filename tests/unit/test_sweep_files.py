"""What a sweep's directory says again: how far it is, and its numbers, from files alone."""

import json
import os
import shutil
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import raveval
from raveval.cli import app
from raveval.errors import DataError
from raveval.store import RunDirectory
from raveval.sweep import State, SweepResults
from raveval.sweep.checkpoints import Checkpoint, step_of
from raveval.sweep.files import is_sweep, write_sweep
from raveval.sweep.outcome import Outcome, Progress
from raveval.sweep.results import collect
from tests.finished_runs import finish


def checkpoint(name: str) -> Checkpoint:
    return Checkpoint(name, step_of(name), {"path": "somewhere"})


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep under way: two checkpoints done, one each failed, stopped, at work, and planned."""
    output = tmp_path_factory.mktemp("swept")
    (output / "logs").mkdir()
    for step in range(1, 7):
        (output / "logs" / f"step_{step}.yaml").touch()
    for step in (1, 2):
        finish(output / f"step_{step}", ["demo_choice"], seed=step)
    for step in (4, 5):
        shutil.copytree(output / "step_1", output / f"step_{step}")
        (output / f"step_{step}" / "results.json").unlink()
        (output / f"step_{step}" / "states" / "demo_choice" / "00002.json").unlink()
    progress = {"demo_choice": Progress(21, 28)}
    outcomes = [
        Outcome(checkpoint("step_1"), State.DONE, seconds=3.5),
        Outcome(checkpoint("step_2"), State.UNCHANGED),
        Outcome(checkpoint("step_3"), State.FAILED, "no model here"),
        Outcome(checkpoint("step_4"), State.STOPPED, "worse than step_1", progress=progress),
    ]
    write_sweep(written(output, outcomes), lambda name, text: (output / name).write_text(text))
    return output


def written(output: Path, outcomes: list[Outcome]) -> SweepResults:
    return collect(output, outcomes, remarks=["mind the gap"])


def command(*given: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in given])


class TestStatus:
    def test_lists_checkpoints_while_the_sweep_is_under_way(self, swept: Path) -> None:
        shown = command("status", swept)
        assert shown.exit_code == 0
        assert shown.stdout.splitlines() == [
            f"{swept}: a sweep; 2 of 6 begun are done",
            "  step_1: done, 28 of 28 examples",
            "  step_2: unchanged, 28 of 28 examples",
            "  step_3: failed; no model here",
            "  step_4: stopped early, 21 of 28 examples; worse than step_1",
            "  step_5: not finished, 21 of 28 examples",
            "  step_6: not finished",
            "`raveval report` shows its numbers",
            "nothing is at work; the same `raveval sweep` goes on where it stopped",
        ]

    def test_says_whether_a_driver_is_at_work(self, swept: Path) -> None:
        assert not raveval.sweep_status(swept).is_running
        with RunDirectory(swept).held():
            assert command("status", swept).stdout.endswith(
                f"\nat work: process {os.getpid()} on {socket.gethostname()}\n"
            )

    def test_knows_a_sweep_of_which_nothing_has_ended(self, tmp_path: Path) -> None:
        (tmp_path / "logs").mkdir()
        (tmp_path / "logs" / "step_10.yaml").touch()
        assert "  step_10: not finished\n" in command("status", tmp_path).stdout
        refused = command("report", tmp_path)
        assert refused.exit_code == 2
        assert "no checkpoint of this sweep has ended yet; `raveval status" in refused.stderr

    def test_is_there_from_python(self, swept: Path) -> None:
        found = raveval.sweep_status(swept)
        assert [each.step for each in found.checkpoints] == [1, 2, 3, 4, 5, 6]
        assert found.checkpoints[4].state is None
        with pytest.raises(DataError, match="no sweep of raveval here"):
            raveval.sweep_status(swept / "step_1")

    def test_of_what_is_neither_a_run_nor_a_sweep(self, tmp_path: Path) -> None:
        (tmp_path / "logs").mkdir()
        assert not is_sweep(tmp_path)
        for name in ("status", "report"):
            refused = command(name, tmp_path)
            assert refused.exit_code == 2
            assert refused.stderr == f"error: {tmp_path}: no run of raveval here (no run.json)\n"


class TestReport:
    def test_is_what_the_sweep_wrote(self, swept: Path) -> None:
        for form, name in (("markdown", "report.md"), ("json", "sweep.json")):
            shown = command("report", swept, "--format", form)
            assert shown.stdout == (swept / name).read_text()
        page = command("report", swept, "--format", "html").stdout
        assert "2 of 4 checkpoints evaluated; failed: step_3; stopped early: step_4" in page
        table = command("report", swept).stdout
        assert "step_4 (stopped early)" in table
        assert "mind the gap" in table

    def test_has_no_format_of_a_run_alone(self, swept: Path) -> None:
        refused = command("report", swept, "--format", "csv")
        assert refused.exit_code == 2
        assert "is a sweep, which is shown as table, markdown, html, json" in refused.stderr
        assert "demo_choice," in command("report", swept / "step_1", "--format", "csv").stdout

    def test_is_there_from_python(self, swept: Path) -> None:
        found = raveval.load_sweep_results(swept)
        (difference,) = found.from_previous
        assert (difference.run, difference.metric) == ("step_2", "accuracy")
        assert found.checkpoints[0].seconds == 3.5
        assert found.checkpoints[0].results == raveval.load_results(swept / "step_1")
        assert found.stopped[0].progress == {"demo_choice": Progress(21, 28)}

    def test_says_what_is_no_sweep(self, swept: Path, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="no sweep of raveval here"):
            raveval.load_sweep_results(tmp_path)
        content = json.loads((swept / "sweep.json").read_text())
        content["checkpoints"][0]["state"] = "asleep"
        (tmp_path / "sweep.json").write_text(json.dumps(content))
        with pytest.raises(DataError, match=r"checkpoints\.0\.state: Input should be 'done'"):
            raveval.load_sweep_results(tmp_path)
