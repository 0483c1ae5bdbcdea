"""The engine of OpenAI-compatible servers, against a small one that misbehaves."""

import asyncio
import json
import logging
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import tenacity

from raveval.config import EngineConfig, engine_options, load_config
from raveval.engines import Capability, EngineDied, http
from raveval.engines._encoding import Encoder
from raveval.engines._http_transport import LONGEST_PAUSE_SECONDS, Limits, Transport, _Transient
from raveval.engines._http_wire import read_fault
from raveval.errors import ConfigError, ModelError, Refused, ResourceError
from raveval.plan import make_plan
from raveval.types import (
    Completion,
    Failure,
    Generate,
    Message,
    ModelRef,
    Reply,
    Request,
    Sampling,
    ScoreDocument,
    Status,
)
from tests.checkpoints import CHATML, SPELLS_BOS, write_checkpoint
from tests.openai_server import Answer, SmallServer, completion, error, prompt_of

MODEL = ModelRef(id="m")
HELLO = Generate("k", (Message("user", "Hello"),), Sampling(8))
KEY = 'sk-Se/cret"<&0123456789'


@pytest.fixture
def server() -> Iterator[SmallServer]:
    with SmallServer() as running:
        yield running


def options(server: SmallServer, **changes: Any) -> http.Options:
    return http.Options(
        **{"base_url": server.url, "backoff_seconds": 0.01, "timeout_seconds": 5.0, **changes}
    )


def ask(
    server: SmallServer,
    *requests: Request,
    model: ModelRef = MODEL,
    then: tuple[Answer, ...] = (),
    **changes: Any,
) -> list[Reply]:
    """Start an engine, line up the server's answers, and ask all requests at once."""
    engine = http.start(model, options(server, **changes))
    server.asked.clear()
    server.times.clear()
    server.then(*then)

    async def all_at_once() -> list[Reply]:
        try:
            return await asyncio.gather(*(engine.reply(request) for request in requests))
        finally:
            await engine.close()

    return asyncio.run(all_at_once())


def ask_one(server: SmallServer, *then: Answer, request: Request = HELLO, **changes: Any) -> Reply:
    return ask(server, request, then=then, **changes)[0]


def plain(text: str, **sampling: Any) -> Generate:
    return Generate(text, text, Sampling(**{"max_output_tokens": 8, **sampling}))


class TestRequests:
    def test_every_parameter_is_written_out(self, server: SmallServer) -> None:
        sampling = Sampling(9, 0.7, 0.9, 1.03, stop=("###", "\n"), seed=2**63 + 5)
        turns = (Message("system", "Be brief."), Message("user", "Hello"))
        ask(server, Generate("k", turns, sampling))
        assert server.paths[-1] == "/v1/chat/completions"
        assert server.asked == [
            {
                "model": "m",
                "messages": [
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": "Hello"},
                ],
                "n": 1,
                "stream": False,
                "max_tokens": 9,
                "temperature": 0.7,
                "top_p": 0.9,
                "presence_penalty": 0.0,
                "frequency_penalty": 0.0,
                "seed": 5,
                "stop": ["###", "\n"],
                "top_k": -1,
                "min_p": 0.0,
                "repetition_penalty": 1.03,
            }
        ]

    def test_a_strict_server_gets_nothing_it_refuses(self, server: SmallServer) -> None:
        ask(
            server,
            plain("Hello", temperature=1.0, seed=3),
            extensions=False,
            seeded=False,
            max_tokens_field="max_completion_tokens",
        )
        assert set(server.asked[0]) == {
            *("model", "messages", "n", "stream", "max_completion_tokens", "temperature"),
            *("top_p", "presence_penalty", "frequency_penalty"),
        }

    def test_a_text_is_sent_as_it_is_or_as_one_turn(self, server: SmallServer) -> None:
        ask(server, plain(" as it is "), api="completions")
        assert (server.paths[-1], server.asked[0]["prompt"]) == ("/v1/completions", " as it is ")
        ask(server, plain(" one turn "))
        assert server.asked[0]["messages"] == [{"role": "user", "content": " one turn "}]

    def test_seeds_are_claimed_where_they_are_sent(self, server: SmallServer) -> None:
        for is_seeded in (True, False):
            engine = http.start(MODEL, options(server, seeded=is_seeded))
            expected = {Capability.GENERATE} | ({Capability.SEEDED} if is_seeded else set())
            assert engine.capabilities == expected
            asyncio.run(engine.close())

    def test_nothing_is_scored(self, server: SmallServer) -> None:
        reply = ask_one(server, request=ScoreDocument("d", "text"))
        assert isinstance(reply, Failure)
        assert server.asked == []

    @pytest.mark.parametrize(
        "request_", [plain("\ud800"), plain("a", max_output_tokens=0)], ids=["surrogate", "none"]
    )
    def test_what_cannot_be_asked_is_not(self, server: SmallServer, request_: Generate) -> None:
        reply = ask_one(server, request=request_)
        assert isinstance(reply, Failure)
        assert reply.status is Status.INVALID
        assert server.asked == []


