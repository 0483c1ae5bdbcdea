"""Turns lm-eval's files into run directories, which report and compare read.

What an imported run is stands in its run.json under "imported", and in the settings of its results.
A task whose samples are there, and can be read as records of one of our protocols, is stored as
such: examples, records, receipts; its numbers are the file's own and those that our metrics compute
from the records. Of any other task there are only the numbers of the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import raveval
from raveval import report
from raveval.errors import MismatchError
from raveval.evaluate import load_metric, load_protocol, shard_states
from raveval.fingerprint import digest, digest_each
from raveval.lm_eval import reading
from raveval.lm_eval.conventions import RAVEVAL, model_folder
from raveval.lm_eval.estimates import estimates_of, n_examples
from raveval.lm_eval.reading import ResultsFile
from raveval.lm_eval.records import Converted, Missing, NoRecordsError, convert
from raveval.lm_eval.sample_lines import Sample, read_samples
from raveval.lm_eval.terms import LM_EVAL_WORDS
from raveval.paths import is_name
from raveval.protocols import TaskSettings
from raveval.reduce import reduce_task
from raveval.store import LAYOUT, Receipt, RunDirectory, shards_of
from raveval.types import Coverage, Estimate, Results, Sampling, Shard, TaskResults, Usage

SOURCE = "lm-eval"
PROTOCOL = "lm_eval"
"""In the place of a protocol: the numbers are those of a file."""

_MACRO = "macro_"
"""Begins the names of means over groups in raveval's own files."""

_SHARD_SIZE = 4096
_SHOWN_FAILURES = 20

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Imported:
    """A run directory that was written, and what it holds."""

    directory: str
    results: Results
    file: Path


def import_runs(
    paths: Sequence[str | Path], output_path: str | Path, *, say: Say = lambda _: None
) -> list[Imported]:
    """Turn results files of lm-eval into run directories.

    Args:
        paths: results files, samples files that belong to the only one of them, or folders that
            hold any number of both.
        output_path: the run directory, or the folder of the run directories where there are several
            results files; with a folder for each series of them (`_series`).
        say: hears of tasks whose samples could not be used.

    Raises:
        DataError: a file that is missing, or not one of lm-eval.
        MismatchError: another run is there already.
    """
    files = reading.find(paths)
    if len(files) == 1:
        return [import_run(files[0], output_path, say=say)]
    folders = _series(files)
    places: dict[Path, str] = {}
    for folder in dict.fromkeys(folders):
        own = [file.path for file, each in zip(files, folders, strict=True) if each == folder]
        parent = "/".join(filter(None, (str(output_path).rstrip("/"), folder)))
        places |= {path: f"{parent}/{name}" for path, name in zip(own, _names(own), strict=True)}
    return [import_run(file, places[file.path], say=say) for file in files]


def _series(files: Sequence[ResultsFile]) -> list[str]:
    """Return for each results file the folder of those that it can be compared with.

    Prompts with other numbers of shots are kept apart, and so are models of which there are several
    checkpoints. Where all belong together the folder is "", which is no other.
    """
    shots, models = [_shots(file) for file in files], [_without_step(file) for file in files]
    checkpoints = {(file.model.name, file.model.revision) for file in files}
    has_checkpoints = len(checkpoints) > len(set(models))
    parts: list[list[str]] = [[] for _ in files]
    if has_checkpoints and len(set(models)) > 1:
        for part, model in zip(parts, models, strict=True):
            part.append(model_folder(model))
    if len(set(shots)) > 1:
        for part, words in zip(parts, shots, strict=True):
            part.append(words)
    return ["__".join(part) for part in parts]


def _shots(file: ResultsFile) -> str:
    """Return how many shots a file's prompts had, as the name of a folder."""
    known = {file.num_fewshot(task) for task in _own_tasks(file)}
    if len(known) > 1:
        return "mixed-shot"
    shots = known.pop() if known else None
    return "unknown-shot" if shots is None else f"{shots}-shot"


def _without_step(file: ResultsFile) -> str:
    """Return the name of the model that a file's checkpoint is of."""
    model = file.model
    if model.revision is not None or model.step is None:
        return model.name
    return re.sub(r"\d+", "N", model.name)


def _names(paths: Sequence[Path]) -> list[str]:
    """Return a folder name for each results file: what tells its path from the others'.

    That is a folder where one is enough, else the file's name, else all from the first difference.

    >>> _names([Path("out/a__m/results_1.json"), Path("out/b__m/results_2.json")])
    ['a__m', 'b__m']
    >>> _names([Path("m/zero/70m.json"), Path("m/five/70m.json"), Path("n/zero/160m.json")])
    ['m__zero__70m', 'm__five__70m', 'n__zero__160m']
    """
    parts = [path.with_suffix("").parts for path in paths]
    if len(paths) > 1 and len({len(each) for each in parts}) == 1:
        for column in zip(*parts, strict=True):
            found = [model_folder(part) for part in column]
            if len(set(found)) == len(found):
                return found
    shared = 0
    while all(len(each) > shared + 1 for each in parts) and len({p[shared] for p in parts}) == 1:
        shared += 1
    return [model_folder("/".join(each[shared:])) for each in parts]


