"""A run whose directory lies in an object store: the same bits as in a folder, killed or not."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import raveval
from raveval.cli import app
from raveval.run_status import status
from raveval.runner import rescore
from raveval.store.object_store import ObjectStore
from tests.end_to_end.conftest import Config, numbers, receipts
from tests.end_to_end.drivers import start_driver, wait_for

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster")]


def done(place: ObjectStore) -> list[str]:
    """Return the names of the receipts that are there."""
    folders = [f"states/{task}" for task in place.names("states")]
    return [f"{folder}/{name}" for folder in folders for name in place.names(folder)]


def printed(*arguments: str) -> str:
    shown = CliRunner().invoke(app, list(arguments))
    assert shown.exit_code == 0, shown.output
    return shown.output


# Three drivers, two with a Ray of their own: that two processes go on with a run is the point.
def test_a_killed_driver_of_two_replicas_is_followed_by_another(
    bucket: str, config: Callable[..., Config], tmp_path: Path
) -> None:
    engine = {"latency_seconds": 0.3}
    local = config(output="local", shard_size=2, engine=engine)
    raveval.run(local)
    url = f"{bucket}/runs/first"
    far = config(shard_size=2, engine=engine, replicas=2, examples_in_flight=4)
    far["run"]["output"] = url
    place = ObjectStore(url)
    n_shards = len(receipts(tmp_path / "local"))

    driver = start_driver(far, tmp_path)
    try:
        wait_for(lambda: len(done(place)) >= n_shards // 3, "some shards", driver, seconds=180)
        assert status(url).is_running
    finally:
        driver.kill()
        driver.wait()
    assert not status(url).is_running
    before = {name: place.modified(name) for name in done(place)}
    assert 0 < len(before) < n_shards

    driver = start_driver(far, tmp_path)
    assert driver.wait(timeout=200) == 0, (tmp_path / "driver.log").read_text()
    reports = [json.loads(place.read(f"workers/{name}")) for name in place.names("workers")]
    assert len({each["process"] for each in reports}) == 4, "two replicas, twice"
    assert {name: place.modified(name) for name in before} == before, "done again"
    assert numbers(url) == numbers(tmp_path / "local")
    assert place.all_names(".lock") == []
    assert place.names("attempts") == []

    assert "\ncomplete" in printed("status", url)
    assert json.loads(printed("report", url, "--format", "json"))["model"] == "scripted"
    rescore(url)
    assert numbers(url) == numbers(tmp_path / "local")
