"""What a sweep leaves in its directory, and reads there again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from raveval import report, run_status
from raveval.comparison import Difference
from raveval.errors import DataError
from raveval.paths import NAME_PATTERN
from raveval.store import RunDirectory
from raveval.store.places import is_url
from raveval.sweep.checkpoints import Checkpoint, step_of
from raveval.sweep.outcome import Outcome, Progress, State
from raveval.sweep.results import SweepResults, progress_of, swept
from raveval.types import Coverage


@dataclass(frozen=True, slots=True)
class _Entry:
    """What sweep.json says of a checkpoint, whose name is that of its folder."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    step: int | None
    place: str
    state: State
    message: str = ""
    seconds: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    progress: Mapping[str, Progress] = field(default_factory=dict)

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.name, self.step, {"path": self.place})

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.checkpoint, self.state, self.message, self.seconds, self.progress)


@dataclass(frozen=True, slots=True)
class _Content:
    """What sweep.json says; files may be torn, foreign, changed by hand."""

    checkpoints: tuple[_Entry, ...]
    from_previous: tuple[Difference, ...]
    from_best: tuple[Difference, ...]
    remarks: tuple[str, ...] = ()
    best: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


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
        and (read_entries(path) is not None or bool(_begun(path)))
    )


def load_sweep_results(directory: str | Path) -> SweepResults:
    """Return the results that a sweep wrote, as far as it is.

    Raises:
        DataError: no sweep there, or one of which no checkpoint has ended yet.
    """
    path = Path(directory)
    try:
        content = _read(path)
    except ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise DataError(
            f"{path / 'sweep.json'}: not the sweep.json of a sweep of raveval "
            f"({where}: {first['msg']}); the same sweep again writes it anew"
        ) from exc
    except OSError as exc:
        if _begun(path):
            raise DataError(
                f"{path}: no checkpoint of this sweep has ended yet; `raveval status {path}` says "
                "how far they are"
            ) from exc
        raise DataError(f"{path}: no sweep of raveval here (no sweep.json)") from exc
    return SweepResults(
        tuple(swept(path, entry.outcome) for entry in content.checkpoints),
        content.from_previous,
        content.from_best,
        content.remarks,
        content.best,
    )


def earlier(output: Path) -> dict[str, Outcome]:
    """Return what an earlier sweep left in its directory: runs done, not graded yet, or stopped.

    Their weights may be gone, and what is asked for now may be others: the runs stand.
    """
    left: dict[str, Outcome] = {}
    for entry in read_entries(output) or ():
        run = output / entry.name
        if (run / "results.json").is_file():
            left[entry.name] = kept(entry.checkpoint, entry.seconds)
        elif entry.state is State.ANSWERED:
            left[entry.name] = Outcome(entry.checkpoint, State.ANSWERED, seconds=entry.seconds)
        elif entry.state is State.STOPPED and (run / "run.json").is_file():
            left[entry.name] = replace(entry.outcome, progress=progress_of(run))
    return left


def kept(checkpoint: Checkpoint, seconds: float) -> Outcome:
    """Return the outcome of a checkpoint whose run stands as an earlier sweep left it."""
    why = "its weights are gone; " if checkpoint.is_gone else ""
    message = f"{why}its run stands as an earlier sweep left it"
    return Outcome(checkpoint, State.KEPT, message, seconds)


def read_entries(output: Path) -> tuple[_Entry, ...] | None:
    """Return what sweep.json says of checkpoints; None where there is none, or not a sweep's."""
    try:
        return _read(output).checkpoints
    except (OSError, ValidationError):
        return None


def _read(output: Path) -> _Content:
    """Return sweep.json.

    Raises:
        OSError: there is none, or it cannot be read.
        ValidationError: no sweep wrote it.
    """
    return TypeAdapter(_Content).validate_json((output / "sweep.json").read_bytes())


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
    outcomes = {entry.name: entry.outcome for entry in read_entries(path) or ()}
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
