"""The model of a task file; what its keys mean stands at the top of `raveval.tasks`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from raveval import registry
from raveval.errors import nearest
from raveval.strict_yaml import Strict
from raveval.tasks.sections import (
    ANSWERING,
    GENERATING,
    JUDGING,
    Card,
    Expression,
    Fewshot,
    GradingSection,
    SamplingSection,
    Source,
    Strings,
    Text,
    Texts,
)
from raveval.types import Sampling

_KEYS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    # protocol: the keys it needs, the keys it may have beside the general ones
    "multiple_choice": (("prompt", "choices", "gold"), ("unconditional", "scoring")),
    "question_answering": (("prompt", "references"), ("answer", "no_answer", "sampling")),
    "language_modelling": ((), ("text", "counted_text", "prompt", "continuation")),
    "absolute_grading": (("grading",), ("reference_ratings", "sampling")),
    "ranking": (("grading", "preferred"), ("sampling",)),
    "relative_grading": (("grading", "preferred"), ("sampling",)),
    "open_generation": (("grading",), ("prompt", "answer", "sampling", "judge_sampling")),
}
JUDGED = frozenset({"absolute_grading", "ranking", "relative_grading"})
"""Protocols whose model is an evaluator."""

GRADED = frozenset({"open_generation"})
"""Protocols in which another model, the judge, grades what the model under evaluation answers."""

_PROTOCOL_KEYS = frozenset(key for keys in _KEYS.values() for part in keys for key in part)


class Task(Strict):
    """One benchmark."""

    name: str
    file: Path = Field(exclude=True)
    protocol: str
    version: Annotated[int, Field(ge=1)] = 1
    card: Card = Card()
    source: Source
    id: Expression | None = None
    group: Expression | None = None
    cluster: Expression | None = None
    metrics: Strings | None = None
    distinct: bool = False
    may_truncate: bool = False
    instruction: Text = ""
    prompt: Text | None = None
    boundary: str = " "
    choices: (
        Annotated[
            Annotated[Expression, Tag("Expression")] | Annotated[Texts, Tag("Texts")],
            Discriminator(lambda value: "Expression" if isinstance(value, str) else "Texts"),
        ]
        | None
    ) = None
    gold: Expression | None = None
    unconditional: Text | None = None
    scoring: Literal["raw", "per_token", "per_char", "per_byte", "unconditional"] = "raw"
    references: Expression | None = None
    answer: Text | None = None
    no_answer: str | None = None
    sampling_section: SamplingSection = Field(default=SamplingSection(), alias="sampling")
    judge_sampling_section: SamplingSection = Field(
        default=SamplingSection(), alias="judge_sampling"
    )
    grading: GradingSection | None = None
    reference_ratings: Expression | None = None
    preferred: Expression | None = None
    text: Text | None = None
    counted_text: Text | None = None
    continuation: Text | None = None
    fewshot: Fewshot = Fewshot()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.protocol in _KEYS:
            self._check_keys()
        elif "." not in self.protocol:
            known = {*_KEYS, *registry.names("protocols")}
            if self.protocol not in known:
                raise ValueError(f"protocol {self.protocol!r}: {nearest(self.protocol, known)}")
        if self.scoring == "unconditional" and self.unconditional is None:
            raise ValueError("scoring: unconditional needs `unconditional`, the bare context")
        if self.fewshot.within_group and self.group is None:
            raise ValueError("fewshot.within_group needs `group`")
        self._check_grading()
        return self

    def _check_grading(self) -> None:
        if self.grading is None or self.protocol not in JUDGED | GRADED:
            return
        self.grading.check(self.protocol)
        if self.protocol in JUDGED and self.fewshot.num:
            raise ValueError("fewshot: a judge is asked without shots")
        if self.grading.template is not None and self.prompt is None:
            raise ValueError(
                "prompt: missing; `grading.template` does not say what the candidate is asked"
            )

    def _check_keys(self) -> None:
        needed, optional = _KEYS[self.protocol]
        if self.protocol == "language_modelling":
            needed = ("text",) if self.text is not None else ("prompt", "continuation")
            optional = ("counted_text",) if self.text is not None else ()
            if self.text is not None and self.fewshot.num:
                raise ValueError("fewshot: a document is scored as it stands, without shots")
        missing = [key for key in needed if getattr(self, key) is None]
        if missing:
            keys = ", ".join(missing)
            either = " (or `text`)" if self.protocol == "language_modelling" else ""
            raise ValueError(f"{keys}: missing{either}; protocol {self.protocol} needs it")
        given = {key.removesuffix("_section") for key in self.model_fields_set}
        useless = (given & _PROTOCOL_KEYS) - {*needed, *optional}
        if useless:
            keys = ", ".join(sorted(useless))
            raise ValueError(f"{keys}: protocol {self.protocol} has no use for it")

    @property
    def sampling(self) -> Sampling:
        """How answers are generated, as requests carry it."""
        if self.protocol in JUDGED:
            return self.sampling_section.over(JUDGING)
        return self.sampling_section.over(GENERATING if self.protocol in GRADED else ANSWERING)

    @property
    def judge_sampling(self) -> Sampling | None:
        """How a judge's verdicts are generated; None where no other model is the judge."""
        return self.judge_sampling_section.over(JUDGING) if self.protocol in GRADED else None

    @property
    def num_fewshot(self) -> int:
        """The task's own number of shots."""
        return self.fewshot.num

    def identity(self) -> dict[str, Any]:
        """Return as plain JSON all of the task that can move a number.

        The place of its rows is left out: the examples themselves are hashed, wherever they lie.
        """
        content = self.model_dump(mode="json", by_alias=True, exclude={"card", "source"})
        content["fewshot"].pop("path")
        return content
