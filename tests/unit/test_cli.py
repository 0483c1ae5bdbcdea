"""The command line: flags become the config they stand for, and failures become words and codes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raveval import __version__, config, report, tasks
from raveval.cli import app
from raveval.cli.app import failures_in_words
from raveval.cli.flags import parse_arguments, read_columns, read_flags
from raveval.config import AdapterConfig, load_config
from raveval.errors import ConfigError, RunError
from raveval.store import Lost, RunDirectory
from raveval.types import Coverage, Estimate, Results, TaskResults, Usage
from tests.run_directories import choice, write_run

BASE = {"model": "org/model", "tasks": ["arc_easy"], "output_path": "out"}


def invoke(*arguments: object):
    """Run the command line in this process, as typer's own runner does."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def raveval(*arguments: object, **options) -> subprocess.CompletedProcess[str]:
    """Run the command line as users do, in a process of its own."""
    return subprocess.run(command(*arguments), capture_output=True, text=True, **options)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "raveval", *map(str, arguments)]


class TestFlags:
    def test_become_the_config_they_stand_for(self, tmp_path):
        flags = read_flags(
            None,
            {
                "model": "org/model",
                "tasks": ["arc_easy,squad", "piqa"],
                "num_fewshot": 0,
                "limit": 100,
                "output_path": "runs/x",
                "engine": "transformers",
                "model_args": "revision=0123,dtype=float32,max_model_len=512,enforce_eager=True",
                "engine_args": "gpu_memory_utilization=0.5,quantization=None",
                "apply_chat_template": True,
                "system_instruction": "Be brief.",
                "seed": 0,
                "on_overlong": "count",
                "replicas": 2,
                "cpus_per_replica": 1.5,
                "gpus_per_replica": 0.0,
                "shard_size": 7,
                "address": "auto",
            },
        )
        shared = {"num_fewshot": 0, "limit": 100}
        assert flags == load_config(
            {
                "evaluate": {
                    "model": {
                        "id": "org/model",
                        "revision": "0123",
                        "dtype": "float32",
                        "max_model_len": 512,
                    },
                    "engine": {
                        "name": "transformers",
                        "enforce_eager": True,
                        "gpu_memory_utilization": 0.5,
                        "quantization": None,
                    },
                    "tasks": [{"task": name, **shared} for name in ("arc_easy", "squad", "piqa")],
                    "chat": True,
                    "system_prompt": "Be brief.",
                    "seed": 0,
                    "on_overlong": "count",
                },
                "run": {
                    "output": "runs/x",
                    "replicas": 2,
                    "cpus_per_replica": 1.5,
                    "gpus_per_replica": 0.0,
                    "shard_size": 7,
                    "address": "auto",
                },
            }
        )

    def test_what_is_not_given_keeps_the_defaults(self):
        given = read_flags(None, {**BASE, "seed": None, "apply_chat_template": False})
        assert given.evaluate.seed == 1234
        assert given.evaluate.engine.name == "vllm"
        assert not given.evaluate.chat
        assert given.run.shard_size == config.RunSection(output="x").shard_size

    def test_name_the_judge_and_what_it_compares_with(self):
        given = read_flags(
            None,
            {
                **BASE,
                "judge": "org/judge",
                "judge_args": "revision=7,base_url=http://host:1/v1,concurrency=3",
                "judge_engine": "http",
                "baseline": "runs/old",
                "answers_from": "runs/mine",
            },
        )
        assert (
            given.evaluate
            == load_config(
                {
                    "evaluate": {
                        "model": "org/model",
                        "tasks": ["arc_easy"],
                        "judge": {
                            "model": {"id": "org/judge", "revision": "7"},
                            "engine": {
                                "name": "http",
                                "base_url": "http://host:1/v1",
                                "concurrency": 3,
                            },
                        },
                        "baseline": "runs/old",
                    },
                    "run": {"output": "out"},
                }
            ).evaluate
        )
        assert given.run.answers_from == "runs/mine"
        with pytest.raises(ConfigError, match=r"--judge-engine: goes with --judge"):
            read_flags(None, {**BASE, "judge_engine": "http"})

    def test_data_of_a_single_task(self):
        given = read_flags(None, {**BASE, "path": "a.jsonl", "fewshot_path": "b.jsonl"})
        assert given.evaluate.tasks[0].path == "a.jsonl"
        assert given.evaluate.tasks[0].fewshot_path == "b.jsonl"

    @pytest.mark.parametrize(
        ("flags", "engine"),
        [
            ({"model": "hf", "model_args": "pretrained=org/m"}, "transformers"),
            ({"model": "vllm", "model_args": "pretrained=org/m"}, "vllm"),
            ({"model": None, "model_args": "pretrained=org/m"}, "vllm"),
            ({"model": "org/m"}, "vllm"),
        ],
    )
    def test_the_model_may_be_spelled_as_other_tools_do(self, flags, engine):
        given = read_flags(None, {**BASE, **flags})
        assert (given.evaluate.model.id, given.evaluate.engine.name) == ("org/m", engine)

    @pytest.mark.parametrize(
        ("flags", "message"),
        [
            ({"model": None}, "--model is missing"),
            ({"tasks": []}, "--tasks is missing"),
            ({"tasks": [" , "]}, "--tasks is missing"),
            ({"output_path": None}, "--output-path is missing"),
            ({"model": None, "tasks": []}, "nothing to evaluate"),
            ({"batch_size": "auto"}, "batches form continuously"),
            ({"model_args": "data_parallel_size=2"}, "--replicas"),
            ({"engine_args": "data_parallel_size=2"}, "--replicas"),
            ({"model_args": "add_bos_token=True"}, "exactly one BOS"),
            ({"model_args": "a=1", "engine_args": "a=2"}, "both --model-args and --engine-args"),
            ({"model": "vllm"}, "that is an engine"),
            ({"model_args": "pretrained=org/other"}, "keep one"),
            ({"model": "hf", "engine": "vllm", "model_args": "pretrained=a"}, "two engines"),
            ({"tasks": ["a,b"], "path": "x.jsonl"}, "--path: x.jsonl can only be the data of one"),
            ({"tasks": ["a,b"], "fewshot_path": "x.jsonl"}, "--fewshot-path"),
            ({"limit": 0}, "--limit: input should be greater than or equal to 1 (given 0)"),
            ({"num_fewshot": -1}, "--num-fewshot: input"),
            ({"replicas": 0}, "--replicas: input"),
            ({"output_path": "s3://"}, "--output-path: "),
            ({"seed": -1}, "--seed: input"),
            ({"model_args": "dtype=int3"}, "--model-args dtype: input should be 'auto'"),
            ({"judge": "a", "judge_args": "max_model_len=1"}, "--judge-args max_model_len: input"),
        ],
    )
    def test_are_refused_by_name(self, flags, message):
        with pytest.raises(ConfigError) as refusal:
            read_flags(None, {**BASE, **flags})
        assert message in str(refusal.value)
        assert "flags:" not in str(refusal.value)

    @pytest.mark.parametrize("key", ["adapter", "lora_local_path", "peft"])
    def test_name_an_adapter_in_any_tools_words(self, key):
        model = read_flags(None, {**BASE, "model_args": f"{key}=org/007"}).evaluate.model
        assert model.adapter == AdapterConfig(id="org/007")

    @pytest.mark.parametrize("text", ["dtype", "=1", "a=1,a=2", "a={b: 1}", "a=[]"])
    def test_arguments_that_are_none(self, text):
        with pytest.raises(ConfigError, match="--engine-args"):
            parse_arguments(text, flag="--engine-args")

    def test_arguments_are_typed(self):
        text = "a=1, b=0.5,c=true,d=None,e=null,f=x/y,g=,revision=123,"
        assert parse_arguments(text, flag="--model-args") == {
            "a": 1,
            "b": 0.5,
            "c": True,
            "d": None,
            "e": None,
            "f": "x/y",
            "g": "",
            "revision": "123",
        }

    @pytest.mark.parametrize("pairs", [["a"], ["=b"], ["a="], ["a=b", "a=c"]])
    def test_maps_that_are_none(self, pairs):
        with pytest.raises(ConfigError, match="--map"):
            read_columns(pairs)


