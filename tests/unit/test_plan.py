"""What is refused before anything is loaded, and what a plan says."""

import json
import platform
import time
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from raveval import tasks
from raveval.config import load_config
from raveval.engines.scripted import ScriptedEncoder
from raveval.errors import ConfigError, DataError, MismatchError, ModelError, Refused, ResourceError
from raveval.fingerprint import checkpoint_digest
from raveval.passes import task_spec
from raveval.plan import Plan, make_plan, manifest_of
from raveval.store import RunDirectory
from raveval.store.examples import StoredExamples
from tests.checkpoints import write_checkpoint, write_weights

SHORT = {"name": "scripted", "max_model_len": 73}


def plan(tmp_path: Path, **changes: Any) -> Plan:
    evaluate: dict[str, Any] = {
        "model": {"id": "scripted"},
        "engine": "scripted",
        "tasks": ["demo_choice"],
    }
    run: dict[str, Any] = {"output": str(tmp_path / "run")}
    for key, value in changes.items():
        section = run if key in ("output", "replicas", "cpus_per_replica") else evaluate
        section[key] = value
    return make_plan(load_config({"evaluate": evaluate, "run": run}))


def test_one_shard_is_told_as_one(tmp_path: Path) -> None:
    assert any(line.endswith("(1 replica, 1 shard)") for line in plan(tmp_path).lines())


def test_a_plan_writes_nothing(tmp_path: Path) -> None:
    lines = plan(tmp_path).lines()
    assert any("demo_choice: 28 examples, multiple_choice, 0-shot" in line for line in lines)
    assert not list(tmp_path.iterdir())


def test_a_task_that_takes_long_to_prepare_is_spoken_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raveval.progress._SECONDS_BETWEEN_LINES", 0.01)
    said: list[str] = []
    load = tasks.load_examples

    def load_slowly(*arguments: Any, **named: Any) -> Any:
        deadline = time.monotonic() + 10
        while "still preparing demo_choice, for 0:00 now" not in said:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return load(*arguments, **named)

    monkeypatch.setattr(tasks, "load_examples", load_slowly)
    evaluate = {"model": {"id": "scripted"}, "engine": "scripted", "tasks": ["demo_choice"]}
    run = {"output": str(tmp_path / "run")}
    make_plan(load_config({"evaluate": evaluate, "run": run}), say=said.append)
    assert said[0] == "preparing demo_choice"


def test_run_json_says_by_what_it_was_planned(tmp_path: Path) -> None:
    environment = manifest_of(plan(tmp_path), None, started="now")["environment"]
    assert environment["python"] == platform.python_version()
    assert environment["packages"]["pyarrow"] == pyarrow.__version__
    assert {"ray", "transformers", "tokenizers"} <= environment["packages"].keys()


def test_settings_of_any_kind_survive_run_json(tmp_path: Path) -> None:
    sampling = {"max_output_tokens": 7, "stop": ["\n", "Q:"], "temperature": 0.5}
    planned = plan(tmp_path, tasks=["demo_grading", {"task": "demo_qa", "sampling": sampling}])
    for task in planned.tasks:
        stored = json.loads(json.dumps(task.manifest(32)))
        assert task_spec(stored).settings == task.settings
    assert planned.tasks[1].settings.sampling.stop == ("\n", "Q:")


def test_order_is_fixed_and_not_that_of_the_file(tmp_path: Path) -> None:
    ids = [example.id for example in plan(tmp_path).tasks[0].examples]
    assert ids == [example.id for example in plan(tmp_path).tasks[0].examples]
    assert ids != sorted(ids)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"tasks": ["demo_choise"]}, ConfigError, "did you mean 'demo_choice'"),
        ({"tasks": ["demo_choice", "demo_choice"]}, ConfigError, "stands twice.*`name`"),
        (
            {"tasks": [{"task": "demo_choice", "metrics": ["acuracy"]}]},
            ConfigError,
            "did you mean 'accuracy'",
        ),
        (
            {"tasks": [{"task": "demo_choice", "metrics": ["squad"]}]},
            ConfigError,
            "metric 'squad' needs the column 'prediction', .* it is for question_answering; "
            "metrics for this protocol: accuracy, greedy, perplexity$",
        ),
        (
            {"tasks": [{"task": "demo_qa", "metrics": ["squad", "squad2"]}]},
            ConfigError,
            "metrics 'squad' and 'squad2' both give an estimate 'exact_match'",
        ),
        (
            {"tasks": [{"task": "demo_choice", "path": "/no/such.jsonl"}]},
            DataError,
            r"/no/such\.jsonl: no such file",
        ),
        ({"engine": "vlm"}, ConfigError, "did you mean 'vllm'"),
        ({"judge": {"id": "a"}}, ConfigError, r"evaluate\.judge"),
        ({"replicas": 1000}, ResourceError, "1000 replicas"),
        ({"cpus_per_replica": 512.0}, ResourceError, "512 CPUs"),
        ({"engine": {"name": "scripted", "max_model_len": 10}}, ConfigError, "28 of 28 examples"),
        ({"engine": "transformers", "model": {"path": "/no/model"}}, ModelError, "no such dir"),
    ],
)
def test_is_refused(
    tmp_path: Path, change: dict[str, Any], error: type[Refused], message: str
) -> None:
    with pytest.raises(error, match=message):
        plan(tmp_path, **change)


