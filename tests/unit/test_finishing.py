"""A run that is finished is left alone as long as nothing has touched it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from raveval.finishing import finish, still_finished
from raveval.store import RunDirectory, shards_of
from raveval.types import Shard
from tests import finished_runs

Damage = Callable[[Path], object]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("finished") / "run"
    finished_runs.finish(path, ["demo_choice"])
    return path


def begun(path: Path) -> tuple[RunDirectory, dict[str, object], list[Shard]]:
    directory = RunDirectory(path)
    manifest = {k: v for k, v in directory.manifest().items() if k not in ("finished", "seal")}
    entry = manifest["tasks"]["demo_choice"]
    return directory, manifest, shards_of("demo_choice", entry["n_examples"], entry["shard_size"])


def test_results_stand_while_nothing_changes(finished: Path) -> None:
    directory, manifest, shards = begun(finished)
    results = finish(directory, manifest, shards, when="2026-07-01T09:31:30+00:00")
    assert still_finished(directory, manifest, shards) == results
    assert still_finished(directory, {**manifest, "raveval_version": "9"}, shards) is None


def edit(name: str) -> Damage:
    def damage(path: Path) -> None:
        content = (path / name).read_text()
        (path / name).write_text(content.replace("0", "1", 1))

    return damage


def delete(name: str) -> Damage:
    return lambda path: (path / name).unlink()


def unfinish(path: Path) -> None:
    manifest = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**manifest, "finished": None}))


@pytest.mark.parametrize(
    "damage",
    [
        edit("states/demo_choice/00002.json"),
        edit("results.json"),
        delete("states/demo_choice/00000.json"),
        delete("records/demo_choice/00003.parquet"),
        delete("report.html"),
        delete("results.json"),
        unfinish,
    ],
)
def test_whatever_is_touched_is_seen(finished: Path, tmp_path: Path, damage: Damage) -> None:
    shutil.copytree(finished, tmp_path / "run")
    directory, manifest, shards = begun(tmp_path / "run")
    finish(directory, manifest, shards, when="2026-07-01T09:31:30+00:00")
    assert still_finished(directory, manifest, shards) is not None
    damage(tmp_path / "run")
    assert still_finished(directory, manifest, shards) is None
