"""One run from config to results; and what can be asked of a run directory afterwards."""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from raveval import pipeline, report
from raveval.config import RunConfig, load_config
from raveval.errors import DataError
from raveval.evaluate import Stage, TaskSpec
from raveval.plan import (
    Plan,
    make_plan,
    manifest_of,
    reconcile,
    score_fingerprint,
    score_inputs,
)
from raveval.progress import Progress
from raveval.protocols import Grading, TaskSettings
from raveval.reduce import reduce_run
from raveval.reuse import take_over
from raveval.scoring import n_changed, score_shard, stored
from raveval.store import RunDirectory, shards_of
from raveval.types import Results, Sampling, Shard
from raveval.worker import WorkerSpec

Config = RunConfig | Mapping[str, Any] | str | Path
Say = Callable[[str], None]


def _silent(_: str) -> None:
    return


def run(config: Config, *, say: Say = _silent) -> Results:
    """Evaluate what a config asks for, or what is still missing of it, and write the report.

    Args:
        config: a `RunConfig`, the same as nested dictionaries, or the path of a YAML file.
        say: hears what is going on, a line at a time.

    Returns:
        The results, also written to results.json and report.md in the run directory.

    Raises:
        Refused: the run cannot be carried out as asked; nothing was started.
        RunError: it broke; what was committed is kept, and the same call goes on from there.
    """
    checked = load_config(config)
    planned = make_plan(checked, say=say)
    directory = RunDirectory(checked.run.output)
    with directory.held():
        # Another driver may have been at work between the plan and the lock.
        sizes = reconcile(directory, planned.tasks, checked.run.shard_size)
        planned = dataclasses.replace(planned, shard_sizes=sizes)
        manifest = _prepare(directory, planned)
        shards = planned.shards()
        if checked.run.retry_failed:
            n_dropped = sum(directory.drop_failed(shard) for shard in shards)
            say(f"{n_dropped} shards with failed examples are asked again")
        if checked.run.answers_from is not None:
            take_over(checked.run.answers_from, directory, manifest, shards, say=say)
        wanted = {n: entry["score_fingerprint"] for n, entry in manifest["tasks"].items()}
        unscored = [
            shard
            for shard in shards
            if directory.finished(shard, score_fingerprint=wanted[shard.task]) is None
        ]
        missing = _score_stored(directory, unscored, manifest, say)
        if len(missing) < len(shards):
            say(f"{len(shards) - len(missing)} of {len(shards)} shards are done already")
        if missing:
            with pipeline.cluster(checked.run.address):
                _execute(directory, planned, manifest, missing, say)
        manifest["finished"] = _now()
        directory.write_manifest(manifest)
        return _write_results(directory, manifest)


def plan(config: Config, *, say: Say = _silent) -> Plan:
    """Check a config and say what it would do, without loading a model or writing anything.

    Raises:
        Refused: what speaks against the run.
    """
    return make_plan(load_config(config), say=say)


def rescore(directory: str | Path, *, say: Say = _silent) -> Results:
    """Score the stored replies of a run again, with the metrics as they are now; no model.

    `say` hears of each task how many examples have another status or score than before.

    Raises:
        DataError: no run there, or replies are missing.
    """
    run_directory = RunDirectory(directory)
    manifest = _manifest(run_directory)
    with run_directory.held():
        for entry in manifest["tasks"].values():
            spec = task_spec(entry)
            entry["score"] = score_inputs(spec.protocol, spec.settings, spec.metrics)
            entry["score_fingerprint"] = score_fingerprint(
                entry["reply"], entry.get("verdict"), entry["score"]
            )
        run_directory.write_manifest(manifest)
        shards = [
            shard
            for name, entry in manifest["tasks"].items()
            for shard in shards_of(name, entry["n_examples"], entry["shard_size"])
        ]
        unanswered = _score_stored(run_directory, shards, manifest, say)
        if unanswered:
            raise DataError(
                f"{directory}: {len(unanswered)} of {len(shards)} shards have no stored replies, "
                "or no verdicts on them; "
                "run the run to its end first"
            )
        say(f"{len(shards)} shards scored again")
        return _write_results(run_directory, manifest)


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """How far a task is; `by_status` counts the examples of its finished shards.

    `n_shards_to_grade` are answered, and wait for the judge.
    """

    n_shards: int
    n_shards_done: int
    n_examples: int
    by_status: Mapping[str, int]
    n_shards_to_grade: int = 0


@dataclass(frozen=True, slots=True)
class RunStatus:
    """How far a run is."""

    directory: str
    model: str
    complete: bool
    tasks: Mapping[str, TaskStatus]


def status(directory: str | Path) -> RunStatus:
    """Say how far a run is, from its files alone.

    Raises:
        DataError: no run there.
    """
    run_directory = RunDirectory(directory)
    manifest = _manifest(run_directory)
    tasks = {}
    for name, entry in manifest["tasks"].items():
        shards = shards_of(name, entry["n_examples"], entry["shard_size"])
        wanted = entry["score_fingerprint"]
        found = [run_directory.finished(shard, score_fingerprint=wanted) for shard in shards]
        receipts = [receipt for receipt in found if receipt is not None]
        by_status: Counter[str] = Counter()
        for receipt in receipts:
            by_status.update(receipt.states.by_status)
        spec = task_spec(entry)
        missing = [shard for shard, receipt in zip(shards, found, strict=True) if receipt is None]
        tasks[name] = TaskStatus(
            len(shards),
            len(receipts),
            entry["n_examples"],
            dict(sorted(by_status.items())),
            sum(stored(run_directory, shard, spec)[0] is not None for shard in missing)
            if spec.is_graded
            else 0,
        )
    complete = all(task.n_shards == task.n_shards_done for task in tasks.values())
    return RunStatus(str(directory), manifest["model"], complete, tasks)


