"""vLLM's own OpenAI server on CPUs against the vLLM engine in this process: the same answers.

The served checkpoint brings a `generation_config.json` that would change every answer if the engine
left one sampling parameter to the server. Texts are compared bit for bit: both sides run the same
kernels in float32, which on CPUs do not depend on what else is in the batch.
"""

import asyncio
import json
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import raveval
from raveval.engines import Engine, http, vllm
from raveval.engines._encoding import Encoder
from raveval.errors import ModelError
from raveval.evaluate import answer_examples, read_replies
from raveval.passes import task_spec
from raveval.scoring import stored
from raveval.store import RunDirectory
from raveval.types import (
    Completion,
    Failure,
    Generate,
    Message,
    ModelRef,
    Prompt,
    Reply,
    Sampling,
    Shard,
    Status,
)
from tests.openai_server import Answer, Body, SmallServer, error, vllm_server

pytestmark = pytest.mark.timeout(600)

CONTEXT = 512
TURNS: tuple[Prompt, ...] = (
    (Message("user", "What is the capital of France?"),),
    (Message("system", "You answer in one word."), Message("user", "  Is 1234 even?\n\n")),
    (
        Message("user", "Name a colour, «one» only."),
        Message("assistant", "Blue. 🙂"),
        Message("user", "Another one, 日本?"),
    ),
)
TEXTS: tuple[Prompt, ...] = ("The capital of France is", "1, 2, 3, 4,", "  Q: naïve  café?\nA:")


@dataclass(frozen=True)
class Served:
    """A checkpoint and where it is served."""

    model: ModelRef
    url: str

    def engine(self, **options: Any) -> Engine:
        return http.start(self.model, http.Options(self.url, **options))

    def post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            f"{self.url}/{path}",
            json.dumps({"model": self.model.name, **body}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)


