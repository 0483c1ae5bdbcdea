"""Ranking: rounds of ties, a person's tie, budgets, failures, and scoring again."""

import asyncio
import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raveval.engines.scripted import ScriptedEncoder
from raveval.evaluate import TaskSpec, load_protocol, read_replies, replies_table, score_examples
from raveval.judging import Verdict
from raveval.lengths import lengths
from raveval.protocols import Grading, TaskSettings, ranking, schema
from raveval.protocols.absolute_grading import read
from raveval.types import Answers, Completion, Example, Failure, Message, Reply, Sampling, Status
from tests.judges import Judge, reply

SAMPLING = Sampling(64, temperature=1.0, stop=("###",))
SETTINGS = TaskSettings(SAMPLING, seed=7, grading=Grading(3, 2, 3))
EXAMPLE = Example(id="e", prompt="Judge a.", second_prompt="Judge b.", preferred="a")
HUMAN_TIE = dataclasses.replace(EXAMPLE, preferred="tie")
BROKE = Failure(Status.FAILED, "broke")


def scores(a: Sequence[int], b: Sequence[int], *, first: int = 0) -> dict[str, str | Reply]:
    """Return what a judge says that gives these scores, round by round, at the first attempt."""
    return {
        f"{side}{index}.0": f"[RESULT] {value}"
        for side, values in (("a", a), ("b", b))
        for index, value in enumerate(values, first)
    }


def ask(judge: Judge, settings: TaskSettings = SETTINGS, example: Example = EXAMPLE) -> Answers:
    return asyncio.run(ranking.answer(example, judge, settings))


def score(answers: Answers, settings: TaskSettings = SETTINGS, example: Example = EXAMPLE) -> Any:
    """Return the example's record as the pipeline makes it, through storage and back."""
    stored = read_replies(replies_table([example], [answers]), [example])
    task = TaskSpec("ranking", settings, ranking.METRICS, "r", "s")
    records = score_examples([example], stored, task)
    assert records.schema == schema(ranking.COLUMNS)
    return records.to_pylist()[0]


@pytest.mark.parametrize(("a", "b", "verdict"), [(4, 2, "a"), (1, 5, "b")])
def test_the_higher_score_wins(a: int, b: int, verdict: str) -> None:
    judge = Judge(scores([a], [b]))
    row = score(ask(judge))
    assert sorted(judge.labels) == ["a0.0", "b0.0"]
    assert {r.key[2]: r.prompt for r in judge.asked} == {"a": "Judge a.", "b": "Judge b."}
    assert (row["status"], row["verdict"], row["preferred"]) == ("ok", verdict, "a")
    assert (row["scores_a"], row["scores_b"]) == ([a], [b])
    assert (row["n_rounds"], row["n_attempts"], row["refused"]) == (1, 2, [])


def test_a_tie_is_drawn_again_with_other_seeds() -> None:
    judge = Judge(scores([3, 2, 5], [3, 2, 4]))
    row = score(ask(judge))
    assert sorted(judge.labels) == ["a0.0", "a1.0", "a2.0", "b0.0", "b1.0", "b2.0"]
    assert len(set(judge.seeds)) == 6
    assert row["verdict"] == "a"
    assert (row["scores_a"], row["scores_b"]) == ([3, 2, 5], [3, 2, 4])
    assert (row["n_rounds"], row["n_attempts"]) == (3, 6)
    other = Judge(scores([3, 2, 5], [3, 2, 4]))
    ask(other, example=dataclasses.replace(EXAMPLE, prompt="x", second_prompt="y"))
    assert other.seeds == judge.seeds


@pytest.mark.parametrize("max_tie_rounds", [0, 1, 5])
def test_the_budget_of_rounds_ends_in_unresolved(max_tie_rounds: int) -> None:
    settings = dataclasses.replace(SETTINGS, grading=Grading(3, 2, max_tie_rounds))
    judge = Judge()
    row = score(ask(judge, settings), settings)
    n_draws = 1 + max_tie_rounds
    assert len(judge.asked) == 2 * n_draws
    assert len(set(judge.seeds)) == 2 * n_draws
    assert row["status"] == "unresolved"
    assert row["message"] == f"equal scores in {n_draws} of {n_draws} draws"
    assert row["verdict"] is None
    assert row["scores_a"] == row["scores_b"] == [3] * n_draws
    assert (row["n_rounds"], row["n_attempts"]) == (n_draws, 2 * n_draws)


@pytest.mark.parametrize(("a", "b", "verdict"), [(3, 3, "tie"), (4, 3, "a"), (1, 2, "b")])
def test_where_the_person_saw_a_tie_the_first_draw_decides(a: int, b: int, verdict: str) -> None:
    judge = Judge(scores([a], [b]))
    row = score(ask(judge, example=HUMAN_TIE), example=HUMAN_TIE)
    assert len(judge.asked) == 2
    assert (row["status"], row["verdict"], row["preferred"]) == ("ok", verdict, "tie")