class TestAnswers:
    def test_a_whole_one(self, server: SmallServer) -> None:
        reply = ask_one(server, Answer(completion(" Grüße 🙂\n 日本", usage=(11, 7))))
        assert reply == Completion(" Grüße 🙂\n 日本", "stop", 11, 7)

    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            (completion(None), Completion("", "stop", 3, 2)),
            (completion("a\ufffd", finish_reason="length"), Completion("a", "length", 3, 2)),
            (completion("a\ufffd"), Completion("a\ufffd", "stop", 3, 2)),
            (completion("yes", usage=None), Completion("yes", "stop", 0, 0)),
            (completion("yes", usage=(None, "x")), Completion("yes", "stop", 0, 0)),
            (completion("a\ud800b"), Completion("a\ufffdb", "stop", 3, 2)),
            (completion("no", finish_reason="content_filter"), "content filter"),
            (completion("no", finish_reason="tool_calls"), "the reason 'tool_calls'"),
            (completion("no", finish_reason=None), "the reason None"),
            ({"choices": []}, "no choices"),
        ],
    )
    def test_their_forms(
        self, server: SmallServer, content: Any, expected: Completion | str
    ) -> None:
        reply = ask_one(server, Answer(content))
        if isinstance(expected, str):
            assert isinstance(reply, Failure)
            assert reply.status is Status.FAILED
            assert expected in reply.message
        else:
            assert reply == expected
        assert len(server.asked) == 1

    @pytest.mark.parametrize("reason", ["stop", "length"])
    def test_a_text_ends_before_its_stop(self, server: SmallServer, reason: str) -> None:
        request = plain("Hello", stop=("\n", "##"))
        answer = Answer(completion("one ## two\nthree", finish_reason=reason))
        assert ask_one(server, answer, request=request) == Completion("one ", "stop", 3, 2)

    def test_the_order_of_asking_changes_nothing(self, server: SmallServer) -> None:
        server.script = lambda body: Answer(
            completion(prompt_of(body)[::-1]), delay_seconds=len(prompt_of(body)) % 3 / 100
        )
        requests = [plain("x" * n + str(n)) for n in range(30)]
        forwards = ask(server, *requests, concurrency=4)
        backwards = ask(server, *requests[::-1], concurrency=7)[::-1]
        assert forwards == backwards
        assert [r.text for r in forwards if isinstance(r, Completion)] == [
            str(n)[::-1] + "x" * n for n in range(30)
        ]


