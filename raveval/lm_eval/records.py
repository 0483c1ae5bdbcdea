"""Turns samples into records of our protocols, so that our metrics compute their numbers anew.

What a sample does not hold (tokens of a choice, log-likelihoods without the question) is null, and
the numbers that need it say "not measured". A task is turned into records only where its samples
bear out what is assumed of them: the right choice, read from the target, must give every sample the
`acc` that lm-eval logged. Tasks with rules of their own stay as the numbers of their results file.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pyarrow as pa

from raveval.evaluate import load_protocol
from raveval.lm_eval.sample_lines import Sample
from raveval.lm_eval.terms import BOUNDARY, boundary_chars, terms_of, values
from raveval.metrics import squad
from raveval.protocols import schema
from raveval.types import Example, Status

Row = Mapping[str, Any]

_WHITE_SPACE = re.compile(r"\s+")


class NoRecordsError(Exception):
    """Why samples are no records of ours, in words."""


@dataclass(frozen=True, slots=True)
class Converted:
    """A task's samples as records.

    Attributes:
        output_type: what lm-eval calls the way in which the task was asked.
        protocol, metrics: ours, and the metric families that its records feed.
        scoring: the primary one of multiple choice.
        examples: what was asked, ordered as run directories are.
        records: one for each example, in the same order.
        quoted: whether our numbers say the same as the file's own; else only the file's are shown.
        notes: counts of samples whose logged values differ from those of our rules.
    """

    output_type: str
    protocol: str
    metrics: tuple[str, ...]
    scoring: str
    examples: tuple[Example, ...]
    records: pa.Table
    quoted: bool = True
    notes: Mapping[str, int] = field(default_factory=dict)


class Missing(NamedTuple):
    """An example without a number, of which our own results files tell."""

    id: str
    row: Row


class _Asked(NamedTuple):
    """An example and the columns of its record."""

    example: Example
    columns: Row


def convert(
    samples: Sequence[Sample],
    *,
    scoring: str | None = None,
    metrics: Sequence[str] | None = None,
    delimiter: str | None = None,
    missing: Sequence[Missing] = (),
) -> Converted:
    """Return the samples of a task as records.

    Args:
        samples: of one task, in any order; of several filters the first is taken.
        scoring: the primary scoring of multiple choice; `raw`, lm-eval's `acc`, by default.
        metrics: the metric families; by default those that a record of the kind feeds.
        delimiter: what stands between a context and a choice, where the file says it.
        missing: examples without a number.

    Raises:
        NoRecordsError: they are none; says why.
    """
    chosen = [sample for sample in samples if sample.filter == samples[0].filter]
    output_type = _output_type(chosen)
    kind = _KINDS[output_type]
    ids = _ids(chosen)
    asked = [
        _with_ours(each, sample)
        for each, sample in zip(kind.read(chosen, ids, scoring or "raw"), chosen, strict=True)
    ]
    rows = [_row(each) for each in asked]
    rows += [_missing_row(each) for each in missing]
    order = sorted(range(len(rows)), key=lambda place: (rows[place]["row_key"], rows[place]["id"]))
    protocol = load_protocol(kind.protocol)
    table = pa.Table.from_pylist(rows, schema=schema(protocol.COLUMNS))
    examples = [each.example for each in asked] + [Example(id=each.id) for each in missing]
    found = Converted(
        output_type,
        kind.protocol,
        tuple(metrics or kind.metrics),
        scoring or "raw",
        tuple(examples[place] for place in order),
        protocol.derive(table).take(order),
    )
    return _compared(found, _with_boundary(table.slice(0, len(asked)), asked, delimiter), chosen)


def _with_boundary(records: pa.Table, asked: Sequence[_Asked], delimiter: str | None) -> pa.Table:
    """Return records with the column that `acc_norm` needs."""
    boundaries = [
        len(delimiter)
        if delimiter and all(text.startswith(delimiter) for text in each.example.continuations)
        else boundary_chars(each.example.continuations)
        for each in asked
    ]
    return records.append_column(BOUNDARY, pa.array(boundaries, pa.int32()))


def _compared(found: Converted, records: pa.Table, samples: Sequence[Sample]) -> Converted:
    """Hold the values that our rules give each sample against those that lm-eval logged."""
    notes = {}
    for term in terms_of(found.output_type, found.metrics):
        logged = [sample.columns.get(term.name) for sample in samples]
        ours = values(term, found.metrics, records)
        differing = [
            a for a, b in zip(logged, ours, strict=True) if a is not None and _differ(a, b)
        ]
        notes[f"{term.name}_differs_from_the_file"] = len(differing)
    has_answers = found.output_type == "generate_until"
    are_scored = all(sample.columns.get("exact_match") is not None for sample in samples)
    agrees = are_scored and not notes.get("exact_match_differs_from_the_file")
    counted = {name: n for name, n in notes.items() if n}
    return replace(found, quoted=agrees or not has_answers, notes=counted)


def _differ(logged: Any, ours: Any) -> bool:
    """Whether two numbers, or pairs of numbers, are more than rounding apart."""
    pairs = zip(
        logged if isinstance(logged, list) else [logged],
        ours if isinstance(ours, list) else [ours],
        strict=False,
    )
    return any(b is None or not math.isclose(float(a), float(b), rel_tol=1e-9) for a, b in pairs)


def _output_type(samples: Sequence[Sample]) -> str:
    """Return how the samples were asked, by the shape of their arguments."""
    found = {_shape(sample) for sample in samples}
    if len(found) != 1 or None in found:
        raise NoRecordsError("its requests are of several kinds, or of none that raveval knows")
    return str(found.pop())


def _shape(sample: Sample) -> str | None:
    widths = {len(each) for each in sample.arguments}
    if not sample.arguments or not all(isinstance(each[0], str) for each in sample.arguments):
        return None
    if widths == {1}:
        return "loglikelihood_rolling" if len(sample.arguments) == 1 else None
    if widths != {2}:
        return None
    if all(isinstance(each[1], str) for each in sample.arguments):
        return "loglikelihood" if len(sample.arguments) == 1 else "multiple_choice"
    return "generate_until" if len(sample.arguments) == 1 else None


def _ids(samples: Sequence[Sample]) -> list[str]:
    """Return each example's id by our own rule: the column `id` of its row, else its number."""
    found = [
        str(sample.doc["id"]) if isinstance(sample.doc.get("id"), str | int) else ""
        for sample in samples
    ]
    if "" not in found and len(set(found)) == len(found):
        return found
    numbers = [str(sample.doc_id) for sample in samples]
    if len(set(numbers)) < len(numbers):
        raise NoRecordsError("several of its samples have the same doc_id")
    return numbers


