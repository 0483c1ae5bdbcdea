"""Relative grading: both orders, what a letter means in each, failures, and scoring again."""

import asyncio
import dataclasses
from typing import Any

import pytest

from raveval.engines.scripted import ScriptedEncoder
from raveval.evaluate import (
    TaskSpec,
    load_metric,
    load_protocol,
    read_replies,
    replies_table,
    score_examples,
)
from raveval.judging import Verdict
from raveval.lengths import lengths
from raveval.protocols import Grading, TaskSettings, relative_grading, schema
from raveval.types import Answers, Completion, Example, Failure, Sampling, Status
from tests.judges import Judge, reply

SAMPLING = Sampling(64, temperature=1.0, stop=("###",))
SETTINGS = TaskSettings(SAMPLING, seed=7, grading=Grading(3, 3, 2))
EXAMPLE = Example(id="e", prompt="a then b", second_prompt="b then a", preferred="b")


def ask(judge: Judge, settings: TaskSettings = SETTINGS, example: Example = EXAMPLE) -> Answers:
    return asyncio.run(relative_grading.answer(example, judge, settings))


def score(answers: Answers, example: Example = EXAMPLE) -> Any:
    """Return the example's record as the pipeline makes it, through storage and back."""
    stored = read_replies(replies_table([example], [answers]), [example])
    task = TaskSpec("relative_grading", SETTINGS, relative_grading.METRICS, "r", "s")
    records = score_examples([example], stored, task)
    assert records.schema == schema(relative_grading.COLUMNS)
    return records.to_pylist()[0]


@pytest.mark.parametrize(
    ("given", "swapped", "verdicts"),
    [
        ("A", "B", ("a", "a")),  # the same response, whichever comes first
        ("B", "A", ("b", "b")),
        ("A", "A", ("a", "b")),  # the one shown first, twice
        ("B", "B", ("b", "a")),
    ],
)
def test_letters_are_places_and_verdicts_are_responses(
    given: str, swapped: str, verdicts: tuple[str, str]
) -> None:
    judge = Judge({"given.0": f"First. [RESULT] {given}", "swapped.0": f"Then. [RESULT] {swapped}"})
    row = score(ask(judge))
    assert {r.key.rpartition("#")[2]: r.prompt for r in judge.asked} == {
        "given.0": "a then b",
        "swapped.0": "b then a",
    }
    assert (row["status"], row["message"], row["preferred"]) == ("ok", None, "b")
    assert (row["verdict"], row["verdict_swapped"]) == verdicts
    assert (row["feedback"], row["feedback_swapped"]) == ("First.", "Then.")
    assert (row["n_attempts"], row["refused"]) == (2, [])


def test_each_order_has_its_own_budget_and_seeds() -> None:
    judge = Judge(otherwise="Neither.")
    row = score(ask(judge))
    assert sorted(judge.labels) == [
        *(f"given.{n}" for n in range(3)),
        *(f"swapped.{n}" for n in range(3)),
    ]
    assert len(set(judge.seeds)) == 6
    assert row["status"] == "unjudged"
    assert row["message"] == "no usable verdict in 3 attempts (no verdict 3)"
    assert (row["verdict"], row["verdict_swapped"]) == (None, None)
    assert (row["n_attempts"], row["refused"]) == (6, ["no verdict"] * 6)


def test_an_unreadable_swapped_order_is_kept_and_left_out_of_what_needs_both() -> None:
    no = {f"swapped.{n}": "[RESULT] C" for n in range(3)}
    rows = [
        score(ask(Judge({"given.0": "[RESULT] B", **no}))),
        score(ask(Judge({"given.0": "[RESULT] B", "swapped.0": "[RESULT] B"}))),
    ]
    assert rows[0]["status"] == "ok"
    assert (rows[0]["verdict"], rows[0]["verdict_swapped"]) == ("b", None)
    assert rows[0]["refused"] == ["out of range"] * 3
    metric = load_metric("preference")
    task = TaskSpec("relative_grading", SETTINGS, ("preference",), "r", "s")
    examples = [EXAMPLE, dataclasses.replace(EXAMPLE, id="f")]
    answers = [
        ask(Judge({"given.0": "[RESULT] B", **no})),
        ask(Judge({"given.0": "[RESULT] B", "swapped.0": "[RESULT] B"}), example=examples[1]),
    ]
    records = score_examples(examples, answers, task)
    found = metric.compute(metric.update(metric.init(), records))
    assert (found["accuracy_strict"].value, found["accuracy_strict"].n) == (1.0, 2)
    assert (found["position_consistency"].value, found["position_consistency"].n) == (0.0, 1)
    assert (found["accuracy_both_orders"].value, found["accuracy_both_orders"].n) == (0.0, 1)


