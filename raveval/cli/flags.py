"""Turns the flags of `raveval run` and `raveval plan` into a config, or says which one is wrong.

The spellings are those that users of other evaluation tools already type. What such a tool means
by them and this one does not is refused by name, never ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from raveval import registry
from raveval.config import RunConfig, config_from_flags, looks_local, model_source
from raveval.errors import ConfigError
from raveval.strict_yaml import read_yaml, validate

EXAMPLE = (
    "raveval run --model PATH_OR_HUB_ID --tasks arc_easy,squad --limit 100 --output-path runs/first"
)

RUN_FLAGS: Mapping[str, str] = {
    "output_path": "output",
    "replicas": "replicas",
    "cpus_per_replica": "cpus_per_replica",
    "gpus_per_replica": "gpus_per_replica",
    "shard_size": "shard_size",
    "retry_failed": "retry_failed",
    "address": "address",
    "answers_from": "answers_from",
}
"""Flags that move no number, and their keys in the config's section `run`."""

TASK_FLAGS = ("num_fewshot", "limit", "path", "fewshot_path")
EVALUATE_FLAGS: Mapping[str, str] = {
    "apply_chat_template": "chat",
    "system_instruction": "system_prompt",
    "seed": "seed",
    "on_overlong": "on_overlong",
    "baseline": "baseline",
}

CONFIG_KEYS: Mapping[str, str] = {
    "model": "evaluate.model",
    "model_args": "evaluate.model and evaluate.engine",
    "engine": "evaluate.engine",
    "engine_args": "evaluate.engine",
    "judge": "evaluate.judge.model",
    "judge_args": "evaluate.judge.model and evaluate.judge.engine",
    "judge_engine": "evaluate.judge.engine",
    "tasks": "evaluate.tasks",
    **{flag: f"{flag} of an entry of evaluate.tasks" for flag in TASK_FLAGS},
    **{flag: f"evaluate.{key}" for flag, key in EVALUATE_FLAGS.items()},
}
"""Flags that move numbers, and where a config file says the same."""

MODEL_KEYS = ("revision", "dtype", "max_model_len", "adapter")
"""Keys of --model-args that belong to the model; all others are options of the engine."""

TYPED: Mapping[str, str] = {
    **{f"run.{key}": flag for flag, key in RUN_FLAGS.items()},
    **{f"evaluate.tasks.{flag}": flag for flag in TASK_FLAGS},
    **{f"evaluate.{key}": flag for flag, key in EVALUATE_FLAGS.items()},
    "evaluate.tasks.task": "tasks",
    "evaluate.model.id": "model",
    "evaluate.model.path": "model",
    "evaluate.engine.name": "engine",
    "evaluate.judge.model.id": "judge",
    "evaluate.judge.model.path": "judge",
    "evaluate.judge.engine.name": "judge_engine",
    **{f"evaluate.model.{key}": f"model_args {key}" for key in MODEL_KEYS},
    **{f"evaluate.judge.model.{key}": f"judge_args {key}" for key in MODEL_KEYS},
}
"""Dotted keys of a config, and the flag that sets each."""

REFUSED_ARGUMENTS: Mapping[str, str] = {
    "data_parallel_size": "copies of the model are raveval's own: use --replicas N instead",
    "batch_size": "batches form continuously; leave it out",
    "add_bos_token": "a prompt begins with exactly one BOS where the tokenizer has one; "
    "leave it out",
}

ENGINE_ALIASES: Mapping[str, str] = {"hf": "transformers"}
ARGUMENT_ALIASES: Mapping[str, str] = {"lora_local_path": "adapter", "peft": "adapter"}


def read_flags(config: Path | None, flags: Mapping[str, Any]) -> RunConfig:
    """Return the config that a command line asks for.

    Args:
        config: a config file, or None where the flags say everything.
        flags: values by name; what was not given is None, False or empty.

    Raises:
        ConfigError: a contradiction, a flag that is missing, or a value that is not allowed.
    """
    given = {name: value for name, value in flags.items() if _is_given(value)}
    if "batch_size" in given:
        raise ConfigError(f"--batch-size: {REFUSED_ARGUMENTS['batch_size']}")
    if config is not None:
        return _from_file(config, given)
    return _from_flags(given)