def load_results(directory: str | Path) -> Results:
    """Return the results that a finished run wrote.

    Raises:
        DataError: no results there.
    """
    path = Path(directory) / "results.json"
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(
            f"{path}: no such file; `raveval status {directory}` says how far the run is"
        ) from None
    return report.from_json(text)


def task_spec(entry: Mapping[str, Any]) -> TaskSpec:
    """Return what workers need of a task's entry in run.json."""
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


def _prepare(directory: RunDirectory, planned: Plan) -> dict[str, Any]:
    """Commit what is asked and by what, before anything is asked."""
    earlier = directory.read_manifest()
    manifest = manifest_of(planned, earlier, started=_now())
    for task in planned.tasks:
        digest = task.examples_digest
        if not directory.has_examples(task.name, digest=digest):
            directory.write_examples(task.name, task.examples, digest=digest)
    directory.write_manifest(manifest)
    return manifest


def _execute(
    directory: RunDirectory,
    planned: Plan,
    manifest: Mapping[str, Any],
    missing: Sequence[Shard],
    say: Say,
) -> None:
    """Have the candidate answer what is not answered, then the judge grade what needs it.

    Never both at once: each has the accelerators to itself, and the judge reads committed replies.
    """
    specs = {name: task_spec(entry) for name, entry in manifest["tasks"].items()}
    unanswered = [s for s in missing if stored(directory, s, specs[s.task])[0] is None]
    if unanswered:
        _pass(directory, planned, specs, unanswered, Stage.ANSWER, say)
    if planned.judge is not None:
        ungraded = [shard for shard in missing if specs[shard.task].is_graded]
        _pass(directory, planned, specs, ungraded, Stage.GRADE, say)


def _pass(
    directory: RunDirectory,
    planned: Plan,
    specs: Mapping[str, TaskSpec],
    shards: Sequence[Shard],
    stage: Stage,
    say: Say,
) -> None:
    """Send shards through the replicas of one model."""
    section = planned.config.run
    is_judge = stage is Stage.GRADE
    model = planned.judge if is_judge and planned.judge is not None else planned.model
    session = uuid.uuid4().hex[:12]
    directory.begin_session(session)
    spec = WorkerSpec(
        directory=str(directory.path.absolute()),
        session=session,
        stage=stage,
        engine=model.engine,
        options=model.options,
        model=model.loadable,
        tasks={name: task for name, task in specs.items() if task.is_graded or not is_judge},
        deadline_seconds=section.deadline_seconds,
        loaded=_loaded(directory, planned.shards(), specs, stage),
    )
    share = section.judge if is_judge else section
    placement = pipeline.Placement(
        replicas=share.replicas,
        cpus_per_replica=share.cpus_per_replica,
        gpus_per_replica=share.gpus_per_replica,
        shard_size=section.shard_size,
        examples_in_flight=section.examples_in_flight,
        address=section.address,
        section="run.judge" if is_judge else "run",
        autoscaling=section.autoscaling,
    )
    n_examples = sum(shard.stop - shard.start for shard in shards)
    began = time.monotonic()
    with Progress(n_examples, say=say) as progress:
        for done in pipeline.execute(shards, spec, placement, say=say):
            progress.add(done.n_examples, n_missing=done.n_missing, n_tokens=done.n_tokens)
    verb = "graded" if is_judge else "answered"
    say(f"{verb} {n_examples} examples in {time.monotonic() - began:.0f} s")


def _loaded(
    directory: RunDirectory,
    shards: Sequence[Shard],
    specs: Mapping[str, TaskSpec],
    stage: Stage,
) -> Mapping[str, Any] | None:
    """Return what engine made what a stage has made so far; None where there is nothing."""
    for shard in shards:
        replies, verdicts = stored(directory, shard, specs[shard.task])
        made = verdicts if stage is Stage.GRADE else replies
        if made is not None:
            return made.engine
    return None


def _score_stored(
    directory: RunDirectory, shards: Sequence[Shard], manifest: Mapping[str, Any], say: Say
) -> list[Shard]:
    """Score the shards of which all is stored, say what that changed, and return the others."""
    missing = []
    compared, changed = Counter[str](), Counter[str]()
    for shard in shards:
        task = task_spec(manifest["tasks"][shard.task])
        replies, verdicts = stored(directory, shard, task)
        if replies is None or (task.is_graded and verdicts is None):
            missing.append(shard)
            continue
        before = _earlier_records(directory, shard)
        score_shard(directory, shard, task, replies, verdicts)
        if before is not None:
            compared[shard.task] += len(before)
            changed[shard.task] += n_changed(before, directory.read_records(shard), task)
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


def _write_results(directory: RunDirectory, manifest: Mapping[str, Any]) -> Results:
    results = reduce_run(directory, manifest)
    directory.write_text("results.json", report.to_json(results))
    directory.write_text("report.md", report.to_markdown(results))
    return results


def _manifest(directory: RunDirectory) -> dict[str, Any]:
    manifest = directory.read_manifest()
    if manifest is None:
        raise DataError(f"{directory.path}: no run of raveval here (no run.json)")
    return manifest


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
