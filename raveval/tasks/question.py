"""Renders one row by its task's templates, and checks what they give."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, TypeVar

from raveval import templates
from raveval.errors import ConfigError, DataError
from raveval.judging import Rubric, absolute_prompt, clean_prompt, relative_prompt, rubric_from
from raveval.tasks import Task
from raveval.tasks.sections import RubricSection
from raveval.tasks.source import Row

PREFERENCES = ("a", "b", "tie")

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Question:
    """A row as rendered, before any layout; `joint` stands between context and continuation."""

    where: str
    id: str
    context: str = ""
    joint: str = ""
    choices: tuple[str, ...] = ()
    gold: int | None = None
    references: tuple[str, ...] = ()
    shown_answer: str = ""
    judge_prompts: tuple[str, ...] = ()
    reference_ratings: tuple[float, ...] = ()
    preferred: str | None = None
    instruction: str = ""
    unconditional: str | None = None
    text: str = ""
    counted_text: str | None = None
    group: str | None = None
    cluster: str | None = None


def render(task: Task, row: Row) -> Question:
    """Return the question that a row holds.

    Raises:
        DataError: a template cannot read the row, or gives what the task cannot use; the message
            begins with the task's key, and leaves the row's place to the caller.
    """
    columns = row.columns
    prompt = _render(task.prompt, "prompt", columns)
    context = prompt.rstrip(" ")
    choices = _choices(task, columns)
    references = _references(task, columns)
    gold = _gold(task, columns, len(choices))
    text = _render(task.text, "text", columns)
    question = Question(
        where=row.where,
        id=_id(task, row),
        context=context,
        joint=task.boundary or prompt[len(context) :],
        choices=choices,
        gold=gold,
        references=references,
        shown_answer=_shown_answer(task, columns, choices, gold, references),
        judge_prompts=_judge_prompts(task, columns),
        reference_ratings=_reference_ratings(task, columns),
        preferred=_preferred(task, columns),
        instruction=_render(task.instruction, "instruction", columns),
        unconditional=_render(task.unconditional, "unconditional", columns).rstrip(" "),
        text=text,
        counted_text=_counted_text(task, columns, text, choices),
        group=_label(task.group, "group", columns),
        cluster=_label(task.cluster, "cluster", columns),
    )
    _check_encodable(question)
    return question


def _at(
    key: str, evaluate: Callable[[Mapping[str, Any]], Value], columns: Mapping[str, Any]
) -> Value:
    try:
        return evaluate(columns)
    except DataError as exc:
        raise DataError(f"{key}: {exc}") from exc


def _render(source: str | None, key: str, columns: Mapping[str, Any]) -> str:
    return "" if not source else _at(key, templates.text(source).render, columns)


def _value(source: str, key: str, columns: Mapping[str, Any]) -> Any:
    return _at(key, templates.expression(source).value, columns)


def _shown(columns: Mapping[str, Any]) -> str:
    return f"the row's columns: {', '.join(map(str, columns)) or 'none'}"


def _strings(key: str, value: Any, columns: Mapping[str, Any]) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        kind = type(value).__name__
        raise DataError(
            f"{key}: expected a list of texts, found {kind} {value!r:.60}; {_shown(columns)}"
        )
    for index, part in enumerate(value):
        if not isinstance(part, str):
            kind = type(part).__name__
            raise DataError(f"{key}[{index}]: expected a text, found {kind} {part!r:.60}")
    return tuple(value)


def _choices(task: Task, columns: Mapping[str, Any]) -> tuple[str, ...]:
    if task.continuation is not None:
        return (_render(task.continuation, "continuation", columns),)
    if task.choices is None:
        return ()
    if isinstance(task.choices, str):
        choices = _strings("choices", _value(task.choices, "choices", columns), columns)
    else:
        choices = tuple(
            _render(choice, f"choices[{index}]", columns)
            for index, choice in enumerate(task.choices)
        )
    if len(choices) < 2:
        raise DataError(f"choices: {len(choices)} given, at least 2 are needed to choose from")
    for index, choice in enumerate(choices):
        if not choice.strip():
            raise DataError(f"choices[{index}]: empty; there is nothing to score")
    return choices


def _gold(task: Task, columns: Mapping[str, Any], n_choices: int) -> int | None:
    if task.gold is None:
        return None
    value = _value(task.gold, "gold", columns)
    if not isinstance(value, int):
        kind = type(value).__name__
        raise DataError(
            f"gold: expected the index of a choice, found {kind} {value!r:.60}; {_shown(columns)}"
        )
    if not 0 <= value < n_choices:
        hidden = " (a split whose labels are hidden?)" if value == -1 else ""
        raise DataError(f"gold: index {value}{hidden}, but the choices are 0 to {n_choices - 1}")
    return int(value)


def _references(task: Task, columns: Mapping[str, Any]) -> tuple[str, ...]:
    if task.references is None:
        return ()
    references = _strings("references", _value(task.references, "references", columns), columns)
    if not references and task.no_answer is None:
        raise DataError("references: none, and the task has no `no_answer` for such questions")
    return references


def _shown_answer(
    task: Task,
    columns: Mapping[str, Any],
    choices: tuple[str, ...],
    gold: int | None,
    references: tuple[str, ...],
) -> str:
    """Return what a shot of this row shows as its answer."""
    if choices:
        return choices[gold or 0]
    if task.answer is not None and references:
        return _render(task.answer, "answer", columns)
    return references[0] if references else task.no_answer or ""


def _judge_prompts(task: Task, columns: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what a judge is shown: one prompt, or one for each response or order."""
    grading = task.grading
    if grading is None:
        return ()
    if grading.prompt is not None:
        return (clean_prompt(_render(grading.prompt, "grading.prompt", columns)).text,)
    if grading.prompts is not None:
        return tuple(
            clean_prompt(_render(prompt, f"grading.prompts[{index}]", columns)).text
            for index, prompt in enumerate(grading.prompts)
        )
    parts = _JudgedParts(
        instruction=_render(grading.instruction, "grading.instruction", columns),
        responses=tuple(
            _render(response, f"grading.responses[{index}]", columns)
            for index, response in enumerate(grading.responses or (grading.response or "",))
        ),
        rubric=_rubric(grading.rubric, columns),
        reference=_render(grading.reference, "grading.reference", columns),
        context=_render(grading.context, "grading.context", columns),
    )
    if task.protocol == "relative_grading":
        return parts.relative()
    return parts.absolute()