class TestConfigFile:
    @pytest.fixture
    def file(self, tmp_path):
        path = tmp_path / "run.yaml"
        path.write_text("evaluate: {model: {id: org/m}, tasks: [arc_easy]}\nrun: {output: a}\n")
        return path

    def test_is_read_as_it_stands(self, file):
        assert read_flags(file, {}) == load_config(file)

    def test_flags_that_move_no_number_come_on_top(self, file):
        given = read_flags(file, {"output_path": "b", "replicas": 3, "shard_size": 5})
        assert given.evaluate == load_config(file).evaluate
        assert given.run == config.RunSection(output="b", replicas=3, shard_size=5)

    def test_may_leave_the_output_to_the_flag(self, file):
        file.write_text("evaluate: {model: {id: org/m}, tasks: [arc_easy]}\n")
        assert read_flags(file, {"output_path": "b"}).run.output == "b"

    @pytest.mark.parametrize("flag", ["model", "tasks", "limit", "num_fewshot", "seed", "engine"])
    def test_flags_that_move_numbers_are_refused(self, file, flag):
        with pytest.raises(ConfigError, match=f"--{flag.replace('_', '-')}.* evaluate"):
            read_flags(file, {flag: 0})

    def test_faults_name_the_file(self, file):
        file.write_text("evaluate: {}\nrun: 3\n")
        with pytest.raises(ConfigError, match=str(file)):
            read_flags(file, {"output_path": "b"})


