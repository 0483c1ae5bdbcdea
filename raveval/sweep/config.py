"""What a sweep is: a run, and the checkpoints it is carried out on.

    base: configs/run.yaml         # or the run itself, with `evaluate` and `run`
    checkpoints:
      pattern: checkpoints/step_*  # or list: […], or revisions: […] of the base's hub model
      order: bisecting             # the ends first, then halves: a coarse curve early
    parallel: 2
    stop_hopeless: true            # or {alpha: 0.05, tasks: [arc_easy]}; off unless it is there

The base names no model, or one whose place each checkpoint takes: `dtype` and `max_model_len` stay.
`run.output` of the base is the sweep's directory; each checkpoint is a run in a folder of its own
there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from raveval.comparison import ALPHA
from raveval.config import RunConfig, load_config, model_source
from raveval.errors import ConfigError, nearest
from raveval.evaluate import graded, load_protocol
from raveval.paths import NAME_PATTERN, is_name
from raveval.store.places import is_url
from raveval.strict_yaml import PathText, Strict, read_yaml, validate
from raveval.sweep.checkpoints import Checkpoint, found, in_order, step_of
from raveval.tasks import load_task

RESERVED = ("sweep.json", "report.md", "report.html", "logs")
"""Names in a sweep's directory that are no checkpoint's."""

_KEPT_OF_BASE = ("dtype", "max_model_len")


class CheckpointEntry(Strict):
    """One checkpoint: a directory or a hub id, and its step where the name does not say it."""

    path: PathText | None = None
    id: str | None = None
    revision: str | None = None
    name: str | None = Field(default=None, pattern=NAME_PATTERN)
    step: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.path is None) == (self.id is None):
            raise ValueError("give one of path (a local directory) and id (a hub id)")
        return self


class CheckpointsSection(Strict):
    """Which checkpoints, and in which order they are evaluated."""

    pattern: PathText | None = None
    entries: list[CheckpointEntry] | None = Field(default=None, min_length=1, alias="list")
    revisions: list[str] | None = Field(default=None, min_length=1)
    order: Literal["numeric", "bisecting"] = "numeric"

    @field_validator("entries", mode="before")
    @classmethod
    def _entry_shorthand(cls, value: Any) -> Any:
        """A plain string is a directory where one exists, or else a hub id."""
        if not isinstance(value, list):
            return value
        return [model_source(entry) if isinstance(entry, str) else entry for entry in value]

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if sum(each is not None for each in (self.pattern, self.entries, self.revisions)) != 1:
            raise ValueError("give one of pattern, list and revisions")
        return self


class StopSection(Strict):
    """Which checkpoints are stopped early: those that are shown to be worse than the best.

    `alpha` is the chance that the whole sweep stops one wrongly, `tasks` are those that decide
    (all that can be tested where none is named); `hopeless` has the rule.
    """

    alpha: float = Field(default=ALPHA, gt=0, lt=1)
    tasks: list[str] | None = Field(default=None, min_length=1)


class SweepSection(Strict):
    """A sweep as its file says it."""

    base: PathText | dict[str, Any]
    checkpoints: CheckpointsSection
    parallel: int = Field(default=2, ge=1)
    watch: bool = False
    poll_seconds: float = Field(default=30.0, gt=0)
    idle_minutes: float | None = Field(default=None, gt=0)
    stop_hopeless: StopSection | None = None

    @field_validator("stop_hopeless", mode="before")
    @classmethod
    def _stop_shorthand(cls, value: Any) -> Any:
        return {True: {}, False: None}[value] if isinstance(value, bool) else value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.watch and self.checkpoints.pattern is None:
            raise ValueError("watch: needs checkpoints.pattern, where new ones appear")
        if self.idle_minutes is not None and not self.watch:
            raise ValueError("idle_minutes: only a sweep that watches waits for checkpoints")
        return self


@dataclass(frozen=True, slots=True)
class SweepConfig:
    """A sweep that was checked.

    Attributes:
        base: the run as its file says it, without its model's place.
        model: what each checkpoint's model keeps of the base's.
        output: the sweep's directory.
        parallel: how many checkpoints are under way at once; what finds no free CPUs or GPUs waits.
        watch: whether to wait for more checkpoints, looking every `poll_seconds`, until there was
            no new one for `idle_minutes` (None: until it is interrupted).
        stop_hopeless: which are stopped early; None: none.
    """

    base: Mapping[str, Any]
    model: Mapping[str, Any]
    output: Path
    section: CheckpointsSection
    parallel: int
    watch: bool
    poll_seconds: float
    idle_minutes: float | None
    stop_hopeless: StopSection | None

    def checkpoints(self) -> list[Checkpoint]:
        """Return the checkpoints that there are now, in the order they are evaluated.

        Raises:
            ConfigError: there are none, or two of one name, or one whose name no run can have.
        """
        checkpoints, faults = self.named_well()
        if faults:
            raise ConfigError(faults[0])
        if not checkpoints:
            raise ConfigError(
                f"checkpoints.pattern: {self.section.pattern!r} fits no directory; the pattern is "
                "looked up from where the command runs"
            )
        return checkpoints

    def named_well(
        self, known: Mapping[str, Checkpoint] | None = None
    ) -> tuple[list[Checkpoint], list[str]]:
        """Return the checkpoints whose names can be those of runs, and what the others lack.

        `known` are those of which something is known by name: theirs nobody else can take.
        """
        seen = dict(known or {})
        good, faults = list[Checkpoint](), list[str]()
        for each in self._found():
            if not is_name(each.name) or each.name in RESERVED:
                faults.append(
                    f"checkpoints: {each.name!r:.120} cannot be the name of a run; list it with a "
                    "`name` of at most 80 letters, digits, '_', '-' and '.'"
                )
            elif seen.setdefault(each.name, each).real_place != each.real_place:
                faults.append(
                    f"checkpoints: {each.place} and {seen[each.name].place} are both called "
                    f"{each.name!r}; list them with a `name` each"
                )
            elif each.name not in {other.name for other in good}:
                good.append(each)
        return in_order(good, bisecting=self.section.order == "bisecting"), faults

    def _found(self) -> list[Checkpoint]:
        section = self.section
        if section.pattern is not None:
            return found(section.pattern)
        if section.revisions is not None:
            hub_id = str(self.model["id"])
            return [
                Checkpoint(revision, step_of(revision), {"id": hub_id, "revision": revision})
                for revision in section.revisions
            ]
        return [_listed(entry) for entry in section.entries or ()]

    def run_of(self, checkpoint: Checkpoint) -> RunConfig:
        """Return the run of one checkpoint.

        Raises:
            ConfigError: as `load_config`.
        """
        kept = {key: self.model[key] for key in _KEPT_OF_BASE if key in self.model}
        evaluate = {**self.base["evaluate"], "model": {**kept, **checkpoint.source}}
        section = {**self.base["run"], "output": str(self.output / checkpoint.name)}
        return load_config({"evaluate": evaluate, "run": section})


def _listed(entry: CheckpointEntry) -> Checkpoint:
    source = {
        key: value
        for key, value in (("path", entry.path), ("id", entry.id), ("revision", entry.revision))
        if value is not None
    }
    label = entry.revision or (entry.path or entry.id or "").rstrip("/").rpartition("/")[2]
    step = step_of(label) if entry.step is None else entry.step
    return Checkpoint(entry.name or label, step, source)


def load_sweep(source: str | Path | Mapping[str, Any], **overrides: object) -> SweepConfig:
    """Read a sweep from a YAML file, or from the same structure in memory.

    `overrides` take the place of the file's keys, such as `parallel`; None leaves a key as it is.

    Raises:
        ConfigError: what is wrong, where, and what is allowed.
    """
    where = "sweep" if isinstance(source, Mapping) else str(source)
    content = dict(source) if isinstance(source, Mapping) else read_yaml(source)
    content |= {key: value for key, value in overrides.items() if value is not None}
    section = validate(SweepSection, content, where=where)
    base = section.base if isinstance(section.base, dict) else read_yaml(section.base)
    base_name = f"{where}: base" if isinstance(section.base, dict) else section.base
    evaluate, run = (base.get(key) for key in ("evaluate", "run"))
    if not isinstance(evaluate, Mapping) or not isinstance(run, Mapping):
        raise ConfigError(f"{base_name}: a run has the sections `evaluate` and `run`")
    if run.get("answers_from") is not None:
        raise ConfigError(
            f"{base_name}: run.answers_from: holds the answers of one model, and a sweep asks "
            "several; leave it out, or evaluate that checkpoint by `raveval run`"
        )
    model = evaluate.get("model") or {}
    model = model_source(model) if isinstance(model, str) else model
    if not isinstance(model, Mapping):
        raise ConfigError(
            f"{base_name}: evaluate.model: expected a name, or keys as path and dtype"
        )
    if model.get("adapter") is not None:
        raise ConfigError(
            f"{base_name}: evaluate.model.adapter: the checkpoints of a sweep are whole models; "
            "evaluate a model with an adapter by `raveval run`"
        )
    if section.checkpoints.revisions is not None and "id" not in model:
        raise ConfigError(
            f"{where}: checkpoints.revisions: are those of the base's model, and {base_name} names "
            "none of the hub (evaluate.model: {id: org/name})"
        )
    # What a checkpoint changes cannot make the rest right or wrong.
    stand_in = {"evaluate": {**evaluate, "model": {"id": "checkpoint"}}, "run": run}
    asked = validate(RunConfig, stand_in, where=base_name)
    if section.stop_hopeless is not None:
        _check_tasks(section.stop_hopeless.tasks or (), asked, where)
    if is_url(asked.run.output):
        raise ConfigError(
            f"{base_name}: run.output: {asked.run.output}: a sweep is written to a folder; runs "
            "alone are written to object stores"
        )
    return SweepConfig(
        base={"evaluate": dict(evaluate), "run": dict(run)},
        model=dict(model),
        output=Path(asked.run.output),
        section=section.checkpoints,
        parallel=section.parallel,
        watch=section.watch,
        poll_seconds=section.poll_seconds,
        idle_minutes=section.idle_minutes,
        stop_hopeless=section.stop_hopeless,
    )


def _check_tasks(names: Sequence[str], run: RunConfig, where: str) -> None:
    """Refuse tasks that the base does not have, or that are only known when all have answered."""
    tasks = {}
    for entry in run.evaluate.tasks:
        task = load_task(entry.task)
        tasks[entry.name or task.name] = task
    for name in names:
        if name not in tasks:
            raise ConfigError(
                f"{where}: stop_hopeless.tasks: the base has no task {name!r}; "
                f"{nearest(name, tasks)}"
            )
        if graded(load_protocol(tasks[name].protocol)) is not None:
            raise ConfigError(
                f"{where}: stop_hopeless.tasks: a judge grades {name!r} after all checkpoints have "
                "answered, so it can stop none; leave it out"
            )