@dataclass(frozen=True, slots=True)
class _JudgedParts:
    """What the prompts of a judge are laid out from."""

    instruction: str
    responses: tuple[str, ...]
    rubric: Rubric
    reference: str
    context: str

    def absolute(self) -> tuple[str, ...]:
        """Return one prompt for each response."""
        return tuple(
            absolute_prompt(
                self.instruction,
                response,
                rubric=self.rubric,
                reference=self.reference,
                context=self.context,
            )
            for response in self.responses
        )

    def relative(self) -> tuple[str, ...]:
        """Return the prompts of both orders."""
        first, second = self.responses
        return tuple(
            relative_prompt(
                self.instruction,
                pair,
                rubric=self.rubric,
                reference=self.reference,
                context=self.context,
            )
            for pair in ((first, second), (second, first))
        )


def _rubric(section: RubricSection | None, columns: Mapping[str, Any]) -> Rubric:
    texts = {
        key: _render(text, f"grading.rubric.{key}", columns)
        for key, text in (section.model_dump() if section else {}).items()
    }
    try:
        return rubric_from(texts, where="grading.rubric")
    except ConfigError as exc:
        raise DataError(str(exc)) from exc


def _reference_ratings(task: Task, columns: Mapping[str, Any]) -> tuple[float, ...]:
    if task.reference_ratings is None:
        return ()
    value = _value(task.reference_ratings, "reference_ratings", columns)
    ratings = list(value) if isinstance(value, list | tuple) else [value]
    for rating in ratings:
        if isinstance(rating, bool) or not isinstance(rating, int | float) or not isfinite(rating):
            raise DataError(
                f"reference_ratings: expected a number or a list of numbers, found {value!r:.60}; "
                f"{_shown(columns)}"
            )
    return tuple(float(rating) for rating in ratings)


def _preferred(task: Task, columns: Mapping[str, Any]) -> str | None:
    if task.preferred is None:
        return None
    value = _value(task.preferred, "preferred", columns)
    if value not in PREFERENCES:
        raise DataError(
            f"preferred: expected 'a', 'b' or 'tie', found {value!r:.60}; {_shown(columns)}"
        )
    return str(value)


def _counted_text(
    task: Task, columns: Mapping[str, Any], text: str, choices: tuple[str, ...]
) -> str | None:
    if task.counted_text is not None:
        return _render(task.counted_text, "counted_text", columns)
    if task.continuation is not None:
        return choices[0].strip(" ")
    return None if task.text is None else text


def _label(source: str | None, key: str, columns: Mapping[str, Any]) -> str | None:
    if source is None:
        return None
    value = _value(source, key, columns)
    if isinstance(value, bool) or not isinstance(value, str | int):
        kind = type(value).__name__
        raise DataError(f"{key}: expected a text or a whole number, found {kind} {value!r:.60}")
    return str(value)


def _id(task: Task, row: Row) -> str:
    if task.id is None and "id" not in row.columns:
        return str(row.number)
    return _label(task.id or "row['id']", "id", row.columns) or ""


def _check_encodable(question: Question) -> None:
    parts = (
        *(question.id, question.context, question.text),
        *(*question.choices, *question.references, *question.judge_prompts),
    )
    try:
        for part in (
            *parts,
            question.shown_answer,
            question.instruction,
            question.counted_text or "",
        ):
            part.encode()
    except UnicodeEncodeError as exc:
        raise DataError(
            f"half of a surrogate pair ({exc.object[exc.start]!r}), which is no text in any "
            "encoding; repair the file (such halves come from cut \\u escapes)"
        ) from exc
