"""Turns a config into a plan: every refusal that needs no loaded model happens here.

A plan holds what is asked, rendered to the last character, and the fingerprints of each task:
`reply` (all that the model's answers depend on), `verdict` (what a judge's verdicts on them depend
on besides) and `score` (what the numbers depend on besides).
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from raveval import __version__, tasks
from raveval.config import RunConfig, engine_options
from raveval.errors import ModelError
from raveval.models import ChosenModel, choose
from raveval.plan import preflight, reuse
from raveval.plan.environment import installed
from raveval.plan.resumption import reconcile
from raveval.plan.task import PlannedTask, Planning, score_fingerprint, score_inputs
from raveval.progress import still_at
from raveval.store import RunDirectory, shards_of
from raveval.types import Shard

__all__ = [
    "Plan",
    "PlannedTask",
    "make_plan",
    "manifest_of",
    "reconcile",
    "score_fingerprint",
    "score_inputs",
]


@dataclass(frozen=True, slots=True)
class Plan:
    """A run that nothing known beforehand speaks against; `judge` where a task needs one."""

    config: RunConfig
    model: ChosenModel
    judge: ChosenModel | None
    tasks: tuple[PlannedTask, ...]
    shard_sizes: Mapping[str, int]

    def shards(self) -> list[Shard]:
        """Return every shard of the run, tasks in order."""
        return [
            shard
            for task in self.tasks
            for shard in shards_of(task.name, len(task.examples), self.shard_sizes[task.name])
        ]

    def lines(self) -> list[str]:
        """Describe the plan for a person."""
        run = self.config.run
        lines = [self.model.line("model")]
        if self.judge is not None:
            lines.append(self.judge.line("judge"))
        n_shards = len(self.shards())
        lines.append(
            f"output  {run.output} ({run.replicas} replica{'s' * (run.replicas > 1)}, "
            f"{n_shards} shard{'s' * (n_shards > 1)})"
        )
        lines += self._chat_lines()
        for task in self.tasks:
            lines += self._task_lines(task)
        return lines

    def _chat_lines(self) -> list[str]:
        roles = []
        if any(task.reply["chat"] for task in self.tasks):
            roles.append(self.model.system_role)
        if self.judge and any(task.settings.judge_chat for task in self.tasks):
            roles.append(self.judge.system_role)
        return [f"chat    system role: {role}" for role in dict.fromkeys(roles) if role is not None]

    def _task_lines(self, task: PlannedTask) -> list[str]:
        lengths = task.content.lengths
        overlong = f", {lengths.n_overlong} too long" if lengths.n_overlong else ""
        longest = f", longest {lengths.longest} tokens" if lengths.longest else ""
        lines = [
            f"task    {task.name}: {len(task.examples)} examples, {task.protocol}, "
            f"{task.num_fewshot}-shot{longest}{overlong}"
        ]
        n_judge, judge = lengths.longest_verdict, self.judge
        if judge is not None and n_judge is not None:
            known = judge.encoder.max_model_len or math.inf  # else the server says what is too long
            left = known - n_judge
            if lengths.n_overlong_verdicts:
                lines.append(
                    f"        {lengths.n_overlong_verdicts} prompts are too long for the judge "
                    "before there is an answer in them"
                )
            elif left < task.settings.sampling.max_output_tokens:
                lines.append(
                    f"        the judge has room for an answer of {left} tokens where the rest of "
                    "its prompt is longest; prompts with a longer one are counted as overlong"
                )
        return lines + [
            f"        {remark}" for remark in tasks.source_remarks(task.content.provenance)
        ]


def make_plan(config: RunConfig, *, say: Callable[[str], None] = lambda _: None) -> Plan:
    """Check a config against everything that can be known without loading the model.

    Raises:
        Refused: the first thing that speaks against the run (ConfigError, DataError, ModelError,
            ResourceError, MismatchError).
    """
    evaluate = config.evaluate
    engine_options(evaluate.engine)
    preflight.check_names(evaluate.tasks)
    preflight.check_judge(evaluate)
    preflight.check_local_resources(config)
    directory = RunDirectory(config.run.output)
    preflight.check_output(directory)
    model = choose(evaluate.model, evaluate.engine, where="evaluate", say=say)
    _check_chat(evaluate.chat, model, where="evaluate.chat")
    judge = None
    if evaluate.judge is not None:
        section = evaluate.judge
        judge = choose(section.model, section.engine, where="evaluate.judge", say=say)
        _check_chat(section.chat, judge, where="evaluate.judge.chat")
    judge_identity = None if judge is None else judge.identity()
    earlier = (directory.read_manifest() or {}).get("tasks", {})
    planning = Planning(
        evaluate, model, judge, model.identity(), judge_identity, directory, earlier
    )
    planned = []
    for entry in evaluate.tasks:
        work = f"preparing {entry.name or entry.task}"
        say(work)
        with still_at(work, say=say):
            planned.append(planning.task(entry))
    sizes = {task.name: config.run.shard_size for task in planned}
    if config.run.answers_from is not None:
        sizes = reuse.shard_sizes(config.run.answers_from, planned)
    shard_sizes = reconcile(directory, planned, sizes)
    return Plan(config, model, judge, tuple(planned), shard_sizes)


def _check_chat(chat: bool | None, model: ChosenModel, *, where: str) -> None:
    if chat and not model.encoder.has_chat_template:
        raise ModelError(
            f"{where}: {model.ref.name} has no chat template; leave chat out to ask with plain "
            "prompts"
        )


def manifest_of(plan: Plan, earlier: Mapping[str, Any] | None, *, started: str) -> dict[str, Any]:
    """Return the content of run.json; what an earlier session began keeps its start."""
    return {
        "raveval_version": __version__,
        "environment": {
            "python": platform.python_version(),
            "platform": platform.platform(),
            "packages": installed(),
        },
        "started": (earlier or {}).get("started", started),
        "model": plan.model.ref.title,
        "judge": plan.judge.ref.title if plan.judge else None,
        "config": plan.config.model_dump(mode="json"),
        "tasks": {task.name: task.manifest(plan.shard_sizes[task.name]) for task in plan.tasks},
    }
