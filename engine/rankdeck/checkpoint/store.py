"""Write and restore checkpoints that any strategy can resume from.

    checkpoints/<step>/
      shard-*.safetensors            weights and optimizer state under original names, each piece once
      rank-<r>.random.safetensors    random states, per-rank tensors and the strategy's extra tensors, by rank
      progress.json                  the step, the layout of the ranks, and all values that are not tensors
      COMMIT                         see checkpoint_files.py

torch.distributed.checkpoint writes and reads sharded and replicated state in safetensors, so a run with
another strategy or number of devices can read the parts that it needs. Nothing is unpickled.
training_state.py defines what a checkpoint contains, and training/loop.py when one is written.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import safetensors
import safetensors.torch
import torch.distributed as dist
from torch import Tensor, nn

from rankdeck.base.errors import ConfigError
from rankdeck.base.files import is_regular, replace_file, sync_to_disk, wait_for_folder
from rankdeck.base.phrases import phrase
from rankdeck.base.units import format_bytes
from rankdeck.checkpoint.failures import (
    FolderMissingError,
    SaveFailure,
    classify_failure,
    failure_text,
    save_error,
)
from rankdeck.checkpoint.json_values import decode_complex, encode_complex, read_views, tensor_metadata
from rankdeck.checkpoint.replication import HostLeaders
from rankdeck.checkpoint.training_state import (
    LoadTargets,
    RankSnapshot,
    TrainingState,
    capture_state,
    format_name,
    load_random_states,
    load_state,
    load_weights,
    merge_values,
    model_targets,
    one_element_tensors,
    random_states,
    state_targets,
    unshare_storages,
)
from rankdeck.checkpoint_files import (
    PROGRESS,
    Checkpoint,
    CheckpointError,
    Progress,
    file_checksum,
    list_checkpoints,
    list_unfinished,
    remove_checkpoint,
    write_commit,
)

_T = TypeVar("_T")
_RANK_PREFIX, _EXTRA_PREFIX = "own.", "extra."
"""Name prefixes in a rank's file: for its per-rank tensors, and for its strategy's extra tensors."""
_FileList = dict[str, tuple[int, str]]  # file name -> (bytes, checksum)


@dataclass
class _WrittenPart:
    """The files that one rank has written, and the rank's values that are not tensors."""

    files: _FileList
    json_values: dict[str, object]
    remote_values: dict[str, object]
    unsaved: list[str]


