"""Absolute grading: samples, budgets, seeds, reasons, failures, and scoring again."""

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raveval.engines import EngineDied
from raveval.engines.scripted import Options, ScriptedEncoder, ScriptedEngine
from raveval.evaluate import (
    TaskSpec,
    answer_examples,
    load_protocol,
    read_replies,
    replies_table,
    score_examples,
    shard_states,
    usage_of,
)
from raveval.judging import Verdict
from raveval.lengths import lengths
from raveval.protocols import Grading, TaskSettings, absolute_grading, schema
from raveval.types import Answers, Completion, DocumentScore, Example, Failure, Sampling, Status
from tests.judges import Judge, label_of, reply

SAMPLING = Sampling(64, temperature=1.0, top_p=0.9, repetition_penalty=1.03, stop=("###",))
SETTINGS = TaskSettings(SAMPLING, seed=7, grading=Grading(3, 4, 2))
EXAMPLE = Example(id="e", prompt="Judge this.", reference_ratings=(4.0, 5.0))


def ask(judge: Judge, settings: TaskSettings = SETTINGS, example: Example = EXAMPLE) -> Answers:
    return asyncio.run(absolute_grading.answer(example, judge, settings))


def score(answers: Answers, settings: TaskSettings = SETTINGS, example: Example = EXAMPLE) -> Any:
    """Return the example's record as the pipeline makes it, through storage and back."""
    stored = read_replies(replies_table([example], [answers]), [example])
    task = TaskSpec("absolute_grading", settings, absolute_grading.METRICS, "r", "s")
    records = score_examples([example], stored, task)
    assert records.schema == schema(absolute_grading.COLUMNS)
    return records.to_pylist()[0]


def test_three_readable_samples() -> None:
    judge = Judge(
        {"0.0": "Fine. [RESULT] 4", "1.0": "[RESULT] 5", "2.0": "Feedback: So so [RESULT] 2"}
    )
    row = score(ask(judge))
    assert (row["status"], row["message"]) == ("ok", None)
    assert row["rating"] == [4, 5, 2]
    assert row["feedback"] == ["Fine.", "", "So so"]
    assert (row["n_attempts"], row["refused"]) == (3, [])
    assert row["reference_rating"] == [4.0, 5.0]
    assert (row["scale_lowest"], row["scale_highest"]) == (1, 5)


def test_every_request_is_the_prompt_under_its_own_seed() -> None:
    judge = Judge(otherwise="no")
    answers = ask(judge)
    assert sorted(judge.labels) == [
        f"{sample}.{attempt}" for sample in range(3) for attempt in range(4)
    ]
    assert len(set(judge.seeds)) == 12
    for request in judge.asked:
        assert request.prompt == EXAMPLE.prompt
        assert not request.may_truncate
        assert dataclasses.replace(request.sampling, seed=None) == SAMPLING
    assert [a.label for a in answers if isinstance(a, Completion)] == sorted(judge.labels)


def test_seeds_come_from_run_seed_example_and_label_alone() -> None:
    def seeds(settings: TaskSettings, example: Example) -> dict[str, int | None]:
        judge = Judge(otherwise="no")
        ask(judge, settings, example)
        return dict(zip(judge.labels, judge.seeds, strict=True))

    first = seeds(SETTINGS, EXAMPLE)
    wider = dataclasses.replace(
        SETTINGS, sampling=Sampling(9), may_truncate=True, grading=Grading(5, 6, 1)
    )
    other = dataclasses.replace(EXAMPLE, prompt="Another prompt.", reference_ratings=())
    assert first.items() <= seeds(wider, other).items()
    assert not set(first.values()) & set(
        seeds(dataclasses.replace(SETTINGS, seed=8), EXAMPLE).values()
    )
    elsewhere = seeds(SETTINGS, dataclasses.replace(EXAMPLE, id="f"))
    assert not set(first.values()) & set(elsewhere.values())


def test_a_verdict_is_asked_for_until_it_can_be_read() -> None:
    judge = Judge(
        {"1.0": "Hm.", "1.1": "[RESULT] 9", "1.2": "It is [RESULT]…", "1.3": "[RESULT] 1"}
    )
    row = score(ask(judge))
    assert row["rating"] == [3, 1, 3]
    assert row["refused"] == ["no verdict", "out of range", "cut at max tokens"]
    assert row["n_attempts"] == 6


def test_reasons_are_said_and_counted_where_no_sample_can_be_read() -> None:
    judge = Judge(
        {
            f"{n}.{m}": ("2.5 [RESULT] 2.5" if m == 3 else f"[RESULT] {6 + n}")
            for n in range(3)
            for m in (1, 3)
        },
        otherwise="I think…",
    )
    row = score(ask(judge))
    assert row["status"] == "unjudged"
    assert row["message"] == (
        "no usable verdict in 12 attempts (cut at max tokens 6, not an integer 3, out of range 3)"
    )
    assert row["rating"] == [None] * 3
    assert row["n_attempts"] == len(row["refused"]) == 12
    assert row["feedback"] == ["2.5 [RESULT] 2.5"] * 3  # what it said last


