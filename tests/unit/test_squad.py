"""SQuAD semantics on text that is out to break them, against the plain re-implementation."""

import random
import string
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raveval.errors import DataError
from raveval.metrics import squad, squad2
from raveval.metrics._answers import Answers
from raveval.metrics._matching import kernel_matches
from raveval.types import Estimate
from tests.official_squad import plain_v1, plain_v2

PIECES = [
    *(
        "the",
        "a",
        "an",
        "The",
        "AN",
        "thee",
        "ant",
        "cat",
        "Cats",
        "dog",
        "naïve",
        "NAÏVE",
        "1,000",
    ),
    *(
        "İ",
        "ß",
        "ΣΑΣ",
        "σας",
        "\uff21",
        "\u212a",
        "k",
        "é",
        "e\u0301",
        "\u0301",
        "a\u0301",
        "北京",
        "🙂",
    ),
    *(" ", "  ", "\t", "\n", "\x1c", "\xa0", "\u2003", "\u200b", "\u2013", "\u2019", "_", "'", "-"),
    *(string.punctuation[i] for i in range(0, 32, 5)),
]
pieces = st.lists(st.sampled_from(PIECES), max_size=10)
plain_words = st.lists(st.sampled_from(["the", "a", "cat", "dog", "bird", "red"]), max_size=8)
texts = (
    pieces.map("".join) | pieces.map(" ".join) | plain_words.map(" ".join) | st.text(max_size=12)
)
answers = st.lists(texts, min_size=1, max_size=4)


@settings(max_examples=500, deadline=None, derandomize=True)
@given(texts, answers)
def test_v1_bit_for_bit(prediction: str, references: list[str]):
    assert squad.score(prediction, references) == plain_v1(prediction, references)
    found = squad.match(prediction, references)
    exact, f1 = plain_v1(prediction, references)
    assert found.exact == exact
    assert found.numerator / found.denominator == pytest.approx(f1, rel=1e-15)


@settings(max_examples=500, deadline=None, derandomize=True)
@given(texts, st.lists(texts, max_size=4))
def test_v2_bit_for_bit(prediction: str, references: list[str]):
    assert squad2.score(prediction, references) == plain_v2(prediction, references)
    found = squad2.match(prediction, references)
    assert found.exact == plain_v2(prediction, references)[0]
    assert found.numerator / found.denominator == pytest.approx(
        plain_v2(prediction, references)[1], rel=1e-15
    )


RIGHT_IN_BOTH = ((True, 1.0), (True, 1.0))
WRONG_IN_BOTH = ((False, 0.0), (False, 0.0))
RIGHT_WITHOUT_A_WORD = ((True, 0.0), (True, 1.0))  # v1 has no overlap to speak of, v2 asks no more

EDGES = {
    "empty is empty": ("", [""], *RIGHT_WITHOUT_A_WORD),
    "an article is empty": ("", ["the"], *RIGHT_WITHOUT_A_WORD),
    "articles are equal": ("the", ["a"], *RIGHT_WITHOUT_A_WORD),
    "punctuation goes before articles": ("a.n.", ["An"], *RIGHT_WITHOUT_A_WORD),
    "empty is no word": ("", ["x"], *WRONG_IN_BOTH),
    "a word is not empty": ("x", [""], *WRONG_IN_BOTH),
    "an en dash stays and ends an article": ("the\u2013cat", ["\u2013cat"], *RIGHT_IN_BOTH),
    "a curly quote stays": ("\u2019tis", ["'tis"], *WRONG_IN_BOTH),
    "a hyphen goes and joins": ("twenty-one", ["twenty one"], *WRONG_IN_BOTH),
    "no Unicode normalisation": ("caf\u00e9", ["cafe\u0301"], *WRONG_IN_BOTH),
    "an article before a combining mark": ("a\u0301", ["\u0301"], *RIGHT_IN_BOTH),
    "a separator of files is white space": ("a\x1cb", ["b"], *RIGHT_IN_BOTH),
    "so are the other three": ("a\x1db\x1ec\x1fd", ["b c d"], *RIGHT_IN_BOTH),
    "a no-break space is white space": ("cat\xa0dog", ["cat dog"], *RIGHT_IN_BOTH),
    "the Kelvin sign is a k": ("\u212a", ["k"], *RIGHT_IN_BOTH),
    "a capital sigma at the end": ("ΣΑΣ", ["σας"], *RIGHT_IN_BOTH),
    # Lower case comes before the punctuation goes: the sigma ends a word only until then.
    "a capital sigma at a hyphen": ("ΑΣ-\u0392", ["ας-β"], *RIGHT_IN_BOTH),
    "the better reference": ("Eiffel Tower", ["the Eiffel Tower.", "Eiffel"], *RIGHT_IN_BOTH),
    "overlap": ("cat dog", ["a bird", "cat"], (False, 2 / 3), (False, 2 / 3)),
    "the better overlap": (
        "cat dog",
        ["cat dog is on top here", "cat"],
        (False, 2 / 3),
        (False, 2 / 3),
    ),
    "each word as often as in both": ("b b b", ["b b c"], (False, 2 / 3), (False, 2 / 3)),
}


