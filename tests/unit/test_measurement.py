"""Measuring files: every format, every mapping, and errors that say where and what to do."""

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raveval.errors import ConfigError, DataError
from raveval.measurement import measure

ROWS: list[dict[str, Any]] = [
    {"prediction": "the cat", "references": ["A cat!", "dog"]},
    {"prediction": "bird", "references": ["fish"]},
    {"prediction": "red cat", "references": ["cat"]},
]
F1 = pytest.approx((1 + 0 + 2 / 3) / 3, rel=1e-15)


def write_lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def test_every_format_gives_the_same(tmp_path: Path):
    lines = write_lines(tmp_path / "p.jsonl", ROWS)
    parquet = write_parquet(tmp_path / "p.parquet", ROWS)
    array = tmp_path / "array.json"
    array.write_text(json.dumps(ROWS), "utf-8")
    wrapped = tmp_path / "wrapped.json"
    wrapped.write_text(json.dumps({"model": "m", "tags": ["x"], "rows": ROWS}), "utf-8")
    disguised = write_lines(tmp_path / "lines.json", ROWS)
    expected = measure("squad", pa.Table.from_pylist(ROWS))
    assert expected.metrics["f1"].value == F1
    assert expected.n_rows == 3
    assert expected.notes == {}
    for source in (lines, str(parquet), array, wrapped, disguised):
        assert measure("squad", source) == expected, source


def test_any_number_of_files_in_any_order(tmp_path: Path):
    rows = ROWS * 3000  # more than is read at once
    whole = write_lines(tmp_path / "whole.jsonl", rows)
    parts = [
        write_lines(tmp_path / "a.jsonl", rows[:4097]),
        write_parquet(tmp_path / "b.parquet", rows[4097:8999]),
        write_lines(tmp_path / "c.ndjson", rows[8999:]),
        write_lines(tmp_path / "empty.jsonl", []),
    ]
    expected = measure("squad", whole)
    assert expected.n_rows == 9000
    assert measure("squad", parts) == expected
    assert measure("squad", parts[::-1]) == expected


def test_blank_lines_and_a_byte_order_mark_are_no_rows(tmp_path: Path):
    file = tmp_path / "p.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps(ROWS[0]).encode() + b"\r\n\r\n \n")
    assert measure("squad", file).n_rows == 1


NESTED = [
    {"id": "a", "out": {"choices": [{"ll": -1.0, "n": 2}, {"ll": -2.0, "n": 1}]}, "label.id": 0},
    {"id": "b", "out": {"choices": [{"ll": -3, "n": 2}, {"ll": -2.0, "n": 1}]}, "label.id": 0},
]


@pytest.mark.parametrize("write", [write_lines, write_parquet])
def test_a_path_leads_into_nested_values(tmp_path: Path, write: Any):
    suffix = "jsonl" if write is write_lines else "parquet"
    rows = NESTED
    if write is write_parquet:  # a Parquet column has one type
        rows = json.loads(json.dumps(NESTED).replace("-3,", "-3.0,"))
    file = write(tmp_path / f"p.{suffix}", rows)
    found = measure(
        "accuracy",
        file,
        columns={
            "gold": "label.id",  # a name that holds a dot itself
            "logprob_nats": "out.choices.ll",
            "n_tokens": "out.choices.n",
        },
    )
    assert found.metrics["accuracy_raw"].value == 0.5
    assert found.metrics["accuracy_per_token"].value == 1.0
    assert found.metrics["accuracy_per_char"].reason == "not measured"


def test_a_number_in_a_path_takes_one_element(tmp_path: Path):
    file = write_lines(
        tmp_path / "p.jsonl", [{"resps": [["a cat"], ["x"]], "doc": {"answers": {"text": ["cat"]}}}]
    )
    found = measure(
        "squad", file, columns={"prediction": "resps.0.0", "references": "doc.answers.text"}
    )
    assert found.metrics["exact_match"].value == 1.0


def test_rows_that_were_not_scored_are_left_out_and_counted(tmp_path: Path):
    rows = [
        {**ROWS[0], "status": "ok"},
        {"prediction": None, "references": None, "status": "failed"},
        {"status": "overlong"},
        {"status": "failed"},
        {**ROWS[1], "status": "unparsed"},
        {**ROWS[2], "status": "truncated"},
    ]
    for file in (
        write_lines(tmp_path / "p.jsonl", rows),
        write_parquet(tmp_path / "p.parquet", rows),
    ):
        found = measure("squad", file)
        assert found.metrics["f1"].value == F1
        assert found.n_rows == 6
        assert found.notes == {"status_failed": 2, "status_overlong": 1}


