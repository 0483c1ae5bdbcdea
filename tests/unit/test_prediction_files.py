"""Reading files of predictions: what is read, how much at a time, and where each row stands."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raveval.errors import ConfigError, DataError
from raveval.measurement import measure
from raveval.prediction_files import ABSENT, ArrowRows, JsonRows, files_of, read_rows

N_MANY = 70_000  # more than is read at once


def write_lines(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def many(**columns: object) -> pa.Table:
    gold = np.arange(N_MANY) % 2
    nats = pa.array(np.tile([-1.0, -2.0], N_MANY))
    lists = pa.ListArray.from_arrays(pa.array(np.arange(0, 2 * N_MANY + 1, 2), pa.int32()), nats)
    return pa.table({"gold": gold.astype(np.int32), "logprob_nats": lists, **columns})


def test_a_folder_stands_for_its_files_by_name(tmp_path: Path):
    rows = [{"gold": i % 2, "logprob_nats": [-1.0, -2.0]} for i in range(10)]
    files = [tmp_path / "b.parquet", tmp_path / "a.jsonl", tmp_path / "c.ndjson"]
    pq.write_table(pa.Table.from_pylist(rows[:3]), files[0])
    write_lines(files[1], rows[3:7])
    write_lines(files[2], rows[7:])
    (tmp_path / "notes.txt").write_text("x", "utf-8")
    (tmp_path / ".a.jsonl.part").write_text("x", "utf-8")
    whole = measure("accuracy", tmp_path)
    assert whole == measure("accuracy", files)
    assert whole.n_rows == 10
    assert files_of(tmp_path) == [files[1], files[0], files[2]]


def test_no_row_counts_twice(tmp_path: Path):
    file = tmp_path / "a.jsonl"
    write_lines(file, [{"gold": 0, "logprob_nats": [-1.0]}])
    (tmp_path / "link.jsonl").symlink_to(file)
    for twice in ([file, file], [tmp_path], [file, tmp_path / ".." / tmp_path.name / "a.jsonl"]):
        with pytest.raises(ConfigError, match="would count twice"):
            measure("accuracy", twice)


@pytest.mark.parametrize("other", ["results.json", "more.csv", "older"])
def test_no_data_of_a_folder_is_passed_over(tmp_path: Path, other: str):
    write_lines(tmp_path / "a.jsonl", [{"gold": 0, "logprob_nats": [-1.0]}])
    if "." in other:
        (tmp_path / other).write_text("{}", "utf-8")
    else:
        (tmp_path / other).mkdir()
    with pytest.raises(DataError, match=f"it holds {other} too"):
        measure("accuracy", tmp_path)


def test_a_broken_file_of_a_folder_is_named(tmp_path: Path):
    write_lines(tmp_path / "a.jsonl", [{"gold": 0, "logprob_nats": [-1.0]}])
    (tmp_path / "b.parquet").write_text("no", "utf-8")
    with pytest.raises(DataError, match=r"b\.parquet: cannot be read as Parquet"):
        measure("accuracy", tmp_path)


def test_only_what_is_asked_for_is_read(tmp_path: Path):
    table = pa.table({"id": ["x"], "out": [{"text": "a"}], "a.b": [1], "prompt": ["long"]})
    pq.write_table(table, tmp_path / "p.parquet")

    def read(*fields: str) -> ArrowRows:
        (rows,) = read_rows(tmp_path / "p.parquet", fields)
        assert isinstance(rows, ArrowRows)
        assert rows.fields() == ["id", "out", "a.b", "prompt"], "all are told"
        return rows

    assert read("id", "out.text").table.column_names == ["id", "out"]
    assert read("id", "out.text").values("out.text") == ["a"]
    found = read("a.b", "nothing")
    assert found.table.column_names == ["a.b"]
    assert found.values("a.b") == pa.array([1])
    assert found.values("nothing") is None
    assert len(read("nothing")) == 1


def test_long_rows_are_read_fewer_at_a_time(tmp_path: Path):
    texts = ["x" * (1 << 20) + str(i) for i in range(80)]
    table = pa.table({"n": range(80), "text": texts})
    pq.write_table(table, tmp_path / "p.parquet", use_dictionary=False)
    sizes = [len(rows) for rows in read_rows(tmp_path / "p.parquet", {"text"})]
    assert sum(sizes) == 80
    assert max(sizes) < 70
    assert [len(rows) for rows in read_rows(tmp_path / "p.parquet", {"n"})] == [80]


def test_rows_know_their_places_after_a_choice():
    table = pa.table({"x": [10, 11, 12, 13]})
    rows = ArrowRows(table, "t", range(101, 105), ["x"]).keep([1, 3]).keep(np.array([1]))
    assert rows.place(0) == "t, row 104"
    assert rows.values("x") == pa.array([13])
    json_rows = JsonRows([{"x": 1}, {}, {"x": 3}], ["a:1", "a:2", "a:3"])
    assert json_rows.values("x") == [1, ABSENT, 3]
    assert json_rows.values("y") is None
    assert json_rows.keep(np.array([2])).place(0) == "a:3"


def test_statuses_of_many_rows(tmp_path: Path):
    """A column at once gives what row by row gives, whatever the type of the texts."""
    words = np.array(["ok", "failed", "truncated", None, "overlong"], dtype=object)
    statuses = words[np.random.default_rng(0).integers(0, 5, N_MANY)].tolist()
    n_scored = sum(status in ("ok", "truncated", None) for status in statuses)
    results = []
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        table = many(status=pa.array(statuses, pa.string()).cast(kind))
        pq.write_table(table, tmp_path / "p.parquet")
        results += [measure("accuracy", table), measure("accuracy", tmp_path / "p.parquet")]
    assert all(result == results[0] for result in results)
    assert results[0].n_rows == N_MANY
    assert results[0].metrics["accuracy"].n == n_scored
    for status in ("failed", "overlong"):
        assert results[0].notes[f"status_{status}"] == statuses.count(status)
    statuses[66_666] = "done"
    with pytest.raises(DataError, match=r"table, row 66667: status is 'done'"):
        measure("accuracy", many(status=statuses))


def test_a_bad_row_among_many_is_named(tmp_path: Path):
    table = many()
    gold = table.column("gold").to_numpy().copy()
    gold[69_999] = 2
    pq.write_table(table.set_column(0, "gold", pa.array(gold)), tmp_path / "p.parquet")
    with pytest.raises(DataError, match=r"p\.parquet, row 70000: gold is 2"):
        measure("accuracy", tmp_path)
    rows = [{"gold": 0, "logprob_nats": [-1.0]} for _ in range(4000)]
    rows[3998]["logprob_nats"] = ["x"]
    with pytest.raises(DataError, match=r"q\.jsonl:3999: field 'logprob_nats' as"):
        measure("accuracy", write_lines(tmp_path / "q.jsonl", rows))


def test_groups_of_many_rows_are_those_measured_alone():
    rng = np.random.default_rng(2)
    names = np.array(["physics", "art", None, "", "law"], dtype=object)
    groups = names[rng.integers(0, 5, N_MANY)]
    table = many(group=pa.array(groups, pa.string()))
    table = table.set_column(0, "gold", pa.array(rng.integers(0, 2, N_MANY, np.int32)))
    found = measure("accuracy", table)
    assert list(found.groups) == ["art", "law", "physics"]
    for name, estimates in found.groups.items():
        alone = table.filter(pa.array(groups == name)).drop_columns(["group"])
        assert estimates == measure("accuracy", alone).metrics, name
    assert found.metrics == measure("accuracy", table.drop_columns(["group"])).metrics
    whole_numbers = many(group=np.arange(N_MANY) // 40_000)
    assert list(measure("accuracy", whole_numbers).groups) == ["0", "1"]
