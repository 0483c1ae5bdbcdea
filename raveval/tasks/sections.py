"""The sections of a task file, as strict models; what their keys mean stands in `raveval.tasks`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from raveval import templates
from raveval.errors import ConfigError
from raveval.protocols import Grading
from raveval.strict_yaml import PathText, Strict
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

    path: PathText | None = None
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

    @property
    def name(self) -> str:
        """What the source is called in messages and in the report."""
        if self.path is not None:
            return self.path
        return " ".join(filter(None, (self.hub, self.config, self.split)))


class Fewshot(Strict):
    """Where shots come from and how many are shown."""

    num: Annotated[int, Field(ge=0)] = 0
    split: str | None = None
    path: PathText | None = None
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
GENERATING = Sampling(max_output_tokens=1024)
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
    template: Text | None = None
    pair_template: Text | None = None
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
        given = {key for key in _PROMPT_KEYS if getattr(self, key) is not None}
        whole, parts = _SHAPES[protocol]
        if given - {"pair_template"} in [{key} for key in whole]:
            self._check_slots()
            return
        whole_given = sorted(given & set(whole))
        if whole_given:
            raise ValueError(
                f"grading: `{whole_given[0]}` is the whole prompt; leave the others out"
            )
        useless = ", ".join(sorted(given - {*parts, *_OPTIONAL_PARTS}))
        missing = ", ".join(sorted(set(parts) - given))
        if missing:
            raise ValueError(
                f"grading: {missing}: missing (or give `{whole[0]}`, the whole prompt)"
            )
        if useless:
            raise ValueError(f"grading: {useless}: protocol {protocol} has no use for it")

    def _check_slots(self) -> None:
        """Refuse a template that does not show each response once."""
        if self.pair_template is not None and self.template is None:
            raise ValueError("grading: pair_template: is for tasks that also have a `template`")
        for key, names in SLOTS.items():
            source = getattr(self, key)
            for name in names if source is not None else ():
                if not templates.shows_once(source, name):
                    raise ValueError(
                        f"grading.{key}: has to show `{{{{ {name} }}}}` once, as it is: an answer "
                        "that is not there yet can be neither changed nor looked at"
                    )


SLOTS: Mapping[str, tuple[str, ...]] = {
    "template": ("response",),
    "pair_template": ("response_a", "response_b"),
}
"""The variables that stand for responses to come, in their order."""

_SHAPES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    # protocol: the keys that are a whole prompt, the parts needed instead
    "absolute_grading": (("prompt",), ("instruction", "response", "rubric")),
    "ranking": (("prompts",), ("instruction", "responses", "rubric")),
    "relative_grading": (("prompts",), ("instruction", "responses", "rubric")),
    "open_generation": (("prompt", "template"), ("instruction", "rubric")),
}
_OPTIONAL_PARTS = ("reference", "context")
_PROMPT_KEYS = (
    *("prompt", "prompts", "template", "pair_template"),
    *("instruction", "response", "responses", "rubric", *_OPTIONAL_PARTS),
)
