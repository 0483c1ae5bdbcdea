"""Computes a metric on predictions that already exist: no model, no run, constant memory.

It answers what a file of predictions is worth; how predictions are made is not its business. Rows
are read some thousands at a time and added to the metric's state, so that any number of files of
any size can be measured, in any order, to the same bits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raveval.errors import ConfigError, DataError, nearest
from raveval.evaluate import POOLED, load_metric
from raveval.metrics import Metric
from raveval.metrics._averages import macro_averages
from raveval.metrics._clusters import CLUSTER
from raveval.metrics._merging import Merging
from raveval.prediction_files import (
    ABSENT,
    JsonRows,
    Rows,
    files_of,
    read_rows,
    read_squad,
    table_rows,
)
from raveval.prediction_tables import GROUP, first_failing, missing_field, table_of
from raveval.types import Estimate, Status

Source: TypeAlias = pa.Table | str | Path | Sequence[str | Path]
"""A table in memory, or files of predictions (JSON Lines, JSON or Parquet), or folders of them."""

_STATUS = "status"
_MOST_GROUPS = 1000
_SQUAD_COLUMNS = {"prediction", "references"}


@dataclass(frozen=True, slots=True)
class Measurement:
    """What predictions are worth.

    Attributes:
        metrics: every estimate of the metric, by name, pooled over all rows.
        n_rows: rows read, those left out included.
        notes: counts that explain the numbers: rows left out by status, ties, unanswered
            questions, predictions for no question ("surplus"); zeros are omitted.
        groups: the same estimates by group, where rows name one.
        macro: unweighted means of the groups' estimates, each group counting once.
    """

    metrics: Mapping[str, Estimate]
    n_rows: int
    notes: Mapping[str, int]
    groups: Mapping[str, Mapping[str, Estimate]] = field(default_factory=dict)
    macro: Mapping[str, Estimate] = field(default_factory=dict)


def measure(
    metric: str,
    source: Source | None = None,
    *,
    columns: Mapping[str, str] | None = None,
    constants: Mapping[str, Any] | None = None,
    references: str | Path | None = None,
    predictions: str | Path | None = None,
) -> Measurement:
    """Compute a metric on existing predictions.

    Args:
        metric: a metric's name; a dotted one reaches a module of your own.
        source: a table, or the path or paths of files; a folder stands for its Parquet and JSON
            Lines files.
        columns: which field of the source holds a column of the metric, where the names differ;
            a path such as `prediction.text` leads into nested values.
        constants: columns of the metric that have one value for all rows, as the denominator of a
            grid of ratings.
        references: an official SQuAD dataset (v1.1 for the metric squad, v2.0 for squad2), in place
            of `source`; with `predictions`, the official mapping from question id to answer.
        predictions: see `references`.

    Beside the metric's own columns, rows may have `status`, `group` (a subject, say: estimates come
    for each as well) and `cluster` (what examples that are not independent share: intervals then
    rest on clusters). Rows whose status says that they were not scored are left out and counted. An
    unanswered question of the official pair scores 0; a prediction for no question is ignored; both
    are noted.

    Raises:
        ConfigError: no such metric or column, or arguments that do not go together.
        DataError: a file or field is missing or malformed; the message says which line.

    >>> table = pa.table({"prediction": ["the cat"], "references": [["A cat!", "dog"]]})
    >>> measure("squad", table).metrics["f1"].value
    1.0
    """
    plugin = load_metric(metric)
    notes: dict[str, int] = {}
    mapping, given = _named("columns", columns), _named("constants", constants)
    for path in mapping.values():
        if not isinstance(path, str):
            raise ConfigError(f"columns: a field is named by a text, given {path!r}")
    if references is not None or predictions is not None:
        rows = _official_pair(plugin, source, columns, references, predictions, notes)
    else:
        names = (*(column.name for column in plugin.columns), GROUP.name, _STATUS)
        rows = _all_rows(plugin, source, {mapping.get(name, name) for name in names})
    _check_columns(plugin, mapping, given)
    states, n_rows = {POOLED: Merging(plugin)}, 0
    for part in rows:
        n_rows += len(part)
        scored = _scored(part, mapping, notes)
        if len(scored):
            _add(plugin, states, scored, mapping, given, notes)
    if n_rows == 0 and not isinstance(source, pa.Table):
        paths = [source] if isinstance(source, str | Path) else source or []
        raise DataError(f"{', '.join(map(str, paths))}: there are no rows in it")
    pooled = states.pop(POOLED).total()
    by_group = {group: states[group].total() for group in sorted(states)}
    groups = {group: plugin.compute(state) for group, state in by_group.items()}
    metric_notes = plugin.notes(pooled)
    if not groups:
        notes.pop("without_group", None)  # no row has one
    notes |= metric_notes
    return Measurement(
        plugin.compute(pooled),
        n_rows,
        {name: count for name, count in notes.items() if count},
        groups,
        macro_averages(
            groups, notes=metric_notes, group_notes=map(plugin.notes, by_group.values())
        ),
    )


def _all_rows(
    plugin: Metric[Any], source: Source | None, fields: Collection[str]
) -> Iterator[Rows]:
    if source is None or (isinstance(source, Sequence) and not source):
        raise ConfigError(
            f"nothing to measure: give a table or files of predictions. {_described(plugin)}"
        )
    if isinstance(source, pa.Table):
        return table_rows(source)
    given: object = source
    paths = [given] if isinstance(given, str | Path) else given
    if not isinstance(paths, list | tuple):
        raise _no_source(given)
    files = list[Path]()
    for path in paths:
        if not isinstance(path, str | Path):
            raise _no_source(path)
        files += files_of(Path(path))
    seen: dict[Path, Path] = {}
    for file in files:
        if seen.setdefault(file.resolve(), file) is not file:
            raise ConfigError(
                f"{file}: the same file as {seen[file.resolve()]}; its rows would count twice. "
                "Give it once"
            )
    return (rows for file in files for rows in read_rows(file, fields))


def _no_source(given: object) -> ConfigError:
    return ConfigError(
        f"nothing to measure: a source is a pyarrow.Table or paths of files, given a "
        f"{type(given).__name__}; pyarrow.Table.from_pylist(rows) makes a table of rows, "
        "pyarrow.Table.from_pandas(frame) one of a data frame"
    )


def _described(plugin: Metric[Any]) -> str:
    """Say which columns a metric reads."""
    labels = (GROUP.name, CLUSTER.name, _STATUS)
    optional = (*(name for name in plugin.optional if name not in labels), *labels)
    return (
        f"metric {plugin.name!r} reads the columns {', '.join(plugin.needs)}, and where they are "
        f"there {', '.join(optional)}; --map column=field names the field that holds one"
    )


def _official_pair(
    plugin: Metric[Any],
    source: Source | None,
    columns: Mapping[str, str] | None,
    references: str | Path | None,
    predictions: str | Path | None,
    notes: dict[str, int],
) -> Iterator[Rows]:
    if set(plugin.needs) != _SQUAD_COLUMNS:
        raise ConfigError(
            f"metric {plugin.name!r} does not read official SQuAD files (references, predictions); "
            "use squad for v1.1, squad2 for v2.0, or give files of predictions"
        )
    if references is None or predictions is None:
        given, missing = "references", "predictions"
        if references is None:
            given, missing = missing, given
        raise ConfigError(f"{given} is given without {missing}: the official files are a pair")
    if source is not None or columns:
        raise ConfigError("give either the official pair or files of predictions, not both")
    pair = read_squad(Path(references), Path(predictions))
    notes["surplus"] = pair.n_surplus
    return _in_parts(pair.rows)


def _in_parts(rows: JsonRows, size: int = 4096) -> Iterator[Rows]:
    for start in range(0, len(rows), size):
        yield rows.keep(range(start, min(start + size, len(rows))))


def _named(argument: str, given: Mapping[str, Any] | None) -> dict[str, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise ConfigError(
            f"{argument}: expected a mapping from the metric's columns, given {given!r:.60}"
        )
    return dict(given or {})


def _check_columns(
    plugin: Metric[Any], mapping: Mapping[str, str], constants: Mapping[str, Any]
) -> None:
    known = (*plugin.needs, *plugin.optional, _STATUS, GROUP.name)
    for name in mapping:
        if name not in known:
            raise ConfigError(
                f"metric {plugin.name!r} has no column {name!r}; {nearest(name, known)} (a mapping "
                "is COLUMN=FIELD: the metric's column first, the file's field second)"
            )
    settable = (*plugin.needs, *plugin.optional)
    for name in constants:
        if name not in settable:
            raise ConfigError(
                f"no value can be set for the column {name!r} of metric {plugin.name!r}; "
                f"{nearest(name, settable)}"
            )
    for name in constants:
        if name in mapping:
            raise ConfigError(f"column {name!r} is given a field and a value; give one of them")


def _scored(rows: Rows, mapping: Mapping[str, str], notes: dict[str, int]) -> Rows:
    """Return the rows that enter the metric; count the others by status."""
    path = mapping.get(_STATUS, _STATUS)
    values = rows.values(path)
    if values is None and _STATUS in mapping:
        raise missing_field(rows, 0, _STATUS, path)
    if values is None:
        return rows
    if isinstance(values, pa.StringArray | pa.LargeStringArray):
        return _scored_texts(rows, values, notes)
    kept: list[int] = []
    for index, value in enumerate(values.to_pylist() if isinstance(values, pa.Array) else values):
        if value is ABSENT and _STATUS in mapping:
            raise missing_field(rows, index, _STATUS, path)
        if value is ABSENT or value is None or _is_scored(value, rows, index):
            kept.append(index)
        else:
            notes[f"status_{value}"] = notes.get(f"status_{value}", 0) + 1
    return rows if len(kept) == len(rows) else rows.keep(kept)


def _scored_texts(rows: Rows, statuses: pa.Array, notes: dict[str, int]) -> Rows:
    """Do the same for a whole column at once."""
    unscored: list[str] = []
    for entry in pc.value_counts(statuses).to_pylist():
        status, count = entry["values"], entry["counts"]
        if status is None or _is_scored(status, rows, pc.index(statuses, status).as_py()):
            continue
        unscored.append(status)
        notes[f"status_{status}"] = notes.get(f"status_{status}", 0) + count
    if not unscored:
        return rows
    is_unscored = pc.is_in(statuses, value_set=pa.array(unscored, statuses.type))
    return rows.keep(np.flatnonzero(~is_unscored.to_numpy(zero_copy_only=False)))


def _is_scored(value: object, rows: Rows, index: int) -> bool:
    if not isinstance(value, str) or value not in tuple(Status):
        raise DataError(
            f"{rows.place(index)}: status is {value!r}; {nearest(str(value), tuple(Status))} "
            "(a row without a status is scored)"
        )
    return Status(value).is_scored


def _add(
    plugin: Metric[Any],
    states: dict[str, Merging],
    rows: Rows,
    mapping: Mapping[str, str],
    constants: Mapping[str, Any],
    notes: dict[str, int],
) -> None:
    """Add rows to the pooled state and to those of their groups; count those without a group."""
    table = table_of(plugin, rows, mapping, constants)
    _update(plugin, states[POOLED], table, rows)
    if GROUP.name not in table.column_names:
        notes["without_group"] = notes.get("without_group", 0) + len(table)
        return
    n_grouped = 0
    for group, members in _by_group(table):
        n_grouped += len(members)
        states.setdefault(group, Merging(plugin)).update(members)
    notes["without_group"] = notes.get("without_group", 0) + len(table) - n_grouped
    if len(states) > _MOST_GROUPS:
        raise DataError(
            f"{rows.place(0)} and after: more than {_MOST_GROUPS} groups; a group is a subject or "
            f"a source. Name the right field with --map {GROUP.name}=FIELD, or rename the column"
        )


def _by_group(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of each group that has a name."""
    groups = table.column(GROUP.name)
    if groups.null_count == len(groups):
        return
    table = table.take(pc.sort_indices(groups))  # one pass, however many groups there are
    start = 0
    for entry in pc.value_counts(table.column(GROUP.name)).to_pylist():
        group, count = entry["values"], entry["counts"]
        if group:
            yield group, table.slice(start, count)
        start += count


def _update(plugin: Metric[Any], state: Merging, table: pa.Table, rows: Rows) -> None:
    try:
        state.update(table)
    except DataError:
        index = first_failing(lambda n: plugin.update(plugin.init(), table.slice(0, n)), len(rows))
        try:
            plugin.update(plugin.init(), table.slice(index, 1))
        except DataError as exc:
            raise DataError(f"{rows.place(index)}: {exc}") from exc
        raise
