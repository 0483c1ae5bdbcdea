"""Run directories whose files are torn, foreign or changed: told in words, or made anew."""

import contextlib
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import raveval
from raveval import run_status, runner
from raveval.store import Lost, RunDirectory, shards_of
from tests.finished_runs import finish
from tests.fuzz import fuzzed, refused
from tests.fuzz.test_configs import put
from tests.fuzz.values import json_values
from tests.run_directories import begun

FILES = (
    *("run.json", "results.json", "session", "examples/demo_qa/00000.parquet"),
    *("replies/demo_qa/00000.parquet", "records/demo_qa/00000.parquet"),
    *("states/demo_qa/00000.json", "attempts/demo_qa/00000.json"),
    *("workers/s-r-000.json", "lost/s-r-000.json"),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of one shard."""
    path = tmp_path_factory.mktemp("whole") / "run"
    finish(path, [{"task": "demo_qa", "limit": 5}])
    directory = RunDirectory(path)
    directory.begin_session("s")
    begun(directory, shards_of("demo_qa", 5, 7)[0], session="s")
    about = {"node": "n", "process": 7, "stage": "answer", "loaded": {}, "load_seconds": 1.5}
    directory.report_worker("s-r-000", about)
    directory.report_lost("s-r-000", Lost("n", 7, "answer", True, "no memory", shards=("t 0",)))
    return path


def paths_in(content: Any) -> list[tuple[Any, ...]]:
    """Return where a JSON value can be changed: every key and the first element of each list."""
    if isinstance(content, dict):
        inside = [(key, *rest) for key, value in content.items() for rest in paths_in(value)]
        return [*((key,) for key in content), *inside]
    if isinstance(content, list) and content:
        return [(0, *rest) for rest in paths_in(content[0])] or [(0,)]
    return []


@st.composite
def changes(draw: st.DrawFn) -> Callable[[Path], None]:
    """A change to one file of a run."""
    file = draw(st.sampled_from(FILES))
    kind = draw(st.sampled_from(["cut", "garbage", "gone", "other", "folder", "value", "value"]))
    share, value = draw(st.floats(0, 1)), draw(json_values)
    garbage, other = draw(st.binary(max_size=40)), draw(st.sampled_from(FILES))
    return partial(
        change, file=file, kind=kind, share=share, value=value, garbage=garbage, other=other
    )


def change(
    run: Path, *, file: str, kind: str, share: float, value: Any, garbage: bytes, other: str
) -> None:
    path = run / file
    content = path.read_bytes()
    path.unlink()
    if kind == "cut":
        path.write_bytes(content[: int(share * len(content))])
    elif kind == "garbage":
        path.write_bytes(garbage)
    elif kind == "other":
        path.write_bytes((run / other).read_bytes() if other != file else b"")
    elif kind == "folder":
        path.mkdir()
    elif kind == "value" and file.endswith(".json"):
        decoded = json.loads(content)
        places = paths_in(decoded)
        place = places[int(share * (len(places) - 1))]
        path.write_text(json.dumps(put(decoded, place, value)))
    elif kind == "value":
        path.write_bytes(content)


def carry_on(run: Path) -> None:
    """Do what a driver does with what is there, up to where it would load a model."""
    config = {
        "evaluate": {
            "model": {"id": "org/scripted", "revision": "step1000"},
            "engine": "scripted",
            "tasks": [{"task": "demo_qa", "limit": 5}],
        },
        "run": {"output": str(run), "retry_failed": True, "cpus_per_replica": 0.5},
    }
    with runner._begun(config, lambda _: None) as work:
        assert len(work.run.unanswered(work.missing)) <= 1
        shard = shards_of("demo_qa", 5, 7)[0]
        with contextlib.suppress(OSError):  # a replica tells it in the system's words
            begun(work.run.directory, shard, session="t")
        if not work.missing:
            runner._finished(work)


def look(run: Path) -> None:
    run_status.status(run)


OPERATIONS: tuple[Callable[[Path], object], ...] = (
    look,
    raveval.load_results,
    runner.rescore,
    carry_on,
    lambda run: raveval.compare([str(run), str(run)]),
    lambda run: RunDirectory(run).is_session("s"),
)


def test_records_that_cannot_be_written_are_named(whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    records = run / "records" / "demo_qa" / "00000.parquet"
    records.unlink()
    records.mkdir()
    said = refused(lambda: runner.rescore(run))
    assert said is not None
    assert said.startswith(f"{run}: task 'demo_qa', shard 0: ")
    assert "What was committed is kept" in said


@fuzzed(50)
@given(
    changed=st.lists(changes(), min_size=1, max_size=2),
    operation=st.sampled_from(OPERATIONS),
)
def test_files_that_are_not_what_they_were(
    whole: Path,
    tmp_path: Path,
    changed: list[Callable[[Path], None]],
    operation: Callable[[Path], object],
) -> None:
    run = tmp_path / "run"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(whole, run)
    for each in changed:
        try:
            each(run)
        except (OSError, ValueError):
            continue  # changed before, into a folder, nothing, or what is no JSON
    said = refused(lambda: operation(run))
    assert said is None or str(run) in said or said.startswith("run.json: ")
