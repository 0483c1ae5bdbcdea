"""Modules of one's own by dotted names: where they are found, and what is wrong about one."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raveval import registry
from raveval.config import load_config
from raveval.errors import ConfigError, ModelError, Refused, RunError
from raveval.evaluate import load_metric, shard_states
from raveval.plan import Plan, make_plan
from raveval.submission.bundle import make_bundle
from raveval.types import Usage

METRIC = """
import pyarrow as pa
from raveval.metrics import Mean, Means

def values(records):
    return {"length": [len(text or "") for text in records["prediction"].to_pylist()]}

METRIC = Means(
    "mylab.own",
    version=1,
    columns=(pa.field("prediction", pa.string()),),
    means={"length": Mean("characters", None)},
    values=values,
)
"""
ENGINE = """
from dataclasses import dataclass
from raveval.engines import scripted

OPERATIONAL = frozenset()

@dataclass(frozen=True)
class Options:
    words: int = 3

def encoder(model, options):
    return scripted.encoder(model, scripted.Options())

def start(model, options):
    return scripted.start(model, scripted.Options())
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Write mylab/own.py in the current directory; nothing of it stays imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    (tmp_path / "mylab").mkdir()

    def forget() -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] == "mylab"]:
            del sys.modules[name]

    def put(text: str) -> None:
        forget()
        (tmp_path / "mylab" / "own.py").write_text(text)

    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # files of one second look unchanged
    yield put
    forget()


def content(**changes: Any) -> dict[str, Any]:
    evaluate = {
        "model": "org/model",
        "engine": "scripted",
        "tasks": [{"task": "demo_qa", "metrics": ["squad", "mylab.own"]}],
    }
    return {"evaluate": {**evaluate, **changes}, "run": {"output": "/nowhere/run"}}


def plan(**changes: Any) -> Plan:
    config = load_config({**content(**changes), "run": {"output": "run"}})
    return make_plan(config)


def test_a_metric_in_the_current_directory_is_found(write: Callable[[str], None]) -> None:
    write(METRIC)
    assert plan().tasks[0].score["metrics"] == {"squad": 2, "mylab.own": 1}
    write(METRIC.replace("version=1", "version=2"))
    assert plan().tasks[0].score["metrics"]["mylab.own"] == 2


def test_what_is_installed_comes_first(write: Callable[[str], None], tmp_path: Path) -> None:
    write(METRIC)
    installed = tmp_path / "site"
    (installed / "mylab").mkdir(parents=True)
    (installed / "mylab" / "own.py").write_text(METRIC.replace("version=1", "version=7"))
    for package in (installed, tmp_path):
        (package / "mylab" / "__init__.py").touch()
    sys.path.insert(0, str(installed))
    assert load_metric("mylab.own").version == 7


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("METRIC =", "OTHER ="), r"own\.py has no METRIC; a module of metrics holds METRIC"),
        (
            ("    values=values,\n)", "    values=values,\n)\nMETRIC = values"),
            "METRIC is no metric: it",
        ),
        (("import pyarrow as pa", "import pyarow"), r"No module named 'pyarow' \(.*own\.py, line"),
        (("def values", "nothing\ndef values"), r"'nothing' is not defined \(.*own\.py, line 5\)"),
        (("def values(", "def values(("), r"SyntaxError: .*own\.py, line"),
        (('pa.field("prediction"', 'pa.field("predicted"'), "needs the column 'predicted'"),
        (('{"length": [', '{"lenth": ['), r"its values are of \['lenth'\]"),
        (("pa.string()", "pa.int64()"), "fails before there is a record: prediction: expected an"),
        (('"length": ', '"f1": '), "'squad' and 'mylab.own' both give an estimate 'f1'"),
    ],
)
def test_a_broken_metric_is_refused_in_one_line(
    write: Callable[[str], None], change: tuple[str, str], message: str
) -> None:
    write(METRIC.replace(*change))
    with pytest.raises(ConfigError, match=message) as refusal:
        plan()
    assert "mylab.own" in str(refusal.value)


def test_a_wrong_name_says_where_it_looked(write: Callable[[str], None], tmp_path: Path) -> None:
    write(METRIC)
    for name, message in (
        ("mylab.onw", rf"mylab/onw\.py in the current directory \({tmp_path}\)"),
        ("yourlab.own", r"No module named 'yourlab'"),
        ("own", r"a module of your own has a dotted name, such as mylab\.own"),
    ):
        with pytest.raises(ConfigError, match=f"unknown metric '{name}'.*{message}"):
            registry.load("metrics", name)


def test_contributions_that_are_not_the_ratios_are_refused(write: Callable[[str], None]) -> None:
    write(METRIC + "\nfrom raveval.metrics import Ratio\nMETRIC.ratios = {'depth': Ratio()}\n")
    with pytest.raises(ConfigError, match=r"contributions are of \['length'\], its ratios are"):
        plan()


def test_a_metric_that_fails_on_records_says_where(write: Callable[[str], None]) -> None:
    import pyarrow as pa

    write(METRIC.replace("len(text or", "lenn(text or"))
    assert plan()  # nothing shows before there is a record
    records = pa.table(
        {
            "row_key": pa.array([1], pa.uint64()),
            "status": ["ok"],
            "group": pa.array([None], pa.string()),
            "prediction": ["Paris"],
        }
    )
    with pytest.raises(RunError, match=r"'mylab\.own' fails .*'lenn' .*own\.py, line 6.*mend"):
        shard_states(records, ["mylab.own"], Usage())


def test_an_engine_of_ones_own_has_checked_options(write: Callable[[str], None]) -> None:
    write(ENGINE)
    found = plan(engine={"name": "mylab.own", "words": 4}, tasks=["demo_qa"])
    assert found.tasks[0].reply["engine"] == {"name": "mylab.own", "options": {"words": 4}}
    for option, message in (
        ({"wordz": 4}, "did you mean 'words'"),
        ({"words": "x"}, r"engine\.words: Input should be a valid integer"),
    ):
        with pytest.raises(ConfigError, match=message):
            plan(engine={"name": "mylab.own", **option}, tasks=["demo_qa"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("class Options", "class Option"), "has no Options; a module of engines holds Options, "),
        (("@dataclass(frozen=True)", ""), "the Options of 'mylab.own' are no dataclass"),
        (
            ("return scripted.encoder(model, scripted.Options())", "return object()"),
            "its encoder has no `max_model_len`",
        ),
        (("return scripted.encoder(", "return nothing("), r"encoder fails: NameError.*own\.py, li"),
    ],
)
def test_a_broken_engine_is_refused_in_one_line(
    write: Callable[[str], None], change: tuple[str, str], message: str
) -> None:
    write(ENGINE.replace(*change))
    with pytest.raises(Refused, match=message) as refusal:
        plan(engine="mylab.own", tasks=["demo_qa"])
    assert isinstance(refusal.value, ConfigError | ModelError)


def test_a_job_brings_its_modules_along(write: Callable[[str], None], tmp_path: Path) -> None:
    write(METRIC)
    (tmp_path / "mylab" / "__pycache__").mkdir()
    (tmp_path / "mylab" / "__pycache__" / "own.pyc").touch()
    (tmp_path / "mylab" / "words.txt").write_text("a\n")
    config = load_config(content(engine={"name": "yourlab.engine"}))
    packed = make_bundle(config)
    name = packed.name
    assert set(packed.files) == {"mylab/own.py", "mylab/words.txt"}
    assert any("yourlab.engine: not in this directory" in remark for remark in packed.remarks)
    write(METRIC + "\n")
    assert make_bundle(config).name != name  # another module is another job
