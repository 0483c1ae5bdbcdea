"""A judge's preferences against the human's: each credit of ties, both orders, kappa, alpha."""

import math
import random
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import krippendorff
import numpy as np
import pyarrow as pa
import pytest

from raveval.errors import DataError
from raveval.metrics._half_credits import Credits, tango
from raveval.metrics._intervals import wilson
from raveval.metrics.preference import METRIC
from raveval.types import Estimate
from tests.kappa import statsmodels_kappa

ORDER = {"a": 0, "tie": 1, "b": 2}


def state_of(rows: list[dict[str, Any]]) -> Any:
    return METRIC.update(METRIC.init(), pa.Table.from_pylist(rows))


def compute(rows: list[dict[str, Any]]) -> Mapping[str, Estimate]:
    return METRIC.compute(state_of(rows))


def verdicts(*pairs: tuple[str | None, str]) -> list[dict[str, Any]]:
    return [{"verdict": judge, "preferred": human} for judge, human in pairs]


def random_rows(rng: random.Random, n: int) -> list[dict[str, Any]]:
    """Rows whose judge is right more often than not, and sometimes silent."""
    rows = []
    for _ in range(n):
        human = rng.choice("aaabb") if rng.random() < 0.8 else "tie"
        said = [human if rng.random() < 0.6 else rng.choice(["a", "b", "tie"]) for _ in range(2)]
        row: dict[str, Any] = {
            "preferred": human,
            "verdict": said[0],
            "verdict_swapped": said[1],
        }
        for key in ("verdict", "verdict_swapped"):
            row[key] = None if rng.random() < 0.1 else row[key]
        rows.append(row)
    return rows


def test_each_credit_of_ties_has_its_own_number():
    rows = verdicts(
        *(("a", "a"), ("b", "b"), ("b", "a")),
        *(("tie", "tie"), ("tie", "a"), ("a", "tie"), (None, "b")),
    )
    found = compute(rows)
    assert {name: (e.value, e.n) for name, e in found.items() if e.unit == "fraction" and e.n} == {
        "accuracy_strict": (3 / 6, 6),
        "accuracy_without_human_ties": (2 / 4, 4),
        "accuracy_without_ties": (2 / 3, 3),
        "accuracy_half_credit": (4 / 6, 6),
        "tie_rate": (2 / 6, 6),
    }
    assert METRIC.notes(state_of(rows)) == {"human_ties": 2, "judge_ties": 2, "unjudged": 1}


def test_both_orders_count_a_verdict_that_survives_the_swap():
    words = [
        ("a", "a", "a"),  # right
        ("b", "b", "a"),  # wrong, and consistently so
        ("a", "b", "a"),  # the first shown won twice: a tie, wrong
        ("b", "a", "tie"),  # the second shown won twice: a tie, right
        ("tie", "a", "tie"),  # a tie, right
        ("a", None, "a"),  # not judged twice
        ("a", "b", "b"),  # the first shown won twice again
    ]
    rows = [
        {"verdict": judge, "verdict_swapped": swapped, "preferred": human}
        for judge, swapped, human in words
    ]
    found = compute(rows)
    both, same = found["accuracy_both_orders"], found["position_consistency"]
    assert (both.value, both.n) == (3 / 6, 6)
    assert (same.value, same.n) == (2 / 6, 6)
    assert found["accuracy_strict"].value == 4 / 7
    assert METRIC.notes(state_of(rows)) == {
        "human_ties": 2,
        "judge_ties": 1,
        "judged_in_both_orders": 6,
        "first_shown_won_both": 2,
        "second_shown_won_both": 1,
    }


def test_the_verdict_comes_from_ratings_where_it_is_not_given():
    nan = float("nan")
    table = pa.table(
        {
            "preferred": ["a"] * 8,
            "verdict": ["b", None, None, None, None, None, None, None],
            "rating_a": [[5], [4, 5], [0.1, 0.2, 0.3], [1], [nan], [], None, [math.inf]],
            "rating_b": [[1], [4], [0.2], [2.5], [1], [1], [1], [math.inf]],
            "rating_denominator": [1, None, 10, 2, None, None, None, None],
        }
    )
    state = METRIC.update(METRIC.init(), table)
    # b as said, a by 4.5 > 4, a tie on the grid of tenths, b, three unjudged, a tie
    assert METRIC.compute(state)["accuracy_strict"].value == 1 / 5
    assert METRIC.notes(state) == {"judge_ties": 2, "unjudged": 3}
    swapped = table.rename_columns({"verdict": "verdict_swapped"}).append_column(
        "rating_a_swapped", pa.array([1] * 8)
    )
    swapped = swapped.append_column("rating_b_swapped", pa.array([2] * 8))
    found = METRIC.compute(METRIC.update(METRIC.init(), swapped))
    assert found["position_consistency"].n == 5
    # a, a, tie, b, tie by the ratings, and b throughout in the other order
    assert found["position_consistency"].value == 1 / 5


