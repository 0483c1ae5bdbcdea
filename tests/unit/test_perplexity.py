"""Numbers of language modelling: perplexities, entropy, greedy accuracy."""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import binomtest
from scipy.stats import t as student

from raveval.errors import DataError
from raveval.metrics import Metric, entropy, greedy, perplexity
from raveval.types import Estimate

INF, NAN = math.inf, math.nan
UNITS = {"token": "n_tokens", "word": "n_words", "byte": "n_bytes", "char": "n_chars"}


def table(**columns: list[Any]) -> pa.Table:
    return pa.table(columns)


def compute(metric: Metric[Any], **columns: list[Any]) -> Mapping[str, Estimate]:
    return metric.compute(metric.update(metric.init(), table(**columns)))


def notes(metric: Metric[Any], **columns: list[Any]) -> Mapping[str, int]:
    return metric.notes(metric.update(metric.init(), table(**columns)))


def ppl(logprob_nats: Sequence[float | None], **columns: list[Any]) -> Mapping[str, Estimate]:
    columns = {"n_tokens": [1] * len(logprob_nats), **columns}
    return compute(perplexity.METRIC, logprob_nats=list(logprob_nats), **columns)


def test_each_unit_has_its_own_perplexity():
    """A document of 10 tokens and one of 1000: their perplexities are not averaged."""
    found = ppl(
        [-20.0, -1000.0],
        n_tokens=[10, 1000],
        n_words=[8, 700],
        n_bytes=[40, 4000],
        n_chars=[39, 3900],
    )
    total = -1020.0
    for unit, denominator in {"token": 1010, "word": 708, "byte": 4040, "char": 3939}.items():
        assert found[f"{unit}_perplexity"].value == pytest.approx(
            math.exp(-total / denominator), rel=1e-15
        )
        assert found[f"{unit}_perplexity"].n == 2
    assert found["nats_per_token"].value == 1020 / 1010
    assert found["bits_per_byte"].value == pytest.approx(1020 / 4040 / math.log(2), rel=1e-15)


def test_bits_are_powers_of_two():
    """A model that gives every byte probability 1/256 needs 8 bits for it."""
    n = 1000
    found = ppl([-n * math.log(256)] * 3, n_bytes=[n] * 3)
    assert found["bits_per_byte"].value == pytest.approx(8, rel=1e-15)
    assert found["byte_perplexity"].value == pytest.approx(256, rel=1e-14)
    assert found["bits_per_byte"].stderr == pytest.approx(0, abs=1e-12)


