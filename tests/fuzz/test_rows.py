"""Rows of any content become examples, or are refused with file and row; none is dropped."""

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from raveval import tasks
from raveval.store import RunDirectory
from raveval.tasks import Options
from raveval.types import Example
from tests.fuzz import fuzzed, refused
from tests.fuzz.test_configs import ROW, TASKS, task_of
from tests.fuzz.values import json_values, texts

PROTOCOLS = sorted(TASKS)
COLUMNS = ("q", "options", "right", "id", "g")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@st.composite
def rows(draw: st.DrawFn) -> list[Any]:
    """Some good rows, with anything in place of some of their cells, or of a whole row."""
    found: list[Any] = []
    for number in range(draw(st.integers(1, 4))):
        row: Any = {**ROW, "id": str(number), "g": "g"}
        for name in draw(st.lists(st.sampled_from(COLUMNS), max_size=2)):
            row[name] = draw(json_values)
        if draw(st.integers(0, 9)) == 0:
            del row[draw(st.sampled_from(COLUMNS))]
        found.append(draw(json_values) if draw(st.integers(0, 19)) == 0 else row)
    return found


def write_task(protocol: str, file: str, **source: Any) -> None:
    content = {**task_of(protocol), "source": {"path": file, **source}, "group": "g"}
    Path("quiz.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")


def check(protocol: str, file: str, n_rows: int | None, **options: Any) -> None:
    """Read a file by a task: as many examples as rows that can be stored, or a refusal."""

    def read() -> None:
        examples = tasks.load_examples(tasks.load_task("quiz.yaml"), Options(**options), seed=0)
        assert n_rows in (None, len(examples))
        store(list(examples))

    said = refused(read)
    assert said is None or file in said


def store(examples: list[Example]) -> None:
    directory = RunDirectory("run")
    directory.write_examples("quiz", examples, digest="d")
    assert directory.read_examples("quiz", 0, len(examples)) == examples


@fuzzed(100)
@given(protocol=st.sampled_from(PROTOCOLS), content=rows(), chat=st.booleans())
def test_rows_of_jsonl(protocol: str, content: list[Any], chat: bool) -> None:
    write_task(protocol, "rows.jsonl")
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content))
    check(protocol, "rows.jsonl", len(content), chat=chat)


@fuzzed(60)
@given(protocol=st.sampled_from(PROTOCOLS), content=json_values | rows())
def test_any_json(protocol: str, content: Any) -> None:
    write_task(protocol, "rows.json")
    Path("rows.json").write_text(json.dumps(content))
    check(protocol, "rows.json", len(content) if isinstance(content, list) else None)


pieces = st.sampled_from(
    [
        *('{"q": "Why?", "options": ["a", "b"], "right": 1}', "{", "}", "[", "]", '"', ":", ","),
        *("\n", "\r\n", "\r", "\u2028", "\x00", "NaN", "Infinity", "1e999", "-", "9" * 5000, "\\u"),
        *('"\\ud800"', "[" * 3000, '{"a":' * 3000, "q,options,right\n", '"a\nb"', "\ufeff", "\t"),
    ]
)


@fuzzed(100)
@given(
    protocol=st.sampled_from(PROTOCOLS),
    ending=st.sampled_from(
        ["jsonl", "json", "csv", "tsv", "txt", "parquet", "jsonl.gz", "json.gz"]
    ),
    content=st.lists(pieces | texts, max_size=6).map("".join),
    encoding=st.sampled_from(["utf-8", "utf-8", "utf-16", "latin-1"]),
)
def test_any_text_as_a_file(protocol: str, ending: str, content: str, encoding: str) -> None:
    file = f"rows.{ending}"
    write_task(protocol, file)
    Path(file).write_bytes(content.encode(encoding, "replace"))
    check(protocol, file, None)


@fuzzed(60)
@given(
    protocol=st.sampled_from(PROTOCOLS),
    header=st.lists(st.sampled_from(COLUMNS) | texts, min_size=1, max_size=5),
    content=st.lists(st.lists(texts, min_size=1, max_size=5), min_size=1, max_size=4),
)
def test_rows_of_csv(protocol: str, header: list[str], content: list[list[str]]) -> None:
    write_task(protocol, "rows.csv")
    with Path("rows.csv").open("w", encoding="utf-8", errors="replace", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(content)
    check(protocol, "rows.csv", None)


@fuzzed(60)
@given(
    protocol=st.sampled_from(PROTOCOLS),
    n_rows=st.integers(1, 3),
    column=st.sampled_from(COLUMNS),
    values=st.lists(json_values | st.dates() | st.binary(max_size=3), min_size=3, max_size=3),
)
def test_rows_of_parquet(protocol: str, n_rows: int, column: str, values: list[Any]) -> None:
    write_task(protocol, "rows.parquet")
    good = [{**ROW, "id": str(number), "g": "g"} for number in range(n_rows)]
    content = [{**row, column: value} for row, value in zip(good, values, strict=False)]
    try:
        table = pa.Table.from_pylist(content)
        pq.write_table(table, "rows.parquet")
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        assume(False)
    check(protocol, "rows.parquet", n_rows)


@fuzzed(60)
@given(
    values=st.lists(json_values, min_size=6, max_size=6),
    places=st.sets(st.integers(0, 5), max_size=2),
)
def test_squad_of_any_content(values: list[Any], places: set[int]) -> None:
    write_task("question_answering", "rows.json")
    content = yaml.safe_load(Path("quiz.yaml").read_text(encoding="utf-8"))
    content |= {"prompt": "{{ question }}", "references": "answers.text", "group": "title"}
    Path("quiz.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    good: list[Any] = ["T", "c", "a", "q1", "Why?", False]
    title, context, text, id, question, is_impossible = (
        values[i] if i in places else good[i] for i in range(6)
    )
    qas = [{"id": id, "question": question, "answers": [{"text": text}]}]
    paragraphs = [{"context": context, "qas": [{**qas[0], "is_impossible": is_impossible}]}]
    Path("rows.json").write_text(json.dumps({"data": [{"title": title, "paragraphs": paragraphs}]}))
    check("question_answering", "rows.json", 1)