def test_shares_against_a_count_row_by_row():
    rng = random.Random(5)
    for _ in range(20):
        rows = random_rows(rng, rng.randint(1, 80))
        found = compute(rows)
        judged = [r for r in rows if r["verdict"]]
        twice = [r for r in judged if r["verdict_swapped"]]

        def share(of: list[Any], credit: Any) -> tuple[Fraction, int]:
            return sum((Fraction(credit(r)) for r in of), Fraction(0)), len(of)

        def half(r: Any) -> Fraction:
            ties = (r["verdict"] == "tie") + (r["preferred"] == "tie")
            return Fraction(1, 2) if ties == 1 else Fraction(r["verdict"] == r["preferred"])

        def both(r: Any) -> bool:
            agreed = r["verdict"] if r["verdict"] == r["verdict_swapped"] else "tie"
            return bool(agreed == r["preferred"])

        def strict(r: Any) -> bool:
            return bool(r["verdict"] == r["preferred"])

        decided = [r for r in judged if r["preferred"] != "tie"]
        expected = {
            "accuracy_strict": share(judged, strict),
            "accuracy_without_human_ties": share(decided, strict),
            "accuracy_without_ties": share([r for r in decided if r["verdict"] != "tie"], strict),
            "accuracy_half_credit": share(judged, half),
            "accuracy_both_orders": share(twice, both),
            "position_consistency": share(twice, lambda r: r["verdict"] == r["verdict_swapped"]),
            "tie_rate": share(judged, lambda r: r["verdict"] == "tie"),
        }
        contributions = METRIC.contributions(pa.Table.from_pylist(rows))
        assert set(contributions) == set(METRIC.ratios) == set(expected)
        for name, (credits, n) in expected.items():
            estimate = found[name]
            assert (contributions[name].x.sum(), contributions[name].u.sum()) == (credits, n)
            if n == 0:
                assert estimate.reason in ("no valid example", "not measured")
                continue
            assert (estimate.value, estimate.n) == (float(credits / n), n)
            interval = wilson(credits / n, n)
            if name == "accuracy_half_credit":
                worth = [half(r) for r in judged]
                interval = tango(Credits(*(worth.count(c) for c in map(Fraction, (1, 0.5, 0)))))
            assert (estimate.low, estimate.high) == interval


def test_the_standard_error_of_half_credits_is_that_of_their_spread():
    credits = [1.0, 0.5, 0.0, 0.5, 1.0, 1.0]
    rows = verdicts(("a", "a"), ("tie", "a"), ("b", "a"), ("a", "tie"), ("b", "b"), ("tie", "tie"))
    expected = np.std(credits, ddof=1) / math.sqrt(len(credits))
    assert compute(rows)["accuracy_half_credit"].stderr == pytest.approx(expected, rel=1e-14)


def test_kappa_and_alpha_equal_those_of_statsmodels_and_krippendorff():
    rng = random.Random(6)
    for _ in range(20):
        rows = [row for row in random_rows(rng, 60) if row["verdict"]]
        judge = [ORDER[row["verdict"]] for row in rows]
        human = [ORDER[row["preferred"]] for row in rows]
        found = compute(rows)
        expected = {
            "verdict_kappa": statsmodels_kappa(judge, human),
            "verdict_kappa_linear": statsmodels_kappa(
                judge, human, labels=[0, 1, 2], weights="linear"
            ),
            "verdict_alpha": krippendorff.alpha([judge, human], level_of_measurement="nominal"),
        }
        for name, value in expected.items():
            assert found[name].value == pytest.approx(value, abs=1e-12), name
            assert found[name].n == len(rows)


def test_what_is_undefined_says_why():
    empty = METRIC.compute(METRIC.init())
    assert {e.reason for e in empty.values()} == {"n=0"}
    silent = dict(compute(verdicts((None, "a"), (None, "tie"))))
    assert silent.pop("accuracy_both_orders").reason == "not measured"
    assert silent.pop("position_consistency").reason == "not measured"
    assert {e.reason for e in silent.values()} == {"no valid example"}
    ties = compute(verdicts(("tie", "tie"), ("tie", "tie")))
    assert ties["accuracy_strict"].value == 1
    assert ties["accuracy_without_ties"].reason == "no valid example"
    assert ties["verdict_kappa"].reason == ties["verdict_alpha"].reason == "constant"
    once = compute([{"preferred": "a", "verdict_swapped": "a"}])
    assert once["accuracy_both_orders"].reason == "no valid example"


def test_full_agreement_has_no_interval_that_claims_certainty():
    found = compute(verdicts(("a", "a"), ("b", "b"), ("b", "b")))
    for name in ("verdict_kappa", "verdict_kappa_linear", "verdict_alpha"):
        assert (found[name].value, found[name].low, found[name].interval) == (1.0, None, None)


@pytest.mark.parametrize("word", ["A", "", "1", "Tie"])
@pytest.mark.parametrize("column", ["preferred", "verdict", "verdict_swapped"])
def test_other_words_are_refused(column: str, word: str):
    row = {"preferred": "a", "verdict": "a", "verdict_swapped": "a", column: word}
    with pytest.raises(DataError, match=f"{column}: '{word}' is not allowed; allowed: 'a', 'tie'"):
        compute([row])


def test_a_human_without_a_word_and_one_rating_of_two_are_refused():
    with pytest.raises(DataError, match="preferred: expected a text, found null"):
        compute([{"preferred": None, "verdict": "a"}, {"preferred": "a", "verdict": "a"}])
    with pytest.raises(DataError, match="rating_b: the other rating is missing"):
        compute([{"preferred": "a", "rating_b": 1.0}])


@pytest.mark.parametrize("cell", [[4, 0, 1, 1], [1, 4, 1, 1], [1, 1, 0, 1], [1, 1, 4, 1]])
def test_a_state_of_words_that_do_not_exist_is_refused(cell: list[int]):
    with pytest.raises(DataError, match="no row is"):
        METRIC.decode({"metric": "preference", "version": METRIC.version, "counts": [cell]})
