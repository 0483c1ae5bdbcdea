"""Writing lm-eval's files: their layout, numbers equal to the report's, and the way back."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow as pa
import pytest
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from typer.testing import CliRunner

import raveval
from raveval.cli import app
from raveval.errors import DataError
from raveval.lm_eval import conventions, results_file, terms
from raveval.lm_eval.exporting import Exported, export_run
from raveval.lm_eval.finished import open_finished
from raveval.lm_eval.importing import import_runs
from tests.finished_runs import finish

Number = float | Literal["N/A"]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Response = Annotated[list[str], Field(min_length=2, max_length=2)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Count(Strict):
    original: int | None
    effective: int


class Metric(Strict):
    metric: str
    aggregation: str
    higher_is_better: bool | None


class TaskConfig(Strict):
    """The keys of a task's config that lm-eval's own loggers read, and those beside them."""

    task: str
    group: str | None = None
    dataset_path: str | None
    output_type: str
    target_delimiter: str
    metric_list: list[Metric]
    num_fewshot: int
    repeats: int
    generation_kwargs: dict[str, Any] = {}
    metadata: dict[str, Any]


class ResultsFile(BaseModel):
    """What lm-eval 0.4.13 declares of a results file (its `EvalResults`), derived from it."""

    results: dict[str, dict[str, Number | str]]
    groups: dict[str, dict[str, Number | str]] = {}
    group_subtasks: dict[str, list[str]]
    configs: dict[str, TaskConfig]
    versions: dict[str, str | float | None]
    n_shot: dict[str, int] = Field(alias="n-shot")
    higher_is_better: dict[str, dict[str, bool | None]]
    n_samples: dict[str, Count] = Field(alias="n-samples")
    config: dict[str, Any]
    git_hash: str | None
    date: float
    task_hashes: dict[str, Sha256]
    model_source: str
    model_name: str
    model_name_sanitized: str
    system_instruction: str | None
    fewshot_as_multiturn: bool | None
    chat_template: str | None
    total_evaluation_time_seconds: str


class Sample(BaseModel):
    """What it declares of a line of a samples file (its `SampleResult`)."""

    doc_id: Annotated[int, Field(strict=True, ge=0)]
    doc: dict[str, Any]
    target: Annotated[str, Field(strict=True)]
    arguments: dict[str, dict[str, str | dict[str, Any]]]
    resps: list[list[str]] | list[list[Response]]
    filtered_resps: list[str] | list[Response]
    filter: str
    metrics: list[str]
    doc_hash: Sha256
    prompt_hash: Sha256
    target_hash: Sha256


ROWS = [
    {"question": f"How many are {n}?", "options": ["one", "two", "both of them"], "right": n % 3}
    for n in range(12)
]
CLOZE = [
    {"context": f"The number {n} is an even", "continuation": "number!"[: 3 + n % 4]}
    for n in range(10)
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of every protocol, of which one example is too long."""
    folder = tmp_path_factory.mktemp("run")
    rows = [*ROWS, {**ROWS[0], "question": "word " * 5000}]
    for name, each in (("choice", rows), ("cloze", CLOZE)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in each))
    (folder / "choice.yaml").write_text(
        "protocol: multiple_choice\nsource: {path: choice.jsonl}\n"
        'prompt: "Question: {{ question }}\\nAnswer:"\nchoices: options\ngold: right\n'
        "scoring: per_char\n"
    )
    (folder / "cloze.yaml").write_text(
        "protocol: language_modelling\nsource: {path: cloze.jsonl}\nmetrics: [perplexity, greedy]\n"
        'prompt: "{{ context }}"\ncontinuation: "{{ continuation }}"\n'
    )
    mine = [str(folder / "choice.yaml"), str(folder / "cloze.yaml")]
    demo = ["demo_choice", "demo_qa", "demo_text", "demo_grading"]
    script = "tests.finished_runs:with_white_space"
    finish(folder / "run", [*mine, *demo], script=script, on_overlong="count")
    return folder / "run"