def test_unreadable_scores_are_asked_for_again_inside_a_round() -> None:
    judge = Judge(
        {**scores([3, 4], [3, 2]), "b0.0": "[RESULT] 8", "b0.1": "[RESULT] 3", "a1.0": "Hm…"}
    )
    judge.said = {**judge.said, "a1.1": "[RESULT] 5"}
    row = score(ask(judge))
    assert row["verdict"] == "a"
    assert (row["scores_a"], row["scores_b"]) == ([3, 5], [3, 2])
    assert row["refused"] == ["out of range", "cut at max tokens"]
    assert row["n_attempts"] == 6


def test_a_score_that_cannot_be_read_is_unjudged_in_any_round() -> None:
    judge = Judge(
        {**scores([3], [3]), "a1.0": "no", "a1.1": "[RESULT] 2", "b1.0": "no", "b1.1": "6…"}
    )
    row = score(ask(judge))
    assert row["status"] == "unjudged"
    assert row["message"] == "no usable verdict in 2 attempts (cut at max tokens 1, no verdict 1)"
    assert (row["scores_a"], row["scores_b"]) == ([3, 2], [3, None])
    assert row["refused"] == ["no verdict", "no verdict", "cut at max tokens"]
    assert (row["verdict"], row["n_rounds"], row["n_attempts"]) == (None, 2, 6)


@pytest.mark.parametrize("example", [EXAMPLE, HUMAN_TIE])
def test_two_unreadable_scores_are_no_tie(example: Example) -> None:
    judge = Judge(otherwise="no")
    row = score(ask(judge, example=example), example=example)
    assert row["status"] == "unjudged"
    assert row["message"] == "no usable verdict in 4 attempts (no verdict 4)"
    assert len(judge.asked) == 4


@pytest.mark.parametrize("place", ["a0.0", "b0.0", "a1.0", "b1.1"])
def test_a_failure_inside_a_round_is_the_examples(place: str) -> None:
    judge = Judge({"b1.0": "no", place: BROKE})
    row = score(ask(judge))
    assert (row["status"], row["message"], row["verdict"]) == ("failed", "broke", None)
    assert row["n_attempts"] == len(judge.asked)
    assert row["n_rounds"] == int(place[1]) + 1
    side, index, attempt = place[0], int(place[1]), int(place[3])
    assert f"{side}{index}.{attempt + 1}" not in judge.labels
    assert f"{side}{index + 1}.0" not in judge.labels


def test_a_failure_is_told_before_an_unreadable_score() -> None:
    row = score(ask(Judge({"a0.0": "no", "a0.1": "no", "b0.0": BROKE})))
    assert (row["status"], row["refused"]) == ("failed", ["no verdict"] * 2)


@pytest.mark.parametrize("status", [Status.QUARANTINED, Status.FAILED, Status.OVERLONG])
def test_a_failure_of_the_whole_example(status: Status) -> None:
    row = score((Failure(status, "it died"),))
    assert (row["status"], row["message"]) == (str(status), "it died")
    assert row["verdict"] is None
    assert ranking.score(EXAMPLE, (), SETTINGS)[0] is Status.FAILED


def test_a_shortened_prompt_is_counted_as_such() -> None:
    judge = Judge({"a0.0": reply("[RESULT] 1"), "b0.0": reply("[RESULT] 2", n_truncated_tokens=3)})
    row = score(ask(judge))
    assert (row["status"], row["verdict"]) == ("truncated", "b")


def test_the_plan_measures_both_prompts() -> None:
    turns = (Message("system", "Be fair."), Message("user", "word " * 300))
    example = dataclasses.replace(EXAMPLE, second_prompt=turns)
    encoder: Any = ScriptedEncoder(max_model_len=200)
    found = lengths([example], load_protocol("ranking"), SETTINGS, encoder)
    assert found == {"e": (1 + 3) + (1 + 301) + SAMPLING.max_output_tokens}