def random_documents(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(20, 400, n)
    sums = -3.0 * tokens + rng.normal(0, 1, n) * 8 * np.sqrt(tokens)
    return np.minimum(sums, 0.0), tokens


def test_the_interval_is_the_delta_method_s():
    sums, tokens = random_documents(200, 3)
    found = ppl(sums.tolist(), n_tokens=tokens.tolist())
    rate = sums.sum() / tokens.sum()
    stderr = math.sqrt(200 / 199 * ((sums - rate * tokens) ** 2).sum()) / tokens.sum()
    value = math.exp(-rate)
    quantile = student.ppf(0.975, 199)
    e = found["token_perplexity"]
    assert e.interval == "delta-t95"
    assert e.value == pytest.approx(value, rel=1e-13)
    assert e.stderr == pytest.approx(value * stderr, rel=1e-12)
    ends = (value * math.exp(-quantile * stderr), value * math.exp(quantile * stderr))
    assert (e.low, e.high) == pytest.approx(ends, rel=1e-12)
    nats = found["nats_per_token"]
    assert nats.stderr == pytest.approx(stderr, rel=1e-12)
    assert (nats.low, nats.high) == pytest.approx((math.log(ends[0]), math.log(ends[1])), rel=1e-12)


def test_the_interval_is_the_bootstrap_s():
    """4000 resamples know an end of the interval to about 3 % of its half width; thrice that."""
    sums, tokens = random_documents(300, 4)
    e = ppl(sums.tolist(), n_tokens=tokens.tolist())["token_perplexity"]
    picks = np.random.default_rng(5).integers(0, 300, (4000, 300))
    resampled = np.exp(-sums[picks].sum(axis=1) / tokens[picks].sum(axis=1))
    low, high = np.quantile(resampled, [0.025, 0.975])
    tolerance = 0.09 * (high - low) / 2
    assert e.stderr == pytest.approx(resampled.std(ddof=1), rel=0.05)
    assert (e.low, e.high) == pytest.approx((low, high), abs=tolerance)


def test_one_document_has_no_interval():
    e = ppl([-7.0], n_tokens=[3])["token_perplexity"]
    assert e.value == math.exp(7 / 3)
    assert (e.stderr, e.low, e.high, e.interval) == (None, None, None, None)


def test_a_certain_model_has_perplexity_one_and_no_minus_zero():
    found = ppl([0.0, -0.0])
    assert found["token_perplexity"].value == 1.0
    assert (
        math.copysign(1, found["nats_per_token"].value or -1.0) == 1.0
        or found["nats_per_token"].value == 0.0
    )
    assert str(found["nats_per_token"].value) == "0.0"


def test_zero_probability_is_no_finite_perplexity():
    found = ppl([-1.0, -INF], n_words=[2, 2])
    for name in ("token_perplexity", "word_perplexity", "nats_per_token"):
        assert found[name].value is None
        assert found[name].reason == "zero probability"
    assert found["token_perplexity_finite"].value == math.exp(1)
    assert found["token_perplexity_finite"].n == 1
    counted = notes(perplexity.METRIC, logprob_nats=[-1.0, -INF], n_tokens=[1, 1])
    assert counted["token_perplexity_zero_probability"] == 1
    possible = ppl([-1.0, -2.0])
    assert possible["token_perplexity_finite"] == possible["token_perplexity"]


@pytest.mark.parametrize("bad", [NAN, INF, None])
def test_what_is_no_number_is_left_out_and_counted(bad: float | None):
    found = ppl([-2.0, bad], n_tokens=[1, 9])
    assert found["token_perplexity"].value == math.exp(2)
    assert found["token_perplexity"].n == 1
    counted = notes(perplexity.METRIC, logprob_nats=[-2.0, bad], n_tokens=[1, 9])
    assert counted["token_perplexity_invalid"] == 1
    alone = compute(perplexity.METRIC, logprob_nats=pa.array([bad], pa.float64()), n_tokens=[9])
    assert alone["token_perplexity"].reason == "no valid document"


def test_overflow_is_said_and_the_logarithm_stands():
    found = ppl([-710.0, -710.0])
    assert found["token_perplexity"].reason == "overflow"
    assert found["nats_per_token"].value == 710.0
    wide = ppl([-1.0, -1415.0])  # the value fits, the upper end does not
    assert wide["token_perplexity"].value == pytest.approx(math.exp(708))
    assert (wide["token_perplexity"].high, wide["token_perplexity"].interval) == (None, None)


@pytest.mark.parametrize("unit", UNITS)
def test_nothing_to_divide_by(unit: str):
    found = ppl([-1.0, -2.0], **{UNITS[unit]: [0, 0]})
    assert found[f"{unit}_perplexity"].reason == f"no {unit}s"


def test_not_measured_is_said():
    found = ppl([-1.0])
    assert found["word_perplexity"].reason == "not measured"
    assert found["bits_per_byte"].reason == "not measured"
    partly = ppl([-1.0, -3.0], n_words=[2, None])
    assert (partly["word_perplexity"].value, partly["word_perplexity"].n) == (math.exp(0.5), 1)


def test_the_sum_does_not_drift():
    """Small terms beside a large one: the exact value, which a running sum misses."""
    sums = [-1e9] + [-1e-8] * 10_000
    found = ppl(sums, n_tokens=[1] * 10_001)
    exact = float(-sum(map(Fraction, sums)) / 10_001)
    assert found["nats_per_token"].value == exact


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"logprob_nats": [-1.0], "n_tokens": [-1]}, "a document has -1"),
        (
            {"logprob_nats": [-1.0], "n_tokens": [1.0]},
            "n_tokens: expected an integer, found double",
        ),
        (
            {"logprob_nats": ["-1"], "n_tokens": [1]},
            "logprob_nats: expected a number, found string",
        ),
        ({"logprob_nats": [[-1.0]], "n_tokens": [1]}, "expected a number, found list"),
        ({"logprob_nats": [-1.0]}, "n_tokens: no such column"),
    ],
)
def test_what_cannot_be_is_refused(columns: dict[str, list[Any]], message: str):
    with pytest.raises(DataError, match=message):
        compute(perplexity.METRIC, **columns)


def test_entropy_is_a_mean_over_positions():
    found = compute(entropy.METRIC, entropy_nats=[3.0, 40.0], n_tokens=[3, 10])["entropy_nats"]
    assert (found.value, found.n, found.unit) == (43 / 13, 2, "nats")
    assert found.higher_is_better is None
    ratio = 43 / 13
    residuals = (3 - 3 * ratio) ** 2 + (40 - 10 * ratio) ** 2
    assert found.stderr == pytest.approx(math.sqrt(2 / 1 * residuals) / 13, rel=1e-14)
    assert found.interval == "delta-t95"


