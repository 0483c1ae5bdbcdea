"""Judges for tests: one that says what it is told, and scripts that draw verdicts at known odds.

The scripts are named in a config as "tests.judges:NAME". They read the response that they grade
from the prompt, and take their luck from the request's seed alone, as an engine does.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from raveval.engines.scripted import count_tokens
from raveval.judging import RELATIVE_HEADINGS
from raveval.types import Completion, Generate, Prompt, Reply, Request


@dataclass
class Judge:
    """Says what it is told of each question, by label, or the same to all; notes what it is asked.

    A text is a finished answer; one that ends in "…" is cut at the token limit there.
    """

    said: Mapping[str, str | Reply] = field(default_factory=dict)
    otherwise: str | Reply = "[RESULT] 3"
    asked: list[Generate] = field(default_factory=list)

    async def __call__(self, request: Request) -> Reply:
        assert isinstance(request, Generate)
        self.asked.append(request)
        words = self.said.get(label_of(request), self.otherwise)
        return reply(words) if isinstance(words, str) else words

    @property
    def labels(self) -> list[str]:
        """What it was asked, in order."""
        return [label_of(request) for request in self.asked]

    @property
    def seeds(self) -> list[int | None]:
        """The seeds it was asked with, in order."""
        return [request.sampling.seed for request in self.asked]


def label_of(request: Generate) -> str:
    """Return which verdict and attempt a request asks for."""
    return request.key.rpartition("#")[2]


def reply(words: str, *, label: str = "", n_truncated_tokens: int = 0) -> Completion:
    """Return an answer in these words."""
    is_cut = words.endswith("…")
    return Completion(
        text=words.removesuffix("…"),
        finish_reason="length" if is_cut else "stop",
        n_prompt_tokens=10,
        n_output_tokens=count_tokens(words),
        n_truncated_tokens=n_truncated_tokens,
        label=label,
    )


Odds = Mapping[str, Fraction]
"""How probable each answer of a judge is; the answers are what it says, and "" is unreadable."""


def odds(*percents: int) -> Odds:
    """Return the odds of the scores 1 to 5 in percent; what is left of 100 is unreadable."""
    shares = {str(score): Fraction(p, 100) for score, p in enumerate(percents, 1) if p}
    rest = Fraction(100 - sum(percents), 100)
    return {**shares, "": rest} if rest else shares


SCORES: Mapping[str, Odds] = {
    "poor": odds(45, 25, 15, 5, 0),
    "plain": odds(5, 20, 40, 20, 5),
    "fine": odds(0, 5, 15, 35, 40),
    "sure": odds(0, 0, 0, 0, 100),
    "mute": odds(0, 0, 0, 0, 0),
}
"""What `draws` gives a response that calls itself so."""

_NAMED = re.compile(r"This is a (\w+) answer")


def draws(request: Request) -> Reply:
    """Grade the response by the odds of what it calls itself; of two, prefer by `LEANS`."""
    shown = _shown(request)
    if RELATIVE_HEADINGS["response_a"] in shown:
        return leans(request)
    (name,) = set(_NAMED.findall(shown))
    score = _drawn(SCORES[name], request)
    return reply(f"It is {name}. [RESULT] {score}" if score else "I would rather not say.")


LEANS: Odds = {"A": Fraction(60, 100), "B": Fraction(30, 100), "": Fraction(10, 100)}


def leans(request: Request) -> Reply:
    """Prefer the response shown first, at the odds of `LEANS`, whatever it says."""
    letter = _drawn(LEANS, request)
    return reply(f"I like it. [RESULT] {letter}" if letter else "Hard to say.")


def says_three(request: Request) -> Reply:
    """Give everything a 3."""
    return reply("Middling. [RESULT] 3")


def decides(request: Request) -> Reply:
    """Give any response a 3, and of two prefer the first one shown."""
    is_pair = RELATIVE_HEADINGS["response_a"] in _shown(request)
    return reply("Clear. [RESULT] A" if is_pair else "Clear. [RESULT] 3")


def echoes(request: Request) -> Reply:
    """Repeat the prompt, to the last character."""
    return reply(_shown(request))


def _shown(request: Request) -> str:
    assert isinstance(request, Generate)
    return text_of(request.prompt)


def text_of(prompt: Prompt) -> str:
    """Return what a judge is shown, as one text."""
    return prompt if isinstance(prompt, str) else "\n\n".join(turn.content for turn in prompt)


def _drawn(of: Odds, request: Request) -> str:
    assert isinstance(request, Generate)
    digest = hashlib.blake2b(str(request.sampling.seed).encode(), digest_size=7).digest()
    luck = Fraction(int.from_bytes(digest, "big"), 256**7)
    for answer, share in of.items():
        luck -= share
        if luck < 0:
            return answer
    raise AssertionError("the odds do not add up")
