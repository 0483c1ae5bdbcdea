"""Brings a checkpoint's weights nearer before they are needed."""

from __future__ import annotations

import os
from pathlib import Path

from raveval.config import ModelConfig
from raveval.weights import weight_files

_FETCHED = ("*.safetensors", "*.json", "*.model", "*.txt")


def prefetch(model: ModelConfig) -> None:
    """Have a local checkpoint read into memory, or one of the hub fetched to this machine.

    Raises:
        OSError: a file cannot be read, or the hub cannot be reached.
    """
    if model.id is not None:
        try:
            from huggingface_hub import snapshot_download
        except ImportError:
            return  # the run itself says what to install
        snapshot_download(model.id, revision=model.revision, allow_patterns=list(_FETCHED))
        return
    for file in weight_files(Path(model.path).expanduser()) if model.path else ():
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(descriptor)
