"""The kernel against the plain semantics: the same integers for every row, whatever the text."""

import json
import random
import subprocess
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from raveval.errors import DataError
from raveval.metrics import _squad_kernel, squad, squad2
from raveval.metrics._answers import Answers, Matches, read_answers
from raveval.metrics._matching import _kernel_scores, kernel_matches, plain_matches
from tests.unit.test_squad import PIECES, answers_of

pytest.importorskip("numba", exc_type=ImportError)

MODULES = (squad, squad2)
MORE_PIECES = [
    *("the", "a", "an", "A", "AN", "The", "an a", "the the", "a.n.", "t-h-e", "th", "e", "_the_"),
    *("\u2013the", "the\u2013", "a\u0301", "\u0301a", "an\u200d", "a\u2019s", "the\xb2", "\xbda"),
    *("\x00", "\x1c", "\x1d", "\x1e", "\x1f", "\x85", "\u2028", "\u3000", "\u180e", "\ufeff"),
    *("\u01c5", "\u1e9e", "\u2126", "\u212b", "\u0149", "\u13a0", "\ufb01", "\u0345", "\u0387"),
    *("\U00010400", "\U0001d7d8", "\U0001f9d1\u200d\U0001f680", "\U0001f1e9\U0001f1ea"),
    *("\U00020000", "\U0002f800", "\U000e0041", "\U0010ffff"),
    *("\u0660", "\u4e00\u4e8c", "\u3042", "\u0e01\u0e33", "\u0915\u094d\u0937", "\uac00"),
]


def random_text(rng: random.Random) -> str:
    """A text that tries to break something; one in sixty is long."""
    pool = rng.choice([PIECES, MORE_PIECES, ["cat", "dog", "the", "Cats,", "bird"]])
    length = rng.randint(0, 6) if rng.random() < 59 / 60 else rng.randint(40, 400)
    text = rng.choice(["", " ", " "]).join(rng.choices(pool, k=length))
    if rng.random() < 0.05:
        text += chr(rng.choice([rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)]))
    return text


def changed(text: str, rng: random.Random) -> str:
    """A text that is near the one given."""
    words = text.split(" ")
    return rng.choice(
        [
            lambda: text,
            text.upper,
            text.swapcase,
            lambda: f"the {text}.",
            lambda: " ".join(rng.sample(words, len(words))),
            lambda: " ".join(words[1:]),
            lambda: " ".join([*words, words[0]]),
            lambda: text.replace(" ", "\xa0"),
        ]
    )()


def random_answers(n: int, seed: int) -> Answers:
    rng = random.Random(seed)
    predictions: list[str | None] = []
    references = []
    for _ in range(n):
        texts = [random_text(rng) for _ in range(rng.choice([0, 1, 1, 2, 3, 5]))]
        if texts and rng.random() < 0.3:
            texts.append(texts[-1])
        near = changed(rng.choice(texts), rng) if texts and rng.random() < 0.6 else None
        predictions.append(near if near is not None else random_text(rng))
        if rng.random() < 0.02:
            predictions[-1] = None
        references.append(texts)
    return answers_of(predictions, references)


def by_kernel(answers: Answers, module: ModuleType) -> Matches:
    found = kernel_matches(answers, module.RULE)
    assert found is not None
    return found


def rows_of(matches: Matches) -> list[tuple[bool, int, int]]:
    columns = (matches.exact, matches.numerator, matches.denominator)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def assert_same(answers: Answers, module: ModuleType) -> Matches:
    plain, found = plain_matches(answers, module.RULE), by_kernel(answers, module)
    pairs = zip(rows_of(plain), rows_of(found), strict=True)
    wrong = [k for k, (p, f) in enumerate(pairs) if p != f]
    shown = [(answers.predictions[k].as_py(), answers.references[k].as_py()) for k in wrong[:3]]
    assert not wrong, f"{len(wrong)} rows differ, such as {shown}"
    return found


@pytest.mark.parametrize("module", MODULES)
def test_it_says_what_plain_python_says(module: ModuleType):
    answers = random_answers(60_000, seed=7)
    found = assert_same(answers, module)
    is_partial = (found.numerator > 0) & (found.numerator < found.denominator)
    for share in (found.exact.mean(), is_partial.mean()):
        assert 0.1 < share < 0.9, "the rows are too easy"


