"""Accuracy: scorings, ties, what cannot be ranked, and relative improvement."""

import math
import random
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raveval.errors import DataError
from raveval.metrics import _kernels as kernels
from raveval.metrics.accuracy import METRIC, predicted
from raveval.types import Estimate

INF, NAN = math.inf, math.nan
COLUMNS = {
    "gold": pa.array([], pa.int32()),
    "logprob_nats": pa.array([], pa.list_(pa.float64())),
    "n_chars": pa.array([], pa.list_(pa.int32())),
    "scoring": pa.array([], pa.string()),
}


def compute(*rows: Mapping[str, Any]) -> Mapping[str, Estimate]:
    return METRIC.compute(METRIC.update(METRIC.init(), pa.Table.from_pylist(list(rows))))


def notes(*rows: Mapping[str, Any]) -> Mapping[str, int]:
    return METRIC.notes(METRIC.update(METRIC.init(), pa.Table.from_pylist(list(rows))))


def values(*rows: Mapping[str, Any]) -> Mapping[str, float | None]:
    return {name: estimate.value for name, estimate in compute(*rows).items()}


def example(gold: int | None, *logprob_nats: float | None, **columns: Any) -> dict[str, Any]:
    return {"gold": gold, "logprob_nats": list(logprob_nats), **columns}


def test_each_scoring_may_prefer_another_choice():
    row = {
        "logprob_nats": [-4.0, -5.0, -6.0, -7.0, -8.0],
        "n_tokens": [1, 2, 1, 1, 1],  # -2.5 for the second
        "n_chars": [1, 1, 9, 1, 1],  # -0.67 for the third
        "n_bytes": [1, 1, 1, 100, 1],  # -0.07 for the fourth
        "unconditional_nats": [-1.0, -1.0, -1.0, -1.0, -9.0],  # +1 for the last
    }
    best = {"raw": 0, "per_token": 1, "per_char": 2, "per_byte": 3, "unconditional": 4}
    for scoring, gold in best.items():
        found = values({**row, "gold": gold, "scoring": scoring})
        assert {name: found[f"accuracy_{name}"] for name in best} == {
            name: float(name == scoring) for name in best
        }
        assert found["accuracy"] == 1.0, "the primary scoring is the task's"
    assert values({**row, "gold": 0})["accuracy"] == 1.0, "raw where none is named"
    assert values({**row, "gold": 0, "scoring": None})["accuracy"] == 1.0


def test_a_tie_is_no_choice():
    rows = [example(0, -1.0, -1.0, -2.0), example(1, -1.0, -1.0, -2.0), example(2, -1, -1, -2)]
    found = compute(*rows)
    assert found["accuracy_raw"].value == 0.0
    tie_aware = found["accuracy_tie_aware"]
    assert tie_aware.value == pytest.approx(1 / 3)
    assert tie_aware.stderr == pytest.approx(np.std([0.5, 0.5, 0.0], ddof=1) / math.sqrt(3))
    assert notes(*rows) == {"accuracy_ties": 3, "accuracy_raw_ties": 3}


def test_a_tie_below_the_maximum_does_not_matter():
    found = compute(example(0, -1.0, -2.0, -2.0))
    assert (found["accuracy"].value, found["accuracy_tie_aware"].value) == (1.0, 1.0)
    assert notes(example(0, -1.0, -2.0, -2.0)) == {}


def test_all_impossible_is_a_tie_of_all_not_free_credit():
    row = example(0, -INF, -INF)
    assert values(row)["accuracy_raw"] == 0.0
    assert values(row)["accuracy_tie_aware"] == 0.5
    assert notes(row)["accuracy_raw_ties"] == 1


def test_one_impossible_choice_is_just_bad():
    assert values(example(1, -INF, -700.0))["accuracy_raw"] == 1.0


@pytest.mark.parametrize("bad", [NAN, None, INF])
def test_no_log_likelihood_makes_the_example_invalid(bad: float | None):
    found = compute(example(0, -1.0, bad), example(1, -2.0, -1.0))
    assert (found["accuracy_raw"].value, found["accuracy_raw"].n) == (1.0, 1)
    assert found["probability_mass"].n == 1
    assert notes(example(0, -1.0, bad)) == {
        "accuracy_not_a_number": 1,
        "accuracy_raw_not_a_number": 1,
    }
    alone = compute(example(0, -1.0, bad))
    assert alone["accuracy_raw"].reason == "no valid example"
    assert alone["probability_mass"].reason == "no valid example"