def test_all_rows_left_out_is_no_number(tmp_path: Path):
    found = measure("squad", write_lines(tmp_path / "p.jsonl", [{"status": "failed"}]))
    assert found.metrics["f1"].reason == "n=0"
    assert (found.n_rows, found.notes) == (1, {"status_failed": 1})


def test_json_s_nan_and_null_are_counted_not_swallowed(tmp_path: Path):
    file = tmp_path / "p.jsonl"
    file.write_text(
        '{"gold": 0, "logprob_nats": [-1.0, NaN]}\n{"gold": 0, "logprob_nats": [-1, null]}\n'
        '{"gold": 0, "logprob_nats": [-1, -Infinity]}\n',
        "utf-8",
    )
    found = measure("accuracy", file)
    assert (found.metrics["accuracy"].value, found.metrics["accuracy"].n) == (1.0, 1)
    assert found.notes["accuracy_not_a_number"] == 2


def test_an_optional_field_may_be_missing_in_some_rows(tmp_path: Path):
    rows = [
        {"logprob_nats": -2.0, "n_tokens": 2, "n_words": 1},
        {"logprob_nats": -4, "n_tokens": 2},
    ]
    found = measure("perplexity", write_lines(tmp_path / "p.jsonl", rows))
    assert found.metrics["nats_per_token"].value == 1.5
    assert found.metrics["word_perplexity"].value == math.exp(2)
    assert found.notes["word_perplexity_unmeasured"] == 1


def bad(row: dict[str, Any]) -> list[Any]:
    return [ROWS[0], ROWS[1], row]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (bad({"prediction": 3, "references": ["x"]}), r":3: field 'prediction' as prediction: exp"),
        (bad({"prediction": "x", "references": "x"}), r":3: field 'references' as references: exp"),
        (
            bad({"prediction": "x", "references": [1]}),
            r":3: .* expected a list of texts, found list",
        ),
        (bad({"prediction": "x", "references": None}), r":3: .*found null"),
        (bad({"prediction": {"t": 1}, "references": []}), r":3: .*expected a text, found struct"),
        (bad({"prediction": "\ud800", "references": []}), r":3: .*surrogates"),
        (
            bad({"answer": "x", "references": ["x"]}),
            r":3: no field 'prediction'.*--map prediction=",
        ),
        (
            bad({"predictoin": "x", "references": ["x"]}),
            r":3: no field 'prediction'.*; fields present: predictoin, ref",
        ),
        (bad({**ROWS[0], "status": "done"}), r":3: status is 'done'; known: failed, invalid"),
        (bad({**ROWS[0], "status": ["ok"]}), r":3: status is \['ok'\]"),
        ([*ROWS, [1]], r":4: expected a JSON object, found list"),
        ([], "there are no rows"),
    ],
)
def test_errors_say_the_line(tmp_path: Path, rows: list[Any], message: str):
    file = write_lines(tmp_path / "p.jsonl", rows)
    with pytest.raises(DataError, match=message):
        measure("squad", file)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"gold": 0, "logprob_nats": [-1.0]}, {"gold": 1, "logprob_nats": [-1.0]}],
            ":2: gold is 1",
        ),
        ([{"gold": 1.0, "logprob_nats": [-1.0]}], ":1: .*expected an integer, found double"),
        ([{"gold": True, "logprob_nats": [-1.0]}], ":1: .*expected an integer, found a boolean"),
        ([{"gold": 2**70, "logprob_nats": [-1.0]}], ":1: "),
        ([{"gold": 0, "logprob_nats": [-1]}, {"gold": 0, "logprob_nats": ["x"]}], ":2: "),
        ([{"gold": 0, "logprob_nats": [-1.0]}, {"gold": 0, "logprob_nats": [True]}], ":2: "),
    ],
)
def test_values_that_cannot_be_say_the_line(tmp_path: Path, rows: list[Any], message: str):
    file = write_lines(tmp_path / "p.jsonl", rows)
    with pytest.raises(DataError, match=message):
        measure("accuracy", file)
    array = tmp_path / "array.json"
    array.write_text(json.dumps(rows), "utf-8")
    with pytest.raises(DataError, match=r"array\.json, row"):
        measure("accuracy", array)


