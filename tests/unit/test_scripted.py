"""The engine without a model: fixed, plausible, and as strict as a real one."""

import asyncio
import subprocess
import sys
import time
from typing import Any

import pytest

from raveval.engines import Capability, EngineDied, scripted
from raveval.engines.scripted import Options, default_reply
from raveval.errors import ConfigError
from raveval.types import (
    ChoiceScores,
    Completion,
    DocumentScore,
    Failure,
    Generate,
    Message,
    ModelRef,
    Reply,
    Request,
    Sampling,
    ScoreChoices,
    ScoreDocument,
    Status,
)

MODEL = ModelRef(id="scripted")
REQUESTS: tuple[Request, ...] = (
    Generate("g", "The cat sat on the mat", Sampling(32)),
    Generate("t", (Message("user", "The cat sat"),), Sampling(32, temperature=1.0, seed=7)),
    ScoreChoices("c", "Is it so? Answer:", (" yes", " no, it is not"), "Answer:"),
    ScoreDocument("d", "The cat sat on the mat. " * 50),
)


def ask(request: Request, *, model: ModelRef = MODEL, **options: Any) -> Reply:
    async def run() -> Reply:
        engine = scripted.start(model, Options(**options))
        return await engine.reply(request)

    return asyncio.run(run())


def echo(request: Request) -> Reply:
    return Completion(request.key, "stop", 1, 1)


async def echo_later(request: Request) -> Reply:
    await asyncio.sleep(0)
    return Completion(f"later {request.key}", "stop", 1, 1)


def test_replies_are_the_same_in_another_process() -> None:
    """Python's own `hash` would differ there."""
    code = (
        "from tests.unit.test_scripted import REQUESTS; "
        "from raveval.engines.scripted import default_reply; "
        "print([default_reply(r) for r in REQUESTS])"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout
    assert printed.strip() == str([default_reply(request) for request in REQUESTS])


def test_another_seed_is_another_model() -> None:
    for request in REQUESTS:
        assert ask(request) == ask(request, seed=0) != ask(request, seed=1)


def test_sampling_seed_matters_only_where_text_is_sampled() -> None:
    def text(temperature: float, seed: int) -> str:
        sampling = Sampling(64, temperature=temperature, seed=seed)
        reply = default_reply(Generate("k", "a b c d e f g h i j k l", sampling))
        assert isinstance(reply, Completion)
        return reply.text

    assert len({text(0.0, seed) for seed in range(5)}) == 1
    assert len({text(1.0, seed) for seed in range(5)}) > 1


def test_choice_scores_are_plausible() -> None:
    reply = default_reply(REQUESTS[2])
    assert isinstance(reply, ChoiceScores)
    assert reply.n_tokens == (1, 4)
    assert reply.unconditional_nats is not None
    sums = [*reply.logprob_nats, *reply.unconditional_nats]
    assert all(-4.0 * 4 <= total < 0 for total in sums)
    assert len(set(sums)) == 4
    assert reply.n_context_tokens == scripted.count_tokens("Is it so? Answer:")
    n_both_contexts = reply.n_context_tokens + scripted.count_tokens("Answer:")
    assert reply.n_prompt_tokens == 2 * n_both_contexts + 2 * sum(reply.n_tokens)


def test_document_score_is_plausible() -> None:
    reply = default_reply(REQUESTS[3], max_model_len=100)
    assert isinstance(reply, DocumentScore)
    assert reply.n_tokens == scripted.count_tokens("The cat sat on the mat. " * 50)
    assert reply.logprob_nats < 0 < (reply.entropy_nats or 0)
    assert reply.n_windows == -(-reply.n_tokens // 98)
    assert reply.window_tokens == 99


def test_completion_obeys_its_limits() -> None:
    for index in range(50):
        prompt = f"one two three four five {index}"
        reply = default_reply(Generate("k", prompt, Sampling(3, stop=("two", "five"))))
        assert isinstance(reply, Completion)
        assert "two" not in reply.text
        assert "five" not in reply.text
        assert reply.n_output_tokens <= 3
        assert scripted.count_tokens(reply.text) <= 3
    whole = default_reply(Generate("k", "one two", Sampling(1000)))
    assert isinstance(whole, Completion)
    assert whole.finish_reason == "stop"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (Generate("k", "word " * 100, Sampling(1)), Status.OVERLONG),
        (Generate("k", "word", Sampling(100)), Status.OVERLONG),
        (ScoreChoices("k", "word " * 100, (" yes",)), Status.OVERLONG),
        (ScoreChoices("k", "word", (" yes", "")), Status.INVALID),
        (ScoreChoices("k", "word", ()), Status.INVALID),
        (ScoreDocument("k", ""), Status.INVALID),
        (ScoreDocument("k", "\ud800"), Status.INVALID),
    ],
)
def test_refuses_what_a_model_refuses(request_: Request, status: Status) -> None:
    reply = ask(request_, model=ModelRef(id="scripted", max_model_len=64))
    assert isinstance(reply, Failure)
    assert reply.status is status
    fits = scripted.encoder(MODEL, Options(max_model_len=64)).size(request_) <= 64
    assert fits == (status is Status.INVALID)


def test_truncates_where_it_may() -> None:
    request = ScoreChoices("k", "word " * 100, (" yes",), may_truncate=True)
    reply = ask(request, max_model_len=64)
    assert isinstance(reply, ChoiceScores)
    size = scripted.encoder(MODEL, Options(max_model_len=64)).size(request)
    assert reply.n_truncated_tokens == size - 64 > 0


def test_long_document_fits_in_windows() -> None:
    request = ScoreDocument("k", "word " * 1000)
    assert scripted.encoder(MODEL, Options(max_model_len=64)).size(request) == 64
    assert isinstance(ask(request, max_model_len=64), DocumentScore)


def test_script_may_be_a_function_or_a_coroutine() -> None:
    reply = ask(REQUESTS[0], script="tests.unit.test_scripted:echo")
    assert reply == Completion("g", "stop", 1, 1)
    reply = ask(REQUESTS[0], script="tests.unit.test_scripted:echo_later")
    assert reply == Completion("later g", "stop", 1, 1)


@pytest.mark.parametrize(
    "script", ["tests.unit.test_scripted", "tests.unit.test_scripted:nothing", "no.module:f", ":f"]
)
def test_script_that_is_not_there_is_refused(script: str) -> None:
    with pytest.raises(ConfigError, match=r"expected|Expected 'package.module:function'"):
        ask(REQUESTS[0], script=script)


def test_replies_wait_side_by_side() -> None:
    async def run() -> float:
        engine = scripted.start(MODEL, Options(latency_seconds=0.1))
        started = time.monotonic()
        await asyncio.gather(*(engine.reply(REQUESTS[0]) for _ in range(50)))
        return time.monotonic() - started

    assert 0.1 <= asyncio.run(run()) < 2.0  # one after the other would take 5 s


def test_closed_engine_answers_no_more() -> None:
    async def run() -> None:
        engine = scripted.start(MODEL, Options())
        await engine.close()
        with pytest.raises(EngineDied):
            await engine.reply(REQUESTS[0])

    asyncio.run(run())


def test_says_what_it_is() -> None:
    engine = scripted.start(ModelRef(id="scripted", max_model_len=64), Options(seed=3))
    assert engine.capabilities == frozenset(Capability)
    assert engine.describe() == {
        "engine": "scripted",
        "script": "",
        "seed": 3,
        "max_model_len": 64,
    }
