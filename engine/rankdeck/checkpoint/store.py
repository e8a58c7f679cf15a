"""Checkpoints that any strategy can go on from.

    checkpoints/<step>/
      shard-*.safetensors            weights and optimizer state under original names, each piece once
      rank-<r>.random.safetensors    random states of one rank, and what its strategy keeps beside weights
      progress.json                  the step, and who wrote it
      COMMIT                         see checkpoint_files.py

Sharded and replicated state is written and read by torch.distributed.checkpoint in safetensors, so that
another strategy or number of devices reads what it needs. Nothing is unpickled. Read training_state.py for
what is in it and training/loop.py for when.
"""

from __future__ import annotations

import contextlib
import shutil
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import safetensors
import safetensors.torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_sharded
from torch.distributed.checkpoint.state_dict_saver import save as save_sharded
from torch.optim import Optimizer

from rankdeck.base.errors import ConfigError
from rankdeck.base.files import sync_to_disk, write_whole
from rankdeck.checkpoint.rng import put_random_states, random_states
from rankdeck.checkpoint.training_state import Blank, blank_model, blank_state, put_state, state_of
from rankdeck.checkpoint_files import (
    COMMIT,
    PROGRESS,
    Checkpoint,
    CheckpointError,
    Progress,
    checksum,
    list_checkpoints,
    write_commit,
)

_LONGEST = 300
_Files = dict[str, tuple[int, str]]
"""Name -> (bytes, checksum)."""


class CheckpointStore:
    """Writes the checkpoints of a run, by all ranks together, and keeps the newest `keep` of them."""

    def __init__(self, folder: Path, *, rank: int, world_size: int, layout: str, keep: int) -> None:
        self.folder = folder
        self._rank = rank
        self._world_size = world_size
        self._layout = layout
        self._keep = keep

    def save(self, step: int, module: nn.Module, optimizer: Optimizer, extra: Mapping[str, Tensor]) -> int:
        """Write the state after `step`; bytes of the checkpoint. Every rank calls it at the same step.

        Raises:
            CheckpointError: it could not be written, on all ranks alike; nothing of it is left.
        """
        target = self.folder / str(step)
        failure: str | None = None
        files: _Files = {}
        values: dict[str, Any] = {}
        self._begin(target)
        try:
            files, values = self._write(target, module, optimizer, extra)
        except (Exception, CheckpointException) as error:  # a full disk shows as several kinds
            failure = _reason(error)
        answers = self._gather((failure, files, values))
        failures = [answer[0] for answer in answers if answer[0] is not None]
        num_bytes = 0
        if not failures:
            files = {name: entry for answer in answers for name, entry in answer[1].items()}
            values = {name: value for answer in answers for name, value in answer[2].items()}
            num_bytes = sum(entry[0] for entry in files.values())
            progress = Progress(step, self._layout, self._world_size, values)
            done = self._gather(self._commit(target, files, progress))
            failures = [text for text in done if text is not None]
        if failures:
            if self._rank == 0:
                shutil.rmtree(target, ignore_errors=True)
            raise CheckpointError(
                f"The checkpoint of step {step} could not be written: {failures[0]}.",
                code="checkpoint-not-saved",
                advice="Training goes on; the last good checkpoint stays. If the disk is full, free space.",
            )
        self._prune()
        return num_bytes

    def _begin(self, target: Path) -> None:
        if self._rank == 0:
            shutil.rmtree(target, ignore_errors=True)
            try:
                target.mkdir(parents=True)
            except OSError:
                pass  # writing into it tells why
        self._barrier()

    def _write(
        self, target: Path, module: nn.Module, optimizer: Optimizer, extra: Mapping[str, Tensor]
    ) -> tuple[_Files, dict[str, Any]]:
        """This rank's files, on the disk, and its values that are no tensors."""
        tensors, values = state_of(module, optimizer)
        with _quiet():
            save_sharded(
                tensors,
                storage_writer=HuggingFaceStorageWriter(str(target), save_distributed=True),
                no_dist=self._world_size == 1,
            )
        random_file = target / f"rank-{self._rank}.random.safetensors"
        states = safetensors.torch.save({**random_states(), **_named("extra.", extra)})
        write_whole(random_file, states, sync=True, make_folder=False)
        mine = [random_file, *target.glob(f"shard-{self._rank + 1:05d}-*.safetensors")]
        for file in mine:
            sync_to_disk(file)
        return {file.name: (file.stat().st_size, checksum(file)) for file in mine}, values

    def _commit(self, target: Path, files: _Files, progress: Progress) -> str | None:
        """Rank 0 writes progress and COMMIT; why it could not, else None."""
        if self._rank != 0:
            return None
        file = target / PROGRESS
        try:
            write_whole(file, msgspec.json.encode(progress), sync=True, make_folder=False)
            write_commit(target, {**files, PROGRESS: (file.stat().st_size, checksum(file))})
        except OSError as error:
            return _reason(error)
        return None

    def _prune(self) -> None:
        if self._rank == 0:
            for old in list_checkpoints(self.folder)[self._keep :]:
                # COMMIT goes first: half a checkpoint must not look like one.
                (old.path / COMMIT).unlink(missing_ok=True)
                shutil.rmtree(old.path, ignore_errors=True)

    def _gather(self, answer: Any) -> list[Any]:
        if self._world_size == 1:
            return [answer]
        answers: list[Any] = [None] * self._world_size
        dist.all_gather_object(answers, answer)
        return answers

    def _barrier(self) -> None:
        if self._world_size > 1:
            dist.barrier()

    def restore(self, checkpoint: Checkpoint, module: nn.Module, optimizer: Optimizer) -> Restored:
        """Weights and optimizer state into what this rank holds, whoever wrote them.

        Raises:
            CheckpointError: the checkpoint does not fit the model or the optimizer.
        """
        progress = checkpoint.progress()
        with _fitting(checkpoint):
            blank = self._read(checkpoint, module, optimizer)
            put_state(module, optimizer, blank, progress.values)
        same = progress.layout == self._layout and progress.world_size == self._world_size
        file = checkpoint.path / f"rank-{self._rank}.random.safetensors"
        states = safetensors.torch.load_file(file) if same and file.is_file() else None
        return Restored(progress.step, states)

    def _read(self, checkpoint: Checkpoint, module: nn.Module, optimizer: Optimizer) -> Blank:
        """What this rank needs of what is there."""
        reader = HuggingFaceStorageReader(str(checkpoint.path))
        with _quiet():
            there = reader.read_metadata().state_dict_metadata
            blank = blank_state(module, optimizer, there)
            load_sharded(blank.tensors, storage_reader=reader, no_dist=self._world_size == 1)
        return blank


