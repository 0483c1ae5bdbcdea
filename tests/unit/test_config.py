"""Configs are read strictly, and every refusal names the key."""

import copy
from pathlib import Path
from typing import Any

import pytest

from raveval.config import config_from_flags, engine_options, load_config
from raveval.errors import ConfigError
from raveval.types import AdapterRef, ModelRef

BASE: dict[str, Any] = {
    "evaluate": {"model": {"id": "org/model"}, "tasks": ["arc_easy"]},
    "run": {"output": "runs/x"},
}
OF_RUN = ("replicas", "output", "shard_size", "answers_from", "deadline_seconds")


def changed(**changes: Any) -> dict[str, Any]:
    content = copy.deepcopy(BASE)
    for key, value in changes.items():
        section = content["run" if key in OF_RUN else "evaluate"]
        section[key] = value
    return content


def test_shorthands_mean_what_their_long_forms_mean(tmp_path: Path) -> None:
    long = load_config(
        changed(
            model={"path": str(tmp_path)},
            engine={"name": "vllm", "options": {"prefix_reuse": False}},
            tasks=[{"task": "squad"}],
        )
    )
    short = load_config(
        changed(
            model=str(tmp_path), engine={"name": "vllm", "prefix_reuse": False}, tasks=["squad"]
        )
    )
    assert short == long
    assert load_config(changed(model="org/model")) == load_config(BASE)
    assert load_config(changed(model="demo")).evaluate.model.demo


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"modle": 1}, r"evaluate\.modle: unknown key; did you mean 'model'"),
        ({"model": {"id": "a", "dtyp": 1}}, r"evaluate\.model\.dtyp: unknown key.*'dtype'"),
        ({"model": {"id": "a", "dtype": "fp32"}}, r"model\.dtype:.*'float32'.*given 'fp32'"),
        ({"model": {}}, "exactly one of path"),
        ({"model": {"id": "a", "path": "b"}}, "exactly one of path"),
        ({"model": {"path": "b", "revision": "main"}}, "revision goes with id"),
        ({"model": {"id": "a", "adapter": {}}}, r"model\.adapter: .*either path .* or id"),
        ({"model": {"id": "a", "adapter": {"path": "b", "revision": "c"}}}, "revision goes with"),
        (
            {"model": {"id": "a", "adapter": {"id": "s3://b/c"}}},
            r"adapter.*copy it to a file",
        ),
        ({"tasks": []}, r"evaluate\.tasks"),
        ({"tasks": "arc_easy"}, r"evaluate\.tasks: .*list.*given 'arc_easy'"),
        ({"tasks": [{"task": "x", "limit": 0}]}, r"tasks\.0\.limit:.*given 0"),
        ({"tasks": [{"task": "x", "name": "../../etc"}]}, r"tasks\.0\.name"),
        ({"tasks": [{"task": "x", "name": ".hidden"}]}, r"tasks\.0\.name"),
        ({"replicas": "two"}, r"run\.replicas:.*integer.*given 'two'"),
        ({"replicas": 0}, r"run\.replicas:.*given 0"),
        ({"shard_size": 1.5}, r"run\.shard_size"),
        ({"system_prompt": "be kind", "chat": False}, "chat: false"),
    ],
)
def test_a_refusal_names_the_key(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(changed(**change))


def test_all_faults_come_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(changed(seed="x", replicas=-1, colour="red"))
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize("content", ["", "[]", "a: b: c", "\x00"])
def test_a_file_that_is_no_config(tmp_path: Path, content: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"run\.yaml"):
        load_config(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("seed: !!int x", "'x' cannot be read as int"),
        ("seed: 2001-99-99", "'2001-99-99' cannot be read as timestamp"),
        ("seed: !!timestamp now", "cannot be read as timestamp"),
        ("seed: !!bool maybe", "cannot be read as bool"),
        ("seed: !!set 0", "not valid YAML"),
        (f"seed: {'9' * 5000}", "cannot be read as int"),
        ("[" * 3000, "nested too deeply"),
        ("a: &a [*a]", "an alias inside what it is for"),
        ('seed: "\\ud800"', "half of a surrogate pair"),
    ],
)
def test_yaml_that_its_own_library_stumbles_over(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=rf"run\.yaml: .*{words}"):
        load_config(path)


@pytest.mark.parametrize("value", ["[{}]", "{{<<: [{}]}}"])
def test_aliases_cannot_make_a_short_file_a_large_one(tmp_path: Path, value: str) -> None:
    path = tmp_path / "run.yaml"
    aliases = [", ".join([f"*a{n}"] * 10) for n in range(11)]
    lines = [
        "a0: &a0 {x: 1}",
        *(f"a{n}: &a{n} {value.format(a)}" for n, a in enumerate(aliases, 1)),
    ]
    path.write_text("\n".join(lines))
    with pytest.raises(ConfigError, match=r"too large with its aliases.*line 7"):
        load_config(path)


