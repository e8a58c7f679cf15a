"""Checkpoints that any strategy can go on from.

    checkpoints/<step>/
      shard-*.safetensors            weights and optimizer state under original names, each piece once
      rank-<r>.random.safetensors    random states of one rank, and what its strategy keeps beside weights
      progress.json                  the step, and who wrote it
      COMMIT                         see checkpoint_files.py

Sharded and replicated state is written and read by torch.distributed.checkpoint in safetensors, so that
another strategy or number of devices reads what it needs. Nothing is unpickled. Read train.py for when.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Mapping
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
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load as load_sharded
from torch.distributed.checkpoint.state_dict_saver import save as save_sharded
from torch.optim import Optimizer

from rankdeck.checkpoint_files import (
    COMMIT,
    PROGRESS,
    Checkpoint,
    CheckpointError,
    Progress,
    checksum,
    list_checkpoints,
    sync,
    write_commit,
    write_file,
)
from rankdeck.errors import ConfigError
from rankdeck.random_states import put_random_states, random_states

_FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


class Keeper:
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
        own: dict[str, tuple[int, str]] = {}
        self._begin(target)
        try:
            own = self._write(target, step, module, optimizer, extra)
        except (Exception, CheckpointException) as error:  # a full disk shows as several kinds
            failure = _reason(error)
        answers = self._gather((failure, own))
        failures = [answer[0] for answer in answers if answer[0] is not None]
        num_bytes = 0
        if not failures:
            files = {name: entry for answer in answers for name, entry in answer[1].items()}
            num_bytes = sum(entry[0] for entry in files.values())
            failures = [text for text in self._gather(self._commit(target, files)) if text is not None]
        if failures:
            if self._rank == 0:
                shutil.rmtree(target, ignore_errors=True)
            raise CheckpointError(
                f"The checkpoint of step {step} could not be written: {failures[0]}.",
                code="checkpoint-not-saved",
                advice="Free space on the disk. Training goes on; the last good checkpoint stays.",
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
        self, target: Path, step: int, module: nn.Module, optimizer: Optimizer, extra: Mapping[str, Tensor]
    ) -> dict[str, tuple[int, str]]:
        """This rank's files, on the disk; name -> (bytes, checksum)."""
        tensors, values = _state(module, optimizer)
        with _quiet():
            save_sharded(
                tensors,
                storage_writer=HuggingFaceStorageWriter(str(target), save_distributed=True),
                no_dist=self._world_size == 1,
            )
        random_file = target / f"rank-{self._rank}.random.safetensors"
        write_file(random_file, safetensors.torch.save({**random_states(), **_named("extra.", extra)}))
        mine = [random_file, *target.glob(f"shard-{self._rank + 1:05d}-*.safetensors")]
        if self._rank == 0:
            progress = Progress(step, self._layout, self._world_size, values)
            write_file(target / PROGRESS, msgspec.json.encode(progress))
            mine.append(target / PROGRESS)
        for file in mine:
            sync(file)
        return {file.name: (file.stat().st_size, checksum(file)) for file in mine}

    def _commit(self, target: Path, files: dict[str, tuple[int, str]]) -> str | None:
        """Rank 0 writes COMMIT; why it could not, else None."""
        if self._rank != 0:
            return None
        try:
            write_commit(target, files)
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
        tensors, _ = _state(module, optimizer)
        try:
            with _quiet():
                load_sharded(
                    tensors,
                    storage_reader=HuggingFaceStorageReader(str(checkpoint.path)),
                    no_dist=self._world_size == 1,
                )
        except (Exception, CheckpointException) as error:
            raise ConfigError(
                f"The checkpoint of step {progress.step} does not fit this model or optimizer: "
                f"{_reason(error)}.",
                code="checkpoint-mismatch",
                advice="Resume with the model and optimizer that wrote it.",
            ) from error
        _put_state(module, optimizer, tensors, progress.values)
        same = progress.layout == self._layout and progress.world_size == self._world_size
        file = checkpoint.path / f"rank-{self._rank}.random.safetensors"
        states = safetensors.torch.load_file(file) if same and file.is_file() else None
        return Restored(progress.step, states)


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


def _state(module: nn.Module, optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by name, without 0-dim ones (safetensors shards have dims), and optimizer values that are no
    tensors.
    """
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for name, tensor in _model_state(module).items():
        tensors[f"model.{name}"] = _with_dim(tensor)
    for name, value in _optimizer_state(module, optimizer).items():
        if not name.startswith("state."):
            continue  # rates and the like come from the configuration, which a resume may change
        if isinstance(value, Tensor):
            tensors[f"optimizer.{name}"] = _with_dim(value)
        elif value is not None:
            values[name] = value
    return tensors, values


def _model_state(module: nn.Module) -> dict[str, Tensor]:
    found: dict[str, Any] = get_model_state_dict(module)
    return found


def _optimizer_state(module: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Flat: "state.<parameter>.<name>" and "param_groups....". A fresh optimizer's state is made first."""
    found: dict[str, Any] = get_optimizer_state_dict(module, optimizer, options=_FLAT)
    return found


def _with_dim(tensor: Tensor) -> Tensor:
    return tensor if tensor.dim() else tensor.reshape(1)


def _put_state(
    module: nn.Module, optimizer: Optimizer, tensors: Mapping[str, Tensor], values: Mapping[str, Any]
) -> None:
    model = _model_state(module)
    set_model_state_dict(
        module, {name: tensors[f"model.{name}"].reshape(tensor.shape) for name, tensor in model.items()}
    )
    flat = _optimizer_state(module, optimizer)
    for name, old in flat.items():
        if isinstance(old, Tensor) and f"optimizer.{name}" in tensors:
            new = tensors[f"optimizer.{name}"]
            flat[name] = new if new.dim() == old.dim() else new.reshape(old.shape)
        elif name in values:
            flat[name] = values[name]
    set_optimizer_state_dict(module, optimizer, flat, options=_FLAT)


def _named(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}{name}": tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}


def _reason(error: BaseException) -> str:
    """The first line of the innermost cause: torch wraps what went wrong in a tree of its own."""
    failures = getattr(error, "failures", None)
    if failures:
        inner = next(iter(failures.values()))
        error = inner[0] if isinstance(inner, tuple) else inner
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__


class _quiet(warnings.catch_warnings):  # noqa: N801 - reads as a verb where it is used
    """torch.distributed.checkpoint warns of what is meant here: one process, no group."""

    def __enter__(self) -> Any:
        caught = super().__enter__()
        warnings.simplefilter("ignore")
        return caught
