"""A real Catwalk run, reproduced from the model outputs that its file holds."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from raveval.measurement import measure
from raveval.metrics import _choices as choices

COLUMNS = {
    "gold": "prediction.correct_choice",
    "logprob_nats": "prediction.model_output.sum_logits",
    "unconditional_nats": "prediction.model_output.sum_logits_uncond",
    "n_tokens": "prediction.model_output.num_tokens",
    "n_chars": "prediction.model_output.num_chars",
}
"""Where a Catwalk row keeps each of our columns."""

CATWALK_NAMES = {
    "raw": "raw",
    "per_token": "per_token",
    "per_char": "per_char",
    "unconditional": "uncond",
}


@pytest.fixture(scope="module")
def path(shared_data: Path) -> Path:
    return shared_data / "catwalk" / "arc_easy_pythia160m.json"


@pytest.fixture(scope="module")
def rows(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["per_instance"]
    return found


def test_the_run_file_as_it_stands(path: Path):
    measured = measure("accuracy", path, columns=COLUMNS)
    published = json.loads(path.read_text("utf-8"))["metrics"]["rc_metrics"]
    for ours, theirs in CATWALK_NAMES.items():
        estimate = measured.metrics[f"accuracy_{ours}"]
        assert estimate.value == published[f"acc_{theirs}"], ours
        assert estimate.n == measured.n_rows == 10
    assert [measured.metrics[f"accuracy_{s}"].value for s in CATWALK_NAMES] == [0.3, 0.5, 0.3, 0.3]
    # Catwalk adds floats in the order of the file; ours is the exact sum, rounded once.
    mass = measured.metrics["probability_mass"].value
    assert mass == pytest.approx(0.00011390003458661374, rel=1e-15, abs=0)
    assert mass == pytest.approx(published["avg_total_probability_mass"], rel=1e-15, abs=0)
    assert measured.metrics["accuracy_per_byte"].reason == "not measured"
    assert measured.notes == {}


def test_the_same_rows_as_json_lines(path: Path, rows: list[dict[str, Any]], tmp_path: Path):
    files = [tmp_path / "first.jsonl", tmp_path / "second.jsonl"]
    files[0].write_text("".join(json.dumps(row) + "\n" for row in rows[:3]), "utf-8")
    files[1].write_text("\n".join(json.dumps(row) for row in rows[3:]), "utf-8")
    whole = measure("accuracy", path, columns=COLUMNS)
    assert measure("accuracy", files, columns=COLUMNS) == whole
    assert measure("accuracy", files[::-1], columns=COLUMNS) == whole


def test_the_choice_of_each_example(rows: list[dict[str, Any]]):
    outputs = [row["prediction"]["model_output"] for row in rows]
    table = pa.table(
        {
            "gold": pa.array([row["prediction"]["correct_choice"] for row in rows], pa.int32()),
            "logprob_nats": [[o["sum_logits"] for o in output] for output in outputs],
            "unconditional_nats": [[o["sum_logits_uncond"] for o in output] for output in outputs],
            "n_tokens": [[o["num_tokens"] for o in output] for output in outputs],
            "n_chars": [[o["num_chars"] for o in output] for output in outputs],
        }
    )
    rankings = dict(
        zip(choices.SCORINGS, choices.rank(choices.read_choices(table), table), strict=True)
    )
    for ours, theirs in CATWALK_NAMES.items():
        published = [row["prediction"]["metrics"] for row in rows]
        best = rankings[ours].best
        assert best.tied.tolist() == [1] * 10
        assert best.predicted.tolist() == [m[f"predicted_index_{theirs}"] for m in published]
        assert best.gold_is_best.tolist() == [bool(m[f"acc_{theirs}"]) for m in published]


def test_the_probability_mass_of_each_example(rows: list[dict[str, Any]], tmp_path: Path):
    for row in rows:
        file = tmp_path / "row.jsonl"
        file.write_text(json.dumps(row), "utf-8")
        estimate = measure("accuracy", file, columns=COLUMNS).metrics["probability_mass"]
        published = row["prediction"]["metrics"]["probability_mass"]
        assert estimate.value == pytest.approx(published, rel=1e-15, abs=0)
        assert estimate.interval is None, "one example has no interval"
