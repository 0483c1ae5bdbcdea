"""One run from config to results, whole or in parts; and its results again."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from raveval import passes, pipeline, report
from raveval.config import RunConfig, load_config
from raveval.errors import DataError, MismatchError, RavevalError
from raveval.fingerprint import first_difference, plain
from raveval.finishing import finish, still_finished
from raveval.models import ChosenModel, choose
from raveval.passes import HeldRun, score_stored, task_spec
from raveval.plan import (
    Plan,
    make_plan,
    manifest_of,
    reconcile,
    score_fingerprint,
    score_inputs,
)
from raveval.plan.reuse import take_over
from raveval.progress import still_at
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
        unanswered, ungraded = work.run.unanswered(work.missing), work.run.ungraded(work.missing)
        if work.missing:
            with pipeline.cluster(work.run.section.address):
                if ungraded:
                    passes.check_room_for_judge(work.run)
                if unanswered:
                    passes.answer(work.run, unanswered, say=say)
                if ungraded:
                    passes.grade([(work.run, ungraded)], say=say)
        return _finished(work)


def answer(config: Config, *, say: Say = _silent, side_by_side: bool = False) -> Results | None:
    """Do all of a run that needs no judge; `grade` does the rest, for many runs at once.

    Args:
        config: as for `run`.
        say: hears what is going on.
        side_by_side: begin all tasks early and end them together, so that something is known of
            each while the run is under way; else they come one after the other. No number moves.

    Returns:
        The results where no judge is needed, else None.

    Raises:
        Refused, RunError: as `run`.
    """
    with _begun(config, say) as work:
        unanswered = work.run.unanswered(work.missing)
        if side_by_side:
            n_examples = {
                name: entry["n_examples"] for name, entry in work.manifest["tasks"].items()
            }
            unanswered.sort(key=lambda shard: shard.start / n_examples[shard.task])
        if unanswered:
            with pipeline.cluster(work.run.section.address):
                passes.answer(work.run, unanswered, say=say)
        return None if work.run.ungraded(work.missing) else _finished(work)


def grade(directories: Sequence[str | Path], *, say: Say = _silent) -> list[Results | RavevalError]:
    """Have one judge, loaded once, grade what several runs answered, and write their reports.

    All that is needed stands in their directories; the models that answered may be gone.

    Args:
        directories: of runs that were answered (`answer`), with one judge.
        say: hears what is going on.

    Returns:
        Of each run its results, or why it could not be graded; the others are.
    """
    judges: dict[str, ChosenModel] = {}
    with contextlib.ExitStack() as stack:
        found: list[_Begun | RavevalError] = []
        for directory in directories:
            try:
                found.append(stack.enter_context(_reopened(directory, judges, say)))
            except RavevalError as exc:
                found.append(exc)
        runs = [work.run for work in found if isinstance(work, _Begun)]
        waiting = [
            (work.run, work.run.ungraded(work.missing))
            for work in found
            if isinstance(work, _Begun) and work.missing
        ]
        fault: RavevalError | None = None
        if waiting:
            try:
                with pipeline.cluster(runs[0].section.address):
                    passes.grade(waiting, say=say)
            except RavevalError as exc:
                fault = exc
        return [_outcome(work, fault) for work in found]


def _outcome(work: _Begun | RavevalError, fault: RavevalError | None) -> Results | RavevalError:
    """Return a run's results, or what stands in their way; a pass's fault is the unfinished's."""
    if not isinstance(work, _Begun):
        return work
    try:
        return _finished(work)
    except RavevalError as exc:
        return fault or exc


