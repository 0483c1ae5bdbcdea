"""The official SQuAD numbers, from the official files.

The values are what the official scripts print, in percent; the files and their origin are described
beside them. Each test also runs a plain re-implementation of the published semantics, row by row.
"""

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from raveval.measurement import Measurement, measure
from raveval.metrics import squad, squad2
from raveval.metrics._answers import read_answers
from raveval.metrics._matching import kernel_matches, plain_matches
from tests.official_squad import plain_v1, plain_v2


def rows(dataset: Path, answers: dict[str, str]) -> list[tuple[str | None, list[str]]]:
    return [
        (answers.get(question["id"]), [answer["text"] for answer in question["answers"]])
        for article in json.loads(dataset.read_text("utf-8"))["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]


def percent(measured: Measurement, name: str) -> float:
    value = measured.metrics[name].value
    assert value is not None
    return 100 * value


@pytest.mark.parametrize(
    ("model", "exact_match", "f1", "notes"),
    [
        ("bert-ensemble", 86.20624408703878, 92.19557978351145, {}),
        # 15 predictions more than questions: 28 for no question, and 13 questions without one.
        (
            "logistic-regression",
            40.14191106906339,
            50.98153647324461,
            {"surplus": 28, "unanswered": 13},
        ),
    ],
)
def test_v1(shared_data: Path, model: str, exact_match: float, f1: float, notes: dict[str, int]):
    dataset = shared_data / "squad" / "dev-v1.1.json"
    predictions = shared_data / "squad" / f"predictions-v1.1-{model}.json"
    measured = measure("squad", references=dataset, predictions=predictions)
    assert percent(measured, "exact_match") == pytest.approx(exact_match, abs=1e-9, rel=0)
    assert percent(measured, "f1") == pytest.approx(f1, abs=1e-9, rel=0)
    assert measured.n_rows == 10570
    assert measured.metrics["f1"].n == 10570
    assert measured.notes == {**notes, "clusters": 2067}


def test_v2(shared_data: Path):
    dataset = shared_data / "squad" / "dev-v2.0.json"
    predictions = shared_data / "squad" / "predictions-v2.0-nlnet.json"
    measured = measure("squad2", references=dataset, predictions=predictions)
    expected = {
        "exact_match": 75.82750779078582,
        "f1": 78.77776770381462,
        "exact_match_has_answer": 69.61875843454791,
        "f1_has_answer": 75.52773885752187,
        "exact_match_no_answer": 82.01850294365012,
        "f1_no_answer": 82.01850294365012,
    }
    for name, value in expected.items():
        assert percent(measured, name) == pytest.approx(value, abs=1e-9, rel=0), name
    assert measured.metrics["f1"].n == measured.n_rows == 11873
    assert measured.metrics["f1_has_answer"].n == 5928
    assert measured.metrics["f1_no_answer"].n == 5945


@pytest.mark.parametrize(
    ("module", "files", "values"),
    [
        (
            squad,
            ("dev-v1.1", "predictions-v1.1-bert-ensemble"),
            {"exact_match": 86.20624408703878, "f1": 92.19557978351145},
        ),
        (
            squad,
            ("dev-v1.1", "predictions-v1.1-logistic-regression"),
            {"exact_match": 40.14191106906339, "f1": 50.98153647324461},
        ),
        (
            squad2,
            ("dev-v2.0", "predictions-v2.0-nlnet"),
            {"exact_match": 75.82750779078582, "f1": 78.77776770381462},
        ),
    ],
)
def test_through_the_kernel(
    shared_data: Path, module: Any, files: tuple[str, str], values: dict[str, float]
):
    """The same numbers and, row by row, the same integers."""
    dataset, predictions = (shared_data / "squad" / f"{name}.json" for name in files)
    answers, references = zip(
        *rows(dataset, json.loads(predictions.read_text("utf-8"))), strict=True
    )
    table = pa.table({"prediction": answers, "references": references})
    metric, columns = module.METRIC, read_answers(table)
    found = kernel_matches(columns, module.RULE)
    if found is None:
        pytest.skip("numba is not here")
    plain = plain_matches(columns, module.RULE)
    for name in ("exact", "numerator", "denominator"):
        assert np.array_equal(getattr(found, name), getattr(plain, name)), name
    often = pa.concat_tables([table] * 5)
    assert len(often) > 50_000, "what takes the kernel"
    estimates = metric.compute(metric.update(metric.init(), often))
    for name, value in values.items():
        assert 100 * estimates[name].value == pytest.approx(value, abs=1e-9, rel=0), name


@pytest.mark.parametrize(
    ("files", "ours", "plain"),
    [
        (("dev-v1.1", "predictions-v1.1-logistic-regression"), squad.score, plain_v1),
        (("dev-v2.0", "predictions-v2.0-nlnet"), squad2.score, plain_v2),
    ],
)
def test_each_row_to_the_last_bit(
    shared_data: Path,
    files: tuple[str, str],
    ours: Callable[[str, Sequence[str]], squad.Score],
    plain: Callable[[str, Sequence[str]], tuple[bool, float]],
):
    dataset, predictions = (shared_data / "squad" / f"{name}.json" for name in files)
    answers = json.loads(predictions.read_text("utf-8"))
    answered = [(p, r) for p, r in rows(dataset, answers) if p is not None]
    assert len(answered) > 10_000
    for prediction, references in answered:
        assert ours(prediction, references) == plain(prediction, references), prediction


@pytest.mark.parametrize("language", ["zh", "es"])
def test_other_languages_keep_the_english_rule(shared_data: Path, language: str):
    """Also where whole phrases are one token, as in Chinese."""
    dataset = shared_data / "squad" / f"xquad.{language}.json"
    references = [r for _, r in rows(dataset, {})]
    assert len(references) == 1190
    for right, other in pairwise(references):
        for prediction in (right[0], right[0][1:], f"{other[0]} {right[0]}"):
            assert squad.score(prediction, right) == plain_v1(prediction, right)