def test_prompts_that_may_be_cut_are_no_reason_to_refuse(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"question": "Why? " * 99, "answers": ["x"]}))
    body = (
        "protocol: question_answering\nsource: {path: rows.jsonl}\nreferences: answers\n"
        'prompt: "{{ question }}Answer:"\n'
    )
    engine = {"name": "scripted", "max_model_len": 80}
    (tmp_path / "long.yaml").write_text(body)
    with pytest.raises(ConfigError, match="1 of 1 examples do not fit"):
        plan(tmp_path, engine=engine, tasks=[str(tmp_path / "long.yaml")])
    (tmp_path / "long.yaml").write_text(body + "may_truncate: true\n")
    (task,) = plan(tmp_path, engine=engine, tasks=[str(tmp_path / "long.yaml")]).tasks
    assert task.settings.may_truncate
    assert task.content.lengths.n_overlong == 1


def test_chat_needs_a_template(tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "model", chat_template=None)
    with pytest.raises(ModelError, match="no chat template"):
        plan(tmp_path, engine="transformers", model={"path": str(model)}, chat=True)


def test_a_checkpoint_saved_over_another_is_another_model(tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "model")
    settings = {"engine": "transformers", "model": {"path": str(model)}, "on_overlong": "count"}
    weights = model / "model.safetensors"
    write_weights(model, 5_000_000)
    first = plan(tmp_path, **settings).tasks[0]
    assert plan(tmp_path, **settings).tasks[0].reply_fingerprint == first.reply_fingerprint
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    changed = plan(tmp_path, **settings).tasks[0]
    assert changed.reply_fingerprint != first.reply_fingerprint
    assert changed.reply["model"]["weights"] != first.reply["model"]["weights"]


def test_one_changed_tensor_is_another_model(tmp_path: Path) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    hidden = tmp_path / ".cache" / "model"
    hidden.mkdir(parents=True)
    tensors = {f"layer{n}": np.zeros((300, 1000), np.float32) for n in range(8)}
    found = set()
    for changed in (None, "layer0", "layer5", "layer7"):
        one = {changed: tensors[changed] + 1} if changed else {}
        save_file({**tensors, **one}, hidden / "model.safetensors")
        found.add(checkpoint_digest(hidden))
    assert len(found) == 4
    (hidden / "runs").mkdir()
    (hidden / "runs" / "results.json").write_text("{}")
    for trainers in ("optimizer.pt", "trainer_state.json", "rng_state_0.pth", "README.md", ".lock"):
        (hidden / trainers).write_text("comes and goes")
    assert checkpoint_digest(hidden) in found, "what a trainer keeps beside it is not the model"
    (hidden / "generation_config.json").write_text("{}")
    assert checkpoint_digest(hidden) not in found
    with pytest.raises(ModelError, match="holds no files"):
        checkpoint_digest(tmp_path)


def test_a_run_of_something_else_is_refused_with_the_key(tmp_path: Path) -> None:
    planned = plan(tmp_path)
    directory = tmp_path / "run"
    directory.mkdir()
    manifest = {"model": "m", "tasks": {"demo_choice": planned.tasks[0].manifest(32)}}
    (directory / "run.json").write_text(json.dumps(manifest))
    other = [{"task": "demo_choice", "num_fewshot": 1}]
    assert plan(tmp_path, tasks=other).shard_sizes == {"demo_choice": 32}  # nothing was asked yet
    (directory / "replies" / "demo_choice").mkdir(parents=True)
    (directory / "replies" / "demo_choice" / "00000.parquet").touch()
    assert plan(tmp_path).shard_sizes == {"demo_choice": 32}
    with pytest.raises(
        MismatchError, match=r"num_fewshot of task 'demo_choice' was 0, now it is 1"
    ):
        plan(tmp_path, tasks=other)


