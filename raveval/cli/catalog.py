"""Commands that show what there is to evaluate: tasks, demo-model."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raveval.cli.app import command, console, harmless, say
from raveval.errors import ConfigError

if TYPE_CHECKING:
    from raveval.tasks import Task
    from raveval.tasks.sections import Source


@command("tasks")
def _tasks(
    name: Annotated[
        str | None,
        typer.Argument(help="A task; without it all are listed.", show_default=False),
    ] = None,
    words: Annotated[
        str, typer.Option("--search", help="Only tasks whose card holds each of these words.")
    ] = "",
    protocol: Annotated[
        str | None, typer.Option("--protocol", help="Only tasks of this protocol, as ranking.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print strict JSON.")] = False,
) -> None:
    """List and search the tasks, or show the card of one."""
    from raveval import tasks
    from raveval.tasks.search import search

    if name is not None:
        if words or protocol is not None:
            raise ConfigError(f"{name}: --search and --protocol list tasks; leave them or it out")
        task = tasks.load_task(name)
        print(_json(_facts(task)) if as_json else "\n".join(map(harmless, _card(task))))
        return
    found = search(words, protocol=protocol)
    if as_json:
        print(_json([_facts(task) for task in found]))
    else:
        _print_list(found)


def _print_list(found: Sequence[Task]) -> None:
    from raveval.report.render import print_cells
    from raveval.report.tables import Column, Table

    rows = [(task.name, task.protocol, task.card.license, task.card.description) for task in found]
    columns = [Column(title, "name") for title in ("Task", "Protocol", "License", "Description")]
    print_cells(Table(columns, rows), console())


def _facts(task: Task) -> dict[str, Any]:
    """Return what a program may want to know of a task."""
    return {
        "name": task.name,
        "protocol": task.protocol,
        "version": task.version,
        "num_fewshot": task.num_fewshot,
        "source": _place(task.source),
        **task.card.model_dump(mode="json"),
    }


def _json(content: object) -> str:
    return json.dumps(content, indent=2, allow_nan=False)


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

    directory = demo_model.fetch(say=say)
    say(f"demo model: {demo_model.describe(directory)}")
    print(directory)
