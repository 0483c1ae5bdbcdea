"""Lays a question out with its shots: as plain text, or as the turns of a chat."""

from __future__ import annotations

import re
from typing import Any

from raveval import judging
from raveval.tasks import Options, Task
from raveval.tasks.question import Question
from raveval.types import Example, Message, Prompt

_WHITE_SPACE = re.compile(r"\s+")


def example(
    task: Task, options: Options, question: Question, drawn: tuple[Question, ...]
) -> Example:
    """Return what is asked about a question after the shots `drawn`.

    Documents are scored as they stand, whether or not the run is a chat.
    """
    if question.judge_prompts:
        return _judged(task, options, question)
    if options.chat and task.text is None:
        prompt: Prompt = _chat(task, options, question, drawn)
        unconditional: Prompt | None = (
            *_system(options),  # else some templates put one of their own
            Message("user", question.unconditional or ""),
        )
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
        fields={} if question.grounds is None else question.grounds.fields(),
        **_sizes(question.counted_text),
    )


def _judged(task: Task, options: Options, question: Question) -> Example:
    """Return what a judge is asked: in turns, or as one text for it to complete."""
    in_turns = options.chat and not (task.grading and task.grading.plain)
    prompts = [
        judging.as_prompt(text, in_turns=in_turns, system=options.system_prompt)
        for text in question.judge_prompts
    ]
    return Example(
        id=question.id,
        prompt=prompts[0],
        second_prompt=prompts[1] if len(prompts) > 1 else None,
        reference_ratings=question.reference_ratings,
        preferred=question.preferred,
        group=question.group,
        cluster=question.cluster,
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


def _system(options: Options) -> tuple[Message, ...]:
    return (Message("system", options.system_prompt),) if options.system_prompt else ()


def _chat(
    task: Task, options: Options, question: Question, drawn: tuple[Question, ...]
) -> tuple[Message, ...]:
    system = _system(options)
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