def test_a_length_of_zero_is_invalid_for_that_scoring_only():
    rows = [
        example(0, -1.0, 0.0, n_tokens=[1, 0], n_chars=[3, 4]),
        example(0, -1.0, -4.0, n_tokens=[1, 1], n_chars=[3, 4]),
    ]
    found = compute(*rows)
    assert (found["accuracy_per_token"].value, found["accuracy_per_token"].n) == (1.0, 1)
    assert found["accuracy_raw"].n == found["accuracy_per_char"].n == 2
    assert notes(*rows) == {"accuracy_per_token_zero_length": 1}


def test_an_unconditional_accuracy_of_exactly_zero_is_zero():
    found = compute(example(1, -1.0, -2.0, unconditional_nats=[-1.0, -1.0]))
    assert (found["accuracy_unconditional"].value, found["accuracy_unconditional"].n) == (0.0, 1)
    assert found["accuracy_unconditional"].reason is None


def test_no_example_has_no_mean_and_one_has_no_standard_error():
    assert METRIC.compute(METRIC.init())["accuracy"].reason == "n=0"
    one = compute(example(0, -1.0, -2.0))["accuracy"]
    assert (one.value, one.stderr) == (1.0, None)


def test_zero_over_zero_is_not_the_best_choice():
    """numpy's argmax would pick the NaN that 0/0 gives; -1/0 would never be picked."""
    for nats in (0.0, -0.0, -1.0, -INF):
        row = example(1, -1.0, nats, n_chars=[1, 0])
        found = compute(row)
        assert found["accuracy_per_char"].reason == "no valid example", nats
        assert notes(row)["accuracy_per_char_zero_length"] == 1, nats


def test_not_measured_is_said():
    found = compute(example(0, -1.0, -2.0), example(0, -1.0, -2.0, unconditional_nats=None))
    for scoring in ("per_token", "per_char", "per_byte", "unconditional"):
        assert found[f"accuracy_{scoring}"].value is None
        assert found[f"accuracy_{scoring}"].reason == "not measured"


def test_partly_measured_is_counted():
    rows = [example(0, -1.0, -2.0, n_tokens=[1, 1]), example(0, -1.0, -2.0, n_tokens=None)]
    assert compute(*rows)["accuracy_per_token"].n == 1
    assert notes(*rows) == {"accuracy_per_token_not_measured": 1}


def test_impossible_with_and_without_the_question_says_nothing():
    rows = [example(0, -INF, -1.0, unconditional_nats=[-INF, -1.0])]
    assert compute(*rows)["accuracy_unconditional"].reason == "no valid example"
    assert compute(*rows)["accuracy_raw"].value == 0.0


def test_a_primary_scoring_that_is_not_measured():
    assert (
        compute(example(0, -1.0, -2.0, scoring="unconditional"))["accuracy"].reason
        == "not measured"
    )


def test_no_gold_is_counted():
    rows = [example(None, -1.0, -2.0), example(0, -1.0, -2.0)]
    assert compute(*rows)["accuracy"].n == 1
    assert notes(*rows) == {"accuracy_no_gold": 1, "accuracy_raw_no_gold": 1}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (example(2, -1.0, -2.0), "gold is 2, but the example has 2 choices"),
        (example(-1, -1.0, -2.0), "gold is -1"),
        ({"gold": 0, "logprob_nats": pa.scalar([], pa.list_(pa.float64()))}, "at least one choice"),
        (example(0, -1.0, -2.0, n_tokens=[1]), "n_tokens has 1 values, but logprob_nats has 2"),
        (example(0, -1.0, -2.0, n_chars=[1, -2]), "n_chars has -2"),
        (example(0, -1.0, -2.0, n_tokens=[1, None]), "null inside"),
        (example(0, -1.0, -2.0, n_tokens=[1.5, 1.0]), "expected a list of integers"),
        (example(0, -1.0, -2.0, scoring="per_chr"), "did you mean 'per_char'"),
        ({"gold": "0", "logprob_nats": [-1.0]}, "gold: expected an integer, found string"),
        ({"gold": True, "logprob_nats": [-1.0]}, "gold: expected an integer, found bool"),
        ({"gold": 0, "logprob_nats": ["-1.0"]}, "expected a list of numbers"),
        ({"gold": 0, "logprob_nats": None}, "logprob_nats: expected a list of numbers, found null"),
        ({"gold": 0, "logprob_nats": -1.0}, "expected a list of numbers, found double"),
        ({"gold": 2**40, "logprob_nats": [-1.0]}, "gold: expected an integer"),
    ],
)
def test_what_cannot_be_is_refused(row: dict[str, Any], message: str):
    with pytest.raises(DataError, match=message):
        compute(row)


