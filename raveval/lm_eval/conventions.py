"""What is known of lm-eval's files: names, keys, hashes.

Facts of its version 0.4.13, with what differs in 0.3 and early 0.4. Its own tools find files by
these names and read values under these keys.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

NO_FILTER = "none"
NOT_AVAILABLE = "N/A"
"""What stands in the place of a number that is not there."""

NO_METRICS = frozenset({"alias", "name", "sample_len", "sample_count", "samples"})
"""Keys of a task's results that hold no metric."""

SAMPLE_KEYS = frozenset(
    {
        *("doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics"),
        *("doc_hash", "prompt_hash", "target_hash"),
    }
)
"""Columns of a samples file that hold no metric."""

LONG_AGO: Mapping[str, str] = {"ppl": "perplexity", "em": "exact_match"}
"""Metrics that other versions name otherwise."""

FRACTIONS = frozenset(
    {
        *("acc", "acc_norm", "acc_bytes", "acc_mutual_info", "acc_all", "exact_match", "em"),
        *("f1", "pct_stereotype", "contains", "pass@1", "prompt_level_strict_acc"),
        *("inst_level_strict_acc", "prompt_level_loose_acc", "inst_level_loose_acc"),
    }
)
"""Metrics that lie in [0, 1]; some tasks give them in percent, which their values show."""

PERPLEXITIES = frozenset({"perplexity", "ppl", "word_perplexity", "byte_perplexity"})
LOWER_IS_BETTER = PERPLEXITIES | {"bits_per_byte", "brier_score", "ter"}

RAVEVAL = "raveval"
"""The key under which our own files say what lm-eval's have no place for."""

_UNSAFE = re.compile(r'["<>:/|\\?*\[\]]+')
_STEP = re.compile(r"(?:steps?|checkpoint|ckpt|iter)[-_]?(\d+)", re.IGNORECASE)
_STDERR = "_stderr"


class MetricKey(NamedTuple):
    """A key of a task's results: metric, filter (None in files of 0.3), and whether an error."""

    metric: str
    filter: str | None
    is_stderr: bool

    @property
    def stderr_key(self) -> str:
        """Return the key of the metric's standard error."""
        return joined(f"{self.metric}{_STDERR}", self.filter)


def split(key: str) -> MetricKey:
    """Return what a key of a task's results says.

    >>> split("acc_stderr,none")
    MetricKey(metric='acc', filter='none', is_stderr=True)
    >>> split("ppl").stderr_key
    'ppl_stderr'
    """
    metric, comma, filter_name = key.partition(",")
    is_stderr = metric.endswith(_STDERR)
    return MetricKey(metric.removesuffix(_STDERR), filter_name if comma else None, is_stderr)


def joined(metric: str, filter_name: str | None = NO_FILTER) -> str:
    """Return the key of a metric after a filter."""
    return metric if filter_name is None else f"{metric},{filter_name}"


def canonical(key: str) -> str:
    """Return a key that is the same in files of all versions.

    >>> [canonical(key) for key in ("acc", "acc,none", "ppl", "exact_match,strict-match")]
    ['acc', 'acc', 'perplexity', 'exact_match,strict-match']
    """
    metric, filter_name, _ = split(key)
    metric = LONG_AGO.get(metric, metric)
    return metric if filter_name in (None, NO_FILTER) else joined(metric, filter_name)


def model_folder(model: str) -> str:
    """Return the folder of a model's files.

    >>> model_folder("EleutherAI/pythia-14m")
    'EleutherAI__pythia-14m'
    """
    return _UNSAFE.sub("__", model)


def stamp(when: datetime) -> str:
    """Return a moment as file names have it; microseconds always, as their readers expect.

    >>> stamp(datetime(2026, 7, 1, 9, 30, tzinfo=UTC))
    '2026-07-01T09-30-00.000000'
    """
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H-%M-%S.%f")


def training_step(*names: str) -> int | None:
    """Return the step of training that the first of some names holds; None where none does.

    >>> training_step("main", "EleutherAI/pythia-14m-step3000"), training_step("v1.0")
    (3000, None)
    """
    found = (_STEP.findall(name) for name in names)
    return next((int(steps[-1]) for steps in found if steps), None)


def text_hash(text: str) -> str:
    """Return the hash that doc_hash, prompt_hash, target_hash and task_hashes are made with."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def doc_hash(doc: Mapping[str, Any]) -> str:
    """Return the hash of a row of a dataset."""
    return text_hash(json.dumps(doc, indent=2, ensure_ascii=False))
