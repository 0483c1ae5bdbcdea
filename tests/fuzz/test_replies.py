"""Whatever a model says is stored, read, scored, counted and shown, and none of it is obeyed."""

import asyncio
import csv
import io
import json
import shutil
import unicodedata
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from raveval import report
from raveval.config import load_config
from raveval.engines import Capability, scripted
from raveval.evaluate import Stage, answer_examples, grade_examples, replies_table
from raveval.judging import clean_prompt, parse_rubric, read_choice, read_score, split_prompt
from raveval.passes import task_spec
from raveval.plan import make_plan, manifest_of
from raveval.reduce import reduce_run
from raveval.scoring import score_shard, verdicts_fingerprint
from raveval.speech import harmless
from raveval.store import Replies, RunDirectory
from raveval.types import Completion, Failure, Generate, Reply, Request, Results, Status
from tests.fuzz import fuzzed, refused
from tests.fuzz.test_configs import ROW, RUBRIC
from tests.fuzz.values import AWKWARD, texts
from tests.pages import Document

SAID = (
    *("[RESULT] 3", "[RESULT] 9", "[RESULT]", "Score: 4", "[RESULT] A", "[RESULT] B", "Feedback:"),
    *(
        '{"score": 3}',
        '{"score": ',
        "```",
        ">",
        '"',
        "'",
        "\\boxed{",
        "###Score Rubrics:",
        "[",
        "]",
    ),
    *(
        "\u0663",
        "\uff13",
        "²",
        "⅕",
        "Ⅳ",
        "-",
        "/5",
        " out of 5",
        "\u200b",
        "\u2028",
        "\x00",
        "\x1b]",
    ),
    *("the", "a", " ", "\n", "\r\n", "9" * 5000, "[" * 3000, "{" * 3000, '{"a":' * 2000),
)
said = st.lists(st.sampled_from([*SAID, *AWKWARD]) | texts, max_size=6).map("".join)


@fuzzed(200)
@given(text=said, is_cut=st.booleans())
def test_a_verdict_is_one_of_those_offered_or_there_is_a_reason(text: str, is_cut: bool) -> None:
    score = read_score(text, is_cut=is_cut)
    choice = read_choice(text, is_cut=is_cut)
    assert score.value in (1, 2, 3, 4, 5, None)
    assert choice.value in ("A", "B", None)
    for verdict in (score, choice):
        assert (verdict.value is None) == (verdict.reason is not None)
        assert verdict.feedback in text


@fuzzed(100)
@given(text=said)
def test_any_prompt_of_a_judge_is_taken_apart_or_refused(text: str) -> None:
    for read in (clean_prompt, split_prompt, parse_rubric):
        assert refused(partial(read, text)) != ""


class Sayer:
    """An engine that says one of some texts, fails with one, or breaks with one."""

    capabilities: frozenset[Capability] = frozenset()

    def __init__(self, words: Sequence[str], kinds: Sequence[str]) -> None:
        self._words = words
        self._kinds = kinds

    async def reply(self, request: Request) -> Reply:
        at = int.from_bytes(blake2b(request.key.encode(), digest_size=4).digest(), "big")
        word, kind = self._words[at % len(self._words)], self._kinds[at % len(self._kinds)]
        if kind == "raise":
            raise ValueError(word)
        if kind == "fail":
            return Failure(Status.FAILED, word)
        if isinstance(request, Generate):
            return Completion(word, "length" if kind == "cut" else "stop", 3, 4)
        return scripted.default_reply(request)

    async def close(self) -> None:
        """Do nothing."""


GRADING = {"instruction": "{{ q }}", "rubric": RUBRIC, "samples": 2, "max_attempts": 2}
TASKS: dict[str, dict[str, Any]] = {
    "qa": {"protocol": "question_answering", "prompt": "{{ q }}", "references": "options"},
    "choice": {
        "protocol": "multiple_choice",
        "prompt": "{{ q }}",
        "choices": "options",
        "gold": "right",
    },
    "grading": {
        "protocol": "absolute_grading",
        "grading": {**GRADING, "response": "{{ q }}"},
        "reference_ratings": "[right]",
    },
    "ranking": {
        "protocol": "ranking",
        "grading": {**GRADING, "responses": ["{{ q }}", "b"], "max_tie_rounds": 2},
        "preferred": "'a'",
    },
    "pairs": {
        "protocol": "relative_grading",
        "grading": {**GRADING, "responses": ["{{ q }}", "b"]},
        "preferred": "'tie'",
    },
    "answers": {"protocol": "open_generation", "grading": GRADING},
}


