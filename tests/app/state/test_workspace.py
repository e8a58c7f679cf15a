"""File dialogs begin where the app was started, then where something was chosen last."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication

from rankdeck_app.settings import Settings
from rankdeck_app.state.workspace import Workspace


@pytest.fixture
def workspace(qapp: QApplication, tmp_path: Path) -> Workspace:
    (tmp_path / "work").mkdir()
    settings = Settings(tmp_path / "settings.toml")
    return Workspace(tmp_path / "workspace.json", settings, folder=tmp_path / "work")


def test_dialogs_start_in_the_working_directory(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, home = tmp_path / "here", tmp_path / "home"
    here.mkdir()
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    assert workspace.dialog_folder == here
    monkeypatch.chdir("/")  # a desktop's launcher
    assert workspace.dialog_folder == workspace.folder
    monkeypatch.chdir(home)
    assert workspace.dialog_folder == workspace.folder
    workspace.folder.rmdir()
    assert workspace.dialog_folder == home, "a folder that is not there is none to begin in"


def test_dialogs_start_in_the_last_chosen_folder(workspace: Workspace, tmp_path: Path) -> None:
    workspace.remember_dialog_path(tmp_path / "some" / "run.toml")
    assert workspace.dialog_folder == tmp_path / "some"
    workspace.remember_dialog_path(tmp_path)
    assert workspace.dialog_folder == tmp_path


def test_a_deleted_working_directory_is_tolerated(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted_folder = tmp_path / "gone"
    deleted_folder.mkdir()
    monkeypatch.chdir(deleted_folder)
    deleted_folder.rmdir()
    assert workspace.dialog_folder in (Path.home(), workspace.folder)
