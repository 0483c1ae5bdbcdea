"""vLLM against a float32 forward pass with a float64 log-softmax, on real text.

Tolerances: 2e-4 nats a token, 1e-3 a sum over a choice, 1e-4 for an entropy a token; both sides run
in float32 and differ in the order of additions (measured here: 4e-5 a token). Between two runs of
vLLM itself (order, company in the batch, prefix cache) the same tolerances hold; on CPUs the
numbers are equal.
"""

import asyncio
import gc
import importlib
import json
import logging
import math
import os
import signal
import time
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch

from raveval.engines import Capability, EngineDied, vllm
from raveval.engines._encoding import Sequence
from raveval.engines._vllm_backends import RequestFailed
from raveval.engines._vllm_scorer import Scorer, check
from raveval.errors import ModelError, ResourceError, RunError
from raveval.types import (
    ChoiceScores,
    Completion,
    DocumentScore,
    Generate,
    Message,
    ModelRef,
    Sampling,
    ScoreChoices,
    ScoreDocument,
    Status,
)
from tests.checkpoints import write_checkpoint

pytestmark = pytest.mark.model
log = logging.getLogger(__name__)  # the differences found: pytest --log-cli-level=INFO

TOKEN_NATS = 2e-4
SUM_NATS = 1e-3
ENTROPY_NATS = 1e-4
CONTEXT = 512
BLOCK = 32  # tokens of a cache block on CPUs


@pytest.fixture(scope="module")
def model(demo_model):
    # Metrics may have loaded numba before an engine starts, and vLLM's start on CPUs trips over it.
    importlib.import_module("llvmlite.binding.ffi")
    return ModelRef(path=str(demo_model), dtype="float32", max_model_len=CONTEXT)


@pytest.fixture(scope="module")
def engine(model, direct):
    running: Any = vllm.start(model, vllm.Options())
    yield running
    asyncio.run(running.close())


@pytest.fixture(scope="module")
def plain(engine):
    """The same vLLM without the hook: its own log-probabilities."""
    return vllm.VllmEngine(
        engine._backend,
        engine._encoder,
        engine._config,
        vllm.Options(score_hook=False),
        "in_process",
    )