def parse_arguments(text: str, *, flag: str) -> dict[str, Any]:
    """Read `key=value,key=value`; values are YAML scalars, so true, 0.9 and null mean what they do.

    >>> parse_arguments("dtype=float32,enforce_eager=True,max_model_len=2048", flag="--model-args")
    {'dtype': 'float32', 'enforce_eager': True, 'max_model_len': 2048}

    Raises:
        ConfigError: a part without `=`, an empty or a repeated key, a value that is no scalar.
    """
    found: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key:
            raise ConfigError(f"{flag}: {part!r} is not of the form key=value")
        key = ARGUMENT_ALIASES.get(key, key)
        if key in found:
            raise ConfigError(f"{flag}: {key} is given twice")
        if key in REFUSED_ARGUMENTS:
            raise ConfigError(f"{flag}: {key}: {REFUSED_ARGUMENTS[key]}")
        found[key] = _scalar(key, value, flag)
    return found


def _scalar(key: str, value: str, flag: str) -> Any:
    if key in ("revision", "pretrained", "dtype", "adapter"):
        return value  # a revision may look like a number
    if value == "None":
        return None
    try:
        scalar = yaml.safe_load(value) if value else ""
    except yaml.YAMLError:
        scalar = value
    if not isinstance(scalar, str | int | float | bool | None):
        raise ConfigError(f"{flag}: {key}: {value!r} is not a single value; use a config file")
    return scalar


def _from_file(path: Path, given: Mapping[str, Any]) -> RunConfig:
    moving = [name for name in given if name not in RUN_FLAGS]
    if moving:
        where = "; ".join(f"{_spelled(name)} is {CONFIG_KEYS[name]} there" for name in moving)
        raise ConfigError(
            f"{path} and {', '.join(map(_spelled, moving))}: with a config file, all that can "
            f"move a number stands in the file ({where}). Only "
            f"{', '.join(map(_spelled, RUN_FLAGS))} may be given beside it"
        )
    content = read_yaml(path)
    section = content.get("run") or {}
    if isinstance(section, Mapping):
        overrides = {key: given[flag] for flag, key in RUN_FLAGS.items() if flag in given}
        content = {**content, "run": {**section, **overrides}}
    typed = {f"run.{key}": _spelled(flag) for flag, key in RUN_FLAGS.items() if flag in given}
    return validate(RunConfig, content, where=str(path), typed=typed)


def _from_flags(given: Mapping[str, Any]) -> RunConfig:
    model_args = parse_arguments(given.get("model_args", ""), flag="--model-args")
    engine_args = parse_arguments(given.get("engine_args", ""), flag="--engine-args")
    model, engine = _model_and_engine(given, model_args.pop("pretrained", None))
    tasks = _split(given.get("tasks", ()))
    if model is None and not tasks:
        raise ConfigError(f"nothing to evaluate: give a config file, or flags as in\n  {EXAMPLE}")
    for name, value in (("model", model), ("tasks", tasks), ("output_path", _output(given))):
        if not value:
            raise ConfigError(f"{_spelled(name)} is missing; for example\n  {EXAMPLE}")
    for_engine = {key: value for key, value in model_args.items() if key not in MODEL_KEYS}
    twice = sorted(for_engine.keys() & engine_args.keys())
    if twice:
        raise ConfigError(f"{twice[0]} stands in both --model-args and --engine-args; keep one")
    for flag in ("path", "fewshot_path"):
        if flag in given and len(tasks) > 1:
            raise ConfigError(
                f"{_spelled(flag)}: {given[flag]} can only be the data of one task, and "
                f"{len(tasks)} are asked for ({', '.join(tasks)}); use a config file"
            )
    return config_from_flags(
        model=str(model),
        tasks=tasks,
        output=_output(given),
        engine=engine,
        engine_options={**for_engine, **engine_args},
        model_options={key: value for key, value in model_args.items() if key in MODEL_KEYS},
        task_options={flag: given[flag] for flag in TASK_FLAGS if flag in given},
        documents=_documents(tasks) if "num_fewshot" in given else (),
        evaluate_options={
            **{key: given[flag] for flag, key in EVALUATE_FLAGS.items() if flag in given},
            "judge": _judge(given),
        },
        run_options={
            key: given[flag]
            for flag, key in RUN_FLAGS.items()
            if flag in given and flag != "output_path"
        },
        typed={key: _spelled(flag) for key, flag in TYPED.items()},
    )


