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


def test_dialogs_begin_where_the_app_was_started(
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


def test_what_was_chosen_last_is_where_the_next_one_begins(workspace: Workspace, tmp_path: Path) -> None:
    workspace.chose(tmp_path / "some" / "run.toml")
    assert workspace.dialog_folder == tmp_path / "some"
    workspace.chose(tmp_path)
    assert workspace.dialog_folder == tmp_path


def test_a_folder_that_is_gone_is_no_reason_to_fail(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert workspace.dialog_folder in (Path.home(), workspace.folder)