@pytest.fixture(scope="module")
def arc(shared_data):
    """ARC-Easy, few-shot."""
    lines = (shared_data / "choice" / "ai2_arc_ARC-Easy_validation.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines[:40]]

    def question(row):
        return f"Question: {row['question']}\nAnswer:"

    def answered(row):
        text = row["choices"]["text"][row["choices"]["label"].index(row["answerKey"])]
        return f"{question(row)} {text}\n\n"

    def make(n, n_shots):
        head = "".join(answered(row) for row in rows[30 : 30 + n_shots])
        return [
            ScoreChoices(
                row["id"],
                head + question(row),
                tuple(f" {text}" for text in row["choices"]["text"]),
                unconditional_context="Answer:",
            )
            for row in rows[:n]
        ]

    return make


@pytest.fixture(scope="module")
def articles(shared_data):
    """Articles of WikiText-2, as they stand."""
    text = (shared_data / "text" / "wikitext2.valid.raw").read_text()
    return [part for part in text.split("\n = ") if len(part) > 2000]


def ask(engine, *requests):
    async def all_at_once():
        return await asyncio.gather(*(engine.reply(request) for request in requests))

    return asyncio.run(all_at_once())


def one_by_one(engine, requests):
    return [ask(engine, request)[0] for request in requests]


def assert_same(a, b):
    """Two runs of vLLM agree within the tolerances; return the largest difference."""
    assert type(a) is type(b)
    if isinstance(a, Completion):
        assert a == b
        return 0.0
    if isinstance(a, DocumentScore):
        difference = abs(a.logprob_nats - b.logprob_nats) / a.n_tokens
        assert difference < TOKEN_NATS
        if a.entropy_nats is not None and b.entropy_nats is not None:
            assert abs(a.entropy_nats - b.entropy_nats) < ENTROPY_NATS * a.n_tokens
        return difference
    assert (a.n_tokens, a.is_greedy, a.n_prompt_tokens) == (
        b.n_tokens,
        b.is_greedy,
        b.n_prompt_tokens,
    )
    pairs = [*zip(a.logprob_nats, b.logprob_nats, strict=True)]
    if a.unconditional_nats is not None:
        pairs += zip(a.unconditional_nats, b.unconditional_nats, strict=True)
    difference = max(abs(x - y) for x, y in pairs)
    assert difference < SUM_NATS
    return difference


def test_choices_equal_the_direct_forward(engine, direct, arc):
    requests = arc(4, 2)
    worst = 0.0
    for request, reply in zip(requests, ask(engine, *requests), strict=True):
        assert isinstance(reply, ChoiceScores)
        for context, found in (
            (request.context, reply.logprob_nats),
            ("Answer:", reply.unconditional_nats or ()),
        ):
            for i, continuation in enumerate(request.continuations):
                ids = direct.ids(context + continuation)
                expected = direct.score(ids, len(ids) - len(direct.ids(context)))
                worst = max(worst, abs(float(expected.logprob.sum()) - found[i]))
                if context == request.context:
                    assert reply.n_tokens[i] == len(expected.logprob)
                    assert_same_flag(reply.is_greedy[i], expected)
    log.info("largest difference of a choice: %.1e nats", worst)
    assert worst < SUM_NATS


def assert_same_flag(found, expected):
    if found != bool(expected.is_top.all()):
        margin = float(expected.margin.min())
        log.info("greedy flag differs at a near-tie of %.1e nats", margin)
        assert margin < TOKEN_NATS


def test_documents_equal_the_direct_forward(engine, direct, articles):
    texts = [articles[0][:3500], articles[1][:1200], "Hello", "\n\n  one   two\n"]
    for text, reply in zip(texts, ask(engine, *map(document, texts)), strict=True):
        ids = direct.ids(text)
        assert reply.n_tokens == len(ids)
        assert reply.first_token_context == "bos"
        window, row = CONTEXT - 1, [direct.tokenizer.bos_token_id, *ids]
        logprob, entropy = [], []
        for first in range(1, len(row), window - 1):
            stop = min(first + window - 1, len(row))
            measured = direct.score(row[max(stop - window, 0) : stop], stop - first)
            logprob += measured.logprob.tolist()
            entropy += measured.entropy.tolist()
        assert len(logprob) == len(ids)
        assert reply.n_windows == math.ceil(len(ids) / (window - 1))
        assert reply.logprob_nats == pytest.approx(
            math.fsum(logprob), abs=SUM_NATS * reply.n_windows
        )
        assert reply.entropy_nats / len(ids) == pytest.approx(
            math.fsum(entropy) / len(ids), abs=ENTROPY_NATS
        )


def document(text):
    return ScoreDocument(text[:8], text)


class Counting:
    """The engine's backend, with a count of what is submitted."""

    def __init__(self, backend):
        self._backend = backend
        self.n = 0

    def submit(self, token_ids, params):
        self.n += 1
        return self._backend.submit(token_ids, params)

    def call(self, method):
        return self._backend.call(method)

    def close(self):
        raise AssertionError("the engine is shared")


@pytest.fixture
def scorer(engine):
    """A scorer of its own on the shared engine, and the count of its requests."""
    counting = Counting(engine._backend)
    return Scorer(counting, has_hook=True, block_tokens=BLOCK, prefix_reuse=True), counting


def test_each_token_is_right_behind_a_context_of_any_length(scorer, direct, articles):
    """Context lengths 1 to 139: multiples of the block size among them, nested, and repeated."""
    scores, counting = scorer
    ids = direct.ids(articles[2])[:140]
    rows = tuple(Sequence(tuple(ids[: n + 1]), 1) for n in range(1, len(ids)))
    expected = direct.score(ids, len(ids) - 1)
    for _ in range(2):
        spans = asyncio.run(scores.windows(rows))
        found = torch.tensor([s.logprob_nats for s in spans])
        assert (found - expected.logprob).abs().max() < TOKEN_NATS
        entropy = torch.tensor([s.entropy_nats for s in spans])
        assert (entropy - expected.entropy).abs().max() < ENTROPY_NATS
        for span, is_top, margin in zip(spans, expected.is_top, expected.margin, strict=True):
            assert span.is_greedy == bool(is_top) or margin < TOKEN_NATS
    # Some rows were covered by the prefix cache, or this would not have tested that they are not
    # taken from it.
    assert counting.n > 2 * len(rows)


@pytest.mark.parametrize("n_context", [2 * BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 1])
def test_continuations_share_their_context(scorer, direct, articles, n_context):
    scores, counting = scorer
    # An article for each length, or the cache would hold one's end as another's beginning.
    ids = direct.ids(articles[10 + n_context % BLOCK % 3])
    context, rest = ids[:n_context], ids[n_context:]
    ends = [rest[:1], rest[1:2], rest[:5], rest[2:9], rest[7:8], rest[:1]]
    rows = tuple(Sequence((*context, *end), len(end)) for end in ends)
    for _ in range(2):
        before = counting.n
        for span, end in zip(asyncio.run(scores.continuations(rows)), ends, strict=True):
            expected = direct.score(context + end, len(end))
            assert span.logprob_nats == pytest.approx(float(expected.logprob.sum()), abs=SUM_NATS)
            assert_same_flag(span.is_greedy, expected)
        # The longest one scores the first token of all, so single tokens need no request, and
        # cached rows are missed only by exact repeats.
        if before == 0:
            assert counting.n == 2
        else:
            assert counting.n - before <= 4


def test_one_forward_pass_scores_all_single_token_choices(scorer, direct):
    scores, counting = scorer
    context = direct.ids("The answer to the question is the letter")
    letters = [direct.ids(f" {letter}") for letter in "ABCDEFGHIJ"]
    assert all(len(ids) == 1 for ids in letters)
    rows = tuple(Sequence((*context, *ids), 1) for ids in letters)
    spans = asyncio.run(scores.continuations(rows))
    log_probs = direct.rows(context, 1)[0]
    assert [s.logprob_nats for s in spans] == pytest.approx(
        [float(log_probs[ids[0]]) for ids in letters], abs=TOKEN_NATS
    )
    assert counting.n == 1


def test_choices_without_their_question_are_scored_once(scorer, direct):
    scores, counting = scorer
    context = direct.ids("Answer:")
    rows = tuple(Sequence((*context, *direct.ids(end)), 1) for end in (" yes", " no"))

    async def many():
        return await asyncio.gather(*(scores.recurring(rows) for _ in range(50)))

    replies = [*asyncio.run(many()), *asyncio.run(many())]
    assert counting.n == 2
    assert len(set(replies)) == 1


def test_order_company_and_cache_change_nothing(engine, arc, articles):
    requests = [
        *arc(5, 2),
        *(document(articles[i][:900]) for i in (4, 5)),
        # one row of logits alone, after whole pieces of 64, and a step of a single token
        *(document(" word" * n) for n in (1, 2, 64, 65, 129)),
        *(generate(articles[i][:300], 12, seed=i) for i in (6, 7)),
    ]
    alone = one_by_one(engine, requests)
    forwards = ask(engine, *requests)
    backwards = ask(engine, *reversed(requests))[::-1]
    without_cache = vllm.VllmEngine(
        engine._backend,
        engine._encoder,
        engine._config,
        vllm.Options(prefix_reuse=False),
        "in_process",
    )
    runs = [forwards, backwards, ask(without_cache, *requests)]
    assert forwards == alone, "not the same bits in company as alone"
    assert backwards == alone
    worst = max(assert_same(a, b) for run in runs for a, b in zip(alone, run, strict=True))
    log.info("largest difference between two runs: %.1e nats", worst)


def generate(text, n_tokens, *, seed=None, temperature=1.0, stop=()):
    sampling = Sampling(n_tokens, temperature=temperature, top_p=0.9, seed=seed, stop=stop)
    return Generate("g", text, sampling)


# The most probable text goes on counting, for many seconds.
ENDLESS = generate("1, 2, 3, 4, 5, 6, 7, 8,", 450, temperature=0.0)


def test_without_the_hook_the_numbers_are_the_same_but_for_the_entropy(
    engine, plain, arc, articles
):
    assert Capability.ENTROPY in engine.capabilities
    assert Capability.ENTROPY not in plain.capabilities
    assert plain.describe()["score_hook"] == "none"
    requests = [*arc(3, 3), document(articles[8][:1500])]

    async def both():
        """In the same steps of the engine."""
        pairs = [(e, request) for request in requests for e in (engine, plain)]
        return await asyncio.gather(*(e.reply(request) for e, request in pairs))

    replies = asyncio.run(both())
    for hooked, own in zip(replies[::2], replies[1::2], strict=True):
        assert_same(hooked, own)
        if isinstance(own, DocumentScore):
            assert own.entropy_nats is None
            assert hooked.entropy_nats > 0


def test_nothing_is_compiled_on_cpus(plain):
    """Not even the one function behind vLLM's own log-probabilities: that takes ten seconds."""
    frames = torch._dynamo.utils.counters["frames"]
    torch._dynamo.reset()  # forgets what was compiled before
    frames.clear()
    asyncio.run(plain.reply(document("A text that is read, and scored, by vLLM itself.")))
    assert not frames


def test_the_hook_is_checked_at_the_start(engine):
    assert engine.describe()["score_hook"] in ("v1", "v2")
    n_vocabulary = engine._config.model_config.get_vocab_size()
    sizes = {"n_vocabulary": n_vocabulary, "max_model_len": CONTEXT}
    assert check(engine._backend, **sizes) is None

    class Lying(Counting):
        """Drops what asks for sums, as a vLLM without the hook does."""

        def submit(self, token_ids, params):  # type: ignore[explicit-override]  # from 3.12 on
            params.extra_args = None
            return super().submit(token_ids, params)

    assert check(Lying(engine._backend), **sizes) == "vLLM's own log-probabilities came back"


def test_failures_stand_beside_answers(engine, arc):
    good = arc(1, 1)[0]
    requests = [
        ScoreChoices("overlong", "word " * 2000, (" a", " b")),
        ScoreChoices("empty choice", "Question:", (" a", "")),
        ScoreDocument("empty", ""),
        ScoreDocument("surrogate", "\ud800"),
        generate("word " * 600, 10),
        generate("Hello", CONTEXT),
        good,
    ]
    *failures, answer = ask(engine, *requests)
    assert [f.status for f in failures] == [
        Status.OVERLONG,
        Status.INVALID,
        Status.INVALID,
        Status.INVALID,
        Status.OVERLONG,
        Status.OVERLONG,
    ]
    assert f"max_model_len is {CONTEXT}" in failures[0].message
    assert isinstance(answer, ChoiceScores)


def test_what_vllm_refuses_fails_alone(scorer, engine):
    scores, _ = scorer
    n_vocabulary = engine._config.model_config.get_vocab_size()
    bad = [Sequence((1, 2, n_vocabulary + 5), 1), Sequence((1,) * CONTEXT, 1)]

    async def ask_all():
        rows = [*bad, Sequence((1, 2, 3), 1)]
        tasks = (scores.windows((row,)) for row in rows)
        return await asyncio.gather(*tasks, return_exceptions=True)

    *failed, good = asyncio.run(ask_all())
    assert [type(f) for f in failed] == [RequestFailed, RequestFailed]
    assert "out of vocabulary" in str(failed[0])
    assert good[0].logprob_nats < 0


def test_greedy_text_is_that_of_the_model(engine, direct, articles):
    prompts = [articles[9][:400], "The three primary colours are"]
    replies = ask(engine, *(generate(p, 12, temperature=0.0) for p in prompts))
    for prompt, reply in zip(prompts, replies, strict=True):
        ids, margins = direct.ids(prompt), []
        n_prompt = len(ids)
        for _ in range(12):
            top = direct.rows(ids, 1)[0].topk(2)
            margins.append(float(top.values[0] - top.values[1]))
            ids = [*ids, int(top.indices[0])]
        expected = direct.tokenizer.decode(ids[n_prompt:])
        assert reply.text == expected or min(margins) < SUM_NATS
        assert (reply.finish_reason, reply.n_output_tokens) == ("length", 12)
        assert reply.n_prompt_tokens == n_prompt


def test_the_end_token_ends_the_text_and_is_not_in_it(engine):
    question = (Message("user", "What is the capital of France?"),)
    reply = ask(engine, Generate("g", question, Sampling(40)))[0]
    assert reply.text == "The capital of France is Paris."
    assert reply.finish_reason == "stop"
    assert reply.n_output_tokens == 8


def test_a_stop_string_cuts_the_text_exactly(engine):
    prompt = "One, two, three, four, five, six, seven,"
    whole = ask(engine, generate(prompt, 24, temperature=0.0))[0]
    assert whole.finish_reason == "length"
    stop = whole.text[7:12]  # in the middle of words
    cut = ask(engine, generate(prompt, 24, temperature=0.0, stop=("never there", stop)))[0]
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.finish_reason == "stop"
    assert cut.n_output_tokens < whole.n_output_tokens
    first = ask(engine, generate(prompt, 24, temperature=0.0, stop=(whole.text[0],)))[0]
    assert (first.text, first.finish_reason, first.n_output_tokens) == ("", "stop", 1)


def test_sampled_text_depends_on_its_seed_alone(engine, arc):
    request = generate("Once upon a time", 16, seed=2**62 + 7)
    alone = ask(engine, request)[0]
    others = [generate("Once upon a time", 20, seed=i) for i in range(12)]
    crowd = ask(engine, *others[:6], request, *arc(3, 1), *others[6:])
    assert crowd[6] == alone
    texts = {reply.text for reply in (*crowd[:6], *crowd[10:])}
    assert len(texts) == len(others)


def test_sampled_text_is_the_same_where_its_prompt_takes_several_steps(engine, articles):
    # More tokens than a step takes, so that some prompts are cut: vLLM samples a token behind each
    # part, and on CPUs it could not take back the random number spent on it.
    requests = [generate(articles[i % 4][:1200], 6, seed=i) for i in range(16)]
    requests = [replace(r, prompt=f"{i}. {r.prompt}") for i, r in enumerate(requests)]
    step = engine._config.scheduler_config.max_num_batched_tokens
    assert sum(engine._encoder.size(request) for request in requests) > step
    assert ask(engine, *requests) == one_by_one(engine, requests)


def test_a_cancelled_reply_leaves_the_engine_free(engine):
    async def give_up():
        tasks = [asyncio.create_task(engine.reply(ENDLESS)) for _ in range(3)]
        await asyncio.sleep(0.5)
        for task in tasks:
            task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    assert {type(r) for r in asyncio.run(give_up())} == {asyncio.CancelledError}
    ask(engine, generate("Hello", 2))
    assert engine._backend._engine.get_num_unfinished_requests() == 0


@pytest.mark.filterwarnings("ignore:Unclosed:ResourceWarning")  # vLLM's sockets to a killed engine
def test_the_engine_in_its_own_process_gives_the_same_and_dies_loudly(model, engine, arc, articles):
    requests = [*arc(2, 2), document(articles[0][:900]), generate("Once upon", 8, seed=5)]
    here = ask(engine, *requests)
    other: Any = vllm.start(model, vllm.Options(mode="async"))
    try:
        assert other.describe() == {**engine.describe(), "mode": "async"}
        assert other.capabilities == engine.capabilities
        for a, b in zip(here, ask(other, *requests), strict=True):
            assert_same(a, b)
        refused = asyncio.run(survive(other))
        assert "out of vocabulary" in str(refused)

        began, (waiting, late) = asyncio.run(kill(other))
        assert time.monotonic() - began < 10
        for end in (*waiting, late):
            assert isinstance(end, EngineDied)
            assert "killed by signal 9" in str(end)
    finally:
        asyncio.run(other.close())
        del other
        gc.collect()  # here, where what vLLM leaves open is excused


async def survive(other):
    """Ask for a token that does not exist; the engine goes on."""
    try:
        await asyncio.wrap_future(
            other._backend.submit((10**9,), vllm._sampling_params(Sampling(1)))
        )
    except RequestFailed as exc:
        return exc


async def kill(other):
    """Kill the engine's process while replies wait; ask once more."""
    tasks = [asyncio.create_task(other.reply(ENDLESS)) for _ in range(4)]
    await asyncio.sleep(1)
    (process,) = other._backend.processes
    began = time.monotonic()
    os.kill(process.pid, signal.SIGKILL)
    waiting = await asyncio.gather(*tasks, return_exceptions=True)
    late = (await asyncio.gather(other.reply(generate("Hi", 2)), return_exceptions=True))[0]
    return began, (waiting, late)


def test_a_start_that_fails_says_why(model, tmp_path):
    with pytest.raises(ResourceError, match=r"No available memory.*is 0\.001 GiB, and one context"):
        vllm.start(model, vllm.Options(kv_cache_memory_bytes=1 << 20))
    with pytest.raises(
        ResourceError, match=r"KV cache of kv_cache_memory_bytes 1048576\.0 GiB, and"
    ):
        vllm.start(model, vllm.Options(kv_cache_memory_bytes=1 << 50))
    with pytest.raises(ModelError, match="quantization"):
        vllm.start(model, vllm.Options(quantization="no such thing"))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError):
        vllm.start(ModelRef(path=str(tmp_path)), vllm.Options())
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # and importing the module alone needs no vLLM
        assert vllm.Options().mode == "auto"


@pytest.mark.filterwarnings("ignore:Unclosed:ResourceWarning")  # vLLM's sockets to a dead engine
def test_an_engine_that_dies_at_its_start_is_quoted(model, tmp_path):
    """Its process says why in its own log, of which its parent hears nothing."""
    small = vllm.Options(mode="async", kv_cache_memory_bytes=1 << 20)
    with pytest.raises(ResourceError, match="ValueError: No available memory for the cache blocks"):
        vllm.start(model, small)
    broken = write_checkpoint(tmp_path / "broken", config={"architectures": ["LlamaForCausalLM"]})
    with pytest.raises(RunError, match=r"did not start with .*broken: [A-Za-z]+Error: .*'w'"):
        vllm.start(ModelRef(path=str(broken)), vllm.Options(mode="async"))
    gc.collect()  # here, where what vLLM leaves open is excused
