"""Reads datasets of the hub: the Parquet files they hold, or those that the hub makes of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from raveval.errors import DataError, nearest
from raveval.tasks.source import Layout, Row, read

CONVERTED = "refs/convert/parquet"
"""The branch where the hub keeps Parquet copies of datasets in other formats."""

List = Callable[[str, str], tuple[str, list[str]]]
"""(dataset, revision) -> the commit's sha and the files it holds."""

Download = Callable[[str, str, str], str]
"""(dataset, file, sha) -> where the file lies now."""


@dataclass(frozen=True, slots=True)
class Located:
    """The files of one split, at one commit."""

    sha: str
    files: tuple[str, ...]


def read_hub(
    dataset: str,
    config: str | None,
    split: str,
    revision: str,
    *,
    list_files: List | None = None,
    download: Download | None = None,
) -> Iterator[Row]:
    """Yield the rows of a split, in the order of its files.

    Raises:
        DataError: the extra is not installed, the hub cannot be reached or does not know the
            dataset, or there is no such config or split.
    """
    found = locate(dataset, config, split, revision, list_files=list_files)
    fetch = download or _download
    number = 0
    for file in found.files:
        path = Path(fetch(dataset, file, found.sha))
        for row in read(path, Layout(format="parquet")):
            yield Row(
                f"{dataset}@{found.sha[:12]}/{file}: row {row.number + 1}", number, row.columns
            )
            number += 1


def locate(
    dataset: str,
    config: str | None,
    split: str,
    revision: str,
    *,
    list_files: List | None = None,
) -> Located:
    """Find the Parquet files of a split and the commit they belong to.

    Raises:
        DataError: as `read_hub`.
    """
    listed = list_files or _list_files
    sha, files = listed(dataset, revision)
    own = _parquet_of(files, config, split)
    if own:
        return Located(sha, own)
    if revision == "main":  # the converted copy follows the newest commit only
        sha, converted = listed(dataset, CONVERTED)
        copied = _parquet_of(converted, config, split)
        if copied:
            return Located(sha, copied)
        files = [*files, *converted]
    raise DataError(_nothing_found(dataset, config, split, revision, files))


def _parquet_of(files: list[str], config: str | None, split: str) -> tuple[str, ...]:
    """Return the files of a split: `config/split-00000-of-00001.parquet` and its like."""
    paths = [PurePosixPath(file) for file in sorted(files) if file.endswith(".parquet")]
    of_split = [path for path in paths if _is_of_split(path, split)]
    if config is not None:
        inside = [path for path in of_split if config in path.parts[:-1]]
        # a dataset of one config may keep its files under data/ or at the top
        bare = [path for path in of_split if path.parts[:-1] in ((), ("data",))]
        only = len(_configs(paths)) <= 1
        of_split = inside or (bare if only else [])
    elif len(_configs(of_split)) > 1:
        return ()
    return tuple(str(path) for path in of_split)


def _is_of_split(path: PurePosixPath, split: str) -> bool:
    stem = path.stem
    return split in path.parts[:-1] or stem == split or stem.startswith((f"{split}-", f"{split}."))


def _configs(paths: list[PurePosixPath]) -> set[str]:
    """Return the first folders, which name the configs where there are several."""
    return {path.parts[0] if len(path.parts) > 1 else "" for path in paths}


def _nothing_found(
    dataset: str, config: str | None, split: str, revision: str, files: list[str]
) -> str:
    parquet = sorted({file for file in files if file.endswith(".parquet")})
    if not parquet:
        return (
            f"{dataset}@{revision}: the dataset has no Parquet files, neither of its own nor on "
            f"{CONVERTED}; download it and pass the file as `path:`"
        )
    wanted = f"config {config!r}, split {split!r}" if config else f"split {split!r}"
    shown = ", ".join(parquet[:12]) + (f" and {len(parquet) - 12} more" if parquet[12:] else "")
    known = {part for file in parquet for part in PurePosixPath(file).parts[:-1]}
    hint = nearest(config, known) if config and config not in known else "set `config` or `split`"
    return f"{dataset}@{revision}: no Parquet file for {wanted}; {hint} Files: {shown}"


@contextlib.contextmanager
def _translating_faults(dataset: str, revision: str) -> Iterator[None]:
    """Turn what the hub's library raises into one DataError."""
    try:
        from huggingface_hub.errors import (
            GatedRepoError,
            HFValidationError,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )
    except ImportError:
        raise DataError(
            f"{dataset}: reading a dataset of the hub needs an extra: pip install 'raveval[hub]'; "
            "or download it and pass the file as `path:`"
        ) from None
    try:
        yield
    except GatedRepoError as exc:
        raise DataError(
            f"{dataset}: access is granted by its owners only; ask for it on the dataset's page "
            "and set HF_TOKEN"
        ) from exc
    except RevisionNotFoundError as exc:
        raise DataError(f"{dataset}: the hub has no revision {revision!r} of it") from exc
    except (RepositoryNotFoundError, HFValidationError) as exc:
        raise DataError(
            f"{dataset}: the hub has no such dataset, or HF_TOKEN does not open it"
        ) from exc
    except Exception as exc:  # the client underneath has changed twice, and its errors with it
        raise DataError(
            f"{dataset}@{revision}: the hub cannot be reached ({type(exc).__name__}: "
            f"{_first_line(exc)}); pass a local copy as `path:`"
        ) from exc


def _first_line(exc: Exception) -> str:
    return str(exc).strip().split("\n", 1)[0]


def _list_files(dataset: str, revision: str) -> tuple[str, list[str]]:
    with _translating_faults(dataset, revision):
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError

        try:
            found = HfApi().dataset_info(dataset, revision=revision, timeout=30)
        except HfHubHTTPError:
            raise  # the hub has answered
        except Exception:
            cached = _cached_files(dataset, revision)
            if cached is None:
                raise
            return cached
        return found.sha or revision, [sibling.rfilename for sibling in found.siblings or []]


def _cached_files(dataset: str, revision: str) -> tuple[str, list[str]] | None:
    """Return what earlier downloads left in the hub's cache, for machines without a network."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        root = Path(
            snapshot_download(
                dataset, repo_type="dataset", revision=revision, local_files_only=True
            )
        )
    except LocalEntryNotFoundError:
        return None
    files = [str(path.relative_to(root)) for path in root.rglob("*.parquet")]
    return root.name, sorted(files)


def _download(dataset: str, file: str, sha: str) -> str:
    with _translating_faults(dataset, sha):
        from huggingface_hub import hf_hub_download

        return str(hf_hub_download(dataset, file, repo_type="dataset", revision=sha))
