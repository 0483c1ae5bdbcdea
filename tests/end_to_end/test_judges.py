"""Evaluator models through whole runs: judges of known odds, and a small real model in vLLM."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import raveval
from raveval import report
from raveval.judging import Verdict
from raveval.protocols import absolute_grading, ranking
from raveval.protocols.absolute_grading import read
from raveval.types import Completion, Status, TaskResults
from tests.end_to_end.conftest import Config, numbers

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster")]

MakeConfig = Callable[..., Config]

RUBRIC = {
    "criteria": "Does it answer?",
    **{f"score{n}_description": f"Level {n}." for n in range(1, 6)},
}
KINDS = ("poor", "plain", "fine", "mute")
JUDGE = {"script": "tests.judges:draws"}


@pytest.fixture
def judge_tasks(tmp_path: Path) -> list[str]:
    """Tasks of all three protocols on 60 made-up rows; returns their paths."""
    rows = [
        {
            "id": f"row {n}",
            "a": f"This is a {KINDS[n % 4]} answer. [RESULT] 5",
            "b": f"This is a {KINDS[(n // 2) % 4]} answer. [RESULT] 1",
            "human": ("a", "b", "tie")[n % 3],
            "marks": [1 + n % 5, 1 + n % 4],
            "source": ("web", "book")[n % 2],
        }
        for n in range(60)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shown = {
        "absolute_grading": 'response: "{{ a }}"',
        "ranking": 'responses: ["{{ a }}", "{{ b }}"]',
        "relative_grading": 'responses: ["{{ a }}", "{{ b }}"]',
    }
    for protocol, response in shown.items():
        gold = "reference_ratings: marks" if protocol == "absolute_grading" else "preferred: human"
        (tmp_path / f"{protocol}.yaml").write_text(
            f"protocol: {protocol}\nsource: {{path: rows.jsonl}}\ngroup: source\n{gold}\n"
            f'grading:\n  instruction: "Say hello."\n  {response}\n  max_attempts: 2\n'
            f"  max_tie_rounds: 3\n  rubric: {json.dumps(RUBRIC)}\n"
        )
    return [str(tmp_path / f"{protocol}.yaml") for protocol in shown]


def records(directory: str | Path, task: str) -> list[dict[str, Any]]:
    files = sorted((Path(directory) / "records" / task).glob("*.parquet"))
    tables = [pq.read_table(file, partitioning=None) for file in files]
    found: list[dict[str, Any]] = pa.concat_tables(tables).to_pylist()
    return found


def assert_accounted_for(task: TaskResults, rows: list[dict[str, Any]]) -> None:
    """Refuse results that an example, a question to the judge or a refusal is missing from."""
    assert len({row["id"] for row in rows}) == len(rows) == task.coverage.n_attempted
    assert dict(task.coverage.by_status) == Counter(row["status"] for row in rows)
    n_missing = sum(n for s, n in task.coverage.by_status.items() if not Status(s).is_scored)
    assert task.coverage.n_attempted == task.coverage.n_scored + n_missing
    assert all(row["message"] for row in rows if not Status(row["status"]).is_scored)
    assert task.notes["attempts"] == sum(row["n_attempts"] for row in rows)
    refused = Counter(reason for row in rows for reason in row["refused"])
    assert {f"refused_{reason.replace(' ', '_')}": n for reason, n in refused.items()} == {
        name: n for name, n in task.notes.items() if name.startswith("refused_")
    }
    sides = ("rating",) if task.protocol == "absolute_grading" else ("scores_a", "scores_b")
    if task.protocol == "relative_grading":
        n_read = sum(
            row[verdict] is not None for row in rows for verdict in ("verdict", "verdict_swapped")
        )
    else:
        n_read = sum(score is not None for row in rows for side in sides for score in row[side])
    assert task.notes["attempts"] == n_read + refused.total()


class TestJudgesOfKnownOdds:
    def test_no_number_depends_on_sharding_replicas_or_order(
        self, config: MakeConfig, judge_tasks: list[str]
    ) -> None:
        expected = ""
        for shard_size, replicas in ((64, 1), (1, 2), (7, 2), (7, 1)):
            settings = config(
                output=f"by{shard_size}on{replicas}",
                tasks=judge_tasks[:: 1 if replicas == 1 else -1],
                engine=JUDGE,
                shard_size=shard_size,
                replicas=replicas,
            )
            results = raveval.run(settings)
            found = sorted_numbers(settings["run"]["output"])
            expected = expected or found
            assert found == expected
            for name, task in results.tasks.items():
                assert_accounted_for(task, records(settings["run"]["output"], name))
                assert {"ok", "unjudged"} <= task.coverage.by_status.keys()
        assert json.loads(expected)["tasks"]["ranking"]["notes"]["tie_rounds"] > 0

    @pytest.mark.usefixtures("without_ray")
    def test_another_seed_is_another_draw(self, config: MakeConfig, judge_tasks: list[str]) -> None:
        found = []
        for seed in (1, 2):
            settings = config(
                output=f"seed{seed}",
                tasks=judge_tasks[:1],
                engine=JUDGE,
                evaluate={"seed": seed},
            )
            raveval.run(settings)
            found.append(
                [row["rating"] for row in records(settings["run"]["output"], "absolute_grading")]
            )
        assert found[0] != found[1]

    @pytest.mark.usefixtures("without_ray")
    def test_scoring_again_says_how_many_verdicts_changed(
        self, config: MakeConfig, judge_tasks: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings = config(tasks=judge_tasks, engine=JUDGE, shard_size=16)
        directory = settings["run"]["output"]
        raveval.run(settings)
        before = {n: records(directory, n) for n in ("absolute_grading", "ranking")}
        said: list[str] = []
        raveval.rescore(directory, say=said.append)
        assert said == [
            "absolute_grading: scored 60 examples again, 0 have another status or score",
            "ranking: scored 60 examples again, 0 have another status or score",
            "relative_grading: scored 60 examples again, 0 have another status or score",
            "12 shards scored again",
        ]

        def strict(reply: Completion) -> Verdict[int]:
            found = read(reply)
            return Verdict(None, "", "no verdict") if found.value == 5 else found

        for protocol in (absolute_grading, ranking):
            monkeypatch.setattr(protocol, "read", strict)
            monkeypatch.setattr(protocol, "SCORE_VERSION", 99)
        said.clear()
        results = raveval.rescore(directory, say=said.append)
        for name in ("absolute_grading", "ranking"):
            rows = records(directory, name)
            keys = ("status", "rating") if name == "absolute_grading" else ("status", "verdict")
            n = sum(
                [old[key] for key in keys] != [new[key] for key in keys]
                for old, new in zip(before[name], rows, strict=True)
            )
            assert n > 5
            assert f"{name}: scored 60 examples again, {n} have another status or score" in said
            assert results.tasks[name].coverage.n_attempted == 60
            old_attempts = sum(row["n_attempts"] for row in before[name])
            assert results.tasks[name].notes["attempts"] == old_attempts
        assert any(
            line.startswith("relative_grading: scored 60 examples again, 0") for line in said
        )


def sorted_numbers(directory: str) -> str:
    """Return results.json without times, tasks in the order of their names."""
    content = json.loads(numbers(directory))
    content["tasks"] = dict(sorted(content["tasks"].items()))
    content["fingerprints"] = dict(sorted(content["fingerprints"].items()))
    return json.dumps(content)


N_ROWS = 3
"""Of each of Prometheus' files; more take longer and show nothing else."""

