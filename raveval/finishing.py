"""The end of a run: its results and reports are written, and sealed.

A seal is a hash of what says that each shard is done, and of the results. A run that is asked for
again, by the same plan, and whose seal holds, is finished as it stands: nothing is read but the
receipts' bytes, and nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raveval import report
from raveval.errors import DataError
from raveval.fingerprint import digest, plain
from raveval.reduce import reduce_run
from raveval.store import RunDirectory
from raveval.types import Results, Shard

_RESULTS, _MARKDOWN, _HTML = "results.json", "report.md", "report.html"
_OF_THE_END = ("finished", "seal")
"""Keys of run.json that a run has only once it is finished."""


def finish(
    directory: RunDirectory,
    manifest: Mapping[str, Any],
    shards: Sequence[Shard],
    *,
    when: str | None,
) -> Results:
    """Write the results, then that the run is finished: who reads the one finds the other.

    Raises:
        DataError: a shard is not done, or its rows are not those of the plan.
    """
    ended = {**manifest, "finished": when}
    results = reduce_run(directory, ended)
    directory.write_text(_RESULTS, report.to_json(results))
    directory.write_text(_MARKDOWN, report.to_markdown(results))
    directory.write_text(_HTML, report.to_html(results))
    directory.write_manifest({**ended, "seal": _seal(directory, shards)})
    return results


def still_finished(
    directory: RunDirectory, manifest: Mapping[str, Any], shards: Sequence[Shard]
) -> Results | None:
    """Return the results of a finished run that nothing has touched since; else None.

    `manifest` is what run.json would say of the run, had it just begun.
    """
    found = directory.read_manifest() or {}
    if not found.get("finished") or "seal" not in found:
        return None
    begun = {key: value for key, value in found.items() if key not in _OF_THE_END}
    is_whole = {_RESULTS, _MARKDOWN, _HTML} <= set(directory.names())
    if begun != plain(manifest) or not is_whole or found["seal"] != _seal(directory, shards):
        return None
    try:
        return report.from_json(directory.read_text(_RESULTS))
    except (DataError, FileNotFoundError):
        return None


def _seal(directory: RunDirectory, shards: Sequence[Shard]) -> str:
    return digest([directory.seal(shards), directory.read_text(_RESULTS)])
