"""The sections of a task file, as strict models; what their keys mean stands in `raveval.tasks`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from raveval import templates
from raveval.errors import ConfigError
from raveval.protocols import Grading
from raveval.strict_yaml import Strict
from raveval.tasks.source import Documents, Format
from raveval.types import Sampling


def _text(source: str) -> str:
    try:
        templates.text(source)
    except ConfigError as exc:
        raise ValueError(str(exc)) from exc
    return source


def _expression(source: str) -> str:
    try:
        templates.expression(source)
    except ConfigError as exc:
        raise ValueError(str(exc)) from exc
    return source


Text = Annotated[str, AfterValidator(_text)]
Expression = Annotated[str, AfterValidator(_expression)]
Strings = Annotated[tuple[str, ...], Field(strict=False)]
Texts = Annotated[tuple[Text, ...], Field(strict=False)]


class Card(Strict):
    """What a reader should know; nothing here moves a number."""

    description: str = ""
    homepage: str = ""
    license: str = ""
    paper: str = ""
    language: str = ""
    kind: str = ""
    notes: str = ""


class Source(Strict):
    """Where the rows are."""

    path: str | None = None
    hub: str | None = None
    fetch: Annotated[str, Field(min_length=1)] | None = None
    config: str | None = None
    revision: str = "main"
    split: str | None = None
    format: Format | None = None
    documents: Documents = "file"
    split_on: Annotated[str, Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if sum(place is not None for place in (self.path, self.hub, self.fetch)) != 1:
            raise ValueError("give one of `path`, `hub` and `fetch`")
        if self.hub is not None and self.split is None:
            raise ValueError("a dataset of the hub needs its `split`")
        if self.hub is None and (self.config or self.split):
            raise ValueError("`config` and `split` belong to a dataset of the hub, not to a file")
        return self


class Fewshot(Strict):
    """Where shots come from and how many are shown."""

    num: Annotated[int, Field(ge=0)] = 0
    split: str | None = None
    path: str | None = None
    order: Literal["random", "first"] = "random"
    within_group: bool = False
    separator: str = "\n\n"


class SamplingSection(Strict):
    """How answers are generated; keys that are not given have the protocol's values."""

    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: Strings | None = None
    temperature: Annotated[float, Field(ge=0, strict=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, strict=False)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, strict=False)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if value not in PRESETS:
            raise ValueError(f"no preset {value!r}; known: {', '.join(PRESETS)}")
        return PRESETS[value]

    def over(self, base: Sampling) -> Sampling:
        """Return `base` with what this section gives."""
        given = self.model_dump(exclude_none=True)
        if "stop" in given:
            given["stop"] = tuple(given["stop"])
        return dataclasses.replace(base, **given)


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "prometheus_v1": {
        "max_output_tokens": 256,
        "temperature": 1.0,
        "top_p": 0.9,
        "repetition_penalty": 1.03,
    },
    "prometheus_v2": {
        "max_output_tokens": 1024,
        "temperature": 1.0,
        "top_p": 0.9,
        "repetition_penalty": 1.03,
    },
}
"""Published settings (arXiv 2310.08491, appendix; version 2 from its authors' package)."""

ANSWERING = Sampling(max_output_tokens=64, stop=("\n",))
JUDGING = Sampling(
    max_output_tokens=1024,
    temperature=1.0,
    top_p=0.9,
    repetition_penalty=1.03,
    stop=("###Task Description:", "###The instruction to evaluate:"),
)
"""The stops end a judge that goes on with another example of the same layout."""


class RubricSection(Strict):
    """A rubric whose texts may come from the row."""

    criteria: Text
    score1_description: Text
    score2_description: Text
    score3_description: Text
    score4_description: Text
    score5_description: Text


class GradingSection(Strict):
    """What a judge is shown, and how often it is asked."""

    prompt: Text | None = None
    prompts: Annotated[tuple[Text, Text], Field(strict=False)] | None = None
    instruction: Text | None = None
    response: Text | None = None
    responses: Annotated[tuple[Text, Text], Field(strict=False)] | None = None
    rubric: RubricSection | None = None
    reference: Text | None = None
    context: Text | None = None
    plain: bool = False
    samples: Annotated[int, Field(ge=1)] = 3
    max_attempts: Annotated[int, Field(ge=1)] = 5
    max_tie_rounds: Annotated[int, Field(ge=0)] = 10

    def settings(self) -> Grading:
        """Return how often the judge is asked, as protocols know it."""
        return Grading(self.samples, self.max_attempts, self.max_tie_rounds)

    def check(self, protocol: str) -> None:
        """Refuse what does not make a prompt of this protocol.

        Raises:
            ValueError: with the keys that are missing or too many.
        """
        is_single = protocol == "absolute_grading"
        whole, shown = ("prompt", "response") if is_single else ("prompts", "responses")
        given = {key for key in _PROMPT_KEYS if getattr(self, key) is not None}
        needed = {"instruction", shown, "rubric"}
        if given == {whole}:
            return
        if whole in given:
            raise ValueError(f"grading: `{whole}` is the whole prompt; leave the others out")
        if needed - given:
            missing = ", ".join(sorted(needed - given))
            raise ValueError(f"grading: {missing}: missing (or give `{whole}`, the whole prompt)")
        if given - needed - {"reference", "context"}:
            useless = ", ".join(sorted(given - needed - {"reference", "context"}))
            raise ValueError(f"grading: {useless}: protocol {protocol} has no use for it")


_PROMPT_KEYS = (
    *("prompt", "prompts", "instruction", "response", "responses"),
    *("rubric", "reference", "context"),
)
