"""One run from config to results; and what can be asked of a run directory afterwards."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from raveval import passes, pipeline, report
from raveval.config import RunConfig, load_config
from raveval.errors import DataError, MismatchError
from raveval.fingerprint import first_difference
from raveval.passes import OpenRun, score_stored, task_spec
from raveval.plan import (
    Plan,
    make_plan,
    manifest_of,
    reconcile,
    score_fingerprint,
    score_inputs,
)
from raveval.reduce import reduce_run
from raveval.reuse import take_over
from raveval.scoring import stored
from raveval.store import RunDirectory, shards_of
from raveval.types import Results, Shard

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
        The results, also written to results.json and the reports in the run directory.

    Raises:
        Refused: the run cannot be carried out as asked; nothing was started.
        RunError: it broke; what was committed is kept, and the same call goes on from there.
    """
    with _begun(config, say) as work:
        if work.missing:
            with pipeline.cluster(work.run.plan.config.run.address):
                unanswered = work.run.unanswered(work.missing)
                if unanswered:
                    passes.answer(work.run, unanswered, say=say)
                ungraded = work.run.ungraded(work.missing)
                if ungraded:
                    passes.grade([(work.run, ungraded)], say=say)
        return _finished(work)


def answer(config: Config, *, say: Say = _silent) -> Results | None:
    """Do all of a run that needs no judge; `grade` does the rest, for many runs at once.

    Returns:
        The results where no judge is needed, else None.

    Raises:
        Refused, RunError: as `run`.
    """
    with _begun(config, say) as work:
        unanswered = work.run.unanswered(work.missing)
        if unanswered:
            with pipeline.cluster(work.run.plan.config.run.address):
                passes.answer(work.run, unanswered, say=say)
        return None if work.run.ungraded(work.missing) else _finished(work)


def grade(configs: Sequence[Config], *, say: Say = _silent) -> list[Results]:
    """Have one judge, loaded once, grade the answers of several runs, and write their reports.

    Raises:
        MismatchError: the runs name different judges.
        Refused, RunError: as `run`; also where a run is not answered yet.
    """
    with contextlib.ExitStack() as stack:
        begun = [stack.enter_context(_begun(config, say)) for config in configs]
        waiting = [(work.run, work.run.ungraded(work.missing)) for work in begun]
        waiting = [(opened, shards) for opened, shards in waiting if shards]
        for opened, shards in waiting:
            _check_gradable(opened, waiting[0][0], shards)
        if waiting:
            with pipeline.cluster(waiting[0][0].plan.config.run.address):
                passes.grade(waiting, say=say)
        return [_finished(work) for work in begun]


def _check_gradable(opened: OpenRun, first: OpenRun, shards: Sequence[Shard]) -> None:
    judges = (each.plan.judge and each.plan.judge.identity() for each in (first, opened))
    difference = first_difference(*(judge or {} for judge in judges))
    if difference is not None:
        key, old, new = difference
        raise MismatchError(
            f"{opened.directory.path}: its judge is not that of {first.directory.path}: {key} is "
            f"{new!r}, there {old!r}; grade them apart"
        )
    unanswered = opened.unanswered(shards)
    if unanswered:
        raise DataError(
            f"{opened.directory.path}: {len(unanswered)} of {len(shards)} shards are not answered "
            "yet; there is nothing to grade in them"
        )


@dataclass(frozen=True, slots=True)
class _Begun:
    """A run whose directory is held: what it is, and the shards that are not done."""

    run: OpenRun
    manifest: dict[str, Any]
    missing: Sequence[Shard]


@contextlib.contextmanager
def _begun(config: Config, say: Say) -> Iterator[_Begun]:
    """Plan a run, hold its directory, score what is stored, and find what is missing."""
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
        missing = score_stored(directory, unscored, manifest, say)
        if len(missing) < len(shards):
            say(f"{len(shards) - len(missing)} of {len(shards)} shards are done already")
        yield _Begun(OpenRun.of(directory, planned, manifest), manifest, missing)


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


def _finished(work: _Begun) -> Results:
    work.manifest["finished"] = _now()
    work.run.directory.write_manifest(work.manifest)
    return _write_results(work.run.directory, work.manifest)


def is_done(config: Config, *, say: Say = _silent) -> bool:
    """Whether a run was carried out to its end, and nothing that moves its numbers has changed.

    Raises:
        Refused: as `run`.
    """
    checked = load_config(config)
    directory = RunDirectory(checked.run.output)
    if directory.read_manifest() is None or not (directory.path / "results.json").exists():
        return False
    planned = make_plan(checked, say=say)
    wanted = {task.name: task.score_fingerprint for task in planned.tasks}
    return all(
        directory.finished(shard, score_fingerprint=wanted[shard.task]) is not None
        for shard in planned.shards()
    )


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
    if "imported" in manifest:
        raise DataError(
            f"{directory}: was imported, and holds no replies; import the file again "
            f"({manifest['imported']['file']})"
        )
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
        unanswered = score_stored(run_directory, shards, manifest, say)
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


def _write_results(directory: RunDirectory, manifest: Mapping[str, Any]) -> Results:
    results = reduce_run(directory, manifest)
    directory.write_text("results.json", report.to_json(results))
    directory.write_text("report.md", report.to_markdown(results))
    directory.write_text("report.html", report.to_html(results))
    return results


def _manifest(directory: RunDirectory) -> dict[str, Any]:
    manifest = directory.read_manifest()
    if manifest is None:
        raise DataError(f"{directory.path}: no run of raveval here (no run.json)")
    return manifest


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
