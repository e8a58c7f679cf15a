"""One variable moves everything that Rankdeck keeps for itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankdeck.base.home import cache_dir, config_dir, expand_home, state_dir


def test_rankdeck_home_moves_settings_state_and_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANKDECK_HOME", str(tmp_path / "here"))
    folders = [config_dir(), state_dir(), cache_dir()]
    assert [folder.parent for folder in folders] == [tmp_path / "here"] * 3
    assert len(set(folders)) == 3


def test_without_rankdeck_home_the_platform_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANKDECK_HOME")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert state_dir().parts[-1] == "rankdeck"


def test_no_folder_is_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKDECK_HOME", str(tmp_path / "here"))
    config_dir(), state_dir(), cache_dir()
    assert not (tmp_path / "here").exists()


def test_an_unknown_home_folder_is_not_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expand_home("~/runs") == tmp_path / "runs"
    for text in ("~nobody-of-that-name/runs", "~nobody\0/runs", "runs/~"):
        assert expand_home(text) == Path(text)
