"""Reports on runs that were imported from another tool's files, as on a sweep's checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from raveval.store import RunDirectory
from raveval.store.places import is_url
from raveval.sweep.checkpoints import Checkpoint
from raveval.sweep.files import write_sweep
from raveval.sweep.outcome import Outcome, State
from raveval.sweep.results import collect

if TYPE_CHECKING:
    from raveval.lm_eval.importing import Imported


def report_imported(runs: Sequence[Imported]) -> list[Path]:
    """Write sweep.json and the reports of each folder that holds several of these runs.

    Returns:
        The folders; none is in an object store, where there are no reports of several.
    """
    folders: dict[Path, list[Outcome]] = {}
    for run in runs:
        if not is_url(run.directory):
            folders.setdefault(Path(run.directory).parent, []).append(_outcome(run))
    several = {folder: outcomes for folder, outcomes in folders.items() if len(outcomes) > 1}
    for folder, outcomes in several.items():
        write_sweep(collect(folder, outcomes), RunDirectory(folder).write_text)
    return list(several)


def _outcome(run: Imported) -> Outcome:
    step = run.results.settings.get("step")
    place = {"path": str(run.file)}
    checkpoint = Checkpoint(
        Path(run.directory).name, step if isinstance(step, int) else None, place
    )
    return Outcome(checkpoint, State.IMPORTED)
