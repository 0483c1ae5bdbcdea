"""The values that travel: examples, requests, replies, shards, estimates. Standard library only.

Everything here is frozen, and safe to share between coroutines, processes and runs. Units are in
the names: `_nats`, `_tokens`, `_bytes`, `_seconds`; `n_` counts. Fractions lie in [0, 1].
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal


class Status(StrEnum):
    """What became of one example. Every attempted example has exactly one."""

    OK = "ok"
    UNPARSED = "unparsed"  # the candidate gave no usable answer: scored, as incorrect
    TRUNCATED = "truncated"  # scored, on a shortened prompt, only where the task allows it
    INVALID = "invalid"  # nothing to ask or to score (an empty document): missing
    OVERLONG = "overlong"  # does not fit the model's context: missing
    UNJUDGED = "unjudged"  # the judge gave no usable verdict: missing
    UNRESOLVED = "unresolved"  # the budget for ties is spent: missing
    FAILED = "failed"  # the engine refused or broke on it: missing
    QUARANTINED = "quarantined"  # its engine died on it repeatedly: missing

    @property
    def is_scored(self) -> bool:
        """Whether the example enters the metrics; every other one counts as missing."""
        return self in (Status.OK, Status.UNPARSED, Status.TRUNCATED)


@dataclass(frozen=True, slots=True)
class Message:
    """One chat turn."""

    role: Literal["system", "user", "assistant"]
    content: str


Prompt = str | tuple[Message, ...]
"""A plain completion prompt, or chat turns that go through the model's own chat template."""


def row_key(example_id: str) -> int:
    """Return the unsigned 64-bit key of an example id; equal on every machine.

    >>> row_key("a")
    4681665781835383343
    """
    return int.from_bytes(hashlib.blake2b(example_id.encode(), digest_size=8).digest(), "big")


