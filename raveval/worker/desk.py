"""One run's part of what a replica does: its shards are answered or graded, scored, committed.

A shard whose process died while its driver lived is taken up again; after two deaths it is asked
with nothing else in the engine, after three example by example, and an example that was alone in
the engine at two deaths is quarantined: one poisonous row costs itself, not the run. The shards
that were beside it are asked for one by one, but their examples are not.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from raveval.engines import EngineDied
from raveval.errors import RunError
from raveval.evaluate import (
    OnEach,
    Stage,
    TaskSpec,
    answer_examples,
    grade_examples,
    read_replies,
    replies_table,
    usage_of,
)
from raveval.scoring import score_shard, stored, verdicts_fingerprint
from raveval.store import Attempt, Receipt, Replies, RunDirectory
from raveval.store.replicas import WITHOUT_WORDS
from raveval.types import Answers, Example, Failure, Shard, Status
from raveval.worker.turns import Gate, SharedClock
from raveval.worker.watch import Watched

_AskSome = Callable[[Sequence[Example], OnEach | None], Awaitable[list[Answers]]]
_DEATHS_BEFORE_ALONE = 2
_DEATHS_BEFORE_ONE_BY_ONE = 3
_DEATHS_BEFORE_QUARANTINE = 2


@dataclass(frozen=True, slots=True)
class RunPart:
    """What a replica must know of a run.

    Attributes:
        session: the driver's pass through the run that the replica belongs to.
        loaded: what this stage's replies that are there already were made by; another engine is
            refused.
    """

    directory: str
    session: str
    tasks: Mapping[str, TaskSpec]
    loaded: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Done:
    """What the driver hears of a shard that is done, as far as this stage goes."""

    n_examples: int
    n_missing: int
    n_tokens: int


class Desk:
    """Where a replica's engine meets the shards of one run."""

    def __init__(
        self,
        run: RunPart,
        stage: Stage,
        engine: Watched,
        gate: Gate,
        clock: SharedClock,
        *,
        on_answer: Callable[[], None],
    ) -> None:
        self._run = run
        self._on_answer = on_answer
        self._in_engine: dict[Shard, Attempt] = {}
        self._stage = stage
        self._engine = engine
        self._gate = gate
        self._clock = clock
        self._directory = RunDirectory(run.directory)

    def work(self) -> tuple[list[str], str | None]:
        """Return what is in the engine: the shards, and the example that is alone, if one is."""
        alone = [attempt.in_flight for attempt in self._in_engine.values() if attempt.in_flight]
        shards = [f"{shard.task} {shard.index}" for shard in self._in_engine]
        return shards, next(iter(alone), None)

    def leave_words(self, words: str) -> None:
        """Note the engine's last words with the example that it died on."""
        for shard, attempt in self._in_engine.items():
            if attempt.in_flight is not None:
                self._directory.note(shard, replace(attempt, last_words=words))

    async def finish(self, shard: Shard) -> Done:
        """Do what this replica's stage has to do for a shard, unless it is done already."""
        task = self._run.tasks[shard.task]
        # The run's files may be far away: a thread waits for them, and the engine goes on.
        found = await asyncio.to_thread(self._found, shard, task)
        if isinstance(found, Receipt):
            return _scored(found)
        examples, replies, verdicts = found
        if replies is None:
            replies = await self._answered(shard, task, examples)
        if task.is_graded:
            if self._stage is Stage.ANSWER:
                return _answered(read_replies(replies.table, examples))
            if verdicts is None:
                verdicts = await self._graded(shard, task, examples, replies)
        receipt = await asyncio.to_thread(
            score_shard, self._directory, shard, task, replies, verdicts
        )
        return _scored(receipt)

    def _found(
        self, shard: Shard, task: TaskSpec
    ) -> Receipt | tuple[list[Example], Replies | None, Replies | None]:
        """Return a shard's examples, replies and verdicts; its receipt where it is done.

        It may be: committed by a process that died before Ray heard of it.
        """
        done = self._directory.finished(shard, score_fingerprint=task.score_fingerprint)
        if done is not None:
            return done
        self._check_session()
        examples = self._directory.read_examples(shard.task, shard.start, shard.stop)
        return examples, *stored(self._directory, shard, task)

    async def _answered(self, shard: Shard, task: TaskSpec, examples: Sequence[Example]) -> Replies:
        """Have the candidate answer a shard, and commit that.

        Raises:
            RunError: this replica holds the judge, and what it should grade is gone.
        """
        if self._stage is not Stage.ANSWER:
            raise RunError("its replies are gone; run the same command again")

        async def ask(some: Sequence[Example], on_each: OnEach | None) -> list[Answers]:
            return await answer_examples(some, self._engine, task, on_each=on_each)

        return await self._made(shard, task.reply_fingerprint, examples, ask)

    async def _graded(
        self, shard: Shard, task: TaskSpec, examples: Sequence[Example], replies: Replies
    ) -> Replies:
        """Have the judge grade a shard's replies, and commit that."""
        given = read_replies(replies.table, examples)
        answers = {example.id: each for example, each in zip(examples, given, strict=True)}

        async def ask(some: Sequence[Example], on_each: OnEach | None) -> list[Answers]:
            theirs = [answers[example.id] for example in some]
            return await grade_examples(some, theirs, self._engine, task, on_each=on_each)

        return await self._made(shard, verdicts_fingerprint(task, replies), examples, ask)

    async def _made(
        self, shard: Shard, fingerprint: str, examples: Sequence[Example], ask: _AskSome
    ) -> Replies:
        """Question the engine about a shard, and commit what it says."""
        answers, seconds = await self._answers(shard, examples, ask)
        made = Replies(
            table=replies_table(examples, answers),
            fingerprint=fingerprint,
            engine=self._engine.describe(),
            engine_seconds=seconds,
        )
        await asyncio.to_thread(self._commit, shard, made)
        return made

    def _commit(self, shard: Shard, made: Replies) -> None:
        self._check_session()
        self._directory.commit_replies(shard, made, stage=self._stage)

    async def _answers(
        self, shard: Shard, examples: Sequence[Example], ask: _AskSome
    ) -> tuple[list[Answers], float]:
        """Ask once it is the shard's turn; return the answers and its seconds of the engine."""
        attempt = await asyncio.to_thread(
            self._directory.next_attempt, shard, session=self._run.session
        )
        is_alone = attempt.n_deaths >= _DEATHS_BEFORE_ALONE
        is_one_by_one = is_alone and (
            attempt.n_deaths >= _DEATHS_BEFORE_ONE_BY_ONE or len(examples) == 1
        )
        async with contextlib.AsyncExitStack() as turn:
            on_each = None
            if is_alone:
                await turn.enter_async_context(self._gate.exclusive())
            else:
                on_each = await turn.enter_async_context(self._gate.shared(len(examples)))
            # Only now: what waits for its turn has no part in the death of what is inside.
            await asyncio.to_thread(self._directory.note, shard, attempt)
            cost = turn.enter_context(self._clock.running())
            if is_one_by_one:
                answers = []
                for example in examples:
                    answers += await self._ask_alone(shard, example, attempt, ask)
            else:
                answers = await self._asked(shard, attempt, ask(examples, on_each))
        return answers, cost.seconds

    async def _ask_alone(
        self, shard: Shard, example: Example, attempt: Attempt, ask: _AskSome
    ) -> list[Answers]:
        n_deaths = attempt.example_deaths.get(example.id, 0)
        if n_deaths >= _DEATHS_BEFORE_QUARANTINE:
            words = attempt.example_words.get(example.id) or WITHOUT_WORDS
            message = f"the engine's process died {n_deaths} times with this example alone in it"
            return [(Failure(Status.QUARANTINED, f"{message}; the last time: {words}"),)]
        alone = replace(attempt, in_flight=example.id)
        await asyncio.to_thread(self._directory.note, shard, alone)
        answers = await self._asked(shard, alone, ask([example], None))
        await asyncio.to_thread(self._directory.note, shard, attempt)
        return answers

    async def _asked(
        self, shard: Shard, attempt: Attempt, work: Awaitable[list[Answers]]
    ) -> list[Answers]:
        """Wait for the engine; a shard whose engine died stays among those that were in it."""
        self._in_engine[shard] = attempt
        try:
            answers = await self._engine.unless_it_hangs(work)
        except EngineDied:
            raise
        except BaseException:
            del self._in_engine[shard]
            raise
        del self._in_engine[shard]
        await asyncio.to_thread(self._on_answer)
        return answers

    def _check_session(self) -> None:
        """End a replica whose driver is gone: another one may hold the directory now."""
        if not self._directory.is_session(self._run.session):
            os._exit(1)


def _scored(receipt: Receipt) -> Done:
    """Return what the driver hears of a shard that is done."""
    states = receipt.states
    n_scored = sum(n for s, n in states.by_status.items() if Status(s).is_scored)
    usage = states.judge_usage or states.usage
    return Done(
        n_examples=states.n_rows,
        n_missing=states.n_rows - n_scored,
        n_tokens=usage.n_prompt_tokens + usage.n_output_tokens,
    )


def _answered(answers: Sequence[Answers]) -> Done:
    """Return what the driver hears of a shard that waits for the judge."""
    usage = usage_of(answers)
    return Done(
        n_examples=len(answers),
        n_missing=sum(any(isinstance(r, Failure) for r in each) for each in answers),
        n_tokens=usage.n_prompt_tokens + usage.n_output_tokens,
    )
