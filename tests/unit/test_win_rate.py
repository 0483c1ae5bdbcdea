"""Win rates of one response over another: counts by hand, intervals against brute force."""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import multinomial, norm
from scipy.stats import t as student

from raveval.comparison import Comparison, Verdict, compare
from raveval.errors import DataError
from raveval.evaluate import load_metric
from raveval.measurement import measure
from raveval.metrics._clusters import Clustered
from raveval.metrics._half_credits import Credits, credit_mean, share_of_answers, tango
from raveval.metrics._intervals import Z95, wilson
from raveval.metrics.win_rate import METRIC
from raveval.types import Estimate
from tests.run_directories import write_run

Row = dict[str, Any]
HALF = Fraction(1, 2)


def pairs(*verdicts: tuple[str | None, str | None]) -> list[Row]:
    return [{"verdict": given, "verdict_swapped": swapped} for given, swapped in verdicts]


def state_of(rows: list[Row]) -> Any:
    return METRIC.update(METRIC.init(), pa.Table.from_pylist(rows))


def compute(rows: list[Row]) -> Mapping[str, Estimate]:
    return METRIC.compute(state_of(rows))


def random_pairs(rng: random.Random, n: int, words: str = "aaabbt-") -> list[Row]:
    """Pairs of a judge that repeats itself half of the time; - is no verdict, t a tie."""
    letters = {"a": "a", "b": "b", "t": "tie", "-": None}
    rows = []
    for _ in range(n):
        given = letters[rng.choice(words)]
        swapped = given if rng.random() < 0.5 else letters[rng.choice(words)]
        rows.append({"verdict": given, "verdict_swapped": swapped})
    return rows