def read_weights(checkpoint: Checkpoint, module: nn.Module) -> None:
    """The weights and buffers of a checkpoint into a whole model, by this process alone.

    Raises:
        ConfigError: the checkpoint is of another model.
    """
    reader = HuggingFaceStorageReader(str(checkpoint.path))
    with _fitting(checkpoint), _quiet():
        blank = blank_model(module)
        there = {name for name in reader.read_metadata().state_dict_metadata if name.startswith("model.")}
        if there - blank.keys():
            raise ValueError(f"it has {min(there - blank.keys())}, and the model has not")
        load_sharded(blank, storage_reader=reader, no_dist=True)


@contextlib.contextmanager
def _fitting(checkpoint: Checkpoint) -> Iterator[None]:
    """Whatever fails inside means that the checkpoint is of something else."""
    try:
        yield
    except (Exception, CheckpointException) as error:
        raise ConfigError(
            f"The checkpoint of step {checkpoint.step} does not fit this model or optimizer: "
            f"{_reason(error)}.",
            code="checkpoint-mismatch",
            advice="Use the model and optimizer that wrote it.",
        ) from None


@dataclass(frozen=True)
class Restored:
    """What `restore` found: the step, and this rank's own states where the layout is the same."""

    step: int
    _states: dict[str, Tensor] | None

    @property
    def same_layout(self) -> bool:
        return self._states is not None

    def extra(self) -> dict[str, Tensor]:
        """What the strategy had kept beside weights."""
        return {
            name[6:]: tensor for name, tensor in (self._states or {}).items() if name.startswith("extra.")
        }

    def put_random_states(self) -> None:
        """Call it after the loader's iterator exists: making one draws."""
        if self._states is not None:
            put_random_states(self._states)


def _named(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}{name}": tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}


def _reason(error: BaseException) -> str:
    """The innermost cause on one line: torch wraps what went wrong in a tree of its own."""
    failures = getattr(error, "failures", None)
    if failures:
        inner = next(iter(failures.values()))
        error = inner[0] if isinstance(inner, tuple) else inner
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).split()).rstrip(".")
    return f"{type(error).__name__}: {text[:_LONGEST]}" if text else type(error).__name__


class _quiet(warnings.catch_warnings):  # noqa: N801 - reads as a verb where it is used
    """torch.distributed.checkpoint warns of what is meant here: one process, no group."""

    def __enter__(self) -> Any:
        caught = super().__enter__()
        warnings.simplefilter("ignore")
        return caught
