"""Declares the flags that `raveval run` and `raveval plan` share, with their help."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

WHERE = "Where it runs (moves no number)"
JUDGE = "Where a judge grades the answers"


class Overlong(StrEnum):
    """What to do with prompts that do not fit the model's context."""

    REFUSE = "refuse"
    COUNT = "count"


def evaluation_flags(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG", help="A config file; or give flags.", show_default=False),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-M", help="A model directory, a hub id, or `demo`."),
    ] = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option("--tasks", "-t", help="Tasks, separated by commas; see `raveval tasks`."),
    ] = None,
    num_fewshot: Annotated[
        int | None,
        typer.Option("--num-fewshot", "-f", help="Shots in each prompt (default: the task's)."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-L", help="Only the first N examples of each task."),
    ] = None,
    output_path: Annotated[
        str | None,
        typer.Option(
            "--output-path",
            "-o",
            rich_help_panel=WHERE,
            help="The run directory to write or to go on with: a path, or a URL as s3://bucket/run.",
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option("--engine", help="vllm (default) or transformers."),
    ] = None,
    model_args: Annotated[
        str | None,
        typer.Option("--model-args", "-a", help="revision=…,dtype=…,max_model_len=…, and so on."),
    ] = None,
    engine_args: Annotated[
        str | None,
        typer.Option("--engine-args", help="The engine's options, as key=value,key=value."),
    ] = None,
    apply_chat_template: Annotated[
        bool,
        typer.Option("--apply-chat-template", help="Send prompts through the chat template."),
    ] = False,
    system_instruction: Annotated[
        str | None,
        typer.Option("--system-instruction", help="The system prompt of chat prompts."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Seed of shots and sampling (default: 1234).")
    ] = None,
    path: Annotated[
        Path | None,
        typer.Option("--path", help="Local data for the task (JSONL, Parquet, CSV, SQuAD JSON)."),
    ] = None,
    fewshot_path: Annotated[
        Path | None, typer.Option("--fewshot-path", help="Local data that the shots come from.")
    ] = None,
    on_overlong: Annotated[
        Overlong | None,
        typer.Option("--on-overlong", help="Prompts too long for the model: refuse, or count."),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            "--replicas", rich_help_panel=WHERE, help="Copies of the model, each in its own actor."
        ),
    ] = None,
    cpus_per_replica: Annotated[
        float | None,
        typer.Option(
            "--cpus-per-replica", rich_help_panel=WHERE, help="CPUs that each copy reserves."
        ),
    ] = None,
    gpus_per_replica: Annotated[
        float | None,
        typer.Option(
            "--gpus-per-replica", rich_help_panel=WHERE, help="GPUs that each copy reserves."
        ),
    ] = None,
    shard_size: Annotated[
        int | None, typer.Option("--shard-size", rich_help_panel=WHERE, help="Examples in a shard.")
    ] = None,
    retry_failed: Annotated[
        bool,
        typer.Option(
            "--retry-failed",
            rich_help_panel=WHERE,
            help="Ask again what an earlier session counted as failed or quarantined.",
        ),
    ] = False,
    judge: Annotated[
        str | None,
        typer.Option("--judge", rich_help_panel=JUDGE, help="The model that grades the answers."),
    ] = None,
    judge_args: Annotated[
        str | None,
        typer.Option("--judge-args", rich_help_panel=JUDGE, help="As --model-args, for the judge."),
    ] = None,
    judge_engine: Annotated[
        str | None,
        typer.Option("--judge-engine", rich_help_panel=JUDGE, help="vllm (default) or http."),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            rich_help_panel=JUDGE,
            help="Another run, whose answers the judge compares these with.",
        ),
    ] = None,
    answers_from: Annotated[
        str | None,
        typer.Option(
            "--answers-from",
            rich_help_panel=JUDGE,
            help="Another run of the same model, whose answers are graded instead of new ones.",
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option("--address", rich_help_panel=WHERE, help="The Ray cluster to attach to."),
    ] = None,
    batch_size: Annotated[str | None, typer.Option("--batch-size", "-b", hidden=True)] = None,
) -> None:
    """Declare the flags; what they say is read by `raveval.cli.flags`."""
