"""What the model sees: one BOS, the boundary between context and continuation, and lengths."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raveval.engines._encoding import (
    EncodedChoices,
    EncodedDocument,
    EncodedPrompt,
    Encoder,
    Span,
    choice_scores,
    document_score,
)
from raveval.engines._tokens import folded
from raveval.errors import ModelError
from raveval.types import (
    ChoiceScores,
    DocumentScore,
    Failure,
    Generate,
    Message,
    ModelRef,
    Prompt,
    Sampling,
    ScoreChoices,
    ScoreDocument,
    Status,
)
from tests.checkpoints import CHATML, SPELLS_BOS, write_checkpoint, write_weights

BOS, EOS = 0, 1
ROOMY = {"max_position_embeddings": 512}

# Templates as they are published: one shows user and assistant turns alone, one writes the system
# text into the user turn itself, one is strict about the order.
DROPS_SYSTEM = (
    "{% for m in messages if m['role'] != 'system' %}[{{ m['role'] }}] {{ m['content'] }} "
    "{% endfor %}[assistant]"
)
TAKES_SYSTEM_INTO_USER = (
    "{% if messages[0]['role'] == 'system' %}{% set head = messages[0]['content'] + '. ' %}"
    "{% set rest = messages[1:] %}{% else %}{% set head = '' %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}[{{ m['role'] }}] {{ (head if loop.first else '') + m['content'] }} "
    "{% endfor %}[assistant]"
)
ALTERNATES = (
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}{{ m['content'] }}{% endfor %}"
)

Load = Callable[..., Encoder]


@pytest.fixture(scope="session")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """Load an encoder of a freshly written checkpoint; equal settings share one."""
    made: dict[str, Encoder] = {}

    def make(max_model_len: int | None = None, **settings: Any) -> Encoder:
        name = json.dumps([max_model_len, settings], sort_keys=True)
        if name not in made:
            path = write_checkpoint(tmp_path_factory.mktemp("model") / "m", **settings)
            made[name] = Encoder.load(ModelRef(path=str(path), max_model_len=max_model_len))
        return made[name]

    return make


def choices(encoder: Encoder, context: Prompt, *continuations: str, **more: Any) -> EncodedChoices:
    encoded = encoder.choices(ScoreChoices("k", context, continuations, **more))
    assert isinstance(encoded, EncodedChoices), encoded
    return encoded


def prompt(encoder: Encoder, text: Prompt, n_output: int = 1, **more: Any) -> EncodedPrompt:
    encoded = encoder.generate(Generate("k", text, Sampling(n_output), **more))
    assert isinstance(encoded, EncodedPrompt), encoded
    return encoded


def document(encoder: Encoder, text: str) -> EncodedDocument:
    encoded = encoder.document(ScoreDocument("k", text))
    assert isinstance(encoded, EncodedDocument), encoded
    return encoded


def raw(encoder: Encoder, text: str) -> tuple[int, ...]:
    return tuple(encoder.tokenizer(text, add_special_tokens=False)["input_ids"])


# --- BOS


def test_plain_prompt_has_one_bos_where_the_tokenizer_adds_one(load: Load) -> None:
    assert prompt(load(adds_bos=True), "the cat").token_ids == (BOS, *raw(load(), "the cat"))


def test_plain_prompt_has_no_bos_where_the_tokenizer_adds_none(load: Load) -> None:
    assert prompt(load(), "the cat").token_ids == raw(load(), "the cat")


@pytest.mark.parametrize("adds_bos", [True, False])
def test_template_that_spells_its_bos_gets_no_second(load: Load, adds_bos: bool) -> None:
    encoder = load(adds_bos=adds_bos, chat_template=SPELLS_BOS)
    turns = (Message("user", "the cat"),)
    assert prompt(encoder, turns).token_ids.count(BOS) == 1
    rows = choices(encoder, turns, " yes", " no").sequences
    assert [row.token_ids.count(BOS) for row in rows] == [1, 1]
    assert all(row.token_ids[0] == BOS for row in rows)


def test_prompt_that_spells_bos_gets_no_second(load: Load) -> None:
    for text in ("<s>the cat", "<s><s>the cat"):
        assert prompt(load(adds_bos=True), text).token_ids == (BOS, *raw(load(), "the cat"))


def test_chat_turns_go_through_the_template(load: Load) -> None:
    encoder = load(chat_template=CHATML)
    turns = (Message("system", "Be short."), Message("user", "the cat"))
    expected = (
        "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nthe cat<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert prompt(encoder, turns).token_ids == raw(encoder, expected)


@pytest.mark.parametrize(
    ("bos", "eos", "token", "name"), [("<s>", "</s>", BOS, "bos"), (None, "</s>", EOS, "eos")]
)
def test_what_has_nothing_before_it_follows_bos_or_eos(
    load: Load, bos: str | None, eos: str | None, token: int, name: str
) -> None:
    encoder = load(bos=bos, eos=eos)
    encoded = document(encoder, "the cat")
    assert encoded.windows[0].token_ids == (token, *raw(encoder, "the cat"))
    assert encoded.first_token_context == name
    empty = choices(encoder, "", " yes", unconditional_context="")
    assert empty.sequences[0].token_ids == (token, *raw(encoder, " yes"))
    assert empty.sequences == empty.unconditional
    assert empty.n_context_tokens == 1
    assert prompt(encoder, "").token_ids == (token,)


def test_empty_context_has_one_bos_where_the_tokenizer_adds_one(load: Load) -> None:
    row = choices(load(adds_bos=True), "", " yes").sequences[0]
    assert row.token_ids == (BOS, *raw(load(), " yes"))


def test_document_that_spells_its_bos_is_not_scored_on_it(load: Load) -> None:
    assert document(load(), "<s>the cat") == document(load(), "the cat")


def test_first_token_without_bos_and_eos_is_refused(load: Load) -> None:
    failure = load(bos=None, eos=None).document(ScoreDocument("k", "the cat"))
    assert isinstance(failure, Failure)
    assert failure.status is Status.INVALID
    assert "neither a BOS nor an EOS" in failure.message


# --- the system role


SYSTEM, USER = Message("system", "No answer was right."), Message("user", "the cat sat")
ROLES = [
    (CHATML, "own turn"),
    (TAKES_SYSTEM_INTO_USER, "own turn"),
    (SPELLS_BOS, "folded into the user turn"),
    (DROPS_SYSTEM, "folded into the user turn"),
    (None, "no template"),
]


@pytest.mark.parametrize(("template", "role"), ROLES)
def test_it_is_known_what_becomes_of_a_system_turn(
    load: Load, template: str | None, role: str
) -> None:
    assert load(chat_template=template).system_role == role


@pytest.mark.parametrize("template", [SPELLS_BOS, DROPS_SYSTEM])
def test_system_text_that_a_template_would_lose_opens_the_user_turn(
    load: Load, template: str
) -> None:
    encoder = load(chat_template=template)
    more = (Message("assistant", "yes"), Message("user", "Answer:"))
    opening = Message("user", "No answer was right.\n\nthe cat sat")
    for turns in ((), more):
        folded = prompt(encoder, (SYSTEM, USER, *turns))
        assert folded == prompt(encoder, (opening, *turns))
        text = encoder.decode(folded.token_ids)
        assert text.count("No answer was right.\n\nthe cat sat") == 1


@pytest.mark.parametrize("template", [CHATML, TAKES_SYSTEM_INTO_USER])
def test_a_template_that_knows_system_turns_gets_them(load: Load, template: str) -> None:
    encoder = load(chat_template=template)
    shown = encoder.decode(prompt(encoder, (SYSTEM, USER)).token_ids)
    turns = [{"role": turn.role, "content": turn.content} for turn in (SYSTEM, USER)]
    expected = encoder.tokenizer.apply_chat_template(
        turns, tokenize=False, add_generation_prompt=True
    )
    assert raw(encoder, expected) == prompt(encoder, (SYSTEM, USER)).token_ids
    assert "No answer was right.\n\nthe cat sat" not in shown


@pytest.mark.parametrize("template", [CHATML, TAKES_SYSTEM_INTO_USER, SPELLS_BOS, DROPS_SYSTEM])
def test_a_folded_prompt_has_the_size_it_is_planned_with(load: Load, template: str) -> None:
    n = load(512, config=ROOMY, chat_template=template).size(
        Generate("k", (SYSTEM, USER), Sampling(4))
    )
    fits, tight = (
        load(size, config=ROOMY, chat_template=template).generate(
            Generate("k", (SYSTEM, USER), Sampling(4))
        )
        for size in (n, n - 1)
    )
    assert isinstance(fits, EncodedPrompt)
    assert len(fits.token_ids) == n - 4
    assert isinstance(tight, Failure)
    assert tight.status is Status.OVERLONG


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ((SYSTEM,), (Message("user", "No answer was right."),)),
        ((SYSTEM, Message("user", "")), (Message("user", "No answer was right."),)),
        ((Message("system", ""), USER), (USER,)),
        ((USER,), (USER,)),
        (
            (SYSTEM, Message("system", "Ans."), USER, USER),
            (Message("user", "No answer was right.\n\nAns.\n\nthe cat sat"), USER),
        ),
        (
            (SYSTEM, Message("assistant", "yes"), USER),
            (Message("assistant", "yes"), Message("user", "No answer was right.\n\nthe cat sat")),
        ),
    ],
)
def test_folding_loses_no_text(turns: tuple[Message, ...], expected: tuple[Message, ...]) -> None:
    assert folded(turns) == expected


def test_a_broken_template_is_told_to_who_asks_in_turns(load: Load) -> None:
    encoder = load(chat_template="{{ messages[0].nothing.at_all }}")
    assert prompt(encoder, "the cat").token_ids == raw(encoder, "the cat")
    failure = encoder.generate(Generate("k", (USER,), Sampling(4)))
    assert isinstance(failure, Failure)
    assert failure.status is Status.INVALID


# --- the boundary


@pytest.mark.parametrize("adds_bos", [True, False])
def test_boundary_space_belongs_to_the_continuation(load: Load, adds_bos: bool) -> None:
    encoder = load(adds_bos=adds_bos)
    behind = choices(encoder, "Answer: ", "yes", "no", unconditional_context="Answer:")
    before = choices(encoder, "Answer:", " yes", " no", unconditional_context="Answer:")
    assert behind == before
    row = before.sequences[0]
    assert encoder.tokenizer.decode(row.token_ids[-row.n_scored :]) == " yes"


def test_no_lone_space_stands_before_a_continuation(load: Load) -> None:
    encoder = load(sentencepiece=True)
    lone = encoder.tokenizer.convert_tokens_to_ids("▁")
    assert raw(encoder, " yes")[0] == raw(encoder, " no")[0] == lone  # encoded by themselves
    encoded = choices(encoder, "Answer:", " yes", " no")
    assert choices(encoder, "Answer: ", "yes", "no") == encoded
    assert not any(lone in row.token_ids for row in encoded.sequences)
    firsts = {row.token_ids[-row.n_scored] for row in encoded.sequences}
    assert len(firsts) == 2, "what all choices begin with tells none from another"


def test_unconditional_continuation_keeps_the_boundary_space(load: Load) -> None:
    encoded = choices(load(), "Q? Answer: ", "yes", unconditional_context="Answer: ")
    assert encoded.unconditional is not None
    assert encoded.unconditional[0].token_ids == raw(load(), "Answer: yes")


def test_continuations_share_the_context(load: Load) -> None:
    encoded = choices(load(), "Question: what is it? Answer:", " yes", " no", " the cat")
    contexts = {row.token_ids[: -row.n_scored] for row in encoded.sequences}
    assert contexts == {raw(load(), "Question: what is it? Answer:")}
    assert encoded.n_context_tokens == len(contexts.pop())


def test_no_space_between_words_of_other_scripts(load: Load) -> None:
    encoded = choices(load(), "答案是", "北京", "我们")
    for row, text in zip(encoded.sequences, ("北京", "我们"), strict=True):
        assert load().tokenizer.decode(row.token_ids[-row.n_scored :]) == text


def test_continuation_that_melts_into_the_context_is_invalid(load: Load) -> None:
    assert len(raw(load(), "Answer")) <= len(raw(load(), "Ans"))  # or this test tests nothing
    failure = load().choices(ScoreChoices("k", "Ans", (" yes", "wer")))
    assert isinstance(failure, Failure)
    assert failure.status is Status.INVALID
    assert "continuation 1 ('wer')" in failure.message
    assert "melts into the last token of the context ('Ans')" in failure.message


def test_token_across_the_boundary_is_cut_where_the_context_ends(load: Load) -> None:
    encoder = load()
    context, continuation = "the Ans", "wer is yes"
    whole = raw(encoder, context + continuation)
    n_context = len(raw(encoder, context))
    assert whole[:n_context] != raw(encoder, context)  # a token does straddle the boundary
    row = choices(encoder, context, continuation).sequences[0]
    assert row.token_ids == whole  # the model sees the text, no character twice or lost
    assert row.n_scored == len(whole) - n_context


@pytest.mark.parametrize("context", ["Answer: ", "Answer:\n", ""])
def test_empty_continuation_is_invalid_by_index(load: Load, context: str) -> None:
    failure = load().choices(ScoreChoices("k", context, (" yes", "")))
    assert failure == Failure(Status.INVALID, "continuation 1 is empty")


def test_no_continuations_is_invalid(load: Load) -> None:
    failure = load().choices(ScoreChoices("k", "Answer:", ()))
    assert isinstance(failure, Failure)
    assert failure.status is Status.INVALID


# --- lengths


def test_scored_sequence_may_hold_one_token_less_than_the_model(load: Load) -> None:
    n = len(raw(load(), "the cat sat Answer: yes"))
    assert choices(load(n + 1), "the cat sat Answer:", " yes").n_truncated_tokens == 0
    failure = load(n).choices(ScoreChoices("k", "the cat sat Answer:", (" yes",)))
    assert isinstance(failure, Failure)
    assert failure.status is Status.OVERLONG
    assert failure.message == (
        f"needs {n + 1} tokens ({n} of the context and its longest continuation, 1 of output), "
        f"max_model_len is {n}"
    )


@pytest.mark.parametrize("adds_bos", [True, False])
def test_truncation_cuts_the_left_of_each_context_but_bos(load: Load, adds_bos: bool) -> None:
    text, continuations = (
        "the cat sat on the mat " * 6 + "Answer:",
        (" yes", " no answer was right"),
    )
    limit = 32
    long = choices(load(64 if not adds_bos else 63, adds_bos=adds_bos), text, *continuations)
    cut = choices(load(limit, adds_bos=adds_bos), text, *continuations, may_truncate=True)
    longest = max(len(row.token_ids) for row in long.sequences)
    assert cut.n_truncated_tokens == longest - (limit - 1) > 0
    assert cut.n_context_tokens == long.n_context_tokens - cut.n_truncated_tokens
    for before, after in zip(long.sequences, cut.sequences, strict=True):
        assert after.n_scored == before.n_scored
        kept = before.token_ids[cut.n_truncated_tokens :]
        assert after.token_ids == ((BOS, *kept[1:]) if adds_bos else kept)
        assert len(after.token_ids) <= limit - 1


def test_prompt_and_output_must_fit_together(load: Load) -> None:
    n = len(raw(load(), "the cat sat"))
    assert prompt(load(n + 5), "the cat sat", 5).n_truncated_tokens == 0
    failure = load(n + 5).generate(Generate("k", "the cat sat", Sampling(6)))
    assert failure == Failure(
        Status.OVERLONG,
        f"needs {n + 6} tokens ({n} of the prompt, 6 of output), max_model_len is {n + 5}",
    )


def test_truncated_prompt_keeps_bos_and_its_end(load: Load) -> None:
    text = "the cat sat on the mat " * 6
    whole = raw(load(), text)
    cut = prompt(load(32, adds_bos=True), text, 10, may_truncate=True)
    assert cut.token_ids == (BOS, *whole[-21:])
    assert cut.n_truncated_tokens == len(whole) + 1 - 22
    bare = prompt(load(32), text, 10, may_truncate=True)
    assert bare.token_ids == whole[-22:]


@pytest.mark.parametrize("n_output", [31, 32, 1000])
def test_output_that_leaves_no_room_is_overlong_even_if_truncation_is_allowed(
    load: Load, n_output: int
) -> None:
    encoder = load(32, adds_bos=True)
    request = Generate("k", "the cat sat", Sampling(n_output), may_truncate=True)
    failure = encoder.generate(request)
    assert isinstance(failure, Failure)
    assert failure.status is Status.OVERLONG


def test_continuation_that_fills_the_context_is_overlong_even_if_truncation_is_allowed(
    load: Load,
) -> None:
    request = ScoreChoices("k", "the cat", (" yes" * 40,), may_truncate=True)
    failure = load(32, adds_bos=True).choices(request)
    assert isinstance(failure, Failure)
    assert failure.status is Status.OVERLONG


def test_no_output_is_invalid(load: Load) -> None:
    failure = load().generate(Generate("k", "the cat", Sampling(0)))
    assert isinstance(failure, Failure)
    assert failure.status is Status.INVALID


TEXTS = st.text(alphabet="the catsw yno Answer:\n12é北🙂", max_size=60)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    context=TEXTS,
    continuations=st.lists(TEXTS, min_size=1, max_size=3).map(tuple),
    unconditional=st.none() | TEXTS,
    n_output=st.integers(1, 20),
    adds_bos=st.booleans(),
)
def test_a_request_fits_exactly_when_its_size_does(
    load: Load,
    context: str,
    continuations: tuple[str, ...],
    unconditional: str | None,
    n_output: int,
    adds_bos: bool,
) -> None:
    encoder = load(24, adds_bos=adds_bos)
    for request in (
        ScoreChoices("k", context, continuations, unconditional),
        Generate("k", context, Sampling(n_output)),
        ScoreDocument("k", context),
    ):
        encoded = encoder.encode(request)
        size = encoder.size(request)
        is_overlong = isinstance(encoded, Failure) and encoded.status is Status.OVERLONG
        assert is_overlong == (size > 24)
        if isinstance(encoded, Failure) and not is_overlong:
            assert size == 0
        if isinstance(encoded, EncodedChoices):
            rows = encoded.sequences + (encoded.unconditional or ())
            assert size == 1 + max(len(row.token_ids) for row in rows)
            assert all(0 < row.n_scored < len(row.token_ids) for row in rows)


# --- documents


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    text=st.text(alphabet="the cat 1é北🙂\n", min_size=1, max_size=300), limit=st.integers(4, 40)
)
def test_windows_score_each_token_exactly_once(load: Load, text: str, limit: int) -> None:
    encoder = load(limit)
    encoded = document(encoder, text)
    tokens = (BOS, *raw(encoder, text))
    scored = [t for window in encoded.windows for t in window.token_ids[-window.n_scored :]]
    assert tuple(scored) == tokens[1:]
    position = 1
    for window in encoded.windows:
        position += window.n_scored
        # Each window ends at its last scored token, and holds what comes right before it.
        assert window.token_ids == tokens[position - len(window.token_ids) : position]
        assert len(window.token_ids) == min(limit - 1, position)
        assert len(window.token_ids) > window.n_scored
    assert [window.n_scored for window in encoded.windows[:-1]] == [limit - 2] * (
        len(encoded.windows) - 1
    )
    assert encoded.window_tokens == limit - 1


@pytest.mark.parametrize("excess", [-1, 0, 1])
def test_document_of_about_one_window(load: Load, excess: int) -> None:
    text = "the cat sat on the mat. No answer was right"
    n_tokens = len(raw(load(), text))
    n_in_window = n_tokens - excess
    encoded = document(load(n_in_window + 2), text)  # one for BOS, one that vLLM generates
    expected = [n_tokens] if excess <= 0 else [n_in_window, 1]
    assert [window.n_scored for window in encoded.windows] == expected


@pytest.mark.parametrize("text", ["", "<s>"])
def test_document_without_tokens_is_invalid(load: Load, text: str) -> None:
    failure = load().document(ScoreDocument("k", text))
    assert failure == Failure(Status.INVALID, "empty document: there is no token to score")


@pytest.mark.parametrize("piece", ["the cat sat on the mat. ", "a"])
def test_five_megabytes_take_linear_time(load: Load, piece: str) -> None:
    n_pieces = 5_000_000 // len(piece.encode())
    started = time.monotonic()
    encoded = document(load(), piece * n_pieces)
    assert (
        time.monotonic() - started < 60
    )  # 3 to 5 s on an idle core; quadratic time would be hours
    assert sum(w.n_scored for w in encoded.windows) > 10_000


# --- what cannot be encoded


@pytest.mark.parametrize(
    "request_",
    [
        Generate("k", "the \ud800 cat", Sampling(4)),
        Generate("k", (Message("user", "the \udfff cat"),), Sampling(4)),
        ScoreChoices("k", "Answer:", (" yes", " n\ud800")),
        ScoreChoices("k", "An\ud800swer:", (" yes", " no")),
        ScoreChoices("k", "Answer:", (" yes", " no"), unconditional_context="\ud800"),
        ScoreDocument("k", "the cat\udc00"),
    ],
)
def test_lone_surrogate_is_invalid(load: Load, request_: Any) -> None:
    encoder = load(chat_template=CHATML)
    failure = encoder.encode(request_)
    assert isinstance(failure, Failure)
    assert failure.status is Status.INVALID
    assert "lone surrogate" in failure.message
    assert encoder.size(request_) == 0


def test_turns_without_a_template_are_invalid(load: Load) -> None:
    failure = load().generate(Generate("k", (Message("user", "the cat"),), Sampling(4)))
    assert failure == Failure(
        Status.INVALID, "the tokenizer has no chat template; use plain prompts"
    )
    assert not load().has_chat_template
    assert load(chat_template=CHATML).has_chat_template


def test_turns_that_the_template_refuses_are_invalid(load: Load) -> None:
    turns = (Message("user", "the cat"), Message("user", "sat"))
    failure = load(chat_template=ALTERNATES).generate(Generate("k", turns, Sampling(4)))
    assert failure == Failure(
        Status.INVALID, "the chat template refuses the turns (user, user): Roles must alternate"
    )


def test_token_that_the_model_does_not_have_is_invalid(load: Load) -> None:
    failure = load(config={"vocab_size": 120}).document(ScoreDocument("k", "the capital of France"))
    assert isinstance(failure, Failure)
    assert failure.status is Status.INVALID
    assert "outside the model's vocabulary of 120" in failure.message


# --- loading


def test_length_is_the_models_own(load: Load) -> None:
    assert (load().max_model_len, load().length_source) == (64, "model")
    assert (load(32).max_model_len, load(32).length_source) == (32, "given")


@pytest.mark.parametrize(
    ("config", "length", "source"),
    [
        ({"model_type": "gpt2", "n_positions": 48, "max_position_embeddings": None}, 48, "model"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, 256, "model"),
        (
            {
                "rope_scaling": {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 16,
                }
            },
            64,
            "model",
        ),
        ({"model_type": "mamba", "max_position_embeddings": None}, 2048, "assumed"),
        ({"model_type": "never_heard_of", "max_position_embeddings": 40}, 40, "model"),
    ],
)
def test_length_from_the_configuration(
    load: Load, config: dict[str, Any], length: int, source: str
) -> None:
    encoder = load(config=config)
    assert (encoder.max_model_len, encoder.length_source) == (length, source)


def refusal(model: ModelRef) -> str:
    with pytest.raises(ModelError) as caught:
        Encoder.load(model)
    return str(caught.value)


def test_refuses_what_is_no_model(tmp_path: Path) -> None:
    file = tmp_path / "file.txt"
    file.write_text("x")
    assert "no such directory" in refusal(ModelRef(path=str(tmp_path / "missing")))
    assert "is a file" in refusal(ModelRef(path=str(file)))
    assert "has no config.json (it holds file.txt)" in refusal(ModelRef(path=str(tmp_path)))
    assert "neither a path nor an id" in refusal(ModelRef())
    assert "no configuration" in refusal(ModelRef(id="not/a/model/id"))


def test_refuses_an_incomplete_model(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "m")
    (path / "model.safetensors").unlink()
    assert "no weights" in refusal(ModelRef(path=str(path)))
    write_weights(path, cut=3)
    assert "model.safetensors has 73 of 76 bytes" in refusal(ModelRef(path=str(path)))
    write_weights(path)
    (path / "tokenizer.json").write_text("{")
    assert "its tokenizer cannot be loaded" in refusal(ModelRef(path=str(path)))
    (path / "tokenizer.json").unlink()
    assert "its tokenizer" in refusal(ModelRef(path=str(path)))
    (path / "config.json").write_text("not json")
    assert "no configuration" in refusal(ModelRef(path=str(path)))


def test_refuses_code_that_comes_with_the_model(tmp_path: Path) -> None:
    custom = {"model_type": "own", "auto_map": {"AutoConfig": "configuration_own.OwnConfig"}}
    path = write_checkpoint(tmp_path / "m", config=custom)
    assert "trust_remote_code" in refusal(ModelRef(path=str(path)))


def test_refuses_a_context_that_cannot_be(tmp_path: Path) -> None:
    path = str(write_checkpoint(tmp_path / "m"))
    assert "65 is more than the 64 tokens" in refusal(ModelRef(path=path, max_model_len=65))
    assert "3 is too short" in refusal(ModelRef(path=path, max_model_len=3))


# --- replies


def test_choice_scores_are_the_spans(load: Load) -> None:
    encoded = choices(load(), "Answer:", " yes", " the cat", unconditional_context="")
    spans = (Span(-1.5, True, 0.5), Span(-4.0, False, None))
    reply = choice_scores(encoded, spans, (Span(-2.0, False, None), Span(-5.0, False, None)))
    assert isinstance(reply, ChoiceScores)
    assert reply.logprob_nats == (-1.5, -4.0)
    assert reply.unconditional_nats == (-2.0, -5.0)
    assert reply.is_greedy == (True, False)
    assert reply.n_tokens == (len(raw(load(), " yes")), len(raw(load(), " the cat")))
    assert reply.n_context_tokens == len(raw(load(), "Answer:"))
    # Both contexts (the second is BOS alone) once a continuation, and both continuations twice.
    assert reply.n_prompt_tokens == 2 * (reply.n_context_tokens + 1) + 2 * sum(reply.n_tokens)


def test_document_score_adds_windows(load: Load) -> None:
    text = "the cat sat on the mat. " * 8
    encoded = document(load(24), text)
    n = len(encoded.windows)
    assert n > 2
    reply = document_score(encoded, tuple(Span(-0.1, True, 0.2) for _ in range(n)))
    assert isinstance(reply, DocumentScore)
    assert reply.logprob_nats == pytest.approx(-0.1 * n, abs=1e-15)
    assert reply.entropy_nats == pytest.approx(0.2 * n, abs=1e-15)
    assert reply.n_tokens == len(raw(load(), text))
    assert (reply.n_windows, reply.window_tokens) == (n, 23)
    partial = (Span(-0.1, True, None), *(Span(-0.1, True, 0.2) for _ in range(n - 1)))
    without = document_score(encoded, partial)
    assert isinstance(without, DocumentScore)
    assert without.entropy_nats is None


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_numbers_that_are_not_finite_are_a_failure(load: Load, value: float) -> None:
    spans = (Span(value, False, 0.5),)
    encoded = choices(load(), "Answer:", " yes")
    windows = document(load(), "the cat")
    for reply in (choice_scores(encoded, spans, None), document_score(windows, spans)):
        assert isinstance(reply, Failure)
        assert reply.status is Status.FAILED
        assert "not finite" in reply.message
