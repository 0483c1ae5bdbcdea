"""Ray's job server, as this package needs it: jobs by id, their logs, their exit codes.

Everything that Ray raises becomes an error of ours here. The client is Ray's own; it needs the
extra `cluster`, and the server of a cluster is there only where its head has ray[default].
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from raveval.errors import ResourceError, RunError

DEFAULT_ADDRESS = "http://127.0.0.1:8265"
"""Where `ray start --head` has its job server, and where a port-forward usually ends."""

_ADDRESS_VARIABLES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
_CHATTY = (
    *("ray.dashboard.modules.dashboard_sdk", "ray.dashboard.modules.job.sdk"),
    "ray._private.runtime_env.packaging",
)
_SECONDS_BETWEEN_CHECKS = 15.0


class ConnectionLost(Exception):
    """The job server does not answer at the moment; the job goes on."""


@dataclass(frozen=True, slots=True)
class Job:
    """One job as its server knows it.

    Attributes:
        status: "pending", "running", "stopped", "succeeded" or "failed".
        exit_code: of the entry point; None while it runs, and where it never started.
        message: Ray's words about a job that failed.
        labels: what the submitter attached.
    """

    id: str
    status: str
    exit_code: int | None
    message: str
    labels: Mapping[str, str]

    @property
    def is_over(self) -> bool:
        """Whether the status can no longer change."""
        return self.status in ("stopped", "succeeded", "failed")


class JobServer:
    """A connection to the job server of a cluster."""

    def __init__(self, address: str | None = None) -> None:
        """Connect.

        Args:
            address: http(s)://host:port of the cluster's dashboard; by default what Ray's own
                environment variables say, else this machine's.

        Raises:
            ResourceError: nothing answers there, the client is not installed, the token is wrong.
        """
        self.address = _address(address)
        _check_installed()
        _check_reachable(self.address)
        from ray.job_submission import JobSubmissionClient

        for name in _CHATTY:
            logging.getLogger(name).setLevel(logging.WARNING)
        with _address_in_force(self.address), self._words():
            self._client = JobSubmissionClient(self.address)

    def jobs(self) -> list[Job]:
        """Return all jobs that this cluster was given, oldest first."""
        with self._words():
            found = self._client.list_jobs()
        submitted = [details for details in found if details.submission_id]
        return [_job(details) for details in sorted(submitted, key=lambda d: d.start_time or 0)]

    def job(self, job_id: str) -> Job:
        """Return one job.

        Raises:
            ConnectionLost: the server does not answer.
            RunError: it does, and knows no such job.
        """
        from ray.exceptions import RayError

        try:
            found = {details.submission_id: details for details in self._client.list_jobs()}
        except (OSError, RuntimeError, RayError) as exc:
            raise ConnectionLost(str(exc)) from exc
        if job_id not in found:
            raise RunError(
                f"{self.address}: the cluster no longer knows job {job_id}: its head was started "
                "anew. What the run committed is kept: submit the same again to go on"
            )
        return _job(found[job_id])

    def submit(
        self,
        job_id: str,
        entry: str,
        *,
        directory: Path,
        environment: Mapping[str, Any],
        labels: Mapping[str, str],
    ) -> None:
        """Upload a directory and start a job in it.

        Raises:
            ResourceError: the server refuses it, an id that is taken included.
        """
        with self._words():
            self._client.submit_job(
                entrypoint=entry,
                submission_id=job_id,
                runtime_env={"working_dir": str(directory), **environment},
                metadata=dict(labels),
            )

    def stop(self, job_id: str) -> None:
        """Ask a job to end."""
        with self._words():
            self._client.stop_job(job_id)

    def follow(self, job_id: str, log: Log) -> Job:
        """Pass on what a job writes until it is over, and return how it ended.

        Raises:
            ConnectionLost: the server stopped answering; the log knows how far it came.
            RunError: it answers, and no longer knows the job.
        """
        try:
            asyncio.run(self._follow(job_id, log))
        except (OSError, RuntimeError, _client_errors()) as exc:
            raise ConnectionLost(str(exc)) from exc
        job = self.job(job_id)
        if not job.is_over:
            raise ConnectionLost("its log ended before the job did")
        log.end()
        return job

    async def _follow(self, job_id: str, log: Log) -> None:
        """Read the log to its end; a server that is gone without a word is noticed by asking."""
        reading = asyncio.ensure_future(self._read(job_id, log))
        try:
            while not reading.done():
                await asyncio.wait((reading,), timeout=_SECONDS_BETWEEN_CHECKS)
                if not reading.done():
                    await asyncio.to_thread(self.job, job_id)
            reading.result()
        finally:
            reading.cancel()

    async def _read(self, job_id: str, log: Log) -> None:
        log.begin()
        async for text in self._client.tail_job_logs(job_id):
            log.add(text)

    @contextlib.contextmanager
    def _words(self) -> Iterator[None]:
        """Turn what Ray's client raises into a refusal."""
        from ray.exceptions import AuthenticationError

        try:
            yield
        except AuthenticationError as exc:
            raise ResourceError(
                f"{self.address}: the job server wants the cluster's token: set "
                "RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
            ) from exc
        except (OSError, RuntimeError, ValueError, KeyError) as exc:
            # A server of another kind gives answers that Ray's client does not expect.
            raise ResourceError(f"{self.address}: {type(exc).__name__}: {exc}") from exc


