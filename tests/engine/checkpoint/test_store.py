"""A checkpoint is whole or does not exist, and what was damaged is never used."""

from __future__ import annotations

import contextlib
import errno
import random
import resource
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from rankdeck.base.errors import ConfigError
from rankdeck.checkpoint.store import CheckpointStore, read_weights
from rankdeck.checkpoint.training_state import TrainingState
from rankdeck.checkpoint_files import (
    COMMIT,
    PROGRESS,
    CheckpointError,
    file_checksum,
    list_checkpoints,
    newest_intact,
    write_commit,
)


def make_store(folder: Path, *, keep: int = 3, layout: str = "single") -> CheckpointStore:
    return CheckpointStore(folder, rank=0, world_size=1, layout=layout, keep=keep)


def train_model(num_steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 50), nn.BatchNorm1d(50), nn.Linear(50, 30))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(num_steps):
        run_step(model, optimizer)
    return model, optimizer


def run_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    optimizer.zero_grad()
    loss = model(torch.randn(16, 40)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def test_training_resumes_bitwise(tmp_path: Path) -> None:
    model, optimizer = train_model(3)
    make_store(tmp_path).save(3, TrainingState(model, optimizer), {"mine": torch.arange(3)})
    expected = [run_step(model, optimizer) for _ in range(3)]
    draws = (random.random(), float(np.random.rand()))
    fresh, fresh_optimizer = train_model(0)
    checkpoint, complaints = newest_intact(tmp_path)
    assert checkpoint is not None and not complaints
    restored = make_store(tmp_path).restore(checkpoint, TrainingState(fresh, fresh_optimizer))
    assert restored.step == 3 and torch.equal(restored.extra["mine"], torch.arange(3))
    torch.rand(5)
    restored.put_random_states()
    assert [run_step(fresh, fresh_optimizer) for _ in range(3)] == expected
    assert (random.random(), float(np.random.rand())) == draws


def test_without_random_states_the_losses_differ(tmp_path: Path) -> None:
    model, optimizer = train_model(3)
    make_store(tmp_path).save(3, TrainingState(model, optimizer), {})
    expected = run_step(model, optimizer)
    fresh, fresh_optimizer = train_model(0)
    checkpoint, _ = newest_intact(tmp_path)
    assert checkpoint is not None
    make_store(tmp_path).restore(checkpoint, TrainingState(fresh, fresh_optimizer))
    assert run_step(fresh, fresh_optimizer) != expected


def test_another_layout_gets_weights_but_no_random_states(tmp_path: Path) -> None:
    model, optimizer = train_model(2)
    make_store(tmp_path).save(2, TrainingState(model, optimizer), {})
    fresh, fresh_optimizer = train_model(0)
    checkpoint, _ = newest_intact(tmp_path)
    assert checkpoint is not None
    restored = make_store(tmp_path, layout="other").restore(checkpoint, TrainingState(fresh, fresh_optimizer))
    assert not restored.same_layout
    assert all(
        torch.equal(a, b)
        for a, b in zip(model.state_dict().values(), fresh.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize("seed", range(50))
def test_damage_falls_back_to_the_previous_checkpoint(tmp_path: Path, seed: int) -> None:
    model, optimizer = train_model(1)
    make_store(tmp_path).save(1, TrainingState(model, optimizer), {})
    make_store(tmp_path).save(2, TrainingState(model, optimizer), {})
    damage_file(random.Random(seed), tmp_path / "2")
    checkpoint, complaints = newest_intact(tmp_path)
    assert checkpoint is not None and checkpoint.step == 1
    # A torn COMMIT may leave nothing that claims to be a checkpoint; everything else is said.
    assert complaints or not (tmp_path / "2" / COMMIT).exists()


def damage_file(choose: random.Random, folder: Path) -> None:
    """Truncate a file, or zero or flip a block of it, so that at least one byte changes."""
    file = choose.choice(sorted(folder.iterdir()))
    data = bytearray(file.read_bytes())
    before = bytes(data)
    while bytes(data) == before:
        start = choose.randrange(len(data))
        end = min(len(data), start + choose.choice([1, 64, 4096]))
        how = choose.choice(["truncate", "zero", "flip"])
        if how == "truncate":
            del data[start:]
        elif how == "zero":
            data[start:end] = bytes(end - start)
        else:
            data[start] ^= 1 << choose.randrange(8)
    file.write_bytes(data)


def test_a_folder_without_a_commit_is_ignored(tmp_path: Path) -> None:
    model, optimizer = train_model(1)
    make_store(tmp_path).save(1, TrainingState(model, optimizer), {})
    make_store(tmp_path).save(2, TrainingState(model, optimizer), {})
    (tmp_path / "2" / COMMIT).unlink()
    assert [checkpoint.step for checkpoint in list_checkpoints(tmp_path)] == [1]


def test_a_folder_named_for_another_step_is_damaged(tmp_path: Path) -> None:
    state = TrainingState(*train_model(3))
    make_store(tmp_path).save(3, state, {})
    shutil.copytree(tmp_path / "3", tmp_path / "99999999")
    (tmp_path / ("9" * 200)).mkdir()
    newest, complaints = newest_intact(tmp_path)
    assert newest is not None and newest.step == 3
    assert complaints == ["The checkpoint of step 99999999 is damaged: it contains the state of step 3."]


def test_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    model, optimizer = train_model(1)
    for step in (5, 10, 15, 20):
        make_store(tmp_path, keep=2).save(step, TrainingState(model, optimizer), {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["15", "20"]


def test_a_failed_save_raises_and_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    model, optimizer = train_model(1)
    make_store(tmp_path).save(1, TrainingState(model, optimizer), {})
    with (
        limit_file_size(4096),
        pytest.raises(CheckpointError, match="step 2 could not be written: File too large"),
    ):
        make_store(tmp_path).save(2, TrainingState(model, optimizer), {})
    assert [path.name for path in tmp_path.iterdir()] == ["1"]
    assert newest_intact(tmp_path)[0] is not None


@contextlib.contextmanager
def limit_file_size(num_bytes: int) -> Iterator[None]:
    """No file may grow beyond this: what a full disk does to a writer, in this process only."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_stage_without_its_batch_norm_loads_its_weights(tmp_path: Path) -> None:
    """Where weights and buffers of other stages are dropped, torch must not add what old versions lack."""
    model, optimizer = train_model(2)
    make_store(tmp_path).save(2, TrainingState(model, optimizer), {})
    (checkpoint,) = list_checkpoints(tmp_path)
    stage, _ = train_model(0)
    for tensors in (stage[1]._parameters, stage[1]._buffers):
        tensors.update(dict.fromkeys(tensors))
    make_store(tmp_path).restore(
        checkpoint, TrainingState(stage, torch.optim.AdamW(stage.parameters(), lr=1e-2))
    )
    assert torch.equal(stage.state_dict()["0.weight"], model.state_dict()["0.weight"])


def test_an_unreadable_file_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = train_model(1)
    for step in (1, 2):
        make_store(tmp_path).save(step, TrainingState(model, optimizer), {})

    def unreadable(path: Path) -> str:
        if path.parent.name == "2":
            raise OSError(errno.EIO, "Input/output error")
        return file_checksum(path)

    monkeypatch.setattr("rankdeck.checkpoint_files.file_checksum", unreadable)
    checkpoint, complaints = newest_intact(tmp_path)
    assert checkpoint is not None and checkpoint.step == 1
    assert "cannot be read: Input/output error" in complaints[0]


def test_weights_are_loaded_only_into_the_same_model(tmp_path: Path) -> None:
    model, optimizer = train_model(2)
    make_store(tmp_path).save(2, TrainingState(model, optimizer), {})
    (checkpoint,) = list_checkpoints(tmp_path)
    fresh, _ = train_model(0)
    read_weights(checkpoint, fresh)
    for name, tensor in model.state_dict().items():
        assert torch.equal(fresh.state_dict()[name], tensor), name
    for other in (nn.Sequential(nn.Linear(40, 50)), nn.Sequential(nn.Linear(40, 51))):
        with pytest.raises(ConfigError, match="does not match this model or optimizer"):
            read_weights(checkpoint, other)


def test_another_model_is_refused_with_a_message(tmp_path: Path) -> None:
    model, optimizer = train_model(1)
    make_store(tmp_path).save(1, TrainingState(model, optimizer), {})
    other = nn.Linear(3, 3)
    checkpoint, _ = newest_intact(tmp_path)
    assert checkpoint is not None
    with pytest.raises(ConfigError, match="does not match this model"):
        make_store(tmp_path).restore(
            checkpoint, TrainingState(other, torch.optim.SGD(other.parameters(), lr=0.1))
        )


@pytest.mark.parametrize("left_out", ["torch", "python", "all but the type"])
def test_invalid_random_states_are_refused_with_a_message(tmp_path: Path, left_out: str) -> None:
    model, optimizer = train_model(1)
    make_store(tmp_path).save(1, TrainingState(model, optimizer), {})
    (file,) = (tmp_path / "1").glob("*.random.safetensors")
    states = load_file(file)
    if left_out == "all but the type":
        states = {name: tensor[:1] for name, tensor in states.items()}
    else:
        del states[left_out]
    save_file(states, file)
    write_commit(
        tmp_path / "1",
        {
            path.name: (path.stat().st_size, file_checksum(path))
            for path in file.parent.iterdir()
            if path.name != COMMIT
        },
    )
    (checkpoint,) = list_checkpoints(tmp_path)
    assert checkpoint.find_damage() is None
    restored = make_store(tmp_path).restore(checkpoint, TrainingState(model, optimizer))
    with pytest.raises(ConfigError, match="checkpoint of step 1 does not match"):
        restored.put_random_states()


def test_foreign_files_are_neither_removed_nor_read(tmp_path: Path) -> None:
    """A run's folder may come from anywhere: a save takes a place, and gives up an old one, without it."""
    state = TrainingState(*train_model(1))
    notes, inside = tmp_path / "1" / "notes.txt", tmp_path / "1" / "rank-7.random.safetensors"
    inside.parent.mkdir()
    for file in (notes, inside):
        file.write_text("theirs")
    store = make_store(tmp_path, keep=1)
    store.save(1, state, {})
    assert notes.exists() and not inside.exists() and newest_intact(tmp_path)[0] is not None
    store.save(2, state, {})
    assert [checkpoint.step for checkpoint in list_checkpoints(tmp_path)] == [2]
    assert list((tmp_path / "1").iterdir()) == [notes]
    (tmp_path / "2" / "more.safetensors").write_text("theirs")
    assert "more.safetensors is not part of the checkpoint" in newest_intact(tmp_path)[1][0]


def test_a_checkpoint_that_is_a_link_is_left_alone(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    folder.mkdir()
    state = TrainingState(*train_model(1))
    make_store(elsewhere).save(1, state, {})
    (folder / "1").symlink_to(elsewhere / "1")
    before = sorted((elsewhere / "1").iterdir())
    make_store(folder, keep=1).save(2, state, {})
    with pytest.raises(CheckpointError):
        make_store(folder, keep=1).save(1, state, {})
    assert sorted((elsewhere / "1").iterdir()) == before


def test_an_impossible_world_size_is_damage(tmp_path: Path) -> None:
    make_store(tmp_path).save(1, TrainingState(*train_model(1)), {})
    (checkpoint,) = list_checkpoints(tmp_path)
    file = checkpoint.path / PROGRESS
    file.write_text(file.read_text().replace('"world_size":1', '"world_size":1000000000'))
    files = {path.name: (path.stat().st_size, file_checksum(path)) for path in checkpoint.path.iterdir()}
    write_commit(checkpoint.path, {name: entry for name, entry in files.items() if name != COMMIT})
    assert checkpoint.find_damage() == "progress.json cannot be read"


class _MovingStore(CheckpointStore):
    """The run's folder is moved between the begin of the first save and its first file, and the guard leads
    the old name there a little later."""

    thread: threading.Thread | None = None
    old_paths: Sequence[Path] = ()

    def _write(self, target: Path, *args: Any, **more: Any) -> Any:
        if self.thread is None:
            run = self.folder.parent
            moved = run.rename(run.with_name("moved"))
            self.thread = threading.Thread(target=self._link_old_path, args=(run, moved))
            try:
                return super()._write(target, *args, **more)
            finally:
                self.old_paths = [run] if run.exists() else []
                self.thread.start()
        return super()._write(target, *args, **more)

    @staticmethod
    def _link_old_path(run: Path, moved: Path) -> None:
        time.sleep(0.1)
        run.symlink_to(moved)


def test_a_run_moved_during_a_save_saves_in_its_new_folder(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints" / "1").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "1" / "progress.json").touch()
    store = _MovingStore(tmp_path / "run" / "checkpoints", rank=0, world_size=1, layout="single", keep=1)
    model, optimizer = train_model(1)
    store.save(5, TrainingState(model, optimizer), {})
    assert store.thread is not None and not store.old_paths
    store.thread.join()
    folder = tmp_path / "moved" / "checkpoints"
    checkpoint, complaints = newest_intact(folder)
    assert checkpoint is not None and checkpoint.step == 5 and not complaints
    assert [path.name for path in folder.iterdir()] == ["5"], "halves of earlier ones are gone"