class TestAskingAgain:
    def test_after_the_time_the_server_wants(self, server: SmallServer) -> None:
        busy = Answer({"error": "busy"}, 429, {"Retry-After": "1"})
        assert isinstance(ask_one(server, busy), Completion)
        assert server.times[1] - server.times[0] >= 1.0

    def test_not_for_ever(self) -> None:
        limits = Limits(1, 1.0, 3, backoff_seconds=0.5, trust_env=False)
        transport = Transport("http://127.0.0.1:9/v1", limits, None)

        def pause(attempt: int, asked: float | None) -> float:
            state = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
            state.attempt_number = attempt
            exc = _Transient("busy", pause_seconds=asked)
            state.set_exception((_Transient, exc, None))
            return transport._pause(state)

        assert 2.0 <= pause(1, 2.0) <= 2.5
        assert LONGEST_PAUSE_SECONDS <= pause(1, 1e6) <= LONGEST_PAUSE_SECONDS + 0.5
        assert pause(100, None) <= LONGEST_PAUSE_SECONDS
        pauses = [pause(3, None) for _ in range(200)]
        assert 0 <= min(pauses) < 1.0 < max(pauses) <= 2.0, "doubled twice, and spread"

    @pytest.mark.parametrize(
        "fault",
        [
            error(500, "oops"),
            error(503, "loading"),
            error(408, "slow"),
            Answer(completion(), cut_bytes=20),
            Answer(is_reset=True),
            Answer(b"<html>Bad Gateway</html>", 502),
            Answer(b"<html>welcome</html>"),
            Answer(b'{"choices": [{"mess'),
            Answer(b""),
            Answer(b"[" * 100_000),
            Answer({"error": {"message": "overloaded"}}),
            Answer([1]),
            Answer({"choices": [{"finish_reason": "stop"}]}),
            Answer({"choices": [7]}),
            Answer(completion(), delay_seconds=1.5),
        ],
        ids=lambda answer: str(answer.status) + str(answer.content)[:16],
    )
    def test_a_fault_that_passes(self, server: SmallServer, fault: Answer) -> None:
        reply = ask_one(server, fault, fault, timeout_seconds=0.5)
        assert reply == Completion("Hello", "stop", 3, 2)
        assert len(server.asked) == 3

    @pytest.mark.parametrize(
        ("fault", "words"),
        [
            (error(500, "out of luck"), "status 500: out of luck (after 3 attempts)"),
            (Answer(b"<h1>Bad\n Gateway</h1>", 502), "status 502: <h1>Bad Gateway</h1>"),
            (Answer(b"<html>welcome"), "not JSON: <html>welcome"),
            (Answer(completion(), cut_bytes=9), "RemoteProtocolError"),
            (Answer({"error": {"message": "no GPU"}}), "has no 'choices': no GPU"),
            (Answer(completion(), delay_seconds=1.0), "no answer within 0.3 s"),
        ],
    )
    def test_a_fault_that_stays(self, server: SmallServer, fault: Answer, words: str) -> None:
        reply = ask_one(server, fault, fault, fault, timeout_seconds=0.3, max_attempts=3)
        assert isinstance(reply, Failure)
        assert reply.status is Status.FAILED
        assert words in reply.message
        assert len(server.asked) == 3

    def test_an_answer_without_end_is_refused_once(
        self, server: SmallServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("raveval.engines._http_transport.MOST_BYTES", 1 << 20)
        reply = ask_one(server, Answer(completion("x" * (1 << 21))))
        assert isinstance(reply, Failure)
        assert "larger than 1 MiB" in reply.message
        assert len(server.asked) == 1

    def test_at_most_so_many_are_in_flight(self, server: SmallServer) -> None:
        server.script = lambda _: Answer(completion(), delay_seconds=0.03)
        ask(server, *(plain(str(n)) for n in range(20)), concurrency=3)
        assert server.most_in_flight == 3
        assert len(server.asked) == 20


class TestRefusals:
    @pytest.mark.parametrize(
        "fault",
        [
            error(400, "sorry", code="context_length_exceeded"),
            error(
                400,
                "This model's maximum context length is 64 tokens. However, your prompt contains "
                "at least 65 input tokens",
            ),
            error(400, "Input length (99) exceeds model's maximum context length (64)."),
            error(
                400,
                "max_tokens=4096 cannot be greater than max_model_len=512. Please request fewer "
                "output tokens.",
            ),
            error(400, "The decoder prompt (length 99) is longer than the maximum model length"),
            Answer({"object": "error", "message": "maximum context length", "code": 400}, 400),
        ],
    )
    def test_a_prompt_that_is_too_long(self, server: SmallServer, fault: Answer) -> None:
        reply = ask_one(server, fault)
        assert isinstance(reply, Failure)
        assert reply.status is Status.OVERLONG
        assert read_fault(fault.content).words in reply.message
        assert len(server.asked) == 1

    @pytest.mark.parametrize("status", [400, 422])
    def test_a_prompt_that_is_refused(self, server: SmallServer, status: int) -> None:
        reply = ask_one(server, error(status, "roles must alternate"))
        expected = f"the server refuses: status {status}: roles must alternate"
        assert reply == Failure(Status.FAILED, expected)
        assert len(server.asked) == 1

    @pytest.mark.parametrize(
        "fault",
        [
            error(401, "bad key"),
            error(403, "not yours"),
            error(404, "no such model"),
            Answer(b"", 302, {"Location": "http://127.0.0.1:1/"}),
            error(429, "you have no money", code="insufficient_quota"),
        ],
        ids=lambda answer: str(answer.status),
    )
    def test_the_runs_own_fault_ends_the_engine(self, server: SmallServer, fault: Answer) -> None:
        engine = http.start(MODEL, options(server))
        server.asked.clear()
        server.then(fault)

        async def twice() -> None:
            for _ in range(2):
                with pytest.raises(EngineDied, match=f"status {fault.status}"):
                    await engine.reply(HELLO)
            await engine.close()

        asyncio.run(twice())
        assert len(server.asked) == 1

    def test_a_server_that_is_gone_ends_the_engine(self, server: SmallServer) -> None:
        engine = http.start(MODEL, options(server, max_attempts=2))
        server.__exit__()

        async def once() -> None:
            with pytest.raises(EngineDied, match=r"ConnectError.*after 2 attempts"):
                await engine.reply(HELLO)
            await engine.close()

        asyncio.run(once())

    def test_a_closed_engine_answers_nobody(self, server: SmallServer) -> None:
        engine = http.start(MODEL, options(server, backoff_seconds=30.0))
        server.asked.clear()
        server.then(error(500, "again"))

        async def closed_meanwhile() -> None:
            waiting = asyncio.ensure_future(engine.reply(HELLO))
            while not server.asked:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)  # it now pauses before its second attempt
            began = time.monotonic()
            await engine.close()
            with pytest.raises(EngineDied, match="the engine is closed"):
                await waiting
            with pytest.raises(EngineDied, match="the engine is closed"):
                await engine.reply(HELLO)
            assert time.monotonic() - began < 5

        asyncio.run(closed_meanwhile())


