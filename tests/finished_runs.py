"""Finished runs of the scripted engine, made in this process: everything a run leaves, no Ray."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from raveval import report
from raveval.config import load_config
from raveval.engines import scripted
from raveval.evaluate import Stage, answer_examples, replies_table
from raveval.passes import task_spec
from raveval.plan import make_plan, manifest_of
from raveval.reduce import reduce_run
from raveval.scoring import score_shard
from raveval.store import Replies, RunDirectory
from raveval.types import Completion, Reply, Request, Results


def with_white_space(request: Request) -> Reply:
    """Answer as the scripted engine does, with white space around generated texts."""
    reply = scripted.default_reply(request)
    return replace(reply, text=f" {reply.text}\n") if isinstance(reply, Completion) else reply


def finish(
    path: Path, tasks: Sequence[Any], *, seed: int = 0, script: str = "", **evaluate: Any
) -> Results:
    """Evaluate tasks (names or entries of a config) and write a run directory.

    Another `seed` is another model; `script` is the scripted engine's.
    """
    config = load_config(
        {
            "evaluate": {
                "model": {"id": "org/scripted", "revision": "step1000"},
                "engine": {"name": "scripted", "seed": seed},
                "tasks": list(tasks),
                **evaluate,
            },
            "run": {"output": str(path), "cpus_per_replica": 0.5, "shard_size": 7},
        }
    )
    plan = make_plan(config)
    directory = RunDirectory(path)
    manifest = manifest_of(plan, None, started="2026-07-01T09:30:00+00:00")
    manifest["finished"] = "2026-07-01T09:31:30+00:00"
    directory.write_manifest(manifest)
    for task in plan.tasks:
        directory.write_examples(task.name, task.examples, digest=task.reply["examples"])
    for shard in plan.shards():
        spec = task_spec(manifest["tasks"][shard.task])
        examples = directory.read_examples(shard.task, shard.start, shard.stop)
        engine = scripted.start(plan.model.loadable, scripted.Options(script=script, seed=seed))
        answers = asyncio.run(answer_examples(examples, engine, spec))
        replies = Replies(
            replies_table(examples, answers), spec.reply_fingerprint, {"name": "scripted"}, 0.5
        )
        directory.commit_replies(shard, replies, stage=Stage.ANSWER)
        score_shard(directory, shard, spec, replies)
    results = reduce_run(directory, manifest)
    directory.write_text("results.json", report.to_json(results))
    return results