def test_a_parquet_row_is_named(tmp_path: Path):
    rows = [{"gold": int(i == 5000), "logprob_nats": [-1.0]} for i in range(6000)]
    with pytest.raises(DataError, match=r"p\.parquet, row 5001: gold is 1"):
        measure("accuracy", write_parquet(tmp_path / "p.parquet", rows))
    with pytest.raises(DataError, match=r"table, row 5001: gold is 1"):
        measure("accuracy", pa.Table.from_pylist(rows))


def test_malformed_files_are_named(tmp_path: Path):
    broken = tmp_path / "broken.jsonl"
    broken.write_text(json.dumps(ROWS[0]) + '\n{"prediction": ', "utf-8")
    with pytest.raises(DataError, match=r"broken\.jsonl:2: not valid JSON"):
        measure("squad", broken)
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes('{"prediction": "é", "references": ["x"]}\n'.encode("latin-1"))
    with pytest.raises(DataError, match=r"latin\.jsonl:1: not valid JSON"):
        measure("squad", latin)
    fake = tmp_path / "fake.parquet"
    fake.write_text("no", "utf-8")
    with pytest.raises(DataError, match=r"fake\.parquet: cannot be read as Parquet"):
        measure("squad", fake)
    two = tmp_path / "two.json"
    two.write_text(json.dumps({"a": [{}], "b": [{}]}), "utf-8")
    with pytest.raises(DataError, match="exactly one such list"):
        measure("squad", two)
    with pytest.raises(DataError, match="no such file"):
        measure("squad", tmp_path / "absent.jsonl")
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match=r"folder: no file in this folder ends in one of \.jsonl"):
        measure("squad", tmp_path / "folder")
    (tmp_path / "p.csv").write_text("a,b", "utf-8")
    with pytest.raises(DataError, match=r"end in one of \.jsonl"):
        measure("squad", tmp_path / "p.csv")


def test_requests_that_make_no_sense(tmp_path: Path):
    file = write_lines(tmp_path / "p.jsonl", ROWS)
    with pytest.raises(ConfigError, match="unknown metric 'squd': did you mean 'squad'"):
        measure("squd", file)
    with pytest.raises(ConfigError, match="no column 'predction'; did you mean 'prediction'"):
        measure("squad", file, columns={"predction": "x"})
    with pytest.raises(ConfigError, match="nothing to measure"):
        measure("squad")
    with pytest.raises(ConfigError, match="nothing to measure"):
        measure("squad", [])
    with pytest.raises(ConfigError, match="without predictions"):
        measure("squad", references=file)
    with pytest.raises(ConfigError, match="without references"):
        measure("squad", predictions=file)
    with pytest.raises(ConfigError, match="not both"):
        measure("squad", file, references=file, predictions=file)
    with pytest.raises(ConfigError, match="does not read official SQuAD files"):
        measure("accuracy", references=file, predictions=file)
    with pytest.raises(ConfigError, match="no METRIC"):
        measure("raveval.types", file)
    with pytest.raises(DataError, match="no field 'x' for the metric's column 'status'"):
        measure("squad", file, columns={"status": "x"})


def test_a_mapped_optional_field_must_be_there(tmp_path: Path):
    file = write_lines(tmp_path / "p.jsonl", [{"gold": 0, "logprob_nats": [-1.0]}])
    with pytest.raises(DataError, match="no field 'lengths' for the metric's column 'n_tokens'"):
        measure("accuracy", file, columns={"n_tokens": "lengths"})


def dataset(*questions: dict[str, Any]) -> dict[str, Any]:
    return {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"qas": list(questions)}]}]}


def question(key: str, *answers: str) -> dict[str, Any]:
    return {
        "id": key,
        "question": "?",
        "answers": [{"text": a, "answer_start": 0} for a in answers],
    }


def write_pair(folder: Path, references: Any, predictions: Any) -> dict[str, Any]:
    paths = {"references": folder / "dev.json", "predictions": folder / "predictions.json"}
    paths["references"].write_text(json.dumps(references), "utf-8")
    paths["predictions"].write_text(json.dumps(predictions), "utf-8")
    return paths