@contextlib.contextmanager
def _reopened(directory: str | Path, judges: dict[str, ChosenModel], say: Say) -> Iterator[_Begun]:
    """Hold the directory of a run that was answered, from its files alone.

    `judges` are those that were chosen so far; all runs are to have the same.
    """
    files = RunDirectory(directory)
    manifest = files.manifest()
    config = load_config(manifest["config"])
    section = config.evaluate.judge
    if section is None:
        raise DataError(f"{directory}: has no judge; there is nothing to grade")
    place = section.model_dump_json()
    if judges and place not in judges:
        raise MismatchError(
            f"{directory}: its judge is {place}, that of the runs before it is {min(judges)}; "
            "grade them apart"
        )
    if place not in judges:
        judges[place] = choose(section.model, section.engine, where="evaluate.judge", say=say)
    judge = judges[place]
    specs = {name: task_spec(entry) for name, entry in manifest["tasks"].items()}
    for name, entry in manifest["tasks"].items():
        identity = plain(judge.identity())
        difference = first_difference((entry["verdict"] or {}).get("judge", identity), identity)
        if difference is not None:
            key, old, new = difference
            raise MismatchError(
                f"{directory}: {key} of the judge of task {name!r} was {old!r} when the run began, "
                f"now it is {new!r}"
            )
    with files.held(say=say):
        shards = _shards(manifest)
        missing = score_stored(files, _unscored(files, manifest, shards), manifest, say)
        run = HeldRun(files, specs, shards, config.run, None, judge)
        unanswered = run.unanswered(missing)
        if unanswered:
            raise DataError(
                f"{directory}: {len(unanswered)} of {len(shards)} shards are not answered yet; "
                "there is nothing to grade in them"
            )
        yield _Begun(run, manifest, missing)


@dataclass(frozen=True, slots=True)
class _Begun:
    """A run whose directory is held: what it is, and the shards that are not done.

    `results` are those of a run that was finished before, and that nothing has touched since.
    """

    run: HeldRun
    manifest: dict[str, Any]
    missing: Sequence[Shard]
    results: Results | None = None


@contextlib.contextmanager
def _begun(config: Config, say: Say) -> Iterator[_Begun]:
    """Plan a run, hold its directory, score what is stored, and find what is missing."""
    checked = load_config(config)
    planned = make_plan(checked, say=say)
    directory = RunDirectory(checked.run.output)
    with directory.held(say=say):
        # Another driver may have been at work between the plan and the lock.
        sizes = reconcile(directory, planned.tasks, planned.shard_sizes)
        planned = dataclasses.replace(planned, shard_sizes=sizes)
        manifest = manifest_of(planned, directory.read_manifest(), started=_now())
        shards = planned.shards()
        specs = {name: task_spec(entry) for name, entry in manifest["tasks"].items()}
        run = HeldRun(directory, specs, shards, checked.run, planned.model, planned.judge)
        if not checked.run.retry_failed:
            results = still_finished(directory, manifest, shards)
            if results is not None:
                say(f"all {len(shards)} shards are done, and the results written")
                yield _Begun(run, manifest, [], results)
                return
        with still_at("writing down what is asked", say=say):
            _prepare(directory, planned, manifest)
        if checked.run.answers_from is not None:
            wanted = {task.name: task.reply_fingerprint for task in planned.tasks}
            take_over(checked.run.answers_from, directory, wanted, shards, say=say)
        if checked.run.retry_failed:
            n_dropped = sum(directory.over(shards, directory.drop_failed))
            say(f"{n_dropped} shards with failed examples are asked again")
        unscored = _unscored(directory, manifest, shards)
        missing = score_stored(directory, unscored, manifest, say)
        if len(missing) < len(shards):
            say(f"{len(shards) - len(missing)} of {len(shards)} shards are done already")
        yield _Begun(run, manifest, missing)


def _shards(manifest: Mapping[str, Any]) -> list[Shard]:
    return [
        shard
        for name, entry in manifest["tasks"].items()
        for shard in shards_of(name, entry["n_examples"], entry["shard_size"])
    ]


