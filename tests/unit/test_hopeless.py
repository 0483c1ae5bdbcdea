"""Which checkpoints are stopped early, and how often wrongly: never more often than promised."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raveval.errors import ConfigError
from raveval.sequential import log_e_values
from raveval.sweep import load_sweep
from raveval.sweep.config import StopSection
from raveval.sweep.hopeless import Stopping, level
from tests.run_directories import choice, document, write_run

ALPHA = 0.05


def is_stopped(best, run, bar):
    """Whether each checkpoint of many sweeps is ever worse than its best; looked at each example.

    `best` and `run` say of each sweep and example who is right, shape (n_sweeps, n_examples).
    """
    b = (best & ~run).cumsum(axis=1, dtype=np.float64)
    c = (run & ~best).cumsum(axis=1, dtype=np.float64)
    evidence = log_e_values(b, c)
    crossed = evidence >= -math.log(bar)
    first = crossed.argmax(axis=1)
    rows = np.arange(len(b))
    return crossed[rows, first] & (b > c)[rows, first]


def share_of_sweeps_with_a_stop(skills, *, alpha, seed, n_sweeps=1500, n_examples=250):
    """How often a sweep over checkpoints of these skills stops one that is as good as any.

    One after the other, against the best so far on the same examples, with as many checkpoints
    known as have begun: as a sweep does that watches. Skills are chances to be right by task, shape
    (n_tasks, n_checkpoints); alpha is that of each pair, of so many checkpoints known.
    """
    rng = np.random.default_rng(seed)
    n_tasks, n_checkpoints = skills.shape
    top = skills.max(axis=1)
    wrong = np.zeros(n_sweeps, bool)
    shape = (n_sweeps, n_examples)
    finished: list[list[Any]] = []
    for k in range(n_checkpoints):
        answers = [rng.random(shape) < skills[task, k] for task in range(n_tasks)]
        if finished:
            all_worse = np.ones(n_sweeps, bool)
            for task in range(n_tasks):
                earlier = np.stack([each[task] for each in finished])
                best = earlier[earlier.sum(axis=2).argmax(axis=0), np.arange(n_sweeps)]
                all_worse &= is_stopped(best, answers[task], alpha(k + 1))
            if (skills[:, k] == top).any():
                wrong |= all_worse
        finished.append(answers)
    return wrong.mean()


class TestErrorRate:
    def test_is_kept_where_all_checkpoints_are_equal(self):
        equal = np.full((1, 8), 0.6)
        found = share_of_sweeps_with_a_stop(equal, alpha=lambda n: level(0.5, n), seed=1)
        assert found <= 0.5
        assert share_of_sweeps_with_a_stop(equal, alpha=lambda n: level(ALPHA, n), seed=1) <= ALPHA

    def test_would_not_be_without_sharing_alpha(self):
        # Each test by itself keeps 5 %; against a best that was lucky on the same examples, and
        # eight times over, the sweep does not. What is tested above can fail.
        equal = np.full((1, 8), 0.6)
        assert share_of_sweeps_with_a_stop(equal, alpha=lambda _: ALPHA, seed=1) > 0.10

    def test_is_kept_where_one_task_is_equal_and_another_worse(self):
        # The best of task 0 are equal in it; all but the first are hopeless in task 1.
        skills = np.array([[0.6] * 6, [0.9] + [0.3] * 5])
        found = share_of_sweeps_with_a_stop(skills, alpha=lambda n: level(ALPHA, n), seed=2)
        assert found <= ALPHA
        alone = share_of_sweeps_with_a_stop(skills[:1], alpha=lambda _: ALPHA, seed=2)
        assert alone > ALPHA

    def test_what_is_truly_worse_is_stopped_early(self):
        rng = np.random.default_rng(3)
        best, run = (rng.random((500, 400)) < skill for skill in (0.8, 0.4))
        assert is_stopped(best[:, :150], run[:, :150], level(ALPHA, 10)).mean() > 0.9
        assert is_stopped(best, run, level(ALPHA, 100)).mean() > 0.99

    def test_shares_of_all_pairs_add_up_to_alpha(self):
        total = sum((n - 1) * level(ALPHA, n) for n in range(2, 5000))
        assert ALPHA * 0.999 < total <= ALPHA


def rows(n: int, skill: float, seed: int, **columns: Any) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [choice(f"q{i}", bool(rng.random() < skill), **columns) for i in range(n)]


class TestStopping:
    @pytest.fixture
    def stopping(self, tmp_path: Path) -> Stopping:
        return Stopping(tmp_path, StopSection())

    def test_takes_all_tasks_that_can_be_tested(self, tmp_path: Path, stopping: Stopping) -> None:
        write_run(tmp_path / "good", {"t": rows(90, 0.9, 1), "u": rows(90, 0.9, 2)})
        write_run(tmp_path / "bad", {"t": rows(90, 0.2, 3), "u": rows(90, 0.2, 4)}, unfinished={9})
        write_run(tmp_path / "half", {"t": rows(90, 0.2, 5), "u": rows(90, 0.9, 6)})
        found = stopping.why("bad", ["good"], 3)
        assert found is not None
        first, second = found.split("; ")
        assert first.startswith("worse than good on t: ")
        assert second.startswith("worse than good on u: ")
        assert first.endswith("after 63 of 90 examples")
        assert stopping.why("half", ["good"], 3) is None
        assert stopping.why("bad", ["good"], 10**9) is None  # so many pairs share alpha
        assert stopping.why("bad", [], 3) is None
        assert stopping.why("planned", ["good"], 3) is None
        assert len(stopping.remarks) == 1

    def test_compares_with_the_best_of_each_task(self, tmp_path: Path, stopping: Stopping) -> None:
        write_run(tmp_path / "a", {"t": rows(90, 0.9, 1), "u": rows(90, 0.3, 2)})
        write_run(tmp_path / "b", {"t": rows(90, 0.3, 3), "u": rows(90, 0.9, 4)})
        write_run(tmp_path / "bad", {"t": rows(90, 0.2, 5), "u": rows(90, 0.2, 6)})
        found = stopping.why("bad", ["a", "b"], 3)
        assert found is not None
        assert "worse than a on t" in found
        assert "worse than b on u" in found

    def test_leaves_out_what_cannot_be_tested(self, tmp_path: Path, stopping: Stopping) -> None:
        write_run(tmp_path / "good", {"t": rows(60, 0.9, 1), "u": rows(60, 0.9, 2, cluster="c")})
        write_run(tmp_path / "bad", {"t": rows(60, 0.2, 3), "u": rows(60, 0.2, 4, cluster="c")})
        found = stopping.why("bad", ["good"], 2)
        assert found is not None
        assert "on u" not in found
        expected = "u cannot be tested, and has no say: its examples come in clusters"
        assert stopping.remarks[1:] == [f"stop_hopeless: {expected}"]
        named = Stopping(tmp_path, StopSection(tasks=["t", "u"]))
        assert named.why("bad", ["good"], 2) is None
        assert "u cannot be tested, so none is ended" in named.remarks[1]
        alone = Stopping(tmp_path, StopSection(tasks=["t"]))
        assert alone.why("bad", ["good"], 2) == found
        assert len(alone.remarks) == 1

    def test_stops_none_where_nothing_can_be_tested(
        self, tmp_path: Path, stopping: Stopping
    ) -> None:
        texts = {"t": [document("d1", -30.0, 10), document("d2", -20.0, 10)]}
        for name in ("good", "bad"):
            path = tmp_path / name
            write_run(path, texts, protocol="language_modelling", metrics=["perplexity"])
        assert stopping.why("bad", ["good"], 2) is None
        assert "word_perplexity: not right or wrong on each example" in stopping.remarks[1]

    def test_leaves_graded_tasks_to_the_judge(self, tmp_path: Path, stopping: Stopping) -> None:
        for name, skill in (("good", 0.9), ("bad", 0.2)):
            write_run(tmp_path / name, {"t": rows(60, skill, 1), "u": rows(60, skill, 2)})
            path = tmp_path / name / "run.json"
            manifest = json.loads(path.read_text())
            manifest["tasks"]["u"]["verdict_fingerprint"] = "v"
            path.write_text(json.dumps(manifest))
        found = stopping.why("bad", ["good"], 2)
        assert found is not None
        assert "on u" not in found
        assert "u cannot be tested, and has no say: a judge grades it" in stopping.remarks[1]

    def test_goes_on_with_what_cannot_be_compared(self, tmp_path: Path, stopping: Stopping) -> None:
        write_run(tmp_path / "good", {"t": rows(60, 0.9, 1)})
        write_run(tmp_path / "bad", {"t": rows(60, 0.2, 2)}, reply={"seed": 2})
        assert stopping.why("bad", ["good"], 2) is None
        assert "bad cannot be tested, and goes on" in stopping.remarks[1]
        assert "seed" in stopping.remarks[1]

    def test_looks_when_there_is_something_new_and_not_too_often(
        self, tmp_path: Path, stopping: Stopping
    ) -> None:
        write_run(tmp_path / "good", {"t": rows(60, 0.9, 1)})
        write_run(tmp_path / "bad", {"t": rows(60, 0.2, 2)}, unfinished=set(range(1, 9)))
        assert stopping.look("bad", [], 2) is None
        assert not stopping._seen
        assert stopping.look("bad", ["good"], 2) is None
        assert stopping._seen["bad"] == (1, 1)
        write_run(tmp_path / "bad", {"t": rows(60, 0.2, 2)})
        assert stopping.look("bad", ["good"], 2) is None  # too soon
        stopping._next_look["bad"] = 0.0
        assert stopping.look("bad", ["good"], 2) is not None


class TestConfig:
    def content(self, tmp_path: Path, stop: Any, **evaluate: Any) -> dict[str, Any]:
        asked = {"engine": {"name": "scripted"}, "tasks": ["demo_choice"], **evaluate}
        return {
            "base": {"evaluate": asked, "run": {"output": str(tmp_path)}},
            "checkpoints": {"pattern": "*"},
            "stop_hopeless": stop,
        }

    def test_is_off_unless_asked_for(self, tmp_path: Path) -> None:
        content = self.content(tmp_path, None)
        for stop in (None, False):
            assert load_sweep({**content, "stop_hopeless": stop}).stop_hopeless is None
        content.pop("stop_hopeless")
        assert load_sweep(content).stop_hopeless is None
        assert load_sweep({**content, "stop_hopeless": True}).stop_hopeless == StopSection()
        given = {"alpha": 0.01, "tasks": ["demo_choice"]}
        section = load_sweep({**content, "stop_hopeless": given}).stop_hopeless
        assert section == StopSection(alpha=0.01, tasks=["demo_choice"])

    @pytest.mark.parametrize(
        ("stop", "message"),
        [
            ({"alpha": 0}, r"stop_hopeless\.alpha"),
            ({"alpha": 1}, r"stop_hopeless\.alpha"),
            ({"tasks": []}, r"stop_hopeless\.tasks"),
            ({"task": ["demo_choice"]}, r"stop_hopeless\.task"),
            ({"tasks": ["demo_choce"]}, r"no task 'demo_choce'; did you mean 'demo_choice'"),
            ({"tasks": ["demo_answers"]}, "a judge grades 'demo_answers' after all checkpoints"),
        ],
    )
    def test_says_what_is_wrong(self, tmp_path: Path, stop: Any, message: str) -> None:
        tasks = ["demo_choice", "demo_answers"]
        judge = {"model": {"id": "judge"}, "engine": {"name": "scripted"}}
        with pytest.raises(ConfigError, match=message):
            load_sweep(self.content(tmp_path, stop, tasks=tasks, judge=judge))
