"""The sequential test: it may be looked at as often as one likes, and only at complete prefixes."""

import math
from fractions import Fraction
from math import comb

import numpy as np
import pytest
from scipy import integrate

from raveval.errors import ConfigError, DataError, MismatchError
from raveval.sequential import compare_prefix, log_e_values, sequential_test
from tests.run_directories import choice, document, write_run

ALPHA = 0.05


def paths(win_rate: float, n_pairs: int, repetitions: int, seed: int):
    """Counts of discordant pairs after each of them, for many experiments."""
    wins = np.random.default_rng(seed).random((repetitions, n_pairs)) < win_rate
    c = wins.cumsum(axis=1).astype(float)
    return np.arange(1, n_pairs + 1) - c, c


class TestEvidence:
    @pytest.mark.parametrize(("b", "c"), [(0, 0), (1, 0), (3, 5), (40, 9)])
    def test_is_the_likelihood_ratio_of_a_mixture(self, b, c):
        def mixed(sine):  # Beta(1/2, 1/2) is the law of sin^2 of a uniform angle
            q = math.sin(sine) ** 2
            return q**b * (1 - q) ** c

        likelihood = integrate.quad(mixed, 0, math.pi / 2, epsabs=1e-30)[0] / (math.pi / 2)
        expected = math.log(likelihood) + (b + c) * math.log(2)
        assert log_e_values(np.array([b]), np.array([c]))[0] == pytest.approx(expected, abs=1e-9)

    def test_is_exact_where_all_pairs_agree(self):
        for n in range(30):  # B(n + 1/2, 1/2) / pi = C(2n, n) / 4^n
            expected = math.log(Fraction(comb(2 * n, n), 4**n) * 2**n)
            found = log_e_values(np.array([n]), np.array([0]))[0]
            assert found == pytest.approx(expected, abs=1e-12)

    def test_has_expectation_one_under_the_null_hypothesis(self):
        n = 25
        c = np.arange(n + 1)
        e = np.exp(log_e_values((n - c).astype(float), c.astype(float)))
        probability = np.array([comb(n, k) / 2**n for k in c])
        assert float(e @ probability) == pytest.approx(1.0, abs=1e-12)


class TestPeeking:
    def test_at_every_pair_is_seldom_wrong(self):
        b, c = paths(0.5, 2000, 2000, seed=1)
        wrong = (log_e_values(b, c) >= -math.log(ALPHA)).any(axis=1).mean()
        assert wrong <= ALPHA
        z = np.abs(c - b) / np.sqrt(b + c)
        assert (z >= 1.959963984540054)[:, 10:].any(axis=1).mean() > 0.30

    def test_finds_a_difference_at_a_price(self):
        b, c = paths(0.6, 3000, 1000, seed=2)
        reached = log_e_values(b, c) >= -math.log(ALPHA)
        assert reached.any(axis=1).mean() > 0.99
        # a fixed test would need 194 pairs for 80 % power
        assert np.median(reached.argmax(axis=1) + 1) == pytest.approx(233, rel=0.1)


class TestPairs:
    def test_counts_only_discordant_ones(self):
        a = np.array([1, 1, 0, 0, 0, 1], bool)
        b = np.array([1, 0, 1, 0, 1, 1], bool)
        found = sequential_test(a, b)
        assert (found.n_pairs, found.n_only_baseline, found.n_only_run) == (6, 1, 2)
        assert found.log_e == pytest.approx(float(log_e_values(np.array([1]), np.array([2]))[0]))
        assert found.e_value == pytest.approx(math.exp(found.log_e))

    def test_decides_once_and_for_all(self):
        right = np.ones(10, bool)
        found = sequential_test(~right, right)
        assert found.decision == "run is better"
        assert found.n_to_decide == 7  # C(14, 7) 2^7 / 4^7 = 26.8, and 14.4 for six
        undone = sequential_test(np.concatenate([~right, right]), np.concatenate([right, ~right]))
        assert (undone.decision, undone.n_to_decide) == ("run is better", 7)
        assert undone.log_e < 0
        assert undone.p == pytest.approx(found.p)
        assert sequential_test(right, ~right).decision == "baseline is better"
        assert sequential_test(~right, right, alpha=1e-6).decision == "undecided"

    @pytest.mark.parametrize("alpha", [0, 1, -0.1, 5, math.nan])
    def test_a_chance_is_between_0_and_1(self, alpha):
        with pytest.raises(ConfigError, match=r"alpha is .* between 0 and 1"):
            sequential_test(np.ones(3, bool), np.ones(3, bool), alpha=alpha)

    def test_nothing_is_no_evidence(self):
        found = sequential_test(np.zeros(0, bool), np.zeros(0, bool))
        assert (found.p, found.log_e, found.decision) == (1.0, 0.0, "undecided")

    def test_overwhelming_evidence_is_a_number(self):
        right = np.ones(20_000, bool)
        found = sequential_test(~right, right)
        assert found.e_value == math.inf
        assert 0 < found.p < 1e-300


