"""One shard without Ray: answers, records, states; whatever goes wrong becomes a value."""

import asyncio
import dataclasses
import json
import math

import pyarrow as pa
import pytest

from raveval.engines import Capability, EngineDied
from raveval.engines.scripted import Options, default_reply, start
from raveval.evaluate import (
    POOLED,
    TaskSpec,
    answer_examples,
    load_metric,
    load_protocol,
    read_replies,
    replies_table,
    score_examples,
    shard_states,
    usage_of,
)
from raveval.protocols import TaskSettings, schema
from raveval.types import (
    Answers,
    ChoiceScores,
    Completion,
    DocumentScore,
    Example,
    Failure,
    ModelRef,
    Reply,
    Request,
    Sampling,
    Status,
    Usage,
)

SETTINGS = TaskSettings(Sampling(16))
CHOICE = TaskSpec("multiple_choice", SETTINGS, ("accuracy",), "r", "s")
QUESTION = TaskSpec("question_answering", SETTINGS, ("squad",), "r", "s")
DOCUMENT = TaskSpec("language_modelling", SETTINGS, ("perplexity",), "r", "s")
EXAMPLES = [
    Example(id=str(n), prompt=f"q{n}", continuations=(" a", " bb"), gold=n % 2, group="gh"[n % 2])
    for n in range(6)
]


class _Engine:
    """An engine that answers from a function."""

    capabilities: frozenset[Capability] = frozenset()

    def __init__(self, answer):
        self._answer = answer

    async def reply(self, request: Request) -> Reply:
        reply: Reply = await self._answer(request)
        return reply

    def describe(self) -> dict[str, str | int | None]:
        return {}

    async def close(self) -> None:
        return


def ask(examples, answer, task=CHOICE):
    return asyncio.run(answer_examples(examples, _Engine(answer), task))


def test_answers_keep_the_order_of_the_examples() -> None:
    async def slow_first(request):
        await asyncio.sleep(0.05 if request.key == "0" else 0)
        return Completion(request.key, "stop", 1, 1)

    answers = ask(EXAMPLES, slow_first, QUESTION)
    assert [reply[0].text for reply in answers] == [example.id for example in EXAMPLES]


def test_one_fault_costs_one_example() -> None:
    async def fragile(request):
        if request.key == "2":
            raise ValueError("odd")
        if request.key == "3":
            return None
        return default_reply(request)

    answers = ask(EXAMPLES, fragile)
    assert answers[2] == (Failure(Status.FAILED, "ValueError: odd"),)
    assert answers[3] == (Failure(Status.FAILED, "the engine replied with NoneType"),)
    records = score_examples(EXAMPLES, answers, CHOICE)
    assert records["status"].to_pylist() == ["ok", "ok", "failed", "failed", "ok", "ok"]
    states = shard_states(records, CHOICE.metrics, usage_of(answers))
    assert states.by_status == {"failed": 2, "ok": 4}
    assert states.n_rows == 6


def test_half_an_emoji_is_marked_and_costs_nothing() -> None:
    async def cut(request):
        if request.key == "1":
            raise ValueError("\udfff")
        if request.key == "2":
            return Failure(Status.FAILED, "\ud83d")
        return Completion("so \ud83d", "stop", 1, 1)

    answers = ask(EXAMPLES, cut, QUESTION)
    assert read_replies(replies_table(EXAMPLES, answers), EXAMPLES) == answers
    assert answers[0] == (Completion("so \ufffd", "stop", 1, 1),)
    assert answers[1] == (Failure(Status.FAILED, "ValueError: \ufffd"),)
    assert answers[2] == (Failure(Status.FAILED, "\ufffd"),)


def test_a_reply_that_does_not_fit_costs_one_example() -> None:
    async def short(request):
        reply = default_reply(request)
        if request.key == "1" and isinstance(reply, ChoiceScores):
            return dataclasses.replace(reply, n_tokens=(1,))
        return reply

    records = score_examples(EXAMPLES, ask(EXAMPLES, short), CHOICE)
    assert records["status"].to_pylist() == ["ok", "failed", "ok", "ok", "ok", "ok"]
    assert "2 choices" in records["message"].to_pylist()[1]


def test_a_dead_engine_ends_the_shard() -> None:
    async def dead(request):
        raise EngineDied("gone")

    with pytest.raises(EngineDied, match="gone"):
        ask(EXAMPLES, dead)


@pytest.mark.parametrize(
    "reply",
    [
        Completion("ünïcode \n", "length", 3, 4, 1),
        ChoiceScores((-0.1, -math.inf), (-1e-300, -2.0), (1, 2), (True, False), 7, 20),
        ChoiceScores((-1 / 3,), None, (1,), (True,), 7, 20, 2),
        DocumentScore(-123.456789012345678, None, 10, 2, 8, "bos", 12),
        DocumentScore(-0.1, 0.2, 10, 2, 8, "eos", 12),
        Failure(Status.OVERLONG, "too long"),
    ],
)
def test_replies_survive_storage(reply) -> None:
    table = replies_table(EXAMPLES[:1], [(reply, reply)])
    assert read_replies(table, EXAMPLES[:1]) == [(reply, reply)]


