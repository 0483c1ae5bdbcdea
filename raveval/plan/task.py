"""One task as it will be asked: read, rendered, measured, and hashed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from raveval import tasks
from raveval.config import EvaluateConfig, TaskConfig
from raveval.errors import ConfigError
from raveval.evaluate import graded, load_metric, load_protocol
from raveval.fingerprint import digest, first_difference, plain
from raveval.lengths import Encoder, lengths, overlong_message, verdict_lengths
from raveval.metrics import _clusters
from raveval.models import ChosenModel
from raveval.plan import preflight
from raveval.plan.baseline import with_baseline
from raveval.plan.content import Content, Lengths, described, made_of, remembered
from raveval.protocols import EvaluationProtocol, Grading, TaskSettings
from raveval.store import RunDirectory
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

    The examples stand in their fixed pseudo-random order (by the hash of their id); `reply`,
    `verdict` (None where no judge grades the answers) and `score` are what the fingerprints are
    made of, so that a mismatch can name its key.
    """

    name: str
    protocol: str
    settings: TaskSettings
    metrics: tuple[str, ...]
    num_fewshot: int
    version: int
    content: Content
    reply: Mapping[str, Any]
    score: Mapping[str, Any]
    verdict: Mapping[str, Any] | None = None

    @property
    def examples(self) -> Sequence[Example]:
        """What is asked, in its order."""
        return self.content.examples

    @property
    def examples_digest(self) -> str:
        """Hash of the examples as they are stored: what is asked, and what a judge goes by."""
        return self.content.stored_digest

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
            "provenance": self.content.provenance,
            "n_examples": len(self.examples),
            "row_key_sum": self.content.row_key_sum,
            "lengths": asdict(self.content.lengths),
            "made_of": self.content.made_of,
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
    """What all tasks of a run have in common; identities are made once, they read weights.

    `earlier` is what run.json says of the tasks of a run that is there already.
    """

    evaluate: EvaluateConfig
    model: ChosenModel
    judge: ChosenModel | None
    identity: Mapping[str, Any]
    judge_identity: Mapping[str, Any] | None
    directory: RunDirectory
    earlier: Mapping[str, Any]

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
        is_graded = graded(protocol) is not None
        settings = self._settings(task, is_graded=is_graded)
        content = self._content(name, task, options, settings)
        asked = {
            **self.identity,
            "protocol": {"name": task.protocol, "version": protocol.ANSWER_VERSION},
            "task_version": task.version,
            "num_fewshot": num_fewshot,
            "chat": options.chat,
            "seed": evaluate.seed,
            "n_examples": len(content.examples),
            "sampling": asdict(settings.sampling),
            "grading": asdict(settings.grading) if task.grading and not is_graded else None,
            "may_truncate": settings.may_truncate,
            "examples": content.digest,
        }
        return PlannedTask(
            name=name,
            protocol=task.protocol,
            settings=settings,
            metrics=metrics,
            num_fewshot=num_fewshot,
            version=task.version,
            content=content,
            reply=plain(asked),
            verdict=self._verdict(protocol, settings, content.material),
            score=score_inputs(task.protocol, settings, metrics),
        )

    def _content(
        self, name: str, task: tasks.Task, options: tasks.Options, settings: TaskSettings
    ) -> Content:
        """Return what a task asks, from run.json where it is made of the same."""
        made_of = self._made_of(task, options, settings)
        known = remembered(self.directory, name, made_of, self.earlier.get(name))
        if known is not None:
            return known
        loaded = tasks.load_examples(task, options, seed=self.evaluate.seed)
        loaded.sort()
        examples: Sequence[Example] = loaded
        provenance = tasks.provenance(task, options)
        if options.limit is not None:
            provenance["limit"] = str(options.limit)
        protocol = load_protocol(task.protocol)
        judged = graded(protocol)
        if judged is not None and self.evaluate.baseline is not None:
            tasks.check_baseline(task)
            examples, about = with_baseline(examples, self.evaluate.baseline, task=name)
            provenance |= about
        n_tokens = lengths(examples, protocol, settings, self.model.encoder)
        self._check_lengths(name, n_tokens, len(examples), may_truncate=task.may_truncate)
        n_verdict: dict[str, int] = {}
        if judged is not None and self.judge is not None:
            n_verdict = verdict_lengths(examples, judged, settings, self.judge.encoder)
            self._check_lengths(name, n_verdict, len(examples), role="judge")
        return described(
            examples,
            is_graded=judged is not None,
            provenance=provenance,
            lengths=Lengths(
                max(n_tokens.values(), default=None),
                len(_too_long(n_tokens, self.model.encoder)),
                max(n_verdict.values(), default=None),
                len(_too_long(n_verdict, self.judge.encoder)) if self.judge else 0,
            ),
            made_of=made_of,
        )

    def _made_of(
        self, task: tasks.Task, options: tasks.Options, settings: TaskSettings
    ) -> str | None:
        """Return the hash of what a task's content is made of; a baseline's answers have none."""
        if self.evaluate.baseline is not None:
            return None
        models = [(self.model, self.identity)]
        if self.judge is not None and self.judge_identity is not None:
            models.append((self.judge, self.judge_identity))
        on_overlong = self.evaluate.on_overlong
        return made_of(task, options, settings, models=models, on_overlong=on_overlong)

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
        self, protocol: EvaluationProtocol, settings: TaskSettings, material: str | None
    ) -> dict[str, Any] | None:
        """Return what the verdicts of a judge depend on."""
        judged = graded(protocol)
        if judged is None or self.judge is None or settings.judge_sampling is None:
            return None
        return plain(  # type: ignore[no-any-return]
            {
                "judge": self.judge_identity,
                "version": judged.GRADE_VERSION,
                "chat": settings.judge_chat,
                "n_samples": settings.grading.n_samples,
                "max_attempts": settings.grading.max_attempts,
                "sampling": asdict(settings.judge_sampling),
                "material": material,
            }
        )

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
