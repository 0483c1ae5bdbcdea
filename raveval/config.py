"""What a user asks for: `evaluate` (all that can move a number) and `run` (all that cannot).

The two sections are the whole config, so fingerprints need no list of keys to ignore. Reading is
strict: an unknown key, a wrong type or a contradiction is refused with the file and the dotted key.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from raveval import registry
from raveval.errors import ConfigError, nearest
from raveval.paths import NAME_PATTERN, exists, path_of
from raveval.store.places import checked_place, is_url
from raveval.strict_yaml import PathText, Strict, read_yaml, validate
from raveval.tasks.sections import SamplingSection
from raveval.types import AdapterRef, ModelRef


class AdapterConfig(Strict):
    """A LoRA adapter of the model: a local directory (`path`) or a hub id (`id`, `revision`)."""

    path: PathText | None = None
    id: str | None = None
    revision: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.path is None) == (self.id is None):
            raise ValueError("give either path (a local directory) or id (a hub id)")
        _check_place(self.path or self.id or "", revision=self.revision, is_on_hub=bool(self.id))
        return self

    def ref(self) -> AdapterRef:
        """Return the adapter as engines take it; makes local paths absolute."""
        return AdapterRef(_absolute(self.path), self.id, self.revision)


def _check_place(place: str, *, revision: str | None, is_on_hub: bool) -> None:
    """Refuse a revision of a directory, and weights in an object store."""
    if revision is not None and not is_on_hub:
        raise ValueError("revision goes with id; a local directory has none")
    if is_url(place):
        raise ValueError(
            f"{place}: engines load a model from a directory or from the hub; copy it to a file "
            "system that all nodes see"
        )


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(path_of(path).absolute())


def _adapter_shorthand(value: Any) -> Any:
    """A plain string is a directory where one exists, or else a hub id."""
    if not isinstance(value, str):
        return value
    return {"path": value} if looks_local(value) else {"id": value}


class ModelConfig(Strict):
    """The model: a local directory (`path`), a hub id (`id`, with `revision`), or the demo's.

    `adapter` is a LoRA adapter that the model is evaluated with.
    """

    path: PathText | None = None
    id: str | None = None
    demo: bool = False
    revision: str | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    max_model_len: int | None = Field(default=None, ge=2)
    adapter: Annotated[AdapterConfig | None, BeforeValidator(_adapter_shorthand)] = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.path is not None) + (self.id is not None) + self.demo != 1:
            raise ValueError(
                "give exactly one of path (a local directory), id (a hub id) and demo: true"
            )
        _check_place(self.path or self.id or "", revision=self.revision, is_on_hub=bool(self.id))
        return self

    def ref(self, *, say: Callable[[str], None]) -> ModelRef:
        """Return the model as engines take it; fetches the demo's, makes local paths absolute.

        Raises:
            RavevalError: the demo model cannot be fetched.
        """
        path = self.path
        if self.demo:
            from raveval import demo_model

            path = str(demo_model.fetch(say=say))
        adapter = None if self.adapter is None else self.adapter.ref()
        return ModelRef(
            _absolute(path), self.id, self.revision, self.dtype, self.max_model_len, adapter
        )


class EngineConfig(Strict):
    """Which backend answers, and its own options (see the `Options` of the engine's module)."""

    name: str
    options: dict[str, Any] = Field(default_factory=dict)


class TaskConfig(Strict):
    """One task of a run: a catalogue name or a task file, and what to change about it.

    `name` is what the task is called in the results (default: the task's own name); give one to
    run the same task twice with different settings.
    """

    task: str
    name: str | None = Field(default=None, pattern=NAME_PATTERN)
    path: PathText | None = None
    split: str | None = None
    limit: int | None = Field(default=None, ge=1)
    num_fewshot: int | None = Field(default=None, ge=0)
    fewshot_path: PathText | None = None
    sampling: SamplingSection | None = None
    judge_sampling: SamplingSection | None = None
    metrics: list[str] | None = Field(default=None, min_length=1)


def _model_shorthand(value: Any) -> Any:
    """A plain string is `demo`, a directory where one exists, or else a hub id."""
    return model_source(value) if isinstance(value, str) else value


def _engine_shorthand(value: Any) -> Any:
    """`vllm` or `{name: vllm, prefix_reuse: false}`: options stand beside the name."""
    if isinstance(value, str):
        return {"name": value}
    if isinstance(value, Mapping) and "name" in value and "options" not in value:
        return {
            "name": value["name"],
            "options": {k: v for k, v in value.items() if k != "name"},
        }
    return value


class JudgeConfig(Strict):
    """The model that grades the answers of another one, and what hosts it.

    `chat` unset: it is asked in chat turns where it has a template.
    """

    model: Annotated[ModelConfig, BeforeValidator(_model_shorthand)]
    engine: Annotated[EngineConfig, BeforeValidator(_engine_shorthand)] = EngineConfig(name="vllm")
    chat: bool | None = None


class EvaluateConfig(Strict):
    """All that can move a number.

    `chat` unset: evaluators, and models that answer instructions, are asked in chat turns where the
    model has a template; all else is asked as plain text. `judge` grades the answers of tasks that
    need one, and compares them with those of `baseline`, the directory of another run.
    """

    model: Annotated[ModelConfig, BeforeValidator(_model_shorthand)]
    tasks: list[TaskConfig] = Field(min_length=1)
    engine: Annotated[EngineConfig, BeforeValidator(_engine_shorthand)] = EngineConfig(name="vllm")
    judge: JudgeConfig | None = None
    baseline: PathText | None = None
    seed: int = Field(default=1234, ge=0, lt=2**63)
    chat: bool | None = None
    system_prompt: str | None = None
    on_overlong: Literal["refuse", "count"] = "refuse"

    @field_validator("judge", mode="before")
    @classmethod
    def _judge_shorthand(cls, value: Any) -> Any:
        """A plain string is the judge's model."""
        return {"model": value} if isinstance(value, str) else value

    @field_validator("tasks", mode="before")
    @classmethod
    def _task_shorthand(cls, value: Any) -> Any:
        """A plain string is a task with nothing changed."""
        if not isinstance(value, list):
            return value
        return [{"task": entry} if isinstance(entry, str) else entry for entry in value]

    @model_validator(mode="after")
    def _system_prompt_needs_chat(self) -> Self:
        if self.system_prompt is not None and self.chat is False:
            raise ValueError("system_prompt: only chat prompts have one; leave chat: false out")
        return self


class JudgePlacement(Strict):
    """On what the judge runs; it has the resources to itself, after the candidate is done."""

    replicas: int = Field(default=1, ge=1)
    cpus_per_replica: float | None = Field(default=None, gt=0)
    gpus_per_replica: float | None = Field(default=None, ge=0)


class RunSection(Strict):
    """All that cannot move a number: where results go, and on what they are computed.

    `answers_from` is the directory of another run that was asked the same of the same model: its
    answers are taken over, so that another judge can grade them. `autoscaling` says that nodes come
    when they are asked for: replicas that have no room yet are waited for, not refused. An engine
    is taken to hang once it has answered nothing for `deadline_seconds` and the time that the
    longest request under way may take at `slowest_tokens_per_second`.
    """

    output: PathText
    replicas: int = Field(default=1, ge=1)
    cpus_per_replica: float | None = Field(default=None, gt=0)
    gpus_per_replica: float | None = Field(default=None, ge=0)
    shard_size: int = Field(default=32, ge=1)
    examples_in_flight: int | None = Field(default=None, ge=1)
    deadline_seconds: float = Field(default=1800.0, gt=0)
    slowest_tokens_per_second: float = Field(default=2.0, gt=0)
    retry_failed: bool = False
    address: str | None = None
    judge: JudgePlacement = JudgePlacement()
    answers_from: PathText | None = None
    autoscaling: bool = False

    @model_validator(mode="after")
    def _what_is_scaled_is_known(self) -> Self:
        if self.autoscaling and self.gpus_per_replica is None:
            raise ValueError(
                "autoscaling: give gpus_per_replica too (and cpus_per_replica where it is 0): what "
                "nodes will have that are not there yet is not known"
            )
        return self

    @field_validator("output")
    @classmethod
    def _written_in_one_way(cls, value: str) -> str:
        """A path, or the URL of a folder in an object store."""
        try:
            return checked_place(value)
        except ConfigError as exc:
            raise ValueError(str(exc)) from exc


class RunConfig(Strict):
    """One run: what to evaluate, and how to run it."""

    evaluate: EvaluateConfig
    run: RunSection


def load_config(source: str | Path | Mapping[str, Any] | RunConfig) -> RunConfig:
    """Read a config from a YAML file, or from the same structure in memory.

    Raises:
        ConfigError: what is wrong, where, and what is allowed.
    """
    if isinstance(source, RunConfig):
        return source
    if isinstance(source, Mapping):
        return validate(RunConfig, dict(source), where="config")
    return validate(RunConfig, read_yaml(source), where=str(source))


def config_from_flags(
    *,
    model: str,
    tasks: Sequence[str],
    output: str,
    engine: str = "vllm",
    engine_options: Mapping[str, Any] | None = None,
    model_options: Mapping[str, Any] | None = None,
    task_options: Mapping[str, Any] | None = None,
    documents: Collection[str] = (),
    evaluate_options: Mapping[str, Any] | None = None,
    run_options: Mapping[str, Any] | None = None,
    typed: Mapping[str, str] | None = None,
) -> RunConfig:
    """Build a config from command-line flags; options that are None are left out.

    Tasks among `documents` are scored as they stand: a number of shots is for the others. `typed`
    has the flags by the dotted keys that they set, for errors.

    Raises:
        ConfigError: as `load_config`.
    """
    shared = _given(task_options)
    bare = {key: value for key, value in shared.items() if key != "num_fewshot"}
    content = {
        "evaluate": {
            "model": {**model_source(model), **_given(model_options)},
            "engine": {"name": engine, "options": dict(engine_options or {})},
            "tasks": [{"task": task, **(bare if task in documents else shared)} for task in tasks],
            **_given(evaluate_options),
        },
        "run": {"output": output, **_given(run_options)},
    }
    return validate(RunConfig, content, where="flags", typed=typed)


def model_source(model: str) -> dict[str, Any]:
    """Return what a model's name means: `demo`, a directory (or written like one), or a hub id."""
    if model == "demo":
        return {"demo": True}
    return {"path": model} if looks_local(model) else {"id": model}


def looks_local(model: str) -> bool:
    """Whether a model name means a directory: one that exists, or is written like a path."""
    if model.startswith(("/", "./", "../", "~")):
        return True
    try:
        return exists(path_of(model))
    except ConfigError:
        return False


_OF_THE_MODEL = "an adapter is a part of the model; set evaluate.model.adapter instead"
_ELSEWHERE: Mapping[str, str] = {
    "data_parallel_size": "replicas are raveval's own; set run.replicas (or run.judge.replicas) "
    "instead",
    "lora_local_path": _OF_THE_MODEL,
    "lora_modules": _OF_THE_MODEL,
    "peft": _OF_THE_MODEL,
    "enable_lora": "follows from evaluate.model.adapter; leave it out",
    "max_lora_rank": "is read from the adapter (evaluate.model.adapter); leave it out",
    "max_loras": "a run has one adapter (evaluate.model.adapter); leave it out",
}
"""What engines themselves, or other tools, take as options, and where it belongs here."""


def engine_options(engine: EngineConfig, *, where: str = "evaluate.engine") -> Any:
    """Return the `Options` of the engine's module with what the config sets.

    Raises:
        ConfigError: unknown engine, unknown option or a value of the wrong type; names `where`.
    """
    options = registry.load("engines", engine.name).Options
    if not dataclasses.is_dataclass(options):
        raise ConfigError(f"{where}: the Options of {engine.name!r} are no dataclass")
    known = [field.name for field in dataclasses.fields(options)]
    for key in engine.options:
        if key in _ELSEWHERE and key not in known:
            raise ConfigError(f"{where}.{key}: {_ELSEWHERE[key]}")
        if key not in known:
            raise ConfigError(f"{where}.{key}: unknown option; {nearest(key, known)}")
    try:
        return TypeAdapter(options).validate_python(engine.options)
    except ValidationError as exc:
        faults = (f"{where}.{fault['loc'][0]}: {fault['msg']}" for fault in exc.errors())
        raise ConfigError("\n".join(faults)) from exc


def _given(options: Mapping[str, Any] | None) -> dict[str, Any]:
    return {key: value for key, value in (options or {}).items() if value is not None}
