"""One variable moves everything that Rankdeck keeps for itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankdeck.base.home import cache_dir, config_dir, expanded, state_dir


def test_rankdeck_home_moves_settings_state_and_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANKDECK_HOME", str(tmp_path / "here"))
    folders = [config_dir(), state_dir(), cache_dir()]
    assert [folder.parent for folder in folders] == [tmp_path / "here"] * 3
    assert len(set(folders)) == 3


def test_without_it_the_platform_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANKDECK_HOME")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert state_dir().parts[-1] == "rankdeck"


def test_asking_creates_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKDECK_HOME", str(tmp_path / "here"))
    config_dir(), state_dir(), cache_dir()
    assert not (tmp_path / "here").exists()


def test_a_home_that_nobody_has_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expanded("~/runs") == tmp_path / "runs"
    for text in ("~nobody-of-that-name/runs", "~nobody\0/runs", "runs/~"):
        assert expanded(text) == Path(text)
