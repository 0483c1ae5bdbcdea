"""The catalogue's tasks for evaluators on the published files, asked and scored from end to end."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from raveval import tasks
from raveval.engines.scripted import Options, ScriptedEngine
from raveval.evaluate import (
    TaskSpec,
    answer_examples,
    load_metric,
    load_protocol,
    score_examples,
)
from raveval.judging import SYSTEM_LINE, parse_rubric, split_prompt
from raveval.protocols import Grading, TaskSettings, open_generation
from raveval.types import Estimate, Example, Generate, Message, Prompt, Reply, Request, Sampling
from tests.judges import label_of, reply, text_of

FEEDBACK = "###Feedback:"


def load(name: str, path: Path, *, chat: bool = True) -> Sequence[Example]:
    task = tasks.load_task(name)
    return tasks.load_examples(task, tasks.Options(path=str(path), chat=chat), seed=7)


def rows_of(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))
    return rows


def shown(prompt: Prompt | None) -> str:
    """Return the user turn."""
    assert isinstance(prompt, tuple)
    system, user = prompt
    assert (system.role, system.content, user.role) == ("system", SYSTEM_LINE, "user")
    return user.content


def numbers(
    name: str, examples: Sequence[Example], says: Callable[[Generate], str]
) -> Mapping[str, Estimate]:
    """Ask a judge that says this, and return all numbers of the task."""
    task = tasks.load_task(name)
    settings = TaskSettings(task.sampling, seed=7, grading=task.grading.settings())  # type: ignore[union-attr]
    protocol = load_protocol(task.protocol)
    spec = TaskSpec(task.protocol, settings, protocol.METRICS, "r", "s")

    def script(request: Request) -> Reply:
        assert isinstance(request, Generate)
        return reply(f"Feedback: I have read it. [RESULT] {says(request)}")

    engine = ScriptedEngine(script, Options(), max_model_len=100_000)
    answers = asyncio.run(answer_examples(examples, engine, spec))
    records = protocol.derive(score_examples(examples, answers, spec))
    assert set(records["status"].to_pylist()) == {"ok"}
    found: dict[str, Estimate] = {}
    for metric in map(load_metric, protocol.METRICS):
        state = metric.update(metric.init(), records)
        found.update(metric.compute(state))
    return found


@pytest.fixture(scope="module")
def vicuna(shared_data: Path) -> Sequence[Example]:
    return load("vicuna_bench", shared_data / "prometheus" / "vicuna_eval.json")


@pytest.fixture(scope="module")
def pairs(shared_data: Path) -> Sequence[Example]:
    return load("hhh_alignment", shared_data / "prometheus" / "hhh_alignment_eval.json")


@pytest.fixture(scope="module")
def llmbar(shared_data: Path) -> Sequence[Example]:
    return load("llmbar", shared_data / "llmbar" / "natural" / "dataset.json")


def test_vicuna_bench_is_read_whole(vicuna: list[Example], shared_data: Path) -> None:
    rows = rows_of(shared_data / "prometheus" / "vicuna_eval.json")
    assert len(vicuna) == len({example.id for example in vicuna}) == 320
    assert Counter(example.group for example in vicuna) == {
        **dict.fromkeys(("generic", "knowledge", "roleplay", "common-sense", "fermi"), 40),
        "counterfactual": 40,
        "writing": 40,
        "coding": 28,
        "math": 12,
    }
    assert set(Counter(example.cluster for example in vicuna).values()) == {4}  # one a model
    for example, row in zip(vicuna, rows, strict=True):
        text = shown(example.prompt)
        assert text == row["instruction"].strip()
        assert text.endswith(FEEDBACK)
        assert text.count(FEEDBACK) == 1
        assert example.second_prompt is None
        assert list(example.reference_ratings) == row["gpt4_score"]
    by_cluster: dict[str | None, set[str]] = {}
    for example in vicuna:
        instruction = split_prompt(shown(example.prompt))["instruction"]
        by_cluster.setdefault(example.cluster, set()).add(instruction)
    assert all(len(instructions) == 1 for instructions in by_cluster.values())


def test_vicuna_bench_has_the_ceiling_that_gpt4_sets(
    vicuna: list[Example], shared_data: Path
) -> None:
    rows = rows_of(shared_data / "prometheus" / "vicuna_eval.json")
    scores = {e.id: row["gpt4_score"] for e, row in zip(vicuna, rows, strict=True)}

    def gpt4(request: Generate) -> str:
        return str(scores[request.key.rpartition("#")[0]][int(label_of(request)[0])])

    found = numbers("vicuna_bench", vicuna, gpt4)
    # The first score against the mean of the other two, from an independent program.
    assert found["reference_pearson"].value == pytest.approx(0.840041, abs=5e-7)
    assert found["reference_spearman"].value == pytest.approx(0.741613, abs=5e-7)
    assert found["reference_kendall_tau_b"].value == pytest.approx(0.693692, abs=5e-7)
    # A judge that gives GPT-4's three scores agrees with their mean in full.
    for name in ("pearson", "spearman", "kendall_tau_b", "exact_agreement"):
        assert found[name].value == pytest.approx(1, abs=1e-12)
        assert found[name].n == 320


def test_another_task_of_this_layout_reads_the_same_file(
    vicuna: list[Example], shared_data: Path
) -> None:
    path = shared_data / "prometheus" / "vicuna_eval.json"
    for name in ("mt_bench", "flask_eval"):
        examples = load(name, path)
        assert [e.prompt for e in examples] == [e.prompt for e in vicuna]
        assert [e.reference_ratings for e in examples] == [e.reference_ratings for e in vicuna]
        assert [e.id for e in examples] == [str(number) for number in range(320)]
        assert len({e.cluster for e in examples}) == 80


def test_vicuna_answers_asks_each_question_once_by_the_files_own_rubric(
    vicuna: list[Example], shared_data: Path
) -> None:
    path = shared_data / "prometheus" / "vicuna_eval.json"
    task = tasks.load_task("vicuna_answers")
    examples = load("vicuna_answers", path)
    source = tasks.provenance(task, tasks.Options(path=str(path)))
    assert (len(examples), source["repeated_rows"]) == (80, "240")
    by_id = {example.id: example for example in examples}
    assert [example.id for example in examples] == list(
        dict.fromkeys(str(row["idx"]) for row in rows_of(path))
    )
    for graded in vicuna:
        shown_parts = split_prompt(shown(graded.prompt))
        example = by_id[str(graded.cluster)]
        assert example.prompt == (Message("user", shown_parts["instruction"]),)
        assert example.group == graded.group
        assert example.fields["reference"] == shown_parts["reference"]
    first = tasks.load_examples(task, tasks.Options(path=str(path), limit=10), seed=7)
    assert [example.id for example in first] == [example.id for example in examples[:10]]


def test_the_judge_of_an_answer_is_asked_what_a_judge_of_the_files_is(
    shared_data: Path, tmp_path: Path
) -> None:
    path = shared_data / "prometheus" / "vicuna_eval.json"
    rows = []
    for number, row in enumerate(rows_of(path)):
        parts = split_prompt(row["instruction"])
        rubric = parse_rubric(parts["rubric"]).content()
        rows.append({"id": str(number), **{k: parts[k] for k in PARTS}, **rubric})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    texts = "".join(
        f"    {key}: '{{{{ {key} }}}}'\n" for key in rows[0] if key not in ("id", *PARTS)
    )
    (tmp_path / "parts.yaml").write_text(
        "protocol: absolute_grading\nsource: {path: rows.jsonl}\ngrading:\n"
        + "".join(f"  {key}: '{{{{ {key} }}}}'\n" for key in PARTS)
        + f"  rubric:\n{texts}"
    )
    graded = load(str(tmp_path / "parts.yaml"), tmp_path / "rows.jsonl")
    by_id = {example.id: example for example in load("vicuna_answers", path)}
    asked = list[Prompt]()

    async def note(request: Request) -> Reply:
        assert isinstance(request, Generate)
        asked.append(request.prompt)
        return reply("[RESULT] 3")

    settings = TaskSettings(
        Sampling(1), grading=Grading(n_samples=1), judge_sampling=Sampling(1), judge_chat=True
    )
    for row, original in zip(rows, rows_of(path), strict=True):
        example = by_id[str(original["idx"])]
        answers = (reply(row["response"]),)
        asyncio.run(open_generation.grade(example, answers, note, settings))
    assert asked == [example.prompt for example in graded]
    assert len(set(asked)) == 320


PARTS = ("instruction", "response", "reference")


def test_hhh_alignment_is_read_whole(pairs: list[Example], shared_data: Path) -> None:
    rows = rows_of(shared_data / "prometheus" / "hhh_alignment_eval.json")
    assert len(pairs) == len({example.id for example in pairs}) == 221
    sources = Counter(example.group for example in pairs)
    assert sources == {"honest": 61, "helpful": 59, "harmless": 58, "other": 43}
    assert len({example.cluster for example in pairs}) == 102
    # Which answer stands as a has nothing to do with which is preferred.
    assert Counter(example.preferred for example in pairs) == {"a": 102, "b": 119}
    for example, row in zip(pairs, rows, strict=True):
        prompts = {"a": shown(example.prompt), "b": shown(example.second_prompt)}
        chosen = prompts.pop(str(example.preferred))
        (rejected,) = prompts.values()
        assert chosen == row["chosen_instruction"].strip()
        assert rejected == row["rejected_instruction"].strip()
        assert chosen.count(FEEDBACK) == rejected.count(FEEDBACK) == 1
        assert split_prompt(chosen)["instruction"] == example.cluster


def test_hhh_alignment_tells_a_perfect_judge_from_a_blind_one(pairs: list[Example]) -> None:
    preferred = {example.id: example.preferred for example in pairs}

    def prefers(request: Generate) -> str:
        id, _, label = request.key.rpartition("#")
        return "5" if label[0] == preferred[id] else "2"

    perfect = numbers("hhh_alignment", pairs, prefers)
    for name in ("accuracy_strict", "accuracy_without_human_ties", "verdict_kappa"):
        assert perfect[name].value == 1
        assert perfect[name].n == 221
    always_a = numbers("hhh_alignment", pairs, lambda r: "5" if label_of(r)[0] == "a" else "2")
    assert always_a["accuracy_strict"].value == pytest.approx(102 / 221)
    assert always_a["verdict_kappa"].value == pytest.approx(0, abs=1e-12)


def test_llmbar_is_read_whole_and_asked_in_both_orders(
    llmbar: list[Example], shared_data: Path
) -> None:
    rows = rows_of(shared_data / "llmbar" / "natural" / "dataset.json")
    assert len(llmbar) == len({example.id for example in llmbar}) == 100
    assert Counter(example.preferred for example in llmbar) == {"a": 42, "b": 58}
    for example, row in zip(llmbar, rows, strict=True):
        for prompt, outputs in (
            (example.prompt, ("output_1", "output_2")),
            (example.second_prompt, ("output_2", "output_1")),
        ):
            text = shown(prompt)
            assert text.endswith(f"\n\n{FEEDBACK}")
            assert text.count(FEEDBACK) == 1
            a, b = (row[name] for name in outputs)
            assert f"###Instruction:\n{row['input']}\n\n###Response A:\n{a}\n\n" in text
            assert f"\n\n###Response B:\n{b}\n\n###Score Rubric:\n[" in text
            assert "Score 1:" not in text  # relative grading shows the criteria alone


def test_llmbar_tells_judges_apart(llmbar: list[Example]) -> None:
    preferred = {example.id: example.preferred for example in llmbar}

    def perfect(request: Generate) -> str:
        id, _, label = request.key.rpartition("#")
        is_a = preferred[id] == "a"
        return "A" if is_a == label.startswith("given") else "B"

    found = numbers("llmbar", llmbar, perfect)
    for name in ("accuracy_strict", "accuracy_both_orders", "position_consistency"):
        assert found[name].value == 1
        assert found[name].n == 100
    first = numbers("llmbar", llmbar, lambda request: "A")
    assert first["accuracy_strict"].value == 0.42
    assert first["position_consistency"].value == 0
    assert first["accuracy_both_orders"].value == 0


@pytest.mark.parametrize("name", ["vicuna_bench", "hhh_alignment", "llmbar"])
def test_without_a_chat_template_the_system_line_stands_first(
    name: str, vicuna: list[Example], pairs: list[Example], llmbar: list[Example], shared_data: Path
) -> None:
    in_turns, file = {
        "vicuna_bench": (vicuna, "prometheus/vicuna_eval.json"),
        "hhh_alignment": (pairs, "prometheus/hhh_alignment_eval.json"),
        "llmbar": (llmbar, "llmbar/natural/dataset.json"),
    }[name]
    for plain, example in zip(load(name, shared_data / file, chat=False), in_turns, strict=True):
        assert plain.prompt == text_of(example.prompt)
