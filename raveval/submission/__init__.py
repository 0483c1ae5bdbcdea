"""Runs as jobs of a Ray cluster: submit, follow, stop. Evaluation itself happens in the job.

A run has one name wherever and whenever it is submitted: the same output with the same config and
the same files is the same run. A job of it that is still at work is followed instead of started
twice; one that is over is started again, and goes on where the run directory stands.
"""

from __future__ import annotations

import itertools
import re
import tempfile
import textwrap
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raveval import __version__
from raveval.config import EngineConfig, RunConfig, engine_options
from raveval.errors import ConfigError, MismatchError, ResourceError, RunError
from raveval.store.places import extra_of, is_url
from raveval.submission.bundle import CONFIG_NAME, Bundle, make_bundle, output_of
from raveval.submission.server import ConnectionLost, Job, JobServer, Log, lost
from raveval.tasks import load_task

__all__ = ["Environment", "follow", "start", "stop"]

Say = Callable[[str], None]

EXIT_STOPPED = 130
_KNOWN_EXIT_CODES = frozenset({0, 1, 2, 3, 130})
_OUTPUT_LABEL, _RUN_LABEL = "raveval_output", "raveval_run"
WHEEL_FOLDER = "raveval-wheels"
_STOP_SECONDS = 60.0
_LINES_OF_REASON = 10
PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 60.0)