@pytest.fixture(scope="module")
def served(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    checkpoint = folder / "model"
    checkpoint.mkdir()
    for file in demo_model.iterdir():
        (checkpoint / file.name).symlink_to(file)
    defaults = json.loads((demo_model / "generation_config.json").read_text())
    defaults |= {"do_sample": True, "temperature": 1.5, "top_k": 7, "top_p": 0.3, "min_p": 0.2}
    defaults |= {"repetition_penalty": 1.9, "max_new_tokens": 3}
    (checkpoint / "generation_config.json").unlink()
    (checkpoint / "generation_config.json").write_text(json.dumps(defaults))
    with vllm_server(checkpoint, folder / "log", max_model_len=CONTEXT) as url:
        yield Served(ModelRef(path=str(checkpoint), max_model_len=CONTEXT), url)


@pytest.fixture(scope="module")
def in_process(demo_model: Path) -> Iterator[Engine]:
    engine = vllm.start(ModelRef(path=str(demo_model), max_model_len=CONTEXT), vllm.Options())
    yield engine
    asyncio.run(engine.close())


def ask(engine: Engine, *requests: Generate, closes: bool = True) -> list[Reply]:
    async def all_at_once() -> list[Reply]:
        try:
            return await asyncio.gather(*(engine.reply(request) for request in requests))
        finally:
            if closes:
                await engine.close()

    return asyncio.run(all_at_once())


def requests(prompts: tuple[Prompt, ...], sampling: Sampling) -> list[Generate]:
    return [Generate(str(n), prompt, sampling) for n, prompt in enumerate(prompts)]


SAMPLINGS = {
    "greedy": Sampling(24),
    "stopped": Sampling(24, stop=("\n", " is", "4")),
    "sampled": Sampling(24, temperature=1.0, top_p=0.9, repetition_penalty=1.03, seed=2**63 + 7),
}


@pytest.mark.model
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize(
    ("api", "prompts"), [("completions", TEXTS + TURNS), ("chat", TURNS)], ids=["ids", "turns"]
)
def test_the_answers_are_those_of_the_engine_in_this_process(
    served: Served, in_process: Engine, api: str, prompts: tuple[Prompt, ...], sampling: Sampling
) -> None:
    asked = requests(prompts, sampling)
    found = ask(served.engine(api=api), *asked)
    assert found == ask(in_process, *asked, closes=False)
    assert all(isinstance(reply, Completion) and reply.n_output_tokens > 1 for reply in found)


@pytest.mark.model
def test_a_plain_prompt_is_one_turn_of_a_chat(served: Served, in_process: Engine) -> None:
    asked = requests(TEXTS, Sampling(16))
    turns = [replace(each, prompt=(Message("user", str(each.prompt)),)) for each in asked]
    assert ask(served.engine(), *asked) == ask(in_process, *turns, closes=False)


@pytest.mark.model
def test_the_server_reads_the_tokens_that_the_encoder_makes(served: Served) -> None:
    encoder = Encoder.load(served.model)
    for prompt in TURNS:
        assert not isinstance(prompt, str)
        own = encoder.generate(Generate("k", prompt, Sampling(1)))
        assert not isinstance(own, Failure)
        turns = [{"role": turn.role, "content": turn.content} for turn in prompt]
        body = {"messages": turns, "max_tokens": 1, "return_token_ids": True}
        assert tuple(served.post("chat/completions", body)["prompt_token_ids"]) == own.token_ids
        body = {"prompt": list(own.token_ids), "max_tokens": 1, "return_token_ids": True}
        read = served.post("completions", body)["choices"][0]["prompt_token_ids"]
        assert tuple(read) == own.token_ids


@pytest.mark.model
def test_the_server_says_what_it_serves(served: Served) -> None:
    for options, prompts, tokenizer, role in (
        ({}, "turns", "local", "own turn"),
        ({"local_tokenizer": False}, "turns", "none", "own turn"),
        ({"api": "completions"}, "token ids", "local", "own turn"),
        ({"api": "completions", "local_tokenizer": False}, "text", "none", None),
    ):
        engine = served.engine(**options)
        described = engine.describe()
        asyncio.run(engine.close())
        assert described["server_version"]
        assert {k: v for k, v in described.items() if k != "server_version"} == {
            "engine": "http",
            "api": options.get("api", "chat"),
            "prompts": prompts,
            "tokenizer": tokenizer,
            "model": served.model.name,
            "owned_by": "vllm",
            "root": served.model.name,
            "max_model_len": CONTEXT,
            "usage": "server",
            "system_role": role,
        }


@pytest.mark.model
def test_what_does_not_fit_is_overlong_with_and_without_a_tokenizer(served: Served) -> None:
    long = Generate("long", "word " * 600, Sampling(8))
    full = Generate("full", "word " * 480, Sampling(60))
    fits = Generate("fits", "word " * 200, Sampling(8))
    cut = replace(long, may_truncate=True)
    ours, theirs = {"api": "completions"}, {"api": "completions", "local_tokenizer": False}
    for options, words in ((ours, "needs 609 tokens"), (theirs, "the server says: ")):
        *overlong, fitting = ask(served.engine(**options), long, full, fits)
        for reply in overlong:
            assert isinstance(reply, Failure)
            assert reply.status is Status.OVERLONG
        assert isinstance(overlong[0], Failure)
        assert words in overlong[0].message
        assert isinstance(fitting, Completion)
    (shortened,) = ask(served.engine(**ours), cut)
    assert isinstance(shortened, Completion)
    assert shortened.n_prompt_tokens == CONTEXT - 8


@pytest.mark.model
def test_another_name_is_refused_with_those_that_are_served(served: Served) -> None:
    with pytest.raises(ModelError, match=f"does not serve 'gpt'; it serves {served.model.name}"):
        served.engine(model="gpt")


@pytest.mark.model
def test_another_context_is_refused(served: Served) -> None:
    with pytest.raises(ModelError, match=f"a context of {CONTEXT} tokens, the run takes 1024"):
        http.start(replace(served.model, max_model_len=1024), http.Options(served.url))


@pytest.mark.model
@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
def test_a_whole_run(served: Served, in_process: Engine, tmp_path: Path) -> None:
    output = tmp_path / "run"
    results = raveval.run(
        {
            "evaluate": {
                "model": {"path": served.model.path, "max_model_len": CONTEXT},
                "engine": {"name": "http", "base_url": served.url, "api": "completions"},
                "tasks": [{"task": "demo_qa", "limit": 5}],
            },
            "run": {"output": str(output), "cpus_per_replica": 0.5, "shard_size": 2},
        }
    )
    assert results.is_complete
    task = results.tasks["demo_qa"]
    assert task.coverage.n_scored == 5
    assert task.usage.n_prompt_tokens > task.usage.n_output_tokens > 0
    directory = RunDirectory(output)
    entry = (directory.read_manifest() or {})["tasks"]["demo_qa"]
    spec = task_spec(entry)
    for index, (start, stop) in enumerate([(0, 2), (2, 4), (4, 5)]):
        examples = directory.read_examples("demo_qa", start, stop)
        shard = Shard("demo_qa", index, start, stop)
        replies, _ = stored(directory, shard, spec)
        assert replies is not None
        assert replies.engine["prompts"] == "token ids"
        own = asyncio.run(answer_examples(examples, in_process, spec))
        assert read_replies(replies.table, examples) == own


@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
def test_a_key_that_is_withdrawn_ends_the_run_and_a_new_one_goes_on(tmp_path: Path) -> None:
    with SmallServer() as server:
        config = {
            "evaluate": {
                "model": {"id": "m"},
                "engine": {"name": "http", "base_url": server.url, "concurrency": 1},
                "tasks": [{"task": "demo_qa", "limit": 12}],
            },
            "run": {
                "output": str(tmp_path / "run"),
                "shard_size": 3,
                "examples_in_flight": 3,
            },
        }
        server.script, answers = _withdrawn_after(server, n_prompts=3 + 7), server.script
        with pytest.raises(ModelError, match=r"status 401: withdrawn\. Name the environment"):
            raveval.run(config)
        kept = list((tmp_path / "run" / "replies" / "demo_qa").glob("*.parquet"))
        assert 1 <= len(kept) < 4
        server.script, server.models = answers, None
        n_before = len(server.asked)
        said: list[str] = []
        results = raveval.run(config, say=said.append)
    assert results.is_complete
    assert len(server.asked) - n_before == 3 + 12 - 3 * len(kept), "what was committed is kept"
    assert "starting 1 replica of m on http (1 CPUs, 0 GPUs each)" in said, "it is only a client"


def _withdrawn_after(server: SmallServer, *, n_prompts: int) -> Callable[[Body], Answer]:
    answers = server.script

    def script(body: Body) -> Answer:
        if len(server.asked) > n_prompts:
            server.models = error(401, "withdrawn")
            return server.models
        return answers(body)

    return script
