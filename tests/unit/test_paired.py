"""Paired statistics against statsmodels, scipy and simulation."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.regression.linear_model import OLS
from statsmodels.stats.contingency_tables import mcnemar as statsmodels_mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower, normal_power
from statsmodels.stats.proportion import proportion_confint, proportions_ztest

from raveval.comparison import delta, paired, resampling
from raveval.comparison.delta import PairedContributions
from raveval.comparison.inference import Inference, LogDifference
from raveval.comparison.mcnemar import Fourfold, mcnemar, newcombe
from raveval.comparison.paired import detectable, holm
from raveval.comparison.resampling import bootstrap
from raveval.metrics import Contribution, Ratio


def means(a, b) -> PairedContributions:
    """PairedContributions of plain means."""
    ones = np.ones(len(a))
    return PairedContributions(
        Contribution(np.asarray(a, float), ones), Contribution(np.asarray(b, float), ones)
    )


def one(pairs: PairedContributions, ratio: Ratio | None = None) -> Inference:
    return bootstrap([(pairs, ratio or Ratio(), delta.entering(pairs))])[0]


def cluster_t(pairs: PairedContributions, ratio: Ratio | None = None, clusters=None) -> Inference:
    """Each example is a cluster of its own where none are given."""
    if clusters is None:
        clusters = np.arange(len(pairs.a.x))
    return paired.cluster_t(pairs, ratio or Ratio(), clusters)


def ends(found: Inference) -> tuple[float, float]:
    """The interval of a comparison that has one."""
    assert found.low is not None
    assert found.high is not None
    return found.low, found.high


def p_of(found: Inference) -> float:
    assert found.p is not None
    return found.p


class TestMcNemar:
    @pytest.mark.parametrize("n", [0, 1, 2, 3, 10, 47, 200])
    def test_is_the_exact_test_of_statsmodels(self, n):
        for only_a in range(n + 1):
            table = [[5, only_a], [n - only_a, 7]]
            expected = statsmodels_mcnemar(table, exact=True).pvalue if n else 1.0
            assert mcnemar(only_a, n - only_a) == pytest.approx(expected, rel=1e-12)

    def test_holds_for_a_million_pairs(self):
        expected = stats.binomtest(500_900, 1_000_000).pvalue
        assert mcnemar(500_900, 499_100) == pytest.approx(expected, rel=1e-9)

    def test_shows_what_an_unpaired_test_does_not(self):
        # 1000 examples; 60 only the first gets right, 34 only the second
        assert mcnemar(60, 34) == pytest.approx(0.009547810466077417, rel=1e-12)
        assert 0.05 < proportions_ztest([880, 854], [1000, 1000])[1] < 0.1

    def test_is_never_zero(self):
        assert mcnemar(0, 5000) > 0
        assert mcnemar(0, 60) == pytest.approx(2**-59, rel=1e-12)


class TestNewcombe:
    def test_gives_the_published_interval(self):
        # complete response before and after consolidation (Cavo et al. 2012), as in chapter 8 of
        # Fagerland, Lydersen and Laake, Statistical Analysis of Contingency Tables (2017)
        low, high = newcombe(Fourfold(both=59, only_a=16, only_b=6, neither=80))
        assert (round(low, 4), round(high, 4)) == (-0.1186, -0.0046)

    def test_follows_from_wilson_limits_and_the_correlation(self):
        rng = np.random.default_rng(1)
        for _ in range(200):
            table = Fourfold(*rng.multinomial(rng.integers(2, 300), rng.dirichlet(np.ones(4))))
            low, high = newcombe(table)
            expected = self._by_the_book(table)
            assert (low, high) == pytest.approx(expected, abs=1e-12)
            mirrored = newcombe(Fourfold(table.both, table.only_b, table.only_a, table.neither))
            assert mirrored == pytest.approx((-high, -low), abs=1e-12)
            assert -1 <= low <= (table.only_b - table.only_a) / sum(table) <= high <= 1

    def _by_the_book(self, table):
        n = sum(table)
        k_a, k_b = table.both + table.only_a, table.both + table.only_b
        (la, ua), (lb, ub) = (proportion_confint(k, n, method="wilson") for k in (k_a, k_b))
        counts = np.array([[table.both, table.only_a], [table.only_b, table.neither]], float)
        determinant = counts[0, 0] * counts[1, 1] - counts[0, 1] * counts[1, 0]
        if determinant > 0:
            determinant = max(0.0, determinant - n / 2)
        product = np.prod([*counts.sum(0), *counts.sum(1)])
        phi = determinant / np.sqrt(product) if product else 0.0
        pa, pb = k_a / n, k_b / n
        below = (pb - lb) ** 2 - 2 * phi * (pb - lb) * (ua - pa) + (ua - pa) ** 2
        above = (ub - pb) ** 2 - 2 * phi * (ub - pb) * (pa - la) + (pa - la) ** 2
        return pb - pa - math.sqrt(max(below, 0)), pb - pa + math.sqrt(max(above, 0))

    @pytest.mark.parametrize("n", [100, 1000])
    @pytest.mark.parametrize("cells", [(0.55, 0.15, 0.15, 0.15), (0.85, 0.03, 0.07, 0.05)])
    def test_covers_the_truth_in_95_of_100_cases(self, n, cells):
        tables = np.random.default_rng(2).multinomial(n, cells, size=3000)
        truth = cells[2] - cells[1]
        intervals = [newcombe(Fourfold(*row)) for row in tables.tolist()]
        covered = np.mean([low <= truth <= high for low, high in intervals])
        assert 0.93 <= covered <= 0.975

    def test_is_an_interval_also_where_nothing_differs(self):
        low, high = newcombe(Fourfold(20, 0, 0, 10))
        assert low < 0 < high
        assert newcombe(Fourfold(0, 0, 1, 0)) == pytest.approx((-0.1218, 1.0), abs=1e-3)


class TestHolm:
    @pytest.mark.parametrize("size", [1, 2, 3, 10])
    def test_is_that_of_statsmodels(self, size):
        rng = np.random.default_rng(size)
        for _ in range(3):
            p = rng.choice([0.001, 0.02, 0.3, 1.0, *rng.random(3)], size).tolist()
            expected = multipletests(p, method="holm")[1]
            assert holm(p) == pytest.approx(expected, rel=1e-12)

    def test_of_nothing_is_nothing(self):
        assert holm([]) == []


class TestDetectable:
    @pytest.mark.parametrize(("n", "points"), [(164, 10.0), (1000, 4.06), (10_570, 1.25)])
    def test_of_two_accuracies(self, n, points):
        # both .7, correlated by .5
        stderr = math.sqrt(2 * 0.7 * 0.3 * 0.5 / n)
        assert 100 * detectable(stderr) == pytest.approx(points, abs=0.03)
        power = normal_power(detectable(stderr), n, 0.05, sigma=stderr * math.sqrt(n))
        assert power == pytest.approx(0.8, abs=1e-4)

    @pytest.mark.parametrize("n_clusters", [3, 6, 22])
    def test_with_few_clusters_is_that_of_t(self, n_clusters):
        effect = detectable(1.0, n_clusters=n_clusters) / math.sqrt(n_clusters)
        power = TTestPower().power(effect, n_clusters, 0.05)
        assert power == pytest.approx(0.8, abs=2e-3)  # ours leaves out the wrong direction

    def test_is_found_in_four_of_five_cases(self):
        n, a, b = 2000, 0.10, 0.06  # discordant by run
        stderr = math.sqrt((a + b - (a - b) ** 2) / n)
        assert detectable(stderr) == pytest.approx(0.0249, abs=1e-4)
        shift = (detectable(stderr) - (a - b)) / 2
        cells = [0.5, a + shift, b - shift, 0.34]
        tables = np.random.default_rng(3).multinomial(n, cells, size=2000).tolist()
        found = np.mean([mcnemar(row[1], row[2]) <= 0.05 for row in tables])
        assert found == pytest.approx(0.8, abs=0.04)


class TestBinary:
    def test_counts_and_error(self):
        rng = np.random.default_rng(4)
        a, b = rng.random(300) < 0.6, rng.random(300) < 0.7
        found = paired.binary(means(a, b))
        only_a, only_b = int((a & ~b).sum()), int((~a & b).sum())
        assert found.p == stats.binomtest(only_a, only_a + only_b).pvalue
        assert (found.n_units, found.n_differing) == (300, only_a + only_b)
        difference = b.astype(float) - a.astype(float)
        assert found.stderr == pytest.approx(stats.sem(difference), rel=1e-12)

    def test_is_for_right_and_wrong_only(self):
        assert paired.is_binary(means([0, 1], [1, 1]), Ratio())
        assert not paired.is_binary(means([0, 0.5], [1, 1]), Ratio())
        assert not paired.is_binary(means([0, 1], [1, 1]), Ratio(scale=2.0))
        counts = Contribution(np.array([0.0, 1.0]), np.array([1.0, 2.0]))
        assert not paired.is_binary(PairedContributions(counts, counts), Ratio())


class TestBootstrap:
    @pytest.mark.parametrize("n", [40, 400])
    def test_agrees_with_the_paired_t_test(self, n):
        # The t interval is exact here; at 10 000 replicates the ends of a percentile interval
        # vary by 1.5 % of its width, and p = .05 by about .004.
        rng = np.random.default_rng(n)
        a = rng.normal(size=n)
        b = a + rng.normal(0.25, 1.5, size=n)
        found, expected = one(means(a, b)), stats.ttest_rel(b, a)
        low, high = expected.confidence_interval()
        assert ends(found) == pytest.approx((low, high), abs=0.04 * (high - low))
        assert found.p == pytest.approx(expected.pvalue, abs=0.01)
        assert found.stderr == pytest.approx(stats.sem(b - a), rel=1e-12)
        assert (found.test, found.interval) == ("paired-bootstrap", "expanded-bootstrap95")
        assert found.n_replicates == 10_000

    def test_covers_the_truth_of_a_ratio(self, monkeypatch):
        # documents of very different length; the true difference of nats per token is -0.1
        n, repetitions = 100, 300
        monkeypatch.setattr(resampling, "N_REPLICATES", 2000)
        rng = np.random.default_rng(5)
        covered = wrong = 0
        for _ in range(repetitions):
            tokens = rng.geometric(1 / 50, n).astype(float)
            hard = rng.normal(3.0, 0.4, n)
            sums = [tokens * (hard + rng.normal(m, 0.2, n)) for m in (0.0, -0.1)]
            found = one(
                PairedContributions(*(Contribution(-x, tokens) for x in sums)), Ratio(scale=-1.0)
            )
            low, high = ends(found)
            covered += low <= -0.1 <= high
            wrong += p_of(found) > 0.05 and not low <= 0 <= high
        assert 0.91 <= covered / repetitions <= 0.985  # 3 deviations of 300 coins around 95 %
        assert wrong == 0, "interval and test contradict each other"

    def test_five_percent_are_false_where_nothing_differs(self, monkeypatch):
        monkeypatch.setattr(resampling, "N_REPLICATES", 1000)
        rng = np.random.default_rng(6)
        p = []
        for _ in range(600):
            f1 = rng.beta(0.3, 0.3, size=(2, 60)).round(2)
            p.append(p_of(one(means(*f1))))
        assert np.mean(np.array(p) <= 0.05) == pytest.approx(0.05, abs=0.027)

    def test_a_perplexity_is_tested_on_its_logarithm(self):
        rng = np.random.default_rng(7)
        tokens = rng.integers(20, 200, 80).astype(float)
        sums = [-tokens * rng.normal(3.0 + shift, 0.3, 80) for shift in (0.0, 0.1)]
        pairs = PairedContributions(*(Contribution(x, tokens) for x in sums))
        everything = np.ones(80, bool)
        ratios = Ratio(scale=-1.0), Ratio(scale=-1.0, is_exponential=True)
        nats, perplexity = bootstrap([(pairs, ratio, everything) for ratio in ratios])
        assert nats.p == perplexity.p
        assert nats.log is None, "no exponential"
        assert perplexity.log == (*ends(nats), nats.stderr), "nats are the logarithm"
        by_cluster = [cluster_t(pairs, ratio, np.arange(80) // 4) for ratio in ratios]
        assert by_cluster[1].log == (*ends(by_cluster[0]), by_cluster[0].stderr)
        a, b = (math.exp(-x.sum() / tokens.sum()) for x in sums)
        low, high = ends(perplexity)
        assert low < b - a < high
        # delta method: d exp(L) = exp(L) dL
        level = [math.exp(-x.sum() / tokens.sum()) for x in sums]
        shifts = [
            v * (-x - math.log(v) * tokens) / tokens.sum() for v, x in zip(level, sums, strict=True)
        ]
        assert perplexity.stderr == pytest.approx(
            math.sqrt(80 / 79 * ((shifts[1] - shifts[0]) ** 2).sum()), rel=1e-9
        )

    def test_a_quotient_is_the_exponential_of_a_difference(self):
        found = paired.quotient(20.0, 10.0, LogDifference(-1.0, -0.4, 0.15))
        assert found.ratio == 0.5
        assert (found.ratio_low, found.ratio_high) == (math.exp(-1.0), math.exp(-0.4))
        assert found.ratio_detectable == pytest.approx(math.exp(paired.detectable(0.15)))
        assert paired.quotient(1.0, 1.0, LogDifference(0.0, 0.0, 0.0)) == (1.0, None, None, None)
        assert paired.quotient(1e-300, 1e300, LogDifference(-1.0, 800.0, 9.0)).ratio is None
        assert paired.quotient(1.0, 2.0, LogDifference(-1.0, 800.0, 9.0)).ratio_high is None

    def test_an_example_that_one_run_cannot_use_counts_in_neither(self):
        rng = np.random.default_rng(8)
        a, b = rng.random((2, 200))
        u = np.ones(200)
        gone = np.arange(200) < 50
        partly = PairedContributions(
            Contribution(np.where(gone, 0.0, a), np.where(gone, 0.0, u)), Contribution(b, u)
        )
        found, expected = one(partly), one(means(a[50:], b[50:]))
        assert (found.n_units, found.n_differing) == (150, 150)
        assert found.stderr == pytest.approx(expected.stderr, rel=1e-12)
        low, high = ends(expected)
        assert ends(found) == pytest.approx((low, high), abs=0.05 * (high - low))
        assert delta.entering(partly).sum() == 150

    def test_many_distinct_pairs_are_drawn_in_blocks(self):
        rng = np.random.default_rng(9)
        a, b = rng.random((2, 20_000))
        found = one(means(a, b))
        low, high = stats.ttest_rel(b, a).confidence_interval()
        assert ends(found) == pytest.approx((low, high), abs=0.05 * (high - low))
        assert found.n_units == 20_000

    @pytest.mark.parametrize("n", [2, 3, 4, 5])
    def test_few_examples_show_nothing(self, n):
        # each of them better by about the same: a percentile bootstrap would be certain
        a = np.zeros(n)
        found = one(means(a, a + 0.5 + 0.01 * np.arange(n)))
        assert p_of(found) >= max(2.0 ** (1 - n), 0.05)

    @pytest.mark.parametrize("m", [1, 2, 4, 5, 6])
    def test_few_that_differ_show_no_more_than_their_signs(self, m):
        b = np.zeros(500)
        b[:m] = 0.3
        found = one(means(np.zeros(500), b))
        assert p_of(found) >= 2.0 ** (1 - m)
        assert found.n_differing == m

    def test_nothing_differs(self):
        a = np.random.default_rng(10).random(30)
        found = one(means(a, a))
        assert (found.p, found.low, found.n_differing) == (1.0, None, 0)
        assert bootstrap([]) == []

    def test_is_the_same_each_time(self):
        a, b = np.random.default_rng(11).random((2, 50))
        assert one(means(a, b)) == one(means(a, b))

    def test_replicates_without_a_value_are_left_out_or_end_it(self):
        values = np.random.default_rng(12).normal(1.0, 1.0, 1000)

        def resampled(values):
            return resampling.resampled(values, values, n_units=100, n_differing=90, stderr=None)

        whole = resampled(values)
        holey = np.where(np.arange(1000) % 50 == 0, np.nan, values)
        found = resampled(holey)
        assert found.n_replicates == 980
        assert found.low == pytest.approx(whole.low, abs=0.2)
        assert whole.stderr == pytest.approx(np.std(values, ddof=1), rel=1e-12)
        broken = np.where(np.arange(1000) % 10 == 0, np.nan, values)
        found = resampled(broken)
        assert (found.p, found.test) == (None, None)
        assert found.reason == "too few replicates have a value"

    def test_without_spread_there_is_no_interval(self):
        a = np.array([0.1, 0.2, 0.3, 0.7, 1.1])
        found = one(means(a, a + 0.1))
        assert (found.interval, found.low, found.stderr) == (None, None, 0.0)
        assert p_of(found) >= 2.0**-4

    def test_numbers_too_large_to_square_are_compared_all_the_same(self):
        sums = np.array([-700.0, -705.0, -690.0, -702.0, -699.0, -703.0])
        ones = np.ones(6)
        ratio = Ratio(scale=-1.0, is_exponential=True)
        pairs = PairedContributions(Contribution(sums, ones), Contribution(sums - 0.01, ones))
        found = one(pairs, ratio)
        assert found.stderr is not None
        assert math.isfinite(found.stderr)
        smaller = PairedContributions(*(Contribution(x + 650, ones) for x, _ in pairs))
        expected = one(smaller, ratio)
        assert expected.stderr is not None
        assert found.stderr == pytest.approx(expected.stderr * math.exp(650), rel=1e-6)
        assert found.p == expected.p

    def test_sums_beyond_the_largest_double(self):
        a = 1e308 * np.array([1.0, 1.1, 1.2, 0.9, 1.05, 1.3])
        for found in (one(means(a, a * 0.9)), cluster_t(means(a, a * 0.9))):
            expected = one(means(a / 1e308, a / 1e308 * 0.9))
            assert found.stderr is not None
            assert expected.stderr is not None
            assert found.stderr / 1e308 == pytest.approx(expected.stderr, rel=1e-9)
            assert found.p is not None


class TestClusters:
    def grouped(self, n=300, n_clusters=25, seed=13):
        rng = np.random.default_rng(seed)
        clusters = np.sort(rng.integers(0, n_clusters, n))
        clusters = np.unique(clusters, return_inverse=True)[1]
        shared = rng.normal(0, 0.3, (2, n_clusters))[:, clusters]
        a, b = rng.normal(0.5, 0.3, (2, n)) + shared
        return a, b + 0.05, clusters

    def test_is_cluster_robust_regression_of_the_differences(self):
        a, b, clusters = self.grouped()
        found = cluster_t(means(a, b), clusters=clusters)
        model = OLS(b - a, np.ones(len(a)))
        fit = model.fit(cov_type="cluster", cov_kwds={"groups": clusters}, use_t=True)
        assert found.stderr == pytest.approx(fit.bse[0], rel=1e-9)
        assert found.p == pytest.approx(fit.pvalues[0], rel=1e-9)
        assert ends(found) == pytest.approx(tuple(fit.conf_int()[0]), rel=1e-9)
        assert found.n_units == clusters.max() + 1
        naive = stats.sem(b - a)
        assert found.stderr > 1.3 * naive

    def test_is_the_paired_t_test_where_each_example_is_its_own(self):
        a, b, _ = self.grouped(40)
        found, expected = cluster_t(means(a, b), Ratio()), stats.ttest_rel(b, a)
        assert found.p == pytest.approx(expected.pvalue, rel=1e-9)
        low, high = expected.confidence_interval()
        assert ends(found) == pytest.approx((low, high), rel=1e-9)

    def test_a_ratio_agrees_with_the_jackknife(self):
        rng = np.random.default_rng(14)
        n = 60
        u = [rng.integers(20, 200, n).astype(float) for _ in range(2)]
        x = [-each * rng.normal(2.0 + 0.05 * k, 0.2, n) for k, each in enumerate(u)]
        pairs = PairedContributions(*(Contribution(*each) for each in zip(x, u, strict=True)))
        for ratio in (Ratio(scale=-2.0, shift=1.0), Ratio(scale=-1.0, is_exponential=True)):

            def difference(keep, ratio=ratio):
                a, b = (ratio.value(x[k][keep].sum() / u[k][keep].sum()) for k in (0, 1))
                return b - a

            left_out = [difference(np.arange(n) != i) for i in range(n)]
            spread = (n - 1) / n * ((left_out - np.mean(left_out)) ** 2).sum()
            found = cluster_t(pairs, ratio)
            assert found.stderr == pytest.approx(math.sqrt(spread), rel=0.03)
            middle = sum(ends(found)) / 2
            assert middle == pytest.approx(difference(np.ones(n, bool)), rel=1e-9)

    def test_covers_the_truth(self):
        covered = [
            low <= 0.05 <= high
            for low, high in (
                ends(cluster_t(means(a, b), clusters=clusters))
                for a, b, clusters in (self.grouped(200, 20, seed) for seed in range(1000))
            )
        ]
        assert 0.93 <= np.mean(covered) <= 0.97

    def test_of_one_cluster_is_no_test(self):
        found = cluster_t(means([1.0], [2.0]))
        assert (found.p, found.test, found.low) == (None, None, None)
        assert found.reason == "fewer than 2 clusters"

    @pytest.mark.parametrize("a", [[1.0, 1.0], [0.1, 0.2, 0.3, 0.7, 1.1]])
    def test_without_spread_there_is_no_test(self, a):
        found = cluster_t(means(a, np.array(a) + 0.1))
        assert (found.p, found.test, found.interval, found.stderr) == (None, None, None, 0.0)
        assert found.reason == "no spread between clusters"
        assert cluster_t(means([1.0, 3.0], [1.0, 3.0])).p == 1.0

    def test_examples_that_cancel_are_not_the_same(self):
        right = np.tile([1.0, 0.0], 10)
        found = cluster_t(means(right, 1 - right), clusters=np.arange(20) // 4)
        assert (found.p, found.n_differing, found.n_units) == (1.0, 5, 5)
        # two of five clusters say something, in one direction
        other = 1 - right
        other[:8] = 1.0
        found = cluster_t(means(right, other), clusters=np.arange(20) // 4)
        assert found.n_differing == 5
        assert p_of(found) >= 0.5

    def test_sums_that_differ_by_rounding_show_nothing(self):
        a, b = [0.1, 0.2, 5.0, 1.0], [0.3, 0.0, 5.0, 1.0]
        assert cluster_t(means(a, b), clusters=np.array([0, 0, 1, 2])).p == 1.0

    def test_claims_no_more_than_the_signs(self):
        b = np.array([1.0, 1.0 + 1e-9, 1.0 - 1e-9])
        assert cluster_t(means(np.zeros(3), b), Ratio()).p == 0.25


@pytest.mark.parametrize("level", [0.05, 0.1])
def test_no_more_sign_patterns_are_significant_than_there_may_be(level):
    # the 32 sign patterns of five differences are equally likely where nothing differs
    size = np.array([0.9, 1.0, 1.1, 1.2, 1.3])
    patterns = itertools.product((-1, 1), repeat=5)
    p = [p_of(one(means(np.zeros(5), signs * size))) for signs in patterns]
    assert sum(each <= level for each in p) <= level * 32
