"""What of a run is uploaded to a cluster: the config and the local files that it names.

Task files, rubric files, data files and modules of one's own in the current directory are the
client's, and are uploaded; a file of theirs that does not exist here is taken to be the cluster's
where its path is absolute, and refused where it is not.
Models and run directories are never uploaded: they must be absolute paths on storage that all nodes
see; a run directory may be the URL of an object store, too. Below a shared directory, which the
client and all nodes see under the same path, everything stays in place, and relative paths mean
what they mean here.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from raveval import tasks
from raveval.config import ModelConfig, RunConfig, TaskConfig
from raveval.errors import ConfigError, DataError
from raveval.fingerprint import digest
from raveval.store.places import is_url
from raveval.strict_yaml import read_yaml
from raveval.submission.modules import own_packages

CONFIG_NAME = "raveval-run.yaml"
MAX_BYTES = 100 * 1000**2
"""A little less than what Ray's job server takes in one upload."""
_OWN_FOLDER = "raveval-files"
_LEFT_OUT = frozenset({".git", ".venv", "venv", "__pycache__", CONFIG_NAME})


@dataclass(frozen=True, slots=True)
class Bundle:
    """A run as it travels.

    Attributes:
        config: content of the config file, every path as the cluster has to read it.
        files: content by the place in the bundle, or the local file that it is copied from.
        output: the run directory on the cluster.
        remarks: what a person should know before the run is submitted.
    """

    config: Mapping[str, Any]
    files: Mapping[str, bytes | Path]
    output: str
    remarks: tuple[str, ...] = ()

    @property
    def output_name(self) -> str:
        """Name that all jobs of a run directory have in common; fit for an id of Ray's."""
        stem = re.sub(r"[^a-z0-9]+", "-", Path(self.output).name.lower()).strip("-")[:30]
        return f"raveval-{stem or 'run'}-{digest(self.output)[:8]}"

    @property
    def name(self) -> str:
        """Name of the run: the same output with the same config and the same files has the same."""
        contents = {place: _sha256(content) for place, content in self.files.items()}
        return f"{self.output_name}-{digest([self.config, contents])[:8]}"

    def write(self, directory: Path) -> None:
        """Lay the bundle out in an empty directory."""
        for place, content in self.files.items():
            target = directory / place
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(_bytes(content))
        (directory / CONFIG_NAME).write_bytes(_yaml(self.config))


def make_bundle(config: RunConfig, *, shared: Sequence[Path] = ()) -> Bundle:
    """Return what of a run is uploaded.

    Args:
        config: the run; its `address` is dropped, since a job runs where it is submitted.
        shared: directories that this machine and all nodes of the cluster see under one path.

    Raises:
        ConfigError: a model or a run directory that the cluster cannot see, an unknown task.
        DataError: a file is missing, or all together are too large.
    """
    packing = _packing(shared)
    content = config.model_dump(mode="json", exclude_none=True)
    evaluate, run = content["evaluate"], content["run"]
    output = run["output"] = packing.on_cluster("run.output", config.run.output)
    packing.model("evaluate.model", config.evaluate.model, evaluate["model"])
    if config.evaluate.judge is not None:
        packing.model(
            "evaluate.judge.model", config.evaluate.judge.model, evaluate["judge"]["model"]
        )
    for name, key in (("evaluate", "baseline"), ("run", "answers_from")):
        if key in content[name]:
            content[name][key] = packing.on_cluster(f"{name}.{key}", content[name][key])
    _pack_tasks(packing, config.evaluate.tasks, evaluate["tasks"])
    modules, elsewhere = own_packages(config)
    packing.files |= modules
    packing.remarks += [
        f"{name}: not in this directory, so not uploaded: it has to be installed on the nodes "
        "(--pip my.whl does that for the job)"
        for name in elsewhere
    ]
    if run.pop("address", None) is not None:
        packing.remarks.append(
            f"run.address {config.run.address} is left out: the job runs on the cluster that it "
            "is submitted to"
        )
    packing.check_size()
    return Bundle(content, packing.files, output, tuple(packing.remarks))


def _pack_tasks(
    packing: _Packing, entries: Sequence[TaskConfig], contents: Sequence[dict[str, Any]]
) -> None:
    """Pack what entries of `evaluate.tasks` name, and change their contents to name it there."""
    needed: dict[str, set[str]] = {}
    for entry in entries:
        needed[entry.task] = needed.get(entry.task, set()) | _sections(entry)
    for entry, content in zip(entries, contents, strict=True):
        if entry.task.endswith((".yaml", ".yml")):
            content["task"] = packing.task_file(entry.task, needed=needed[entry.task])
        for key in ("path", "fewshot_path"):
            if key in content:
                content[key] = packing.data(f"{entry.task}: {key}", content[key])


def output_of(config: RunConfig, *, shared: Sequence[Path] = ()) -> str:
    """Return a run's directory on the cluster.

    Raises:
        ConfigError: the cluster cannot see it.
    """
    return _packing(shared).on_cluster("run.output", config.run.output)


def _packing(shared: Sequence[Path]) -> _Packing:
    return _Packing(tuple(_here(str(path)) for path in shared))