class TestScoringAgain:
    """Stored replies under another parser, with no judge to ask."""

    def test_by_a_parser_that_reads_more_an_earlier_round_decides(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        judge = Judge({**scores([3, 5], [3, 1]), "b0.0": "Mark: 4", "b0.1": "[RESULT] 3"})
        answers = ask(judge)
        before = score(answers)
        assert (before["verdict"], before["n_rounds"]) == ("a", 2)
        _read_marks_too(monkeypatch)
        after = score(answers)
        assert (after["verdict"], after["scores_a"], after["scores_b"]) == ("b", [3], [4])
        assert (after["n_rounds"], after["refused"]) == (1, [])
        assert after["n_attempts"] == before["n_attempts"] == 5

    def test_by_a_parser_that_reads_more_a_tie_may_lack_its_next_round(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        judge = Judge({"a0.0": "[RESULT] 4", "b0.0": "Mark: 4", "b0.1": "[RESULT] 2"})
        answers = ask(judge)
        assert score(answers)["verdict"] == "a"
        _read_marks_too(monkeypatch)
        row = score(answers)
        assert row["status"] == "unresolved"
        assert row["message"] == "equal scores in 1 of 4 draws"
        tie = score(answers, example=HUMAN_TIE)
        assert (tie["status"], tie["verdict"]) == ("ok", "tie")

    def test_by_a_parser_that_reads_what_was_unjudged(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answers = ask(Judge({"a0.0": "Mark: 1", "a0.1": "Mark: 2"}))
        assert score(answers)["status"] == "unjudged"
        _read_marks_too(monkeypatch)
        row = score(answers)
        assert (row["status"], row["verdict"], row["scores_a"]) == ("ok", "b", [1])

    def test_by_a_parser_that_reads_less(self, monkeypatch: pytest.MonkeyPatch) -> None:
        answers = ask(Judge(scores([3, 5], [3, 1])))

        def strict(reply: Completion) -> Verdict[int]:
            return Verdict(None, "", "no verdict") if "3" in reply.text else read(reply)

        monkeypatch.setattr(ranking, "read", strict)
        row = score(answers)
        assert row["status"] == "unjudged"
        assert row["message"] == "no usable verdict in 2 attempts (no verdict 2)"
        assert (row["n_rounds"], row["n_attempts"]) == (1, 4)


def _read_marks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def generous(reply: Completion) -> Verdict[int]:
        if reply.text.startswith("Mark: "):
            return Verdict(int(reply.text[-1]), "")
        return read(reply)

    monkeypatch.setattr(ranking, "read", generous)


@given(
    seed=st.integers(0, 2**32),
    n_values=st.integers(1, 4),
    max_attempts=st.integers(1, 4),
    max_tie_rounds=st.integers(0, 4),
    preferred=st.sampled_from(["a", "b", "tie"]),
)
def test_any_course_of_events(
    seed: int, n_values: int, max_attempts: int, max_tie_rounds: int, preferred: str
) -> None:
    """The record against the paper's loop, written down plainly."""
    source = random.Random(seed)
    words = [*(f"[RESULT] {n}" for n in range(1, n_values + 1)), "no", "fail"]
    weights = [6] * n_values + [3, 1]
    told: dict[str, str | Reply] = {
        f"{side}{index}.{attempt}": BROKE if drawn == "fail" else drawn
        for side in "ab"
        for index in range(1 + max_tie_rounds)
        for attempt in range(max_attempts)
        for drawn in source.choices(words, weights)
    }
    settings = dataclasses.replace(SETTINGS, grading=Grading(1, max_attempts, max_tie_rounds))
    example = dataclasses.replace(EXAMPLE, preferred=preferred)
    judge = Judge(told)
    row = score(ask(judge, settings, example), settings, example)
    status, verdict, n_asked, n_rounds = _plainly(told, settings.grading, preferred)
    assert (row["status"], row["verdict"]) == (status, verdict)
    assert row["n_attempts"] == n_asked == len(judge.asked) == len(set(judge.seeds))
    assert row["n_rounds"] == n_rounds
    assert n_asked <= 2 * (1 + max_tie_rounds) * max_attempts


def _plainly(
    told: dict[str, str | Reply], grading: Grading, preferred: str
) -> tuple[str, str | None, int, int]:
    n_asked = 0
    for index in range(1 + grading.max_tie_rounds):
        found: list[Any] = []
        for side in "ab":
            found.append(None)
            for attempt in range(grading.max_attempts):
                said = told[f"{side}{index}.{attempt}"]
                n_asked += 1
                if said is BROKE:
                    found[-1] = "broke"
                    break
                if said != "no":
                    found[-1] = int(str(said)[-1])
                    break
        n_rounds = index + 1
        if "broke" in found:
            return "failed", None, n_asked, n_rounds
        if None in found:
            return "unjudged", None, n_asked, n_rounds
        a, b = found
        if a != b:
            return "ok", "a" if a > b else "b", n_asked, n_rounds
        if preferred == "tie":
            return "ok", "tie", n_asked, n_rounds
    return "unresolved", None, n_asked, 1 + grading.max_tie_rounds


def test_counts_are_over_all_examples_also_missing_ones() -> None:
    examples = [dataclasses.replace(EXAMPLE, id=id) for id in "abcd"]
    answers = [
        ask(Judge(scores([3, 4], [3, 2]))),  # one tie
        ask(Judge()),  # three of them, and the first draw
        ask(Judge(otherwise="no")),
        (Failure(Status.QUARANTINED, "died"),),
    ]
    task = TaskSpec("ranking", SETTINGS, ranking.METRICS, "r", "s")
    records = score_examples(examples, answers, task)
    assert records["status"].to_pylist() == ["ok", "unresolved", "unjudged", "quarantined"]
    assert ranking.tally(records) == {
        "attempts": 4 + 8 + 4,
        "refused_no_verdict": 4,
        "tie_rounds": 1 + 3,
    }
