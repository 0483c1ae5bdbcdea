"""What of a run is uploaded, under which name it goes, and what a client makes of its job."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from raveval import __version__, submission
from raveval.config import RunConfig, load_config
from raveval.errors import ConfigError, DataError, RavevalError, ResourceError, RunError
from raveval.submission import Environment, bundle, requirement_of, server
from raveval.submission.bundle import CONFIG_NAME, Bundle, make_bundle
from raveval.submission.server import ConnectionLost, Job, JobServer, Log
from raveval.tasks import load_task

ROW = '{"question": "What is six times seven?", "answers": ["42"]}\n'
TASK = {
    "protocol": "question_answering",
    "source": {"path": "rows.jsonl"},
    "prompt": "Question: {{ question }}\nAnswer:",
    "references": "answers",
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that a person submits from, with a task of two files."""
    folder = tmp_path / "home"
    (folder / "mine").mkdir(parents=True)
    (folder / "mine" / "rows.jsonl").write_text(ROW)
    (folder / "mine" / "sums.yaml").write_text(yaml.safe_dump(TASK))
    monkeypatch.chdir(folder)
    return folder


def run_of(
    *tasks: Any, model: Any = "/mnt/model", output: str = "/mnt/runs/a", **run: Any
) -> RunConfig:
    evaluate = {"model": model, "tasks": list(tasks) or ["arc_easy"]}
    return load_config({"evaluate": evaluate, "run": {"output": output, **run}})


def unpacked(packed: Bundle, folder: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """Lay a bundle out, go there, and return the run as a job would read it."""
    folder.mkdir()
    packed.write(folder)
    monkeypatch.chdir(folder)
    return load_config(CONFIG_NAME)


# What is uploaded.


def test_files_lie_as_they_do_here_and_mean_the_same(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = make_bundle(run_of("mine/sums.yaml", {"task": "squad", "path": "mine/rows.jsonl"}))
    assert set(packed.files) == {"mine/sums.yaml", "mine/rows.jsonl"}
    there = unpacked(packed, tmp_path / "job", monkeypatch)
    task = load_task(there.evaluate.tasks[0].task)
    assert task == load_task("mine/sums.yaml")
    assert Path(str(task.source.path)).read_text() == ROW
    assert there.evaluate.tasks[1].path == "mine/rows.jsonl"
    assert there.run == run_of().run


def test_files_from_elsewhere_come_along(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = tmp_path / "away"
    (away / "deep").mkdir(parents=True)
    (away / "pool.jsonl").write_text(ROW * 9)
    rubric = {f"score{n}_description": f"{n}" for n in range(1, 6)}
    (away / "rubric.yaml").write_text(yaml.safe_dump({"criteria": "good?", **rubric}))
    few = {**TASK, "source": {"path": str(home / "mine" / "rows.jsonl")}}
    few["fewshot"] = {"num": 2, "path": "../pool.jsonl"}
    (away / "deep" / "few.yaml").write_text(yaml.safe_dump(few))
    judged = {
        "protocol": "absolute_grading",
        "source": {"path": "../pool.jsonl"},
        "grading": {"instruction": "a", "response": "b", "rubric": "../rubric.yaml"},
        "reference_ratings": "3",
    }
    (away / "deep" / "judged.yaml").write_text(yaml.safe_dump(judged))
    packed = make_bundle(run_of("../away/deep/few.yaml", str(away / "deep" / "judged.yaml")))

    there = unpacked(packed, tmp_path / "job", monkeypatch)
    first, second = (load_task(entry.task) for entry in there.evaluate.tasks)
    assert (first.name, second.name) == ("few", "judged")
    assert Path(str(first.source.path)).read_text() == ROW
    assert Path(str(first.fewshot.path)).read_text() == ROW * 9
    assert second.grading is not None
    assert second.grading.rubric is not None
    assert "good?" in second.grading.rubric.criteria
    here = tmp_path / "job"
    assert all(path.resolve().is_relative_to(here) for path in here.rglob("*"))


def test_only_what_is_read_is_uploaded(home: Path) -> None:
    (home / "other.jsonl").write_text(ROW)
    few = {**TASK, "fewshot": {"num": 0, "path": "absent.jsonl"}}
    (home / "mine" / "sums.yaml").write_text(yaml.safe_dump(few))
    packed = make_bundle(run_of({"task": "mine/sums.yaml", "path": "other.jsonl"}))
    assert set(packed.files) == {"mine/sums.yaml", "other.jsonl"}
    with pytest.raises(DataError, match=r"fewshot\.path: absent\.jsonl: no such file"):
        make_bundle(run_of({"task": "mine/sums.yaml", "num_fewshot": 1}))
    both = make_bundle(run_of("mine/sums.yaml", {"task": "mine/sums.yaml", "name": "b"}))
    assert set(both.files) == {"mine/sums.yaml", "mine/rows.jsonl"}


def test_a_folder_is_uploaded_whole_but_for_what_is_hidden(home: Path) -> None:
    for name in ("a.jsonl", "b.jsonl", ".cache"):
        (home / "mine" / "venv" / name).parent.mkdir(exist_ok=True)
        (home / "mine" / "venv" / name).write_text(ROW)
    packed = make_bundle(run_of({"task": "squad", "path": "mine/venv"}))
    # Ray leaves out every folder that is called venv; that must not happen in silence.
    assert {Path(place).name for place in packed.files} == {"a.jsonl", "b.jsonl"}
    assert not any("venv" in place for place in packed.files)


def test_the_catalogue_and_the_hub_need_no_upload(home: Path) -> None:
    packed = make_bundle(run_of("arc_easy", "demo_choice", model="org/model", address="here:1"))
    assert packed.files == {}
    assert "address" not in packed.config["run"]
    assert any("run.address here:1 is left out" in remark for remark in packed.remarks)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"output": "runs/a"}, r"run\.output: runs/a is not uploaded"),
        ({"model": {"path": "model"}}, r"evaluate\.model\.path: model is not uploaded"),
        (
            {"model": {"id": "org/model", "adapter": {"path": "tuned"}}},
            r"evaluate\.model\.adapter\.path: tuned is not uploaded",
        ),
        ({"answers_from": "runs/b"}, r"run\.answers_from: runs/b is not uploaded"),
    ],
)
def test_what_only_this_machine_can_find_is_refused(
    home: Path, change: dict[str, Any], key: str
) -> None:
    with pytest.raises(ConfigError, match=key):
        make_bundle(run_of(**change))
    kept = make_bundle(run_of(**change), shared=[home])
    assert str(home) in str(kept.config)


