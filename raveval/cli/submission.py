"""The command that hands a run to a cluster: submit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from raveval.cli.app import EXIT_INTERRUPTED, command, harmless, say
from raveval.cli.arguments import WHERE

HERE = "How it gets there"


@command("submit")
def _submit(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="A config file.", show_default=False)
    ],
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            rich_help_panel=HERE,
            help="The cluster's job server (default: http://127.0.0.1:8265, or what Ray's "
            "RAY_API_SERVER_ADDRESS or RAY_ADDRESS says).",
        ),
    ] = None,
    shared: Annotated[
        list[Path] | None,
        typer.Option(
            "--shared",
            rich_help_panel=HERE,
            help="A directory that this machine and all nodes see under the same path: what lies "
            "in it is not uploaded, and relative paths into it are allowed.",
        ),
    ] = None,
    pip: Annotated[
        list[str] | None,
        typer.Option(
            "--pip",
            rich_help_panel=HERE,
            help="Have Ray install it for the job: a requirement, or a wheel on this machine; "
            "`raveval` is this version with the extras that the config needs.",
        ),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env",
            rich_help_panel=HERE,
            help="NAME=VALUE for the job and its replicas; no secrets, Ray shows them.",
        ),
    ] = None,
    python: Annotated[
        str,
        typer.Option(
            "--python", rich_help_panel=HERE, help="The interpreter, as the head node finds it."
        ),
    ] = "python",
    wait: Annotated[
        bool,
        typer.Option(
            "--wait/--no-wait",
            rich_help_panel=HERE,
            help="Follow the log to the end and exit as the run does, or print the job's id.",
        ),
    ] = True,
    stop: Annotated[
        bool,
        typer.Option("--stop", rich_help_panel=HERE, help="End the jobs at work in the output."),
    ] = False,
    output_path: Annotated[
        str | None,
        typer.Option(
            "--output-path",
            "-o",
            rich_help_panel=WHERE,
            help="The run directory, on storage that all nodes see.",
        ),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option("--replicas", rich_help_panel=WHERE, help="Copies of the model."),
    ] = None,
    cpus_per_replica: Annotated[
        float | None,
        typer.Option("--cpus-per-replica", rich_help_panel=WHERE, help="CPUs for each copy."),
    ] = None,
    gpus_per_replica: Annotated[
        float | None,
        typer.Option("--gpus-per-replica", rich_help_panel=WHERE, help="GPUs for each copy."),
    ] = None,
    shard_size: Annotated[
        int | None, typer.Option("--shard-size", rich_help_panel=WHERE, help="Examples in a shard.")
    ] = None,
    retry_failed: Annotated[
        bool,
        typer.Option("--retry-failed", rich_help_panel=WHERE, help="Ask failed examples again."),
    ] = False,
) -> None:
    """Run a config as a job of a Ray cluster, follow its log, and exit as the run does.

    The config, its task files, rubrics and data files are uploaded. Models and the run directory
    are not: name them by absolute paths on storage that all nodes see. Submitted again, a run that
    is at work is followed, and one that is over goes on where it stopped.
    """
    from raveval import submission
    from raveval.cli.flags import read_flags

    flags: dict[str, Any] = {
        "output_path": output_path,
        "replicas": replicas,
        "cpus_per_replica": cpus_per_replica,
        "gpus_per_replica": gpus_per_replica,
        "shard_size": shard_size,
        "retry_failed": retry_failed,
    }
    asked = read_flags(config, flags)
    if stop:
        submission.stop(asked, address=address, shared=shared or (), say=say)
        return
    environment = submission.Environment(pip or (), _variables(env or ()), python)
    server, job = submission.start(
        asked, address=address, shared=shared or (), environment=environment, say=say
    )
    if not wait:
        say("the same command without --no-wait follows it, with --stop it ends it")
        print(job.id)
        return
    try:
        code = submission.follow(
            server, job, show=lambda line: print(harmless(line), flush=True), say=say
        )
    except KeyboardInterrupt:
        say(
            f"\n{job.id} goes on without this client: the same command follows it again, with "
            "--stop it ends it"
        )
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if code:
        raise typer.Exit(code)


def _variables(pairs: Sequence[str]) -> dict[str, str]:
    """Read NAME=VALUE as often as it was given.

    Raises:
        ConfigError: a pair without `=`, or a name given twice.
    """
    from raveval.errors import ConfigError

    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise ConfigError(f"--env {pair}: expected NAME=VALUE, as in HF_HOME=/mnt/hub")
        if name in found:
            raise ConfigError(f"--env {pair}: {name} is given twice")
        found[name] = value
    return found