def test_an_unreadable_given_order_is_unjudged() -> None:
    judge = Judge(
        {"given.0": "[RESULT] A or B", "given.1": "A…", "given.2": "", "swapped.0": "[RESULT] A"}
    )
    row = score(ask(judge))
    assert row["status"] == "unjudged"
    assert row["message"] == "no usable verdict in 3 attempts (cut at max tokens 1, no verdict 2)"
    assert (row["verdict"], row["verdict_swapped"]) == (None, "b")
    assert row["n_attempts"] == 4


def test_failures() -> None:
    broke = Failure(Status.FAILED, "broke")
    row = score(ask(Judge({"given.0": broke}, otherwise="[RESULT] A")))
    assert (row["status"], row["message"]) == ("failed", "broke")
    assert (row["verdict"], row["verdict_swapped"], row["n_attempts"]) == (None, "b", 2)
    row = score(ask(Judge({"swapped.0": broke}, otherwise="[RESULT] A")))
    assert (row["status"], row["verdict"], row["verdict_swapped"]) == ("ok", "a", None)
    row = score((Failure(Status.QUARANTINED, "it died"),))
    assert (row["status"], row["message"]) == ("quarantined", "it died")
    assert relative_grading.score(EXAMPLE, (), SETTINGS)[0] is Status.FAILED


def test_a_shortened_prompt_is_counted_as_such() -> None:
    short = reply("[RESULT] B", n_truncated_tokens=3)
    assert score(ask(Judge({"swapped.0": short}, otherwise="[RESULT] A")))["status"] == "truncated"


def test_the_plan_measures_both_orders() -> None:
    example = dataclasses.replace(EXAMPLE, second_prompt="word " * 300)
    encoder: Any = ScriptedEncoder(max_model_len=200)
    found = lengths([example], load_protocol("relative_grading"), SETTINGS, encoder)
    assert found == {"e": 301 + SAMPLING.max_output_tokens}


def test_stored_replies_are_read_again_by_another_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = Judge({"given.0": "Better: B", "given.1": "[RESULT] A", "swapped.0": "[RESULT] A"})
    answers = ask(judge)
    assert (score(answers)["verdict"], score(answers)["verdict_swapped"]) == ("a", "b")
    old = relative_grading.read

    def generous(reply: Completion) -> Verdict[str]:
        return Verdict("B", "") if reply.text == "Better: B" else old(reply)

    monkeypatch.setattr(relative_grading, "read", generous)
    row = score(answers)
    assert (row["verdict"], row["verdict_swapped"]) == ("b", "b")
    assert (row["n_attempts"], row["refused"]) == (3, [])
    monkeypatch.setattr(relative_grading, "read", lambda _: Verdict(None, "", "no verdict"))
    assert score(answers)["message"] == "no usable verdict in 2 attempts (no verdict 2)"
    assert len(judge.asked) == 3


def test_counts_are_over_all_examples_also_missing_ones() -> None:
    examples = [dataclasses.replace(EXAMPLE, id=id) for id in "abc"]
    answers = [ask(Judge(otherwise="[RESULT] A")), ask(Judge()), (Failure(Status.FAILED, "x"),)]
    task = TaskSpec("relative_grading", SETTINGS, ("preference",), "r", "s")
    records = score_examples(examples, answers, task)
    assert relative_grading.tally(records) == {"attempts": 8, "refused_out_of_range": 6}