def test_states_by_group_add_up_to_the_pooled_state() -> None:
    answers = ask(EXAMPLES, lambda request: _now(default_reply(request)))
    records = score_examples(EXAMPLES, answers, CHOICE)
    states = shard_states(records, CHOICE.metrics, Usage()).states
    assert set(states) == {POOLED, "g", "h"}
    metric = load_metric("accuracy")
    parts = [metric.decode(states[group]["accuracy"]) for group in "gh"]
    assert metric.encode(metric.merge(*parts)) == states[POOLED]["accuracy"]


def test_the_choice_is_in_the_records_and_a_tie_chooses_nothing() -> None:
    scores = [(-1.0, -2.0), (-2.0, -2.0), (-3.0, -1.0)]
    answers: list[Answers] = [
        (ChoiceScores(pair, None, (1, 1), (False, False), 1, 4),) for pair in scores
    ]
    answers.append((Failure(Status.OVERLONG, "too long"),))
    records = score_examples(EXAMPLES[:4], answers, CHOICE)
    assert records["gold"].to_pylist() == [0, 1, 0, None]
    assert records["predicted"].to_pylist() == [0, None, 1, None]
    assert records["is_correct"].to_pylist() == [True, False, False, None]


def test_records_have_the_schema_of_their_protocol() -> None:
    failures = [(Failure(Status.OVERLONG, "too long"),)] * len(EXAMPLES)
    for name in ("multiple_choice", "question_answering", "language_modelling"):
        task = TaskSpec(name, SETTINGS, (), "r", "s")
        records = score_examples(EXAMPLES, failures, task)
        assert records.schema == schema(load_protocol(name).COLUMNS)
        assert set(records["message"].to_pylist()) == {"too long"}


@pytest.mark.parametrize(
    ("name", "reply"),
    [
        ("multiple_choice", ChoiceScores((-1.0, -2.0), None, (1, 2), (True, False), 7, 20, 5)),
        ("question_answering", Completion("yes", "stop", 9, 1, 5)),
        ("language_modelling", ChoiceScores((-1.0,), None, (1,), (True,), 7, 20, 5)),
    ],
)
def test_a_shortened_prompt_is_scored_and_says_by_how_much(
    name: str, reply: ChoiceScores | Completion
) -> None:
    example = dataclasses.replace(EXAMPLES[0], references=("yes",), n_words=1)
    task = TaskSpec(name, SETTINGS, (), "r", "s")
    record = score_examples([example], [(reply,)], task)
    assert record["status"].to_pylist() == ["truncated"]
    assert record["message"].to_pylist() == [
        "5 tokens were cut off the beginning of the prompt",
    ]
    whole = dataclasses.replace(reply, n_truncated_tokens=0)
    assert score_examples([example], [(whole,)], task)["status"].to_pylist() == ["ok"]


def test_a_document_says_in_which_windows_and_behind_what_it_was_scored() -> None:
    reply = DocumentScore(-12.0, 20.0, 10, 3, 4, "eos", 13)
    record = score_examples([Example(id="e")], [(reply,)], DOCUMENT).to_pylist()[0]
    assert (record["n_windows"], record["window_tokens"]) == (3, 4)
    assert record["first_token_context"] == "eos"


def test_what_is_stored_of_a_text_does_not_grow_with_it() -> None:
    def stored(n_words: int) -> int:
        examples = [Example(id="e", text="word " * n_words)]
        replies = asyncio.run(
            answer_examples(examples, start(ModelRef(id="scripted"), Options()), DOCUMENT)
        )
        records = score_examples(examples, replies, DOCUMENT)
        states = shard_states(records, ("perplexity", "entropy"), usage_of(replies))
        assert replies_table(examples, replies)["reply"].to_pylist()[0].count("[") == 0
        return len(json.dumps(dataclasses.asdict(states)))

    assert stored(100_000) < stored(10) + 500  # some digits more


def test_an_empty_answer_is_wrong_and_not_missing() -> None:
    example = Example(id="e", prompt="p", references=("x",))
    record = score_examples([example], [(Completion(" \n", "stop", 1, 1),)], QUESTION)
    assert record["status"].to_pylist() == ["unparsed"]
    assert record["exact_match"].to_pylist() == [False]
    assert Status.UNPARSED.is_scored


def test_no_answer_is_an_answer_where_the_task_says_so() -> None:
    settings = TaskSettings(Sampling(16), no_answer="unanswerable")
    task = TaskSpec("question_answering", settings, ("squad2",), "r", "s")
    example = Example(id="e", prompt="p", references=())
    record = score_examples([example], [(Completion(" Unanswerable.", "stop", 1, 1),)], task)
    assert record["prediction"].to_pylist() == [""]
    assert record["status"].to_pylist() == ["ok"]


def test_seeds_depend_on_run_example_and_purpose_alone() -> None:
    seeds = {
        TaskSettings(Sampling(1), seed=seed).sampling_seed(id, purpose)
        for seed in (1, 2)
        for id in ("a", "b")
        for purpose in ("answer", "judge")
    }
    assert len(seeds) == 8
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert TaskSettings(Sampling(1), seed=1).sampling_seed("a", "answer") == 2099562801


def test_a_scripted_engine_runs_without_ray() -> None:
    engine = start(ModelRef(id="scripted"), Options())
    answers = asyncio.run(answer_examples(EXAMPLES, engine, CHOICE))
    records = score_examples(EXAMPLES, answers, CHOICE)
    assert isinstance(records, pa.Table)
    assert usage_of(answers).n_prompt_tokens > 0


async def _now(value):
    return value
