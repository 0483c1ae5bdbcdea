"""What a judge is shown beside the responses, kept as plain texts until the responses are there.

The responses of a candidate come later than the rest of a judge's prompt. Until then the rest is
either material for the layout of `raveval.judging`, or the texts around the responses in a layout
of a task's own. Both travel as a mapping of texts (`Example.fields`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from raveval.errors import ConfigError
from raveval.judging import Rubric, absolute_prompt, relative_prompt, rubric_from


@dataclass(frozen=True, slots=True)
class Material:
    """What the layout of `raveval.judging` shows; a blank reference or context has no section."""

    instruction: str
    rubric: Rubric
    reference: str = ""
    context: str = ""

    def absolute(self, response: str) -> str:
        """Return the prompt that asks for a score."""
        return absolute_prompt(
            self.instruction,
            response,
            rubric=self.rubric,
            reference=self.reference,
            context=self.context,
        )

    def relative(self, first: str, second: str) -> str:
        """Return the prompt that asks for the better response; A is `first`."""
        return relative_prompt(
            self.instruction,
            (first, second),
            rubric=self.rubric,
            reference=self.reference,
            context=self.context,
        )

    def fields(self) -> dict[str, str]:
        """Return it under the keys instruction, reference, context and those of a rubric file."""
        texts = {"instruction": self.instruction, **self.rubric.content()}
        optional = {"reference": self.reference, "context": self.context}
        return {**texts, **{key: text for key, text in optional.items() if text.strip()}}

    @classmethod
    def from_fields(cls, fields: Mapping[str, str]) -> Self:
        """Return what `fields` gave.

        Raises:
            ConfigError: a text is missing or empty.
        """
        rubric = {key: text for key, text in fields.items() if key in _RUBRIC_KEYS}
        if "instruction" not in fields:
            raise ConfigError("instruction: missing; a judge has to know what was asked")
        return cls(
            fields["instruction"],
            rubric_from(rubric, where="rubric"),
            fields.get("reference", ""),
            fields.get("context", ""),
        )


_RUBRIC_KEYS = ("criteria", *(f"score{n}_description" for n in range(1, 6)))


@dataclass(frozen=True, slots=True)
class OwnLayout:
    """A prompt in a layout of a task's own: the texts around one response, or around two.

    Attributes:
        single: what stands before and after the response.
        pair: what stands before response a, between the two, and after b; None where the task has
            no prompt that shows two.
    """

    single: tuple[str, str]
    pair: tuple[str, str, str] | None = None

    def absolute(self, response: str) -> str:
        """Return the prompt that asks for a score."""
        before, after = self.single
        return f"{before}{response}{after}"

    def relative(self, first: str, second: str) -> str:
        """Return the prompt that asks for the better response; A is `first`.

        Raises:
            ConfigError: the task has no prompt that shows two responses.
        """
        if self.pair is None:
            raise ConfigError("the task has no prompt of its own that shows two responses")
        before, between, after = self.pair
        return f"{before}{first}{between}{second}{after}"

    def fields(self) -> dict[str, str]:
        """Return the texts under keys that say where they stand."""
        texts = dict(zip(_SINGLE_KEYS, self.single, strict=True))
        return (
            texts
            if self.pair is None
            else {**texts, **dict(zip(_PAIR_KEYS, self.pair, strict=True))}
        )

    @classmethod
    def from_fields(cls, fields: Mapping[str, str]) -> Self:
        """Return what `fields` gave."""
        before, after = (fields[key] for key in _SINGLE_KEYS)
        if _PAIR_KEYS[0] not in fields:
            return cls((before, after))
        first, between, last = (fields[key] for key in _PAIR_KEYS)
        return cls((before, after), (first, between, last))


_SINGLE_KEYS = ("before_response", "after_response")
_PAIR_KEYS = ("before_response_a", "between_responses", "after_response_b")


Grounds = Material | OwnLayout
"""What a judge's prompts are made from, once there are responses."""


def grounds_from(fields: Mapping[str, str]) -> Grounds:
    """Return what a judge's prompts are made from, of an example's fields.

    Raises:
        ConfigError: a text is missing or empty.
    """
    kind = OwnLayout if _SINGLE_KEYS[0] in fields else Material
    return kind.from_fields(fields)
