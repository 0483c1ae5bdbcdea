"""Rows from files of every kind, and what is said about files that are not what they seem."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raveval.errors import DataError
from raveval.tasks import hub, source
from raveval.tasks.source import Layout, Row, read

ROWS = [{"id": "a", "n": 1, "text": "één"}, {"id": "b", "n": 2, "text": "line\nbreak"}]


def rows_of(path: Path, **layout: Any) -> list[Row]:
    return list(read(path, Layout(**layout)))


def jsonl(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_jsonl_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n" + jsonl(ROWS).replace("\n", "\r\n"), encoding="utf-8")
    rows = rows_of(path)
    assert [row.columns for row in rows] == ROWS
    assert [(row.where, row.number) for row in rows] == [(f"{path}:2", 0), (f"{path}:3", 1)]


def test_a_line_separator_inside_a_json_text_does_not_end_the_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a\u2028b\x85c"}\n', encoding="utf-8")
    assert rows_of(path)[0].columns == {"text": "a\u2028b\x85c"}


def test_a_small_file_does_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a": "' + b"0" * 50_000_000 + b'"}\n'))
    (row,) = rows_of(path)
    assert len(row.columns["a"]) == 50_000_000, "what fits is read"
    monkeypatch.setattr(source, "_MOST_UNPACKED_BYTES", 10_000_000)
    n_packed = path.stat().st_size
    with pytest.raises(DataError, match=rf"its {n_packed} bytes unpack to \d+ and more; above"):
        rows_of(path)


def test_a_byte_order_mark_and_gzip_are_seen_through(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(jsonl(ROWS).encode("utf-8-sig")))
    assert [row.columns for row in rows_of(path)] == ROWS


def test_json_may_be_a_list_or_lines_under_a_wrong_name(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(ROWS, indent=1), encoding="utf-8")
    assert [(row.where, row.columns) for row in rows_of(path)] == [
        (f"{path}[0]", ROWS[0]),
        (f"{path}[1]", ROWS[1]),
    ]
    path.write_text(jsonl(ROWS), encoding="utf-8")
    assert [row.where for row in rows_of(path)] == [f"{path}:1", f"{path}:2"]


def test_csv_cells_are_text_and_may_hold_line_breaks(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('id,n,text\n007,1,"a, b"\nNA,2,"line\nbreak"\n\n', encoding="utf-8")
    rows = rows_of(path)
    assert [row.columns for row in rows] == [
        {"id": "007", "n": "1", "text": "a, b"},
        {"id": "NA", "n": "2", "text": "line\nbreak"},
    ]
    assert [row.where for row in rows] == [f"{path}:2", f"{path}:4"]
    tabs = tmp_path / "rows.tsv"
    tabs.write_text("id\ttext\na\tb, c\n", encoding="utf-8")
    assert rows_of(tabs)[0].columns == {"id": "a", "text": "b, c"}


def test_parquet_keeps_lists_and_structures(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    rows = [{"choices": {"text": ["x", "y"], "label": ["A", "B"]}, "key": "A", "no": None}]
    pq.write_table(pa.Table.from_pylist(rows), path)
    assert rows_of(path) == [Row(f"{path}: row 1", 0, rows[0])]


def test_squad_becomes_one_row_per_question(tmp_path: Path) -> None:
    question = {"id": "q1", "question": "Who?", "answers": [{"text": "A", "answer_start": 0}]}
    unanswerable = {"id": "q2", "question": "Why?", "answers": [], "is_impossible": True}
    paragraph = {"context": "A did.", "qas": [question, unanswerable]}
    path = tmp_path / "dev.json"
    path.write_text(json.dumps({"data": [{"title": "T", "paragraphs": [paragraph]}]}))
    first, second = rows_of(path)
    assert first.columns == {
        "id": "q1",
        "title": "T",
        "context": "A did.",
        "question": "Who?",
        "answers": {"text": ["A"]},
        "is_impossible": False,
    }
    assert second.columns["answers"] == {"text": []}
    assert second.columns["is_impossible"] is True
    assert second.where == f"{path}: data[0].paragraphs[0].qas[1]"


def test_plain_text_is_a_document_a_line_or_what_a_string_separates(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\n<end>\nthree\n<end>\n", encoding="utf-8")
    whole = path.read_text(encoding="utf-8")
    assert rows_of(path)[0].columns == {"text": whole, "name": "a.txt"}
    lines = [row.columns["text"] for row in rows_of(path, documents="line")]
    assert lines == ["one", "two", "<end>", "three", "<end>"]
    parts = [row.columns["text"] for row in rows_of(path, split_on="<end>\n")]
    assert parts == ["one\ntwo\n", "three\n"]


def test_wikitext_splits_at_first_level_headings_only(tmp_path: Path) -> None:
    first = " = One = \n \n Text of one . \n \n = = Part = = \n \n x = 1 = y \n \n"
    second = " = Two = \n \n = = = Deep = = = \n"
    path = tmp_path / "wiki.raw"
    path.write_text(" \n" + first + second, encoding="utf-8")
    rows = rows_of(path, documents="article")
    assert [row.columns for row in rows] == [
        {"text": first, "title": "One"},
        {"text": second, "title": "Two"},
    ]
    assert [row.where for row in rows] == [f"{path}:2", f"{path}:10"]


def test_a_folder_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c.dat"):
        (tmp_path / name).write_text(name, encoding="utf-8")
    rows = rows_of(tmp_path)
    assert [(row.number, row.columns["text"]) for row in rows] == [(0, "a.txt"), (1, "b.txt")]


def test_an_empty_document_is_a_row(tmp_path: Path) -> None:
    path = tmp_path / "empty.txt"
    path.write_text("")
    assert [row.columns["text"] for row in rows_of(path)] == [""]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", b'{"a": 1}\n{"a": 1,}\n', ["a.jsonl:2:9: not JSON"]),
        ("a.jsonl", b'{"a": 1}\n{"a": "x\n', ["a.jsonl:2:", "not JSON"]),
        ("a.jsonl", b"[1]\n", ["a.jsonl:1: expected an object, found list"]),
        ("a.jsonl", b"[" * 100_000 + b"\n", ["a.jsonl:1", "nested too deeply"]),
        ("a.jsonl", b'{"a": 1}\n{"a": "\xff"}\n', ["a.jsonl: after line", "not UTF-8"]),
        ("a.jsonl", '{"a": 1}'.encode("utf-16"), ["not UTF-8"]),
        ("a.jsonl.gz", b'{"a": 1}\n', ["not a whole gzip file"]),
        (
            "a.jsonl.gz",
            gzip.compress(b'{"a": 1}\n' * 1000, mtime=0)[:-20],
            ["not a whole gzip file"],
        ),
        ("a.json", b'{"a": 1', ["a.json:1:", "not JSON"]),
        ("a.json", b'{"a": 1}', ["expected a list of objects, or SQuAD's"]),
        ("a.json", b"[1, 2]", ["a.json[0]: expected an object, found int"]),
        ("a.json", b'{"data": [{"title": "x"}]}', ["data[0]", "a list under 'paragraphs'"]),
        ("a.csv", b"a,b\n1,2\n1,2,3\n", ["a.csv:3: 3 cells, but 2 columns"]),
        ("a.csv", b"a,a\n1,2\n", ["a.csv:1: two columns are called 'a'"]),
        ("a.csv", b'a,b\n1,"2\n', ["a.csv:", "not CSV"]),
        ("a.parquet", b"not parquet at all", ["a.parquet: not a Parquet file"]),
        ("a.dat", b"x", ["the ending does not tell the format", "jsonl"]),
    ],
)
def test_what_is_not_of_its_kind_is_one_clear_error(
    tmp_path: Path, name: str, content: bytes, words: list[str]
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        rows_of(path)
    for word in words:
        assert word in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        rows_of(tmp_path / "no.jsonl")
    with pytest.raises(DataError, match="holds no data file"):
        rows_of(tmp_path)


class FakeHub:
    """Datasets as the hub lists them: {(dataset, revision): files}; contents by file."""

    def __init__(self, root: Path, listings: dict[tuple[str, str], list[str]]) -> None:
        self.root = root
        self.listings = listings

    def list_files(self, dataset: str, revision: str) -> tuple[str, list[str]]:
        return f"sha-of-{revision}", self.listings.get((dataset, revision), [])

    def download(self, dataset: str, file: str, sha: str) -> str:
        path = self.root / sha / file.replace("/", "_")
        path.parent.mkdir(exist_ok=True, parents=True)
        pq.write_table(pa.table({"file": [f"{sha}/{file}"], "n": [1]}), path)
        return str(path)

    def rows(self, config: str | None, split: str, revision: str = "main") -> list[Row]:
        fakes = {"list_files": self.list_files, "download": self.download}
        return list(hub.read_hub("d", config, split, revision, **fakes))  # type: ignore[arg-type]

    def files(self, config: str | None, split: str, revision: str = "main") -> list[str]:
        return [row.columns["file"].split("/", 1)[1] for row in self.rows(config, split, revision)]


def test_hub_files_of_a_config_and_split(tmp_path: Path) -> None:
    own = [
        "README.md",
        "ARC-Easy/test-00000-of-00001.parquet",
        "ARC-Easy/train-00001-of-00002.parquet",
        "ARC-Easy/train-00000-of-00002.parquet",
        "ARC-Challenge/test-00000-of-00001.parquet",
    ]
    fake = FakeHub(tmp_path, {("d", "main"): own})
    assert fake.files("ARC-Easy", "test") == ["ARC-Easy/test-00000-of-00001.parquet"]
    assert fake.files("ARC-Easy", "train") == [own[3], own[2]]
    rows = fake.rows("ARC-Easy", "train")
    assert [row.number for row in rows] == [0, 1]
    assert rows[1].where == f"d@sha-of-main/{own[2]}: row 1"


@pytest.mark.parametrize(
    ("files", "config", "split", "expected"),
    [
        (["data/test-00000-of-00001.parquet"], None, "test", 0),
        (["data/test-00000-of-00001.parquet"], "default", "test", 0),
        (["plain_text/validation-00000-of-00001.parquet"], None, "validation", 0),
        (["test.parquet"], None, "test", 0),
        (["all/test-0.parquet", "all/dev-0.parquet", "x/test-0.parquet"], "all", "dev", 1),
    ],
)
def test_hub_layouts(
    tmp_path: Path, files: list[str], config: str | None, split: str, expected: int
) -> None:
    fake = FakeHub(tmp_path, {("d", "main"): files})
    assert fake.files(config, split) == [files[expected]]


def test_the_converted_branch_serves_datasets_without_parquet(tmp_path: Path) -> None:
    fake = FakeHub(
        tmp_path,
        {
            ("d", "main"): ["d.py", "data.zip"],
            ("d", hub.CONVERTED): ["cb/train/0000.parquet", "cb/validation/0000.parquet"],
        },
    )
    (row,) = fake.rows("cb", "validation")
    assert row.columns["file"] == f"sha-of-{hub.CONVERTED}/cb/validation/0000.parquet"
    with pytest.raises(DataError, match="pass the file as `path:`"):
        fake.rows("cb", "validation", revision="v1")  # the branch follows main only


def test_a_config_or_split_that_is_not_there_is_named(tmp_path: Path) -> None:
    files = ["ARC-Easy/test-0.parquet", "ARC-Challenge/test-0.parquet"]
    fake = FakeHub(tmp_path, {("d", "main"): files})
    with pytest.raises(DataError, match="did you mean 'ARC-Easy'"):
        fake.rows("ARC-Esay", "test")
    with pytest.raises(DataError, match=r"split 'dev'.*Files: ARC-Challenge/test-0\.parquet"):
        fake.rows("ARC-Easy", "dev")
    with pytest.raises(DataError, match="set `config` or `split`"):
        fake.rows(None, "test")


def test_an_unreachable_hub_tells_to_pass_a_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(DataError, match=r"the hub cannot be reached .*`path:`"):
        list(hub.read_hub("owner/name", None, "test", "main"))


def test_a_missing_extra_names_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", None)
    with pytest.raises(DataError, match=r"pip install 'raveval\[hub\]'"):
        list(hub.read_hub("owner/name", None, "test", "main"))


def test_without_a_network_the_hubs_cache_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    sha = "0123456789abcdef0123456789abcdef01234567"
    dataset = tmp_path / "datasets--owner--name"
    (dataset / "refs").mkdir(parents=True)
    (dataset / "refs" / "main").write_text(sha)
    data = dataset / "snapshots" / sha / "data"
    data.mkdir(parents=True)
    pq.write_table(pa.table({"n": [1, 2]}), data / "test-00000-of-00001.parquet")
    rows = list(hub.read_hub("owner/name", None, "test", "main"))
    assert [row.columns for row in rows] == [{"n": 1}, {"n": 2}]
    assert hub.locate("owner/name", None, "test", "main").sha == sha
