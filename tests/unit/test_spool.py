"""Values on disk: in order, by position, by key; and what does not fit is told."""

import resource
import tempfile
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from raveval import tasks
from raveval.errors import ResourceError
from raveval.spool import Entry, Spool


@dataclass(frozen=True, slots=True)
class Word:
    text: str
    numbers: tuple[int, ...] = ()


def spooled(*words: str) -> Spool[Word]:
    """A spool whose keys are the words' first letters."""
    return Spool(Word, (Entry(word[:1].encode(), f"of {word}", Word(word)) for word in words))


def texts(spool: Spool[Word]) -> list[str]:
    return [word.text for word in spool]


def test_values_come_back_unchanged_in_their_order() -> None:
    words = [Word("b", (1, 2)), Word("a"), Word("")]
    spool = Spool(Word, (Entry(b"k", None, word) for word in words))
    assert list(spool) == words
    assert (len(spool), spool[0], spool[-1], spool[1:]) == (3, words[0], words[2], words[1:])
    for position in (3, -4):
        with pytest.raises(IndexError):
            spool[position]


def test_sorting_goes_by_the_key_and_keeps_the_order_of_equals() -> None:
    spool = spooled("bb", "a", "ba", "c")
    spool.sort()
    assert texts(spool) == ["a", "bb", "ba", "c"]
    assert [spool.label(position) for position in range(4)] == ["of a", "of bb", "of ba", "of c"]


def test_the_first_value_whose_key_was_there_is_found() -> None:
    assert spooled("a", "b", "c").first_repetition() is None
    assert spooled("a", "b", "c", "b2", "a2", "b3").first_repetition() == (3, 1)


def test_values_of_a_key_are_found() -> None:
    spool = spooled("a", "b", "a2", "c")
    spool.index_keys()
    assert spool.positions(b"a") == [0, 2]
    assert spool.positions(b"x") == []
    assert [position for position, _ in spool.labels()] == [0, 1, 2, 3]
    assert list(spool.labels(once_each_key=True)) == [(0, "of a"), (1, "of b"), (3, "of c")]


def test_a_folder_without_room_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/full")

    def endless() -> Iterator[Entry]:
        monkeypatch.setattr(tempfile, "gettempdir", lambda: "/other")  # as Python does by then
        while True:
            yield Entry(b"k", None, Word("x" * 2**20))

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**22, hard))
    try:
        with pytest.raises(ResourceError, match=r"^/full: .* set TMPDIR to a folder with more"):
            Spool(Word, endless())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_row_of_the_data_is_held_at_a_time(tmp_path: Path) -> None:
    def peak_bytes(n_rows: int, num_fewshot: int) -> int:
        with (tmp_path / "rows.jsonl").open("w") as file:
            for number in range(n_rows):
                file.write(f'{{"q": "{number} {"x" * 2000}", "answers": ["{number}"]}}\n')
        options = tasks.Options(num_fewshot=num_fewshot)
        tracemalloc.start()
        examples = tasks.load_examples(task, options, seed=0)
        examples.sort()
        assert sum(1 for _ in examples) == n_rows
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    (tmp_path / "quiz.yaml").write_text(
        'protocol: question_answering\nsource: {path: rows.jsonl}\nprompt: "{{ q }}"\n'
        "references: answers\n"
    )
    task = tasks.load_task(str(tmp_path / "quiz.yaml"))
    peak_bytes(10, 0)  # what is made once
    assert peak_bytes(3000, 0) < peak_bytes(300, 0) + 2**20  # the texts alone are 6 MB