def test_the_official_pair(tmp_path: Path):
    content = dataset(question("1", "cat"), question("2", "dog"), question("3"))
    pair = write_pair(tmp_path, content, {"1": "the cat", "3": "", "9": "x", "8": "y"})
    v1 = measure("squad", **pair)
    assert v1.metrics["exact_match"].value == 0.5
    counted = {"surplus": 2, "unanswered": 1, "clusters": 1}
    assert v1.notes == {**counted, "without_references": 1}
    v2 = measure("squad2", **pair)
    assert v2.metrics["exact_match"].value == pytest.approx(2 / 3)
    assert v2.metrics["exact_match_no_answer"].value == 1.0
    assert v2.notes == counted
    assert v1.n_rows == v2.n_rows == 3


@pytest.mark.parametrize(
    ("references", "predictions", "message"),
    [
        ({"rows": []}, {}, "not the layout of SQuAD"),
        ([], {}, "not the layout of SQuAD"),
        (dataset({"id": "1"}), {}, "not the layout of SQuAD .*KeyError 'answers'"),
        (dataset(), {}, "there are no questions"),
        (dataset(question("1", "x")), ["x"], "expected a JSON object of answers"),
        (dataset(question("1", "x")), {"1": 5}, r"question 1 of .* expected a text, found int64"),
    ],
)
def test_a_malformed_pair(tmp_path: Path, references: Any, predictions: Any, message: str):
    with pytest.raises(DataError, match=message):
        measure("squad", **write_pair(tmp_path, references, predictions))


def test_a_pair_that_is_not_there(tmp_path: Path):
    with pytest.raises(DataError, match=r"p\.json: no such file"):
        measure("squad", references=tmp_path / "r.json", predictions=tmp_path / "p.json")


def test_rows_in_a_list_are_told_how_to_become_a_table() -> None:
    rows: Any = [{"gold": 0, "logprob_nats": [-1.0, -2.0]}]
    with pytest.raises(ConfigError, match=r"given a dict; pyarrow\.Table\.from_pylist"):
        measure("accuracy", rows)


def test_what_a_metric_reads_is_told():
    with pytest.raises(
        ConfigError, match=r"reads the columns rating, reference_rating, and .*group"
    ):
        measure("correlation", [])


@pytest.mark.parametrize("given", [3, {"rating": [1]}, pa.array([1]), [3]])
def test_what_is_no_source_is_told(given: Any):
    with pytest.raises(ConfigError, match="nothing to measure: a source is"):
        measure("rating", given)


@pytest.mark.parametrize("given", ["rating=x", ["rating"], {"rating": 3}])
def test_columns_are_a_mapping(given: Any):
    with pytest.raises(ConfigError, match="columns: "):
        measure("rating", pa.table({"rating": [1]}), columns=given)


def test_groups_and_their_mean():
    table = pa.table({"is_greedy": [True, True, False, False], "group": ["a", "a", "b", None]})
    found = measure("greedy", table)
    assert found.metrics["greedy_accuracy"].value == 0.5
    assert {g: m["greedy_accuracy"].value for g, m in found.groups.items()} == {"a": 1.0, "b": 0.0}
    assert found.macro["greedy_accuracy"].value == 0.5
    assert found.notes == {"without_group": 1}
    assert measure("greedy", table.drop_columns(["group"])).notes == {}


def test_groups_that_share_clusters_have_no_macro_interval():
    groups = ["a", "b"] * 8
    columns = {"is_greedy": [True, False] * 8, "group": groups}
    apart = [f"{group}{i // 4}" for i, group in enumerate(groups)]
    shared = [str(i // 4) for i in range(16)]
    intervals = {
        name: measure("greedy", pa.table({**columns, "cluster": clusters}))
        .macro["greedy_accuracy"]
        .interval
        for name, clusters in (("apart", apart), ("shared", shared))
    }
    assert intervals == {"apart": "mover95", "shared": None}


def test_constants():
    table = pa.table({"rating": [1.1, 2.2], "reference_rating": [3, 4]})
    found = measure("correlation", table, constants={"rating_denominator": 10})
    assert found.metrics["pearson"].value == 1.0
    for constants in ({"status": "failed"}, {"group": "x"}, {"nonsense": 1}):
        with pytest.raises(ConfigError, match="no value can be set"):
            measure("correlation", table, constants=constants)
    with pytest.raises(ConfigError, match="given a field and a value"):
        measure("correlation", table, columns={"rating": "a"}, constants={"rating": 1})
    with pytest.raises(ConfigError, match="value given for column 'rating_denominator'"):
        measure("correlation", table, constants={"rating_denominator": "ten"})
