"""Which prompts are encoded before a run, how often, and that the long ones always are."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from raveval.errors import ConfigError
from raveval.evaluate import load_protocol
from raveval.lengths import lengths
from raveval.protocols import Ask, Grading, TaskSettings
from raveval.types import Answers, Example, Generate, Request, Sampling, ScoreChoices

SETTINGS = TaskSettings(Sampling(10), grading=Grading(n_samples=4))


class Encoder:
    """Counts a token for every four characters; knows what it was asked."""

    max_model_len = 100
    has_chat_template = False
    commit: str | None = None

    def __init__(self) -> None:
        self.asked: list[Request] = []

    def size(self, request: Request) -> int:
        self.asked.append(request)
        if isinstance(request, Generate):
            return len(request.prompt) // 4 + request.sampling.max_output_tokens
        assert isinstance(request, ScoreChoices)
        return (len(request.context) + max(map(len, request.continuations))) // 4 + 1


class CheckingEncoder(Encoder):
    """Refuses one seed."""

    def __init__(self, refused_seed: int | None = None) -> None:
        super().__init__()
        self.checked: list[Request] = []
        self._refused_seed = refused_seed

    def check(self, request: Request) -> None:
        self.checked.append(request)
        if isinstance(request, Generate) and request.sampling.seed == self._refused_seed:
            raise ConfigError("not this one")


def measure(
    examples: Sequence[Example], protocol: Any = "question_answering", encoder: Any = None
) -> tuple[dict[str, int], list[Request]]:
    encoder = encoder or Encoder()
    if isinstance(protocol, str):
        protocol = load_protocol(protocol)
    return lengths(examples, protocol, SETTINGS, encoder), encoder.asked


def test_short_ones_are_not_encoded() -> None:
    found, asked = measure([Example(id=str(n), prompt="x" * 50) for n in range(5)])
    assert (found, asked) == ({}, [])


def test_the_one_long_prompt_among_many_is_found() -> None:
    examples = [Example(id=str(n), prompt="x" * 120) for n in range(1000)]
    examples.insert(700, Example(id="long", prompt="x" * 2000))
    found, asked = measure(examples)
    assert found["long"] == 510
    assert len(asked) < 300


def test_a_judges_samples_share_one_encoding() -> None:
    examples = [Example(id=n, prompt=f"{n}{'x' * 400}") for n in "abc"]
    found, asked = measure(examples, "absolute_grading")
    assert found == dict.fromkeys("abc", 110)
    prompts = [request.prompt for request in asked if isinstance(request, Generate)]
    assert sorted(prompts) == [example.prompt for example in examples]


def test_each_of_two_prompts_is_measured() -> None:
    for prompt, second in (("x" * 400, "x" * 800), ("x" * 800, "x" * 400)):
        pair = Example(id="a", prompt=prompt, second_prompt=second, preferred="a")
        found, asked = measure([pair], "ranking")
        assert found == {"a": 210}
        assert len(asked) == 2


def test_every_sampling_is_checked_all_the_same() -> None:
    example = Example(id="a", prompt="x" * 400)
    encoder = CheckingEncoder()
    _, asked = measure([example], "absolute_grading", encoder)
    assert (len(encoder.checked), len(asked)) == (4, 1)
    seeds = {SETTINGS.sampling_seed("a", f"{n}.0") for n in range(4)}
    assert {r.sampling.seed for r in encoder.checked if isinstance(r, Generate)} == seeds
    for seed in seeds:
        with pytest.raises(ConfigError, match="not this one"):
            measure([example], "absolute_grading", CheckingEncoder(seed))


class _Asks:
    """A protocol that asks what it is told to."""

    def __init__(self, *requests: Request) -> None:
        self._requests = requests

    async def answer(self, example: Example, ask: Ask, settings: TaskSettings) -> Answers:
        return tuple([await ask(request) for request in self._requests])


def test_what_a_size_depends_on_is_told_apart() -> None:
    short = Generate("k", "x" * 400, Sampling(10, seed=1))
    long = dataclasses.replace(short, sampling=Sampling(30, seed=1))
    again = dataclasses.replace(short, key="other", sampling=Sampling(10, seed=2))
    choices = ScoreChoices("k", "x" * 400, ("y", "z" * 200))
    found, asked = measure([Example(id="a")], _Asks(short, again, long, choices, again))
    assert found == {"a": 151}
    assert asked == [short, long, choices]