def test_most_rows_are_the_kernels_own():
    """Otherwise the test above would compare plain Python with itself."""
    answers = random_answers(5_000, seed=8)
    scores = _kernel_scores(*answers, drops_empty=False)
    assert scores is not None
    assert 0.01 < scores.is_left.mean() < 0.5
    odd = ["\u0130", "\u03a3", "\U00020000", "x" * (1 << 20) + "y"]
    scores = _kernel_scores(*answers_of([*odd, "x"], [["x"]] * 5), drops_empty=False)
    assert scores is not None
    assert scores.is_left.tolist() == [True, True, True, True, False]


def test_every_code_point():
    """Alone, within words, as their neighbour, and beside articles."""
    codes = [c for c in range(0x20400) if not 0xD800 <= c < 0xE000]
    texts = [f"x{c}y {c}the a{c} an{c}cat\u2013{c}" for c in map(chr, codes)]
    expected = [" ".join(squad.tokens(text)) for text in texts]
    # The words alone, joined by spaces, are the same words: so the rows are exact matches.
    found = assert_same(answers_of(texts, [[e] for e in expected]), squad)
    assert found.exact.mean() > 0.99
    lower = answers_of(texts, [[text.lower()] for text in texts])
    assert assert_same(lower, squad).exact.mean() > 0.99


@pytest.mark.parametrize("module", MODULES)
def test_empty_sides(module: ModuleType):
    texts = [None, "", " ", "the", "a.n.", "x", "\u0301", "\u03a3", "?"]
    lists = [[], [""], ["the"], ["x"], ["", "x"], ["x", ""], ["x", "x"], ["", ""], ["\u03a3", "x"]]
    pairs = [(text, references) for text in texts for references in lists]
    predictions, references = zip(*pairs, strict=True)
    assert_same(answers_of(predictions, references), module)


@pytest.mark.parametrize("module", MODULES)
def test_any_layout_of_the_columns(module: ModuleType):
    """Slices of larger arrays, pieces, and other types of text are read where they lie."""
    answers = random_answers(300, seed=9)
    table = pa.table({"prediction": answers.predictions, "references": answers.references})
    expected = rows_of(plain_matches(answers, module.RULE))
    large = pa.table(
        {
            "prediction": answers.predictions.cast(pa.large_string()),
            "references": answers.references.cast(pa.large_list(pa.large_string())),
        }
    )
    views = pa.table(
        {
            "prediction": answers.predictions.cast(pa.string_view()),
            "references": answers.references,
        }
    )
    encoded = pa.table(
        {
            "prediction": answers.predictions.dictionary_encode(),
            "references": answers.references,
        }
    )
    pieces = pa.concat_tables([table.slice(0, 7), table.slice(7, 0), table.slice(7)])
    for columns in (table, large, views, encoded, pieces):
        for start, length in ((0, 300), (0, 1), (13, 100), (299, 1), (300, 0), (150, 0)):
            part = read_answers(columns.slice(start, length))
            assert rows_of(by_kernel(part, module)) == expected[start : start + length]
    # A list array over a slice of its texts.
    texts = pa.array(["skipped", "cat", "a dog", "the", "bird"]).slice(1)
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 1, 4], pa.int32()), texts).slice(1)
    assert_same(Answers(pa.array(["", "dog"]), lists), module)


@pytest.mark.parametrize("module", MODULES)
def test_columns_without_a_single_text(module: ModuleType):
    nothing = pa.array([None, None])
    no_lists = pa.array([[], []])
    for predictions, references in (
        (nothing, no_lists),
        (nothing.slice(1), no_lists.slice(1)),
        (pa.array(["", "x"]), no_lists),
        (nothing, pa.array([["x"], []])),
        (pa.array([], pa.null()), pa.array([], pa.list_(pa.null()))),
    ):
        table = pa.table({"prediction": predictions, "references": references})
        assert_same(read_answers(table), module)


def test_one_compilation_serves_all():
    """Whatever made the columns; each further one would cost seconds."""
    kernel: Any = _squad_kernel.compiled()
    made_here = answers_of(["x"], [["x"]])
    sink = pa.BufferOutputStream()
    table = pa.table({"prediction": made_here.predictions, "references": made_here.references})
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    read_back = read_answers(pa.ipc.open_file(sink.getvalue()).read_all())
    for answers in (made_here, read_back, random_answers(50, seed=1), answers_of([None], [[]])):
        by_kernel(answers, squad)
    assert len(kernel.signatures) == 1