class TestRemembering:
    """A plan made of the same as that of a run that is there renders and measures nothing."""

    ROWS = "".join(f'{{"q": "q{n}", "answers": ["{n}"]}}\n' for n in range(20))
    TASK = (
        'protocol: question_answering\nsource: {path: rows.jsonl}\nprompt: "{{ q }}A:"\n'
        "references: answers\n"
    )

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        (tmp_path / "rows.jsonl").write_text(self.ROWS)
        (tmp_path / "pool.jsonl").write_text(self.ROWS.replace(': "q', ': "p'))
        (tmp_path / "quiz.yaml").write_text(self.TASK)
        return tmp_path

    def made(self, folder: Path, *, entry: Any = None, **changes: Any) -> Plan:
        pool = str(folder / "pool.jsonl")
        asked = {"task": str(folder / "quiz.yaml"), "num_fewshot": 2, "fewshot_path": pool}
        return plan(folder, **{"tasks": [{**asked, **(entry or {})}, "demo_choice"], **changes})

    def begin(self, folder: Path, **changes: Any) -> Plan:
        """Plan a run and write down what it asks."""
        planned = self.made(folder, **changes)
        directory = RunDirectory(folder / "run")
        for task in planned.tasks:
            directory.write_examples(task.name, task.examples, digest=task.examples_digest)
        directory.write_manifest(manifest_of(planned, None, started="now"))
        return planned

    def is_remembered(self, planned: Plan) -> list[bool]:
        return [isinstance(task.examples, StoredExamples) for task in planned.tasks]

    def test_the_same_is_planned_from_what_is_written(self, folder: Path) -> None:
        first = self.begin(folder, on_overlong="count", engine=SHORT)
        again = self.made(folder, on_overlong="count", engine=SHORT)
        assert self.is_remembered(first) == [False, False]
        assert self.is_remembered(again) == [True, True]
        assert manifest_of(again, None, started="now") == manifest_of(first, None, started="now")
        assert again.lines() == first.lines()
        assert "too long" in "".join(again.lines())
        assert [list(task.examples) for task in again.tasks] == [
            list(task.examples) for task in first.tasks
        ]

    @pytest.mark.parametrize(
        ("file", "old", "new"),
        [("rows.jsonl", "q7", "q8"), ("pool.jsonl", "p3", "p4"), ("quiz.yaml", "A:", "B:")],
    )
    def test_a_changed_file_is_read_again(
        self, folder: Path, file: str, old: str, new: str
    ) -> None:
        first = self.begin(folder)
        path = folder / file
        path.write_text(path.read_text().replace(old, new))
        again = self.made(folder)
        assert self.is_remembered(again) == [False, True]
        assert again.tasks[0].reply["examples"] != first.tasks[0].reply["examples"]

    @pytest.mark.parametrize(
        "change",
        [
            {"entry": {"limit": 19}},
            {"entry": {"num_fewshot": 3}},
            {"seed": 2},
            {"chat": True},
            {"engine": {"name": "scripted", "max_model_len": 4000}},
            {"on_overlong": "count"},
        ],
    )
    def test_another_setting_is_another_plan(self, folder: Path, change: dict[str, Any]) -> None:
        self.begin(folder)
        assert not self.is_remembered(self.made(folder, **change))[0]

    def test_another_tokenizer_measures_anew(self, tmp_path: Path) -> None:
        model = write_checkpoint(tmp_path / "model")
        asked = {"engine": "transformers", "tasks": ["demo_qa"], "on_overlong": "count"}
        settings = {**asked, "model": {"path": str(model)}}
        self.begin(tmp_path, **settings)
        assert self.is_remembered(self.made(tmp_path, **settings)) == [True]
        config = model / "tokenizer_config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "note": "new"}))
        assert self.is_remembered(self.made(tmp_path, **settings)) == [False]

    def test_tokens_counted_otherwise_by_a_model_of_the_same_name_are_counted_anew(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.begin(folder)
        monkeypatch.setattr(ScriptedEncoder, "size", lambda *_: 1)
        assert self.is_remembered(self.made(folder)) == [False, False]

    def test_other_versions_render_anew(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.begin(folder)
        monkeypatch.setattr(platform, "python_version", lambda: "3.99")
        assert self.is_remembered(self.made(folder)) == [False, False]

    def test_examples_that_are_gone_are_rendered_anew(self, folder: Path) -> None:
        self.begin(folder)
        (folder / "run" / "examples" / "quiz" / "00000.parquet").unlink()
        assert self.is_remembered(self.made(folder)) == [False, True]

    def test_of_a_module_of_ones_own_nobody_knows_what_it_depends_on(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.syspath_prepend(str(folder))
        (folder / "mylab").mkdir()
        (folder / "mylab" / "answering.py").write_text(
            "from raveval.protocols.question_answering import *\n"
        )
        path = folder / "quiz.yaml"
        path.write_text(self.TASK.replace("question_answering", "mylab.answering"))
        self.begin(folder)
        assert self.is_remembered(self.made(folder)) == [False, True]
