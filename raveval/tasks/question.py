"""Renders one row by its task's templates, and checks what they give."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any

from raveval.errors import DataError
from raveval.judging.material import Grounds, Material
from raveval.tasks import GRADED, Task, judged, rendering
from raveval.tasks.rendering import Columns, shown
from raveval.tasks.source import Row

PREFERENCES = ("a", "b", "tie")


@dataclass(frozen=True, slots=True)
class Question:
    """A row as rendered, before any layout; `joint` stands between context and continuation.

    `judge_prompts` are for a model that is the judge, `grounds` for the judge of its answer.
    """

    where: str
    id: str
    context: str = ""
    joint: str = ""
    choices: tuple[str, ...] = ()
    gold: int | None = None
    references: tuple[str, ...] = ()
    shown_answer: str = ""
    judge_prompts: tuple[str, ...] = ()
    grounds: Grounds | None = None
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
    grounds = _grounds(task, columns)
    prompt = _prompt(task, columns, grounds)
    context = prompt.rstrip(" ")
    choices = _choices(task, columns)
    references = _references(task, columns)
    gold = _gold(task, columns, len(choices))
    text = rendering.text(task.text, "text", columns)
    question = Question(
        where=row.where,
        id=_id(task, row),
        context=context,
        joint=task.boundary or prompt[len(context) :],
        choices=choices,
        gold=gold,
        references=references,
        shown_answer=_shown_answer(task, columns, choices, gold, references, grounds),
        judge_prompts=_judge_prompts(task, columns),
        grounds=grounds,
        reference_ratings=_reference_ratings(task, columns),
        preferred=_preferred(task, columns),
        instruction=rendering.text(task.instruction, "instruction", columns),
        unconditional=rendering.text(task.unconditional, "unconditional", columns).rstrip(" "),
        text=text,
        counted_text=_counted_text(task, columns, text, choices),
        group=rendering.label(task.group, "group", columns),
        cluster=rendering.label(task.cluster, "cluster", columns),
    )
    _check_encodable(question)
    return question


def _judge_prompts(task: Task, columns: Columns) -> tuple[str, ...]:
    if task.grading is None or task.protocol in GRADED:
        return ()
    return judged.prompts(task.grading, task.protocol, columns)


def _grounds(task: Task, columns: Columns) -> Grounds | None:
    if task.grading is None or task.protocol not in GRADED:
        return None
    return judged.grounds(task.grading, columns)


def _prompt(task: Task, columns: Columns, grounds: Grounds | None) -> str:
    """Return the question; what a judge grades by says it where the task does not."""
    if task.prompt is None and isinstance(grounds, Material):
        return "\n\n".join(filter(str.strip, (grounds.context, grounds.instruction)))
    prompt = rendering.text(task.prompt, "prompt", columns)
    if grounds is not None and not prompt.strip():
        raise DataError("prompt: empty; there is nothing to answer")
    return prompt


def _strings(key: str, value: Any, columns: Columns) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        kind = type(value).__name__
        raise DataError(
            f"{key}: expected a list of texts, found {kind} {value!r:.60}; {shown(columns)}"
        )
    for index, part in enumerate(value):
        if not isinstance(part, str):
            kind = type(part).__name__
            raise DataError(f"{key}[{index}]: expected a text, found {kind} {part!r:.60}")
    return tuple(value)


def _choices(task: Task, columns: Columns) -> tuple[str, ...]:
    if task.continuation is not None:
        return (rendering.text(task.continuation, "continuation", columns),)
    if task.choices is None:
        return ()
    if isinstance(task.choices, str):
        choices = _strings("choices", rendering.value(task.choices, "choices", columns), columns)
    else:
        choices = tuple(
            rendering.text(choice, f"choices[{index}]", columns)
            for index, choice in enumerate(task.choices)
        )
    if len(choices) < 2:
        raise DataError(f"choices: {len(choices)} given, at least 2 are needed to choose from")
    for index, choice in enumerate(choices):
        if not choice.strip():
            raise DataError(f"choices[{index}]: empty; there is nothing to score")
    return choices


def _gold(task: Task, columns: Columns, n_choices: int) -> int | None:
    if task.gold is None:
        return None
    value = rendering.value(task.gold, "gold", columns)
    if not isinstance(value, int):
        kind = type(value).__name__
        raise DataError(
            f"gold: expected the index of a choice, found {kind} {value!r:.60}; {shown(columns)}"
        )
    if not 0 <= value < n_choices:
        hidden = " (a split whose labels are hidden?)" if value == -1 else ""
        raise DataError(f"gold: index {value}{hidden}, but the choices are 0 to {n_choices - 1}")
    return int(value)


def _references(task: Task, columns: Columns) -> tuple[str, ...]:
    if task.references is None:
        return ()
    references = _strings(
        "references", rendering.value(task.references, "references", columns), columns
    )
    if not references and task.no_answer is None:
        raise DataError("references: none, and the task has no `no_answer` for such questions")
    return references


def _shown_answer(
    task: Task,
    columns: Columns,
    choices: tuple[str, ...],
    gold: int | None,
    references: tuple[str, ...],
    grounds: Grounds | None,
) -> str:
    """Return what a shot of this row shows as its answer."""
    if choices:
        return choices[gold or 0]
    if task.answer is None and isinstance(grounds, Material):
        return grounds.reference
    if task.answer is not None and (references or grounds):
        return rendering.text(task.answer, "answer", columns)
    return references[0] if references else task.no_answer or ""


def _reference_ratings(task: Task, columns: Columns) -> tuple[float, ...]:
    if task.reference_ratings is None:
        return ()
    value = rendering.value(task.reference_ratings, "reference_ratings", columns)
    ratings = list(value) if isinstance(value, list | tuple) else [value]
    for rating in ratings:
        if isinstance(rating, bool) or not isinstance(rating, int | float) or not isfinite(rating):
            raise DataError(
                f"reference_ratings: expected a number or a list of numbers, found {value!r:.60}; "
                f"{shown(columns)}"
            )
    return tuple(float(rating) for rating in ratings)


def _preferred(task: Task, columns: Columns) -> str | None:
    if task.preferred is None:
        return None
    value = rendering.value(task.preferred, "preferred", columns)
    if value not in PREFERENCES:
        raise DataError(
            f"preferred: expected 'a', 'b' or 'tie', found {value!r:.60}; {shown(columns)}"
        )
    return str(value)


def _counted_text(task: Task, columns: Columns, text: str, choices: tuple[str, ...]) -> str | None:
    if task.counted_text is not None:
        return rendering.text(task.counted_text, "counted_text", columns)
    if task.continuation is not None:
        return choices[0].strip(" ")
    return None if task.text is None else text


def _id(task: Task, row: Row) -> str:
    if task.id is None and "id" not in row.columns:
        return str(row.number)
    return rendering.label(task.id or "row['id']", "id", row.columns) or ""


def _check_encodable(question: Question) -> None:
    parts = (
        *(question.id, question.context, question.text),
        *(*question.choices, *question.references, *question.judge_prompts),
        *(question.grounds.fields().values() if question.grounds else ()),
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
