"""A sweep's file that is torn, foreign or changed: told in words, and nothing outside is read."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raveval.comparison import Difference, Verdict
from raveval.report import sweep_to_html, sweep_to_markdown
from raveval.sweep import load_sweep_results, sweep_status
from raveval.sweep.checkpoints import Checkpoint
from raveval.sweep.files import earlier, sweep_to_json
from raveval.sweep.outcome import Outcome, Progress, State
from raveval.sweep.results import SweepResults, swept
from tests.finished_runs import finish
from tests.fuzz import fuzzed, refused
from tests.fuzz.test_configs import put
from tests.fuzz.test_run_directories import paths_in
from tests.fuzz.values import json_values


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A sweep of three checkpoints, with the content of its file."""
    path = tmp_path_factory.mktemp("swept")
    finish(path / "step_1", [{"task": "demo_qa", "limit": 5}])
    done = Checkpoint("step_1", 1, {"path": "/training/step_1"})
    ended = Checkpoint("step_2", 2, {"path": "/training/step_2"})
    broken = Checkpoint("step_3", 3, {"path": "/training/step_3"})
    outcomes = (
        Outcome(done, State.DONE, seconds=3.0),
        Outcome(ended, State.STOPPED, "worse", 2.0, {"demo_qa": Progress(1, 5)}),
        Outcome(broken, State.FAILED, "no weights"),
    )
    differences = (
        Difference("demo_qa", "step_2", "f1", "%", True, 0.5, 0.6, 0.1, Verdict.NOT_TESTED),
    )
    results = SweepResults(
        tuple(swept(path, each) for each in outcomes),
        differences,
        differences,
        ("a remark",),
        {"demo_qa": ("step_1",)},
    )
    content: dict[str, Any] = json.loads(sweep_to_json(results))
    return path, content


def show(directory: Path) -> None:
    """Show what can be shown of a sweep."""
    results = load_sweep_results(directory)
    sweep_to_markdown(results)
    sweep_to_html(results)


@fuzzed(60)
@given(
    share=st.floats(0, 1),
    value=json_values,
    operation=st.sampled_from([show, sweep_status, earlier]),
)
def test_a_file_that_is_not_what_it_was(
    whole: tuple[Path, dict[str, Any]], share: float, value: Any, operation: Any
) -> None:
    path, content = whole
    places = paths_in(content)
    place = places[int(share * (len(places) - 1))]
    (path / "sweep.json").write_text(json.dumps(put(content, place, value)))
    said = refused(lambda: operation(path))
    assert said is None or str(path) in said


@pytest.mark.parametrize("name", ["../step_1", "/etc", "a/b", ".hidden", "x\n", "", "a" * 81])
def test_a_name_that_leads_elsewhere_is_none(whole: tuple[Path, dict[str, Any]], name: str) -> None:
    path, content = whole
    (path / "sweep.json").write_text(json.dumps(put(content, ("checkpoints", 0, "name"), name)))
    assert "checkpoints.0.name" in (refused(lambda: load_sweep_results(path)) or "")
    assert earlier(path) == {}
