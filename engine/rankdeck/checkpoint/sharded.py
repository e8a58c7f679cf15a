"""Write and read the state of all ranks as shard files, with torch.distributed.checkpoint.

Importing torch.distributed.checkpoint takes half a second, and most runs write no checkpoint: store.py
imports this module only where it needs it.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save


class _ShardWriter(HuggingFaceStorageWriter):
    """Writer that never creates its folder: if the run has just been moved, creating the folder would
    recreate the run's old path."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan


def write_shards(folder: Path, tensors: Mapping[str, Tensor], *, no_dist: bool) -> None:
    """Write each tensor once: all ranks write together or, if `no_dist` is True, this process writes alone.

    Raises:
        Exception: the error of the first rank that failed.
    """
    with _unwrap_errors():
        save(dict(tensors), storage_writer=_ShardWriter(str(folder), save_distributed=True), no_dist=no_dist)


def stored_tensors(folder: Path) -> Mapping[str, Any]:
    """Return torch's metadata for the tensors in a folder's files, by name."""
    with _unwrap_errors():
        stored: Mapping[str, Any] = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    return stored


def read_shards(folder: Path, tensors: Mapping[str, Tensor], *, no_dist: bool) -> None:
    """Fill the tensors from a checkpoint of any layout: all ranks read together or, if `no_dist` is True,
    this process reads alone.

    Raises:
        Exception: the error of the first rank that failed.
    """
    with _unwrap_errors():
        load(dict(tensors), storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=no_dist)


@contextlib.contextmanager
def _unwrap_errors() -> Iterator[None]:
    """Silence torch's warnings about single-process use, and replace a CheckpointException with its cause."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except CheckpointException as error:
            cause, _ = next(iter(error.failures.values()))
            if not isinstance(cause, Exception):  # another rank's interrupt must not interrupt this one
                cause = RuntimeError(repr(cause))
            raise cause from None