def _judge(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """Read the flags of the judge as the config's section `evaluate.judge`."""
    others = [flag for flag in ("judge_args", "judge_engine") if flag in given]
    if "judge" not in given:
        if others:
            raise ConfigError(f"{_spelled(others[0])}: goes with --judge, the judge's model")
        return None
    arguments = parse_arguments(given.get("judge_args", ""), flag="--judge-args")
    of_model = {key: value for key, value in arguments.items() if key in MODEL_KEYS}
    options = {key: value for key, value in arguments.items() if key not in MODEL_KEYS}
    return {
        "model": {**model_source(given["judge"]), **of_model},
        "engine": {"name": given.get("judge_engine", "vllm"), "options": options},
    }


def _documents(tasks: Sequence[str]) -> list[str]:
    """Return the tasks that know no shots, where others do; alone they refuse a number of them."""
    from raveval.tasks import load_task

    found = [name for name in tasks if load_task(name).text is not None]
    return found if len(found) < len(tasks) else []


def _model_and_engine(given: Mapping[str, Any], pretrained: str | None) -> tuple[str | None, str]:
    """Read `--model M`, and also `--model ENGINE --model-args pretrained=M`."""
    model, engine = given.get("model"), given.get("engine")
    if model is None or (pretrained is None and looks_local(model)):
        return pretrained or model, engine or "vllm"
    named = ENGINE_ALIASES.get(model, model)
    is_engine = named in registry.names("engines")
    if pretrained is None:
        if is_engine:
            raise ConfigError(
                f"--model {model}: that is an engine. --model is the model itself, a directory or "
                f"a hub id; choose the engine with --engine {named}"
            )
        return model, engine or "vllm"
    if not is_engine:
        raise ConfigError(f"--model {model} and --model-args pretrained={pretrained}: keep one")
    if engine not in (None, named):
        raise ConfigError(f"--model {model} and --engine {engine} name two engines; keep one")
    return pretrained, named


def _is_given(value: object) -> bool:
    """Whether a flag was typed; zero is a value."""
    return value is not None and value is not False and value != []


def _split(tasks: Iterable[str]) -> list[str]:
    return [name for given in tasks for name in map(str.strip, given.split(",")) if name]


def _output(given: Mapping[str, Any]) -> str:
    return str(given.get("output_path", ""))


def _spelled(flag: str) -> str:
    """Return a flag as it is typed; after a space, the key of its value stays as it is."""
    name, *key = flag.split(" ")
    return " ".join((f"--{name.replace('_', '-')}", *key))


def read_columns(pairs: Sequence[str]) -> dict[str, str]:
    """Read `--map column=field` as often as it was given.

    >>> read_columns(["prediction=output.text"])
    {'prediction': 'output.text'}

    Raises:
        ConfigError: a pair without `=`, or a column given twice.
    """
    return _read_pairs(pairs, flag="--map", form="column=field, as in prediction=output.text")


def read_constants(pairs: Sequence[str]) -> dict[str, Any]:
    """Read `--set column=value` as often as it was given; a value is a YAML scalar.

    >>> read_constants(["rating_denominator=3"])
    {'rating_denominator': 3}

    Raises:
        ConfigError: a pair without `=`, a column given twice, or a value that is no scalar.
    """
    form = "column=value, as in rating_denominator=3"
    texts = _read_pairs(pairs, flag="--set", form=form)
    return {column: _scalar(column, text, "--set") for column, text in texts.items()}


def _read_pairs(pairs: Sequence[str], *, flag: str, form: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        column, equals, value = pair.partition("=")
        if not (column and equals and value):
            raise ConfigError(f"{flag} {pair}: expected {form}")
        if column in found:
            raise ConfigError(f"{flag} {pair}: column {column!r} is given twice")
        found[column] = value
    return found
