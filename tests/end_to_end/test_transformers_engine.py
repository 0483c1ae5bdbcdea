"""The reference engine against a plain forward pass: no padding, no batch, float64.

Tolerances: 1e-4 nats a token. Both sides run in float32; what differs is the order of additions in
batched matrix products, and the float64 log-softmax of this side (measured: below 1e-5 a token).
"""

import asyncio
import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from raveval.engines import _torch_model
from raveval.engines import transformers as engine
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
from tests.end_to_end.direct import Direct

pytestmark = pytest.mark.model

NATS_PER_TOKEN = 1e-4
BOS = 1
WINDOW = 255  # of a context of 256

Ask = Callable[..., list[Reply]]


@pytest.fixture(scope="module")
def ask(demo_model: Path) -> Iterator[Ask]:
    """Send requests to one engine, all at once."""
    running = engine.start(
        ModelRef(path=str(demo_model), max_model_len=WINDOW + 1), engine.Options()
    )

    async def gather(requests: tuple[Request, ...]) -> list[Reply]:
        return list(await asyncio.gather(*map(running.reply, requests)))

    yield lambda *requests: asyncio.run(gather(requests))
    asyncio.run(running.close())


def test_nothing_is_computed_in_the_thread_that_starts_the_engine(
    demo_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading: list[threading.Thread] = []

    def load(*_: object, **__: object) -> None:
        loading.append(threading.current_thread())
        raise MemoryError("no room for the weights")

    monkeypatch.setattr(_torch_model, "load", load)
    with pytest.raises(MemoryError, match="no room for the weights"):
        engine.start(ModelRef(path=str(demo_model)), engine.Options())
    (thread,) = loading
    assert thread is not threading.current_thread()
    assert not thread.is_alive()  # and its OpenMP threads have ended with it


@pytest.fixture(scope="module")
def paragraphs(shared_data: Path) -> list[str]:
    """Real paragraphs of WikiText-2, the longer ones."""
    lines = (shared_data / "text" / "wikitext2.valid.raw").read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if len(line) > 400][:12]


def choices_of(paragraphs: list[str], n: int) -> list[ScoreChoices]:
    """Ask for the true next words of paragraphs against those of three other paragraphs."""
    requests = []
    for index in range(n):
        words = [paragraph.split(" ") for paragraph in paragraphs]
        cut = 15 + 4 * index
        context = " ".join(words[index][:cut])
        ends = [words[(index + shift) % len(words)][cut : cut + 2 + shift] for shift in range(4)]
        continuations = tuple(" " + " ".join(end) for end in ends)
        requests.append(ScoreChoices(f"choice {index}", context, continuations, "So it is:"))
    return requests


def test_choices_equal_the_direct_forward(ask: Ask, direct: Direct, paragraphs: list[str]) -> None:
    requests = choices_of(paragraphs, 6)
    # An easy one, so that there is a greedy continuation among them.
    requests.append(ScoreChoices("e", "The capital of France is", (" Paris", " a fish"), ""))
    worst, n_greedy = 0.0, 0
    for request, reply in zip(requests, ask(*requests), strict=True):
        assert isinstance(reply, ChoiceScores)
        assert isinstance(request.context, str)
        assert isinstance(request.unconditional_context, str)
        assert reply.unconditional_nats is not None
        context = direct.ids(request.context)
        unconditional = direct.ids(request.unconditional_context) or [BOS]
        assert reply.n_context_tokens == len(context)
        for j, continuation in enumerate(request.continuations):
            ids = direct.ids(request.context + continuation)[len(context) :]
            expected = direct.score(context + ids, len(ids))
            alone = direct.ids(continuation)
            without = direct.score(unconditional + alone, len(alone))
            assert reply.n_tokens[j] == len(ids)
            assert reply.is_greedy[j] == bool(expected.is_top.all())
            n_greedy += reply.is_greedy[j]
            errors = (
                reply.logprob_nats[j] - math.fsum(expected.logprob),
                reply.unconditional_nats[j] - math.fsum(without.logprob),
            )
            worst = max(worst, *(abs(error) / len(ids) for error in errors))
    assert worst < NATS_PER_TOKEN
    assert n_greedy > 0


def test_document_equals_the_direct_forward_token_by_token(
    ask: Ask, direct: Direct, paragraphs: list[str]
) -> None:
    text = "\n".join(paragraphs[:5])
    ids = [BOS, *direct.ids(text)]
    assert len(ids) > 2 * WINDOW
    logprobs: list[float] = []
    entropies: list[float] = []
    n_windows = 0
    done = 1
    while done < len(ids):
        stop = min(done + WINDOW - 1, len(ids))
        start = max(stop - WINDOW, 0)
        measured = direct.score(ids[start:stop], stop - done)
        logprobs += measured.logprob.tolist()
        entropies += measured.entropy.tolist()
        done = stop
        n_windows += 1
    (reply,) = ask(ScoreDocument("d", text))
    assert isinstance(reply, DocumentScore)
    assert reply.entropy_nats is not None
    assert reply.n_tokens == len(ids) - 1 == len(logprobs)
    assert (reply.n_windows, reply.window_tokens) == (n_windows, WINDOW)
    assert abs(reply.logprob_nats - math.fsum(logprobs)) / len(logprobs) < NATS_PER_TOKEN
    assert abs(reply.entropy_nats - math.fsum(entropies)) / len(logprobs) < NATS_PER_TOKEN