def finish(task: str, rows: Sequence[Any], engine: Any) -> Results:
    """Evaluate one task in this process, through every file that a run writes."""
    content = {**TASKS[task], "source": {"path": "rows.jsonl"}, "group": "g", "cluster": "c"}
    shutil.rmtree("run", ignore_errors=True)
    Path(f"{task}.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = {"model": {"id": "org/model"}, "engine": "scripted"}
    judge = {"judge": model} if task == "answers" else {}
    evaluate = {**model, **judge, "tasks": [f"{task}.yaml"]}
    plan = make_plan(load_config({"evaluate": evaluate, "run": {"output": "run"}}))
    directory = RunDirectory("run")
    manifest = manifest_of(plan, None, started="2026-07-01T09:30:00+00:00")
    directory.write_manifest(manifest)
    directory.write_examples(task, plan.tasks[0].examples, digest="d")
    spec = task_spec(manifest["tasks"][task])
    for shard in plan.shards():
        examples = directory.read_examples(task, shard.start, shard.stop)
        answers = asyncio.run(answer_examples(examples, engine, spec))
        replies = Replies(replies_table(examples, answers), spec.reply_fingerprint, {}, 0.5)
        directory.commit_replies(shard, replies, stage=Stage.ANSWER)
        verdicts = None
        if spec.is_graded:
            graded = asyncio.run(grade_examples(examples, answers, engine, spec))
            fingerprint = verdicts_fingerprint(spec, replies)
            verdicts = Replies(replies_table(examples, graded), fingerprint, {}, 0.5)
            directory.commit_replies(shard, verdicts, stage=Stage.GRADE)
        score_shard(directory, shard, spec, replies, verdicts)
    return reduce_run(directory, manifest)


def check_text(text: str) -> None:
    """Nothing in it that a terminal obeys, or that cannot be written."""
    obeyed = {char for char in text if unicodedata.category(char) in ("Cc", "Cf", "Cs")} - {"\n"}
    assert not obeyed
    text.encode()


labels = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    [text for text in AWKWARD if text.isascii()]
)
runs = given(
    task=st.sampled_from(sorted(TASKS)),
    words=st.lists(said, min_size=1, max_size=3),
    kinds=st.lists(st.sampled_from(["say", "say", "cut", "fail", "raise"]), min_size=1, max_size=3),
    rows=st.lists(
        st.fixed_dictionaries({"id": labels, "g": labels, "c": labels}),
        min_size=1,
        max_size=4,
        unique_by=lambda row: row["id"],
    ),
)


def run_of(
    task: str, words: list[str], kinds: list[str], rows: list[dict[str, str]]
) -> tuple[Results, str]:
    """Return a run's results, and what a terminal shows of them."""
    results = finish(task, [{**ROW, **row} for row in rows], Sayer(words, kinds))
    assert results.tasks[task].coverage.n_attempted == len(rows)
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    report.print_table(results, console)
    return results, console.file.getvalue()  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@fuzzed(40)
@runs
def test_whatever_is_said_is_counted_and_printed(
    task: str, words: list[str], kinds: list[str], rows: list[dict[str, str]]
) -> None:
    results, shown = run_of(task, words, kinds, rows)
    check_text(shown)
    check_text(report.to_markdown(results))
    stored = report.to_json(results)
    stored.encode()
    assert report.from_json(stored) == results
    assert list(csv.reader(io.StringIO(report.to_csv(results))))
    check_text("\n".join(map(harmless, "\n".join(words).split("\n"))))


@fuzzed(4)
@runs
def test_whatever_is_said_is_no_part_of_the_page(
    task: str, words: list[str], kinds: list[str], rows: list[dict[str, str]]
) -> None:
    results, _ = run_of(task, words, kinds, rows)
    html = report.to_html(results)
    check_text(html)
    document = Document(html)
    assert not [tag for tag in ("script", "img", "iframe") if list(document.all(tag))]
    for _, attributes in document.elements:
        assert not [name for name in attributes if name.startswith("on")]