@pytest.mark.parametrize(("prediction", "references", "v1", "v2"), EDGES.values(), ids=EDGES)
def test_known_edges(
    prediction: str, references: list[str], v1: tuple[bool, float], v2: tuple[bool, float]
):
    assert squad.score(prediction, references) == pytest.approx(v1, rel=1e-15)
    assert squad2.score(prediction, references) == pytest.approx(v2, rel=1e-15)
    for module, expected in ((squad, v1), (squad2, v2)):
        estimates, notes = computed(module, [prediction], [references])
        values = [estimates[name].value for name in ("exact_match", "f1")]
        assert values == list(expected)
        assert notes == {}
        found = kernel_matches(answers_of([prediction], [references]), module.RULE)
        if found is not None:  # numba is at hand
            assert (found.exact[0], found.numerator[0] / found.denominator[0]) == expected


def test_an_accent_continues_no_word():
    assert squad.tokens("a\u0301") == ("\u0301",), "a combining mark is no word character"


def test_no_references():
    """No reference: v1 has no score to give; in v2 there is no answer, and silence is right."""
    with pytest.raises(DataError, match="no score without a reference"):
        squad.score("x", [])
    assert squad2.score("x", []) == (False, 0.0)
    assert squad2.score("", []) == (True, 1.0)
    assert squad2.score("the", []) == (True, 1.0), "an article alone is nothing"


def answers_of(predictions: Sequence[str | None], references: Sequence[Sequence[str]]) -> Answers:
    return Answers(pa.array(predictions, pa.string()), pa.array(references, pa.list_(pa.string())))


def computed(
    module: Any, predictions: Sequence[str | None], references: Sequence[Sequence[str]]
) -> tuple[dict[str, Estimate], dict[str, int]]:
    metric = module.METRIC
    table = pa.table(dict(zip(metric.needs, answers_of(predictions, references), strict=True)))
    state = metric.update(metric.init(), table)
    return metric.compute(state), metric.notes(state)


def test_means_and_standard_errors():
    rng = random.Random(11)
    words = ["cat", "dog", "bird", "fish", "the"]
    predictions = [" ".join(rng.choices(words, k=rng.randint(1, 5))) for _ in range(300)]
    references = [
        [" ".join(rng.choices(words, k=rng.randint(1, 5))) for _ in range(rng.randint(1, 3))]
        for _ in range(300)
    ]
    scores = [squad.score(p, r) for p, r in zip(predictions, references, strict=True)]
    found, _ = computed(squad, predictions, references)
    f1 = [s.f1 for s in scores]
    assert found["f1"].value == pytest.approx(np.mean(f1), rel=1e-13)
    assert found["f1"].stderr == pytest.approx(np.std(f1, ddof=1) / np.sqrt(300), rel=1e-12)
    assert found["f1"].interval == "t95"
    assert found["exact_match"].value == sum(s.exact for s in scores) / 300
    assert found["exact_match"].interval == "wilson95"


def test_the_mean_is_the_exact_one():
    """Thirds have no double; their exact mean is rounded once."""
    found, _ = computed(squad, ["cat dog"] * 3 + ["bird"], [["cat"]] * 3 + [["bird"]])
    assert found["f1"].value == float((3 * Fraction(2, 3) + 1) / 4)


def test_unanswered_scores_zero_and_is_counted():
    found, notes = computed(squad, ["cat", None], [["cat"], ["dog"]])
    assert (found["exact_match"].value, found["f1"].value, found["f1"].n) == (0.5, 0.5, 2)
    assert notes == {"unanswered": 1}
    found, notes = computed(squad2, [None, ""], [[], []])
    assert found["exact_match_no_answer"].value == 0.5
    assert notes == {"unanswered": 1}


def test_a_question_without_references_is_left_out_of_v1():
    found, notes = computed(squad, ["cat", "dog"], [["cat"], []])
    assert (found["f1"].value, found["f1"].n) == (1.0, 1)
    assert notes == {"without_references": 1}
    found, _ = computed(squad, ["dog"], [[]])
    assert found["f1"].reason == found["exact_match"].reason == "no references"


def test_v2_splits_by_whether_there_is_an_answer():
    found, _ = computed(squad2, ["cat", "", "x", "cat dog"], [["cat"], [], [], ["dog", "the"]])
    values = {name: estimate.value for name, estimate in found.items()}
    assert values["exact_match"] == 0.5
    assert values["exact_match_has_answer"] == 0.5
    assert values["f1_has_answer"] == pytest.approx((1 + 2 / 3) / 2)
    assert values["f1_no_answer"] == values["exact_match_no_answer"] == 0.5
    only_answered, _ = computed(squad2, ["cat"], [["cat"]])
    assert only_answered["f1_no_answer"].reason == "n=0"