class TestStart:
    @pytest.mark.parametrize(
        ("prepare", "changes", "kind", "words"),
        [
            (None, {"model": "n"}, ModelError, r"does not serve 'n'; it serves m, other\. Give"),
            (error(401, "bad key"), {}, ModelError, r"status 401: bad key\. Name the environment"),
            (error(403, "no"), {}, ModelError, "status 403"),
            (error(500, "oops"), {}, ResourceError, "no answer that can be used: status 500: oops"),
            (Answer(b"<html>"), {}, ResourceError, "not JSON: <html>"),
            (Answer({"data": [{}]}), {}, ResourceError, "has no id"),
            (Answer(b"", 307, {"Location": "/x"}), {}, ModelError, "status 307"),
        ],
    )
    def test_what_the_list_of_models_tells(
        self,
        server: SmallServer,
        prepare: Answer | None,
        changes: dict[str, Any],
        kind: type[Refused],
        words: str,
    ) -> None:
        server.models = prepare
        with pytest.raises(kind, match=words):
            http.start(MODEL, options(server, max_attempts=2, **changes))
        assert server.asked == []

    @pytest.mark.parametrize(
        ("first", "kind", "words"),
        [
            (error(404, "Not Found"), ModelError, r"404: Not Found\. Is base_url right"),
            (error(400, "unknown key top_k"), ModelError, "unknown key top_k.*extensions"),
            (Answer(completion(finish_reason="content_filter")), ModelError, "content filter"),
        ],
    )
    def test_what_the_first_prompt_tells(
        self, server: SmallServer, first: Answer, kind: type[Refused], words: str
    ) -> None:
        server.models = error(404, "no list here")
        server.then(first)
        with pytest.raises(kind, match=words):
            http.start(MODEL, options(server))

    def test_nobody_there(self) -> None:
        with SmallServer() as server:
            gone = options(server, max_attempts=1)
        with pytest.raises(ResourceError, match=r"ConnectError.*Is it up"):
            http.start(MODEL, gone)

    def test_a_shorter_context_is_refused(self, server: SmallServer) -> None:
        server.card |= {"max_model_len": 100}
        with pytest.raises(ModelError, match=r"a context of 100 tokens, the run takes 200"):
            http.start(MODEL, options(server, max_model_len=200))

    def test_inside_a_running_loop(self, server: SmallServer) -> None:
        async def notebook() -> Reply:
            engine = http.start(MODEL, options(server))
            try:
                return await engine.reply(HELLO)
            finally:
                await engine.close()

        assert isinstance(asyncio.run(notebook()), Completion)

    def test_describes_what_the_server_says(self, server: SmallServer) -> None:
        server.card |= {"owned_by": "vllm", "root": "/models/m", "max_model_len": 512}
        server.then(Answer(completion(usage=None)))
        engine = http.start(MODEL, options(server))
        assert engine.describe() == {
            "engine": "http",
            "api": "chat",
            "prompts": "turns",
            "tokenizer": "none",
            "model": "m",
            "owned_by": "vllm",
            "root": "/models/m",
            "max_model_len": 512,
            "server_version": "9.9",
            "usage": "absent",
            "system_role": "own turn",
        }
        asyncio.run(engine.close())

    def test_what_leaves_no_room_for_the_output_is_overlong(self, server: SmallServer) -> None:
        server.card |= {"max_model_len": 100}
        long = Answer(completion(usage=(93, 7)))
        reply = ask_one(server, long)
        assert isinstance(reply, Failure)
        assert reply.status is Status.OVERLONG
        assert "needs 101 tokens (93 of the prompt, 8 of output)" in reply.message
        assert isinstance(ask_one(server, Answer(completion(usage=(92, 7)))), Completion)


