"""One task as it will be asked: read, rendered, measured, and hashed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from raveval import tasks
from raveval.config import EvaluateConfig, TaskConfig
from raveval.errors import ConfigError
from raveval.evaluate import graded, load_metric, load_protocol
from raveval.fingerprint import digest, digest_each, first_difference, plain
from raveval.lengths import Encoder, lengths, overlong_message, verdict_lengths
from raveval.metrics import _clusters
from raveval.models import ChosenModel
from raveval.plan import preflight
from raveval.plan.baseline import with_baseline
from raveval.protocols import EvaluationProtocol, Grading, TaskSettings
from raveval.types import Example


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


def verdict_difference(
    old: Mapping[str, Any] | None, new: Mapping[str, Any] | None
) -> tuple[str, Any, Any] | None:
    """Return in words what differs between how two tasks are graded, both values; or None."""
    difference = first_difference(old or {}, new or {})
    if difference is None:
        return None
    key, before, now = difference
    words = {"material": "what the judge goes by (rubrics, references, a baseline)"}
    return words.get(key, f"{key} of the judge"), before, now


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
    n_overlong_verdicts: int = 0

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
class Planning:
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
            tasks.check_baseline(task)
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
        verdict, verdict_tokens = self._verdict(name, examples, protocol, settings)
        judge = self.judge if verdict is not None else None
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
            longest_verdict_tokens=max(verdict_tokens.values(), default=None),
            n_overlong_verdicts=len(_too_long(verdict_tokens, judge.encoder)) if judge else 0,
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
    ) -> tuple[dict[str, Any] | None, dict[str, int]]:
        """Return what the verdicts of a judge depend on, and the tokens of its prompts by id."""
        judged = graded(protocol)
        if judged is None or self.judge is None or settings.judge_sampling is None:
            return None, {}
        encoder = self.judge.encoder
        n_tokens = verdict_lengths(examples, judged, settings, encoder)
        self._check_lengths(name, n_tokens, len(examples), role="judge")
        verdict = plain(
            {
                "judge": self.judge_identity,
                "version": judged.GRADE_VERSION,
                "chat": settings.judge_chat,
                "n_samples": settings.grading.n_samples,
                "max_attempts": settings.grading.max_attempts,
                "sampling": asdict(settings.judge_sampling),
                "material": digest_each(sorted(example.fields.items()) for example in examples),
            }
        )
        return verdict, n_tokens

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
