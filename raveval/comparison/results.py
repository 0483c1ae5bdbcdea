"""What a comparison gives back: differences with their tests, and what they rest on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

UNPAIRED = "unpaired-z"
"""The test that rests on the two standard errors alone."""


class Verdict(StrEnum):
    """What a comparison says, at the 5 % level."""

    BETTER = "better"
    WORSE = "worse"
    DIFFERENT = "different"  # of an estimate that has no better direction
    NOT_SHOWN = "no difference shown"
    IDENTICAL = "identical"  # on each example; no test is needed
    NOT_COMPARABLE = "not comparable"  # per token, and the tokens differ
    NOT_TESTED = "not tested"


@dataclass(frozen=True, slots=True)
class Difference:
    """How a run differs from the baseline in one estimate, on the examples they have in common.

    Attributes:
        task, run, metric: of what; `run` is the directory as it was given.
        baseline, value: the estimate in the baseline and in the run; None where it is undefined.
        difference: value - baseline.
        reason: why there is no difference; where there is one, why it is not tested.
        low, high, interval: its 95 % interval and how it was made ("newcombe95", "cluster-t95",
            "expanded-bootstrap95", "unpaired-wald95").
        ratio: value / baseline, where errors are those of its logarithm (perplexities); with
            `ratio_low`, `ratio_high`, `ratio_detectable` as `low`, `high`, `detectable`.
        p, test: two-sided p-value and the test ("mcnemar-exact", "paired-bootstrap", "cluster-t";
            "unpaired-z" where the examples of a run are not there: what counts pairs is then 0).
        p_holm: adjusted for the family; None outside of the family.
        stderr, detectable: standard error, and the true difference that such a comparison shows in
            80 % of all cases, tested two-sided at 5 %.
        n: paired examples that both runs' estimate could use.
        n_units: independent units among them: examples, or clusters where they share some.
        n_differing: those of them in which the runs differ on any example.
        n_only_baseline, n_only_run: examples right in one run only, where each is right or wrong.
        n_replicates: of the bootstrap.
        has_other_denominators: the runs divide by other counts on the same example, as they do per
            token where their tokenizers differ, and in a share that a judge's ties are left out of.
    """

    task: str
    run: str
    metric: str
    unit: str
    higher_is_better: bool | None
    baseline: float | None
    value: float | None
    difference: float | None
    verdict: Verdict = Verdict.NOT_TESTED
    reason: str | None = None
    low: float | None = None
    high: float | None = None
    interval: str | None = None
    p: float | None = None
    test: str | None = None
    p_holm: float | None = None
    stderr: float | None = None
    detectable: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    ratio_detectable: float | None = None
    n: int = 0
    n_units: int = 0
    n_differing: int = 0
    n_only_baseline: int | None = None
    n_only_run: int | None = None
    n_replicates: int | None = None
    has_other_denominators: bool = False

    @property
    def is_unpaired(self) -> bool:
        """Whether it rests on the two standard errors alone."""
        return self.test == UNPAIRED

    @property
    def is_identical(self) -> bool:
        """Whether the runs have the same scores on every paired example."""
        return self.test is not None and not self.is_unpaired and self.n_differing == 0


@dataclass(frozen=True, slots=True)
class Pairing:
    """Which examples of a task a run has in common with the baseline; the sum is all of them.

    `n_clusters` is None where no two paired examples share a cluster. Where the examples of a run
    are not there, none is paired (`is_paired` is False), and the numbers are compared unpaired.
    """

    task: str
    run: str
    n_paired: int
    n_only_baseline: int
    n_only_run: int
    n_neither: int
    n_clusters: int | None
    is_paired: bool = True


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """A run directory, as it was given, and its model."""

    directory: str
    model: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """All differences between a baseline and other runs.

    `remarks` say what was left out and what must be known to read the numbers.
    """

    baseline: ComparedRun
    runs: tuple[ComparedRun, ...]
    pairings: tuple[Pairing, ...]
    differences: tuple[Difference, ...]
    remarks: tuple[str, ...] = ()

    @property
    def family(self) -> tuple[Difference, ...]:
        """The tests over which Holm's correction holds."""
        return tuple(each for each in self.differences if each.p_holm is not None)