VICUNA = """\
protocol: absolute_grading
source: {path: PATH}
group: response_source
reference_ratings: gpt4_score
grading: {prompt: "{{ instruction }}", samples: 2, max_attempts: 2}
sampling: {max_output_tokens: 48, temperature: 1.0, top_p: 0.9, repetition_penalty: 1.03}
"""
HHH = """\
protocol: ranking
source: {path: PATH}
group: source
preferred: "'a'"
grading:
  prompts: ["{{ chosen_instruction }}", "{{ rejected_instruction }}"]
  max_attempts: 2
  max_tie_rounds: 2
sampling: {max_output_tokens: 48, temperature: 1.0, top_p: 0.9, repetition_penalty: 1.03}
"""


@pytest.fixture(scope="module")
def judged(
    demo_model: Path,
    shared_data: Path,
    cluster: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A run of the small model as a judge, in vLLM."""
    folder = tmp_path_factory.mktemp("judge")
    for name, text, file in (
        ("vicuna", VICUNA, "vicuna_eval.json"),
        ("hhh", HHH, "hhh_alignment_eval.json"),
    ):
        path = shared_data / "prometheus" / file
        (folder / f"{name}.yaml").write_text(text.replace("PATH", json.dumps(str(path))))
    raveval.run(
        {
            "evaluate": {
                "model": {"path": str(demo_model)},
                "engine": "vllm",
                "tasks": [
                    {"task": str(folder / "vicuna.yaml"), "limit": N_ROWS},
                    {"task": str(folder / "hhh.yaml"), "limit": N_ROWS},
                    "demo_grading",
                    "demo_ranking",
                ],
            },
            "run": {"output": str(folder / "run"), "shard_size": 5},
        }
    )
    return folder / "run"


@pytest.mark.model
@pytest.mark.timeout(900)
class TestARealJudge:
    """Prometheus' prompts are too much for so small a model; the demo's it can answer."""

    def test_every_example_has_a_status_and_every_question_is_counted(self, judged: Path) -> None:
        results = raveval.load_results(judged)
        assert list(results.tasks) == ["vicuna", "hhh", "demo_grading", "demo_ranking"]
        for name, task in results.tasks.items():
            assert_accounted_for(task, records(judged, name))
            assert set(task.coverage.by_status) <= {"ok", "unjudged", "unresolved"}
            assert task.usage.n_prompt_tokens > 100 * task.notes["attempts"]
            assert 0 < task.usage.n_output_tokens <= 48 * task.notes["attempts"]
        for name in ("vicuna", "hhh"):
            assert results.tasks[name].coverage.n_attempted == N_ROWS
            # Two samples of each, or both responses.
            assert results.tasks[name].notes["attempts"] >= 2 * N_ROWS
        for name in ("demo_grading", "demo_ranking"):
            assert results.tasks[name].coverage.n_scored > 0

    def test_numbers_are_there_or_say_why_not(self, judged: Path) -> None:
        tasks = raveval.load_results(judged).tasks
        for task in tasks.values():
            for name, estimate in task.metrics.items():
                assert (estimate.value is None) == (estimate.reason is not None), name
                if estimate.value is not None and estimate.low is not None:
                    assert estimate.high is not None
                    assert estimate.low <= estimate.value <= estimate.high, name
        correlations = {"pearson", "spearman", "kendall_tau_b", "mean_rating", "reference_pearson"}
        assert correlations <= tasks["vicuna"].metrics.keys()
        assert correlations <= tasks["demo_grading"].metrics.keys()
        assert tasks["demo_grading"].metrics["mean_rating"].value is not None
        assert "accuracy_strict" in tasks["hhh"].metrics
        assert tasks["demo_ranking"].metrics["accuracy_strict"].value is not None

    def test_the_report_shows_all_of_it(self, judged: Path) -> None:
        results = raveval.load_results(judged)
        text = report.to_markdown(results)
        for name in ("pearson", "spearman", "kendall_tau_b", "accuracy_strict"):
            assert f"| {name} |" in text
        for task in results.tasks.values():
            coverage = task.coverage
            assert f"{coverage.n_scored} of {coverage.n_attempted} scored" in text
            assert f"attempts {task.notes['attempts']}" in text
            assert f"| {task.usage.n_prompt_tokens} | {task.usage.n_output_tokens} |" in text
            for note in ("tie_rounds", "refused_no_verdict", "refused_cut_at_max_tokens"):
                if note in task.notes:
                    assert f"{note} {task.notes[note]}" in text
        assert "system_role: own turn" in text

    def test_the_same_questions_get_the_same_bits(self, judged: Path, demo_run: Path) -> None:
        """Beside other tasks and in shards of another size each text has other company."""
        ours, theirs = (raveval.load_results(each).tasks for each in (judged, demo_run))
        for name in ("demo_grading", "demo_ranking"):
            a, b = ours[name], theirs[name]
            assert (a.metrics, a.macro, a.groups, a.notes) == (
                b.metrics,
                b.macro,
                b.groups,
                b.notes,
            )
            assert records(judged, name) == records(demo_run, name)
