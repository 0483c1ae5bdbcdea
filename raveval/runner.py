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
from raveval.config import RunConfig, engine_options, load_config
from raveval.errors import DataError
from raveval.evaluate import TaskSpec
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
        wanted = {n: entry["score_fingerprint"] for n, entry in manifest["tasks"].items()}
        unscored = [
            shard
            for shard in shards
            if directory.finished(shard, score_fingerprint=wanted[shard.task]) is None
        ]
        unanswered = _score_stored(directory, unscored, manifest, say)
        if len(unanswered) < len(shards):
            say(f"{len(shards) - len(unanswered)} of {len(shards)} shards are done already")
        if unanswered:
            _execute(directory, planned, manifest, unanswered, say)
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
            entry["score_fingerprint"] = score_fingerprint(entry["reply"], entry["score"])
        run_directory.write_manifest(manifest)
        shards = [
            shard
            for name, entry in manifest["tasks"].items()
            for shard in shards_of(name, entry["n_examples"], entry["shard_size"])
        ]
        unanswered = _score_stored(run_directory, shards, manifest, say)
        if unanswered:
            raise DataError(
                f"{directory}: {len(unanswered)} of {len(shards)} shards have no stored replies; "
                "run the run to its end first"
            )
        say(f"{len(shards)} shards scored again")
        return _write_results(run_directory, manifest)


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """How far a task is; `by_status` counts the examples of its finished shards."""

    n_shards: int
    n_shards_done: int
    n_examples: int
    by_status: Mapping[str, int]


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
        found = (run_directory.finished(shard, score_fingerprint=wanted) for shard in shards)
        receipts = [receipt for receipt in found if receipt is not None]
        by_status: Counter[str] = Counter()
        for receipt in receipts:
            by_status.update(receipt.states.by_status)
        tasks[name] = TaskStatus(
            len(shards), len(receipts), entry["n_examples"], dict(sorted(by_status.items()))
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
    sampling = {**settings.pop("sampling")}
    sampling["stop"] = tuple(sampling["stop"])
    grading = Grading(**settings.pop("grading", {}))
    return TaskSpec(
        protocol=entry["protocol"],
        settings=TaskSettings(sampling=Sampling(**sampling), grading=grading, **settings),
        metrics=tuple(entry["metrics"]),
        reply_fingerprint=entry["reply_fingerprint"],
        score_fingerprint=entry["score_fingerprint"],
    )


def _prepare(directory: RunDirectory, planned: Plan) -> dict[str, Any]:
    """Commit what is asked and by what, before anything is asked."""
    earlier = directory.read_manifest()
    manifest = manifest_of(planned, earlier, started=_now())
    for task in planned.tasks:
        digest = task.reply["examples"]
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
    evaluate, section = planned.config.evaluate, planned.config.run
    session = uuid.uuid4().hex[:12]
    directory.begin_session(session)
    spec = WorkerSpec(
        directory=str(directory.path.absolute()),
        session=session,
        engine=evaluate.engine.name,
        options=engine_options(evaluate.engine),
        model=dataclasses.replace(planned.model, max_model_len=planned.max_model_len),
        tasks={name: task_spec(entry) for name, entry in manifest["tasks"].items()},
        deadline_seconds=section.deadline_seconds,
        loaded=_loaded(directory, planned.shards()),
    )
    placement = pipeline.Placement(
        replicas=section.replicas,
        cpus_per_replica=section.cpus_per_replica,
        gpus_per_replica=section.gpus_per_replica,
        shard_size=section.shard_size,
        examples_in_flight=section.examples_in_flight,
        address=section.address,
    )
    n_examples = sum(shard.stop - shard.start for shard in missing)
    began = time.monotonic()
    with Progress(n_examples, say=say) as progress:
        for done in pipeline.execute(missing, spec, placement, say=say):
            progress.add(done.n_examples, n_missing=done.n_missing, n_tokens=done.n_tokens)
    say(f"answered {n_examples} examples in {time.monotonic() - began:.0f} s")


def _loaded(directory: RunDirectory, shards: Sequence[Shard]) -> Mapping[str, Any] | None:
    """Return what engine made the replies that are there; None where there are none."""
    receipts = (directory.read_receipt(shard) for shard in shards)
    return next((receipt.engine for receipt in receipts if receipt is not None), None)


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
