"""Finds and reads lm-eval's results files, and finds the samples files that belong to them.

Read are the layouts of lm-eval 0.3 (`results`, `versions`, `config`) to 0.4.13. Nothing is assumed
to be there but `results`; what a file does not say is None.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from raveval.errors import DataError
from raveval.lm_eval.conventions import NO_METRICS, RAVEVAL, MetricKey, split, training_step

_NAMES_IN_ARGUMENTS = ("peft", "delta", "pretrained", "model", "path", "engine")
"""Keys of model_args under which lm-eval itself looks for the model's name, in this order."""


class Model(NamedTuple):
    """What a file says of the model; `step` is that of training, where a name holds it."""

    name: str
    revision: str | None
    step: int | None
    arguments: str | None


@dataclass(frozen=True, slots=True)
class ResultsFile:
    """A results file, and the samples files of its tasks by name."""

    path: Path
    sha256: str
    content: Mapping[str, Any]
    samples: Mapping[str, Path]

    @property
    def tasks(self) -> Mapping[str, Mapping[str, Any]]:
        """What the file has of each task and group of tasks, by name."""
        found: Mapping[str, Mapping[str, Any]] = self.content["results"]
        return found

    def metrics(self, task: str) -> dict[str, MetricKey]:
        """Return the keys of a task's metrics, standard errors left out."""
        keys = {key: split(key) for key in self.tasks[task] if key not in NO_METRICS}
        return {key: parts for key, parts in keys.items() if not parts.is_stderr}

    def of(self, section: str, task: str) -> Any:
        """Return what a section says of a task; None where it says nothing."""
        found = self.content.get(section)
        return found.get(task) if isinstance(found, Mapping) else None

    @property
    def config(self) -> Mapping[str, Any]:
        """How the evaluation was called; empty where the file does not say."""
        return mapping(self.content.get("config"))

    def task_config(self, task: str) -> Mapping[str, Any]:
        """Return a task's definition; empty where the file has none."""
        return mapping(self.of("configs", task))

    def ours(self, task: str) -> Mapping[str, Any]:
        """Return what raveval itself wrote of a task, if this is a file of its own."""
        return mapping(mapping(mapping(self.content.get(RAVEVAL)).get("tasks")).get(task))

    def num_fewshot(self, task: str) -> int | None:
        """Return how many shots a task's prompts had."""
        for found in (
            self.of("n-shot", task),
            self.task_config(task).get("num_fewshot"),
            self.config.get("num_fewshot"),
        ):
            if type(found) is int:
                return found
        return None

    def n_samples(self, task: str) -> int | None:
        """Return how many examples a task was evaluated on, of a group those of its subtasks."""
        found = mapping(self.of("n-samples", task)).get("effective")
        if type(found) is int:
            return found
        subtasks = self.of("group_subtasks", task)
        if isinstance(subtasks, Sequence) and subtasks:
            counts = [self.n_samples(str(each)) for each in subtasks]
            return None if None in counts else sum(n for n in counts if n is not None)
        return None

    @property
    def model(self) -> Model:
        """The model, as far as it is named."""
        arguments = self.config.get("model_args")
        values = _arguments(arguments)
        named = (values[key] for key in _NAMES_IN_ARGUMENTS if key in values)
        candidates = (self.content.get("model_name"), next(named, None), self.config.get("model"))
        name = next((str(each) for each in candidates if each), "unknown")
        revision = self.config.get("model_revision") or values.get("revision")
        text = arguments if isinstance(arguments, str) else None
        if isinstance(arguments, Mapping):
            text = ",".join(f"{key}={value}" for key, value in arguments.items())
        step = training_step(str(revision or ""), name)
        return Model(name, str(revision) if revision else None, step, text)

    @property
    def started(self) -> datetime | None:
        """When the evaluation began."""
        date = self.content.get("date")
        return datetime.fromtimestamp(date, UTC) if isinstance(date, int | float) else None


