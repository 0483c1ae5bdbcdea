"""What a sweep leaves in its directory, and reads there again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from raveval import report, run_status
from raveval.comparison import Difference, Verdict
from raveval.errors import DataError
from raveval.store import RunDirectory
from raveval.store.places import is_url
from raveval.sweep.checkpoints import Checkpoint, step_of
from raveval.sweep.outcome import Outcome, Progress, State
from raveval.sweep.results import SweepResults, progress_of, swept
from raveval.types import Coverage


def write_sweep(results: SweepResults, write: Callable[[str, str], object]) -> None:
    """Write sweep.json and the reports, by what writes a text under a name."""
    write("sweep.json", sweep_to_json(results))
    write("report.md", report.sweep_to_markdown(results))
    write("report.html", report.sweep_to_html(results))


def sweep_to_json(results: SweepResults) -> str:
    """Return sweep.json: what became of each checkpoint, and the differences; strict JSON.

    The numbers of a checkpoint stand in its own results.json.
    """
    content: dict[str, Any] = {
        "checkpoints": [
            {key: value for key, value in asdict(each).items() if key != "results"}
            for each in results.checkpoints
        ],
        "from_previous": [asdict(each) for each in results.from_previous],
        "from_best": [asdict(each) for each in results.from_best],
        "best": {task: list(names) for task, names in results.best.items()},
        "remarks": list(results.remarks),
    }
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def is_sweep(directory: str | Path) -> bool:
    """Whether a directory is a sweep's, also where nothing of it is done yet."""
    path = Path(directory)
    return (
        not is_url(str(directory))
        and not (path / "run.json").exists()
        and (read_content(path) is not None or bool(_begun(path)))
    )


