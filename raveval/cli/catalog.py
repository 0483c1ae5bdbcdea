"""Commands that show what there is to evaluate: tasks, demo-model."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from raveval.cli.app import command, console, harmless, say

if TYPE_CHECKING:
    from raveval.tasks import Task
    from raveval.tasks.sections import Source


@command("tasks")
def _tasks(
    name: Annotated[
        str | None,
        typer.Argument(help="A task; without it all are listed.", show_default=False),
    ] = None,
) -> None:
    """List the tasks, or show the card of one."""
    from raveval import tasks

    if name is not None:
        print("\n".join(map(harmless, _card(tasks.load_task(name)))))
        return
    from raveval.report.render import print_cells
    from raveval.report.tables import Column, Table

    rows = []
    for known in tasks.names():
        task = tasks.load_task(known)
        rows.append((known, task.protocol, task.card.license, task.card.description))
    columns = [Column(title, "name") for title in ("Task", "Protocol", "License", "Description")]
    print_cells(Table(columns, rows), console())


def _card(task: Task) -> list[str]:
    """Return a task's card: what it is, where it comes from, how it is asked by default."""
    card = task.card.model_dump()
    facts = {
        "protocol": task.protocol,
        "version": task.version,
        **{key: card[key] for key in ("kind", "language")},
        "source": _place(task.source),
        "shots": f"{task.fewshot.num} by default",
        "scoring": task.scoring if task.protocol == "multiple_choice" else "",
        "group": task.group,
        **{key: card[key] for key in ("license", "homepage", "paper", "notes")},
    }
    lines = [f"{task.name}: {card['description']}"]
    return lines + [f"  {key:<9} {value}" for key, value in facts.items() if value]


def _place(source: Source) -> str:
    if source.path is not None:
        return os.path.normpath(source.path)
    if source.fetch is not None:
        return f"{source.fetch}; fetch it and name it with --path"
    parts = (source.hub, source.config, f"split {source.split}", f"revision {source.revision}")
    return ", ".join(part for part in parts if part)


@command("demo-model")
def _demo_model() -> None:
    """Fetch the small model of the demo and print the path of its checkpoint as the last line."""
    from raveval import demo_model

    print(demo_model.fetch(say=say))