@dataclass(frozen=True, slots=True)
class Example:
    """One example as it is asked: its prompt is rendered, shots included.

    Attributes:
        id: unique within its task and stable on any machine.
        prompt: context of the choices, or the question to complete; empty for a document.
        unconditional_prompt: context of the choices without the question (Catwalk's unconditional
            scoring); None where the task does not measure it.
        continuations: the choices as scored. With a plain prompt each begins with the boundary
            space; a context never ends in one.
        gold: index of the right continuation; None where there is none.
        references: answers that count as right, for question answering.
        second_prompt: with two prompts of a judge, that of response b (ranking), or the one that
            shows the responses in the other order (relative grading).
        reference_ratings: what a trusted rater gave, one or several times.
        preferred: the response that a person preferred: "a", "b" or "tie".
        text: the document of language modelling, as it is scored.
        n_words, n_words_whitespace, n_bytes, n_chars: size of the original document, counted before
            any detokenisation, as published numbers are; `n_words` is what word perplexity divides
            by (runs of white space plus one), the other is `len(text.split())`.
        group: subject, for numbers by group.
        cluster: unit of independence (say, a passage with several questions).
        fields: further columns that a protocol asks for, as text.
    """

    id: str
    prompt: Prompt = ""
    unconditional_prompt: Prompt | None = None
    continuations: tuple[str, ...] = ()
    gold: int | None = None
    references: tuple[str, ...] = ()
    second_prompt: Prompt | None = None
    reference_ratings: tuple[float, ...] = ()
    preferred: str | None = None
    text: str = ""
    n_words: int = 0
    n_words_whitespace: int = 0
    n_bytes: int = 0
    n_chars: int = 0
    group: str | None = None
    cluster: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def row_key(self) -> int:
        """The unsigned 64-bit key by which examples are permuted and accounted for."""
        return row_key(self.id)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How text is generated; the seed is derived from (run seed, example, purpose), never shared.

    `stop` strings end the output and are not part of it.
    """

    max_output_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Generate:
    """Ask for one completion of `prompt`."""

    key: str
    prompt: Prompt
    sampling: Sampling
    may_truncate: bool = False


@dataclass(frozen=True, slots=True)
class ScoreChoices:
    """Ask for the log-likelihood of each continuation after one context.

    With `unconditional_context` each is also scored after that one, which leaves the question out.

    The scored tokens of a continuation are those of `encode(context + continuation)` after the
    context's own. An engine may compute the shared context once.
    """

    key: str
    context: Prompt
    continuations: tuple[str, ...]
    unconditional_context: Prompt | None = None
    may_truncate: bool = False


@dataclass(frozen=True, slots=True)
class ScoreDocument:
    """Ask for the log-likelihood of a whole document, each of its tokens scored exactly once.

    A document longer than the context is scored in rolling windows; nothing is cut off.
    """

    key: str
    text: str


Request = Generate | ScoreChoices | ScoreDocument


@dataclass(frozen=True, slots=True)
class Completion:
    """A generated text; `finish_reason` is "stop" (a stop string or end token) or "length".

    `label` is the protocol's: which of its several questions this answers.
    """

    text: str
    finish_reason: Literal["stop", "length"]
    n_prompt_tokens: int
    n_output_tokens: int
    n_truncated_tokens: int = 0
    label: str = ""


@dataclass(frozen=True, slots=True)
class ChoiceScores:
    """Sums over the tokens of each continuation, in the order of the request; shape `(k,)`.

    `is_greedy[j]`: each token of continuation j is the single most probable one in its place.
    `n_prompt_tokens` counts every token of every sequence asked for, whether or not the engine
    could share work between them, so that it depends on the request alone.
    """

    logprob_nats: tuple[float, ...]
    unconditional_nats: tuple[float, ...] | None
    n_tokens: tuple[int, ...]
    is_greedy: tuple[bool, ...]
    n_context_tokens: int
    n_prompt_tokens: int
    n_truncated_tokens: int = 0


@dataclass(frozen=True, slots=True)
class DocumentScore:
    """Sums over all tokens of a document.

    Attributes:
        logprob_nats: sum of the tokens' log-probabilities.
        entropy_nats: sum over the same positions of the Shannon entropy of the predicted
            distribution over the full vocabulary; None where the engine sees only a part of it.
        n_tokens: tokens scored; equals the document's tokens.
        n_windows, window_tokens: how many windows, and the most tokens a window holds.
        first_token_context: what the first token was conditioned on, "bos" or "eos".
    """

    logprob_nats: float
    entropy_nats: float | None
    n_tokens: int
    n_windows: int
    window_tokens: int
    first_token_context: Literal["bos", "eos"]
    n_prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an example has no answer, as a value: it is counted, and the rest goes on."""

    status: Status
    message: str
    label: str = ""


Reply = Completion | ChoiceScores | DocumentScore | Failure
Answers = tuple[Reply, ...]
"""All that the candidate made for one example, in the order it was asked."""


@dataclass(frozen=True, slots=True)
class AdapterRef:
    """A LoRA adapter: a local directory or a hub id with its revision."""

    path: str | None = None
    id: str | None = None
    revision: str | None = None

    @property
    def name(self) -> str:
        """The directory or the hub id."""
        return self.path or self.id or ""


@dataclass(frozen=True, slots=True)
class ModelRef:
    """The model under evaluation: a local directory or a hub id with its revision.

    `dtype` is "auto" (float32 on CPUs, the checkpoint's own on GPUs), "float32", "bfloat16" or
    "float16"; `max_model_len` caps the context in tokens, None means the model's own. `adapter`
    changes the weights; tokenizer and chat template stay the model's.
    """

    path: str | None = None
    id: str | None = None
    revision: str | None = None
    dtype: str = "auto"
    max_model_len: int | None = None
    adapter: AdapterRef | None = None

    @property
    def name(self) -> str:
        """What engines load: the directory or the hub id."""
        return self.path or self.id or ""

    @property
    def title(self) -> str:
        """What reports call it: its name, and that of its adapter."""
        return self.name if self.adapter is None else f"{self.name} + {self.adapter.name}"