class TestSystemTurns:
    """A template that refuses the system role, or loses its text, gets it in the user turn."""

    ASKED = Generate("k", (Message("system", "Be brief."), Message("user", "Why?")), Sampling(8))

    def refuses(self, status: int) -> Callable[[Any], Answer]:
        def script(body: Any) -> Answer:
            if any(turn["role"] == "system" for turn in body["messages"]):
                return error(status, "System role not supported")
            return Answer(completion("fine"))

        return script

    @pytest.mark.parametrize("status", [400, 422, 500])
    def test_a_template_that_refuses_it(self, server: SmallServer, status: int) -> None:
        server.script = self.refuses(status)
        reply = ask_one(server, request=self.ASKED, max_attempts=2)
        assert isinstance(reply, Completion)
        assert server.asked[-1]["messages"] == [{"role": "user", "content": "Be brief.\n\nWhy?"}]

    def test_a_template_that_loses_it(self, server: SmallServer) -> None:
        server.script = lambda body: Answer(completion("fine", usage=(7, 2)))
        assert isinstance(ask_one(server, request=self.ASKED), Completion)
        assert len(server.asked[-1]["messages"]) == 1

    @pytest.mark.parametrize(
        ("usage", "role"), [((3, 2), "folded into the user turn"), (None, None)]
    )
    def test_is_told(self, server: SmallServer, usage: Any, role: str | None) -> None:
        server.script = lambda body: Answer(completion("fine", usage=usage))
        engine = http.start(MODEL, options(server))
        assert engine.describe()["system_role"] == role
        asyncio.run(engine.close())

    def test_one_that_takes_it_gets_it(self, server: SmallServer) -> None:
        engine = http.start(MODEL, options(server))
        assert engine.describe()["system_role"] == "own turn"
        asyncio.run(engine.close())

    def test_the_local_template_tells(self, server: SmallServer, tmp_path: Path) -> None:
        path = write_checkpoint(tmp_path / "model", chat_template=SPELLS_BOS)
        model = ModelRef(path=str(path))
        given = options(server, model="m")
        encoder = http.encoder(model, given)
        assert encoder.system_role == "folded into the user turn"
        asked = encoder.ask(self.ASKED)
        assert not isinstance(asked, Failure)
        assert asked.prompt == (Message("user", "Be brief.\n\nWhy?"),)


class TestOptions:
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"base_url": "localhost:8000"}, "is no address"),
            ({"base_url": "ftp://host/v1"}, "is no address"),
            ({"base_url": "http://host:port/v1"}, "is no address"),
            ({"base_url": "http://host /v1"}, "is no address"),
            ({"base_url": "http:///v1"}, "is no address"),
            ({"base_url": f"http://me:{'hunter2'}@host/v1"}, "holds a user"),
            ({"base_url": "http://host/v1?key=hunter2"}, "a query"),
            ({"base_url": "http://[hunter2@host/v1"}, "holds a user"),
            ({"api_key_env": "sk-hunter2"}, "never the key itself"),
            ({"api_key_env": "hunter2"}, "never the key itself"),
            ({"api": "responses"}, "allowed are chat, completions"),
            ({"max_tokens_field": "n"}, "allowed are max_tokens"),
            ({"concurrency": 0}, "concurrency: must be at least 1"),
            ({"max_attempts": 0}, "max_attempts"),
            ({"max_model_len": 0}, "max_model_len"),
            ({"timeout_seconds": float("inf")}, "timeout_seconds"),
            ({"backoff_seconds": 0.0}, "backoff_seconds"),
        ],
    )
    def test_nonsense_is_refused_and_secrets_are_not_repeated(
        self, changes: dict[str, Any], words: str
    ) -> None:
        with pytest.raises(ConfigError, match=words) as caught:
            http.Options(**{"base_url": "http://host/v1", **changes})
        assert "hunter2" not in "".join(traceback.format_exception(caught.value))

    def test_a_config_gives_them(self) -> None:
        config = EngineConfig(name="http", options={"base_url": "https://host/v1", "api": "chat"})
        assert engine_options(config) == http.Options("https://host/v1")
        with pytest.raises(ConfigError, match=r"engine\.base_url: Field required"):
            engine_options(EngineConfig(name="http"))
        with pytest.raises(ConfigError, match="did you mean 'api_key_env'"):
            engine_options(EngineConfig(name="http", options={"api_key": "x"}))
        for secret in ({"base_url": "http://me:hunter2@host"}, {"api_key_env": "sk-hunter2"}):
            given = {"base_url": "http://host", **secret}
            with pytest.raises(ConfigError, match="not repeated here") as caught:
                engine_options(EngineConfig(name="http", options=given))
            assert "hunter2" not in "".join(traceback.format_exception(caught.value))

    def test_nothing_is_imported_before_it_starts(self) -> None:
        code = (
            "import sys; from raveval.engines import http; from raveval.types import ModelRef; "
            "http.encoder(ModelRef(id='m'), http.Options('http://h/v1', local_tokenizer=False)); "
            "print(sorted({'httpx', 'tenacity', 'transformers', 'torch'} & set(sys.modules)))"
        )
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert run.stdout == "[]\n", run.stderr


