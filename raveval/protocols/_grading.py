"""What the judging protocols share: asking for a verdict with a budget, and finding it again.

A judge that says nothing readable is asked again with another seed, a bounded number of times; all
that it said is kept. A reply's label says which verdict it was asked for and at which attempt
("2.0": the third sample's first attempt), so that stored replies can be read by a better parser
without asking again. What was asked after that no longer counts, except as an attempt.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import pyarrow as pa

from raveval.judging import Verdict
from raveval.protocols import Ask, TaskSettings
from raveval.types import Answers, Completion, Failure, Generate, Reply, Status

Value = TypeVar("Value", int, str)
Read = Callable[[Completion], Verdict[Value]]


@dataclass(frozen=True, slots=True)
class Asked(Generic[Value]):
    """One verdict as it was asked for.

    Attributes:
        value: the verdict; None where none could be read within the budget.
        feedback: what the judge wrote before it, or at the last attempt.
        refused: why each unreadable attempt was, in their order.
        failure: the engine's, where it did not answer; nothing else is known then.
    """

    value: Value | None
    feedback: str
    refused: tuple[str, ...]
    failure: Failure | None = None


async def ask_verdict(
    question: Generate, purpose: str, ask: Ask, settings: TaskSettings, read: Read[Value]
) -> list[Reply]:
    """Ask for one verdict until it can be read, the engine fails or the budget is spent.

    Args:
        question: what is asked, under the key of its example; each attempt has its own key and
            seed, derived from the run's seed, the example and the label alone.
        purpose: which verdict it is, the first part of its replies' labels.
        ask: how to reach the judge.
        settings: the run's seed, and how many attempts there may be.
        read: what finds the verdict in an answer.
    """
    replies: list[Reply] = []
    for attempt in range(settings.grading.max_attempts):
        label = f"{purpose}.{attempt}"
        seed = settings.sampling_seed(question.key, label)
        sampling = dataclasses.replace(question.sampling, seed=seed)
        reply = await ask(
            dataclasses.replace(question, key=f"{question.key}#{label}", sampling=sampling)
        )
        if not isinstance(reply, Completion | Failure):
            raise TypeError(f"the engine answered a prompt with {type(reply).__name__}")
        replies.append(dataclasses.replace(reply, label=label))
        if isinstance(reply, Failure) or read(reply).value is not None:
            break
    return replies


def unanswered(answers: Answers) -> Failure | None:
    """Return why nothing was asked: a failure without a label is the whole example's."""
    if not answers:
        return Failure(Status.FAILED, "there are no replies to it")
    first = answers[0]
    return first if isinstance(first, Failure) and not first.label else None


def verdicts(answers: Answers, read: Read[Value]) -> Mapping[str, Asked[Value]]:
    """Return what was made of each verdict that was asked for, by purpose, in their order."""
    attempts: dict[str, list[Completion | Failure]] = {}
    for reply in answers:
        if not isinstance(reply, Completion | Failure):
            raise TypeError(f"unexpected {type(reply).__name__} in the stored replies")
        attempts.setdefault(reply.label.rpartition(".")[0], []).append(reply)
    return {purpose: _asked(replies, read) for purpose, replies in attempts.items()}


def _asked(replies: Sequence[Completion | Failure], read: Read[Value]) -> Asked[Value]:
    feedback, refused = "", list[str]()
    for reply in replies:
        if isinstance(reply, Failure):
            return Asked(None, feedback, tuple(refused), reply)
        found = read(reply)
        feedback = found.feedback
        if found.value is not None:
            return Asked(found.value, feedback, tuple(refused))
        refused.append(found.reason or "no verdict")
    return Asked(None, feedback, tuple(refused))


def refusals(asked: Iterable[Asked[Value]]) -> list[str]:
    """Return why each unreadable attempt was, over several verdicts."""
    return [reason for each in asked for reason in each.refused]


def failures(asked: Iterable[Asked[Value]]) -> list[str]:
    """Return which verdicts an engine failed on, "status: message", over several of them."""
    failed = (each.failure for each in asked)
    return [f"{each.status}: {each.message}" for each in failed if each is not None]


def unjudged(asked: Iterable[Asked[Value]]) -> str:
    """Say why there is no verdict: how many attempts were refused, and for what."""
    reasons = Counter(refusals(each for each in asked if each.value is None))
    shown = ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items()))
    return f"no usable verdict in {reasons.total()} attempts ({shown})"


def count_attempts(records: pa.Table) -> dict[str, int]:
    """Return how often judges were asked, and how many attempts gave no verdict, by reason.

    Verdicts that the judge's engine failed on are counted by its status, also those of examples
    whose other verdicts are enough for a score.
    """
    attempts = (n or 0 for n in records["n_attempts"].to_pylist())
    refused = Counter(
        reason for reasons in records["refused"].to_pylist() for reason in reasons or ()
    )
    by_reason = {f"refused_{reason.replace(' ', '_')}": n for reason, n in sorted(refused.items())}
    failed = Counter(
        text.partition(":")[0]
        for texts in records["judge_failures"].to_pylist()
        for text in texts or ()
    )
    by_status = {f"judge_{status}": n for status, n in sorted(failed.items())}
    return {"attempts": sum(attempts), **by_reason, **by_status}
