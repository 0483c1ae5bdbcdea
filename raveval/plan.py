"""Turns a config into a plan: every refusal that needs no loaded model happens here.

A plan holds what is asked, rendered to the last character, and the two fingerprints of each task:
`reply` (all that the model's answers depend on) and `score` (what the numbers depend on besides).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from raveval import __version__, registry, tasks
from raveval.config import EvaluateConfig, RunConfig, TaskConfig, engine_options
from raveval.errors import ConfigError, MismatchError, ModelError, Refused, ResourceError, nearest
from raveval.evaluate import load_metric, load_protocol
from raveval.fingerprint import checkpoint_digest, digest, digest_each, first_difference, plain
from raveval.lengths import lengths, overlong_message
from raveval.metrics import _clusters
from raveval.protocols import EvaluationProtocol, Grading, TaskSettings, schema
from raveval.store import LAYOUT, RunDirectory, shards_of
from raveval.types import Example, ModelRef, Shard


def score_inputs(protocol: str, settings: TaskSettings, metrics: Sequence[str]) -> dict[str, Any]:
    """Return what numbers depend on besides the replies, as this version of raveval has it."""
    return {
        "protocol": load_protocol(protocol).SCORE_VERSION,
        "scoring": settings.scoring,
        "no_answer": settings.no_answer,
        "metrics": {metric: load_metric(metric).version for metric in metrics},
        "clusters": _clusters.VERSION,
    }


def score_fingerprint(reply: Mapping[str, Any], score: Mapping[str, Any]) -> str:
    """Return the hash of all that a task's numbers depend on."""
    return digest([reply, score])


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """One task as it will be asked.

    `examples` stand in their fixed pseudo-random order (by the hash of their id); `reply` and
    `score` are what the fingerprints are made of, so that a mismatch can name its key.
    `longest_tokens` is None where every example surely fits, by its bytes alone.
    """

    name: str
    protocol: str
    settings: TaskSettings
    metrics: tuple[str, ...]
    num_fewshot: int
    version: int
    examples: tuple[Example, ...]
    reply: Mapping[str, Any]
    score: Mapping[str, Any]
    provenance: Mapping[str, str]
    n_overlong: int = 0
    longest_tokens: int | None = None

    @property
    def reply_fingerprint(self) -> str:
        """Hash of all that the model's answers depend on."""
        return digest(self.reply)

    @property
    def score_fingerprint(self) -> str:
        """Hash of all that the numbers depend on."""
        return score_fingerprint(self.reply, self.score)

    def manifest(self, shard_size: int) -> dict[str, Any]:
        """Return the task's entry of run.json: all that workers and the reducer need of it."""
        return {
            "protocol": self.protocol,
            "settings": asdict(self.settings),
            "metrics": list(self.metrics),
            "num_fewshot": self.num_fewshot,
            "version": self.version,
            "provenance": self.provenance,
            "n_examples": len(self.examples),
            "row_key_sum": sum(example.row_key for example in self.examples) % 2**64,
            "shard_size": shard_size,
            "reply": self.reply,
            "score": self.score,
            "reply_fingerprint": self.reply_fingerprint,
            "score_fingerprint": self.score_fingerprint,
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """A run that nothing known beforehand speaks against.

    `max_model_len` is 0 where only the server of the model knows it.
    """

    config: RunConfig
    model: ModelRef
    max_model_len: int
    tasks: tuple[PlannedTask, ...]
    shard_sizes: Mapping[str, int]
    system_role: str | None = None

    def shards(self) -> list[Shard]:
        """Return every shard of the run, tasks in order."""
        return [
            shard
            for task in self.tasks
            for shard in shards_of(task.name, len(task.examples), self.shard_sizes[task.name])
        ]

    def lines(self) -> list[str]:
        """Describe the plan for a person."""
        evaluate, run = self.config.evaluate, self.config.run
        lines = [
            f"model   {self.model.name} (engine {evaluate.engine.name}, dtype {self.model.dtype}, "
            f"max_model_len {self.max_model_len or 'unknown'})",
            f"output  {run.output} ({run.replicas} replica{'s' * (run.replicas > 1)}, "
            f"{len(self.shards())} shards)",
        ]
        if self.system_role is not None:
            lines.append(f"chat    system role: {self.system_role}")
        for task in self.tasks:
            overlong = f", {task.n_overlong} too long" if task.n_overlong else ""
            longest = f", longest {task.longest_tokens} tokens" if task.longest_tokens else ""
            lines.append(
                f"task    {task.name}: {len(task.examples)} examples, {task.protocol}, "
                f"{task.num_fewshot}-shot{longest}{overlong}"
            )
            lines += (f"        {remark}" for remark in tasks.source_remarks(task.provenance))
        return lines


def make_plan(config: RunConfig, *, say: Callable[[str], None] = lambda _: None) -> Plan:
    """Check a config against everything that can be known without loading the model.

    Raises:
        Refused: the first thing that speaks against the run (ConfigError, DataError, ModelError,
            ResourceError, MismatchError).
    """
    evaluate = config.evaluate
    options = engine_options(evaluate.engine)
    if evaluate.judge is not None:
        raise ConfigError("evaluate.judge: no task of this run is graded by a judge; leave it out")
    _check_names(evaluate.tasks)
    _check_local_resources(config)
    directory = RunDirectory(config.run.output)
    _check_writable(directory.path)
    model = evaluate.model.ref(say=say)
    engine = registry.load("engines", evaluate.engine.name)
    encoder = engine.encoder(model, options)
    if model.id is not None and encoder.commit is not None:
        model = replace(model, revision=encoder.commit)  # what "main" means may move
    if evaluate.chat and not encoder.has_chat_template:
        raise ModelError(
            f"evaluate.chat: {model.name} has no chat template; leave chat out to ask with plain "
            "prompts"
        )
    identity = {
        "model": _model_identity(model),
        "engine": {
            "name": evaluate.engine.name,
            "options": {k: v for k, v in asdict(options).items() if k not in engine.OPERATIONAL},
        },
        "dtype": model.dtype,
        "max_model_len": encoder.max_model_len,
    }
    planned = []
    for entry in evaluate.tasks:
        say(f"preparing {entry.name or entry.task}")
        planned.append(_plan_task(entry, evaluate, identity, encoder))
    shard_sizes = reconcile(directory, planned, config.run.shard_size)
    is_chat = any(task.reply["chat"] for task in planned)
    return Plan(
        config,
        model,
        encoder.max_model_len,
        tuple(planned),
        shard_sizes,
        system_role=getattr(encoder, "system_role", None) if is_chat else None,
    )


def _plan_task(
    entry: TaskConfig,
    evaluate: EvaluateConfig,
    identity: Mapping[str, Any],
    encoder: Any,
) -> PlannedTask:
    task = tasks.load_task(entry.task)
    if entry.sampling is not None:
        task = tasks.with_sampling(task, entry.sampling)
    name = entry.name or task.name
    protocol = load_protocol(task.protocol)
    metrics = tuple(entry.metrics or task.metrics or protocol.METRICS)
    _check_metrics(name, metrics, protocol)
    chat = protocol.PREFERS_CHAT and encoder.has_chat_template
    if evaluate.chat is not None:
        chat = evaluate.chat
    options = tasks.Options(
        path=entry.path,
        split=entry.split,
        limit=entry.limit,
        num_fewshot=entry.num_fewshot,
        fewshot_path=entry.fewshot_path,
        chat=chat,
        system_prompt=evaluate.system_prompt,
    )
    num_fewshot = task.num_fewshot if entry.num_fewshot is None else entry.num_fewshot
    loaded = tasks.load_examples(task, options, seed=evaluate.seed)
    examples = tuple(sorted(loaded, key=lambda example: (example.row_key, example.id)))
    settings = TaskSettings(
        sampling=task.sampling,
        scoring=task.scoring,
        no_answer=task.no_answer,
        may_truncate=task.may_truncate,
        seed=evaluate.seed,
        grading=task.grading.settings() if task.grading else Grading(),
    )
    n_tokens = lengths(examples, protocol, settings, encoder)
    too_long = {id: n for id, n in n_tokens.items() if n > encoder.max_model_len}
    if too_long and evaluate.on_overlong == "refuse" and not task.may_truncate:
        raise ConfigError(overlong_message(name, too_long, len(examples), encoder.max_model_len))
    return PlannedTask(
        name=name,
        protocol=task.protocol,
        settings=settings,
        metrics=metrics,
        num_fewshot=num_fewshot,
        version=task.version,
        examples=examples,
        reply=plain(
            {
                **identity,
                "protocol": {"name": task.protocol, "version": protocol.ANSWER_VERSION},
                "task_version": task.version,
                "num_fewshot": num_fewshot,
                "chat": chat,
                "seed": evaluate.seed,
                "n_examples": len(examples),
                "sampling": asdict(settings.sampling),
                "grading": asdict(settings.grading) if task.grading else None,
                "may_truncate": settings.may_truncate,
                "examples": digest_each(asdict(example) for example in examples),
            }
        ),
        score=score_inputs(task.protocol, settings, metrics),
        provenance={
            **tasks.provenance(task, options),
            **({} if entry.limit is None else {"limit": str(entry.limit)}),
        },
        n_overlong=len(too_long),
        longest_tokens=max(n_tokens.values(), default=None),
    )


def _check_metrics(task: str, metrics: Sequence[str], protocol: EvaluationProtocol) -> None:
    columns = schema(protocol.COLUMNS).names
    for name in metrics:
        lacking = [column for column in load_metric(name).needs if column not in columns]
        if lacking:
            raise ConfigError(
                f"task {task!r}: metric {name!r} needs the column {lacking[0]!r}, which its "
                f"protocol does not record; {nearest(lacking[0], columns)}"
            )
    _check_estimates(task, metrics)


def _check_estimates(task: str, metrics: Sequence[str]) -> None:
    """Refuse metrics that would report two numbers under one name."""
    family_of: dict[str, str] = {}
    for family in dict.fromkeys(metrics):
        metric = load_metric(family)
        for name in metric.compute(metric.init()):
            if name in family_of:
                raise ConfigError(
                    f"task {task!r}: metrics {family_of[name]!r} and {family!r} both give an "
                    f"estimate {name!r}; take one of them, or two tasks of other names"
                )
            family_of[name] = family


def _check_names(entries: Sequence[TaskConfig]) -> None:
    """Refuse two tasks of one name before their data is read."""
    seen: set[str] = set()
    for entry in entries:
        name = entry.name or tasks.load_task(entry.task).name
        if name in seen:
            raise ConfigError(
                f"evaluate.tasks: {name!r} stands twice; give one of them another `name`"
            )
        seen.add(name)


def _check_local_resources(config: RunConfig) -> None:
    """Refuse what this machine cannot hold; a cluster is asked once it is connected to."""
    run = config.run
    if run.address is not None or "RAY_ADDRESS" in os.environ:
        return
    available = len(os.sched_getaffinity(0))
    wanted = run.replicas * (run.cpus_per_replica or 1)
    if wanted > available:
        raise ResourceError(
            f"run.replicas: {run.replicas} replicas of {run.cpus_per_replica or 1:g} CPUs need "
            f"{wanted:g}; this machine has {available}. Ask for fewer, or name a cluster with "
            "run.address"
        )


def _check_writable(path: Path) -> None:
    """Refuse an output that cannot be a run directory, without creating it."""
    existing = path
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise Refused(f"run.output: {existing} is a file, not a directory; choose another output")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise Refused(f"run.output: {existing} is not writable; choose another output")
    is_run = (path / "run.json").exists()
    foreign = {entry.name for entry in path.glob("[!.]*")} - LAYOUT if path.is_dir() else set()
    if foreign and not is_run:
        raise MismatchError(
            f"run.output: {path} holds files but no run of raveval ({min(foreign)}); choose an "
            "empty directory"
        )


def _model_identity(model: ModelRef) -> dict[str, Any]:
    """Return what tells this model from another, also from one saved later under the same path."""
    if model.path is not None and Path(model.path).is_dir():
        return {"weights": checkpoint_digest(Path(model.path))}
    return {"id": model.id or model.path, "revision": model.revision}


def reconcile(
    directory: RunDirectory, planned: Sequence[PlannedTask], shard_size: int
) -> dict[str, int]:
    """Check tasks against a run that is already there, and return each one's shard size.

    The driver does so once more when it holds the directory: another may have been faster.

    A task keeps the shards it was begun with, whatever the config now says: their size moves no
    number, and finished ones stay finished. New tasks may join a run; none may vanish.

    Raises:
        MismatchError: what moves numbers differs; the message names the key.
    """
    manifest = directory.read_manifest()
    if manifest is None:
        return {task.name: shard_size for task in planned}
    known: dict[str, Any] = manifest["tasks"]
    by_name = {task.name: task for task in planned}
    for name, entry in known.items():
        if name not in by_name:
            raise MismatchError(
                f"{directory.path}: holds a run with the task {name!r}, which is not asked for "
                "now; add it, or choose another output"
            )
        difference = first_difference(entry["reply"], by_name[name].reply)
        if difference is not None:
            key, old, new = difference
            what = {"examples": "the examples (rows, prompts or shots)"}.get(key, key)
            raise MismatchError(
                f"{directory.path}: holds another run: {what} of task {name!r} was {old!r}, now "
                f"it is {new!r}. Choose another output, or set it back"
            )
    return {name: known[name]["shard_size"] if name in known else shard_size for name in by_name}


def manifest_of(plan: Plan, earlier: Mapping[str, Any] | None, *, started: str) -> dict[str, Any]:
    """Return the content of run.json; what an earlier session began keeps its start."""
    return {
        "raveval_version": __version__,
        "started": (earlier or {}).get("started", started),
        "model": plan.model.name,
        "config": plan.config.model_dump(mode="json"),
        "tasks": {task.name: task.manifest(plan.shard_sizes[task.name]) for task in plan.tasks},
    }