_SECRET = re.compile(r"(TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Environment:
    """What a job finds on the nodes.

    Attributes:
        pip: requirements that Ray installs for it, or wheels on this machine; `raveval` alone means
            this version with the extras that the config needs. Empty: the nodes' own packages.
        variables: environment of the job and its replicas; no secrets, for Ray shows them.
        python: the interpreter, as the head node's shell finds it.
    """

    pip: Sequence[str] = ()
    variables: Mapping[str, str] | None = None
    python: str = "python"


def start(
    config: RunConfig,
    *,
    address: str | None = None,
    shared: Sequence[Path] = (),
    environment: Environment = Environment(),
    say: Say,
) -> tuple[JobServer, Job]:
    """Submit a run, or find the job of it that is at work.

    Returns:
        The server, and the job to follow there.

    Raises:
        ConfigError: the run or its environment cannot be carried to a cluster.
        DataError: a file to upload is missing or too large.
        ResourceError: there is no job server, or it refuses the job.
        MismatchError: another run is at work in the same output.
    """
    for engine in _engines(config):
        if "." not in engine.name:  # a module of one's own may be on the nodes alone
            engine_options(engine)
    bundle = make_bundle(config, shared=shared)
    wheels, settings = _runtime_environment(environment, config)
    server = JobServer(address)
    working = _at_work(bundle, server)
    if working is not None:
        say(f"{working.id} is {working.status} already: following it")
        return server, working
    for remark in _remarks(bundle, environment, config):
        say(remark)
    job_id = _next_id(bundle.name, {job.id for job in server.jobs()})
    with tempfile.TemporaryDirectory(prefix="raveval-") as folder:
        bundle.write(Path(folder))
        for wheel in wheels:
            target = Path(folder, WHEEL_FOLDER, wheel.name)
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(wheel.read_bytes())
        try:
            server.submit(
                job_id,
                f"{environment.python} -m raveval run {CONFIG_NAME}",
                directory=Path(folder),
                environment=settings,
                labels={
                    _OUTPUT_LABEL: bundle.output,
                    _RUN_LABEL: bundle.name,
                    "raveval_version": __version__,
                },
            )
        except ResourceError:
            # Another client may have been faster with this id; then its job is the one to follow.
            if all(job.id != job_id for job in server.jobs()):
                raise
    say(f"submitted {job_id} to {server.address}; output {bundle.output}")
    try:
        return server, server.job(job_id)
    except ConnectionLost as exc:
        raise lost(server.address, job_id, exc) from exc


def follow(
    server: JobServer,
    job: Job,
    *,
    show: Callable[[str], None],
    say: Say,
    pauses: Sequence[float] = PAUSES,
) -> int:
    """Show what a job writes until it is over, and return the exit code for the command line.

    0, 1, 2, 3 and 130 are the run's own; 130 also stands for a job that was stopped, and 1 for one
    that died or never started. `pauses` are the seconds before each new attempt to reach a server
    that stopped answering; after the last one the client gives up.

    Raises:
        RunError: the server stopped answering for minutes, or lost the job.
    """
    log = Log(show)
    n_failures = 0
    while True:
        before = log.n_taken
        try:
            return _ended(server.follow(job.id, log), say)
        except ConnectionLost as exc:
            n_failures = 1 if log.n_taken > before else n_failures + 1
            if n_failures > len(pauses):
                raise lost(server.address, job.id, exc) from exc
            pause = pauses[n_failures - 1]
            say(f"{server.address} does not answer; the job goes on; asking again in {pause:g} s")
            time.sleep(pause)


def stop(
    config: RunConfig, *, address: str | None = None, shared: Sequence[Path] = (), say: Say
) -> None:
    """End the jobs that are at work in a run's output; what they committed stays.

    Raises:
        ConfigError: the config does not say which output that is on the cluster.
        ResourceError: there is no job server.
        RunError: a job did not end within a minute.
    """
    output = output_of(config, shared=shared)
    server = JobServer(address)
    working = [job for job in _jobs_in(output, server) if not job.is_over]
    if not working:
        say(f"no job is at work in {output} on {server.address}")
    for job in working:
        server.stop(job.id)
    for job in working:
        say(f"{job.id} is {_awaited(server, job).status}; submit the same again to go on")


def _awaited(server: JobServer, job: Job) -> Job:
    """Return a job that was told to end, once it has."""
    deadline = time.monotonic() + _STOP_SECONDS
    while time.monotonic() < deadline:
        try:
            job = server.job(job.id)
        except ConnectionLost as exc:
            raise lost(server.address, job.id, exc) from exc
        if job.is_over:
            return job
        time.sleep(0.5)
    raise RunError(
        f"{job.id} was told to stop and is {job.status} after {_STOP_SECONDS:g} s; "
        f"{server.address} shows what it does"
    )


def _jobs_in(output: str, server: JobServer) -> list[Job]:
    return [job for job in server.jobs() if job.labels.get(_OUTPUT_LABEL) == output]


def _at_work(bundle: Bundle, server: JobServer) -> Job | None:
    """Return the job of this run that is at work, if there is one.

    Raises:
        MismatchError: a job with another config is at work in the same output.
    """
    working = [job for job in _jobs_in(bundle.output, server) if not job.is_over]
    for job in working:
        if job.labels.get(_RUN_LABEL) == bundle.name:
            return job
    if working:
        raise MismatchError(
            f"run.output: {working[0].id} is {working[0].status} in {bundle.output}, with another "
            "config or other files. Wait for it, stop it (raveval submit CONFIG --stop), or "
            "choose another output"
        )
    return None


def _next_id(name: str, taken: Collection[str]) -> str:
    """Return the id of a run's next job; Ray wants each only once.

    >>> _next_id("raveval-a", {"raveval-a", "raveval-a-2"})
    'raveval-a-3'
    """
    ids = (name if attempt == 1 else f"{name}-{attempt}" for attempt in itertools.count(1))
    return next(job_id for job_id in ids if job_id not in taken)


def _ended(job: Job, say: Say) -> int:
    """Say how a job ended where its log cannot know, and return the exit code."""
    if job.status == "stopped":
        say(f"{job.id} was stopped; submit the same again to go on")
        return EXIT_STOPPED
    if job.exit_code in _KNOWN_EXIT_CODES:
        return int(job.exit_code or 0)
    # With an exit code the message goes on with the end of the log, which was shown.
    lines = job.message.strip().split("\n")[: 1 if job.exit_code is not None else _LINES_OF_REASON]
    reason = "\n".join(textwrap.shorten(line, 500, placeholder=" …") for line in lines)
    say(f"{job.id} failed: {reason}\nWhat was committed is kept: submit the same again to go on")
    return 1


def _remarks(bundle: Bundle, environment: Environment, config: RunConfig) -> Iterator[str]:
    """Yield what the cluster must have for the job to work."""
    yield from bundle.remarks
    if is_url(bundle.output):
        yield f"output {bundle.output}: the nodes have to have credentials for it"
    else:
        yield f"output {bundle.output} has to be on storage that all nodes see under this path"
    if not any(Path(given).name.startswith("raveval") for given in environment.pip):
        yield (
            f"the nodes have to have {requirement_of(config)} (--pip raveval has Ray install it)"
        )


def requirement_of(config: RunConfig) -> str:
    """Return raveval as a requirement: this version, with the extras that a config needs."""
    return f"raveval{_extras(config)}=={__version__}"


def _engines(config: RunConfig) -> list[EngineConfig]:
    judge = config.evaluate.judge
    return [config.evaluate.engine] + ([judge.engine] if judge else [])


def _extras(config: RunConfig) -> str:
    names = {engine.name for engine in _engines(config)}
    extras = names & {"vllm", "transformers", "http"}
    for entry in config.evaluate.tasks:
        if entry.path is None and load_task(entry.task).source.hub is not None:
            extras.add("hub")
    if config.evaluate.model.demo:
        extras.add("demo")
    places = (config.run.output, config.run.answers_from or "", config.evaluate.baseline or "")
    extras.update(extra for place in places if (extra := extra_of(place)) is not None)
    return f"[{','.join(sorted(extras))}]" if extras else ""


def _runtime_environment(
    environment: Environment, config: RunConfig
) -> tuple[list[Path], dict[str, Any]]:
    """Return the wheels to upload, and what Ray sets up on each node before it starts anything.

    Raises:
        ConfigError: a wheel that is not there, or a variable that looks like a secret.
    """
    wheels, pip = list[Path](), list[str]()
    for requirement in environment.pip:
        path, bracket, extras = requirement.partition("[")
        if path.endswith(".whl"):
            wheel = Path(path).expanduser()
            if not wheel.is_file():
                raise ConfigError(f"--pip {requirement}: no such wheel (looked from {Path.cwd()})")
            wheels.append(wheel)
            of_config = _extras(config) if wheel.name.startswith("raveval-") else ""
            # The variable is Ray's: where it has unpacked what was uploaded.
            place = f"${{RAY_RUNTIME_ENV_CREATE_WORKING_DIR}}/{WHEEL_FOLDER}/"
            pip.append(place + wheel.name + (bracket + extras or of_config))
        else:
            pip.append(requirement_of(config) if requirement == "raveval" else requirement)
    variables = dict(environment.variables or {})
    for name in variables:
        if _SECRET.search(name):
            raise ConfigError(
                f"--env {name}: that looks like a secret, and Ray shows a job's variables to "
                "whoever sees its dashboard. Set it on the nodes instead"
            )
    settings = {"pip": pip, "env_vars": variables}
    return wheels, {key: value for key, value in settings.items() if value}