def load_sweep_results(directory: str | Path) -> SweepResults:
    """Return the results that a sweep wrote, as far as it is.

    Raises:
        DataError: no sweep there, or one of which no checkpoint has ended yet.
    """
    path = Path(directory)
    content = read_content(path)
    if content is None:
        if _begun(path):
            raise DataError(
                f"{path}: no checkpoint of this sweep has ended yet; `raveval status {path}` says "
                "how far they are"
            )
        raise DataError(f"{path}: no sweep of raveval here (no sweep.json)")
    try:
        outcomes = [outcome_of(entry) for entry in content["checkpoints"]]
        return SweepResults(
            tuple(swept(path, outcome) for outcome in outcomes),
            _differences(content["from_previous"]),
            _differences(content["from_best"]),
            tuple(content.get("remarks", ())),
            {task: tuple(names) for task, names in content.get("best", {}).items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise DataError(
            f"{path / 'sweep.json'}: not the sweep.json of a sweep of raveval ({exc}); the same "
            "sweep again writes it anew"
        ) from exc


def earlier(output: Path) -> dict[str, Outcome]:
    """Return what an earlier sweep left in its directory: runs done, not graded yet, or stopped.

    Their weights may be gone, and what is asked for now may be others: the runs stand.
    """
    left: dict[str, Outcome] = {}
    for entry in (read_content(output) or {}).get("checkpoints", ()):
        checkpoint = Checkpoint(entry["name"], entry["step"], {"path": entry["place"]})
        seconds = float(entry.get("seconds", 0.0))
        if (output / checkpoint.name / "results.json").is_file():
            left[checkpoint.name] = kept(checkpoint, seconds)
        elif entry["state"] == State.ANSWERED:
            left[checkpoint.name] = Outcome(checkpoint, State.ANSWERED, seconds=seconds)
        elif entry["state"] == State.STOPPED and (output / checkpoint.name / "run.json").is_file():
            progress = progress_of(output / checkpoint.name)
            why = str(entry.get("message", ""))
            left[checkpoint.name] = Outcome(checkpoint, State.STOPPED, why, seconds, progress)
    return left


def kept(checkpoint: Checkpoint, seconds: float) -> Outcome:
    """Return the outcome of a checkpoint whose run stands as an earlier sweep left it."""
    why = "its weights are gone; " if checkpoint.is_gone else ""
    message = f"{why}its run stands as an earlier sweep left it"
    return Outcome(checkpoint, State.KEPT, message, seconds)


def outcome_of(entry: Mapping[str, Any]) -> Outcome:
    """Return what an entry of sweep.json says of a checkpoint."""
    progress = entry.get("progress", {})
    return Outcome(
        Checkpoint(entry["name"], entry["step"], {"path": entry["place"]}),
        State(entry["state"]),
        str(entry.get("message", "")),
        float(entry.get("seconds", 0.0)),
        {task: Progress(**each) for task, each in progress.items()},
    )


def read_content(output: Path) -> dict[str, Any] | None:
    """Return sweep.json; None where there is none, or it is not a sweep's."""
    try:
        content = json.loads((output / "sweep.json").read_text(encoding="utf-8"))
        content["from_previous"], content["from_best"]
        for entry in content["checkpoints"]:
            entry["name"], entry["step"], entry["place"], entry["state"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    found: dict[str, Any] = content
    return found


def _differences(entries: list[dict[str, Any]]) -> tuple[Difference, ...]:
    return tuple(Difference(**{**entry, "verdict": Verdict(entry["verdict"])}) for entry in entries)


@dataclass(frozen=True, slots=True)
class CheckpointStatus:
    """How far a checkpoint is; `state` is None while its process is at work, or was ended.

    `n_to_grade` are the shards that wait for a judge; `n_missing` the examples done without a
    score. A checkpoint that is still being planned has no examples yet.
    """

    name: str
    step: int | None
    state: State | None
    message: str
    n_done: int = 0
    n_missing: int = 0
    n_examples: int = 0
    n_to_grade: int = 0


@dataclass(frozen=True, slots=True)
class SweepStatus:
    """How far a sweep is: its checkpoints that were begun, by step.

    `driver` says which process is at work on it, None where none is.
    """

    directory: str
    checkpoints: tuple[CheckpointStatus, ...]
    driver: str | None = None

    @property
    def is_running(self) -> bool:
        """Whether a driver is at work on the sweep."""
        return self.driver is not None

    @property
    def n_done(self) -> int:
        """How many have numbers of all that was asked."""
        return sum(each.state is not None and each.state.is_done for each in self.checkpoints)


def sweep_status(directory: str | Path) -> SweepStatus:
    """Say how far a sweep is, from its files alone, also while it is under way.

    Raises:
        DataError: no sweep there, or a file of it that cannot be read.
    """
    path = Path(directory)
    if not is_sweep(path):
        raise DataError(f"{path}: no sweep of raveval here (no sweep.json)")
    driver = RunDirectory(path).holder()  # first: what one that ends now has written is read
    entries = (read_content(path) or {}).get("checkpoints", ())
    outcomes = {entry["name"]: outcome_of(entry) for entry in entries}
    checkpoints = {name: outcome.checkpoint for name, outcome in outcomes.items()}
    for name in _begun(path):
        checkpoints.setdefault(name, Checkpoint(name, step_of(name), {"path": ""}))
    ordered = sorted(checkpoints.values(), key=lambda checkpoint: checkpoint.rank)
    return SweepStatus(
        str(directory),
        tuple(_status(path, each, outcomes.get(each.name)) for each in ordered),
        driver,
    )


def _begun(path: Path) -> list[str]:
    """Return the checkpoints of which there is the run that was asked for, or a run."""
    asked = {each.stem for each in path.glob("logs/*.yaml")}
    return sorted(asked and asked | {each.parent.name for each in path.glob("*/run.json")})


def _status(path: Path, checkpoint: Checkpoint, outcome: Outcome | None) -> CheckpointStatus:
    name, step = checkpoint.name, checkpoint.step
    state, message = (outcome.state, outcome.message) if outcome else (None, "")
    if state is not None and state.is_done:
        found = swept(path, Outcome(checkpoint, state, message))
        tasks = found.results.tasks.values() if found.results else ()
        coverages = [task.coverage for task in tasks]
        n_examples = sum(each.n_attempted for each in coverages)
        n_scored = sum(each.n_scored for each in coverages)
        return CheckpointStatus(
            name, step, found.state, found.message, n_examples, n_examples - n_scored, n_examples
        )
    if RunDirectory(path / name).read_manifest() is None:
        return CheckpointStatus(name, step, state, message)
    run = run_status.status(path / name).tasks.values()
    by_status = [Coverage(task.by_status) for task in run]
    n_done = sum(each.n_attempted for each in by_status)
    return CheckpointStatus(
        name,
        step,
        state,
        message,
        n_done,
        n_done - sum(each.n_scored for each in by_status),
        sum(task.n_examples for task in run),
        sum(task.n_shards_to_grade for task in run),
    )
