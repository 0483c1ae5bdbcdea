"""The two passes of a run through replicas: a model answers, then a judge grades the answers.

Never both at once: each has the accelerators to itself, and the judge reads committed replies. One
judge can grade the answers of several runs, and is loaded once for all of them.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from raveval import pipeline
from raveval.config import RunSection
from raveval.errors import DataError, RunError
from raveval.evaluate import Stage, TaskSpec
from raveval.models import ChosenModel
from raveval.progress import Progress
from raveval.protocols import Grading, TaskSettings
from raveval.scoring import n_changed, score_shard, stored
from raveval.store import RunDirectory
from raveval.types import Sampling, Shard
from raveval.worker import RunPart, WorkerSpec
from raveval.worker.watch import Patience

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class HeldRun:
    """A run whose directory this process holds: its tasks and shards, its models, their places.

    `model` is None where a judge alone is at work on it.
    """

    directory: RunDirectory
    specs: Mapping[str, TaskSpec]
    shards: Sequence[Shard]
    section: RunSection
    model: ChosenModel | None
    judge: ChosenModel | None

    def unanswered(self, shards: Sequence[Shard]) -> list[Shard]:
        """Return those of the shards that have no replies."""
        answered = self.directory.over(shards, self._is_answered)
        return [shard for shard, is_there in zip(shards, answered, strict=True) if not is_there]

    def _is_answered(self, shard: Shard) -> bool:
        return stored(self.directory, shard, self.specs[shard.task])[0] is not None

    def ungraded(self, shards: Sequence[Shard]) -> list[Shard]:
        """Return those of the shards, none of which is done, that a judge has to grade."""
        return [shard for shard in shards if self.specs[shard.task].is_graded]

    def part(self, stage: Stage) -> RunPart:
        """Begin a pass through the run; replicas of an earlier one can commit no more."""
        session = uuid.uuid4().hex[:12]
        self.directory.begin_session(session)
        graded_only = stage is Stage.GRADE
        return RunPart(
            directory=self.directory.absolute(),
            session=session,
            tasks={n: spec for n, spec in self.specs.items() if spec.is_graded or not graded_only},
            loaded=self._loaded(stage),
        )

    def _loaded(self, stage: Stage) -> Mapping[str, Any] | None:
        """Return what engine made what a stage has made so far; None where there is nothing."""

        def engine(shard: Shard) -> Mapping[str, Any] | None:
            replies, verdicts = stored(self.directory, shard, self.specs[shard.task])
            made = verdicts if stage is Stage.GRADE else replies
            return None if made is None else made.engine

        shards = self.ungraded(self.shards) if stage is Stage.GRADE else self.shards
        engines = self.directory.over(shards, engine)
        return next((each for each in engines if each is not None), None)


def answer(run: HeldRun, shards: Sequence[Shard], *, say: Say) -> None:
    """Have the model under evaluation answer shards; score those that no judge grades."""
    work = [(0, shard) for shard in shards]
    spec = _spec(run.model, (run.part(Stage.ANSWER),), Stage.ANSWER, run.section)
    _through(work, spec, _placement(Stage.ANSWER, run.section), say)


def grade(runs: Sequence[tuple[HeldRun, Sequence[Shard]]], *, say: Say) -> None:
    """Have one judge grade shards of several runs, and score them.

    The judge and where it runs are those of the first one.
    """
    first = runs[0][0]
    work = [(index, shard) for index, (_, shards) in enumerate(runs) for shard in shards]
    parts = tuple(run.part(Stage.GRADE) for run, _ in runs)
    spec = _spec(first.judge, parts, Stage.GRADE, first.section)
    _through(work, spec, _placement(Stage.GRADE, first.section), say)


def check_room_for_judge(run: HeldRun) -> None:
    """Refuse a judge that the cluster cannot hold, before the candidate answers for nothing.

    Raises:
        ResourceError: what it needs, and what there is.
    """
    spec = _spec(run.judge, (), Stage.GRADE, run.section)
    pipeline.check_room(spec, _placement(Stage.GRADE, run.section))


def _spec(
    model: ChosenModel | None, parts: tuple[RunPart, ...], stage: Stage, section: RunSection
) -> WorkerSpec:
    if model is None:
        raise ValueError(f"there is no model to {stage}")
    return WorkerSpec(
        runs=parts,
        stage=stage,
        engine=model.engine,
        options=model.options,
        model=model.loadable,
        patience=Patience(section.deadline_seconds, section.slowest_tokens_per_second),
    )


def _placement(stage: Stage, section: RunSection) -> pipeline.Placement:
    is_judge = stage is Stage.GRADE
    share = section.judge if is_judge else section
    return pipeline.Placement(
        replicas=share.replicas,
        cpus_per_replica=share.cpus_per_replica,
        gpus_per_replica=share.gpus_per_replica,
        shard_size=section.shard_size,
        examples_in_flight=section.examples_in_flight,
        address=section.address,
        section="run.judge" if is_judge else "run",
        autoscaling=section.autoscaling,
    )


def _through(
    work: Sequence[tuple[int, Shard]], spec: WorkerSpec, placement: pipeline.Placement, say: Say
) -> None:
    """Send shards through the replicas of one model."""
    n_examples = sum(shard.stop - shard.start for _, shard in work)
    began = time.monotonic()
    with Progress(n_examples, say=say) as progress:
        for done in pipeline.execute(work, spec, placement, say=say):
            progress.add(done.n_examples, n_missing=done.n_missing, n_tokens=done.n_tokens)
    verb = {Stage.ANSWER: "answered", Stage.GRADE: "graded"}[spec.stage]
    say(f"{verb} {n_examples} examples in {time.monotonic() - began:.0f} s")


def score_stored(
    directory: RunDirectory, shards: Sequence[Shard], manifest: Mapping[str, Any], say: Say
) -> list[Shard]:
    """Score the shards of which all is stored, say what that changed, and return the others."""
    specs = {name: task_spec(entry) for name, entry in manifest["tasks"].items()}
    missing = []
    compared, changed = Counter[str](), Counter[str]()

    def score(shard: Shard) -> tuple[int, int] | None:
        """Return how many examples were scored before, and how many of them otherwise."""
        task = specs[shard.task]
        replies, verdicts = stored(directory, shard, task)
        if replies is None or (task.is_graded and verdicts is None):
            return None
        before = _earlier_records(directory, shard)
        try:
            score_shard(directory, shard, task, replies, verdicts)
        except OSError as exc:
            raise RunError(
                f"{directory.path}: task {shard.task!r}, shard {shard.index}: {exc}. What was "
                "committed is kept: mend that, and run the same command again"
            ) from exc
        if before is None:
            return 0, 0
        return len(before), n_changed(before, directory.read_records(shard), task)

    for shard, found in zip(shards, directory.over(shards, score), strict=True):
        if found is None:
            missing.append(shard)
        elif found[0]:
            compared[shard.task] += found[0]
            changed[shard.task] += found[1]
    for name, n in compared.items():
        say(f"{name}: scored {n} examples again, {changed[name]} have another status or score")
    return missing


def _earlier_records(directory: RunDirectory, shard: Shard) -> pa.Table | None:
    """Return a shard's records as they were last scored; None where there are none to read."""
    if not directory.has_records(shard):
        return None
    try:
        return directory.read_records(shard)
    except DataError:
        return None  # torn or rotten; they are about to be made again


