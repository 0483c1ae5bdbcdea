"""Correlations that others printed for real files of ratings, to all their decimals."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

import raveval


def printed(found: raveval.Measurement, decimals: int) -> tuple[str, ...]:
    values = [found.metrics[name].value for name in ("pearson", "spearman", "kendall_tau_b")]
    return tuple(f"{value:.{decimals}f}" for value in values if value is not None)


@pytest.mark.parametrize(
    ("file", "aspect", "n", "expected"),
    [
        # UniEval, Zhong et al., EMNLP 2022: the scorer against the human scores, by summary.
        ("qags_cnndm", "consistency", 235, ("0.681681", "0.662255", "0.531636")),
        ("sfres", "naturalness", 1181, ("0.367252", "0.333399", "0.247094")),
        ("sfres", "informativeness", 1181, ("0.282079", "0.224918", "0.169297")),
        ("sfres", "overall", 1181, ("0.370815", "0.291593", "0.214708")),
    ],
)
def test_unieval(
    shared_data: Path, file: str, aspect: str, n: int, expected: tuple[str, ...]
) -> None:
    found = raveval.measure(
        "correlation",
        shared_data / f"unieval/{file}_result.json",
        columns={"rating": f"predict_scores.{aspect}", "reference_rating": f"scores.{aspect}"},
    )
    assert printed(found, 6) == expected
    for estimate in found.metrics.values():
        assert estimate.n == n
        assert estimate.low is not None
        assert estimate.high is not None
        assert estimate.value is not None
        assert estimate.low < estimate.value < estimate.high
    assert found.notes == {}


def vicuna(shared_data: Path) -> list[list[int]]:
    rows = json.loads((shared_data / "prometheus/vicuna_eval.json").read_text())
    return [row["gpt4_score"] for row in rows]


def test_a_judge_against_the_mean_of_its_other_samples(shared_data: Path) -> None:
    """The means are on the grid of halves; as lists they are read exactly without being told."""
    scores = vicuna(shared_data)
    table = pa.table(
        {"rating": [s[0] for s in scores], "reference_rating": [s[1:] for s in scores]}
    )
    found = raveval.measure("correlation", table)
    assert printed(found, 6) == ("0.840041", "0.741613", "0.693692")
    assert found.metrics["pearson"].n == 320
    means = pa.array([(s[1] + s[2]) / 2 for s in scores])
    twos = pa.array([2] * len(scores))
    table = table.set_column(1, "reference_rating", means)
    declared = table.append_column("reference_rating_denominator", twos)
    assert raveval.measure("correlation", table).metrics == found.metrics
    assert raveval.measure("correlation", declared).metrics == found.metrics


def test_a_judge_against_itself(shared_data: Path) -> None:
    found = raveval.measure(
        "correlation",
        shared_data / "prometheus/vicuna_eval.json",
        columns={"rating": "gpt4_score.0", "reference_rating": "gpt4_score.1"},
    )
    assert printed(found, 4) == ("0.7992", "0.6894", "0.6671")
