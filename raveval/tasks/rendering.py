"""Turns rows into examples: renders a task's templates, checks what they give, adds the shots."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from raveval import templates
from raveval.errors import ConfigError, DataError
from raveval.tasks import Options, Source, Task, shots
from raveval.tasks.source import Layout, Row, read
from raveval.types import Example, Message, Prompt

MAX_FAULTS_SHOWN = 5

_WHITE_SPACE = re.compile(r"\s+")

T = TypeVar("T")


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
    instruction: str = ""
    unconditional: str | None = None
    text: str = ""
    counted_text: str | None = None
    group: str | None = None
    cluster: str | None = None


def examples(task: Task, options: Options, *, seed: int) -> list[Example]:
    """Read, render and check; see `raveval.tasks.load_examples`."""
    _check_options(task, options)
    questions = _questions(task, _source(task, options), limit=options.limit)
    _check_unique(task, questions)
    n_shots = _n_shots(task, options)
    if n_shots == 0:
        return [_example(task, options, question, ()) for question in questions]
    source = _pool(task, options)
    pool = shots.Pool(
        _questions(task, source, limit=None),
        within_group=task.fewshot.within_group,
        order=task.fewshot.order,
        name=f"task {task.name!r}: the pool {_name(source)}",
        is_apart=source != _source(task, options),
    )
    return [
        _example(task, options, question, pool.draw(question, n_shots, seed=seed))
        for question in questions
    ]


def provenance(task: Task, options: Options) -> dict[str, str]:
    """Return where the rows come from; see `raveval.tasks.provenance`."""
    source = _source(task, options)
    if source.hub is None:
        return {"path": source.path or ""}
    from raveval.tasks import hub

    return {
        "hub": source.hub,
        "config": source.config or "",
        "split": source.split or "",
        "revision": hub.locate(source.hub, source.config, source.split or "", source.revision).sha,
    }


def _n_shots(task: Task, options: Options) -> int:
    return task.num_fewshot if options.num_fewshot is None else options.num_fewshot


def _check_options(task: Task, options: Options) -> None:
    n_shots = _n_shots(task, options)
    if n_shots < 0 or (options.limit is not None and options.limit < 1):
        raise ConfigError(f"task {task.name!r}: num_fewshot must be >= 0 and limit >= 1")
    if task.text is not None and (n_shots or options.chat):
        asked = "shots" if n_shots else "a chat"
        raise ConfigError(f"task {task.name!r} scores documents as they stand: drop {asked}")
    if options.system_prompt is not None and not options.chat:
        raise ConfigError(f"task {task.name!r}: system_prompt needs chat: true")
    if options.split is not None and (options.path is not None or task.source.hub is None):
        raise ConfigError(f"task {task.name!r}: split belongs to the hub's dataset, not to a path")


def _local(task: Task, path: str) -> Source:
    kept = {"documents": task.source.documents, "split_on": task.source.split_on}
    return Source(path=path, **kept)  # type: ignore[arg-type]


def _source(task: Task, options: Options) -> Source:
    if options.path is not None:
        return _local(task, options.path)
    if options.split is not None:
        return task.source.model_copy(update={"split": options.split})
    return task.source


def _pool(task: Task, options: Options) -> Source:
    if options.fewshot_path is not None:
        return _local(task, options.fewshot_path)
    if options.path is not None:
        return _local(task, options.path)
    if task.fewshot.path is not None:
        return _local(task, task.fewshot.path)
    source = _source(task, options)
    if source.hub is not None and task.fewshot.split is not None:
        return source.model_copy(update={"split": task.fewshot.split})
    return source


def _name(source: Source) -> str:
    if source.path is not None:
        return source.path
    return " ".join(filter(None, (source.hub, source.config, source.split)))


def _rows(source: Source) -> Iterator[Row]:
    if source.path is not None:
        layout = Layout(source.format, source.documents, source.split_on)
        return read(Path(source.path), layout)
    from raveval.tasks import hub

    return hub.read_hub(source.hub or "", source.config, source.split or "", source.revision)


def _questions(task: Task, source: Source, *, limit: int | None) -> list[Question]:
    """Render all rows, and complain about all that cannot be read at once."""
    questions, faults = list[Question](), list[str]()
    for row in islice(_rows(source), limit):
        try:
            questions.append(_question(task, row))
        except DataError as exc:
            faults.append(f"{row.where}: {exc}")
    if faults:
        shown = "\n".join(faults[:MAX_FAULTS_SHOWN])
        n_rows = len(faults) + len(questions)
        raise DataError(
            f"{shown}\ntask {task.name!r} cannot read {len(faults)} of {n_rows} rows of "
            f"{_name(source)}. Mend them, or write a task file for this layout of columns"
        )
    if not questions:
        raise DataError(f"{_name(source)}: no rows; task {task.name!r} needs at least one")
    return questions


def _check_unique(task: Task, questions: Iterable[Question]) -> None:
    seen: dict[str, str] = {}
    for question in questions:
        first = seen.setdefault(question.id, question.where)
        if first is not question.where:
            raise DataError(
                f"{question.where}: id {question.id!r} is already that of {first}; ids must be "
                f"unique within task {task.name!r} (its `id` says where they come from)"
            )


def _question(task: Task, row: Row) -> Question:
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
        instruction=_render(task.instruction, "instruction", columns),
        unconditional=_render(task.unconditional, "unconditional", columns).rstrip(" "),
        text=text,
        counted_text=_counted_text(task, columns, text, choices),
        group=_label(task.group, "group", columns),
        cluster=_label(task.cluster, "cluster", columns),
    )
    _check_encodable(question)
    return question


def _at(key: str, evaluate: Callable[[Mapping[str, Any]], T], columns: Mapping[str, Any]) -> T:
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
    parts = (question.id, question.context, *question.choices, *question.references, question.text)
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


def _example(
    task: Task, options: Options, question: Question, drawn: tuple[Question, ...]
) -> Example:
    if options.chat:
        prompt: Prompt = _chat(task, options, question, drawn)
        unconditional: Prompt | None = (Message("user", question.unconditional or ""),)
    else:
        prompt = _plain(task, question, drawn)
        unconditional = question.unconditional
    return Example(
        id=question.id,
        prompt=prompt,
        unconditional_prompt=None if task.unconditional is None else unconditional,
        continuations=tuple(
            _continuation(question, choice, chat=options.chat) for choice in question.choices
        ),
        gold=question.gold,
        references=question.references,
        text=question.text,
        group=question.group,
        cluster=question.cluster,
        **_sizes(question.counted_text),
    )


def _sizes(text: str | None) -> dict[str, Any]:
    """Count what perplexities are divided by; only language modelling has a text to count."""
    if text is None:
        return {}
    return {
        "n_words": len(_WHITE_SPACE.split(text)),
        "n_words_whitespace": len(text.split()),
        "n_bytes": len(text.encode()),
        "n_chars": len(text),
    }


def _continuation(question: Question, answer: str, *, chat: bool) -> str:
    """Return an answer as it follows its context; the boundary is never doubled."""
    if chat:
        return answer.lstrip(" ")
    return question.joint + (answer.lstrip(" ") if question.joint.endswith(" ") else answer)


def _plain(task: Task, question: Question, drawn: tuple[Question, ...]) -> str:
    shown = [shot.context + _continuation(shot, shot.shown_answer, chat=False) for shot in drawn]
    parts = [*filter(None, [question.instruction]), *shown, question.context]
    return task.fewshot.separator.join(parts).rstrip(" ")


def _chat(
    task: Task, options: Options, question: Question, drawn: tuple[Question, ...]
) -> tuple[Message, ...]:
    system = [Message("system", options.system_prompt)] if options.system_prompt else []
    if not options.fewshot_as_multiturn:
        return (*system, Message("user", _plain(task, question, drawn)))
    turns = list[Message]()
    for shot in drawn:
        answer = _continuation(shot, shot.shown_answer, chat=True)
        turns += [Message("user", shot.context), Message("assistant", answer)]
    turns.append(Message("user", question.context))
    if question.instruction:
        opening = f"{question.instruction}{task.fewshot.separator}{turns[0].content}"
        turns[0] = Message("user", opening)
    return (*system, *turns)