def test_long_texts_take_linear_time():
    long = " ".join(f"w{i % 977}" for i in range(50_000))
    assert squad.score(long, [long[::-1], long]).exact


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"prediction": ["x"]}, "references: no such column; columns present: prediction"),
        ({"prediction": [1], "references": [["x"]]}, "prediction: expected a text, found int64"),
        ({"prediction": ["x"], "references": ["x"]}, "references: expected a list of texts"),
        ({"prediction": ["x"], "references": [["x", None]]}, "null inside"),
        (
            {"prediction": ["x", "y"], "references": [["x"], None]},
            "references: expected a list of texts, found null",
        ),
    ],
)
@pytest.mark.parametrize("module", [squad, squad2])
def test_what_cannot_be_is_refused(module: Any, columns: dict[str, Any], message: str):
    with pytest.raises(DataError, match=message):
        module.METRIC.update(module.METRIC.init(), pa.table(columns))


@pytest.mark.parametrize("module", [squad, squad2])
def test_states_of_other_character_tables_are_refused(module: Any):
    content = module.METRIC.encode(module.METRIC.init())
    with pytest.raises(DataError, match=r"Unicode tables '9\.0\.0'"):
        module.METRIC.decode({**content, "text_tables": "9.0.0"})


@pytest.mark.parametrize("cell", [[2, 1, 1, 5], [0, 2, 4, 5], [0, 3, 2, 5], [0, 0, 0, 5]])
def test_cells_that_no_answer_can_have_are_refused(cell: list[int]):
    content = squad.METRIC.encode(squad.METRIC.init())
    with pytest.raises(DataError, match="no pair of scores"):
        squad.METRIC.decode({**content, "scores": [cell]})


def test_equal_scores_are_no_certainty():
    """Twenty wrong answers do not show that the next one is wrong."""
    table = pa.table({"prediction": ["x"] * 20, "references": [["y"]] * 20})
    metric = squad.METRIC
    found = metric.compute(metric.update(metric.init(), table))
    f1, exact_match = found["f1"], found["exact_match"]
    assert (f1.value, f1.low, f1.interval) == (0.0, 0.0, "wilson95")
    assert f1.high == exact_match.high == pytest.approx(0.1611, abs=1e-4)


@pytest.mark.parametrize("module", [squad, squad2])
def test_summed_contributions_give_the_values(module: Any):
    rng = random.Random(5)
    predictions = [None, *(" ".join(rng.choices(PIECES, k=rng.randint(0, 5))) for _ in range(400))]
    references = [
        [" ".join(rng.choices(PIECES, k=rng.randint(0, 5))) for _ in range(rng.randint(0, 3))]
        for _ in predictions
    ]
    table = pa.table({"prediction": predictions, "references": references})
    metric = module.METRIC
    found = metric.contributions(table)
    estimates = metric.compute(metric.update(metric.init(), table))
    assert set(found) == set(metric.ratios) == set(estimates)
    for name, (x, u) in found.items():
        assert x.dtype == u.dtype == np.float64
        assert x.shape == u.shape == (len(predictions),)
        assert set(u.tolist()) <= {0.0, 1.0}
        assert not x[u == 0].any(), name
        assert u.sum() == estimates[name].n > 0, name
        value = metric.ratios[name].value(x.sum() / u.sum())
        assert value == pytest.approx(estimates[name].value, rel=1e-12), name


def test_a_contribution_is_the_exact_score_of_its_row():
    table = pa.table(
        {
            "prediction": ["cat dog", "", "x", None, "the"],
            "references": [["cat", "bird"], [], ["x"], ["y"], [""]],
        }
    )
    v1, v2 = squad.METRIC.contributions(table), squad2.METRIC.contributions(table)
    assert v1["f1"].x.tolist() == [2 / 3, 0, 1, 0, 0]
    assert v1["exact_match"].x.tolist() == [0, 0, 1, 0, 1]
    assert v1["f1"].u.tolist() == [1, 0, 1, 1, 1]
    assert v2["f1"].x.tolist() == [2 / 3, 1, 1, 0, 1]
    assert v2["f1_has_answer"].u.tolist() == [1, 0, 1, 1, 1]
    assert v2["f1_has_answer"].x.tolist() == [2 / 3, 0, 1, 0, 1]
    assert v2["f1_no_answer"].u.tolist() == [0, 1, 0, 0, 0]
    assert v2["exact_match_no_answer"].x.tolist() == [0, 1, 0, 0, 0]