class TestPlan:
    def plan(self, tmp_path: Path, task: str, **changes: Any) -> Any:
        evaluate = {
            "model": {"id": "m"},
            "engine": {"name": "http", "base_url": "http://127.0.0.1:9/v1", **changes},
            "tasks": [task],
        }
        run = {"output": str(tmp_path / "run")}
        return make_plan(load_config({"evaluate": evaluate, "run": run}))

    def test_needs_no_server(self, tmp_path: Path) -> None:
        plan = self.plan(tmp_path, "demo_qa")
        assert "max_model_len unknown" in plan.lines()[0]
        planned = plan.tasks[0]
        assert planned.content.lengths.n_overlong == 0
        assert "127.0.0.1" not in json.dumps(planned.reply), "where it stands moves no number"

    def test_a_sampling_that_the_server_cannot_do(self, tmp_path: Path) -> None:
        rows = tmp_path / "rows.jsonl"
        rows.write_text('{"q": "Why?", "a": ["42"]}\n')
        task = tmp_path / "task.yaml"
        task.write_text(
            "protocol: question_answering\nsource: {path: rows.jsonl}\nprompt: '{{ q }}'\n"
            "references: a\nsampling: {max_output_tokens: 9, repetition_penalty: 1.03}\n"
        )
        assert self.plan(tmp_path, str(task)).tasks
        with pytest.raises(ConfigError, match=r"repetition_penalty 1\.03.*extensions: true"):
            # Short enough for any context: it is refused although nothing has to be measured.
            self.plan(tmp_path, str(task), extensions=False, max_model_len=10_000)

    def test_many_stops_need_extensions(self) -> None:
        given = http.Options("http://host/v1", extensions=False)
        encoder = http.encoder(MODEL, given)
        encoder.check(plain("a", stop=("a", "b", "c", "d"), temperature=1.0, seed=4))
        with pytest.raises(ConfigError, match="5 stop strings"):
            encoder.size(plain("a", stop=("a", "b", "c", "d", "e")))


