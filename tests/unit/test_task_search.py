"""Searching the catalogue."""

import json

import pytest
from typer.testing import CliRunner

from raveval import tasks
from raveval.cli import app
from raveval.errors import ConfigError
from raveval.tasks.search import search


def names(words: str = "", protocol: str | None = None) -> list[str]:
    return [task.name for task in search(words, protocol=protocol)]


def test_without_words_is_the_whole_catalogue() -> None:
    assert names() == list(tasks.names())


def test_every_word_must_stand_somewhere_in_name_or_card() -> None:
    assert {"arc_easy", "arc_challenge", "sciq"} <= set(names("SCIENCE"))
    assert set(names("science grade-school")) == {"arc_easy", "arc_challenge"}
    assert "squad" in names("question answering") or "squad" in names("comprehension")


def test_those_named_so_come_first() -> None:
    assert names("wikitext")[0] == "wikitext2"
    found = names("easy")
    assert found[0] == "arc_easy"


def test_a_protocol_narrows_it() -> None:
    assert {"hhh_alignment", "autoj_pairwise"} <= set(names(protocol="ranking"))
    assert {task.protocol for task in search("", protocol="ranking")} == {"ranking"}


@pytest.mark.parametrize(
    ("words", "protocol", "message"),
    [
        ("arc_esay", None, "no task matches 'arc_esay'; did you mean 'arc_easy'"),
        ("squat", None, "did you mean 'squad'"),
        ("zzz", None, "no task matches 'zzz'; known: "),
        ("squad", "ranking", "no task of protocol ranking matches 'squad'"),
        ("", "rankin", "--protocol rankin: no task has it; did you mean 'ranking'"),
    ],
)
def test_a_miss_names_what_is_near(words: str, protocol: str | None, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        search(words, protocol=protocol)
    assert message in str(refusal.value)


class TestCommand:
    def test_lists(self) -> None:
        out = CliRunner().invoke(app, ["tasks", "--search", "wikitext"]).stdout
        assert "wikitext2" in out
        assert "arc_easy" not in out

    def test_prints_json(self) -> None:
        out = CliRunner().invoke(app, ["tasks", "--protocol", "ranking", "--json"]).stdout
        found = json.loads(out)
        assert {each["protocol"] for each in found} == {"ranking"}
        assert all(each["description"] for each in found)
        one = json.loads(CliRunner().invoke(app, ["tasks", "arc_easy", "--json"]).stdout)
        assert (one["name"], one["num_fewshot"]) == ("arc_easy", 0)
        assert one["source"].startswith("allenai/ai2_arc")

    def test_refuses_a_name_and_a_search(self) -> None:
        found = CliRunner().invoke(app, ["tasks", "arc_easy", "--search", "x"])
        assert (found.exit_code, "--search and --protocol" in found.stderr) == (2, True)
