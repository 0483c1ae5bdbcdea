"""Which numbers a task is quoted by: first in its report, and what a comparison rests on."""

from __future__ import annotations

from collections.abc import Iterable

HEADLINE = (
    "accuracy",
    "relative_improvement",
    "exact_match",
    "f1",
    "greedy_accuracy",
    "token_perplexity",
    "word_perplexity",
    "byte_perplexity",
    "char_perplexity",
    "bits_per_byte",
    "nats_per_token",
    "entropy_nats",
    "pearson",
    "spearman",
    "kendall_tau_b",
    "accuracy_without_human_ties",
    "accuracy_strict",
    "win_rate",
    "mean_rating",
    "exact_agreement",
)
"""Estimates that a task is quoted by, in this order."""

PER_TOKEN = ("token_perplexity", "token_perplexity_finite", "nats_per_token", "entropy_nats")
"""Estimates that mean something else where another run's tokenizer cuts other tokens."""


def primary(names: Iterable[str]) -> str | None:
    """Return the one of these estimates that a task's conclusion rests on; None of unknown ones.

    It is the first that the task is quoted by; those per token come last, as they cannot be
    compared between tokenizers.

    >>> primary(["token_perplexity", "word_perplexity"])
    'word_perplexity'
    """
    known = set(names)
    quoted = [name for name in HEADLINE if name in known]
    return next((name for name in quoted if name not in PER_TOKEN), next(iter(quoted), None))
