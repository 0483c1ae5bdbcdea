"""Examples as rows of a table, and back again without a change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, overload

import pyarrow as pa
from typing_extensions import override

from raveval.types import Example, Message, Prompt

_TURNS = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
READ_AT_ONCE = 1024
ROWS_OF_A_PART = 16 * READ_AT_ONCE
"""Of a file: its footer, which whoever reads a row has to read, grows with them."""
EXAMPLE_COLUMNS = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("row_key", pa.uint64(), nullable=False),
        pa.field("prompt", pa.string()),
        pa.field("messages", _TURNS),
        pa.field("unconditional_prompt", pa.string()),
        pa.field("unconditional_messages", _TURNS),
        pa.field("continuations", pa.list_(pa.string())),
        pa.field("gold", pa.int32()),
        pa.field("references", pa.list_(pa.string())),
        pa.field("second_prompt", pa.string()),
        pa.field("second_messages", _TURNS),
        pa.field("reference_ratings", pa.list_(pa.float64())),
        pa.field("preferred", pa.string()),
        pa.field("text", pa.string()),
        pa.field("n_words", pa.int64()),
        pa.field("n_words_whitespace", pa.int64()),
        pa.field("n_bytes", pa.int64()),
        pa.field("n_chars", pa.int64()),
        pa.field("group", pa.string()),
        pa.field("cluster", pa.string()),
        pa.field("fields", pa.map_(pa.string(), pa.string())),
    ]
)


class StoredExamples(Sequence[Example]):
    """The examples of a task as a run directory has them; read when they are asked for.

    Args:
        n_examples: how many there are.
        read: gives those of a range.
    """

    def __init__(self, n_examples: int, read: Callable[[int, int], list[Example]]) -> None:
        self._positions = range(n_examples)
        self._read = read

    @override
    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, position: int) -> Example: ...
    @overload
    def __getitem__(self, position: slice) -> list[Example]: ...
    @override
    def __getitem__(self, position: int | slice) -> Example | list[Example]:
        if isinstance(position, slice):
            return [self[each] for each in self._positions[position]]
        at = self._positions[position]
        return self._read(at, at + 1)[0]

    @override
    def __iter__(self) -> Iterator[Example]:
        for start in self._positions[::READ_AT_ONCE]:
            yield from self._read(start, min(start + READ_AT_ONCE, len(self)))


def to_row(example: Example) -> dict[str, Any]:
    """Return an example as a row with the columns `EXAMPLE_COLUMNS`."""
    prompt, messages = _split_prompt(example.prompt)
    unconditional_prompt, unconditional_messages = _split_prompt(example.unconditional_prompt)
    second_prompt, second_messages = _split_prompt(example.second_prompt)
    return {
        **{name: getattr(example, name) for name in Example.__dataclass_fields__},
        "row_key": example.row_key,
        "prompt": prompt,
        "messages": messages,
        "unconditional_prompt": unconditional_prompt,
        "unconditional_messages": unconditional_messages,
        "second_prompt": second_prompt,
        "second_messages": second_messages,
        "fields": list(example.fields.items()),
    }


def from_row(row: dict[str, Any]) -> Example:
    """Return the example of which `to_row` gave this row."""
    values = {name: row[name] for name in Example.__dataclass_fields__}
    values |= {
        "prompt": _join_prompt(row["prompt"], row["messages"]),
        "unconditional_prompt": _join_prompt(
            row["unconditional_prompt"], row["unconditional_messages"]
        ),
        "second_prompt": _join_prompt(row["second_prompt"], row["second_messages"]),
        "continuations": tuple(row["continuations"]),
        "references": tuple(row["references"]),
        "reference_ratings": tuple(row["reference_ratings"]),
        "fields": dict(row["fields"]),
    }
    return Example(**values)


def _split_prompt(prompt: Prompt | None) -> tuple[str | None, list[dict[str, str]] | None]:
    if prompt is None or isinstance(prompt, str):
        return prompt, None
    return None, [asdict(message) for message in prompt]


def _join_prompt(prompt: str | None, messages: list[dict[str, Any]] | None) -> Any:
    return prompt if messages is None else tuple(Message(**message) for message in messages)