def test_what_is_shared_stays_in_place(home: Path) -> None:
    packed = make_bundle(run_of("mine/sums.yaml", output="runs/a"), shared=[Path()])
    assert packed.files == {}
    assert packed.output == str(home / "runs" / "a")
    assert packed.config["evaluate"]["tasks"] == [{"task": str(home / "mine" / "sums.yaml")}]


def test_a_run_in_an_object_store_is_named_as_it_is(home: Path) -> None:
    url = "s3://bucket/runs/a"
    packed = make_bundle(run_of(output=url, answers_from="gs://other/b"))
    assert packed.output == packed.config["run"]["output"] == url
    assert packed.config["run"]["answers_from"] == "gs://other/b"
    assert packed.name.startswith("raveval-a-")
    assert requirement_of(run_of(output=url, answers_from="gs://other/b")) == (
        f"raveval[gcs,hub,s3,vllm]=={__version__}"
    )


def test_an_absolute_path_that_is_not_here_is_the_clusters(home: Path) -> None:
    packed = make_bundle(run_of({"task": "squad", "path": "/mnt/data/dev.json"}))
    assert packed.config["evaluate"]["tasks"][0]["path"] == "/mnt/data/dev.json"
    assert any("taken to be the cluster's" in remark for remark in packed.remarks)
    with pytest.raises(DataError, match="no such file"):
        make_bundle(run_of({"task": "squad", "path": "dev.json"}))


def test_more_than_a_job_may_bring_is_refused_with_the_largest_file(home: Path) -> None:
    with (home / "mine" / "rows.jsonl").open("wb") as file:
        file.truncate(bundle.MAX_BYTES + 1)
    with pytest.raises(DataError, match=r"100 MB together.*largest is .*rows\.jsonl.*--shared"):
        make_bundle(run_of("mine/sums.yaml"))


# Its name.


def test_the_same_run_has_the_same_name_and_another_one_another(home: Path) -> None:
    name = make_bundle(run_of("mine/sums.yaml")).name
    assert name.startswith("raveval-a-")
    assert make_bundle(run_of("mine/sums.yaml")).name == name
    other = make_bundle(run_of("mine/sums.yaml", replicas=2))
    assert other.name != name
    assert other.name.startswith(other.output_name)
    assert name.startswith(other.output_name)
    assert make_bundle(run_of("mine/sums.yaml", output="/mnt/b/a")).output_name != other.output_name
    (home / "mine" / "rows.jsonl").write_text(ROW.replace("seven", "eight"))
    assert make_bundle(run_of("mine/sums.yaml")).name != name