def test_partial_samples_are_scored_on_what_there_is() -> None:
    judge = Judge({**{f"0.{m}": "no" for m in range(4)}, "2.0": "[RESULT] 4"})
    row = score(ask(judge))
    assert row["status"] == "ok"
    assert row["rating"] == [None, 3, 4]
    assert row["n_attempts"] == 6


def test_a_failure_ends_its_sample_alone() -> None:
    failure = Failure(Status.FAILED, "broke")
    judge = Judge({"0.0": "no", "0.1": failure})
    row = score(ask(judge))
    assert judge.labels.count("0.2") == 0
    assert row["status"] == "ok"
    assert row["rating"] == [None, 3, 3]
    assert (row["n_attempts"], row["refused"]) == (4, ["no verdict"])


@pytest.mark.parametrize("status", [Status.FAILED, Status.OVERLONG, Status.INVALID])
def test_failures_of_all_samples_are_the_examples(status: Status) -> None:
    row = score(ask(Judge({"0.0": "no"}, otherwise=Failure(status, "why"))))
    assert (row["status"], row["message"]) == (str(status), "why")
    assert row["rating"] == [None] * 3
    assert (row["n_attempts"], row["refused"]) == (4, ["no verdict"])


def test_a_failure_is_told_before_unreadable_samples() -> None:
    judge = Judge({"2.0": Failure(Status.FAILED, "broke")}, otherwise="no")
    row = score(ask(judge))
    assert (row["status"], row["message"]) == ("failed", "broke")
    assert len(row["refused"]) == 8


@pytest.mark.parametrize("status", [Status.QUARANTINED, Status.FAILED])
def test_a_failure_of_the_whole_example(status: Status) -> None:
    row = score((Failure(status, "it died"),))
    assert (row["status"], row["message"]) == (str(status), "it died")
    assert row["n_attempts"] is None


def test_no_replies_at_all_are_a_failure() -> None:
    assert absolute_grading.score(EXAMPLE, (), SETTINGS)[0] is Status.FAILED


def test_what_is_no_text_costs_the_example() -> None:
    judge = Judge(otherwise=DocumentScore(-1.0, None, 1, 1, 8, "bos", 2))
    with pytest.raises(TypeError, match="DocumentScore"):
        ask(judge)
    stored = (DocumentScore(-1.0, None, 1, 1, 8, "bos", 2),)
    row = score(stored)
    assert row["status"] == "failed"
    assert "unexpected DocumentScore" in row["message"]


def test_a_shortened_prompt_is_counted_as_such() -> None:
    short = reply("[RESULT] 2", n_truncated_tokens=5)
    assert score(ask(Judge({"1.0": short})))["status"] == "truncated"
    settings = dataclasses.replace(SETTINGS, may_truncate=True)
    judge = Judge()
    ask(judge, settings)
    assert all(request.may_truncate for request in judge.asked)
    unread = Judge(otherwise=reply("no", n_truncated_tokens=5))
    assert score(ask(unread))["status"] == "unjudged"


def test_the_plan_measures_what_is_asked() -> None:
    examples = [dataclasses.replace(EXAMPLE, id=n, prompt="word " * int(n)) for n in ("5", "500")]
    encoder: Any = ScriptedEncoder(max_model_len=200)
    found = lengths(examples, load_protocol("absolute_grading"), SETTINGS, encoder)
    assert found == {"500": 501 + SAMPLING.max_output_tokens}  # the other is short by its bytes