@dataclass(frozen=True, slots=True)
class Shard:
    """Rows [start, stop) of a task's examples in their fixed pseudo-random order."""

    task: str
    index: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """One reported number, or the reason why there is none.

    Attributes:
        value: None exactly when `reason` is given ("n=0", "constant", "no words", "overflow", …).
        unit: "fraction", "nats", "bits", "perplexity", "ratio", …
        n: examples (or tokens, words, …: what the metric's docstring says) it rests on; 0 where
            the number was imported and the file does not say.
        stderr, low, high: standard error and 95 % interval; None where the metric has none.
        interval: how the interval was made, one of the identifiers that the docstring of
            `raveval.metrics._intervals` lists with their sources ("wilson95", "delta-t95", …).
        no_interval: why a value has no interval ("one cluster", "constant", "no method", …: listed
            there, too); None where it has one, where there is no value, and in results that were
            written before reasons were kept.
    """

    value: float | None
    unit: str
    n: int
    reason: str | None = None
    stderr: float | None = None
    low: float | None = None
    high: float | None = None
    interval: str | None = None
    higher_is_better: bool | None = None
    no_interval: str | None = None


@dataclass(frozen=True, slots=True)
class Categories:
    """What the values along one side of a table of counts are, ascending, as text.

    `step` is given where there are too many different values: each label then stands for those that
    are nearest to it, labels being multiples of the step.
    """

    name: str
    labels: tuple[str, ...]
    step: float | None = None


@dataclass(frozen=True, slots=True)
class CountTable:
    """How often each value occurs, or each pair of values; always small enough to be drawn.

    `counts` has the shape `(len(rows.labels), len(columns.labels))`; without columns it has one.
    """

    rows: Categories
    columns: Categories | None
    counts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Coverage:
    """What became of the attempted examples: attempted = the sum of `by_status`."""

    by_status: Mapping[str, int]

    @property
    def n_attempted(self) -> int:
        """All examples of the task."""
        return sum(self.by_status.values())

    @property
    def n_scored(self) -> int:
        """Those that entered the metrics."""
        return sum(n for status, n in self.by_status.items() if Status(status).is_scored)


@dataclass(frozen=True, slots=True)
class Usage:
    """What a task cost. Tokens depend on the requests alone; seconds do not."""

    n_prompt_tokens: int = 0
    n_output_tokens: int = 0
    engine_seconds: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        """Sum two costs."""
        return Usage(
            self.n_prompt_tokens + other.n_prompt_tokens,
            self.n_output_tokens + other.n_output_tokens,
            self.engine_seconds + other.engine_seconds,
        )


@dataclass(frozen=True, slots=True)
class TaskResults:
    """The numbers of one task: `metrics` pooled over all examples, `groups` by subject.

    `macro` are unweighted means over the groups, each subject counting once; `metrics` are the
    micro averages, each example counting once.
    `notes` are counts that explain the metrics: ties, examples that one of them cannot rank, ….
    `failures` maps the ids of the first missing examples to "status: message". `source` says where
    the examples and the shots come from, and which limit was set. `usage` is the cost of the model
    under evaluation, `judge_usage` that of the judge, where one grades its answers. `tables` are
    distributions, of ratings mostly, by name. `num_fewshot` and `version` are None only where the
    numbers were imported and the file does not say.
    """

    metrics: Mapping[str, Estimate]
    coverage: Coverage
    usage: Usage
    protocol: str
    num_fewshot: int | None
    version: int | None
    groups: Mapping[str, Mapping[str, Estimate]] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, int] = field(default_factory=dict)
    source: Mapping[str, str] = field(default_factory=dict)
    macro: Mapping[str, Estimate] = field(default_factory=dict)
    judge_usage: Usage | None = None
    tables: Mapping[str, CountTable] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Results:
    """What a run found out.

    `fingerprints` are those of the replies and of the scores, by task. `times` is all that may
    differ between two runs of the same thing.
    """

    model: str
    tasks: Mapping[str, TaskResults]
    fingerprints: Mapping[str, Mapping[str, str]]
    settings: Mapping[str, object]
    times: Mapping[str, object] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether each attempted example was scored."""
        return all(t.coverage.n_scored == t.coverage.n_attempted for t in self.tasks.values())