def test_what_an_alias_merges_in_is_replaced_by_what_stands_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "evaluate:\n"
        "  model: demo\n"
        "  tasks:\n"
        "    - &base {task: arc_easy, limit: 5}\n"
        "    - {<<: *base, name: short, limit: 2}\n"
        "run: {output: out}\n"
    )
    first, second = load_config(path).evaluate.tasks
    assert (first.task, first.limit) == ("arc_easy", 5)
    assert (second.task, second.limit, second.name) == ("arc_easy", 2, "short")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("a\x00b", "NUL character"),
        ("x/" + "é" * 128, "256 in one name"),
        ("a/" * 3000, "6000 bytes"),
        ("~nobody-of-that-name/x", "nobody of that name"),
    ],
)
@pytest.mark.parametrize("key", ["output", "answers_from", "baseline", "model", "task"])
def test_what_can_be_no_path_is_refused_by_its_key(key: str, value: str, words: str) -> None:
    given = {"model": {"path": value}, "task": [{"task": "squad", "path": value}]}
    change = {"tasks" if key == "task" else key: given.get(key, value)}
    with pytest.raises(ConfigError, match=rf"{key}.*: .*{words}"):
        load_config(changed(**change))


def test_a_name_too_long_for_a_path_is_no_local_model() -> None:
    assert load_config(changed(model="m" * 300)).evaluate.model.id == "m" * 300


def test_content_in_memory_that_can_be_written_nowhere_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"evaluate\.model\.id: half of a surrogate pair"):
        load_config(changed(model={"id": "a\ud800"}))
    with pytest.raises(ConfigError, match=r"evaluate\.tasks\.0.*half of a surrogate pair"):
        load_config(changed(tasks=[{"\udfff": 1}]))
    itself: dict[str, Any] = {}
    itself["itself"] = itself
    with pytest.raises(ConfigError, match=r"evaluate\.engine\.itself.*nested too deeply"):
        load_config(changed(engine=itself))


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_numbers_of_a_config_are_finite(value: float) -> None:
    with pytest.raises(ConfigError, match=r"run\.deadline_seconds: .*finite"):
        load_config(changed(deadline_seconds=value))


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"no/such\.yaml: no such file"):
        load_config("no/such.yaml")


def test_a_key_may_not_stand_twice(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("evaluate:\n  seed: 1\n  seed: 2\n")
    with pytest.raises(ConfigError, match=r"run\.yaml: .*the key 'seed' stands twice.*line 3"):
        load_config(path)


def test_the_output_is_a_path_or_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert load_config(changed(output="~/runs/x")).run.output == "/home/me/runs/x"
    assert load_config(changed(output="s3://bucket/x/")).run.output == "s3://bucket/x"


@pytest.mark.parametrize("url", ["s3://", "s3://bucket", "s3://bucket//x", "gs://bucket/../x"])
def test_a_url_names_a_folder_in_a_bucket(url: str) -> None:
    with pytest.raises(ConfigError, match=r"run\.output: .*not a place in an object store"):
        load_config(changed(output=url))


def test_a_model_is_not_read_from_an_object_store() -> None:
    for model in ({"path": "s3://bucket/model"}, "gs://bucket/model"):
        with pytest.raises(ConfigError, match=r"evaluate\.model.*copy it to a file system"):
            load_config(changed(model=model))


def test_yaml_builds_no_objects(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("evaluate: !!python/object/apply:os.system ['touch hacked']")
    with pytest.raises(ConfigError, match="not valid YAML"):
        load_config(path)


def test_options_of_an_engine() -> None:
    def options(**given: Any) -> Any:
        return engine_options(
            load_config(changed(engine={"name": "scripted", **given})).evaluate.engine
        )

    assert options(seed=3).seed == 3
    with pytest.raises(ConfigError, match=r"evaluate\.engine\.sed: unknown option.*'seed'"):
        options(sed=3)
    with pytest.raises(ConfigError, match=r"evaluate\.engine\.seed"):
        options(seed="three")
    with pytest.raises(ConfigError, match=r"run\.replicas"):
        options(data_parallel_size=2)
    with pytest.raises(ConfigError, match=r"lora_local_path: .*set evaluate\.model\.adapter"):
        options(lora_local_path="adapter")
    with pytest.raises(ConfigError, match=r"unknown engine 'vlm': did you mean 'vllm'"):
        engine_options(load_config(changed(engine="vlm")).evaluate.engine)


def test_paths_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    ref = load_config(changed(model="model")).evaluate.model.ref(say=print)
    assert ref == ModelRef(path=str(tmp_path / "model"))
    for adapter in ("./tuned", {"path": "tuned"}):
        model = {"id": "org/model", "adapter": adapter}
        ref = load_config(changed(model=model)).evaluate.model.ref(say=print)
        assert ref.adapter == AdapterRef(path=str(tmp_path / "tuned"))
        assert ref.title == f"org/model + {tmp_path}/tuned"
    model = {"id": "org/model", "adapter": "org/tuned"}
    ref = load_config(changed(model=model)).evaluate.model.ref(say=print)
    assert ref.adapter == AdapterRef(id="org/tuned")


def test_flags_and_file_say_the_same() -> None:
    from_flags = config_from_flags(
        model="org/model",
        tasks=["arc_easy", "squad"],
        output="runs/x",
        task_options={"limit": 5, "num_fewshot": None},
        evaluate_options={"chat": True},
        run_options={"replicas": 2},
    )
    assert from_flags == load_config(
        changed(
            tasks=[{"task": "arc_easy", "limit": 5}, {"task": "squad", "limit": 5}],
            chat=True,
            replicas=2,
        )
    )


def test_what_nodes_will_have_that_are_to_come_has_to_be_said() -> None:
    content = copy.deepcopy(BASE)
    content["run"]["autoscaling"] = True
    with pytest.raises(ConfigError, match="autoscaling: give gpus_per_replica too"):
        load_config(content)
    content["run"]["gpus_per_replica"] = 1.0
    assert load_config(content).run.autoscaling