class TestRuns:
    def rows(self, n, seed, missing=()):
        rng = np.random.default_rng(seed)
        return [
            choice(f"q{i}", None if i in missing else bool(rng.random() < 0.5)) for i in range(n)
        ]

    def by_hand(self, a, b, n):
        def right(row):
            return row["logprob_nats"][0] > row["logprob_nats"][1]

        both = [(x, y) for x, y in zip(a[:n], b[:n], strict=True) if "gold" in x and "gold" in y]
        return sequential_test(
            np.array([right(x) for x, _ in both]), np.array([right(y) for _, y in both])
        )

    @pytest.mark.parametrize("sizes", [(7, 7), (3, 10), (10, 3), (100, 1)])
    def test_look_at_the_longest_prefix_that_both_have(self, tmp_path, sizes):
        a, b = self.rows(60, 1), self.rows(60, 2)
        runs = (
            write_run(tmp_path / "a", {"t": a}, shard_size=sizes[0]),
            write_run(tmp_path / "b", {"t": b}, shard_size=sizes[1]),
        )
        found, expected = compare_prefix(*runs, "t"), self.by_hand(a, b, 60)
        assert found == expected
        assert found.n_prefix == 60

    def test_do_not_look_beyond_a_gap(self, tmp_path):
        a, b = self.rows(60, 3), self.rows(60, 4)
        runs = (
            write_run(tmp_path / "a", {"t": a}, shard_size=5, unfinished={6}),  # from 30
            write_run(tmp_path / "b", {"t": b}, shard_size=8, unfinished={3, 5}),  # from 24
        )
        found = compare_prefix(*runs, "t")
        assert found.n_prefix == 24
        assert found == self.by_hand(a, b, 24)

    def test_have_no_prefix_before_the_first_shard(self, tmp_path):
        rows = self.rows(20, 5)
        runs = (
            write_run(tmp_path / "a", {"t": rows}, unfinished={0}),
            write_run(tmp_path / "b", {"t": rows}),
        )
        found = compare_prefix(*runs, "t")
        assert (found.n_prefix, found.p, found.decision) == (0, 1.0, "undecided")

    def test_leave_missing_examples_out(self, tmp_path):
        a, b = self.rows(30, 6, missing=(1, 2)), self.rows(30, 7, missing=(2, 20))
        runs = (
            write_run(tmp_path / "a", {"t": a}),
            write_run(tmp_path / "b", {"t": b}),
        )
        found = compare_prefix(*runs, "t")
        assert (found.n_prefix, found.n_pairs) == (30, 27)
        assert found.log_e == self.by_hand(a, b, 30).log_e

    def test_are_refused_where_they_cannot_be_tested(self, tmp_path):
        rows = self.rows(20, 8)
        clustered = [{**row, "cluster": "c"} for row in rows]
        a = write_run(tmp_path / "a", {"t": rows})
        with pytest.raises(ConfigError, match="no task 'u'"):
            compare_prefix(a, a, "u")
        with pytest.raises(ConfigError, match=r"right answers 'acuracy'.*'accuracy'"):
            compare_prefix(a, a, "t", estimate="acuracy")
        with pytest.raises(ConfigError, match="probability_mass: not right or wrong"):
            compare_prefix(a, a, "t", estimate="probability_mass")
        b = write_run(tmp_path / "b", {"t": rows}, reply={"seed": 2})
        with pytest.raises(MismatchError, match="seed"):
            compare_prefix(a, b, "t")
        c = write_run(tmp_path / "c", {"t": clustered})
        with pytest.raises(DataError, match="clusters"):
            compare_prefix(c, c, "t")
        # clusters that only show beyond the prefix
        partly = [{**row, "cluster": f"c{i // 2}" if i > 9 else None} for i, row in enumerate(rows)]
        gap = write_run(tmp_path / "gap", {"t": partly}, shard_size=5, unfinished={1})
        with pytest.raises(DataError, match="clusters"):
            compare_prefix(gap, gap, "t")
        texts = {"t": [document("d1", -30.0, 10), document("d2", -20.0, 10)]}
        d = write_run(tmp_path / "d", texts, protocol="language_modelling", metrics=["perplexity"])
        with pytest.raises(ConfigError, match="word_perplexity: not right or wrong"):
            compare_prefix(d, d, "t")