def test_relative_improvement_has_three_readings_once_k_varies():
    """The figures of 40 % K=2 (accuracy .8) and 60 % K=5 (accuracy .5), by hand."""
    two = [example(int(i >= 32), -1.0, -2.0) for i in range(40)]
    five = [example(int(i >= 30), -1.0, -2.0, -3.0, -3.0, -3.0) for i in range(60)]
    found = values(*two, *five)
    accuracy, baseline = Fraction(62, 100), Fraction(40, 200) + Fraction(60, 500)
    assert found["accuracy"] == 0.62
    assert found["random_baseline"] == float(baseline)
    assert found["relative_improvement"] == float((accuracy - baseline) / baseline)
    assert found["relative_improvement_per_example"] == float(Fraction(2 * 32 + 5 * 30, 100) - 1)
    assert found["relative_improvement_per_n_choices"] == float(
        (Fraction(8, 5) + Fraction(5, 2)) / 2 - 1
    )


def test_with_one_k_all_readings_and_their_intervals_agree():
    rows = [example(int(i % 3 == 0), -1.0, -2.0, -3.0, -4.0) for i in range(50)]
    found = compute(*rows)
    names = [n for n in found if n.startswith("relative_improvement")]
    assert len(names) == 3
    accuracy = found["accuracy"]
    assert accuracy.low is not None
    assert accuracy.high is not None
    assert accuracy.stderr is not None
    for name in names:
        e = found[name]
        assert (e.low, e.high) == pytest.approx((4 * accuracy.low - 1, 4 * accuracy.high - 1))
        assert e.stderr == pytest.approx(4 * accuracy.stderr)


def test_probability_mass_is_exact():
    """numpy's exponential may depend on where an element lies; ours must not."""
    rng = random.Random(5)
    rows = [
        example(0, *(-rng.expovariate(0.3) for _ in range(rng.randint(1, 9)))) for _ in range(500)
    ]
    masses = []
    for row in rows:
        masses.append(0.0)
        for nats in row["logprob_nats"]:
            masses[-1] += math.exp(nats)
    found = compute(*rows)["probability_mass"]
    assert found.value == float(sum(map(Fraction, masses)) / 500)
    assert found.stderr == pytest.approx(np.std(masses, ddof=1) / math.sqrt(500), rel=1e-12)


def test_a_model_that_always_answers_the_same_is_seen():
    always = [example(gold, -1.0, -2.0, -3.0, -4.0) for gold in (0, 1, 2, 3) * 5]
    share = compute(*always)["most_frequent_index_share"]
    assert (share.value, share.n, share.higher_is_better) == (1.0, 20, None)
    assert (share.stderr, share.interval, share.no_interval) == (None, None, "no method")
    assert compute(*always)["accuracy"].value == 0.25


def test_the_predicted_indices_are_counted_where_there_is_a_single_best_choice():
    rows = [
        example(0, -1.0, -2.0, -3.0),
        example(1, -1.0, -2.0, -3.0),
        example(1, -2.0, -1.0, -3.0),
        example(1, -2.0, -2.0, -1.0),
        example(1, -1.0, -1.0, -3.0),  # a tie
        example(1, -1.0, NAN, -3.0),
        example(None, -1.0, -2.0, -3.0),
        example(0, -1.0, -2.0, n_chars=[1, 9], scoring="per_char"),  # predicts 1
        example(0, -1.0, -2.0, n_chars=[0, 9], scoring="per_char"),  # cannot be ranked
    ]
    table = pa.Table.from_pylist(rows, schema=pa.table(COLUMNS).schema)
    state = METRIC.update(METRIC.init(), table)
    share = METRIC.compute(state)["most_frequent_index_share"]
    assert (share.value, share.n) == (2 / 5, 5)
    assert state.predicted == {(0,): 2, (1,): 2, (2,): 1}
    assert compute(rows[4])["most_frequent_index_share"].reason == "no valid example"
    assert compute(rows[5])["most_frequent_index_share"].reason == "no valid example"


