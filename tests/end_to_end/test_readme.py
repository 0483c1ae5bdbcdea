"""What the README tells a newcomer to type works as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import raveval
from raveval.config import load_config
from raveval.tasks import load_task

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
BLOCKS: list[tuple[str, str]] = re.findall(
    r"^```(\w*)\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL
)


def block(kind: str, containing: str) -> str:
    found = [text for language, text in BLOCKS if language == kind and containing in text]
    assert len(found) == 1, f"{len(found)} blocks of {kind} hold {containing!r}"
    return found[0]


def test_the_config_is_one() -> None:
    config = load_config(yaml.safe_load(block("yaml", "evaluate:")))
    assert [entry.name for entry in config.evaluate.tasks] == [None, None, "arc_easy_5shot"]


@pytest.mark.parametrize(
    "protocol", ["question_answering", "language_modelling", "absolute_grading"]
)
def test_the_short_task_files_are_ones(tmp_path: Path, protocol: str) -> None:
    (tmp_path / "mine.yaml").write_text(block("yaml", f"protocol: {protocol}"))
    assert load_task(str(tmp_path / "mine.yaml")).name == "mine"


@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
def test_a_task_of_your_own(tmp_path: Path) -> None:
    (tmp_path / "capitals.jsonl").write_text(block("json", "France"))
    (tmp_path / "capitals.yaml").write_text(block("yaml", "capitals.jsonl"))
    results = raveval.run(
        {
            "evaluate": {
                "model": {"id": "scripted"},
                "engine": "scripted",
                "tasks": [str(tmp_path / "capitals.yaml")],
            },
            "run": {"output": str(tmp_path / "run"), "cpus_per_replica": 0.5},
        }
    )
    metrics = results.tasks["capitals"].metrics
    assert metrics["random_baseline"].value == pytest.approx((1 / 3 + 1 / 2) / 2)
    assert metrics["accuracy_unconditional"].n == 2


def test_every_command_and_flag_that_is_named_exists() -> None:
    commands = re.findall(r"\braveval ([a-z][a-z-]*)", README)
    lines = (line for _, text in BLOCKS for line in text.splitlines())
    ours = "\n".join(line for line in lines if re.search(r"\braveval [a-z]", line))
    flags = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", ours))
    assert len(flags) > 10
    help_of = {
        command: subprocess.run(
            [sys.executable, "-m", "raveval", command, "--help"],
            capture_output=True,
            text=True,
            check=True,
            env={"COLUMNS": "200", "PATH": "", "TERM": "dumb"},
        ).stdout
        for command in sorted(set(commands))
    }
    assert {"run", "plan", "status", "report", "score", "tasks", "measure"} <= set(help_of)
    everything = "\n".join(help_of.values())
    for flag in flags:
        assert flag in everything, f"{flag} stands in the README but in no --help"
