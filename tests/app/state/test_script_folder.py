"""What a folder holds for running scripts, found by reading, and the interpreter remembered for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from rankdeck_app.language import error_text
from rankdeck_app.settings import Settings
from rankdeck_app.state.script_folder import ScriptFolder, interpreter_text
from rankdeck_app.state.workspace import Workspace
from tests.helpers.own_scripts import environment, project


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return project(tmp_path / "project")


@pytest.fixture
def workspace(qtbot: QtBot, folder: Path, tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "ws.json", Settings(tmp_path / "s.toml"), folder=folder)


@pytest.fixture
def scripts(workspace: Workspace, tmp_path: Path) -> Iterator[ScriptFolder]:
    scripts = ScriptFolder(workspace, tmp_path / "interpreters.json")
    yield scripts
    scripts.close()


def scan_and_wait(qtbot: QtBot, scripts: ScriptFolder) -> None:
    with qtbot.waitSignal(scripts.changed, timeout=10_000):
        scripts.scan()


def test_a_scan_finds_scripts_and_interpreters_without_running_any(
    qtbot: QtBot, scripts: ScriptFolder, folder: Path
) -> None:
    assert scripts.interpreter is None and not scripts.is_known
    scan_and_wait(qtbot, scripts)
    assert [script.name for script in scripts.facts.scripts] == ["train.py", "models/large.py"]
    assert list(scripts.facts.file.entries) == ["small", "large"]
    now = scripts.interpreter
    assert now is not None and now.python == folder / ".venv/bin/python"
    assert interpreter_text(now) == "Python 3.10.4 ('.venv')" and now.torch_version == "2.4.1"
    assert scripts.source == ".venv" and not scripts.is_from_file


def test_the_chosen_interpreter_is_saved_per_folder(
    qtbot: QtBot, scripts: ScriptFolder, workspace: Workspace, folder: Path, tmp_path: Path
) -> None:
    other = environment(tmp_path / "elsewhere", "3.12.1", None)
    scripts.choose(other)
    assert _saved_interpreter(folder, tmp_path) == "Python 3.12.1 ('elsewhere')"
    workspace.open(tmp_path / "another")
    assert scripts.interpreter is None
    workspace.open(folder)
    assert scripts.interpreter is not None
    other.unlink()
    assert _saved_interpreter(folder, tmp_path) is None, "it is gone"


def _saved_interpreter(folder: Path, tmp_path: Path) -> str | None:
    """The interpreter that the next app finds chosen for the folder."""
    workspace = Workspace(tmp_path / "next.json", Settings(tmp_path / "s.toml"), folder=folder)
    interpreter = ScriptFolder(workspace, tmp_path / "interpreters.json").interpreter
    return interpreter_text(interpreter) if interpreter is not None else None


def test_an_invalid_rankdeck_toml_is_reported(qtbot: QtBot, scripts: ScriptFolder, folder: Path) -> None:
    (folder / "rankdeck.toml").write_text("[scripts.a]\nrun = 3\n")
    scan_and_wait(qtbot, scripts)
    assert "scripts.a.run" in scripts.facts.problems[0].message
    assert scripts.facts.scripts and scripts.interpreter is not None


def test_saving_an_entry_keeps_comments(qtbot: QtBot, scripts: ScriptFolder, folder: Path) -> None:
    scan_and_wait(qtbot, scripts)
    entry, done = scripts.facts.file.entries["small"], threading.Event()
    with qtbot.waitSignal(scripts.changed, timeout=10_000):
        scripts.save_entry("copy", entry, done.set, pytest.fail)
    assert list(scripts.facts.file.entries) == ["small", "large", "copy"]
    with qtbot.waitSignal(scripts.changed, timeout=10_000):
        scripts.remove_entry("large", done.set, pytest.fail)
    text = (folder / "rankdeck.toml").read_text()
    assert "# how I run it" in text and "large" not in text and done.is_set()


def test_an_entry_that_cannot_be_saved_is_refused(scripts: ScriptFolder, folder: Path) -> None:
    (folder / "rankdeck.toml").write_text("[scripts")
    refused: list[Exception] = []
    scripts.remove_entry("large", lambda: pytest.fail("it is no TOML"), refused.append)
    assert "rankdeck.toml" in error_text(refused[0])


def test_an_interpreter_that_cannot_be_saved_is_still_used(
    qtbot: QtBot, scripts: ScriptFolder, tmp_path: Path
) -> None:
    (tmp_path / "interpreters.json").mkdir()
    other = environment(tmp_path / "elsewhere", "3.12.1", None)
    with qtbot.waitSignal(scripts.failed) as failed:
        scripts.choose(other)
    assert "the choice could not be saved" in failed.args[0] and scripts.is_chosen