def random_table(n: int, seed: int) -> pa.Table:
    """Examples with everything in them that can be, tied and odd values among them."""
    rng = np.random.default_rng(seed)
    k = rng.choice([1, 2, 4, 4, 4, 9], n)
    offsets = pa.array(np.concatenate([[0], np.cumsum(k)]), pa.int32())
    size = int(k.sum())

    def lists(values: np.ndarray, kind: pa.DataType, share_of_nulls: float = 0.0) -> pa.Array:
        mask = pa.array(rng.random(n) < share_of_nulls) if share_of_nulls else None
        full = pa.ListArray.from_arrays(offsets, pa.array(values, kind))
        return full if mask is None else pc.if_else(mask, pa.scalar(None, full.type), full)

    def log_likelihoods() -> np.ndarray:
        odd = rng.choice([-INF, NAN, INF, 0.0, -0.0], size)
        return np.where(rng.random(size) < 0.02, odd, -rng.integers(0, 60, size) / 7)

    gold = np.where(rng.random(n) < 0.05, -1, rng.integers(0, 9, n) % k)
    lengths = [np.where(rng.random(size) < 0.01, 0, rng.integers(1, 5, size)) for _ in range(3)]
    scorings = ["raw", "per_char", "unconditional", "per_token", "per_byte", None]
    return pa.table(
        {
            "gold": pa.array(gold, pa.int32(), mask=gold < 0),
            "logprob_nats": lists(log_likelihoods(), pa.float64()),
            "unconditional_nats": lists(log_likelihoods(), pa.float64(), 0.1),
            "n_tokens": lists(lengths[0], pa.int32(), 0.1),
            "n_chars": lists(lengths[1], pa.int32()),
            "n_bytes": lists(lengths[2], pa.int64()),
            "scoring": pa.array([scorings[i] for i in rng.integers(0, 6, n)]),
        }
    )


@pytest.mark.parametrize("columns", [[], ["n_chars", "scoring"], ["unconditional_nats"]])
def test_a_large_table_gives_the_bits_of_its_parts(columns: list[str]):
    """The whole is ranked by the kernels where numba is installed, the parts never are."""
    table = random_table(kernels.ROWS_WORTH_COMPILING + 1, seed=8).drop_columns(columns)
    whole, parts = METRIC.update(METRIC.init(), table), METRIC.init()
    for start in range(0, len(table), 500):
        parts = METRIC.update(parts, table.slice(start, 500))
    assert whole == parts
    if not columns:
        assert len({scoring for scoring, *_ in whole.ranked}) == 6
        possible = {(code, reason) for code in range(6) for reason in range(4)}
        # raw has no length and is always there, as are chars and bytes; unconditional has no length
        assert possible - whole.invalid.keys() == {(1, 0), (1, 3), (3, 0), (4, 0), (5, 3)}
    found = METRIC.contributions(table)
    piecewise = [METRIC.contributions(table.slice(i, 500)) for i in range(0, len(table), 500)]
    for name, (x, u) in found.items():
        np.testing.assert_array_equal(x, np.concatenate([p[name].x for p in piecewise]))
        np.testing.assert_array_equal(u, np.concatenate([p[name].u for p in piecewise]))
    chosen = pa.concat_arrays([predicted(table.slice(i, 500)) for i in range(0, len(table), 500)])
    assert predicted(table).equals(chosen)


@pytest.mark.parametrize(
    ("key", "rows", "message"),
    [
        ("ranked", [[6, 2, 1, 1, 1]], "no example is"),
        ("ranked", [[0, 2, 3, 1, 1]], "no example is"),
        ("ranked", [[0, 2, 1, 2, 1]], "no example is"),
        ("invalid", [[0, 4, 1]], "there is no reason"),
        ("predicted", [[0, 1]], "not the indices"),
        ("predicted", [[0, 1], [2, 1]], "not the indices"),
        ("predicted", [[0, 2], [1, 1]], "not the indices"),
    ],
)
def test_a_state_that_no_examples_have_is_refused(key: str, rows: list[list[int]], message: str):
    table = pa.Table.from_pylist([example(0, -1.0, -2.0), example(0, -2.0, -1.0)])
    content = METRIC.encode(METRIC.update(METRIC.init(), table))
    assert METRIC.decode(content)
    with pytest.raises(DataError, match=message):
        METRIC.decode({**content, key: rows})


def test_more_choices_than_a_count_table_holds():
    """Beyond 2^16 cells the rows are sorted and counted."""
    rows = [example(i, *(-float(j) for j in range(300))) for i in (0, 1, 0)]
    rows.append(example(0, *([-1.0] * 300)))
    state = METRIC.update(METRIC.init(), pa.Table.from_pylist(rows))
    assert {key[1:]: n for key, n in state.ranked.items() if key[0] == 0} == {
        (300, 1, 1): 2,
        (300, 1, 0): 1,
        (300, 300, 1): 1,
    }


