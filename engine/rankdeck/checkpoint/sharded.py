"""State of all ranks in files of shards, by torch.distributed.checkpoint.

Importing that takes half a second, and most runs write no checkpoint: store.py imports this where it has to.
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
    """Makes no folder: where the run has just been moved away, that would take its first name."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan


def write_shards(folder: Path, tensors: Mapping[str, Tensor], *, no_dist: bool) -> None:
    """Write each tensor once, by all ranks together or by this one `no_dist`.

    Raises:
        Exception: what failed on the first rank that failed.
    """
    with _unwrap_errors():
        save(dict(tensors), storage_writer=_ShardWriter(str(folder), save_distributed=True), no_dist=no_dist)


def stored_tensors(folder: Path) -> Mapping[str, Any]:
    """What is known of the tensors in the files of a folder, by name."""
    with _unwrap_errors():
        stored: Mapping[str, Any] = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    return stored


def read_shards(folder: Path, tensors: Mapping[str, Tensor], *, no_dist: bool) -> None:
    """Fill the tensors, whoever wrote them, by all ranks together or by this one `no_dist`.

    Raises:
        Exception: what failed on the first rank that failed.
    """
    with _unwrap_errors():
        load(dict(tensors), storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=no_dist)


@contextlib.contextmanager
def _unwrap_errors() -> Iterator[None]:
    """Without torch's warnings of what is meant here (one process, no group), and with the error itself in
    place of torch's tree of errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except CheckpointException as error:
            cause, _ = next(iter(error.failures.values()))
            if not isinstance(cause, Exception):  # a rank that was interrupted interrupts no other
                cause = RuntimeError(repr(cause))
            raise cause from None
