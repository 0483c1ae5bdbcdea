"""What a sweep takes up, in which order, what it makes of failures, and what it reports."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from raveval import report
from raveval.cli import app
from raveval.errors import ConfigError, MismatchError, RunError
from raveval.report.html.sweep_page import sweep_page
from raveval.report.sweeps import best_lines, missing_lines
from raveval.sweep import State, load_sweep, schedule, sweep
from raveval.sweep import results as swept_results
from raveval.sweep.checkpoints import Checkpoint, in_order, step_of
from raveval.sweep.files import earlier, sweep_to_json
from raveval.sweep.outcome import Outcome, Progress
from raveval.sweep.results import collect
from raveval.sweep.watching import Watch
from raveval.types import Coverage, Estimate, Results, TaskResults, Usage
from tests.checkpoints import write_weights


def checkpoint(name: str, place: Path | str = "somewhere") -> Checkpoint:
    return Checkpoint(name, step_of(name), {"path": str(place)})


def content(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "base": {
            "evaluate": {"engine": {"name": "scripted"}, "tasks": ["demo_choice"]},
            "run": {"output": str(folder / "swept")},
        },
        "checkpoints": {"pattern": str(folder / "training" / "*")},
        **changes,
    }


def results(value: float, n_scored: int = 100, n_attempted: int = 100) -> Results:
    estimate = Estimate(value, "fraction", n_scored, higher_is_better=True)
    coverage = Coverage({"ok": n_scored, "failed": n_attempted - n_scored})
    task = TaskResults({"accuracy": estimate}, coverage, Usage(), "multiple_choice", 0, 1)
    return Results("model", {"t": task}, {}, {})


@pytest.fixture
def done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Outcome]]:
    """Write runs that are done, by name; which of them are compared is said in the remarks."""

    def compare(directories: list[Path], **_: object) -> None:
        first, second = directories
        raise RunError(f"{first.name} to {second.name}")

    monkeypatch.setattr(swept_results, "compare", compare)

    def make(**found: Results) -> list[Outcome]:
        for name, each in found.items():
            (tmp_path / name).mkdir()
            (tmp_path / name / "results.json").write_text(report.to_json(each))
        return [Outcome(checkpoint(name), State.DONE) for name in found]

    return make


class TestOrder:
    @pytest.mark.parametrize(
        ("name", "step"),
        [
            ("llama-7b-1000steps-v2", 1000),
            ("1000steps", 1000),
            ("step_10k", 10_000),
            ("step-1M", 1_000_000),
            ("step_1.5M-ema", 1_500_000),
            ("run2_step200final", 200),
            ("iter_0000500", 500),
            ("epoch3", 3),
            ("model-13b", None),
            ("2000-v2", 2000),
        ],
    )
    def test_the_step_is_read_from_the_name(self, name: str, step: int | None) -> None:
        assert step_of(name) == step

    def test_is_by_step_and_then_by_name_in_the_report_too(self, tmp_path: Path) -> None:
        names = ["final", "b-step2", "step10", "a-step2", "best"]
        expected = ["a-step2", "b-step2", "step10", "best", "final"]
        ordered = in_order([checkpoint(name) for name in names], bisecting=False)
        assert [each.name for each in ordered] == expected
        found = collect(tmp_path, [Outcome(checkpoint(name), State.FAILED) for name in names])
        assert [each.name for each in found.checkpoints] == expected
        (remark,) = found.remarks
        assert remark.startswith("a-step2 and b-step2 are all at step 2")


class TestReport:
    def test_keeps_what_an_earlier_sweep_evaluated(
        self, tmp_path: Path, done: Callable[..., list[Outcome]]
    ) -> None:
        outcomes = [
            *done(step_1=results(0.5), step_2=results(0.6)),
            Outcome(checkpoint("step_3"), State.ANSWERED, seconds=7.5),
            Outcome(checkpoint("step_4"), State.FAILED, "broken"),
        ]
        outcomes[0] = replace(outcomes[0], seconds=60.0)
        (tmp_path / "sweep.json").write_text(sweep_to_json(collect(tmp_path, outcomes)))
        left = earlier(tmp_path)
        states = {name: outcome.state for name, outcome in left.items()}
        assert states == {"step_1": "kept", "step_2": "kept", "step_3": "answered"}
        seconds = {name: outcome.seconds for name, outcome in left.items()}
        assert seconds == {"step_1": 60.0, "step_2": 0.0, "step_3": 7.5}, "the cost stays known"
        assert "its weights are gone" in left["step_1"].message
        again = collect(tmp_path, list(left.values()))
        assert [each.results is not None for each in again.checkpoints] == [True, True, False]
        assert "step_1: kept: its weights are gone" in "\n".join(missing_lines(again))

    def test_keeps_a_listed_checkpoint_whose_weights_are_gone(self, tmp_path: Path) -> None:
        place, run = tmp_path / "training" / "step_1", tmp_path / "swept" / "step_1"
        run.mkdir(parents=True)
        (run / "results.json").write_text(report.to_json(results(0.5)))
        before = collect(run.parent, [Outcome(checkpoint("step_1", place), State.DONE)])
        (run.parent / "sweep.json").write_text(sweep_to_json(before))
        listed = content(tmp_path, checkpoints={"list": [{"path": str(place)}]})
        found = sweep(listed)
        (each,) = found.checkpoints
        assert (each.state, each.results) == (State.KEPT, results(0.5))
        assert found.is_complete
        assert "step_1: kept" in (run.parent / "report.md").read_text()

    def test_tells_who_waits_from_who_failed(self, tmp_path: Path) -> None:
        outcomes = [
            Outcome(checkpoint("step_1"), State.ANSWERED),
            Outcome(checkpoint("step_2"), State.FAILED, "broken"),
        ]
        found = collect(tmp_path, outcomes)
        assert missing_lines(found) == ["step_1: waits for the judge", "step_2: failed: broken"]
        text = report.sweep_to_markdown(found)
        assert "step_1 (waits for the judge)" in text
        assert "step_2 (failed)" in text
        assert sweep_page(found).verdict == (
            "0 of 2 checkpoints evaluated; failed: step_2; waiting for the judge: step_1"
        )

    def test_tells_who_was_stopped_from_who_failed(
        self, tmp_path: Path, done: Callable[..., list[Outcome]]
    ) -> None:
        progress = {"t": Progress(40, 100)}
        stopped = Outcome(checkpoint("step_2"), State.STOPPED, "worse", progress=progress)
        outcomes = [*done(step_1=results(0.5)), stopped]
        found = collect(tmp_path, outcomes)
        assert (found.is_complete, found.is_carried_out) == (False, True)
        assert missing_lines(found) == [
            "step_2: stopped early: worse",
            "step_2: t: 40 of 100 examples done, 60 not asked",
        ]
        assert "| step_2 (stopped early) | 40 of 100 done |" in report.sweep_to_markdown(found)
        page = sweep_page(found)
        assert page.verdict == "1 of 2 checkpoints evaluated; stopped early: step_2"
        assert page.is_good
        failed = collect(tmp_path, [*outcomes, Outcome(checkpoint("step_3"), State.FAILED)])
        assert not failed.is_carried_out
        (entry,) = [
            e for e in json.loads(sweep_to_json(found))["checkpoints"] if e["name"] == "step_2"
        ]
        assert entry["progress"] == {"t": {"n_done": 40, "n_examples": 100}}

    def test_the_best_is_one_of_the_complete(
        self, tmp_path: Path, done: Callable[..., list[Outcome]]
    ) -> None:
        outcomes = done(step_1=results(0.5), step_2=results(0.6), step_3=results(1.0, 1))
        remarks = collect(tmp_path, outcomes).remarks
        assert "step_2 to step_1" in remarks
        assert "step_3 to step_1" not in remarks
        assert any(remark.startswith("t: step_3 cannot be the best") for remark in remarks)

    def test_the_best_is_named_and_so_is_what_is_as_good(
        self, tmp_path: Path, done: Callable[..., list[Outcome]]
    ) -> None:
        found = collect(
            tmp_path, done(step_1=results(0.6), step_2=results(0.5), step_3=results(0.6))
        )
        assert dict(found.best) == {"t": ("step_1", "step_3")}
        assert best_lines(found) == ["t: the best checkpoint is step_1 (as good: step_3)"]
        assert json.loads(sweep_to_json(found))["best"] == {"t": ["step_1", "step_3"]}

    def test_the_best_is_the_most_complete_where_none_is(
        self, tmp_path: Path, done: Callable[..., list[Outcome]]
    ) -> None:
        outcomes = done(step_1=results(0.5, 99), step_2=results(0.9, 98), step_3=results(1.0, 1))
        remarks = collect(tmp_path, outcomes).remarks
        assert {"step_1 to step_2", "step_1 to step_3"} <= set(remarks)
        assert "t: step_2, step_3 cannot be the best" in "\n".join(remarks)


class TestConfig:
    def test_flags_are_checked_as_the_file_is(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="parallel"):
            load_sweep(content(tmp_path), parallel=0)
        listed = content(tmp_path, checkpoints={"list": ["./a"]})
        with pytest.raises(ConfigError, match=r"watch: needs checkpoints\.pattern"):
            load_sweep(listed, watch=True)
        assert load_sweep(content(tmp_path), parallel=None, watch=True).parallel == 2
        refused = CliRunner().invoke(app, ["sweep", "x.yaml", "--parallel", "0"])
        assert refused.exit_code == 2

    def test_answers_of_one_model_are_none_of_all(self, tmp_path: Path) -> None:
        asked = content(tmp_path)
        asked["base"]["run"]["answers_from"] = "runs/other"
        with pytest.raises(ConfigError, match="holds the answers of one model"):
            load_sweep(asked)

    def test_checkpoints_are_whole_models(self, tmp_path: Path) -> None:
        asked = content(tmp_path)
        asked["base"]["evaluate"]["model"] = {"id": "org/model", "adapter": "org/tuned"}
        with pytest.raises(ConfigError, match=r"evaluate\.model\.adapter: .*whole models"):
            load_sweep(asked)

    @pytest.mark.parametrize("name", ["step_1\n", "s" * 81, "..", "step 1"])
    def test_a_name_that_no_run_can_have_is_refused(self, tmp_path: Path, name: str) -> None:
        listed = content(tmp_path, checkpoints={"list": [{"id": "org/m", "revision": name}]})
        with pytest.raises(ConfigError, match="cannot be the name of a run"):
            load_sweep(listed).checkpoints()

    def test_a_number_of_thousands_of_digits_is_no_step(self) -> None:
        assert step_of(f"step_{'9' * 5000}") is None
        assert step_of(f"{'9' * 400}M") is None

    @pytest.mark.parametrize("model", [[1], 3, True])
    def test_a_model_of_the_base_that_is_none_is_refused(self, tmp_path: Path, model: Any) -> None:
        asked = content(tmp_path)
        asked["base"]["evaluate"]["model"] = model
        with pytest.raises(ConfigError, match=r"base: evaluate\.model: expected"):
            load_sweep(asked)
        asked["base"]["evaluate"]["model"] = None
        assert load_sweep(asked).model == {}

    def test_an_object_store_holds_no_sweep(self, tmp_path: Path) -> None:
        asked = content(tmp_path)
        asked["base"]["run"]["output"] = "s3://bucket/sweep"
        with pytest.raises(ConfigError, match=r"run\.output: s3://bucket/sweep: .*to a folder"):
            load_sweep(asked)

    @pytest.mark.parametrize("name", ["report.md", "notes.txt", "step_1/model.bin"])
    def test_a_directory_of_somebody_else_is_left_alone(self, tmp_path: Path, name: str) -> None:
        write_weights(tmp_path / "training" / "step_1")
        foreign = tmp_path / "swept" / name
        foreign.parent.mkdir(parents=True)
        foreign.write_text("mine")
        with pytest.raises(MismatchError, match="holds files but no sweep of raveval"):
            sweep(content(tmp_path))
        assert foreign.read_text() == "mine"
        assert not (tmp_path / "swept" / ".lock").exists()


class TestWatch:
    def test_takes_what_is_whole_and_stays_as_it_is(self, tmp_path: Path) -> None:
        watch, place = Watch(), tmp_path / "step_1"
        each = checkpoint("step_1", place)
        write_weights(place, cut=3)
        assert not watch.due([each], {})
        assert not watch.due([each], {})
        assert watch.unsettled == ["step_1"]
        write_weights(place)
        assert not watch.due([each], {})
        assert watch.due([each], {}) == [each]
        assert not watch.unsettled

    def test_tries_again_when_what_failed_has_changed(self, tmp_path: Path) -> None:
        watch, place = Watch(), tmp_path / "step_1"
        each = checkpoint("step_1", place)
        write_weights(place)
        watch.due([each], {})
        assert watch.due([each], {}) == [each]
        failed = {"step_1": Outcome(each, State.FAILED)}
        assert not watch.due([each], failed)
        write_weights(place, 100)
        assert not watch.due([each], failed)
        assert watch.due([each], failed) == [each]
        assert not watch.due([each], {"step_1": Outcome(each, State.DONE)})

    def test_is_not_idle_while_one_is_being_written(self, tmp_path: Path) -> None:
        watch, place = Watch(), tmp_path / "step_1"
        each = checkpoint("step_1", place)
        write_weights(place, cut=1)
        watch._last_news -= 1000
        assert watch.idle_seconds > 999
        watch.due([each], {})
        assert watch.idle_seconds < 100
        watch._last_news -= 1000
        watch.due([each], {})
        assert watch.idle_seconds > 999  # nobody writes to it any more
        write_weights(place)
        watch.due([each], {})
        assert watch.idle_seconds < 100

    def test_does_not_end_over_odd_names(self, tmp_path: Path) -> None:
        for name in ("_tmp_step_1", "a/step_1", "b/step_1"):
            (tmp_path / "training" / name).mkdir(parents=True)
        pattern = {"pattern": str(tmp_path / "training" / "**" / "*step_1")}
        asked = content(tmp_path, checkpoints=pattern)
        heard: list[str] = []
        watched = {**asked, "watch": True, "poll_seconds": 0.01, "idle_minutes": 0.002}
        found = sweep(watched, say=heard.append)
        assert not found.checkpoints
        assert sum("'_tmp_step_1' cannot be the name of a run" in line for line in heard) == 1
        assert sum("are both called 'step_1'" in line for line in heard) == 1
        assert len(found.remarks) == 2
        assert heard[-1] == "not whole until now: step_1"
        with pytest.raises(ConfigError, match="cannot be the name of a run"):
            sweep(asked)


class TestProcesses:
    @pytest.fixture
    def outcomes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
        """Carry out sweeps whose checkpoints' processes run this code instead."""

        def make(code: str, n: int = 1, **given: Any) -> Any:
            script = tmp_path / "python"
            script.write_text(f"#!{python}\nimport os, signal, sys, time\n{code}\n")
            script.chmod(0o755)
            monkeypatch.setattr(sys, "executable", str(script))
            config = load_sweep(content(tmp_path))
            some = [checkpoint(f"step_{step}") for step in range(n)]
            work = [(each, config.run_of(each)) for each in some]
            folder = tmp_path / "logs"
            return schedule.carry_out(
                work, parallel=2, address="", folder=folder, say=lambda _: None, **given
            )

        python = sys.executable
        return make

    @pytest.mark.parametrize(
        ("code", "message"),
        [
            ("sys.exit('error: no model here')", "no model here"),
            ("print('error: first'); os.kill(os.getpid(), signal.SIGKILL)", "by signal SIGKILL"),
            ("os.kill(os.getpid(), signal.SIGRTMIN + 3)", "by signal"),
            ("1/0", "ZeroDivisionError: division by zero"),
            ("sys.exit(7)", "its process ended with code 7"),
        ],
    )
    def test_that_fail_say_why_and_where_more_stands(
        self, outcomes: Callable[..., Any], tmp_path: Path, code: str, message: str
    ) -> None:
        (outcome,) = outcomes(code)
        assert outcome.state is State.FAILED
        assert message in outcome.message
        assert outcome.message.endswith(f"(its log: {tmp_path / 'logs' / 'step_0.log'})")

    def test_end_with_the_sweep_whatever_they_ignore(
        self, outcomes: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(schedule, "_SECONDS_TO_END", {signal.SIGINT: 0.2, signal.SIGTERM: 0.2})
        deaf = (
            "is_first = sys.argv[-1].endswith('step_0.yaml')\n"
            "if is_first: print('done', flush=True); time.sleep(1); sys.exit(0)\n"
            "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
            "signal.signal(signal.SIGTERM, lambda *_: print('TERM', flush=True))\n"
            "print(os.getpid(), flush=True)\n"
            "while True: time.sleep(60)"
        )
        with closing(outcomes(deaf, n=2)) as under_way:
            assert next(under_way).state is State.DONE
            said = tmp_path / "logs" / "step_1.log"
            while not said.read_text():
                time.sleep(0.05)
        number, heard = said.read_text().split()
        assert heard == "TERM"
        assert not Path(f"/proc/{number}").exists()

    @pytest.mark.parametrize(
        ("heard", "state"),
        [
            ("sys.exit(130)", State.STOPPED),
            ("sys.exit(1)", State.STOPPED),
            ("sys.exit(0)", State.DONE),  # it was about to end by itself
            ("print('deaf', flush=True)", State.STOPPED),
        ],
    )
    def test_are_stopped_without_the_others(
        self,
        outcomes: Callable[..., Any],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        heard: str,
        state: State,
    ) -> None:
        monkeypatch.setattr(schedule, "_SECONDS_TO_END", {signal.SIGINT: 0.3, signal.SIGTERM: 0.1})
        code = (
            "if sys.argv[-2].endswith('step_1.yaml'): time.sleep(0.5); sys.exit(0)\n"
            f"signal.signal(signal.SIGINT, lambda *_: {heard})\n"
            "signal.signal(signal.SIGTERM, lambda *_: print('TERM', flush=True))\n"
            "print('at work', flush=True)\n"
            "while True: time.sleep(60)"
        )

        def why(each: Checkpoint) -> str | None:
            log = tmp_path / "logs" / f"{each.name}.log"
            return "hopeless" if each.name == "step_0" and log.read_text() else None

        found = {each.checkpoint.name: each for each in outcomes(code, 2, why_stop=why)}
        assert found["step_1"].state is State.DONE
        assert found["step_0"].state is state
        assert found["step_0"].message == ("hopeless" if state is State.STOPPED else "")
        said = (tmp_path / "logs" / "step_0.log").read_text()
        assert ("deaf\nTERM" in said) == ("deaf" in heard)

    def test_hear_ctrl_c_though_a_shell_had_it_ignored(self) -> None:
        code = (
            "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
            "import raveval.sweep.child as child\n"
            "child.load_config = lambda _: (print('at work', flush=True), time.sleep(60))\n"
            "child.main()"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code, "x"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=30)
        assert process.returncode == 130
        assert error.startswith(b"interrupted")

    def test_load_no_commands_and_warn_of_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "x.yaml").write_text("{}")
        child = [sys.executable, "-X", "importtime", "-m", "raveval.sweep.child", "x.yaml"]
        ended = subprocess.run(child, capture_output=True, text=True, cwd=tmp_path, check=False)
        said = [line for line in ended.stderr.splitlines() if "import time:" not in line]
        assert ended.returncode == 2
        assert said[0].startswith("error: ")
        assert "raveval.cli" not in ended.stderr
