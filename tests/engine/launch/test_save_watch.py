"""A save is waited for while it makes progress, and no longer."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from rankdeck.launch import save_watch
from rankdeck.launch.save_watch import SaveWatch, save_marker


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock that is asked; its last entry is now."""
    times = [100.0]
    monkeypatch.setattr(save_watch, "time", SimpleNamespace(monotonic=lambda: times[-1]))
    return times


def test_a_save_progresses_while_any_file_grows(tmp_path: Path, now: list[float]) -> None:
    watch, shard = SaveWatch(tmp_path), tmp_path / "checkpoints" / "5" / "shard-0.safetensors"
    shard.parent.mkdir(parents=True)
    assert not watch.is_progressing()
    save_marker(tmp_path).parent.mkdir()
    save_marker(tmp_path).touch()
    assert watch.is_progressing()
    for size in range(1, 6):
        now.append(now[-1] + save_watch.SAVE_TIMEOUT_S - 1)
        shard.write_bytes(bytes(size))
        assert watch.is_progressing()
    now.append(now[-1] + save_watch.SAVE_TIMEOUT_S - 1)
    assert watch.is_progressing()
    now.append(now[-1] + 2)
    assert not watch.is_progressing()
    (tmp_path / ".weights.safetensors.1.new").write_bytes(b"1")
    now.append(now[-1] + 1)
    assert watch.is_progressing()
    (tmp_path / "labels.json").write_bytes(b"1")
    now.append(now[-1] + save_watch.SAVE_TIMEOUT_S)
    assert not watch.is_progressing()


def test_the_next_save_has_its_own_timeout(tmp_path: Path, now: list[float]) -> None:
    watch, sign = SaveWatch(tmp_path), save_marker(tmp_path)
    sign.parent.mkdir()
    for _ in range(2):
        sign.touch()
        assert watch.is_progressing()
        now.append(now[-1] + save_watch.SAVE_TIMEOUT_S)
        assert not watch.is_progressing()
        sign.unlink()
        assert not watch.is_progressing()


def test_a_file_removed_during_a_check_counts_as_progress(
    tmp_path: Path, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old checkpoint is removed within the save of the next: a folder is listed and is gone."""
    watch, old = SaveWatch(tmp_path), tmp_path / "checkpoints" / "5"
    old.mkdir(parents=True)
    save_marker(tmp_path).parent.mkdir()
    save_marker(tmp_path).touch()
    assert watch.is_progressing()
    now.append(now[-1] + save_watch.SAVE_TIMEOUT_S)
    listed = os.scandir

    def scandir(path: str) -> object:
        if Path(path) == old:
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert watch.is_progressing()


def test_a_missing_folder_is_no_progress(tmp_path: Path) -> None:
    assert not SaveWatch(tmp_path / "gone").is_progressing()
