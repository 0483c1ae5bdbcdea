"""Turns a config into a plan: every refusal that needs no loaded model happens here.

A plan holds what is asked, rendered to the last character, and the fingerprints of each task:
`reply` (all that the model's answers depend on), `verdict` (what a judge's verdicts on them depend
on besides) and `score` (what the numbers depend on besides).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from raveval import __version__, preflight, tasks
from raveval.baseline import with_baseline
from raveval.config import EvaluateConfig, RunConfig, TaskConfig, engine_options
from raveval.errors import ConfigError, MismatchError, ModelError
from raveval.evaluate import graded, load_metric, load_protocol
from raveval.fingerprint import digest, digest_each, first_difference, plain
from raveval.lengths import Encoder, lengths, overlong_message, verdict_lengths
from raveval.metrics import _clusters
from raveval.models import ChosenModel, choose
from raveval.protocols import EvaluationProtocol, Grading, TaskSettings
from raveval.store import RunDirectory, shards_of
from raveval.types import Example, Shard


def score_inputs(protocol: str, settings: TaskSettings, metrics: Sequence[str]) -> dict[str, Any]:
    """Return what numbers depend on besides the replies, as this version of raveval has it."""
    return {
        "protocol": load_protocol(protocol).SCORE_VERSION,
        "scoring": settings.scoring,
        "no_answer": settings.no_answer,
        "metrics": {metric: load_metric(metric).version for metric in metrics},
        "clusters": _clusters.VERSION,
    }


def score_fingerprint(
    reply: Mapping[str, Any], verdict: Mapping[str, Any] | None, score: Mapping[str, Any]
) -> str:
    """Return the hash of all that a task's numbers depend on."""
    return digest([reply, score] if verdict is None else [reply, verdict, score])


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """One task as it will be asked.

    `examples` stand in their fixed pseudo-random order (by the hash of their id); `reply`,
    `verdict` (None where no judge grades the answers) and `score` are what the fingerprints are
    made of, so that a mismatch can name its key. `longest_tokens` is None where every example
    surely fits, by its bytes alone; `longest_verdict_tokens` is that of the judge's prompts, which
    lack the answer still.
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
    verdict: Mapping[str, Any] | None = None
    longest_verdict_tokens: int | None = None

    @property
    def examples_digest(self) -> str:
        """Hash of the examples as they are stored: what is asked, and what a judge goes by."""
        if self.verdict is None:
            return str(self.reply["examples"])
        return digest([self.reply["examples"], self.verdict["material"]])

    @property
    def reply_fingerprint(self) -> str:
        """Hash of all that the model's answers depend on."""
        return digest(self.reply)

    @property
    def score_fingerprint(self) -> str:
        """Hash of all that the numbers depend on."""
        return score_fingerprint(self.reply, self.verdict, self.score)

    @property
    def verdict_fingerprint(self) -> str | None:
        """Hash of all that a judge's verdicts depend on beside the replies themselves."""
        return None if self.verdict is None else digest([self.reply, self.verdict])

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
            "verdict": self.verdict,
            "score": self.score,
            "reply_fingerprint": self.reply_fingerprint,
            "verdict_fingerprint": self.verdict_fingerprint,
            "score_fingerprint": self.score_fingerprint,
        }


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
        lines.append(
            f"output  {run.output} ({run.replicas} replica{'s' * (run.replicas > 1)}, "
            f"{len(self.shards())} shards)"
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
        overlong = f", {task.n_overlong} too long" if task.n_overlong else ""
        longest = f", longest {task.longest_tokens} tokens" if task.longest_tokens else ""
        lines = [
            f"task    {task.name}: {len(task.examples)} examples, {task.protocol}, "
            f"{task.num_fewshot}-shot{longest}{overlong}"
        ]
        n_judge, judge = task.longest_verdict_tokens, self.judge
        if judge is not None and n_judge is not None:
            left = judge.encoder.max_model_len - n_judge
            if left < task.settings.sampling.max_output_tokens:
                lines.append(
                    f"        the judge has room for an answer of {left} tokens where the rest of "
                    "its prompt is longest; prompts with a longer one are counted as overlong"
                )
        return lines + [f"        {remark}" for remark in tasks.source_remarks(task.provenance)]


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
    preflight.check_writable(directory.path)
    model = choose(evaluate.model, evaluate.engine, where="evaluate", say=say)
    _check_chat(evaluate.chat, model, where="evaluate.chat")
    judge = None
    if evaluate.judge is not None:
        section = evaluate.judge
        judge = choose(section.model, section.engine, where="evaluate.judge", say=say)
        _check_chat(section.chat, judge, where="evaluate.judge.chat")
    judge_identity = None if judge is None else judge.identity()
    planning = _Planning(evaluate, model, judge, model.identity(), judge_identity)
    planned = []
    for entry in evaluate.tasks:
        say(f"preparing {entry.name or entry.task}")
        planned.append(planning.task(entry))
    shard_sizes = reconcile(directory, planned, config.run.shard_size)
    return Plan(config, model, judge, tuple(planned), shard_sizes)


def _check_chat(chat: bool | None, model: ChosenModel, *, where: str) -> None:
    if chat and not model.encoder.has_chat_template:
        raise ModelError(
            f"{where}: {model.ref.name} has no chat template; leave chat out to ask with plain "
            "prompts"
        )


@dataclass(frozen=True, slots=True)
class _Planning:
    """What all tasks of a run have in common; identities are made once, they read weights."""

    evaluate: EvaluateConfig
    model: ChosenModel
    judge: ChosenModel | None
    identity: Mapping[str, Any]
    judge_identity: Mapping[str, Any] | None

    def task(self, entry: TaskConfig) -> PlannedTask:
        """Read, render and check one task."""
        evaluate, encoder = self.evaluate, self.model.encoder
        task = tasks.load_task(entry.task)
        if entry.sampling is not None:
            task = tasks.with_sampling(task, entry.sampling)
        if entry.judge_sampling is not None:
            task = tasks.with_judge_sampling(task, entry.judge_sampling)
        name = entry.name or task.name
        protocol = load_protocol(task.protocol)
        metrics = self._metrics(entry, task, protocol)
        preflight.check_metrics(name, metrics, protocol)
        chat = protocol.PREFERS_CHAT and encoder.has_chat_template
        options = tasks.Options(
            path=entry.path,
            split=entry.split,
            limit=entry.limit,
            num_fewshot=entry.num_fewshot,
            fewshot_path=entry.fewshot_path,
            chat=chat if evaluate.chat is None else evaluate.chat,
            system_prompt=evaluate.system_prompt,
        )
        num_fewshot = task.num_fewshot if entry.num_fewshot is None else entry.num_fewshot
        loaded = tasks.load_examples(task, options, seed=evaluate.seed)
        examples = tuple(sorted(loaded, key=lambda example: (example.row_key, example.id)))
        provenance = {
            **tasks.provenance(task, options),
            **({} if entry.limit is None else {"limit": str(entry.limit)}),
        }
        is_graded = graded(protocol) is not None
        if is_graded and evaluate.baseline is not None:
            examples, about = with_baseline(examples, evaluate.baseline, task=name)
            provenance |= about
        settings = self._settings(task, is_graded=is_graded)
        n_tokens = lengths(examples, protocol, settings, encoder)
        self._check_lengths(name, n_tokens, len(examples), may_truncate=task.may_truncate)
        asked = {
            **self.identity,
            "protocol": {"name": task.protocol, "version": protocol.ANSWER_VERSION},
            "task_version": task.version,
            "num_fewshot": num_fewshot,
            "chat": options.chat,
            "seed": evaluate.seed,
            "n_examples": len(examples),
            "sampling": asdict(settings.sampling),
            "grading": asdict(settings.grading) if task.grading and not is_graded else None,
            "may_truncate": settings.may_truncate,
            "examples": digest_each(map(_asked_of_graded if is_graded else asdict, examples)),
        }
        verdict, longest_verdict_tokens = self._verdict(name, examples, protocol, settings)
        return PlannedTask(
            name=name,
            protocol=task.protocol,
            settings=settings,
            metrics=metrics,
            num_fewshot=num_fewshot,
            version=task.version,
            examples=examples,
            reply=plain(asked),
            verdict=verdict,
            score=score_inputs(task.protocol, settings, metrics),
            provenance=provenance,
            n_overlong=len(_too_long(n_tokens, encoder)),
            longest_tokens=max(n_tokens.values(), default=None),
            longest_verdict_tokens=longest_verdict_tokens,
        )

    def _metrics(
        self, entry: TaskConfig, task: tasks.Task, protocol: EvaluationProtocol
    ) -> tuple[str, ...]:
        if entry.metrics or task.metrics:
            return tuple(entry.metrics or task.metrics or ())
        judged = graded(protocol)
        if judged is not None and self.evaluate.baseline is not None:
            return (*protocol.METRICS, *judged.BASELINE_METRICS)
        return tuple(protocol.METRICS)

    def _settings(self, task: tasks.Task, *, is_graded: bool) -> TaskSettings:
        judge_chat = False
        if is_graded and self.judge is not None and self.evaluate.judge is not None:
            given = self.evaluate.judge.chat
            judge_chat = self.judge.encoder.has_chat_template if given is None else given
        return TaskSettings(
            sampling=task.sampling,
            scoring=task.scoring,
            no_answer=task.no_answer,
            may_truncate=task.may_truncate,
            seed=self.evaluate.seed,
            grading=task.grading.settings() if task.grading else Grading(),
            judge_sampling=task.judge_sampling if is_graded else None,
            judge_chat=judge_chat and not (task.grading and task.grading.plain),
        )

    def _verdict(
        self,
        name: str,
        examples: Sequence[Example],
        protocol: EvaluationProtocol,
        settings: TaskSettings,
    ) -> tuple[dict[str, Any] | None, int | None]:
        """Return what the verdicts of a judge depend on, and the tokens of its longest prompt."""
        judged = graded(protocol)
        if judged is None or self.judge is None or settings.judge_sampling is None:
            return None, None
        encoder = self.judge.encoder
        n_tokens = verdict_lengths(examples, judged, settings, encoder)
        self._check_lengths(name, n_tokens, len(examples), role="judge")
        verdict = plain(
            {
                "judge": self.judge_identity,
                "version": judged.GRADE_VERSION,
                "chat": settings.judge_chat,
                "grading": asdict(settings.grading),
                "sampling": asdict(settings.judge_sampling),
                "material": digest_each(sorted(example.fields.items()) for example in examples),
            }
        )
        return verdict, max(n_tokens.values(), default=None)

    def _check_lengths(
        self,
        name: str,
        n_tokens: Mapping[str, int],
        n_examples: int,
        *,
        may_truncate: bool = False,
        role: str = "model",
    ) -> None:
        chosen = self.judge if role == "judge" and self.judge else self.model
        too_long = _too_long(n_tokens, chosen.encoder)
        if too_long and self.evaluate.on_overlong == "refuse" and not may_truncate:
            limit = chosen.encoder.max_model_len
            raise ConfigError(overlong_message(name, too_long, n_examples, limit, role=role))


def _too_long(n_tokens: Mapping[str, int], encoder: Encoder) -> dict[str, int]:
    return {id: n for id, n in n_tokens.items() if n > encoder.max_model_len}


def _asked_of_graded(example: Example) -> dict[str, Any]:
    """Return what the candidate's answer depends on; what the judge goes by has its own hash."""
    return {key: value for key, value in asdict(example).items() if key != "fields"}


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
        _check_verdict(directory, name, entry.get("verdict"), by_name[name].verdict)
    return {name: known[name]["shard_size"] if name in known else shard_size for name in by_name}


def _check_verdict(
    directory: RunDirectory,
    task: str,
    old: Mapping[str, Any] | None,
    new: Mapping[str, Any] | None,
) -> None:
    """Refuse another judge, or another way of asking it, where verdicts may be there."""
    difference = first_difference(old or {}, new or {})
    if difference is not None:
        key, before, now = difference
        what = {"material": "what the judge goes by (rubrics, references, a baseline)"}.get(
            key, f"{key} of the judge"
        )
        raise MismatchError(
            f"{directory.path}: holds a run that is graded otherwise: {what} in task {task!r} was "
            f"{before!r}, now it is {now!r}. Choose another output, with run.answers_from: "
            f"{directory.path} to take over the answers, or set it back"
        )


def manifest_of(plan: Plan, earlier: Mapping[str, Any] | None, *, started: str) -> dict[str, Any]:
    """Return the content of run.json; what an earlier session began keeps its start."""
    return {
        "raveval_version": __version__,
        "started": (earlier or {}).get("started", started),
        "model": plan.model.ref.name,
        "judge": plan.judge.ref.name if plan.judge else None,
        "config": plan.config.model_dump(mode="json"),
        "tasks": {task.name: task.manifest(plan.shard_sizes[task.name]) for task in plan.tasks},
    }