@dataclass(slots=True)
class _Packing:
    """The files gathered so far, and the places that local paths have in the bundle."""

    shared: tuple[Path, ...]
    files: dict[str, bytes | Path] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    places: dict[Path, str] = field(default_factory=dict)

    def on_cluster(self, key: str, path: str) -> str:
        """Return a path that is not uploaded as the cluster has to read it; a URL as it is."""
        if is_url(path):
            return path
        here = _here(path)
        if Path(path).is_absolute() or self._is_shared(here):
            return str(here)
        raise ConfigError(
            f"{key}: {path} is not uploaded, and the cluster cannot know what the relative path "
            "means. Give the absolute path on storage that all nodes see; or, if this machine "
            f"sees that storage too, name it with --shared (here the path means {here})"
        )

    def model(self, key: str, model: ModelConfig, section: dict[str, Any]) -> None:
        """Check and replace a model's directory, and that of its adapter."""
        if model.path is not None:
            section["path"] = self.on_cluster(f"{key}.path", model.path)
        if model.adapter is not None and model.adapter.path is not None:
            path = self.on_cluster(f"{key}.adapter.path", model.adapter.path)
            section["adapter"] = {"path": path}
        if model.demo:
            self.remarks.append(
                f"{key}: the demo model is fetched by the head node into its cache; all nodes must "
                "see that directory (set RAVEVAL_CACHE on the nodes where they do not)"
            )

    def task_file(self, given: str, *, needed: Collection[str]) -> str:
        """Pack a task file, and of the files that it names those in the sections needed."""
        here = _here(given)
        if self._is_shared(here):
            return str(here)
        content, place = read_yaml(here), self._place(here)
        folder = os.path.dirname(place)
        for name in sorted(needed):
            section = content.get(name)
            if isinstance(section, dict) and isinstance(section.get("path"), str):
                key = f"{given}: {name}.path"
                path = self.data(key, section["path"], base=here.parent)
                content[name] = {**section, "path": _seen_from(folder, path)}
        grading = content.get("grading")
        if isinstance(grading, dict) and isinstance(grading.get("rubric"), str):
            path = self.data(f"{given}: grading.rubric", grading["rubric"], base=here.parent)
            content["grading"] = {**grading, "rubric": _seen_from(folder, path)}
        self.files[place] = _yaml(content)
        return place

    def data(self, key: str, given: str, *, base: Path | None = None) -> str:
        """Pack a data file, or the files of a folder, and return where the cluster finds it."""
        here = _here(given, base=base)
        if self._is_shared(here):
            return str(here)
        if here.is_dir():
            folder = self._place(here)
            for file in sorted(here.iterdir()):
                if file.is_file() and not file.name.startswith("."):
                    self.files[f"{folder}/{file.name}"] = file
            return folder
        if here.is_file():
            place = self._place(here)
            self.files[place] = here
            return place
        if Path(given).is_absolute():
            self.remarks.append(f"{key}: {given} is not on this machine: taken to be the cluster's")
            return given
        raise DataError(
            f"{key}: {given}: no such file (looked for {here}). It would be uploaded; a file on "
            "the cluster's storage is named by its absolute path"
        )

    def _place(self, here: Path) -> str:
        """Return the place of a local path: the same as here where it lies below this folder."""
        if here not in self.places:
            place = str(here.relative_to(Path.cwd())) if here.is_relative_to(Path.cwd()) else "."
            # Ray leaves out folders of some names, most of them hidden; .. and such lead elsewhere.
            parts = set(Path(place).parts)
            if not parts or parts & _LEFT_OUT or place.startswith((".", _OWN_FOLDER)):
                folder = f"{_OWN_FOLDER}/{len(self.places) + 1}"
                place = folder if here.is_dir() else f"{folder}/{here.name}"
            self.places[here] = place
        return self.places[here]

    def check_size(self) -> None:
        """Refuse more than the job server takes."""
        sizes = {place: _size(content) for place, content in self.files.items()}
        if sum(sizes.values()) <= MAX_BYTES:
            return
        largest = max(sizes, key=sizes.__getitem__)
        source = self.files[largest]
        raise DataError(
            f"the files to upload have {sum(sizes.values()) / 1e6:.0f} MB together, more than the "
            f"{MAX_BYTES / 1e6:.0f} that a job may bring (the largest is "
            f"{source if isinstance(source, Path) else largest}). Put them on storage that the "
            "nodes see, and name it with --shared, or the files by absolute paths"
        )

    def _is_shared(self, path: Path) -> bool:
        return any(path.is_relative_to(root) for root in self.shared)


def _here(path: str, *, base: Path | None = None) -> Path:
    """Return what a path means on this machine; not resolved, so that links keep their names."""
    start = Path.cwd() / Path(path).expanduser() if base is None else base / path
    return Path(os.path.normpath(start))


def _seen_from(folder: str, path: str) -> str:
    """Return a path of the bundle as a file in one of its folders has to name it."""
    return path if path.startswith("/") else os.path.relpath(path, folder or ".")


def _sections(entry: TaskConfig) -> set[str]:
    """Return the sections of a task file whose data an entry of the run reads."""
    if entry.path is not None:
        return set()
    n_shots = tasks.load_task(entry.task).num_fewshot
    n_shots = n_shots if entry.num_fewshot is None else entry.num_fewshot
    return {"source"} | ({"fewshot"} if n_shots and entry.fewshot_path is None else set())


def _yaml(content: Mapping[str, Any]) -> bytes:
    return yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True).encode()


def _bytes(content: bytes | Path) -> bytes:
    if isinstance(content, bytes):
        return content
    try:
        return content.read_bytes()
    except OSError as exc:
        raise DataError(f"{content}: cannot be read: {exc}") from exc


def _size(content: bytes | Path) -> int:
    return len(content) if isinstance(content, bytes) else content.stat().st_size


def _sha256(content: bytes | Path) -> str:
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with content.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
