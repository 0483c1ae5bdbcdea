"""What a judge is shown of a row: whole prompts, or their grounds until there is a response."""

from __future__ import annotations

from raveval.errors import ConfigError, DataError
from raveval.judging import Rubric, clean_prompt, parse_rubric, rubric_from, split_prompt
from raveval.judging.material import Grounds, Material, OwnLayout
from raveval.tasks import rendering
from raveval.tasks.rendering import Columns
from raveval.tasks.sections import SLOTS, GradingSection, RubricSection


def prompts(grading: GradingSection, protocol: str, columns: Columns) -> tuple[str, ...]:
    """Return one prompt, or one for each response (ranking) or order (relative grading).

    Raises:
        DataError: a template cannot read the row, or gives what makes no prompt.
    """
    if grading.prompt is not None:
        return (_whole(grading.prompt, "grading.prompt", columns),)
    if grading.prompts is not None:
        return tuple(
            _whole(prompt, f"grading.prompts[{index}]", columns)
            for index, prompt in enumerate(grading.prompts)
        )
    material = _material(grading, columns)
    responses = [
        rendering.text(response, f"grading.responses[{index}]", columns)
        for index, response in enumerate(grading.responses or (grading.response or "",))
    ]
    if protocol == "relative_grading":
        first, second = responses
        return (material.relative(first, second), material.relative(second, first))
    return tuple(material.absolute(response) for response in responses)


def grounds(grading: GradingSection, columns: Columns) -> Grounds:
    """Return what prompts are made from once a candidate has answered.

    Raises:
        DataError: a template cannot read the row, or gives what makes no prompt.
    """
    if grading.template is not None:
        before, after = _around("template", grading.template, columns)
        if grading.pair_template is None:
            return OwnLayout((before, after))
        first, between, last = _around("pair_template", grading.pair_template, columns)
        return OwnLayout((before, after), (first, between, last))
    material = (
        _material(grading, columns)
        if grading.prompt is None
        else _taken_from(_whole(grading.prompt, "grading.prompt", columns))
    )
    if not material.instruction.strip():
        raise DataError("grading.instruction: empty; a judge has to know what was asked")
    return material


def _whole(source: str, key: str, columns: Columns) -> str:
    return clean_prompt(rendering.text(source, key, columns)).text


def _material(grading: GradingSection, columns: Columns) -> Material:
    return Material(
        instruction=rendering.text(grading.instruction, "grading.instruction", columns),
        rubric=_rubric(grading.rubric, columns),
        reference=rendering.text(grading.reference, "grading.reference", columns),
        context=rendering.text(grading.context, "grading.context", columns),
    )


def _rubric(section: RubricSection | None, columns: Columns) -> Rubric:
    texts = {
        key: rendering.text(text, f"grading.rubric.{key}", columns)
        for key, text in (section.model_dump() if section else {}).items()
    }
    try:
        return rubric_from(texts, where="grading.rubric")
    except ConfigError as exc:
        raise DataError(str(exc)) from exc


def _taken_from(prompt: str) -> Material:
    """Return what a rendered prompt shows beside its response."""
    try:
        sections = split_prompt(prompt)
        return Material(
            sections["instruction"],
            parse_rubric(sections["rubric"]),
            sections.get("reference", ""),
            sections.get("context", ""),
        )
    except DataError as exc:
        raise DataError(f"grading.prompt: {exc}") from exc


def _around(key: str, source: str, columns: Columns) -> tuple[str, ...]:
    """Return the texts before, between and after the responses that a template shows."""
    names = SLOTS[key]
    marks = {name: f"\ue000{name}\ue001" for name in names}
    rest = rendering.text(source, f"grading.{key}", {**columns, **marks})
    if [rest.count(mark) for mark in marks.values()] != [1] * len(marks):
        raise DataError(f"grading.{key}: does not show {_listed(names)} once for this row")
    parts = list[str]()
    for mark in marks.values():
        before, found, rest = rest.partition(mark)
        if not found:
            raise DataError(f"grading.{key}: has to show {_listed(names)} in this order")
        parts.append(before)
    return (*parts, rest)


def _listed(names: tuple[str, ...]) -> str:
    return " and ".join(f"`{{{{ {name} }}}}`" for name in names)