class CheckpointStore:
    """Store of a run's checkpoints, written by all ranks together; it keeps the newest `keep` checkpoints.

    On each host one rank, the host leader, creates and removes folders and commits checkpoints. `hosts` is
    the group of all host leaders, passed only to host leaders in a run across several hosts.
    """

    def __init__(
        self,
        folder: Path,
        *,
        rank: int,
        world_size: int,
        layout: str,
        keep: int,
        is_host_leader: bool | None = None,
        hosts: HostLeaders | None = None,
    ) -> None:
        self.folder = folder
        self._is_host_leader = rank == 0 if is_host_leader is None else is_host_leader
        self._hosts = hosts
        self._rank = rank
        self._world_size = world_size
        self.layout = layout
        self._keep = keep

    def save(self, step: int, state: TrainingState, extra: Mapping[str, Tensor]) -> int:
        """Write the state after `step`; return the number of bytes. All ranks call this at the same step.

        Raises: CheckpointError on all ranks if the checkpoint could not be written; no part of it remains.
        """
        target = self.folder / str(step)
        try:
            num_bytes, _ = self._save(target, step, state, extra, dry=False)
        except FolderMissingError:  # the run was moved meanwhile; its old path leads to it by now
            num_bytes, _ = self._save(target, step, state, extra, dry=False)
        self._prune()
        return num_bytes

    def dry_run(self, step: int, state: TrainingState, extra: Mapping[str, Tensor]) -> list[str]:
        """Write a checkpoint with one number per tensor and delete it again, so that errors are found early;
        return the names of the state entries that no checkpoint will contain.

        Raises: CheckpointError as for `save`, and if the disk has no space for a complete checkpoint.
        """
        target = self.folder / ".dry"
        _, lost = self._save(target, step, state, extra, dry=True)
        if self._is_host_leader:
            remove_checkpoint(target)
        return lost

    def _save(
        self, target: Path, step: int, state: TrainingState, extra: Mapping[str, Tensor], *, dry: bool
    ) -> tuple[int, list[str]]:
        """Write a checkpoint (one number per tensor if `dry` is True); return its size in bytes and the names
        of the state entries that it does not contain. Raises: CheckpointError, as for `save`."""
        wait_for_folder(self.folder.parent)  # it may just be being moved
        snapshots: list[RankSnapshot] = []

        def take() -> dict[str, int]:
            if not dry:
                import rankdeck.checkpoint.sharded  # noqa: F401 - this import may fail too, on one rank alone
            snapshots.append(capture_state(state))
            return _sizes(snapshots[0], self._rank) if dry else {}

        error_step = None if dry else step
        # Before anything is written: a rank that fails alone would leave the others in mid-write.
        sizes = self._run_on_all_ranks(error_step, take)
        (saved,) = snapshots
        self._run_on_all_ranks(error_step, lambda: self._make_folder(target))
        try:
            if dry:
                self._run_on_all_ranks(error_step, lambda: self._check_disk_space(sizes))
            written = self._run_on_all_ranks(error_step, lambda: self._write(target, saved, extra, dry=dry))
            files, progress = self._merge(step, written)
            if not dry:
                self._run_on_all_ranks(error_step, lambda: self._distribute(target, files))
            self._run_on_all_ranks(error_step, lambda: self._commit(target, files, progress))
        except CheckpointError:
            if self._is_host_leader:
                remove_checkpoint(target)
            raise
        return sum(entry[0] for entry in files.values()), progress.lost

    def _run_on_all_ranks(self, step: int | None, act: Callable[[], _T]) -> list[_T]:
        """Call `act`; return all ranks' results. Raises: CheckpointError (about `step`) if a rank failed."""
        failure: SaveFailure | None = None
        answer: Any = None
        try:
            answer = act()
        except Exception as error:  # a full disk raises several kinds of exceptions
            failure = classify_failure(error)
        answers = self._gather((failure, answer))
        failures = [failure for failure, _ in answers if failure is not None]
        if failures:
            # A missing folder takes precedence: `save` tries again after it.
            raise save_error(step, max(failures, key=attrgetter("is_missing")))
        return [answer for _, answer in answers]

    def _merge(self, step: int, written: Sequence[_WrittenPart]) -> tuple[_FileList, Progress]:
        files = {name: entry for part in written for name, entry in part.files.items()}
        values = merge_values([(part.json_values, part.remote_values) for part in written])
        per_rank = [
            {
                name: value
                for name, value in (part.remote_values | part.json_values).items()
                if value != values[name]
            }
            for part in written
        ]
        lost = sorted({name for part in written for name in part.unsaved})
        return files, Progress(
            step, self.layout, self._world_size, values, per_rank, lost, has_values_beside=True
        )

    def _make_folder(self, target: Path) -> None:
        if self._is_host_leader:
            self.folder.mkdir(exist_ok=True)  # no parents: if the run's folder is gone, it stays gone
            remove_checkpoint(target)
            if target.is_symlink():
                raise OSError(errno.ELOOP, phrase("{path} is a symbolic link", path=target))
            target.mkdir(exist_ok=True)

    def _check_disk_space(self, sizes: Sequence[dict[str, int]]) -> None:
        """Check that the disk has space for all ranks' tensors. Raises: OSError, on host leaders."""
        needed = sum({name: size for rank_sizes in sizes for name, size in rank_sizes.items()}.values())
        free = shutil.disk_usage(self.folder).free
        if self._is_host_leader and needed > free:
            needs, has = format_bytes(needed), format_bytes(free)
            message = phrase("it needs {needed}, but the disk has only {free} free", needed=needs, free=has)
            raise OSError(errno.ENOSPC, message)

    def _write(
        self, target: Path, saved: RankSnapshot, extra: Mapping[str, Tensor], *, dry: bool
    ) -> _WrittenPart:
        """Write this rank's files (one number per tensor if `dry`); return them and the non-tensor values."""
        extra, per_rank = (
            (one_element_tensors(extra), one_element_tensors(saved.per_rank))
            if dry
            else (extra, saved.per_rank)
        )
        if dry:  # as torch.distributed.checkpoint writes tensors, without importing it
            shard = safetensors.torch.save(encode_complex(one_element_tensors(saved.tensors)))
            replace_file(target / f"shard-{self._rank + 1:05d}-dry.safetensors", shard)
        else:
            from rankdeck.checkpoint.sharded import write_shards

            tensors = encode_complex(unshare_storages(saved.tensors))
            write_shards(target, tensors, no_dist=self._world_size == 1)
        # Ranks may have different tensors of one name; torch.distributed.checkpoint would keep only one.
        random_file = target / _random_file(self._rank)
        states = random_states() | _add_prefix(_EXTRA_PREFIX, extra) | _add_prefix(_RANK_PREFIX, per_rank)
        replace_file(random_file, safetensors.torch.save(encode_complex(states)), sync=True)
        mine = [random_file, *target.glob(f"shard-{self._rank + 1:05d}-*.safetensors")]
        for file in mine:
            sync_to_disk(file)
        files = {file.name: (file.stat().st_size, file_checksum(file)) for file in mine}
        return _WrittenPart(files, saved.json_values, saved.remote_values, saved.unsaved)

    def _distribute(self, target: Path, files: _FileList) -> None:
        """Copy to each host the files that the ranks of other hosts have written."""
        if self._hosts is not None:
            self._hosts.distribute(target, files, lambda name: (target / name).exists())

    def _commit(self, target: Path, files: _FileList, progress: Progress) -> None:
        """Write progress.json and COMMIT."""
        if self._is_host_leader:
            file = target / PROGRESS
            replace_file(file, msgspec.json.encode(progress), sync=True)
            write_commit(target, {**files, PROGRESS: (file.stat().st_size, file_checksum(file))})

    def _prune(self) -> None:
        if self._is_host_leader:
            for old in list_checkpoints(self.folder)[self._keep :]:
                remove_checkpoint(old.path)
            # Left by processes that were killed while they wrote or removed them.
            for half in list_unfinished(self.folder):
                remove_checkpoint(half)

    def _gather(self, answer: Any) -> list[Any]:
        if self._world_size == 1:
            return [answer]
        answers: list[Any] = [None] * self._world_size
        dist.all_gather_object(answers, answer)
        return answers

    def restore(self, checkpoint: Checkpoint, state: TrainingState) -> RestoreResult:
        """Load a checkpoint's weights and optimizer state, whatever its layout, into this rank's state.

        Raises: ConfigError if the checkpoint does not fit the model or the optimizer.
        """
        import rankdeck.checkpoint.sharded  # noqa: F401 - a failure here is not the checkpoint's fault

        progress = checkpoint.progress()
        same = progress.layout == self.layout and progress.world_size == self._world_size
        with _mismatch_errors(checkpoint):
            values = progress.values | (progress.own[self._rank] if same and progress.own else {})
            blank = self._read(checkpoint, state)
            per_rank = _read_rank_tensors(
                checkpoint, _RANK_PREFIX, [self._rank] if same else range(progress.world_size)
            )
            if not same:  # only the layout that wrote a slice knows its position
                blank.unexpected |= {format_name(name) for name in per_rank if name.startswith("slice.")}
                per_rank = {
                    name: tensor for name, tensor in per_rank.items() if not name.startswith("slice.")
                }
            missing = load_state(state, blank, values, per_rank)
            extra = _read_rank_tensors(checkpoint, _EXTRA_PREFIX, [self._rank if same else 0])
            file = checkpoint.path / _random_file(self._rank)
            states = safetensors.torch.load_file(file) if same and is_regular(file) else None
        if not progress.has_values_beside and type(state.optimizer).__module__.split(".")[0] != "torch":
            missing.append("values in the optimizer's param_groups, which older versions did not save")
        answers = self._gather([*progress.lost, *missing])
        missing = sorted({name for answer in answers for name in answer})
        return RestoreResult(progress.step, missing, extra, checkpoint, states)

    def _read(self, checkpoint: Checkpoint, state: TrainingState) -> LoadTargets:
        """Read the tensors that this rank needs."""
        from rankdeck.checkpoint.sharded import read_shards, stored_tensors

        stored = stored_tensors(checkpoint.path)
        blank = state_targets(state, tensor_metadata(stored))
        tensors = read_views(blank.tensors, stored)
        read_shards(checkpoint.path, tensors, no_dist=self._world_size == 1)
        return blank