def task_spec(entry: Mapping[str, Any]) -> TaskSpec:
    """Return what workers need of a task's entry in run.json.

    Raises:
        DataError: the entry is none that raveval writes.
    """
    try:
        return _task_spec(entry)
    except (LookupError, TypeError, ValueError) as exc:
        raise DataError(
            f"run.json: the settings of a task are not what raveval writes there ({exc}); the same "
            "run again writes them anew"
        ) from exc


def _task_spec(entry: Mapping[str, Any]) -> TaskSpec:
    settings = dict(entry["settings"])
    judge_sampling = settings.pop("judge_sampling", None)
    return TaskSpec(
        protocol=entry["protocol"],
        settings=TaskSettings(
            sampling=_sampling(settings.pop("sampling")),
            judge_sampling=None if judge_sampling is None else _sampling(judge_sampling),
            grading=Grading(**settings.pop("grading", {})),
            **settings,
        ),
        metrics=tuple(entry["metrics"]),
        reply_fingerprint=entry["reply_fingerprint"],
        score_fingerprint=entry["score_fingerprint"],
        verdict_fingerprint=entry.get("verdict_fingerprint"),
    )


def _sampling(content: Mapping[str, Any]) -> Sampling:
    return Sampling(**{**content, "stop": tuple(content["stop"])})