class TestNumbers:
    def test_by_hand(self):
        rows = pairs(
            *(("a", "a"), ("a", "a"), ("a", "a"), ("b", "b")),
            *(("a", "b"), ("a", "b"), ("b", "a")),  # the first shown won twice, the second once
            *(("a", None), ("b", None), (None, "b"), (None, None)),
        )
        found = compute(rows)
        assert {name: (e.value, e.n) for name, e in found.items()} == {
            "win_rate": ((3 + 3 / 2) / 7, 7),
            "win_rate_single_order": (6 / 9, 9),
            "win_share": (3 / 7, 7),
            "tie_share": (3 / 7, 7),
            "loss_share": (1 / 7, 7),
            "order_consistency": (4 / 7, 7),
            # of 17 verdicts: of 14 in both orders 4 + 4, then a in the given order, b in the other
            "first_position_rate": (10 / 17, 10),
        }
        assert {name: e.higher_is_better for name, e in found.items()} == {
            "win_rate": True,
            "win_rate_single_order": True,
            "win_share": True,
            "tie_share": None,
            "loss_share": False,
            "order_consistency": True,
            "first_position_rate": None,
        }
        assert METRIC.notes(state_of(rows)) == {
            "judged_in_both_orders": 7,
            "judged_in_one_order": 3,
            "judged_in_neither_order": 1,
            "first_shown_won_both": 2,
            "second_shown_won_both": 1,
        }

    def test_a_judge_may_call_a_tie(self):
        rows = pairs(("tie", "tie"), ("a", "tie"), ("tie", "b"), ("a", "a"), ("tie", None))
        found = compute(rows)
        assert {name: (e.value, e.n) for name, e in found.items()} == {
            "win_rate": ((1 + 3 / 2) / 4, 4),
            "win_rate_single_order": ((2 + 3 / 2) / 5, 5),
            "win_share": (1 / 4, 4),
            "tie_share": (3 / 4, 4),
            "loss_share": (0.0, 4),
            "order_consistency": (2 / 4, 4),
            "first_position_rate": (3 / 4, 3),  # ties are no preference
        }
        notes = METRIC.notes(state_of(rows))
        assert notes == {"judged_in_both_orders": 4, "judged_in_one_order": 1, "tie_verdicts": 5}

    def test_against_a_count_pair_by_pair(self):
        rng = random.Random(5)
        for _ in range(30):
            rows = random_pairs(rng, rng.randint(1, 60))
            found, table = compute(rows), pa.Table.from_pylist(rows)
            contributions = METRIC.contributions(table)
            expected = dict(means_of(rows))
            assert set(contributions) == set(METRIC.ratios) == set(found) == set(expected)
            for name, (credits, n_units, n_pairs) in expected.items():
                estimate = found[name]
                assert (contributions[name].x.sum(), contributions[name].u.sum()) == (
                    sum(credits),
                    n_units,
                )
                if n_units == 0:
                    assert (estimate.reason, estimate.n) == ("no valid example", 0)
                    continue
                assert estimate.value == float(sum(credits) / n_units)
                assert estimate.n == n_pairs
                assert estimate.low is not None
                assert estimate.high is not None
                assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1

    def test_consistency_is_that_of_preference(self):
        rows = [{**row, "preferred": "a"} for row in random_pairs(random.Random(6), 200)]
        preference = load_metric("preference")
        state = preference.update(preference.init(), pa.Table.from_pylist(rows))
        expected = preference.compute(state)["position_consistency"]
        assert compute(rows)["order_consistency"] == expected

    def test_exchanging_the_responses_turns_the_numbers_round(self):
        other = {"a": "b", "b": "a", "tie": "tie", None: None}
        rows = random_pairs(random.Random(7), 300)
        turned = pairs(*((other[r["verdict"]], other[r["verdict_swapped"]]) for r in rows))
        a, b = compute(rows), compute(turned)
        for name in ("win_rate", "win_rate_single_order", "first_position_rate"):
            there, back = ((e[name].value, e[name].low, e[name].high) for e in (a, b))
            assert there[0] is not None
            assert there[1] is not None
            assert there[2] is not None
            expected = (1 - there[0], 1 - there[2], 1 - there[1])
            assert back == pytest.approx(expected, abs=1e-15)
        assert a["win_share"].value == b["loss_share"].value
        assert a["tie_share"].value == b["tie_share"].value

    def test_what_is_undefined_says_why(self):
        assert {e.reason for e in METRIC.compute(METRIC.init()).values()} == {"n=0"}
        once = [{"verdict": "a"}, {"verdict": "b"}, {"verdict": "a"}]
        for rows in (once, pairs(("a", None), ("b", None), ("a", None))):
            found = compute(rows)
            assert {name: e.reason for name, e in found.items() if e.reason} == dict.fromkeys(
                (*("win_rate", "win_share", "tie_share", "loss_share"), "order_consistency"),
                "not measured",
            )
            assert found["win_rate_single_order"].value == pytest.approx(2 / 3)
            assert found["first_position_rate"].value == pytest.approx(2 / 3)
        never_both = compute(pairs(("a", None), (None, "b")))
        assert never_both["win_rate"].reason == "no valid example"
        assert never_both["first_position_rate"].value == 1.0
        silent = compute(pairs((None, None)))
        assert silent["win_rate"].reason == "not measured"
        assert silent["win_rate_single_order"].reason == "no valid example"
        assert silent["first_position_rate"].reason == "no valid example"
        ties = compute(pairs(("tie", "tie")))
        assert (ties["win_rate"].value, ties["first_position_rate"].value) == (0.5, None)


def means_of(rows: list[Row]) -> Iterator[tuple[str, tuple[list[Fraction], int, int]]]:
    """Yield for each name the credits, what they are divided by, and the pairs it is about."""
    worth = {"a": Fraction(1), "tie": HALF, "b": Fraction(0)}
    both = [(r["verdict"], r["verdict_swapped"]) for r in rows]
    given = [verdict for verdict, _ in both if verdict]
    both = [pair for pair in both if None not in pair]
    credits = [worth[x] if x == y else HALF for x, y in both]
    yield "win_rate", (credits, len(both), len(both))
    yield "win_rate_single_order", ([worth[x] for x in given], len(given), len(given))
    for name, credit in (("win_share", 1), ("tie_share", HALF), ("loss_share", 0)):
        yield name, ([Fraction(c == credit) for c in credits], len(both), len(both))
    yield "order_consistency", ([Fraction(x == y) for x, y in both], len(both), len(both))
    preferred = [
        [
            Fraction(verdict == first)
            for verdict, first in ((row["verdict"], "a"), (row["verdict_swapped"], "b"))
            if verdict in ("a", "b")
        ]
        for row in rows
    ]
    of_verdicts = [credit for each in preferred for credit in each]
    yield "first_position_rate", (of_verdicts, len(of_verdicts), sum(map(bool, preferred)))


