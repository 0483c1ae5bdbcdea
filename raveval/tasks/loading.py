"""From a task and a run's options to examples: finds the rows and the pool, puts them together."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from raveval.errors import ConfigError, DataError
from raveval.tasks import GRADED, JUDGED, Options, Task, layout, shots
from raveval.tasks.faults import Faults
from raveval.tasks.question import Question, render
from raveval.tasks.sections import Source
from raveval.tasks.source import Layout, Row, read
from raveval.types import Example


def examples(task: Task, options: Options, *, seed: int) -> list[Example]:
    """Read, render and check; see `raveval.tasks.load_examples`."""
    _check_options(task, options)
    questions = _read(task, _source(task, options), limit=options.limit).questions
    _check_unique(task, questions)
    n_shots = _n_shots(task, options)
    if n_shots == 0:
        return [layout.example(task, options, question, ()) for question in questions]
    source = _pool(task, options)
    candidates = _read(task, source, limit=None).questions
    _check_shots(task, candidates)
    pool = shots.Pool(
        candidates,
        within_group=task.fewshot.within_group,
        order=task.fewshot.order,
        name=f"task {task.name!r}: the pool {source.name}",
        is_apart=source != _source(task, options),
    )
    return [
        layout.example(task, options, question, pool.draw(question, n_shots, seed=seed))
        for question in questions
    ]


def provenance(task: Task, options: Options) -> dict[str, str]:
    """Return where the rows come from; see `raveval.tasks.provenance`."""
    source = _source(task, options)
    found = {"examples": source.name}
    if source.hub is not None:
        from raveval.tasks import hub

        place = hub.locate(source.hub, source.config, source.split or "", source.revision)
        found["revision"] = place.sha
    if task.distinct:
        n_repeated = _read(task, source, limit=options.limit).n_repeated
        found["repeated_rows"] = str(n_repeated)
    if _n_shots(task, options):
        found["shots"] = _pool(task, options).name
    return found


def _n_shots(task: Task, options: Options) -> int:
    return task.num_fewshot if options.num_fewshot is None else options.num_fewshot


def _check_options(task: Task, options: Options) -> None:
    n_shots = _n_shots(task, options)
    is_judged = task.protocol in JUDGED
    if n_shots < 0 or (options.limit is not None and options.limit < 1):
        raise ConfigError(f"task {task.name!r}: num_fewshot must be >= 0 and limit >= 1")
    if is_judged and n_shots:
        raise ConfigError(
            f"task {task.name!r}: num_fewshot is {n_shots}, but a judge is asked without shots; "
            "leave it out for this task"
        )
    if task.text is not None and n_shots:
        raise ConfigError(
            f"task {task.name!r}: num_fewshot is {n_shots}, but documents are scored as they "
            "stand, without shots; leave it out for this task"
        )
    if options.system_prompt is not None and not (options.chat or is_judged):
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
    if task.source.fetch is not None:
        raise ConfigError(
            f"task {task.name!r}: its rows are a file that you fetch: {task.source.fetch}. Then "
            f"name it: --path FILE, or in a config {{task: {task.name}, path: FILE}}"
        )
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


def _rows(source: Source) -> Iterator[Row]:
    if source.path is not None:
        reading = Layout(source.format, source.documents, source.split_on)
        return read(Path(source.path).expanduser(), reading)
    from raveval.tasks import hub

    return hub.read_hub(source.hub or "", source.config, source.split or "", source.revision)


@dataclass(frozen=True, slots=True)
class _Content:
    """The questions of a source, and how many rows only repeat one of them."""

    questions: list[Question]
    n_repeated: int


def _read(task: Task, source: Source, *, limit: int | None) -> _Content:
    """Render all rows, and complain about all that cannot be read at once."""
    questions = list[Question]()
    own = (None, task.source.path, task.fewshot.path)
    faults = Faults(task, source.name, is_given=source.path not in own)
    seen, n_repeated = set[Question](), 0
    for row in _rows(source):
        try:
            question = render(task, row)
        except DataError as exc:
            faults.add(row, exc)
        else:
            if task.distinct and _is_known(question, seen):
                n_repeated += 1
                continue
            questions.append(question)
        if len(questions) + len(faults) == limit:
            break
    faults.refuse(len(faults) + len(questions))
    if not questions:
        raise DataError(f"{source.name}: no rows; task {task.name!r} needs at least one")
    return _Content(questions, n_repeated)


def _is_known(question: Question, seen: set[Question]) -> bool:
    """Note what a row asks, and return whether another one did before."""
    content = dataclasses.replace(question, where="", id="")
    if content in seen:
        return True
    seen.add(content)
    return False


def _check_shots(task: Task, candidates: Iterable[Question]) -> None:
    """Refuse shots of which it is not known how they are answered well."""
    for question in candidates if task.protocol in GRADED else ():
        if not question.shown_answer.strip():
            raise DataError(
                f"{question.where}: as a shot it has no answer to show; give the task `answer` or "
                "a reference, or ask without shots"
            )


def _check_unique(task: Task, questions: Iterable[Question]) -> None:
    seen: dict[str, str] = {}
    for question in questions:
        first = seen.setdefault(question.id, question.where)
        if first is not question.where:
            raise DataError(
                f"{question.where}: id {question.id!r} is already that of {first}; ids must be "
                f"unique within task {task.name!r} (its `id` says where they come from)"
            )