def import_run(file: ResultsFile, output: str | Path, *, say: Say = lambda _: None) -> Imported:
    """Turn one results file, and the samples that belong to it, into a run directory.

    Raises:
        DataError: samples that cannot be read.
        MismatchError: another run is there already.
    """
    directory = RunDirectory(output)
    _check_free(directory, file)
    with directory.held():
        entries: dict[str, dict[str, Any]] = {}
        tasks: dict[str, TaskResults] = {}
        for name in _own_tasks(file):
            entry, tasks[name] = _task(directory, file, name, say)
            if entry is not None:
                entries[name] = entry
        results = _results(file, tasks, entries)
        directory.write_manifest(_manifest(file, results, entries))
        directory.write_text("results.json", report.to_json(results))
        directory.write_text("report.md", report.to_markdown(results))
    return Imported(directory.path, results, file.path)


def _check_free(directory: RunDirectory, file: ResultsFile) -> None:
    """Refuse a directory that holds anything but an earlier import of the same file."""
    path = directory.path
    directory.check()
    manifest = directory.read_manifest()
    if manifest is not None:
        earlier = manifest.get("imported", {}).get("sha256")
        if earlier != file.sha256:
            what = "a run" if earlier is None else f"an import of {manifest['imported']['file']}"
            raise MismatchError(f"{path}: already holds {what}; choose another --output-path")
        return
    if set(directory.names()) - LAYOUT:
        raise MismatchError(
            f"{path}: holds files but no run of raveval; choose an empty directory as --output-path"
        )


def _own_tasks(file: ResultsFile) -> list[str]:
    """Return what becomes a task: not the groups that raveval itself wrote as subtasks.

    They are sorted unless raveval wrote them: old files have them in no order.
    """
    names = file.tasks if RAVEVAL in file.content else sorted(file.tasks)
    return [name for name in names if "group" not in file.ours(name) and file.metrics(name)]


def _task(
    directory: RunDirectory, file: ResultsFile, name: str, say: Say
) -> tuple[dict[str, Any] | None, TaskResults]:
    """Store a task's records where it has any; return its entry of run.json, and its numbers."""
    path = file.samples.get(name)
    samples = [] if path is None else read_samples(path)
    numbers = _numbers(file, name, samples)
    if not samples:
        return None, _annotated(numbers, "none: there is no file of samples")
    try:
        converted = _converted(file, name, samples)
    except NoRecordsError as exc:
        say(f"{name}: the samples give no records: {exc}")
        return None, _annotated(numbers, f"none: {exc}")
    entry = _store(directory, file, name, converted)
    return entry, _with_records(numbers, reduce_task(directory, name, entry), converted)


def _converted(file: ResultsFile, name: str, samples: Sequence[Sample]) -> Converted:
    if not is_name(name):
        raise NoRecordsError(
            "its name is none for a file: at most 80 letters, digits, '_', '-' and '.'"
        )
    ours = file.ours(name)
    missing = [Missing(id, row) for id, row in reading.mapping(ours.get("missing")).items()]
    delimiter = file.task_config(name).get("target_delimiter")
    return convert(
        samples,
        scoring=ours.get("scoring"),
        metrics=ours.get("metrics"),
        delimiter=delimiter if isinstance(delimiter, str) else None,
        missing=missing,
    )


def _numbers(file: ResultsFile, name: str, samples: Sequence[Sample]) -> TaskResults:
    """Return what the results file says of a task."""
    found = _under_own_names(file, name, estimates_of(file, name, samples))
    macro = [key for key in found if file.ours(name) and key.startswith(_MACRO)]
    metrics = {key: value for key, value in found.items() if key not in macro}
    n = n_examples(file, name, samples, metrics)
    version = file.of("versions", name)
    source = {
        "file": str(file.path),
        **({} if version is None else {"lm_eval_version_of_the_task": str(version)}),
        **(
            {"n": "not known: the file does not say how many examples there are"}
            if n is None
            else {}
        ),
    }
    ours = file.ours(name)
    return TaskResults(
        metrics=metrics,
        coverage=Coverage(ours.get("by_status") or ({"ok": n} if n else {})),
        usage=Usage(),
        protocol=str(ours.get("protocol", PROTOCOL)),
        num_fewshot=file.num_fewshot(name),
        version=ours.get("version"),
        groups=_groups(file, name),
        notes=reading.mapping(ours.get("notes")),
        failures={
            id: f"{row['status']}: {row['message']}"
            for id, row in islice(reading.mapping(ours.get("missing")).items(), _SHOWN_FAILURES)
        },
        macro={key.removeprefix(_MACRO): found[key] for key in macro},
        source={**reading.mapping(ours.get("source")), **source},
    )


def _groups(file: ResultsFile, task: str) -> dict[str, Any]:
    """Return the numbers of a task's groups, where raveval itself wrote them as subtasks."""
    return {
        str(file.ours(name)["group"]): _under_own_names(file, name, estimates_of(file, name))
        for name in file.tasks
        if file.ours(name).get("task") == task
    }