def _with_ours(asked: _Asked, sample: Sample) -> _Asked:
    """Add the columns that raveval itself wrote beside lm-eval's."""
    return _Asked(asked.example, {**asked.columns, **sample.ours})


def _row(asked: _Asked) -> dict[str, Any]:
    example = asked.example
    common = {"group": None, "cluster": None, "status": str(Status.OK), "message": None}
    return {**common, **asked.columns, "id": example.id, "row_key": example.row_key}


def _missing_row(missing: Missing) -> dict[str, Any]:
    example = Example(id=missing.id)
    return {**missing.row, "id": missing.id, "row_key": example.row_key}


def _fields(sample: Sample) -> dict[str, str]:
    """Return what tells the example from another with the same id."""
    hashes = {key: sample.columns.get(key) for key in ("doc_hash", "prompt_hash")}
    return {"doc_id": str(sample.doc_id), **{k: str(v) for k, v in hashes.items() if v}}


class _Scored(NamedTuple):
    """The response to a request for a log-likelihood."""

    nats: float
    is_greedy: bool


def _scored(sample: Sample) -> list[_Scored]:
    return [_score(sample, response) for response in sample.filtered]


def _score(sample: Sample, response: Any) -> _Scored:
    try:
        nats, is_greedy = response
        return _Scored(float(nats), str(is_greedy) == "True")
    except (TypeError, ValueError):
        raise NoRecordsError(
            f"{sample.where}: a response is {response!r:.60}, not a log-likelihood and a truth "
            "value"
        ) from None


