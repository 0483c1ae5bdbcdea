"""What is said of rows that a task cannot read: each row's fault, or once what all of them share.

A fault of the task file shows in every row alike; told row by row it would read as one of the data.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from raveval.errors import DataError
from raveval.tasks import CATALOG, Task
from raveval.tasks.rendering import RowError
from raveval.tasks.source import Row

MAX_FAULTS_SHOWN = 5


@dataclass(slots=True)
class Faults:
    """The rows of one source that a task could not read.

    `is_given`: the source is a file that a run names instead of the task's own.
    """

    task: Task
    source: str
    is_given: bool
    found: list[tuple[str, RowError]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.found)

    def add(self, row: Row, fault: DataError) -> None:
        """Keep what a row was refused for."""
        known = fault if isinstance(fault, RowError) else RowError(str(fault))
        self.found.append((row.where, known))

    def refuse(self, n_rows: int) -> None:
        """Raise what is to be said of these among `n_rows`; nothing where there are none.

        Raises:
            DataError: always but then.
        """
        if not self.found:
            return
        reasons = {fault.alike for _, fault in self.found}
        if len(self.found) == n_rows and len(reasons) == 1 and reasons != {""}:
            raise DataError(self._shared(n_rows))
        lines = [f"{where}: {fault}" for where, fault in self.found[:MAX_FAULTS_SHOWN]]
        advice = "".join(
            f" {text}." for text in dict.fromkeys(fault.advice for _, fault in self.found) if text
        )
        raise DataError(
            "\n".join(lines)
            + f"\ntask {self.task.name!r} cannot read {len(self.found)} of {n_rows} rows of "
            f"{self.source}.{advice} Mend them, or write a task file for this layout of columns"
        )

    def _shared(self, n_rows: int) -> str:
        where, fault = self.found[0]
        is_own = self.task.file.parent != CATALOG
        place = self.task.file if is_own else f"task {self.task.name!r} of the catalogue"
        rows = (
            f"all {n_rows} rows read, {where} first" if n_rows > 1 else f"the one row read, {where}"
        )
        named = " (the file that --path or --fewshot-path names)" if self.is_given else ""
        said = f"{place}: {fault}\nSo it is with {rows}{named}. "
        if is_own:
            return said + (fault.advice or "Mend this key of the task file, or the data")
        if not self.is_given:
            return f"{said}Name a file with the columns that the task reads by --path"
        data = f"the task's own data ({self.task.source.name})".replace(" ()", "")
        return (
            f"{said}Its layout is another than that of {data}: give a file with the columns of "
            "that, or write a task file for this one"
        )
