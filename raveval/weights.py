"""The files of a checkpoint: which hold the model, and whether they are whole."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
"""Of files that hold weights."""

_OF_TRAINING = re.compile(r"training_args|optim|scheduler|scaler|rng_state|random_states")
_SHARD = re.compile(r"(?P<before>.*-)(?P<place>\d+)-of-(?P<count>\d+)(?P<after>\..*)")


class Stamp(NamedTuple):
    """How large a checkpoint is, and when it was last written to, in ns; what is written moves."""

    n_bytes: int
    written: int


def stamp_of(folder: Path) -> Stamp:
    """Return the size and the last change of what lies at the top of a checkpoint's directory."""
    known = []
    for path in folder.glob("*"):
        try:
            known.append(path.stat())
        except OSError:
            continue  # a temporary file that was renamed just now
    sizes = (stat.st_size for stat in known)
    return Stamp(sum(sizes), max((stat.st_mtime_ns for stat in known), default=0))


def weight_files(folder: Path) -> list[Path]:
    """Return the files of a checkpoint that hold the model, not the state of its training."""
    return sorted(
        path
        for path in folder.glob("*")
        if path.suffix in SUFFIXES and not _OF_TRAINING.match(path.name) and path.is_file()
    )


def fault_of(folder: Path) -> str | None:
    """Return what a checkpoint lacks to be loaded; None where it is whole.

    It has its configuration, and its weights are all there and as long as they should be. All:
    those that its index names, and each of the shards that the others count. As long: as the header
    of a safetensors file says; of other files nothing can be said.
    """
    files = weight_files(folder)
    if not (folder / "config.json").is_file():
        return "it has no config.json"
    if not files:
        return f"it has a config.json but no weights (*{', *'.join(SUFFIXES)})"
    there = {path.name for path in files}
    for index in sorted(folder.glob("*.index.json")):
        try:
            named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return f"{index.name} is no index of weights"
        if not named <= there:
            return f"{min(named - there)} is missing, which {index.name} names"
    missing = _shards_of(there) - there
    if missing:
        return f"{min(missing)} is missing"
    return next(filter(None, map(fault_of_file, files)), None)


def _shards_of(names: set[str]) -> set[str]:
    """Return the names of all shards of which one is among some names."""
    shards = set()
    for match in filter(None, map(_SHARD.fullmatch, names)):
        digits, count = len(match["place"]), match["count"]
        shards |= {
            f"{match['before']}{place:0{digits}}-of-{count}{match['after']}"
            for place in range(1, int(count) + 1)
        }
    return shards


def read_spans(file: BinaryIO, size: int) -> tuple[int, list[tuple[int, int]]]:
    """Return how many bytes come before the tensors of a safetensors file, and each one's span.

    Args:
        file: at its beginning.
        size: of the file; a length that a foreign file seems to state is not read beyond it.

    Raises:
        ValueError: it is no such file, or only a part of its header.
    """
    header_bytes, entries = _read_header(file, size)
    try:
        offsets = [entry["data_offsets"] for entry in entries.values()]
        return header_bytes, [(int(begin), int(end)) for begin, end in offsets]
    except (KeyError, TypeError) as exc:
        raise ValueError(f"no header of safetensors: {exc}") from exc


class TensorKind(NamedTuple):
    """What the header of a safetensors file says of a tensor; `dtype` as it is named there."""

    dtype: str
    shape: tuple[int, ...]


def read_kinds(path: Path) -> dict[str, TensorKind]:
    """Return the type and shape of each tensor of a safetensors file, by name.

    Raises:
        ValueError: it is no such file, or only a part of its header.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        _, entries = _read_header(file, path.stat().st_size)
    try:
        return {
            name: TensorKind(str(entry["dtype"]), tuple(map(int, entry["shape"])))
            for name, entry in entries.items()
        }
    except (KeyError, TypeError) as exc:
        raise ValueError(f"no header of safetensors: {exc}") from exc


def _read_header(file: BinaryIO, size: int) -> tuple[int, dict[str, Any]]:
    """Return how many bytes come before the tensors, and what is said of each, by name."""
    n_bytes = int.from_bytes(file.read(8), "little")
    try:
        header = json.loads(file.read(min(n_bytes, max(size - 8, 0))))
        entries = {name: entry for name, entry in header.items() if name[:2] != "__"}
    except (TypeError, AttributeError) as exc:
        raise ValueError(f"no header of safetensors: {exc}") from exc
    return 8 + n_bytes, entries


def fault_of_file(path: Path) -> str | None:
    """Return what is wrong with the length of a safetensors file; None where nothing is."""
    if path.suffix != ".safetensors":
        return None
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            header_bytes, spans = read_spans(file, size)
    except (OSError, ValueError):
        return f"{path.name} is no safetensors file, or only the beginning of one"
    expected = header_bytes + max((end for _, end in spans), default=0)
    return None if size == expected else f"{path.name} has {size} of {expected} bytes"