def _under_own_names(
    file: ResultsFile, name: str, found: Mapping[str, Estimate]
) -> dict[str, Estimate]:
    """Return the numbers that raveval itself wrote, and lm-eval has no other word for, by name."""
    if not file.ours(name):
        return dict(found)
    metrics = {key: parts.metric for key, parts in file.metrics(name).items()}
    return {
        key if metrics[key] in LM_EVAL_WORDS else metrics[key]: value
        for key, value in found.items()
    }


def _annotated(numbers: TaskResults, records: str) -> TaskResults:
    return replace(numbers, source={**numbers.source, "records": records})


def _with_records(numbers: TaskResults, recorded: TaskResults, converted: Converted) -> TaskResults:
    """Return our numbers and the file's, which never share a name."""
    records = "from the samples"
    if not converted.quoted:
        records += "; scored by the file's own rule, which is not that of our exact_match"
    return replace(
        recorded,
        metrics={**numbers.metrics, **recorded.metrics} if converted.quoted else numbers.metrics,
        notes={**recorded.notes, **converted.notes} if converted.quoted else {},
        groups=recorded.groups if converted.quoted else numbers.groups,
        macro=recorded.macro if converted.quoted else numbers.macro,
        source={**numbers.source, "records": records},
    )


def _store(
    directory: RunDirectory, file: ResultsFile, name: str, found: Converted
) -> dict[str, Any]:
    """Commit examples, records and receipts, and return the task's entry of run.json."""
    examples_digest = digest_each(asdict(example) for example in found.examples)
    reply = {
        "imported": SOURCE,
        "file": file.sha256,
        "output_type": found.output_type,
        "num_fewshot": file.num_fewshot(name),
        "n_examples": len(found.examples),
        "examples": examples_digest,
        "records": digest_each(found.records.to_pylist()),
    }
    score = {
        "protocol": load_protocol(found.protocol).SCORE_VERSION,
        "metrics": {metric: load_metric(metric).version for metric in found.metrics},
    }
    entry = {
        "protocol": found.protocol,
        "metrics": list(found.metrics),
        "num_fewshot": file.num_fewshot(name),
        "version": file.ours(name).get("version"),
        "settings": asdict(TaskSettings(Sampling(max_output_tokens=0), found.scoring)),
        "provenance": {"file": str(file.path)},
        "n_examples": len(found.examples),
        "row_key_sum": sum(example.row_key for example in found.examples) % 2**64,
        "shard_size": _SHARD_SIZE,
        "reply": reply,
        "score": score,
        "reply_fingerprint": digest(reply),
        "score_fingerprint": digest([reply, score]),
    }
    directory.write_examples(name, found.examples, digest=examples_digest)
    for shard in shards_of(name, len(found.examples), _SHARD_SIZE):
        _commit(directory, shard, entry, found)
    return entry


def _commit(
    directory: RunDirectory, shard: Shard, entry: Mapping[str, Any], found: Converted
) -> None:
    records = found.records.slice(shard.start, shard.stop - shard.start)
    tally = load_protocol(found.protocol).tally(records)
    receipt = Receipt(
        shard=shard,
        reply_fingerprint=entry["reply_fingerprint"],
        score_fingerprint=entry["score_fingerprint"],
        engine={},
        states=shard_states(records, found.metrics, Usage(), counts=tally),
    )
    directory.commit_scores(receipt, records)


def _results(
    file: ResultsFile, tasks: Mapping[str, TaskResults], entries: Mapping[str, Mapping[str, Any]]
) -> Results:
    model, started = file.model, file.started
    seconds = file.content.get("total_evaluation_time_seconds")
    times: dict[str, Any] = {}
    if started is not None:
        times["started"] = started.isoformat(timespec="seconds")
        if seconds is not None:
            finished = started + timedelta(seconds=float(seconds))
            times["finished"] = finished.isoformat(timespec="seconds")
    return Results(
        model=model.name,
        tasks=tasks,
        fingerprints={
            name: {"reply": entry["reply_fingerprint"], "score": entry["score_fingerprint"]}
            for name, entry in entries.items()
        },
        settings={
            "imported": f"from lm-eval {file.content.get('lm_eval_version') or ''}: {file.path}",
            "revision": model.revision,
            "step": model.step,
            "model_args": model.arguments,
            "engine": file.config.get("model"),
            "seed": file.config.get("fewshot_seed"),
        },
        times=times,
    )


def _provenance(file: ResultsFile) -> dict[str, Any]:
    """Return where the numbers come from; what the file does not say is null."""
    ours = reading.mapping(file.content.get(RAVEVAL))
    return {
        "from": SOURCE,
        "file": str(file.path),
        "sha256": file.sha256,
        "lm_eval_version": file.content.get("lm_eval_version"),
        "git_hash": file.content.get("git_hash"),
        "written_by": f"raveval {ours['version']}" if "version" in ours else None,
    }


def _manifest(
    file: ResultsFile, results: Results, entries: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    return {
        "raveval_version": raveval.__version__,
        "started": results.times.get("started"),
        "finished": results.times.get("finished"),
        "model": results.model,
        "imported": _provenance(file),
        "tasks": dict(entries),
    }
