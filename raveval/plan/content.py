"""What a task asks: its examples, their hashes and lengths, and what all of these were made of.

A plan that is made again of the same files, by the same versions, takes all of it from run.json:
rendering and measuring a million rows takes minutes, hashing their file a second.
"""

from __future__ import annotations

import functools
import hashlib
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import raveval
from raveval import tasks
from raveval.fingerprint import digest, digest_each
from raveval.models import ChosenModel
from raveval.plan.environment import installed
from raveval.protocols import TaskSettings
from raveval.store import RunDirectory
from raveval.types import Example, Generate, Sampling

_ASKED = tuple(field.name for field in fields(Example) if field.name != "fields")
_PROBE = (
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich; 敏捷的棕色狐狸 1234567890."
)


@dataclass(frozen=True, slots=True)
class Lengths:
    """How many tokens examples need, and how many need too many; `verdict`: of a judge's prompts.

    The longest is None where every example surely fits, by its bytes alone.
    """

    longest: int | None = None
    n_overlong: int = 0
    longest_verdict: int | None = None
    n_overlong_verdicts: int = 0


@dataclass(frozen=True, slots=True)
class Content:
    """The examples of a task in their fixed order, and what is known of all of them.

    `digest` is of what the model's answers depend on, `material` of what a judge goes by; `made_of`
    is that of all that they were made of, None where not all of it can be hashed.
    """

    examples: Sequence[Example]
    row_key_sum: int
    digest: str
    material: str | None
    provenance: Mapping[str, str]
    lengths: Lengths
    made_of: str | None

    @property
    def stored_digest(self) -> str:
        """Hash of the examples as they are stored: what is asked, and what a judge goes by."""
        return self.digest if self.material is None else digest([self.digest, self.material])


def described(
    examples: Sequence[Example],
    *,
    is_graded: bool,
    provenance: Mapping[str, str],
    lengths: Lengths,
    made_of: str | None,
) -> Content:
    """Return examples with their hashes; where a judge grades, what it goes by has its own."""
    material = None
    if is_graded:
        material = digest_each(sorted(example.fields.items()) for example in examples)
    asked = map(_asked_of_graded, examples) if is_graded else examples
    return Content(
        examples=examples,
        row_key_sum=sum(example.row_key for example in examples) % 2**64,
        digest=digest_each(asked),
        material=material,
        provenance=provenance,
        lengths=lengths,
        made_of=made_of,
    )


def _asked_of_graded(example: Example) -> dict[str, Any]:
    """Return what the candidate's answer depends on."""
    return {key: getattr(example, key) for key in _ASKED}


def remembered(
    directory: RunDirectory, name: str, made_of: str | None, entry: Mapping[str, Any] | None
) -> Content | None:
    """Return the content of a task as a run has it, if it was made of the same; else None.

    `entry` is what run.json says of the task.
    """
    if made_of is None or entry is None or entry.get("made_of") != made_of:
        return None
    known = Content(
        examples=directory.stored_examples(name, entry["n_examples"]),
        row_key_sum=entry["row_key_sum"],
        digest=entry["reply"]["examples"],
        material=(entry["verdict"] or {}).get("material"),
        provenance=entry["provenance"],
        lengths=Lengths(**entry["lengths"]),
        made_of=made_of,
    )
    is_there = directory.has_examples(name, len(known.examples), digest=known.stored_digest)
    return known if is_there else None


def made_of(
    task: tasks.Task,
    options: tasks.Options,
    settings: TaskSettings,
    *,
    models: Sequence[tuple[ChosenModel, Mapping[str, Any]]],
    on_overlong: str,
) -> str | None:
    """Return the hash of all that a task's examples, their order and their lengths depend on.

    That is the bytes of the data files, the task, the options, the code of raveval and the packages
    it uses, and the models' identities: those of the candidate and of the judge, if there is one.
    None where a module of one's own is at work: what it depends on nobody knows.

    Raises:
        DataError: a data file is missing.
    """
    if "." in task.protocol or any("." in model.engine for model, _ in models):
        return None
    return digest(
        {
            "code": _code(),
            "python": platform.python_version(),
            "packages": installed(),
            "task": task.model_dump(mode="json", by_alias=True, exclude={"card"}),
            "options": asdict(options),
            "settings": asdict(settings),
            "rows": tasks.source_digests(task, options),
            "models": [
                [identity, asdict(model.options), _tokenizes(model)] for model, identity in models
            ],
            "on_overlong": on_overlong,
        }
    )


def _tokenizes(model: ChosenModel) -> list[Any]:
    """Return what shows that a model's tokens are counted as before.

    The tokenizer of a served model may be at hand today and not have been yesterday.
    """
    encoder = model.encoder
    probe = Generate("probe", _PROBE, Sampling(1))
    return [encoder.max_model_len, encoder.has_chat_template, encoder.commit, encoder.size(probe)]


@functools.cache
def _code() -> str:
    """Return a hash of raveval's own files: between two versions of one name they change too."""
    root = Path(raveval.__file__).parent
    whole = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            whole.update(f"{path.relative_to(root)}\x00{path.stat().st_size}\x00".encode())
            whole.update(path.read_bytes())
    return whole.hexdigest()