def _unscored(
    directory: RunDirectory, manifest: Mapping[str, Any], shards: Sequence[Shard]
) -> list[Shard]:
    """Return the shards without records and a receipt under the manifest's fingerprints."""
    wanted = {name: entry["score_fingerprint"] for name, entry in manifest["tasks"].items()}
    found = directory.over(
        shards, lambda shard: directory.finished(shard, score_fingerprint=wanted[shard.task])
    )
    return [shard for shard, receipt in zip(shards, found, strict=True) if receipt is None]


def _prepare(directory: RunDirectory, planned: Plan, manifest: Mapping[str, Any]) -> None:
    """Commit what is asked and by what, before anything is asked."""
    for task in planned.tasks:
        digest = task.examples_digest
        if not directory.has_examples(task.name, len(task.examples), digest=digest):
            directory.write_examples(task.name, task.examples, digest=digest)
    directory.write_manifest(manifest)


def _finished(work: _Begun) -> Results:
    """Write the results of a run, or return those that are written."""
    if work.results is not None:
        return work.results
    directory = work.run.directory
    results = finish(directory, work.manifest, work.run.shards, when=_now())
    directory.tidy()
    return results


def is_done(config: Config, *, say: Say = _silent) -> bool:
    """Whether a run was carried out to its end, and nothing that moves its numbers has changed.

    Raises:
        Refused: as `run`.
    """
    checked = load_config(config)
    directory = RunDirectory(checked.run.output)
    if not (directory.read_manifest() or {}).get("finished"):
        return False
    planned = make_plan(checked, say=say)
    try:
        results = load_results(directory.path)
    except DataError:
        return False
    wanted = {
        task.name: {"reply": task.reply_fingerprint, "score": task.score_fingerprint}
        for task in planned.tasks
    }
    shards = planned.shards()
    manifest = manifest_of(planned, directory.read_manifest(), started=_now())
    if not checked.run.retry_failed and still_finished(directory, manifest, shards) is not None:
        return True
    if checked.run.retry_failed and any(directory.over(shards, directory.may_be_asked_again)):
        return False
    return results.fingerprints == wanted and all(
        directory.over(
            shards,
            lambda shard: (
                directory.finished(shard, score_fingerprint=wanted[shard.task]["score"]) is not None
            ),
        )
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
    manifest = run_directory.manifest()
    if "imported" in manifest:
        raise DataError(
            f"{directory}: was imported, and holds no replies; import the file again "
            f"({manifest['imported']['file']})"
        )
    with run_directory.held(say=say):
        for entry in manifest["tasks"].values():
            spec = task_spec(entry)
            entry["score"] = score_inputs(spec.protocol, spec.settings, spec.metrics)
            entry["score_fingerprint"] = score_fingerprint(
                entry["reply"], entry.get("verdict"), entry["score"]
            )
        finished = manifest.pop("finished", None)
        manifest.pop("seal", None)
        run_directory.write_manifest(manifest)
        shards = _shards(manifest)
        unanswered = score_stored(run_directory, shards, manifest, say)
        if unanswered:
            raise DataError(
                f"{directory}: {len(unanswered)} of {len(shards)} shards have no stored replies, "
                "or no verdicts on them; run the run to its end first"
            )
        say(f"{len(shards)} shards scored again")
        return finish(run_directory, manifest, shards, when=finished)


def load_results(directory: str | Path) -> Results:
    """Return the results that a finished run wrote.

    Raises:
        DataError: no results there.
    """
    run_directory = RunDirectory(directory)
    try:
        text = run_directory.read_text("results.json")
    except FileNotFoundError:
        if run_directory.read_manifest() is None:
            raise DataError(f"{directory}: no run of raveval here (no run.json)") from None
        raise DataError(
            f"{run_directory.path}/results.json: no such file; `raveval status {directory}` says "
            "how far the run is"
        ) from None
    try:
        return report.from_json(text)
    except DataError as exc:
        raise DataError(f"{run_directory.path}/{exc}") from exc


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