def score_statistic(credits: Credits, mean: float) -> float:
    """(seen - mean) / error, where the error is that of the likeliest shares with this mean."""
    n = sum(credits)
    shift = 2 * mean - 1  # the share of full credits less that of none

    def surprise(none: float) -> float:
        shares = (none + shift, 1 - 2 * none - shift, none)
        return -sum(
            count * math.log(max(share, 1e-300))
            for count, share in zip(credits, shares, strict=True)
            if count
        )

    ends = (max(0.0, -shift), (1 - shift) / 2)
    found = minimize_scalar(surprise, bounds=ends, method="bounded", options={"xatol": 1e-13})
    none = min((float(found.x), *ends), key=surprise)
    variance = (none + shift) + (1 - 2 * none - shift) / 4 - mean**2
    seen = (credits.full + credits.half / 2) / n
    return (seen - mean) / math.sqrt(variance / n)


class TestIntervals:
    def test_without_half_credits_it_is_wilson_s(self):
        for n in (1, 2, 10, 333):
            for full in {0, 1, n // 3, n - 1, n}:
                expected = wilson(Fraction(full, n), n)
                assert tango(Credits(full, 0, n - full)) == pytest.approx(expected, abs=1e-14)

    @pytest.mark.parametrize(
        ("credits", "expected"),
        [
            # patients before and after a transplantation (Bentur et al. 2009), as Fagerland,
            # Lydersen and Laake report Tango's interval, Statistics in Medicine 33 (2014) 2850-2875
            (Credits(1, 13, 7), (-0.517, -0.026)),
            # closed form where nothing but ties is seen: z^2 / (n + z^2)
            (Credits(0, 30, 0), (-(Z95**2) / (30 + Z95**2), Z95**2 / (30 + Z95**2))),
        ],
    )
    def test_as_published(self, credits: Credits, expected: tuple[float, float]):
        low, high = (2 * end - 1 for end in tango(credits))
        assert (low, high) == pytest.approx(expected, abs=5e-4)

    @pytest.mark.parametrize("seed", range(12))
    def test_against_a_search_for_the_likeliest_shares(self, seed: int):
        rng = random.Random(seed)
        credits = Credits(*(rng.choice([0, 1, 2, 7, 30]) for _ in range(3)))
        n = sum(credits)
        if n == 0:
            credits, n = Credits(1, 1, 1), 3
        seen = (credits.full + credits.half / 2) / n
        low, high = tango(credits)
        z = norm.ppf(0.975)
        if low > 0:
            expected = brentq(lambda m: score_statistic(credits, m) - z, 1e-9, seen - 1e-9)
            assert low == pytest.approx(expected, abs=1e-6)
        if high < 1:
            expected = brentq(lambda m: score_statistic(credits, m) + z, seen + 1e-9, 1 - 1e-9)
            assert high == pytest.approx(expected, abs=1e-6)
        # what lies inside is kept, and what lies outside is refused
        for mean in np.linspace(0.005, 0.995, 67).tolist():
            is_kept = abs(score_statistic(credits, mean)) <= z
            if min(abs(mean - low), abs(mean - high)) > 1e-5:
                assert is_kept == (low <= mean <= high), mean

    @pytest.mark.parametrize("n", [12, 30, 60])
    def test_coverage_is_as_promised_whatever_the_share_of_ties(self, n: int):
        """The exact one: the probability of every outcome of n pairs, summed."""
        outcomes = [Credits(w, t, n - w - t) for w in range(n + 1) for t in range(n + 1 - w)]
        ends = np.array([tango(each) for each in outcomes])
        found = {}
        for shares in (
            *((0.45, 0.3, 0.25), (0.3, 0.4, 0.3), (0.2, 0.6, 0.2), (0.6, 0.1, 0.3)),
            *((0.7, 0.2, 0.1), (0.1, 0.1, 0.8), (0.8, 0.15, 0.05)),
        ):
            truth = shares[0] + shares[1] / 2
            is_held = (ends[:, 0] <= truth) & (truth <= ends[:, 1])
            found[shares] = float(multinomial.pmf(outcomes, n, shares)[is_held].sum())
        assert all(0.93 <= share <= 0.985 for share in found.values()), found
        assert 0.945 <= np.mean(list(found.values())) <= 0.965, found

    def test_the_standard_error_is_that_of_the_credits(self):
        credits = [1.0] * 5 + [0.5] * 3 + [0.0] * 2
        found = credit_mean(Credits(5, 3, 2), higher_is_better=True)
        assert found.stderr == pytest.approx(np.std(credits, ddof=1) / math.sqrt(10), rel=1e-14)
        assert credit_mean(Credits(1, 0, 0), higher_is_better=True).stderr is None

    def test_of_verdicts_that_come_in_twos_and_alone(self):
        twos, alone = Credits(6, 20, 2), Credits(9, 0, 3)
        found = share_of_answers(twos, alone)
        x = np.repeat([2.0, 1.0, 0.0, 1.0, 0.0], [6, 20, 2, 9, 3])
        u = np.repeat([2.0, 2.0, 2.0, 1.0, 1.0], [6, 20, 2, 9, 3])
        share = x.sum() / u.sum()
        assert (found.value, found.n, found.interval) == (share, 40, "mover95")
        residuals = ((x - share * u) ** 2).sum()
        assert found.stderr == pytest.approx(math.sqrt(40 / 39 * residuals) / 68, rel=1e-13)
        # independent errors add up in squares, so to less than their sum
        low = (56 * tango(twos).low + 12 * wilson(Fraction(9, 12), 12).low) / 68
        high = (56 * tango(twos).high + 12 * wilson(Fraction(9, 12), 12).high) / 68
        assert found.low is not None
        assert found.high is not None
        assert low < found.low < share < found.high < high
        assert share_of_answers(twos, Credits(0, 0, 0)).interval == "tango95"
        assert share_of_answers(Credits(0, 0, 0), alone).interval == "wilson95"
        only = share_of_answers(Credits(0, 0, 0), alone)
        assert (only.low, only.high) == wilson(Fraction(9, 12), 12)

    def test_of_verdicts_that_come_in_twos_and_alone_covers(self):
        """Of 1000 intervals 950 ± 7 cover; ± 1.5 % more is the method's own, at n this small."""
        rng = np.random.default_rng(4)
        covered = 0
        for _ in range(1000):
            twos = Credits(*rng.multinomial(30, (0.2, 0.7, 0.1)).tolist())
            first = int(rng.binomial(12, 0.7))
            found = share_of_answers(twos, Credits(first, 0, 12 - first))
            assert found.low is not None
            assert found.high is not None
            # 60 verdicts at .55 and 12 at .7
            covered += found.low <= (60 * 0.55 + 12 * 0.7) / 72 <= found.high
        assert 0.92 <= covered / 1000 <= 0.98

    def test_an_unanimous_judge_leaves_room_for_doubt(self):
        found = compute(pairs(*[("a", "a")] * 10))
        low = pytest.approx(wilson(Fraction(1), 10).low)
        assert (found["win_rate"].value, found["win_rate"].high) == (1.0, 1.0)
        assert found["win_rate"].low == low
        first = found["first_position_rate"]
        assert (first.value, first.stderr) == (0.5, 0.0)
        assert (first.low, first.high) == pytest.approx(
            (0.5 - 0.5 * Z95**2 / (10 + Z95**2), 0.5 + 0.5 * Z95**2 / (10 + Z95**2))
        )


class TestClusters:
    def found(self, rows: list[Row]) -> Mapping[str, Estimate]:
        metric = Clustered(METRIC)
        return metric.compute(metric.update(metric.init(), pa.Table.from_pylist(rows)))

    def rows(self, per_cluster: list[list[tuple[str, str]]]) -> list[Row]:
        return [
            {"verdict": given, "verdict_swapped": swapped, "cluster": f"c{i}"}
            for i, verdicts in enumerate(per_cluster)
            for given, swapped in verdicts
        ]

    def test_the_interval_rests_on_the_spread_between_clusters(self):
        kinds = {1.0: ("a", "a"), 0.5: ("a", "b"), 0.0: ("b", "b")}
        rng = np.random.default_rng(3)
        base = rng.choice([1.0, 0.5, 0.0], 12, p=[0.5, 0.3, 0.2])
        credits = [
            [float(c) if rng.random() < 0.7 else float(rng.choice([1.0, 0.5, 0.0]))] * k
            for c, k in zip(base, rng.integers(1, 7, 12).tolist(), strict=True)
        ]
        e = self.found(self.rows([[kinds[c] for c in each] for each in credits]))["win_rate"]
        x, n = np.array([sum(each) for each in credits]), np.array([len(c) for c in credits])
        p = x.sum() / n.sum()
        stderr = math.sqrt(12 / 11 * ((x - p * n) ** 2).sum()) / n.sum()
        effective = p * (1 - p) / stderr**2 * (Z95 / student.ppf(0.975, 11)) ** 2
        assert (e.value, e.stderr) == pytest.approx((p, stderr), rel=1e-12)
        assert e.interval == "cluster-wilson95"
        assert (e.low, e.high) == pytest.approx(wilson(Fraction(p), effective), rel=1e-9)

    def test_ties_may_be_worth_more_than_one_example_of_0_and_1(self):
        """What bounds alike clusters is the spread of credits, not of right answers."""
        each = [("a", "a"), ("a", "b"), ("b", "a"), ("a", "b"), ("b", "b")]
        e = self.found(self.rows([each] * 40))["win_rate"]
        assert (e.value, e.stderr) == (0.5, 0.0)  # no spread: as many examples as clusters
        assert (e.low, e.high) == pytest.approx(
            wilson(Fraction(1, 2), 40 * (Z95 / student.ppf(0.975, 39)) ** 2)
        )
        mixed = [each, [("a", "a"), ("a", "b"), ("b", "a"), ("a", "b"), ("a", "b")]] * 20
        e = self.found(self.rows(mixed))["win_rate"]
        alone = compute(self.rows(mixed))["win_rate"]
        assert e.value == alone.value
        assert alone.value is not None
        assert alone.stderr is not None
        most = alone.value * (1 - alone.value) / alone.stderr**2
        assert most > 2 * 200
        shrunk = most * (Z95 / student.ppf(0.975, 39)) ** 2
        assert (e.low, e.high) == pytest.approx(wilson(Fraction(alone.value), shrunk), rel=1e-9)

    def test_unanimous_clusters_are_as_many_examples(self):
        e = self.found(self.rows([[("a", "a")] * 5] * 8))["win_rate"]
        shrunk = 8 * (Z95 / student.ppf(0.975, 7)) ** 2
        assert (e.value, e.stderr, e.high, e.interval) == (1.0, 0.0, 1.0, "cluster-wilson95")
        assert e.low == pytest.approx(wilson(Fraction(1), shrunk).low, rel=1e-9)


class TestComparison:
    @pytest.fixture
    def two(self, tmp_path):
        def make(a: list[Row], b: list[Row], metrics: Sequence[str] = ()) -> Comparison:
            runs = [
                write_run(
                    tmp_path / name,
                    {"t": [{"id": f"q{i}", "preferred": "a", **row} for i, row in enumerate(rows)]},
                    protocol="relative_grading",
                    metrics=["win_rate"],
                )
                for name, rows in (("a", a), ("b", b))
            ]
            return compare(runs, metrics=metrics)

        return make

    def test_win_rate_is_what_runs_are_compared_by(self, two):
        rng = random.Random(8)
        a, b = random_pairs(rng, 150, "aabb"), random_pairs(rng, 150, "aaaab")
        comparison = two(a, b)
        assert [d.metric for d in comparison.family] == ["win_rate"]
        (d,) = comparison.family
        worth = {"a": 1.0, "b": 0.0}
        x, y = (
            np.array(
                [worth[r["verdict"]] if r["verdict"] == r["verdict_swapped"] else 0.5 for r in rows]
            )
            for rows in (a, b)
        )
        assert (d.baseline, d.value, d.n) == (x.mean(), y.mean(), 150)
        assert d.difference == pytest.approx((y - x).mean())
        stderr = np.std(y - x, ddof=1) / math.sqrt(150)
        assert (d.test, d.stderr) == ("paired-bootstrap", pytest.approx(stderr, rel=1e-9))
        assert d.low is not None
        assert d.high is not None
        half_width = student.ppf(0.975, 149) * stderr
        assert (d.low, d.high) == pytest.approx(
            (d.difference - half_width, d.difference + half_width), abs=0.1 * half_width
        )
        assert d.verdict == Verdict.BETTER

    def test_shares_of_pairs_are_tested_exactly_and_fewer_losses_are_better(self, two):
        a = pairs(*[("b", "b")] * 30, *[("a", "a")] * 30)
        b = pairs(*[("a", "b")] * 25, *[("b", "b")] * 5, *[("a", "a")] * 30)
        comparison = two(a, b, metrics=["loss_share", "tie_share", "win_rate"])
        losses, ties, wins = (
            next(d for d in comparison.family if d.metric == name)
            for name in ("loss_share", "tie_share", "win_rate")
        )
        assert (losses.test, losses.n_only_baseline, losses.n_only_run) == ("mcnemar-exact", 25, 0)
        assert losses.verdict == Verdict.BETTER
        assert ties.verdict == Verdict.DIFFERENT
        assert wins.difference == pytest.approx(12.5 / 60)

    def test_a_pair_that_one_run_has_no_verdict_on_is_left_out_of_both(self, two):
        a = pairs(*[("a", None)] * 4, *[("a", "a")] * 8, *[("b", "b")] * 8)
        b = pairs(*[("b", "b")] * 4, *[("a", "a")] * 16)
        comparison = two(a, b, metrics=["win_rate", "first_position_rate"])
        d, first = comparison.family
        assert (d.metric, d.n, d.baseline, d.value) == ("win_rate", 16, 0.5, 1.0)
        assert (first.n, first.baseline) == (20, 20 / 36)

    def test_a_tie_verdict_of_one_run_hides_nothing(self, two):
        """Pairs that a judge calls ties in one run say in the other which place it likes."""
        a = pairs(*[("a", "a")] * 10, *[("a", "b")] * 10)
        b = pairs(*[("tie", "tie")] * 10, *[("a", "b")] * 10)
        (d,) = two(a, b, metrics=["first_position_rate"]).family
        assert (d.n, d.baseline, d.value) == (20, 30 / 40, 1.0)
        assert d.has_other_denominators


def test_other_words_are_refused():
    for column, word in (("verdict", "A"), ("verdict_swapped", "c")):
        row = {"verdict": "a", "verdict_swapped": "a", column: word}
        with pytest.raises(DataError, match=f"{column}: '{word}' is not allowed; allowed: 'a',"):
            compute([row])
    with pytest.raises(DataError, match="verdict: expected a text, found int64"):
        compute([{"verdict": 1}])
    with pytest.raises(DataError, match="verdict: no such column"):
        compute([{"verdict_swapped": "a"}])


@pytest.mark.parametrize("cell", [[4, 0, 1], [0, 4, 1], [1, 1, 0], [1, 1], [1, 1, 1, 1]])
def test_a_state_of_pairs_that_do_not_exist_is_refused(cell: list[int]):
    with pytest.raises(DataError, match="state of win_rate"):
        METRIC.decode({"metric": "win_rate", "version": METRIC.version, "counts": [cell]})


def test_a_file_of_a_judge_s_verdicts_is_measured():
    """Other names and words of other tools come through --map; groups have their own rate."""
    table = pa.table(
        {
            "winner": ["a", "b", "a", "a"],
            "winner_swapped": ["a", "b", "b", None],
            "category": ["math", "math", "writing", "writing"],
        }
    )
    columns = {
        "verdict": "winner",
        "verdict_swapped": "winner_swapped",
        "group": "category",
    }
    found = measure("win_rate", table, columns=columns)
    assert found.metrics["win_rate"].value == 0.5
    assert found.groups["writing"]["win_rate"].value == 0.5
    assert found.notes["judged_in_one_order"] == 1