class TestFailures:
    @pytest.mark.parametrize(
        ("failure", "code", "message"),
        [
            (ConfigError("not so"), 2, "error: not so"),
            (RunError("it broke"), 1, "error: it broke"),
            (KeyboardInterrupt(), 130, "run the same command again"),
        ],
    )
    def test_become_a_message_and_a_code(self, failure, code, message, capsys):
        with pytest.raises(SystemExit) as stop, failures_in_words():
            raise failure
        assert stop.value.code == code
        out, err = capsys.readouterr()
        assert message in err
        assert "Traceback" not in err
        assert not out

    def test_a_bug_is_called_one(self, capsys):
        with pytest.raises(SystemExit) as stop, failures_in_words():
            raise ZeroDivisionError("1/0")
        assert stop.value.code == 1
        error = capsys.readouterr().err
        assert "ZeroDivisionError: 1/0" in error
        assert error.splitlines()[-1].startswith("this is a bug in raveval")

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["run"], "nothing to evaluate"),
            (["plan", "-M", "org/m", "-t", "arc_easy", "-o", "x", "--batch_size", "8"], "batches"),
            (["run", "nowhere.yaml"], "nowhere.yaml: no such file"),
            (["run", "--limit", "0.5"], "limit"),
            (["run", "--num-fewshots", "5"], "--num-fewshot"),
            (["status", "nowhere"], "no run of raveval here"),
            (["score", "nowhere"], "no run of raveval here"),
            (["report", "nowhere"], "no run of raveval here"),
            (["report", "nowhere", "--format", "pdf"], "'pdf' is not one of 'table'"),
            (["tasks", "arc_esay"], "did you mean 'arc_easy'"),
            (["measure", "sqad", "x.jsonl"], "did you mean 'squad'"),
            (["measure", "squad", "nowhere.jsonl"], "nowhere.jsonl"),
            (["measure", "squad", "x.jsonl", "--map", "prediction"], "column=field"),
            (["frobnicate"], "frobnicate"),
        ],
    )
    def test_of_every_command_are_refusals_in_words(self, arguments, message):
        result = invoke(*arguments)
        assert result.exit_code == 2, result.output
        assert message in result.stderr
        assert "Traceback" not in result.output
        assert "Value error" not in result.stderr
        assert not result.stdout

    def test_a_reader_that_leaves_is_no_failure_of_ours(self, results_directory):
        shell = f"{' '.join(map(_quoted, command('report', results_directory)))} | head -c 1"
        found = subprocess.run(["bash", "-c", shell], capture_output=True, text=True)
        assert found.stderr == ""


def _quoted(word: str) -> str:
    return f"'{word}'"


@pytest.fixture
def results_directory(tmp_path):
    metrics = {"accuracy": Estimate(0.54, "fraction", 98, low=0.443, high=0.634)}
    task = TaskResults(
        metrics, Coverage({"ok": 98, "overlong": 2}), Usage(1, 2, 3.0), "multiple_choice", 5, 1
    )
    results = Results("org/model", {"arc_easy": task}, {"arc_easy": {"reply": "a"}}, {"seed": 1})
    (tmp_path / "results.json").write_text(report.to_json(results))
    return tmp_path


