"""Writes a finished run as lm-eval's files: results_<date>.json and samples_<task>_<date>.jsonl."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from raveval.errors import ConfigError
from raveval.lm_eval import conventions, results_file, samples_file
from raveval.lm_eval.finished import FinishedRun, FinishedTask, open_finished
from raveval.store.atomic import commit, committed
from raveval.store.places import is_url

DEFAULT_FOLDER = "lm_eval"


@dataclass(frozen=True, slots=True)
class Exported:
    """The files that were written; `without_samples` are the tasks that lm-eval cannot log."""

    results: Path
    samples: Mapping[str, Path]
    without_samples: tuple[str, ...] = ()


def export_run(
    directory: str | Path, output_path: str | Path | None = None, *, log_samples: bool = False
) -> Exported:
    """Write a finished run as files of lm-eval.

    Args:
        directory: the run directory.
        output_path: a folder, in which the model gets its own, or a file name ending in .json, of
            which the date becomes a part; the folder `lm_eval` of the run directory by default.
        log_samples: write what was asked and answered, too.

    Raises:
        DataError: no finished run there.
        ConfigError: a run in an object store, and no local folder to write to.
    """
    run = open_finished(directory)
    output = _output(run, output_path)
    stamp = conventions.stamp(results_file.moments(run).finished)
    folder, results = _places(output, run.results.model, stamp)
    written: dict[str, Path] = {}
    hashes: dict[str, str] = {}
    unknown: list[str] = []
    entries = results_file.entries_of(run)
    tasks = list({entry.task.name: entry.task for entry in entries}.values())
    for task in tasks if log_samples else ():
        if task.output_type is None:
            unknown.append(task.name)
            continue
        written[task.name] = folder / f"samples_{task.name}_{stamp}.jsonl"
        hashes[task.name] = _write_samples(task, written[task.name])
    content = results_file.content(run, entries, hashes)
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    commit(results, text.encode())
    return Exported(results, written, tuple(unknown))


def _output(run: FinishedRun, given: str | Path | None) -> Path:
    """Return the local folder or file that a run is written to."""
    wanted = f"{run.files.path}/{DEFAULT_FOLDER}" if given is None else str(given)
    if is_url(wanted):
        raise ConfigError(
            f"{wanted}: lm-eval's files are written to a local folder; name one with --output-path"
        )
    return Path(wanted)


def _places(output: Path, model: str, stamp: str) -> tuple[Path, Path]:
    """Return the folder of the samples, and the results file."""
    if output.suffix == ".json":
        return output.parent, output.with_name(f"{output.stem}_{stamp}.json")
    folder = output / conventions.model_folder(model)
    return folder, folder / f"results_{stamp}.json"


def _write_samples(task: FinishedTask, path: Path) -> str:
    """Write a task's samples and return the task's hash."""
    found = samples_file.lines(task)
    with committed(path) as file:
        for line in found:
            file.write(line.text.encode("utf-8", "surrogatepass"))
    return conventions.text_hash("".join(line.hashes for line in found))