def _read_rank_tensors(checkpoint: Checkpoint, prefix: str, ranks: Iterable[int]) -> dict[str, Tensor]:
    """Read the tensors whose names start with `prefix` from the ranks' files, and return them under the names
    without the prefix. If several files contain the same name, the first rank's tensor is used."""
    tensors: dict[str, Tensor] = {}
    for file in (checkpoint.path / _random_file(rank) for rank in ranks):
        if is_regular(file):
            with safetensors.safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - it is no dictionary
                    if name.startswith(prefix) and name.removeprefix(prefix) not in tensors:
                        tensors[name.removeprefix(prefix)] = opened.get_tensor(name)
    return decode_complex(tensors)


def read_weights(checkpoint: Checkpoint, module: nn.Module) -> None:
    """Load a checkpoint's weights, buffers and extra state into an unsharded model, in this process alone.

    Raises: ConfigError if the checkpoint is of a different model.
    """
    from rankdeck.checkpoint.sharded import read_shards, stored_tensors

    with _mismatch_errors(checkpoint):
        stored = stored_tensors(checkpoint.path)
        there = tensor_metadata(stored)
        blank = model_targets(module, there)
        unknown = [name for name in there if name.startswith("model.") and name not in blank]
        if unknown:
            raise ValueError(f"it has {min(unknown)}, but the model does not")
        read_shards(checkpoint.path, read_views(blank, stored), no_dist=True)
        load_weights(module, blank, checkpoint.progress().values)