class TestForeignText:
    """What a run directory of somebody else says is shown, and a terminal obeys none of it."""

    HOSTILE = "m\x1b]0;owned\x07\u202e"

    def test_in_the_status_of_a_run(self, tmp_path):
        path = Path(write_run(tmp_path / "run", {"t": [choice("a", True)]}))
        manifest = json.loads((path / "run.json").read_text())
        manifest["model"] = self.HOSTILE
        settings = {"sampling": {"max_output_tokens": 1, "stop": []}}
        manifest["tasks"]["t"] |= {"settings": settings, "reply_fingerprint": "r"}
        (path / "run.json").write_text(json.dumps(manifest))
        shown = invoke("status", path)
        assert shown.exit_code == 0, shown.stderr
        assert r"run: m\x1b]0;owned\x07\u202e" in shown.stdout

    def test_in_a_plan(self, capitals, tmp_path):
        model = tmp_path / self.HOSTILE
        shutil.copytree(capitals.parent, model)
        flags = scripted(capitals, tmp_path / "out", "--limit", 19)
        flags[flags.index("-M") + 1] = model
        shown = invoke("plan", *flags)
        assert shown.exit_code == 0, shown.stderr
        assert r"m\x1b]0;owned\x07\u202e (engine scripted" in shown.stdout

    def test_in_the_status_of_a_sweep(self, tmp_path):
        entry = {"name": "step_1", "step": 1, "place": "p", "state": "failed"}
        entry["message"] = self.HOSTILE
        content = {"checkpoints": [entry], "from_previous": [], "from_best": []}
        (tmp_path / "sweep.json").write_text(json.dumps(content))
        shown = invoke("status", tmp_path)
        assert shown.exit_code == 0, shown.stderr
        assert r"m\x1b]0;owned\x07\u202e" in shown.stdout


class TestReport:
    def test_prints_the_table(self, results_directory):
        result = invoke("report", results_directory)
        assert result.exit_code == 0
        assert "| 54.0 % | [44.3, 63.4]" in result.stdout

    @pytest.mark.parametrize(
        ("form", "render"),
        [("json", report.to_json), ("markdown", report.to_markdown), ("csv", report.to_csv)],
    )
    def test_prints_every_format(self, results_directory, form, render):
        stored = report.from_json((results_directory / "results.json").read_text())
        result = invoke("report", results_directory, "--format", form)
        assert result.stdout == render(stored)

    def test_an_edited_file_is_refused(self, results_directory):
        (results_directory / "results.json").write_text('{"model": 3}')
        result = invoke("report", results_directory)
        assert result.exit_code == 2
        assert "model: expected str, found 3" in result.stderr

    def test_an_ascii_terminal_gets_all_numbers(self, results_directory):
        ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
        found = raveval("report", results_directory, env=ascii_only)
        assert found.returncode == 0, found.stderr
        assert "54.0 %" in found.stdout


class TestTop:
    def test_version(self):
        found = raveval("--version")
        assert (found.returncode, found.stdout) == (0, f"raveval {__version__}\n")

    def test_help_imports_nothing_heavy(self):
        heavy = "{'ray', 'torch', 'vllm', 'transformers', 'pyarrow', 'numpy', 'pydantic', 'scipy'}"
        code = f"""
import sys
from raveval.cli import app
try:
    app(["--help"])
except SystemExit:
    found = {heavy} & set(sys.modules)
    sys.exit(f"imported {{found}}" if found else 0)
"""
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert found.returncode == 0, found.stderr
        for name in ("run", "plan", "status", "score", "report", "tasks", "measure", "demo-model"):
            assert f" {name} " in found.stdout

    def test_without_arguments_it_helps(self):
        assert "Commands" in invoke().output

    @pytest.mark.parametrize(
        "name",
        ["run", "plan", "status", "score", "report", "tasks", "measure", "demo-model"],
    )
    def test_every_command_has_help(self, name):
        result = invoke(name, "--help")
        assert result.exit_code == 0
        assert name in result.stdout


class TestTasks:
    def test_lists_the_catalogue(self):
        result = invoke("tasks")
        assert result.exit_code == 0
        for name in tasks.names():
            assert f"| {name} " in result.stdout

    def test_shows_a_card(self):
        result = invoke("tasks", "arc_easy")
        assert result.exit_code == 0
        card = tasks.load_task("arc_easy").card
        for fact in (card.description, card.license, "multiple_choice"):
            assert fact in result.stdout