def test_documents_of_one_rate_prove_no_certainty():
    found = ppl([-6.0, -4.0, -10.0], n_tokens=[3, 2, 5])
    assert found["token_perplexity"].value == math.exp(2)
    for name in ("token_perplexity", "nats_per_token"):
        ends = (found[name].low, found[name].high, found[name].interval)
        assert (found[name].stderr, *ends) == (0.0, None, None, None)
        assert found[name].no_interval == "constant"
    same = compute(entropy.METRIC, entropy_nats=[6.0, 4.0], n_tokens=[3, 2])["entropy_nats"]
    assert (same.value, same.stderr, same.low, same.interval) == (2.0, 0.0, None, None)


def test_an_end_beyond_doubles_is_none():
    found = ppl([-1e308, -1.5e308, -0.1e308], n_tokens=[1, 1, 1])
    nats = found["nats_per_token"]
    assert nats.value == pytest.approx(2.6 / 3 * 1e308, rel=1e-15)
    assert nats.stderr is not None
    assert (nats.low, nats.high, nats.interval) == (None, None, None)
    assert nats.no_interval == "overflow"
    wide = ppl([-1.0, -1300.0], n_tokens=[1, 1])["token_perplexity"]
    assert wide.value == pytest.approx(math.exp(650.5), rel=1e-12)
    assert (wide.low, wide.interval, wide.no_interval) == (None, None, "overflow")


def test_entropy_that_no_engine_saw():
    column = pa.array([None, None], pa.float64())
    found = compute(entropy.METRIC, entropy_nats=column, n_tokens=[3, 4])["entropy_nats"]
    assert (found.value, found.reason) == (None, "not measured")
    columns: dict[str, list[Any]] = {
        "entropy_nats": [1.0, None, NAN, INF],
        "n_tokens": [1, 5, 5, 5],
    }
    assert compute(entropy.METRIC, **columns)["entropy_nats"].value == 1.0
    assert notes(entropy.METRIC, **columns) == {
        "entropy_nats_unmeasured": 1,
        "entropy_nats_invalid": 2,
    }
    empty = compute(entropy.METRIC, entropy_nats=[0.0], n_tokens=[0])["entropy_nats"]
    assert empty.reason == "no tokens"
    broken = compute(entropy.METRIC, entropy_nats=[NAN], n_tokens=[1])["entropy_nats"]
    assert broken.reason == "no valid document"
    with pytest.raises(DataError, match="a count is not negative"):
        compute(entropy.METRIC, entropy_nats=[1.0], n_tokens=[-1])


def test_greedy_accuracy():
    columns = {"is_greedy": [True] * 3 + [False] * 7 + [None]}
    found = compute(greedy.METRIC, **columns)["greedy_accuracy"]
    expected = binomtest(3, 10).proportion_ci(method="wilson")
    assert (found.value, found.n, found.interval) == (0.3, 10, "wilson95")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-12)
    assert notes(greedy.METRIC, **columns) == {"greedy_accuracy_unmeasured": 1}
    unknown = compute(greedy.METRIC, is_greedy=pa.array([None], pa.bool_()))["greedy_accuracy"]
    assert (unknown.value, unknown.reason) == (None, "not measured")
    with pytest.raises(DataError, match="is_greedy: expected a boolean, found int64"):
        compute(greedy.METRIC, is_greedy=[1])


def test_a_negative_log_likelihood_is_refused():
    with pytest.raises(DataError, match=r"logprob_nats is 30\.0: .* has the other sign"):
        ppl([30.0, 20.0])
    with pytest.raises(DataError, match=r"entropy_nats is -1\.0"):
        compute(entropy.METRIC, entropy_nats=[-1.0, 2.0], n_tokens=[1, 1])
    assert ppl([1e-9])["token_perplexity"].value == pytest.approx(1.0)  # rounding of an engine


def test_intervals_end_where_the_number_does():
    found = ppl([-0.01, -9.0, -0.02], n_tokens=[5, 2, 4])
    assert (found["token_perplexity"].low, found["nats_per_token"].low) == (1.0, 0.0)
    low = compute(entropy.METRIC, entropy_nats=[0.01, 9.0], n_tokens=[5, 2])["entropy_nats"].low
    assert low == 0.0


@pytest.mark.parametrize("huge", [1e300, 1.7e308])
def test_numbers_beyond_doubles_stay_out_of_json(huge: float):
    for found in (
        ppl([-huge, -huge / 2, -1.0]),
        compute(entropy.METRIC, entropy_nats=[huge, huge / 2, 1.0], n_tokens=[1, 2, 3]),
    ):
        for estimate in found.values():
            numbers = (estimate.value, estimate.stderr, estimate.low, estimate.high)
            assert all(number is None or math.isfinite(number) for number in numbers)
