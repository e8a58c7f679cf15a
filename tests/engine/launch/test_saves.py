"""A save is waited for while it makes progress, and no longer."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from rankdeck.launch import saves
from rankdeck.launch.saves import SaveWatch, sign_of


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock that is asked; its last entry is now."""
    told = [100.0]
    monkeypatch.setattr(saves, "time", SimpleNamespace(monotonic=lambda: told[-1]))
    return told


def test_a_save_goes_on_while_anything_grows(tmp_path: Path, now: list[float]) -> None:
    watch, shard = SaveWatch(tmp_path), tmp_path / "checkpoints" / "5" / "shard-0.safetensors"
    shard.parent.mkdir(parents=True)
    assert not watch.goes_on()
    sign_of(tmp_path).parent.mkdir()
    sign_of(tmp_path).touch()
    assert watch.goes_on()
    for size in range(1, 6):
        now.append(now[-1] + saves.PATIENCE_S - 1)
        shard.write_bytes(bytes(size))
        assert watch.goes_on()
    now.append(now[-1] + saves.PATIENCE_S - 1)
    assert watch.goes_on()
    now.append(now[-1] + 2)
    assert not watch.goes_on()
    (tmp_path / ".weights.safetensors.1.new").write_bytes(b"1")
    now.append(now[-1] + 1)
    assert watch.goes_on()
    (tmp_path / "labels.json").write_bytes(b"1")
    now.append(now[-1] + saves.PATIENCE_S)
    assert not watch.goes_on()


def test_the_next_save_has_its_own_time(tmp_path: Path, now: list[float]) -> None:
    watch, sign = SaveWatch(tmp_path), sign_of(tmp_path)
    sign.parent.mkdir()
    for _ in range(2):
        sign.touch()
        assert watch.goes_on()
        now.append(now[-1] + saves.PATIENCE_S)
        assert not watch.goes_on()
        sign.unlink()
        assert not watch.goes_on()


def test_what_vanishes_while_one_looks_is_progress(
    tmp_path: Path, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old checkpoint is removed within the save of the next: a folder is listed and is gone."""
    watch, old = SaveWatch(tmp_path), tmp_path / "checkpoints" / "5"
    old.mkdir(parents=True)
    sign_of(tmp_path).parent.mkdir()
    sign_of(tmp_path).touch()
    assert watch.goes_on()
    now.append(now[-1] + saves.PATIENCE_S)
    listed = os.scandir

    def gone(path: str) -> object:
        if Path(path) == old:
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", gone)
    assert watch.goes_on()


def test_a_folder_that_is_gone_holds_up_nobody(tmp_path: Path) -> None:
    assert not SaveWatch(tmp_path / "gone").goes_on()
