"""The desktop is told of a run's end while nobody looks at the window, by its own program, and only then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rankdeck.run.row import RunInfo
from rankdeck_app.composition import App
from rankdeck_app.controllers.desktop_notifications import PROGRAM, notification_text
from tests.helpers.app_window import wait_for

_RUN = RunInfo(Path("/runs/a"), "GPT · DDP · 4", "completed")


@pytest.fixture
def notice_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the desktop's program writes what it is given, a word a line."""
    output_file, folder = tmp_path / "said", tmp_path / "bin"
    folder.mkdir()
    program = folder / PROGRAM
    program.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" > "{output_file}.new" && mv "{output_file}.new" "{output_file}"\n'
    )
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return output_file


def test_a_run_that_ends_while_the_window_is_hidden_is_notified(app: App, notice_file: Path) -> None:
    ended = app.session.runs.run_ended
    app.tabs.launched[_RUN.path] = "run"
    ended.emit(_RUN)
    assert not app.desktop_notifications._timer.isActive(), "somebody is looking"
    app.window.hide()
    ended.emit(replace(_RUN, path=Path("/runs/elsewhere")))
    assert not app.desktop_notifications._timer.isActive(), "a terminal started that one"
    ended.emit(replace(_RUN, outcome="failed", reason="ValueError: a < b"))
    wait_for(notice_file.exists, 10, "the notice")
    lines = notice_file.read_text().splitlines()
    assert lines[-2:] == ["GPT · DDP · 4: failed", "ValueError: a &lt; b"]
    assert "--urgency=critical" in lines and lines.index("--") == len(lines) - 3
    notice_file.unlink()
    app.window.settings.set("notifications.desktop", False)
    ended.emit(_RUN)
    assert not app.desktop_notifications._timer.isActive()


def test_runs_that_end_together_share_one_notification(app: App, notice_file: Path) -> None:
    app.window.hide()
    for number in range(7):
        path = Path(f"/runs/{number}")
        app.tabs.launched[path] = "run"
        app.session.runs.run_ended.emit(replace(_RUN, path=path, title=f"--run {number}"))
    wait_for(notice_file.exists, 10, "the notice")
    lines = notice_file.read_text().splitlines()
    assert "7 runs ended" in lines and lines[-1] == "and 2 more" and "--urgency=normal" in lines


def test_nothing_is_sent_without_notify_send(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    app.tabs.launched[_RUN.path] = "run"
    app.window.hide()
    app.session.runs.run_ended.emit(_RUN)
    wait_for(lambda: not app.desktop_notifications._timer.isActive(), 5, "the notice's time")
    assert not app.window.toasts.visible_toasts or "completed" in app.window.toasts.history[-1].text


def test_a_single_run_is_notified_with_its_reason() -> None:
    assert notification_text([_RUN]) == ("GPT · DDP · 4: completed", "")