@contextlib.contextmanager
def _mismatch_errors(checkpoint: Checkpoint) -> Iterator[None]:
    """Turn errors in the block into a ConfigError about a checkpoint of another model or optimizer."""
    try:
        yield
    except Exception as error:
        raise ConfigError(
            phrase(
                "The checkpoint of step {step} does not match this model or optimizer: {why}.",
                step=checkpoint.step,
                why=failure_text(error),
            ),
            code="checkpoint-mismatch",
            advice=phrase("Use the model and optimizer with which the checkpoint was saved."),
        ) from None


@dataclass(frozen=True)
class RestoreResult:
    """Result of `restore`.

    `missing` names the state that keeps its initial value. `extra` has the strategy's extra tensors: this
    rank's or, if the checkpoint has another layout of ranks, rank 0's (random states are then not restored).
    """

    step: int
    missing: list[str]
    extra: dict[str, Tensor]
    _checkpoint: Checkpoint
    _states: dict[str, Tensor] | None

    @property
    def same_layout(self) -> bool:
        return self._states is not None

    def put_random_states(self) -> None:
        """Restore the random states. Call this after creating the loader's iterator, because its creation
        draws a random number. Raises: ConfigError if the states do not match this run."""
        if self._states is not None:
            with _mismatch_errors(self._checkpoint):
                load_random_states(self._states)


def _add_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}{name}": tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}


def _sizes(saved: RankSnapshot, rank: int) -> dict[str, int]:
    """Return name -> bytes for all tensors; names of this rank's own tensors start with the rank."""
    sizes = {f"{rank} {name}": tensor.nbytes for name, tensor in saved.per_rank.items()}
    return sizes | {name: tensor.numel() * tensor.element_size() for name, tensor in saved.tensors.items()}


def _random_file(rank: int) -> str:
    return f"rank-{rank}.random.safetensors"