def test_a_name_is_fit_for_a_path_and_a_url() -> None:
    made = Bundle({}, {}, "/mnt/Größe 7, final (2)/Ünïcode run! of a model that has a long name")
    assert made.name.isascii()
    assert set(made.name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert len(made.name) < 70


# What the nodes have.


def test_requirements_follow_from_the_config(tmp_path: Path) -> None:
    wheel = tmp_path / "raveval-9-py3-none-any.whl"
    wheel.write_bytes(b"")
    config = load_config(
        {
            "evaluate": {
                "model": "org/model",
                "engine": "transformers",
                "judge": {"model": "/mnt/judge", "engine": "vllm"},
                "tasks": ["arc_easy"],
            },
            "run": {"output": "/mnt/a"},
        }
    )
    asked = Environment(["raveval", str(wheel), f"{wheel}[hub]", "six==1.17.0"], {"HF_HOME": "/h"})
    wheels, settings = submission._runtime_environment(asked, config)
    place = "${RAY_RUNTIME_ENV_CREATE_WORKING_DIR}/raveval-wheels/raveval-9-py3-none-any.whl"
    assert settings["pip"] == [
        f"raveval[hub,transformers,vllm]=={__version__}",
        f"{place}[hub,transformers,vllm]",
        f"{place}[hub]",
        "six==1.17.0",
    ]
    assert settings["env_vars"] == {"HF_HOME": "/h"}
    assert wheels == [wheel, wheel]
    assert submission._runtime_environment(Environment(), config) == ([], {})


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (Environment(["dist/absent.whl"]), "no such wheel"),
        (Environment(variables={"HF_TOKEN": "hf_x"}), "looks like a secret"),
        (Environment(variables={"MY_API_KEY": "x"}), "looks like a secret"),
    ],
)
def test_an_environment_that_cannot_be_is_refused(environment: Environment, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        submission._runtime_environment(environment, run_of())


def test_an_engine_is_checked_before_anything_is_sent(home: Path) -> None:
    content = run_of().model_dump(mode="json", exclude_none=True)
    content["evaluate"]["engine"] = {"name": "vllm", "options": {"dtypo": 1}}
    with pytest.raises(ConfigError, match=r"evaluate\.engine\.dtypo: unknown option"):
        submission.start(load_config(content), address="http://127.0.0.1:9", say=print)


# The job server.


@pytest.mark.parametrize("address", ["ray://head:10001", "head:6379", "http://", "auto"])
def test_an_address_that_is_no_job_server_is_refused(address: str) -> None:
    with pytest.raises(ResourceError, match=r"not the URL of a job server"):
        JobServer(address)


def test_where_nothing_answers_is_said_at_once() -> None:
    with pytest.raises(ResourceError, match="nothing answers there"):
        JobServer("http://127.0.0.1:9")


def test_an_address_is_where_rays_own_variables_say(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    assert server._address(None) == server.DEFAULT_ADDRESS
    monkeypatch.setenv("RAY_ADDRESS", "http://b:8265")
    assert server._address(None) == "http://b:8265"
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "https://a/")
    assert server._address(None) == "https://a"
    assert server._address("http://c:1") == "http://c:1"
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "head:6379")
    assert server._address(None) == "http://b:8265"


def test_a_log_read_again_from_its_beginning_is_shown_once() -> None:
    shown = list[str]()
    log = Log(shown.append)
    for reading in (("one\ntw",), ("on", "e\ntwo\nthr"), ("one\n", "two\nthree\nfour")):
        log.begin()
        for text in reading:
            log.add(text)
    assert shown == ["one", "two", "three"]
    log.end()
    log.end()
    assert shown == ["one", "two", "three", "four"]


# What a client makes of its job.


class Scripted:
    """Stands where the server of a cluster would: each following ends as the script says."""

    address = "http://head:8265"

    def __init__(self, script: Sequence[str | Job]) -> None:
        self._script: Iterator[str | Job] = iter(script)

    def follow(self, _: str, log: Log) -> Job:
        step = next(self._script)
        if isinstance(step, Job):
            log.end()
            return step
        if step:
            log.begin()
            log.add(step)
        raise ConnectionLost("reset by peer")


def job(status: str, exit_code: int | None = None, message: str = "") -> Job:
    return Job("raveval-a-1", status, exit_code, message, {})


def followed(*script: str | Job, pauses: Sequence[float] = (0, 0)) -> tuple[int, list[str]]:
    """Return the exit code of a client, and what it showed and said."""
    heard = list[str]()
    there: Any = Scripted(script)
    code = submission.follow(
        there, job("running"), show=heard.append, say=heard.append, pauses=pauses
    )
    return code, heard


@pytest.mark.parametrize("code", [0, 1, 2, 3, 130])
def test_the_exit_code_of_a_run_is_the_clients(code: int) -> None:
    ended = job("failed" if code else "succeeded", code, "Job entrypoint command failed …")
    assert followed(ended) == (code, [])


@pytest.mark.parametrize(
    ("ended", "code", "said"),
    [
        (job("stopped"), 130, "was stopped"),
        (job("failed", 137, "died with 137\nand its log again"), 1, "failed: died with 137\nWhat"),
        (job("failed", None, "runtime_env setup failed:\npip"), 1, "setup failed:\npip"),
    ],
)
def test_a_job_that_did_not_end_by_itself_is_told(ended: Job, code: int, said: str) -> None:
    found, heard = followed(ended)
    assert found == code
    assert said in heard[-1]
    assert "submit the same again to go on" in heard[-1]


def test_a_lost_connection_is_taken_up_again() -> None:
    code, heard = followed("one\n", "", "one\ntwo\n", "", job("succeeded", 0))
    assert code == 0
    assert [line for line in heard if "does not answer" not in line] == ["one", "two"]
    assert len(heard) == 6


def test_a_server_that_stays_away_is_given_up_and_the_job_is_not() -> None:
    with pytest.raises(RunError, match="goes on without this client") as raised:
        followed("one\n", "", "")
    assert isinstance(raised.value, RavevalError)
    assert raised.value.exit_code == 1
