"""What stands in samples_<task>_<date>.jsonl: one example a line, as lm-eval logs them.

The row of the dataset is not kept in a run directory, so `doc` holds what is known of the example:
its id, its prompt and the right answers. Examples without a number have no line; the results file
names them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import pyarrow as pa

from raveval.lm_eval.conventions import NO_FILTER, RAVEVAL, doc_hash, text_hash
from raveval.lm_eval.finished import FinishedTask, Part
from raveval.lm_eval.results_file import generation
from raveval.lm_eval.terms import values
from raveval.types import Answers, Completion, Example, Prompt, Status

_ASKED: Mapping[str, tuple[str, ...]] = {
    # the columns of a protocol's records that a sample of lm-eval's does not show
    "multiple_choice": ("scoring", "unconditional_nats", "n_tokens", "n_context_tokens"),
    "question_answering": (
        *("references", "exact_match", "f1", "finish_reason", "n_output_tokens"),
    ),
    "language_modelling": (
        *("entropy_nats", "n_tokens", "n_words", "n_words_whitespace", "n_bytes", "n_chars"),
        *("n_windows", "window_tokens", "first_token_context"),
    ),
}


class Line(NamedTuple):
    """A line of the file, and the hashes that enter the task's own."""

    text: str
    hashes: str


class _Asked(NamedTuple):
    """What was asked and answered, in lm-eval's columns."""

    doc: Mapping[str, Any]
    target: str
    arguments: Sequence[Sequence[Any]]
    resps: Sequence[Any]
    filtered: Sequence[Any]


def lines(task: FinishedTask) -> list[Line]:
    """Return the lines of a task whose `output_type` lm-eval knows, ordered by doc_id.

    A doc_id is the example's id where all of them are row numbers, else its place in the run.
    """
    are_numbers = all(id.isdecimal() for id in task.records["id"].to_pylist())
    found: dict[int, Line] = {}
    for part in task.parts():
        for place, row in _rows(task, part):
            doc_id = int(row["doc"]["id"]) if are_numbers else place
            found[doc_id] = _line({"doc_id": doc_id, **row})
    return [found[doc_id] for doc_id in sorted(found)]


def _line(row: Mapping[str, Any]) -> Line:
    hashes = "".join(row[key] for key in ("doc_hash", "prompt_hash", "target_hash"))
    return Line(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n", hashes)


def _rows(task: FinishedTask, part: Part) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the place in the run and the columns of each example that has a number."""
    is_scored = [Status(status).is_scored for status in part.records["status"].to_pylist()]
    records = part.records.filter(pa.array(is_scored))
    columns = {term.name: values(term, task.metrics, records) for term in task.terms}
    answers = part.answers or [()] * len(part.examples)
    places = (place for place, known in enumerate(is_scored) if known)
    for row, (place, record) in enumerate(zip(places, records.to_pylist(), strict=True)):
        numbers = {name: column[row] for name, column in columns.items()}
        yield part.start + place, _row(task, part.examples[place], record, answers[place], numbers)


def _row(
    task: FinishedTask,
    example: Example,
    record: Mapping[str, Any],
    answers: Answers,
    numbers: Mapping[str, Any],
) -> dict[str, Any]:
    asked = _asked(task, example, record, answers)
    arguments = {
        f"gen_args_{i}": {f"arg_{j}": argument for j, argument in enumerate(each)}
        for i, each in enumerate(asked.arguments)
    }
    kept = ("id", "status", "message", "group", "cluster", *_ASKED[task.results.protocol])
    return {
        "doc": asked.doc,
        "target": asked.target,
        "arguments": arguments,
        "resps": asked.resps,
        "filtered_resps": asked.filtered,
        "filter": NO_FILTER,
        "metrics": list(numbers),
        "doc_hash": doc_hash(asked.doc),
        "prompt_hash": text_hash(asked.arguments[0][0]),
        "target_hash": text_hash(asked.target),
        **numbers,
        RAVEVAL: {name: _finite(record[name]) for name in kept},
    }


def _asked(
    task: FinishedTask, example: Example, record: Mapping[str, Any], answers: Answers
) -> _Asked:
    if task.output_type == "generate_until":
        return _generated(task, example, record, answers)
    if task.output_type == "loglikelihood_rolling":
        total = _text(record["logprob_nats"])
        return _Asked(
            {"id": example.id, "text": example.text},
            example.text,
            [[example.text]],
            [[total]],
            [total],
        )
    context = _plain(example.prompt)
    doc: dict[str, Any] = {"id": example.id, "query": context}
    doc["choices"] = list(example.continuations)
    target = example.continuations[0]
    pairs = [(record["logprob_nats"], record["is_greedy"])]
    if task.output_type == "multiple_choice":
        doc["gold"] = example.gold
        target = "" if example.gold is None else str(example.gold)
        pairs = list(zip(record["logprob_nats"], record["is_greedy"], strict=True))
    scores = [[_text(nats), str(is_greedy)] for nats, is_greedy in pairs]
    arguments = [[context, continuation] for continuation in example.continuations]
    return _Asked(doc, target, arguments, [[score] for score in scores], scores)


def _generated(
    task: FinishedTask, example: Example, record: Mapping[str, Any], answers: Answers
) -> _Asked:
    context = _plain(example.prompt)
    references = list(example.references)
    doc = {"id": example.id, "query": context, "answers": references}
    target = references[0] if len(references) == 1 else str(references)
    prediction = record["prediction"]
    raw = [answer.text for answer in answers if isinstance(answer, Completion)]
    resps = [raw or [prediction]]
    return _Asked(doc, target, [[context, generation(task)]], resps, [prediction])


def _plain(prompt: Prompt) -> str:
    """Return a prompt as one text; the turns of a chat as JSON."""
    if isinstance(prompt, str):
        return prompt
    return json.dumps([asdict(turn) for turn in prompt], ensure_ascii=False)


def _text(nats: float | None) -> str:
    """Return a log-likelihood as lm-eval logs it; its digits are enough to read it back exactly."""
    return "nan" if nats is None else repr(nats)


def _finite(value: Any) -> Any:
    """Return a value that strict JSON can hold: what is no number is null."""
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
