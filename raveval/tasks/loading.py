"""From a task and a run's options to examples: finds the rows and the pool, puts them together."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from raveval.errors import ConfigError, DataError
from raveval.spool import Entry, Spool
from raveval.tasks import GRADED, JUDGED, Options, Task, layout, shots
from raveval.tasks.faults import Faults
from raveval.tasks.question import Question, render
from raveval.tasks.sections import Source
from raveval.tasks.source import Layout, Row, files, read
from raveval.types import Example, row_key


def examples(task: Task, options: Options, *, seed: int) -> Spool[Example]:
    """Read, render and check; see `raveval.tasks.load_examples`."""
    _check_options(task, options)
    n_shots, source = _n_shots(task, options), _source(task, options)
    rendered = _questions(task, source, limit=options.limit)
    if n_shots == 0:
        found = Spool(
            Example,
            (_entry(each, layout.example(task, options, each, ())) for each in rendered),
        )
        _check_unique(task, found)
        return found
    questions = Spool(Question, (_entry(each, each) for each in rendered))
    _check_unique(task, questions)
    pool_source = _pool(task, options)
    candidates = _questions(task, pool_source, limit=None)
    pool = shots.Pool(
        _as_shots(task, candidates),
        within_group=task.fewshot.within_group,
        order=task.fewshot.order,
        name=f"task {task.name!r}: the pool {pool_source.name}",
        is_apart=pool_source != source,
    )
    return Spool(
        Example,
        (
            _entry(each, layout.example(task, options, each, pool.draw(each, n_shots, seed=seed)))
            for each in questions
        ),
    )


def _entry(question: Question, value: Question | Example) -> Entry:
    """Return a value under the key by which examples are ordered, with the place of its row."""
    key = row_key(question.id).to_bytes(8) + question.id.encode()
    return Entry(key, question.where, value)


def provenance(task: Task, options: Options) -> dict[str, str]:
    """Return where the rows come from; see `raveval.tasks.provenance`."""
    source = _source(task, options)
    found = {"examples": source.name}
    if source.hub is not None:
        from raveval.tasks import hub

        place = hub.locate(source.hub, source.config, source.split or "", source.revision)
        found["revision"] = place.sha
    if task.distinct:
        found["repeated_rows"] = str(_n_repeated(task, source, limit=options.limit))
    if _n_shots(task, options):
        found["shots"] = _pool(task, options).name
    return found


def source_digests(task: Task, options: Options) -> list[list[str]]:
    """Return what the rows and the pool are; see `raveval.tasks.source_digests`."""
    sources = [_source(task, options)]
    if _n_shots(task, options):
        sources.append(_pool(task, options))
    return [_digests(source) for source in sources]


def _digests(source: Source) -> list[str]:
    """Return a source's name and what tells its content: a file's bytes, a commit of the hub."""
    if source.path is not None:
        found = files(Path(source.path).expanduser(), _reading(source))
        return [source.name, *(f"{file.name} {_digest_of_file(file)}" for file in found)]
    from raveval.tasks import hub

    place = hub.locate(source.hub or "", source.config, source.split or "", source.revision)
    return [source.name, place.sha, *place.files]


def _digest_of_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as exc:
        raise DataError(f"{path}: cannot be read: {exc.strerror or exc}") from exc


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


def _reading(source: Source) -> Layout:
    return Layout(source.format, source.documents, source.split_on)


def _rows(source: Source) -> Iterator[Row]:
    if source.path is not None:
        return read(Path(source.path).expanduser(), _reading(source))
    from raveval.tasks import hub

    return hub.read_hub(source.hub or "", source.config, source.split or "", source.revision)


def _questions(task: Task, source: Source, *, limit: int | None) -> Iterator[Question]:
    """Yield all rows, rendered; complain at the end about all that cannot be read, at once."""
    rows = _rendered(task, source, limit=limit)
    return (question for question, is_repeated in rows if not is_repeated)


def _n_repeated(task: Task, source: Source, *, limit: int | None) -> int:
    """Return how many rows only repeat an earlier one."""
    return sum(is_repeated for _, is_repeated in _rendered(task, source, limit=limit))


def _rendered(task: Task, source: Source, *, limit: int | None) -> Iterator[tuple[Question, bool]]:
    """Yield each row that can be read, and whether the task leaves it out as a repetition."""
    own = (None, task.source.path, task.fewshot.path)
    faults = Faults(task, source.name, is_given=source.path not in own)
    seen, n_found = set[bytes](), 0
    for row in _rows(source):
        try:
            question = render(task, row)
        except DataError as exc:
            faults.add(row, exc)
        else:
            is_repeated = task.distinct and _is_known(question, seen)
            n_found += not is_repeated
            yield question, is_repeated
        if n_found + len(faults) == limit:
            break
    faults.refuse(len(faults) + n_found)
    if not n_found:
        raise DataError(f"{source.name}: no rows; task {task.name!r} needs at least one")


def _is_known(question: Question, seen: set[bytes]) -> bool:
    """Note what a row asks, and return whether another one did before."""
    content = repr(dataclasses.replace(question, where="", id=""))
    known = hashlib.blake2b(content.encode(), digest_size=16).digest()
    if known in seen:
        return True
    seen.add(known)
    return False


def _as_shots(task: Task, candidates: Iterable[Question]) -> Iterator[Question]:
    """Yield the candidates; refuse one of which it is not known how it is answered well."""
    for question in candidates:
        if task.protocol in GRADED and not question.shown_answer.strip():
            raise DataError(
                f"{question.where}: as a shot it has no answer to show; give the task `answer` or "
                "a reference, or ask without shots"
            )
        yield question


def _check_unique(task: Task, found: Spool[Question] | Spool[Example]) -> None:
    repetition = found.first_repetition()
    if repetition is None:
        return
    again, first = repetition
    raise DataError(
        f"{found.label(again)}: id {found[again].id!r} is already that of {found.label(first)}; "
        f"ids must be unique within task {task.name!r} (its `id` says where they come from)"
    )