class TestTokens:
    """With the model's tokenizer at hand."""

    @pytest.fixture
    def model(self, tmp_path: Path) -> ModelRef:
        path = write_checkpoint(
            tmp_path / "model", chat_template=CHATML, config={"max_position_embeddings": 256}
        )
        (path / "model.safetensors").unlink()  # the weights are the server's
        return ModelRef(path=str(path))

    @pytest.fixture
    def reading(self, server: SmallServer, model: ModelRef) -> Callable[[Any], list[int]]:
        """Make the server read prompts with the model's tokenizer, and say so as vLLM does."""
        encoder = Encoder.load(ModelRef(id=model.path))

        def ids(body: Any) -> list[int]:
            if isinstance(body.get("prompt"), list):
                return list(body["prompt"])
            turns = tuple(Message(m["role"], m["content"]) for m in body["messages"])
            encoded = encoder.generate(Generate("", turns, Sampling(1)))
            assert not isinstance(encoded, Failure)
            return list(encoded.token_ids)

        def answer(body: Any) -> Answer:
            read = ids(body)
            content = completion("fine", usage=(len(read), 2))
            if body.get("return_token_ids"):
                content["prompt_token_ids"] = read
            return Answer(content)

        server.card |= {"owned_by": "vllm", "id": model.name, "max_model_len": 256}
        server.script = answer
        return ids

    def test_ids_are_sent_for_texts_and_turns(
        self, server: SmallServer, model: ModelRef, reading: Any
    ) -> None:
        requests = [plain("The cat  sat: 1234 日本"), HELLO]
        replies = ask(server, *requests, model=model, api="completions")
        encoder = Encoder.load(ModelRef(id=model.path))
        expected = [encoder.generate(request) for request in requests]
        assert sorted(body["prompt"] for body in server.asked) == sorted(
            list(each.token_ids) for each in expected if not isinstance(each, Failure)
        )
        assert all(isinstance(reply, Completion) for reply in replies)

    def test_turns_are_compared_id_for_id(
        self, server: SmallServer, model: ModelRef, reading: Any
    ) -> None:
        right = server.script
        assert isinstance(ask_one(server, model=model), Completion)
        assert server.asked[-1]["return_token_ids"] is True

        def other_token(body: Any) -> Answer:
            answer = right(body)
            answer.content["prompt_token_ids"][2] += 1
            return answer

        engine = http.start(model, options(server))
        server.script = other_token

        async def once() -> Reply:
            try:
                return await engine.reply(HELLO)
            finally:
                await engine.close()

        reply = asyncio.run(once())
        assert isinstance(reply, Failure)
        assert "the server read another prompt: token 2 is" in reply.message
        with pytest.raises(ModelError, match=r"does not read prompts as the tokenizer.*token 2 is"):
            http.start(model, options(server))

    def test_another_template_is_refused_unless_the_servers_is_taken(
        self, server: SmallServer, model: ModelRef, reading: Any
    ) -> None:
        server.script = lambda body: Answer(completion("fine", usage=(len(reading(body)) + 5, 2)))
        with pytest.raises(ModelError, match=r"it counts \d+ tokens.*local_tokenizer: false"):
            http.start(model, options(server))
        assert isinstance(ask_one(server, model=model, local_tokenizer=False), Completion)

    def test_lengths_are_known_before(
        self, server: SmallServer, model: ModelRef, reading: Any
    ) -> None:
        encoder = http.encoder(model, options(server))
        assert (encoder.max_model_len, encoder.length_source) == (256, "model")
        assert (
            encoder.size(HELLO)
            == len(reading({"messages": [{"role": "user", "content": "Hello"}]})) + 8
        )
        reply = ask_one(server, request=plain("cat " * 300), model=model)
        assert isinstance(reply, Failure)
        assert reply.status is Status.OVERLONG
        assert server.asked == []

    def test_only_ids_can_be_cut(self, server: SmallServer, model: ModelRef, reading: Any) -> None:
        long = Generate("k", "cat " * 300, Sampling(8), may_truncate=True)
        cut = ask_one(server, request=long, model=model, api="completions")
        assert isinstance(cut, Completion)
        assert cut.n_truncated_tokens > 0
        assert len(server.asked[0]["prompt"]) == 256 - 8
        whole = ask_one(server, request=long, model=model)
        assert isinstance(whole, Failure)
        assert whole.status is Status.OVERLONG

    def test_that_of_a_hub_model_in_the_cache_is_used(
        self, model: ModelRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
        commit = "0123456789" * 4
        cached = tmp_path / "hub" / "models--org--tiny"
        (cached / "refs").mkdir(parents=True)
        (cached / "refs" / "main").write_text(commit)
        snapshot = cached / "snapshots" / commit
        snapshot.mkdir(parents=True)
        given = http.Options("http://host/v1", api="completions")
        hub = ModelRef(id="org/tiny")
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            assert http.encoder(hub, given).local is None, "not all of it is there"
            (snapshot / name).write_bytes((Path(model.path or "") / name).read_bytes())
        encoder = http.encoder(hub, given)
        assert encoder.size(plain("The cat")) == http.encoder(model, given).size(plain("The cat"))
        assert encoder.commit is None, "nobody knows which one the server has"
        assert http.encoder(replace(hub, revision="other"), given).local is None
        assert http.encoder(ModelRef(id="a/b/c:free"), given).local is None

    def test_a_path_that_is_none(self) -> None:
        with pytest.raises(ModelError, match=r"no such directory.*as model\.id"):
            http.encoder(ModelRef(path="/no/such"), http.Options("http://host/v1"))

    def test_without_one_nothing_is_pretended(self) -> None:
        chat = http.encoder(MODEL, http.Options("http://host/v1"))
        completions = http.encoder(MODEL, http.Options("http://host/v1", api="completions"))
        for encoder in (chat, completions):
            assert (encoder.max_model_len, encoder.length_source) == (0, "unknown")
            assert encoder.size(plain("word " * 1000)) == 0
        assert (chat.has_chat_template, completions.has_chat_template) == (True, False)
        asked = completions.ask(HELLO)
        assert isinstance(asked, Failure)
        assert "api: chat" in asked.message


class TestKey:
    """It is sent, and stands nowhere else, whatever the server does with it."""

    @pytest.fixture(autouse=True)
    def _key(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("JUDGE_KEY", KEY + "\n")

    def test_is_sent_with_every_request(self, server: SmallServer) -> None:
        ask(server, HELLO, api_key_env="JUDGE_KEY")
        assert len(server.headers) == 1 + 3 + 1, "the list of models, three tries and a prompt"
        assert {headers["Authorization"] for headers in server.headers} == {f"Bearer {KEY}"}

    def test_none_is_sent_unasked(self, server: SmallServer) -> None:
        ask(server, HELLO)
        assert not any("Authorization" in headers for headers in server.headers)

    def test_must_be_set_and_be_one(
        self, server: SmallServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(ConfigError, match="NO_SUCH_KEY is not set"):
            http.start(MODEL, options(server, api_key_env="NO_SUCH_KEY"))
        for value in ("two words-hunter2", "hünter2-hunter2", "a\x07hunter2"):
            monkeypatch.setenv("JUDGE_KEY", value)
            with pytest.raises(ConfigError, match="holds is no key") as caught:
                http.start(MODEL, options(server, api_key_env="JUDGE_KEY"))
            assert "hunter2" not in str(caught.value)

    def test_is_shown_nowhere(self, server: SmallServer, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG)
        escaped = "".join(f"\\u{ord(c):04x}" for c in KEY)
        header = {"X-Echo": KEY}
        echoes = [
            Answer({"error": {"message": "x" * 495 + KEY}}, 400, header),
            Answer({"error": KEY, "code": KEY}, 500, header),
            Answer(f'{{"detail": "{escaped}"}}'.encode(), 503, header),
            Answer(f"<p>{KEY.replace('&', '&amp;').replace('<', '&lt;')}".encode(), 500),
            Answer(KEY.encode()),
            Answer({"choices": KEY}),
            Answer(completion(f"your key is {KEY}"), headers=header),
            Answer(completion(finish_reason=KEY)),
            Answer({"error": {"message": f"maximum context length {KEY}"}}, 400),
        ]
        server.card |= {"owned_by": KEY, "root": f"/{KEY}"}
        shown: list[str] = []
        given = options(server, api_key_env="JUDGE_KEY", max_attempts=1)
        engine = http.start(MODEL, given)
        shown += [repr(engine.describe()), repr(asdict(given)), repr(vars(engine))]

        async def provoke() -> None:
            for echo in echoes:
                server.then(echo)
                reply = await engine.reply(HELLO)
                assert isinstance(reply, Failure), reply
                shown.append(repr(reply))
            server.then(error(401, f"no such key: {KEY}"))
            try:
                await engine.reply(HELLO)
            except EngineDied as exc:
                shown.extend(traceback.format_exception(exc))
            await engine.close()

        asyncio.run(provoke())
        assert "no such key: [key]" in shown[-1]
        for models in (error(401, KEY), Answer({"data": [{"id": KEY}]}), Answer(KEY.encode())):
            server.models = models
            with pytest.raises(Refused) as caught:
                http.start(MODEL, given)
            shown += traceback.format_exception(caught.value)
        shown.append(caplog.text)
        assert "X-Echo" in caplog.text, "the library logs headers, or this tests nothing"
        everything = "\n".join(shown)
        assert "x" * 495 in everything
        for form in (KEY, KEY[:8], repr(KEY)[1:-1], json.dumps(KEY)[1:-1], escaped):
            assert form not in everything
        assert not logging.getLogger("httpcore.http11").filters, "left as they were"

    def test_a_short_one_may_stand_in_a_text(
        self, server: SmallServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("JUDGE_KEY", "EMPTY")
        reply = ask_one(server, Answer(completion("EMPTY set")), api_key_env="JUDGE_KEY")
        assert reply == Completion("EMPTY set", "stop", 3, 2)