def test_each_token_equals_the_direct_forward(
    ask: Ask, direct: Direct, paragraphs: list[str]
) -> None:
    """One token at a time, so that no error hides in a sum."""
    ids = direct.ids(paragraphs[0])[:40]
    decode = direct.tokenizer.decode
    pairs = [
        (decode(ids[:n]), decode(ids[n : n + 1]))
        for n in range(1, len(ids))
        if direct.ids(decode(ids[: n + 1])) == ids[: n + 1] and not decode(ids[:n]).endswith(" ")
    ]
    assert len(pairs) > 20
    requests = [ScoreChoices("k", context, (piece,)) for context, piece in pairs]
    for (context, piece), reply in zip(pairs, ask(*requests), strict=True):
        assert isinstance(reply, ChoiceScores)
        assert reply.n_tokens == (1,)
        whole = direct.ids(context + piece)
        expected = direct.score(whole, 1)
        assert reply.logprob_nats[0] == pytest.approx(float(expected.logprob), abs=NATS_PER_TOKEN)
        assert reply.is_greedy == (bool(expected.is_top),)


def test_company_in_the_batch_changes_nothing(ask: Ask, paragraphs: list[str]) -> None:
    requests: list[Request] = [*choices_of(paragraphs, 5)]
    requests += [ScoreDocument(str(n), paragraph) for n, paragraph in enumerate(paragraphs[:4])]
    alone = [ask(request)[0] for request in requests]
    together = ask(*reversed(requests))[::-1]
    for a, b in zip(alone, together, strict=True):
        if isinstance(a, ChoiceScores):
            assert isinstance(b, ChoiceScores)
            assert a.is_greedy == b.is_greedy
            for x, y, n in zip(a.logprob_nats, b.logprob_nats, a.n_tokens, strict=True):
                assert abs(x - y) / n < NATS_PER_TOKEN
        else:
            assert isinstance(a, DocumentScore)
            assert isinstance(b, DocumentScore)
            assert abs(a.logprob_nats - b.logprob_nats) / a.n_tokens < NATS_PER_TOKEN
            assert a.entropy_nats is not None
            assert b.entropy_nats is not None
            assert abs(a.entropy_nats - b.entropy_nats) / a.n_tokens < NATS_PER_TOKEN


@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_greedy_text_equals_that_of_generate(
    ask: Ask, direct: Direct, paragraphs: list[str], penalty: float
) -> None:
    prompts = [" ".join(paragraph.split(" ")[:30]) for paragraph in paragraphs[:3]]
    sampling = Sampling(24, repetition_penalty=penalty)
    replies = ask(*(Generate("g", prompt, sampling) for prompt in prompts))
    for prompt, reply in zip(prompts, replies, strict=True):
        ids = torch.tensor([direct.ids(prompt)])
        with torch.inference_mode():
            output = direct.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=24,
                repetition_penalty=penalty,
            )[0, ids.shape[1] :]
        assert isinstance(reply, Completion)
        assert reply.text == direct.tokenizer.decode(output, skip_special_tokens=True)
        assert reply.n_output_tokens == len(output)
        assert reply.n_prompt_tokens == ids.shape[1]


def test_chat_answer_stops_at_the_end_token(ask: Ask) -> None:
    turns = (Message("user", "What is the capital of France?"),)
    (reply,) = ask(Generate("g", turns, Sampling(32)))
    assert isinstance(reply, Completion)
    assert "Paris" in reply.text
    assert "<|im_end|>" not in reply.text
    assert reply.finish_reason == "stop"
    (cut,) = ask(Generate("g", turns, Sampling(3)))
    assert isinstance(cut, Completion)
    assert (cut.finish_reason, cut.n_output_tokens) == ("length", 3)
    assert reply.text.startswith(cut.text)


def test_stop_string_ends_the_text_exactly(ask: Ask) -> None:
    turns = (Message("user", "What is the capital of France?"),)
    (whole,) = ask(Generate("g", turns, Sampling(32)))
    assert isinstance(whole, Completion)
    # In the middle of a token, across two tokens, and the earlier of two.
    for stops in ((" capi",), ("of Fr",), ("France", "capital"), ("\n\n", "Par")):
        (reply,) = ask(Generate("g", turns, Sampling(32, stop=stops)))
        assert isinstance(reply, Completion)
        places = [whole.text.find(stop) for stop in stops if stop in whole.text]
        assert reply.text == whole.text[: min(places)]
        assert reply.finish_reason == "stop"
        assert reply.n_output_tokens < whole.n_output_tokens


def test_sampled_text_depends_on_the_seed_alone(ask: Ask) -> None:
    def request(seed: int) -> Generate:
        sampling = Sampling(12, temperature=1.0, top_p=0.9, repetition_penalty=1.03, seed=seed)
        return Generate("g", "Once upon a time", sampling)

    alone = [ask(request(seed))[0] for seed in range(4)]
    busy = ask(ScoreDocument("d", "Once upon a time there was a cat."), *map(request, (3, 2, 1, 0)))
    assert busy[:0:-1] == alone
    assert len({reply.text for reply in alone if isinstance(reply, Completion)}) == 4


def test_refused_requests_stand_beside_answered_ones(ask: Ask) -> None:
    long, empty, fine = ask(
        Generate("long", "word " * 1000, Sampling(4)),
        ScoreDocument("empty", ""),
        ScoreChoices("fine", "The capital of France is", (" Paris",)),
    )
    assert isinstance(long, Failure)
    assert long.status is Status.OVERLONG
    assert isinstance(empty, Failure)
    assert empty.status is Status.INVALID
    assert isinstance(fine, ChoiceScores)