def _choices(samples: Sequence[Sample], ids: Sequence[str], scoring: str) -> list[_Asked]:
    return [
        _choice(sample, id, gold, scoring)
        for sample, id, gold in zip(samples, ids, _golds(samples), strict=True)
    ]


def _choice(sample: Sample, id: str, gold: int, scoring: str) -> _Asked:
    offered = _offered(sample)
    texts = offered.continuations
    # Where the contexts differ and not the continuations, these are no choices to be measured.
    is_measured = len({context for context, _ in sample.arguments[: len(texts)]}) == 1
    columns = {
        "gold": gold,
        "scoring": scoring,
        "logprob_nats": [each.nats for each in offered.scored],
        "unconditional_nats": offered.unconditional,
        "n_chars": [len(text) for text in texts] if is_measured else None,
        "n_bytes": [len(text.encode()) for text in texts] if is_measured else None,
        "is_greedy": [each.is_greedy for each in offered.scored],
    }
    prompt = sample.arguments[0][0]
    example = Example(id=id, prompt=prompt, continuations=texts, gold=gold, fields=_fields(sample))
    return _Asked(example, columns)


class _Offered(NamedTuple):
    """The choices of a sample, and their log-likelihoods with and without the question."""

    continuations: tuple[str, ...]
    scored: Sequence[_Scored]
    unconditional: list[float] | None


def _offered(sample: Sample) -> _Offered:
    """Return the choices; for `acc_mutual_info` lm-eval asks for each again, without a context."""
    texts = tuple(continuation for _, continuation in sample.arguments)
    scored = _scored(sample)
    if len(scored) != len(texts):
        raise NoRecordsError(f"{sample.where}: {len(texts)} requests, {len(scored)} responses")
    half = len(texts) // 2
    again = [context for context, _ in sample.arguments[half:]]
    if texts[:half] != texts[half:] or any(again):
        return _Offered(texts, scored, None)
    return _Offered(texts[:half], scored[:half], [each.nats for each in scored[half:]])


def _golds(samples: Sequence[Sample]) -> list[int]:
    """Return the index of each right choice, read from the targets in the way that fits `acc`."""
    offered = [_offered(sample) for sample in samples]
    for reading in (_index, _place):
        golds = [
            reading(each, sample.target) for each, sample in zip(offered, samples, strict=True)
        ]
        known = [gold for gold in golds if gold is not None]
        if len(known) == len(golds) and _fits(offered, known, samples):
            return known
    raise NoRecordsError(
        "its targets are neither indices nor texts of the choices that give every sample the `acc` "
        "in the file: a task with rules of its own"
    )


def _index(offered: _Offered, target: Any) -> int | None:
    text = str(target)
    gold = int(text) if text.isdecimal() else -1
    return gold if 0 <= gold < len(offered.continuations) else None


def _place(offered: _Offered, target: Any) -> int | None:
    boundary = boundary_chars(offered.continuations)
    texts = [text[boundary:] for text in offered.continuations]
    return texts.index(target) if target in texts else None


def _fits(offered: Sequence[_Offered], golds: Sequence[int], samples: Sequence[Sample]) -> bool:
    """Whether the choice with the highest log-likelihood gives each sample its `acc`."""
    logged = [sample.columns.get("acc") for sample in samples]
    if all(value is None for value in logged):
        return True
    return all(
        value in _credits(each, gold)
        for value, each, gold in zip(logged, offered, golds, strict=True)
    )