def test_the_choice_of_each_example():
    rows = [
        example(0, -1.0, -2.0, n_chars=[1, 9]),
        example(0, -1.0, -2.0, n_chars=[1, 9], scoring="per_char"),
        example(0, -1.0, -1.0, n_chars=[1, 1]),
        example(0, -1.0, NAN, n_chars=[1, 1]),
        example(0, -1.0, -2.0, n_chars=[1, 0], scoring="per_char"),
    ]
    table = pa.Table.from_pylist(rows, schema=pa.table(COLUMNS).schema)
    assert predicted(table).to_pylist() == [0, 1, None, None, None]
    assert predicted(table.slice(0, 0)).to_pylist() == []


def test_contributions_add_up_to_the_estimates():
    rng = random.Random(11)
    rows = []
    for _ in range(300):
        k = rng.choice([2, 4, 5])
        lengths = [rng.choice([0, 1, 2, 3, 4]) if rng.random() < 0.1 else 2 for _ in range(k)]
        row = example(
            rng.choice([None, *range(k)]),
            *(rng.choice([-1.0, -1.5, -2.0, -INF, NAN]) for _ in range(k)),
            n_chars=lengths,
            scoring=rng.choice(["raw", "per_char", "per_token", None]),
        )
        rows.append(row)
    table = pa.Table.from_pylist(rows)
    found, estimates = METRIC.contributions(table), compute(*rows)
    assert list(found) == list(METRIC.ratios)
    for name, ratio in METRIC.ratios.items():
        x, u = found[name]
        assert x.shape == u.shape == (300,)
        assert np.isfinite([x, u]).all()
        assert not x[u == 0].any(), "an example that is not ranked adds nothing"
        assert (u > 0).sum() == estimates[name].n, name
        if estimates[name].value is None:
            assert not u.any(), name
        else:
            assert ratio.value(x.sum() / u.sum()) == pytest.approx(estimates[name].value, abs=1e-12)
    assert estimates["accuracy"].n not in (0, 300)
    assert estimates["accuracy_per_token"].value is None


def test_contributions_of_no_examples():
    found = METRIC.contributions(pa.table(COLUMNS))
    assert all(x.shape == u.shape == (0,) for x, u in found.values())


def plain_outcome(row: Mapping[str, Any]) -> tuple[bool, Fraction]:
    """Strict correctness and tie-aware credit of one example, one choice after another."""
    scores = row["logprob_nats"]
    best = [i for i, s in enumerate(scores) if s == max(scores)]
    return best == [row["gold"]], Fraction(row["gold"] in best, len(best))


@settings(deadline=None, derandomize=True)
@given(
    st.lists(
        st.integers(1, 6).flatmap(
            lambda k: st.builds(
                lambda gold, scores: example(gold, *scores),
                st.integers(0, k - 1),
                st.lists(st.sampled_from([-1.0, -2.0, -3.0, -INF]), min_size=k, max_size=k),
            )
        ),
        min_size=1,
        max_size=30,
    )
)
def test_against_a_loop(rows: list[dict[str, Any]]):
    outcomes = [plain_outcome(row) for row in rows]
    found = values(*rows)
    assert found["accuracy_raw"] == sum(correct for correct, _ in outcomes) / len(rows)
    assert found["accuracy_tie_aware"] == float(sum(credit for _, credit in outcomes) / len(rows))


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[-1.0, -2.0]], pa.large_list(pa.float32())),
        pa.array([[-1.0, -2.0]], pa.list_(pa.float64(), 2)),
        pa.array([[-1, -2]], pa.list_(pa.int64())),
        pa.array([[0.0, 0.0], [-1.0, -2.0]], pa.list_(pa.float64())).slice(1),
    ],
)
def test_any_arrow_layout_of_the_same_numbers(column: pa.Array):
    table = pa.table({"gold": pa.array([0], pa.int64()), "logprob_nats": column})
    found = METRIC.compute(METRIC.update(METRIC.init(), table))
    assert found["accuracy_raw"].value == 1.0
    assert found["probability_mass"].value == math.exp(-1) + math.exp(-2)


def test_a_choice_impossible_without_the_question_has_no_gain():
    row = {**example(0, -3.0, -1.0), "unconditional_nats": [-INF, -1.0]}
    found = compute(row)
    assert found["accuracy_unconditional"].reason == "no valid example"
    assert found["accuracy_raw"].value == 0.0


def test_a_negative_log_likelihood_is_refused():
    with pytest.raises(DataError, match=r"logprob_nats has 3\.0: .* has the other sign"):
        compute(example(0, 3.0, -2.0))