class TestMeasure:
    @pytest.fixture
    def predictions(self, tmp_path):
        path = tmp_path / "predictions.jsonl"
        rows = [
            {"output": {"text": "The Eiffel Tower."}, "references": ["Eiffel tower", "tower"]},
            {"output": {"text": "London"}, "references": ["Paris"]},
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    def test_prints_a_table(self, predictions):
        result = invoke("measure", "squad", predictions, "--map", "prediction=output.text")
        assert result.exit_code == 0, result.stderr
        assert "exact_match" in result.stdout
        assert "50.0 %" in result.stdout
        assert "2 rows" in result.stdout

    def test_prints_json(self, predictions):
        again = predictions.with_name("again.jsonl")
        again.write_bytes(predictions.read_bytes())
        arguments = ("squad", predictions, again, "--map", "prediction=output.text")
        result = invoke("measure", *arguments, "--json")
        content = json.loads(result.stdout)
        assert content["exact_match"]["value"] == 0.5
        assert content["n_rows"] == 4

    def test_reads_the_official_pair(self, tmp_path):
        question = {"id": "a", "question": "?", "answers": [{"text": "Paris"}]}
        other = {"id": "b", "question": "?", "answers": [{"text": "London"}]}
        paragraph = {"context": "", "qas": [question, other]}
        references = tmp_path / "dev.json"
        references.write_text(
            json.dumps({"version": "1.1", "data": [{"title": "", "paragraphs": [paragraph]}]})
        )
        predicted = tmp_path / "predictions.json"
        predicted.write_text(json.dumps({"a": "paris"}))
        pair = ("--references", references, "--predictions", predicted)
        result = invoke("measure", "squad", *pair, "--json")
        assert result.exit_code == 0, result.stderr
        assert json.loads(result.stdout)["exact_match"]["value"] == 0.5


TASK = """
protocol: multiple_choice
card: {description: Capitals.}
source: {path: capitals.jsonl}
prompt: "Question: What is the capital of {{ country }}?\\nAnswer:"
choices: options
gold: right
"""


@pytest.fixture(scope="module")
def capitals(tmp_path_factory):
    """A task file with 20 rows of which one is too long for the scripted engine."""
    folder = tmp_path_factory.mktemp("capitals")
    countries = [f"Country {i}" for i in range(19)] + ["Long " * 5000]
    rows = [{"country": name, "options": ["Lyon", "Paris"], "right": 1} for name in countries]
    (folder / "capitals.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "capitals.yaml").write_text(TASK)
    return folder / "capitals.yaml"


def scripted(task: Path, output: Path, *more: object) -> list[str]:
    flags = ("-M", task.parent, "-t", task, "-o", output, "--engine", "scripted")
    return [str(flag) for flag in (*flags, "--cpus_per_replica", 1, *more)]


class TestPlan:
    def test_says_what_would_run_and_writes_nothing(self, capitals, tmp_path):
        result = invoke("plan", *scripted(capitals, tmp_path / "out", "--limit", 19))
        assert result.exit_code == 0, result.stderr
        assert "capitals: 19 examples, multiple_choice, 0-shot" in result.stdout
        assert not (tmp_path / "out").exists()

    def test_refuses_what_does_not_fit(self, capitals, tmp_path):
        result = invoke("plan", *scripted(capitals, tmp_path / "out"))
        assert result.exit_code == 2
        assert "max_model_len" in result.stderr

    def test_unknown_options_of_an_engine(self, capitals, tmp_path):
        flags = scripted(capitals, tmp_path / "out", "-a", "latency_second=1")
        result = invoke("plan", *flags)
        assert result.exit_code == 2
        assert "latency_seconds" in result.stderr


@pytest.fixture(scope="module")
def finished(capitals, tmp_path_factory):
    """The directory and the process of a run of which one example is missing."""
    output = tmp_path_factory.mktemp("run") / "out"
    flags = scripted(capitals, output, "--on-overlong", "count", "--shard_size", 8)
    return output, raveval("run", *flags, timeout=200)


@pytest.mark.ray
class TestRun:
    def test_exits_with_3_where_examples_are_missing(self, finished):
        _, found = finished
        assert found.returncode == 3, found.stderr
        assert "Traceback" not in found.stderr

    def test_results_go_to_stdout_and_all_else_to_stderr(self, finished):
        output, found = finished
        lines = found.stdout.splitlines()
        assert lines[0].startswith("raveval ")
        assert "| capitals " in found.stdout
        assert "capitals: 19 of 20 scored; 1 overlong" in found.stdout
        assert lines[-2:] == [
            f"results: {output / 'results.json'}",
            f"report:  {output / 'report.html'}",
        ]
        assert "20/20 examples" in found.stderr
        assert "examples," not in found.stdout

    def test_the_files_are_there(self, finished):
        output, _ = finished
        results = report.from_json((output / "results.json").read_text())
        assert results.tasks["capitals"].coverage.by_status == {"ok": 19, "overlong": 1}
        assert (output / "report.md").read_text() == report.to_markdown(results)
        assert (output / "report.html").read_text() == report.to_html(results)

    def test_status_report_and_score_read_them(self, finished):
        output, _ = finished
        status = invoke("status", output)
        assert status.exit_code == 0
        assert "capitals: 3 of 3 shards done, 20 examples (19 ok, 1 overlong)" in status.stdout
        assert "complete" in status.stdout
        before = (output / "results.json").read_text()
        scored = invoke("score", output)
        assert scored.exit_code == 3
        assert "3 shards scored again" in scored.stderr
        assert (output / "results.json").read_text() == before
        shown = invoke("report", output)
        assert shown.exit_code == 0
        assert shown.stdout in scored.stdout

    def test_status_says_whether_a_driver_is_at_work(self, finished, tmp_path):
        output = tmp_path / "out"
        shutil.copytree(finished[0], output)
        (output / "states" / "capitals" / "00001.json").unlink()
        dead = invoke("status", output).stdout
        assert "capitals: 2 of 3 shards done" in dead
        assert "nothing is at work" in dead
        with RunDirectory(output).held():
            assert f"at work: process {os.getpid()} on " in invoke("status", output).stdout

    def test_status_says_how_replicas_were_lost(self, finished, tmp_path):
        output = tmp_path / "out"
        shutil.copytree(finished[0], output)
        directory = RunDirectory(output)
        for n in range(4):
            lost = Lost(f"n{n}", 7, "answer", n != 3, "no \x1b[31mmemory\nat all", shards=("t 0",))
            directory.report_lost(f"s-r-{n:03d}", lost)
        shown = invoke("status", output).stdout
        assert "  replicas: 3 died, 1 could not start; the last of them:\n" in shown
        assert (
            r"the replica on n1 (process 7) died: no \x1b[31mmemory at all; at work on t 0" in shown
        )
        assert r"the replica on n3 (process 7) cannot start: no \x1b[31mmemory at all" in shown
        assert "on n0" not in shown
        assert sum(line.startswith("    20") for line in shown.splitlines()) == 3

    def test_nothing_empty_is_left(self, finished):
        output, _ = finished
        assert [
            each for each in output.rglob("*") if each.is_dir() and not any(each.iterdir())
        ] == []

    def test_a_complete_run_exits_with_0(self, capitals, tmp_path):
        config_file = tmp_path / "run.yaml"
        config_file.write_text(
            json.dumps(
                {
                    "evaluate": {
                        "model": {"path": str(capitals.parent)},
                        "engine": "scripted",
                        "tasks": [{"task": str(capitals), "limit": 5}],
                    }
                }
            )
        )
        found = raveval("run", config_file, "-o", tmp_path / "out", timeout=200)
        assert found.returncode == 0, found.stderr

    @pytest.mark.parametrize(
        ("sign", "begun"), [(signal.SIGINT, "run.json"), (signal.SIGTERM, "workers/*.json")]
    )
    def test_an_interrupted_run_says_how_to_go_on(self, capitals, tmp_path, sign, begun):
        flags = scripted(capitals, tmp_path / "out", "--limit", 19, "--shard-size", 1)
        slow = command("run", *flags, "--engine-args", "latency_seconds=20")
        with subprocess.Popen(slow, stderr=subprocess.PIPE, text=True) as process:
            waited = time.monotonic() + 100
            while not list((tmp_path / "out").glob(begun)) and time.monotonic() < waited:
                assert process.poll() is None
                time.sleep(0.1)
            process.send_signal(sign)
            _, error = process.communicate(timeout=100)
        assert process.returncode == 130, error
        assert error.splitlines()[-1] == (
            "interrupted; run the same command again to go on where it stopped"
        )
        assert "SIGTERM" not in error
        status = invoke("status", tmp_path / "out")
        assert "not complete" in status.stdout


def test_shots_are_for_the_tasks_that_know_them():
    flags = {"model": "x/y", "tasks": ["demo_choice,demo_text"], "output_path": "o"}
    config = read_flags(None, {**flags, "num_fewshot": 3})
    assert [entry.num_fewshot for entry in config.evaluate.tasks] == [3, None]
    config = read_flags(None, {**flags, "tasks": ["demo_text"], "num_fewshot": 3})
    assert [entry.num_fewshot for entry in config.evaluate.tasks] == [3]  # the plan refuses it