def _arguments(given: Any) -> Mapping[str, Any]:
    """Return model_args as a mapping: it is text, or one already."""
    if isinstance(given, Mapping):
        return given
    pairs = (part.split("=", 1) for part in str(given or "").split(",") if "=" in part)
    return {key.strip(): value.strip() for key, value in pairs}


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a mapping as it is, and anything else as an empty one."""
    return value if isinstance(value, Mapping) else {}


def find(paths: Sequence[str | Path]) -> list[ResultsFile]:
    """Return the results files that are given or lie in the folders given, with their samples.

    A samples file belongs to a results file of the same folder and date, or, where it is given
    itself, to the only results file given.

    Raises:
        DataError: a path that is not there, no results file among them, or one that is not of
            lm-eval.
    """
    results: dict[Path, Mapping[str, Any]] = {}
    samples: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            results |= _in_folder(path)
        elif not path.is_file():
            raise DataError(f"{path}: no such file or folder (looked from {Path.cwd()})")
        elif path.suffix == ".jsonl":
            samples.append(path)
        else:
            results[path] = _read_results(path)
    if not results:
        raise DataError(
            f"{', '.join(map(str, paths))}: no results of lm-eval there; name a results_*.json, or "
            "a folder that holds some"
        )
    if samples and len(results) != 1:
        raise DataError(
            f"{samples[0]}: which of the {len(results)} results files do these samples belong to? "
            "Import them with that one alone"
        )
    return [_results_file(path, content, samples) for path, content in results.items()]


def _in_folder(folder: Path) -> dict[Path, Mapping[str, Any]]:
    found: dict[Path, Mapping[str, Any]] = {}
    for path in sorted(folder.rglob("*.json")):
        try:
            content = _read_json(path)
        except DataError:
            if path.name.startswith("results"):
                raise
            continue  # another program's, and its own concern
        if _is_of_lm_eval(content):
            found[path] = content
    return found


def _read_results(path: Path) -> Mapping[str, Any]:
    content = _read_json(path)
    if not _is_of_lm_eval(content):
        keys = ", ".join(list(content)[:6]) if isinstance(content, Mapping) else "no mapping"
        raise DataError(
            f"{path}: not a results file of lm-eval, which maps `results` to tasks and these to "
            f"metrics; found {keys}"
        )
    found: Mapping[str, Any] = content
    return found


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as exc:
        raise DataError(f"{path}: cannot be read as JSON: {exc}") from exc


def _is_of_lm_eval(content: Any) -> bool:
    results = content.get("results") if isinstance(content, Mapping) else None
    is_nested = isinstance(results, Mapping) and all(
        isinstance(task, Mapping) for task in results.values()
    )
    return is_nested and bool(results) and ("versions" in content or "config" in content)


def _results_file(path: Path, content: Mapping[str, Any], given: Sequence[Path]) -> ResultsFile:
    date = path.stem.rpartition("_")[2]
    beside = given or sorted(path.parent.glob("*.jsonl"))
    samples: dict[str, Path] = {}
    for task in content["results"]:
        names = [f"samples_{task}_{date}.jsonl"]
        found = [each for each in beside if each.name in names]
        found = found or [each for each in given if _is_named_after(each, task)]
        found = found or [each for each in beside if each.name.endswith(f"_{task}.jsonl")]
        if found:
            samples[task] = found[0]
    strange = [each for each in given if each not in samples.values()]
    if strange:
        raise DataError(
            f"{strange[0]}: its name names none of the tasks of {path}; lm-eval calls a file of "
            "samples samples_<task>_<date>.jsonl"
        )
    return ResultsFile(path, _sha256(path), content, samples)


def _is_named_after(path: Path, task: str) -> bool:
    """Whether a samples file, of any date, is that of a task."""
    return path.stem.removeprefix("samples_").rpartition("_")[0] == task


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
