"""LLMBar's published counts of two judges, from the judges' raw outputs.

`statistics.json` counts over 100 pairs of outputs, of which the human prefers one: right in the
first order ("correct_False") and in the second ("correct_True"), their average, right in both, and
the same winner in both ("equal"). A judge that rates the outputs one by one has no order; where its
ratings are equal, the published counts take the output shown second as the winner, each time. The
kappa against the labels in those files is not used: it is not Cohen's kappa of judge and human.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from raveval.measurement import measure
from raveval.types import Estimate
from tests.kappa import statsmodels_kappa

JUDGES = ("ChatGPT", "GPT-4")
LABELS = {"1": "a", "2": "b"}


def load(shared_data: Path, name: str) -> tuple[list[dict[str, Any]], Mapping[str, Any]]:
    folder = shared_data / "llmbar" / "natural" / name
    rows = json.loads((folder / "result.json").read_text("utf-8"))
    dataset = json.loads((folder.parent / "dataset.json").read_text("utf-8"))
    assert [str(row["label"]) for row in rows] == [str(example["label"]) for example in dataset]
    return rows, json.loads((folder / "statistics.json").read_text("utf-8"))


def count(statistics: Mapping[str, Any], key: str) -> float:
    """The number of right pairs; the average is in percent of the 100."""
    found = re.match(r"([\d.]+)( / 100 =|%)", statistics[key])
    assert found
    return float(found[1])


def preferred(rows: list[dict[str, Any]]) -> list[str]:
    return [LABELS[str(row["label"])] for row in rows]


def said(rows: list[dict[str, Any]], order: str, first: str, second: str) -> list[str]:
    """The response that each raw output names, whose places are `first` and `second`."""
    places = {"Output (a)": first, "Output (b)": second}
    return [places[row["results"][0][order]["completion"][0].strip()] for row in rows]


def numbers(columns: Mapping[str, Any]) -> Mapping[str, Estimate]:
    return measure("preference", pa.table(dict(columns))).metrics


def hits(estimate: Estimate) -> float:
    assert estimate.value is not None
    assert estimate.n == 100
    return round(estimate.value * 100, 9)


@pytest.mark.parametrize("judge", JUDGES)
def test_a_judge_that_compares(judge: str, shared_data: Path):
    rows, statistics = load(shared_data, f"{judge}-Vanilla")
    human = preferred(rows)
    shown, swapped = (
        said(rows, "swap = False", "a", "b"),
        said(rows, "swap = True", "b", "a"),
    )
    found = numbers({"preferred": human, "verdict": shown, "verdict_swapped": swapped})
    other = numbers({"preferred": human, "verdict": swapped})
    first, second = hits(found["accuracy_strict"]), hits(other["accuracy_strict"])
    assert first == count(statistics, "correct_False")
    assert second == count(statistics, "correct_True")
    assert (first + second) / 2 == count(statistics, "correct_average")
    assert hits(found["accuracy_both_orders"]) == count(statistics, "correct_both")
    assert hits(found["position_consistency"]) == count(statistics, "equal")
    assert found["verdict_kappa"].value == pytest.approx(statsmodels_kappa(shown, human), abs=1e-12)
    # The published agreement of the two orders is Cohen's kappa, and says so to all its digits.
    orders = numbers({"preferred": swapped, "verdict": shown})
    assert orders["verdict_kappa"].value == pytest.approx(statistics["kappa_agreement"], abs=1e-12)


@pytest.mark.parametrize("judge", JUDGES)
def test_a_judge_that_rates(judge: str, shared_data: Path):
    rows, statistics = load(shared_data, f"{judge}-Rating")
    human = preferred(rows)
    ratings = {
        f"rating_{name}": [int(row["results"][0][f"score_{n}"][0]) for row in rows]
        for n, name in LABELS.items()
    }
    found = numbers({"preferred": human, **ratings})
    assert hits(found["accuracy_half_credit"]) == count(statistics, "correct_average")
    assert hits(found["accuracy_strict"]) == count(statistics, "correct_both")
    assert 100 - hits(found["tie_rate"]) == count(statistics, "equal")
    pairs = list(zip(*ratings.values(), strict=True))
    orders = {
        "verdict": ["a" if a > b else "b" for a, b in pairs],
        "verdict_swapped": ["b" if b > a else "a" for a, b in pairs],
    }
    broken = numbers({"preferred": human, **orders})
    other = numbers({"preferred": human, "verdict": orders["verdict_swapped"]})
    assert hits(broken["accuracy_strict"]) == count(statistics, "correct_False")
    assert hits(other["accuracy_strict"]) == count(statistics, "correct_True")
    assert hits(broken["accuracy_both_orders"]) == count(statistics, "correct_both")
    assert hits(broken["position_consistency"]) == count(statistics, "equal")