def _credits(offered: _Offered, gold: int) -> tuple[float, float]:
    """Return what lm-eval gives an example, the first of tied choices being its answer, and we."""
    nats = [each.nats for each in offered.scored]
    best = [place for place, value in enumerate(nats) if value == max(nats)]
    return float(best[:1] == [gold]), float(best == [gold])


def _continuations(samples: Sequence[Sample], ids: Sequence[str], _: str) -> list[_Asked]:
    return [_continuation(sample, id) for sample, id in zip(samples, ids, strict=True)]


def _continuation(sample: Sample, id: str) -> _Asked:
    (context, text), (scored,) = sample.arguments[0], _scored(sample)[:1]
    counted = text.strip(" ")
    columns = {
        "logprob_nats": scored.nats,
        "is_greedy": scored.is_greedy,
        "n_words": len(_WHITE_SPACE.split(counted)),
        "n_words_whitespace": len(counted.split()),
        "n_bytes": len(counted.encode()),
        "n_chars": len(counted),
    }
    example = Example(id=id, prompt=context, continuations=(text,), fields=_fields(sample))
    return _Asked(example, columns)


def _documents(samples: Sequence[Sample], ids: Sequence[str], _: str) -> list[_Asked]:
    return [_document(sample, id) for sample, id in zip(samples, ids, strict=True)]


def _document(sample: Sample, id: str) -> _Asked:
    try:
        nats = float(sample.filtered[0])
    except (TypeError, ValueError):
        raise NoRecordsError(
            f"{sample.where}: the response is {sample.filtered[0]!r:.60}, not a log-likelihood"
        ) from None
    # What perplexities divide by is counted on the original, which the sample may not show.
    columns = {
        "logprob_nats": nats,
        "n_words": _divisor(sample, "word_perplexity"),
        "n_bytes": _divisor(sample, "byte_perplexity"),
    }
    text = sample.arguments[0][0]
    return _Asked(Example(id=id, text=text, fields=_fields(sample)), columns)


def _divisor(sample: Sample, metric: str) -> int | None:
    logged = sample.columns.get(metric)
    return int(logged[1]) if isinstance(logged, list) and len(logged) == 2 else None


def _answers(samples: Sequence[Sample], ids: Sequence[str], _: str) -> list[_Asked]:
    return [_answer(sample, id) for sample, id in zip(samples, ids, strict=True)]


def _answer(sample: Sample, id: str) -> _Asked:
    prediction = sample.filtered[0]
    if not isinstance(prediction, str):
        raise NoRecordsError(f"{sample.where}: the answer is {prediction!r:.60}, not a text")
    references = sample.ours.get("references") or _references(sample.target)
    official = squad.score(prediction, references)
    columns = {
        "prediction": prediction,
        "references": list(references),
        "exact_match": official.exact,
        "f1": official.f1,
    }
    prompt = sample.arguments[0][0]
    example = Example(id=id, prompt=prompt, references=tuple(references), fields=_fields(sample))
    return _Asked(example, columns)


def _references(target: Any) -> tuple[str, ...]:
    """Return the right answers: several stand in the file as Python prints a list of texts."""
    if isinstance(target, list):
        return tuple(map(str, target))
    text = str(target)
    if text.startswith("["):
        try:
            found = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return (text,)
        if isinstance(found, list) and all(isinstance(each, str) for each in found):
            return tuple(found)
    return (text,)


class _Kind(NamedTuple):
    protocol: str
    metrics: tuple[str, ...]
    read: Callable[[Sequence[Sample], Sequence[str], str], list[_Asked]]


_KINDS: Mapping[str, _Kind] = {
    "multiple_choice": _Kind("multiple_choice", ("accuracy",), _choices),
    "loglikelihood": _Kind("language_modelling", ("perplexity", "greedy"), _continuations),
    "loglikelihood_rolling": _Kind("language_modelling", ("perplexity",), _documents),
    "generate_until": _Kind("question_answering", ("squad",), _answers),
}
