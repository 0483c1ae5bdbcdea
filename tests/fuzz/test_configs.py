"""Configs, sweeps and task files of any content are read, or refused in words."""

import copy
import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from raveval import tasks
from raveval.config import RunConfig, load_config
from raveval.errors import RavevalError
from raveval.plan import make_plan, manifest_of
from raveval.strict_yaml import _models_in
from raveval.sweep.config import SweepSection, load_sweep
from raveval.tasks import Options
from raveval.tasks.task import Task
from tests.fuzz import fuzzed, refused
from tests.fuzz.values import texts, yaml_values

Place = tuple[str | int, ...]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def places(model: type[BaseModel], at: Place = ()) -> Iterator[Place]:
    """Yield where a file of this model can hold a value: every key, and each that is within."""
    for name, field in model.model_fields.items():
        key = (*at, field.alias or name)
        yield key
        is_list = "list" in str(field.annotation) or "tuple" in str(field.annotation)
        for inner in _models_in(field.annotation):
            yield from places(inner, (*key, 0) if is_list else key)


def put(content: Any, place: Place, value: Any) -> Any:
    """Return a copy of nested mappings and lists with a value at a place, made where it lacks."""
    key, *rest = place
    changed = copy.copy(content) if isinstance(content, dict) else {}
    if isinstance(key, int):
        first = content[0] if isinstance(content, list) and content else None
        return [put(first, tuple(rest), value) if rest else value]
    changed[key] = put(changed.get(key), tuple(rest), value) if rest else value
    return changed


RUN: dict[str, Any] = {
    "evaluate": {
        "model": {"id": "scripted"},
        "engine": {"name": "scripted"},
        "tasks": [{"task": "demo_choice"}],
    },
    "run": {"output": "run"},
}
RUN_PLACES = [
    *places(RunConfig),
    *(("evaluate", "engine", "options", name) for name in ("seed", "latency_seconds", "script")),
    ("evaluate", "tasks", 0),
    ("evaluate", "nonsense"),
]


def check_plan(content: Any) -> None:
    """Plan a run, and write what run.json would hold."""
    plan = make_plan(load_config(content))
    assert plan.lines()
    stored = json.dumps(manifest_of(plan, None, started="now"), allow_nan=False, ensure_ascii=False)
    stored.encode()


@fuzzed(150)
@given(place=st.sampled_from(RUN_PLACES), value=yaml_values | texts)
def test_a_run_with_anything_at_one_of_its_keys(place: Place, value: Any) -> None:
    assert refused(lambda: check_plan(put(RUN, place, value))) != ""


SWEEP: dict[str, Any] = {
    "base": {
        "evaluate": {"engine": {"name": "scripted"}, "tasks": ["demo_choice"]},
        "run": {"output": "swept"},
    },
    "checkpoints": {"list": [{"path": "step_1"}]},
}


@fuzzed(100)
@given(
    place=st.sampled_from(
        [*places(SweepSection), *(("base", *p) for p in RUN_PLACES), ("checkpoints", "list", 0)]
    ),
    value=yaml_values | texts,
    is_listed=st.booleans(),
)
def test_a_sweep_with_anything_at_one_of_its_keys(
    place: Place, value: Any, is_listed: bool
) -> None:
    sweep = SWEEP if is_listed else {**SWEEP, "checkpoints": {}}

    def read() -> None:
        config = load_sweep(put(sweep, place, value))
        for checkpoint in config.checkpoints():
            config.run_of(checkpoint)

    assert refused(read) != ""


TASKS: Mapping[str, Any] = {
    "multiple_choice": {
        "prompt": "{{ q }}",
        "choices": "options",
        "gold": "right",
        "unconditional": "A:",
    },
    "question_answering": {"prompt": "{{ q }}", "references": "options"},
    "language_modelling": {"text": "{{ q }}"},
    "absolute_grading": {
        "grading": {"instruction": "{{ q }}", "response": "{{ q }}", "rubric": {}},
        "reference_ratings": "[right]",
    },
    "ranking": {
        "grading": {"instruction": "{{ q }}", "responses": ["{{ q }}", "b"], "rubric": {}},
        "preferred": "'a'",
    },
    "open_generation": {"grading": {"instruction": "{{ q }}", "rubric": {}}},
}
RUBRIC = {"criteria": "c", **{f"score{n}_description": str(n) for n in range(1, 6)}}
ROW = {"q": "Why?", "options": ["no", "yes"], "right": 1}


def task_of(protocol: str) -> dict[str, Any]:
    content = copy.deepcopy(TASKS[protocol])
    if "grading" in content:
        content["grading"]["rubric"] = RUBRIC
    return {"protocol": protocol, "source": {"path": "rows.jsonl"}, **content}


@fuzzed(150)
@given(
    protocol=st.sampled_from(sorted(TASKS)),
    place=st.sampled_from([p for p in places(Task) if p[0] not in ("name", "file")]),
    value=yaml_values | texts,
)
def test_a_task_file_with_anything_at_one_of_its_keys(
    protocol: str, place: Place, value: Any
) -> None:
    Path("rows.jsonl").write_text(json.dumps(ROW) + "\n")
    content = put(task_of(protocol), place, value)
    Path("quiz.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    said = refused(lambda: tasks.load_examples(tasks.load_task("quiz.yaml"), Options(), seed=0))
    is_of_a_file = place[-1] == "path"  # which may be any file, or folder
    assert said is None or is_of_a_file or "quiz" in said or "rows.jsonl" in said


yaml_pieces = st.sampled_from(
    [
        *("a: ", "b: ", "- ", "? ", ": ", "\n", "  ", "&a ", "*a", "<<: ", "[", "]", "{", "}", ","),
        *(
            "|",
            ">",
            "!!int ",
            "!!float ",
            "!!bool ",
            "!!timestamp ",
            "!!binary ",
            "!!set ",
            "!!omap ",
        ),
        *("!!python/object:os.system ", "!!pairs ", "!x ", "%YAML 1.1\n", "---\n", "...\n", "#"),
        *(
            "2001-99-99",
            "2001-12-14t21:59:43.10-05:00",
            "1:99",
            "0x",
            "0o9",
            "0b2",
            "1_000",
            ".inf",
        ),
        *(
            "~",
            "evaluate: ",
            "run: ",
            "'",
            '"',
            "\\",
            '"\\ud800"',
            '"\\x00"',
            "\t",
            "\x85",
            "\ufeff",
        ),
        *("9" * 5000, "[" * 2000, "{a: " * 500),
    ]
)
yaml_texts = st.lists(yaml_pieces | texts, max_size=8).map("".join)


@fuzzed(200)
@given(text=yaml_texts, encoding=st.sampled_from(["utf-8", "utf-16", "latin-1"]))
def test_any_text_as_a_file_of_yaml(text: str, encoding: str) -> None:
    path = Path("any.yaml")
    path.write_bytes(text.encode(encoding, "replace"))
    for read in (load_config, load_sweep, tasks.load_task):
        with pytest.raises(RavevalError, match=r"any\.yaml"):
            read(str(path))


@fuzzed(60)
@given(name=texts)
def test_any_text_as_the_name_of_a_file(name: str) -> None:
    for read in (load_config, load_sweep, tasks.load_task, lambda n: tasks.load_task(f"{n}.yaml")):
        assert refused(partial(read, name))