class TestScoringAgain:
    """Stored replies under another parser: no new question, and the record it would have made."""

    @pytest.fixture
    def answers(self) -> Answers:
        judge = Judge({"0.0": "Mark: 2", "0.1": "[RESULT] 4", "1.0": "Mark: 9", "1.1": "no"})
        return ask(judge)

    def test_by_a_parser_that_reads_more(
        self, answers: Answers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = score(answers)
        assert before["rating"] == [4, 3, 3]
        assert before["refused"] == ["no verdict", "no verdict", "no verdict"]
        old = absolute_grading.read

        def generous(reply: Completion) -> Verdict[int]:
            if not reply.text.startswith("Mark: "):
                return old(reply)
            mark = int(reply.text[-1])
            return Verdict(mark, "m") if mark < 6 else Verdict(None, "m", "out of range")

        monkeypatch.setattr(absolute_grading, "read", generous)
        after = score(answers)
        assert after["rating"] == [
            2,
            3,
            3,
        ]  # its first readable attempt, though a later one is there
        assert after["refused"] == ["out of range", "no verdict"]
        assert after["n_attempts"] == before["n_attempts"] == 6  # asked once and for all

    def test_by_a_parser_that_reads_less(
        self, answers: Answers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(absolute_grading, "read", lambda _: Verdict(None, "", "no verdict"))
        row = score(answers)
        assert row["status"] == "unjudged"
        assert row["message"] == "no usable verdict in 6 attempts (no verdict 6)"
        assert row["rating"] == [None] * 3


OUTCOMES = st.sampled_from(["[RESULT] 1", "[RESULT] 5", "no", "[RESULT] 6", "[RESULT] 3…", "fail"])


@given(
    st.lists(st.lists(OUTCOMES, min_size=6, max_size=6), min_size=1, max_size=4),
    st.integers(1, 6),
)
def test_any_course_of_events(said: Sequence[Sequence[str]], max_attempts: int) -> None:
    """The record against a plain reading of what each sample goes through."""
    failure = Failure(Status.FAILED, "broke")
    told = {
        f"{n}.{m}": failure if words == "fail" else words
        for n, course in enumerate(said)
        for m, words in enumerate(course)
    }
    settings = dataclasses.replace(SETTINGS, grading=Grading(len(said), max_attempts, 0))
    judge = Judge(told)
    row = score(ask(judge, settings), settings)
    ratings, n_asked, n_failed = list[int | None](), 0, 0
    for course in said:
        ends = [
            m for m, words in enumerate(course) if words in ("[RESULT] 1", "[RESULT] 5", "fail")
        ]
        last = min([*ends, max_attempts - 1])
        n_asked += last + 1
        is_read = course[last].startswith("[RESULT]") and course[last][-1] in "15"
        ratings.append(int(course[last][-1]) if is_read else None)
        n_failed += course[last] == "fail"
    assert row["rating"] == ratings
    assert row["n_attempts"] == n_asked == len(judge.asked)
    n_read = sum(rating is not None for rating in ratings)
    assert n_asked == n_read + len(row["refused"]) + n_failed
    expected = "ok" if n_read else "failed" if n_failed else "unjudged"
    assert row["status"] == expected
    assert len(set(judge.seeds)) == n_asked


def test_counts_are_over_all_examples_also_missing_ones() -> None:
    examples = [dataclasses.replace(EXAMPLE, id=id) for id in "abcd"]
    answers = [
        ask(Judge()),
        ask(Judge(otherwise="no")),
        ask(Judge({"0.0": "[RESULT] 7"}, otherwise=Failure(Status.FAILED, "broke"))),
        (Failure(Status.QUARANTINED, "died"),),
    ]
    task = TaskSpec("absolute_grading", SETTINGS, absolute_grading.METRICS, "r", "s")
    records = score_examples(examples, answers, task)
    assert records["status"].to_pylist() == ["ok", "unjudged", "failed", "quarantined"]
    assert absolute_grading.tally(records) == {
        "attempts": 3 + 12 + 4,
        "refused_no_verdict": 12,
        "refused_out_of_range": 1,
        "judge_failed": 3,
    }
    assert absolute_grading.tally(records.slice(0, 0)) == {"attempts": 0}
    states = shard_states(records, task.metrics, usage_of(answers), counts={"attempts": 19})
    assert states.counts == {"attempts": 19}
    assert states.by_status == {"failed": 1, "ok": 1, "quarantined": 1, "unjudged": 1}


def test_an_engine_that_raises_on_one_sample_costs_that_sample() -> None:
    asked: list[str] = []

    async def fragile(request: Any) -> Completion:
        asked.append(label_of(request))
        await asyncio.sleep(0)
        if label_of(request) == "0.0":
            raise ValueError("odd")
        await asyncio.sleep(0.01)
        return reply("[RESULT] 3")

    engine = ScriptedEngine(fragile, Options(), max_model_len=4096)
    task = TaskSpec("absolute_grading", SETTINGS, ("rating",), "r", "s")
    (answers,) = asyncio.run(answer_examples([EXAMPLE], engine, task))
    assert sorted(asked) == ["0.0", "1.0", "2.0"]
    assert answers[0] == Failure(Status.FAILED, "ValueError: odd", "0.0")
    assert score(answers)["rating"] == [None, 3, 3]


def test_a_dead_engine_ends_the_shard() -> None:
    async def dies(request: Any) -> Completion:
        if label_of(request) == "1.1":
            raise EngineDied("gone")
        return reply("no")

    engine = ScriptedEngine(dies, Options(), max_model_len=4096)
    task = TaskSpec("absolute_grading", SETTINGS, ("rating",), "r", "s")
    with pytest.raises(EngineDied, match="gone"):
        asyncio.run(answer_examples([EXAMPLE], engine, task))