def test_long_texts_take_linear_time():
    words = [f"w{i % 9973}" for i in range(150_000)]
    long = " ".join(words)
    assert len(long) < 1 << 20 < 2 * len(long)
    backwards = " ".join(reversed(words))
    for module in MODULES:
        answers = answers_of([long, long, f"{long} {long}"], [[backwards], [long], [long]])
        found = assert_same(answers, module)
        assert rows_of(found) == [(False, 1, 1), (True, 1, 1), (False, 2, 3)]


def test_words_of_one_hash_are_told_apart():
    """By content: with every hash the same, nothing changes but the time."""
    predicted, reference = ["cat", "dog", "cat", "at", "cot"], ["dog", "cot", "cat", "cat", "cat"]
    words = predicted + reference
    chars = np.array([ord(c) for c in "".join(words)], np.int32)
    ends = np.cumsum([0, *map(len, words)]).astype(np.int32)
    hashes = np.full(len(words), 12345 << 32)
    slots, counts, unused = np.zeros(16, np.int32), np.zeros(6, np.int32), np.zeros(6, np.int32)
    where = (chars, ends, hashes)
    mask = _squad_kernel._count(*where, slots, counts, 5)
    shared = _squad_kernel._overlap(*where, slots, counts, unused, mask, 5, 10)
    assert shared == squad.overlap(predicted, reference) == 4
    assert not _squad_kernel._are_same(*where, 5, 10)
    assert counts[:5].tolist() == [2, 1, 0, 1, 1]


@pytest.mark.parametrize(
    "content",
    [
        *(b"\x80", b"x\xff", b"\xc3", b"\xc3x", b"\xe2\x80", b"\xf0\x9f\x98"),  # cut off
        *(b"\xc0\xa0", b"\xe0\x80\xa0", b"\xf0\x80\x80\xa0"),  # longer than they need be
        *(b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80"),  # no code points
    ],
)
def test_what_is_no_text_is_no_text_here_either(content: bytes):
    """A file can say that bytes are a text; nothing is read beyond their end, nor made of them."""
    broken = pa.array([content, b"\xa0\x80\x80\x80"]).view(pa.string()).slice(0, 1)
    answers = Answers(broken, pa.array([["x"]]))
    for score in (plain_matches, kernel_matches):
        with pytest.raises((UnicodeDecodeError, pa.ArrowException)):
            score(answers, squad.RULE)


def test_nulls_among_the_references_are_refused_here_too():
    table = pa.table({"prediction": ["x"] * 50_000, "references": [["x", None]] * 50_000})
    with pytest.raises(DataError, match="null inside"):
        squad.METRIC.update(squad.METRIC.init(), table)


PROGRAM = """
import json, sys
if {is_without}:
    sys.modules["numba"] = None  # as if it were not installed
import pyarrow as pa
from raveval.metrics import squad, squad2
table = pa.table({{
    "prediction": ["the cat", "dog \\u03a3", "x", None, "a bird in hand"] * 12000,
    "references": [["cat"], ["dog", "\\u03c3"], [], ["y"], ["bird", "the hand"]] * 12000,
}})
found = []
for module in (squad, squad2):
    metric = module.METRIC
    state = metric.init()
    for start in range(0, len(table), {size}):
        state = metric.update(state, table.slice(start, {size}))
        found.append(sys.modules.get("numba") is not None)
    print(json.dumps(metric.encode(state)))
    x, u = metric.contributions(table)["f1"]
    print(x.sum(), u.sum())
    if {size} < 50000 and module is squad:
        # Earlier parts count: with the fifth, more than 50 000 rows with a reference have come.
        print(found, file=sys.stderr)
"""


def test_numba_comes_in_for_many_rows_only_and_need_not_be_there():
    def run(is_without: bool, size: int) -> subprocess.CompletedProcess[str]:
        code = PROGRAM.format(is_without=is_without, size=size)
        command = [sys.executable, "-W", "error", "-c", code]
        return subprocess.run(command, capture_output=True, text=True, check=True)

    in_parts = run(is_without=False, size=12_000)
    assert json.loads(in_parts.stderr.lower()) == [False, False, False, False, True]
    without = run(is_without=True, size=12_000)
    assert json.loads(without.stderr.lower()) == [False] * 5
    assert without.stdout == in_parts.stdout == run(is_without=False, size=60_000).stdout