@pytest.fixture(scope="module")
def exported(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return export_run(run, tmp_path_factory.mktemp("out"), log_samples=True)


@pytest.fixture(scope="module")
def content(exported: Exported) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(exported.results.read_text())
    return loaded


def samples(exported: Exported, task: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in exported.samples[task].read_text().splitlines()]


class TestResultsFile:
    def test_has_lm_evals_layout(self, content):
        file = ResultsFile.model_validate(content)
        keys = set(file.results)
        sections = (file.configs, file.versions, file.n_shot, file.higher_is_better, file.n_samples)
        assert all(set(section) == keys for section in sections)
        for metrics in file.results.values():
            numbers = set(metrics) - {"alias", "sample_len"}
            for key in numbers:
                assert key.endswith(",none")
                if "_stderr" not in key:
                    assert key.replace(",", "_stderr,") in numbers

    def test_stands_where_lm_eval_puts_it(self, exported, content):
        assert exported.results.name == "results_2026-07-01T09-31-30.000000.json"
        assert exported.results.parent.name == "org__scripted" == content["model_name_sanitized"]
        names = {path.name for path in exported.samples.values()}
        assert "samples_demo_qa_2026-07-01T09-31-30.000000.jsonl" in names
        assert (
            content["config"]["model_args"]
            == "pretrained=org/scripted,revision=step1000,dtype=auto"
        )
        assert content["total_evaluation_time_seconds"] == "90.0"
        assert content["n-shot"]["demo_qa"] == 3

    @pytest.mark.parametrize(("engine", "key"), [("vllm", "lora_local_path"), ("hf", "peft")])
    def test_names_an_adapter_as_lm_evals_engines_do(self, run, engine, key):
        finished = open_finished(run)
        finished.manifest["config"]["evaluate"]["model"]["adapter"] = {"path": "/tuned"}
        results = replace(finished.results, model="org/scripted + /tuned")
        found = results_file._model_arguments(replace(finished, results=results), engine)
        assert found["pretrained"] == "org/scripted"
        assert found[key] == "/tuned"

    def test_has_the_reports_numbers(self, run, content):
        results = raveval.load_results(run)
        renamed = {"accuracy_raw": "acc", "greedy_accuracy": "acc"}
        n = 0
        for task, found in results.tasks.items():
            for name, estimate in found.metrics.items():
                key = f"{renamed.get(name, name)},none"
                assert content["results"][task][key] == _or_na(estimate.value)
                stderr = key.replace(",", "_stderr,")
                assert content["results"][task][stderr] == _or_na(estimate.stderr)
                n += 1
        assert n > 60

    def test_names_what_is_missing(self, content):
        counts = content["n-samples"]["choice"]
        assert counts == {"original": 13, "effective": 12}
        missing = content["raveval"]["tasks"]["choice"]["missing"]
        assert missing["12"]["status"] == "overlong"

    def test_has_groups_as_subtasks(self, content):
        subtasks = content["group_subtasks"]["demo_choice"]
        assert subtasks == ["demo_choice_geography", "demo_choice_nature"]
        assert content["groups"]["demo_choice"] == content["results"]["demo_choice"]
        sizes = [content["n-samples"][name]["effective"] for name in subtasks]
        assert sum(sizes) == content["n-samples"]["demo_choice"]["effective"] == 28
        pooled = sum(
            content["results"][name]["acc,none"] * n
            for name, n in zip(subtasks, sizes, strict=True)
        )
        assert pooled / 28 == pytest.approx(content["results"]["demo_choice"]["acc,none"])

    def test_a_json_path_is_the_files_own_name(self, run, tmp_path):
        written = export_run(run, tmp_path / "mine.json", log_samples=True)
        assert written.results == tmp_path / "mine_2026-07-01T09-31-30.000000.json"
        assert {path.parent for path in written.samples.values()} == {tmp_path}

    def test_is_the_same_each_time(self, run, exported, tmp_path):
        again = export_run(run, tmp_path, log_samples=True)
        assert again.results.read_bytes() == exported.results.read_bytes()
        for task, path in again.samples.items():
            assert path.read_bytes() == exported.samples[task].read_bytes()


class TestSamples:
    @pytest.mark.parametrize("task", ["choice", "cloze", "demo_choice", "demo_qa", "demo_text"])
    def test_have_lm_evals_layout(self, exported, content, task):
        rows = samples(exported, task)
        TypeAdapter(list[Sample]).validate_python(rows)
        assert [row["doc_id"] for row in rows] == sorted({row["doc_id"] for row in rows})
        assert len(rows) == content["n-samples"][task]["effective"]
        listed = [each["metric"] for each in content["configs"][task]["metric_list"]]
        assert listed
        for row in rows:
            assert row["metrics"] == listed
            assert all(name in row for name in listed)
        hashes = "".join(r["doc_hash"] + r["prompt_hash"] + r["target_hash"] for r in rows)
        assert content["task_hashes"][task] == conventions.text_hash(hashes)

    def test_say_the_same_as_the_results(self, exported, content):
        """Each example's metrics, made again by lm-eval's own rule from its responses."""
        rows = samples(exported, "choice")
        n_right = {"acc": 0.0, "acc_norm": 0.0}
        for row in rows:
            nats = [float(nats) for nats, _ in row["filtered_resps"]]
            texts = [a["arg_1"].removeprefix(" ") for a in row["arguments"].values()]
            lengths = {"acc": [1] * 3, "acc_norm": [len(text) for text in texts]}
            for name, by in lengths.items():
                values = [a / b for a, b in zip(nats, by, strict=True)]
                right = values.index(max(values)) == int(row["target"])
                assert row[name] == float(right)
                n_right[name] += right
        for name, total in n_right.items():
            assert content["results"]["choice"][f"{name},none"] == total / 12
        per_char = content["results"]["choice"]["accuracy_per_char,none"]
        assert per_char == content["results"]["choice"]["accuracy,none"]

    def test_are_not_written_of_what_lm_eval_cannot_ask(self, exported):
        assert exported.without_samples == ("demo_grading",)

    def test_hold_the_raw_output_and_what_was_made_of_it(self, exported, run):
        rows = samples(exported, "demo_qa")
        assert any(row["resps"][0][0] != row["filtered_resps"][0] for row in rows)
        assert all(row["resps"][0][0].strip() == row["filtered_resps"][0] for row in rows)
        assert rows[0]["arguments"]["gen_args_0"]["arg_1"]["until"] == ["\n"]


class TestTheWayBack:
    def test_gives_every_number_to_the_last_bit(self, run, exported, tmp_path):
        (imported,) = import_runs([exported.results.parent], tmp_path / "run")
        there, back = raveval.load_results(run), imported.results
        assert list(back.tasks) == list(there.tasks)
        for name, task in there.tasks.items():
            found = back.tasks[name]
            assert {key: found.metrics[key] for key in task.metrics} == task.metrics
            for part in ("macro", "groups", "coverage", "notes", "failures", "num_fewshot"):
                assert getattr(found, part) == getattr(task, part), part
            assert (found.protocol, found.version) == (task.protocol, task.version)

    def test_also_as_if_lm_eval_had_written_it(self, run, exported, tmp_path):
        """Without what raveval adds, numbers that a sample's columns decide are the same."""
        for path in (exported.results, *exported.samples.values()):
            rows = [json.loads(path.read_text())] if path.suffix == ".json" else None
            rows = rows or [json.loads(line) for line in path.read_text().splitlines()]
            for row in rows:
                row.pop("raveval")
            (tmp_path / path.name).write_text("\n".join(map(json.dumps, rows)))
        (found,) = import_runs([tmp_path], tmp_path / "run")
        there, back = raveval.load_results(run), found.results
        decided = {
            "choice": ("accuracy_raw", "accuracy_per_char", "probability_mass"),
            "cloze": ("greedy_accuracy", "word_perplexity", "bits_per_byte"),
            "demo_qa": ("exact_match", "f1"),
            "demo_text": ("word_perplexity", "byte_perplexity", "bits_per_byte"),
        }
        for task, names in decided.items():
            for name in names:
                ours, theirs = there.tasks[task].metrics[name], back.tasks[task].metrics[name]
                assert (theirs.value, theirs.n) == (ours.value, ours.n), (task, name)
        assert back.tasks["choice"].metrics["accuracy"].value == (
            there.tasks["choice"].metrics["accuracy_raw"].value
        ), "the file does not name a primary scoring; acc is lm-eval's"


def test_a_tie_is_wrong_in_acc_as_in_the_report() -> None:
    records = pa.table(
        {
            "status": ["ok", "ok"],
            "gold": pa.array([0, 0], pa.int32()),
            "logprob_nats": [[-1.0, -1.0], [-1.0, -2.0]],
            "n_chars": pa.array([[3, 4], [3, 4]], pa.list_(pa.int32())),
            terms.BOUNDARY: pa.array([1, 1], pa.int32()),
        }
    )
    acc, acc_norm = terms.terms_of("multiple_choice", ["accuracy"])
    assert terms.values(acc, ["accuracy"], records) == [0.0, 1.0]
    assert terms.values(acc_norm, ["accuracy"], records) == [0.0, 1.0]  # -1/2 < -1/3, -1/2 > -2/3


class TestCommands:
    def test_export_and_import(self, run, tmp_path):
        invoke = CliRunner().invoke
        out = invoke(app, ["export", str(run), "--log_samples", "-o", str(tmp_path / "x")])
        assert out.exit_code == 0
        assert len(out.stdout.splitlines()) == 6
        found = invoke(app, ["import", str(tmp_path / "x"), "-o", str(tmp_path / "back")])
        assert found.exit_code == 0
        assert "acc_norm,none" in found.stdout
        assert "revision step1000; shots 0, 3; 6 tasks" in found.stdout

    def test_flags_of_another_target_are_refused(self, run):
        found = CliRunner().invoke(app, ["export", str(run), "--to", "mlflow", "--log-samples"])
        assert found.exit_code == 2
        assert "--log-samples: --to mlflow has no use for it" in found.stderr

    def test_an_imported_run_is_not_exported_again(self, exported, tmp_path):
        import_runs([exported.results], tmp_path / "run")
        with pytest.raises(DataError, match="was itself imported"):
            export_run(tmp_path / "run")

    def test_an_unfinished_run_is_refused(self, tmp_path):
        with pytest.raises(DataError, match="no run of raveval here"):
            export_run(tmp_path)


def test_lm_evals_own_table_prints_the_numbers(content) -> None:
    """Where lm-eval is installed; it is no dependency of ours."""
    utils = pytest.importorskip("lm_eval.utils")
    rows = utils.make_table(content).splitlines()
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows[2:]]
    shown, task = {}, ""
    for row in cells:
        task = row[0].removeprefix("- ") or task
        shown[task, row[4]] = (row[6], row[8])
    for name, metrics in content["results"].items():
        for key, value in metrics.items():
            metric = conventions.split(key).metric
            if isinstance(value, float) and not conventions.split(key).is_stderr:
                assert float(shown[name, metric][0]) == pytest.approx(value, abs=5.1e-5)


def _or_na(value: float | None) -> float | str:
    return "N/A" if value is None else value