class Log:
    """Passes on each line of a log once, however often its reading begins anew."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self.n_taken = 0  # characters passed on, or about to be
        self._n_seen = 0  # characters of this reading
        self._rest = ""

    def begin(self) -> None:
        """Expect the log from its beginning."""
        self._n_seen = 0

    def add(self, text: str) -> None:
        """Take the next piece of the log."""
        fresh = text[max(0, self.n_taken - self._n_seen) :]
        self._n_seen += len(text)
        self.n_taken = max(self.n_taken, self._n_seen)
        *lines, self._rest = (self._rest + fresh).split("\n")
        for line in lines:
            self._show(line)

    def end(self) -> None:
        """Pass on a last line that had no end."""
        if self._rest:
            self._show(self._rest)
        self._rest = ""


def _job(details: Any) -> Job:
    return Job(
        id=details.submission_id,
        status=str(details.status).lower(),
        exit_code=details.driver_exit_code,
        message=details.message or "",
        labels=details.metadata or {},
    )


def _address(given: str | None) -> str:
    """Return the address to use, or refuse one that is not a job server's.

    Raises:
        ResourceError: it is no http(s) URL.
    """
    of_ray = (os.environ.get(name, "") for name in _ADDRESS_VARIABLES)
    address = given or next((url for url in of_ray if "http" in url[:4]), DEFAULT_ADDRESS)
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ResourceError(
            f"--address {address}: not the URL of a job server; it is http://HOST:8265, HOST being "
            "the head node (ray:// and HOST:6379 are other doors of the cluster)"
        )
    return address.rstrip("/")


def _check_installed() -> None:
    if importlib.util.find_spec("aiohttp") is None:
        raise ResourceError(
            "submitting a job needs the client of Ray's job server: pip install 'raveval[cluster]'"
        )


def _check_reachable(address: str) -> None:
    """Refuse an address where nothing listens; Ray's client would wait without a limit."""
    parts = urlsplit(address)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=10).close()
    except OSError as exc:
        raise ResourceError(
            f"--address {address}: nothing answers there: {exc}. It has to be the job server of a "
            "cluster's head node (ray[default] must be installed there); a port-forward or a "
            "tunnel may be what is missing"
        ) from exc


@contextlib.contextmanager
def _address_in_force(address: str) -> Iterator[None]:
    """Make the address count: Ray's client prefers these variables to what it is told."""
    name = _ADDRESS_VARIABLES[0]
    before = os.environ.get(name)
    os.environ[name] = address
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def _client_errors() -> type[Exception]:
    """Return what the library under the log's connection raises."""
    import aiohttp

    return aiohttp.ClientError


def lost(address: str, job_id: str, exc: ConnectionLost) -> RunError:
    """Return the error of a client that gives up; the job does not."""
    return RunError(
        f"{address}: the job server no longer answers ({exc}). Job {job_id} goes on without this "
        "client, as long as its cluster does: submit the same again to follow it"
    )
