"""Small runs through real Ray with a scripted engine."""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from raveval import pipeline
from raveval.evaluate import Stage
from raveval.store import RunDirectory
from raveval.types import Shard
from raveval.worker import ShardWorker, WorkerSpec

if TYPE_CHECKING:
    from tests.end_to_end.direct import Direct

Config = dict[str, Any]

DEMO = Path(__file__).resolve().parents[2] / "configs" / "demo.yaml"
DEMO_TASKS = ("choice", "qa", "text", "grading", "ranking", "pairs", "answers")


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """One local Ray for all tests that do not need their own."""
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield
    ray.shutdown()


@pytest.fixture
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the one replica in this process, for tests of what it does and not of where.

    An engine must not end its process here.
    """
    monkeypatch.setattr(pipeline, "cluster", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(pipeline, "check_room", lambda *_: None)
    monkeypatch.setattr(pipeline, "execute", execute_here)


def execute_here(
    shards: Sequence[tuple[int, Shard]],
    spec: WorkerSpec,
    _: pipeline.Placement,
    *,
    say: Callable[[str], None],
) -> Iterator[pipeline.ShardDone]:
    """Do what `pipeline.execute` does, one shard after the other and without Ray."""
    role = "judge replica" if spec.stage is Stage.GRADE else "replica"
    say(f"starting 1 {role} of {spec.model.name} on {spec.engine}")
    worker = ShardWorker(spec)

    async def outcomes(batch: dict[str, Any]) -> list[dict[str, list[Any]]]:
        return [outcome async for outcome in worker(batch)]

    with asyncio.Runner() as runner:
        for run, shard in shards:
            batch = {key: [value] for key, value in {"run": run, **asdict(shard)}.items()}
            for outcome in runner.run(outcomes(batch)):
                row = {key: value for key, (value,) in outcome.items()}
                if row["error"]:
                    raise pipeline._error(row["error_kind"], row["error"])
                yield pipeline.ShardDone(row["n_examples"], row["n_missing"], row["n_tokens"])


@pytest.fixture(scope="session")
def direct(demo_model: Path) -> "Direct":
    """The demo model, asked without an engine."""
    from tests.end_to_end.direct import Direct

    return Direct.load(demo_model)


@pytest.fixture(scope="session")
def demo_run(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of `raveval run configs/demo.yaml`; minutes, so once for all who look at it."""
    directory = tmp_path_factory.mktemp("demo") / "vllm"
    run = subprocess.run(
        [sys.executable, "-m", "raveval", "run", str(DEMO), "--output-path", str(directory)],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert run.returncode == 0, run.stderr
    assert "Traceback" not in run.stderr
    for task in DEMO_TASKS:
        assert f"| demo_{task} " in run.stdout
    assert str(directory / "results.json") in run.stdout
    return directory


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., Config]:
    """Make a config of the demo tasks on the scripted engine, with changes to either section."""

    def make(
        *,
        output: str = "run",
        engine: dict[str, Any] | None = None,
        tasks: list[Any] | None = None,
        evaluate: dict[str, Any] | None = None,
        **run: Any,
    ) -> Config:
        return {
            "evaluate": {
                "model": {"id": "scripted"},
                "engine": {"name": "scripted", **(engine or {})},
                "tasks": tasks or ["demo_choice", "demo_qa", "demo_text"],
                **(evaluate or {}),
            },
            "run": {"output": str(tmp_path / output), "cpus_per_replica": 0.5, **run},
        }

    return make


@pytest.fixture
def questions(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Make a question-answering task of the given questions; returns its entry of a config."""

    def make(*asked: str) -> dict[str, str]:
        rows = [{"question": text, "answers": ["42"]} for text in asked]
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (tmp_path / "questions.yaml").write_text(
            "protocol: question_answering\n"
            "source: {path: rows.jsonl}\n"
            'prompt: "Question: {{ question }}\\nAnswer:"\n'
            "references: answers\n"
        )
        return {"task": str(tmp_path / "questions.yaml")}

    return make


def numbers(directory: str | Path) -> str:
    """Return results.json without the only two things that may differ: times and seconds."""
    content = json.loads(RunDirectory(directory).read_text("results.json"))
    content.pop("times")
    for task in content["tasks"].values():
        for usage in ("usage", "judge_usage"):
            task.get(usage, {}).pop("engine_seconds", None)
    return json.dumps(content, indent=1)


def receipts(directory: str | Path) -> dict[str, int]:
    """Return the receipts of a run with the time each was written."""
    states = Path(directory) / "states"
    return {
        str(path.relative_to(states)): path.stat().st_mtime_ns for path in states.glob("*/*.json")
    }
