"""Renders one row by its task's templates, and checks what they give."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from string import ascii_lowercase, ascii_uppercase
from typing import Any

from raveval.errors import DataError
from raveval.judging.material import Grounds, Material
from raveval.tasks import GRADED, Task, judged, rendering
from raveval.tasks.rendering import Columns, RowError, shown
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
    gold = _gold(task, columns, choices)
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


def _strings(key: str, source: str, columns: Columns, *, advice: str) -> tuple[str, ...]:
    """Return the texts that an expression gives; `advice` is for one that gives a single text."""
    value = rendering.value(source, key, columns)
    if not isinstance(value, list | tuple):
        kind = type(value).__name__
        raise RowError(
            f"{key}: expected a list of texts, found {kind} {value!r:.60}; {shown(columns)}",
            alike=f"{key}: {kind}",
            advice=advice if isinstance(value, str) else "",
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
        advice = (
            'Where each choice has a column of its own, `choices: "[a, b, c]"` lists them; a cell '
            f"that holds them all is taken apart by `choices: \"{_bare(task.choices)}.split('|')\"`"
        )
        choices = _strings("choices", task.choices, columns, advice=advice)
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


def _gold(task: Task, columns: Columns, choices: tuple[str, ...]) -> int | None:
    if task.gold is None:
        return None
    value = rendering.value(task.gold, "gold", columns)
    if not isinstance(value, int):
        kind, advice = type(value).__name__, _gold_advice(task, value, choices)
        raise RowError(
            f"gold: expected the index of a choice, found {kind} {value!r:.60}; {shown(columns)}",
            alike=f"gold: {kind} {advice}",
            advice=advice,
        )
    n_choices = len(choices)
    if not 0 <= value < n_choices:
        hidden = " (a split whose labels are hidden?)" if value == -1 else ""
        raise DataError(f"gold: index {value}{hidden}, but the choices are 0 to {n_choices - 1}")
    return int(value)


def _gold_advice(task: Task, value: Any, choices: tuple[str, ...]) -> str:
    """Return how the index is made of what stands in the row instead of it."""
    bare = _bare(task.gold or "")
    if isinstance(value, float) and value.is_integer():
        return f"For a number as an index write `gold: {bare} | int`"
    if not isinstance(value, str):
        return ""
    if value in choices:
        if not isinstance(task.choices, str):
            return (
                "The index of a choice by its text needs the choices as one expression, say "
                f'`choices: "[a, b]"` with `gold: "[a, b].index({bare})"`'
            )
        return f'The index of a choice by its text is `gold: "{_bare(task.choices)}.index({bare})"`'
    if value.strip().isdecimal():
        return (
            f"Cells of CSV are text: write `gold: {bare} | int`, or `gold: ({bare} | int) - 1` "
            "where they count from 1"
        )
    letters = ascii_uppercase if value.isupper() else ascii_lowercase
    if len(value) == 1 and value in letters[: len(choices)]:
        return f"The index of a letter is `gold: \"'{letters[: len(choices)]}'.index({bare})\"`"
    return "A text as an index has to be one of the choices, letter for letter"


def _bare(expression: str) -> str:
    """Return an expression without the braces that may stand around it."""
    return expression.strip().removeprefix("{{").removesuffix("}}").strip()


def _references(task: Task, columns: Columns) -> tuple[str, ...]:
    if task.references is None:
        return ()
    bare = _bare(task.references)
    advice = (
        f'A cell that is one answer is `references: "[{bare}]"`; one that holds several is taken '
        f"apart by `references: \"{bare}.split('|')\"`"
    )
    references = _strings("references", task.references, columns, advice=advice)
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
