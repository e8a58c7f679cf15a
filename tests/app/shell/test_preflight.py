from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rankdeck_app.shell import preflight
from rankdeck_app.shell.preflight import find_startup_problem


def start_app(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The app as a person starts it, in an environment without a screen unless `env` names one."""
    hidden = ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM")
    clean = {key: value for key, value in os.environ.items() if key not in hidden}
    command = [sys.executable, "-P", "-m", "rankdeck_app", *args]
    return subprocess.run(command, env=clean | env, capture_output=True, text=True, timeout=60)


def test_without_a_display_the_app_exits_3_with_one_line() -> None:
    done = start_app()
    assert done.returncode == 3 and done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "neither DISPLAY nor WAYLAND_DISPLAY is set" in done.stderr


def test_help_and_version_need_no_display() -> None:
    assert start_app("--help").returncode == 0
    version = start_app("--version")
    assert version.returncode == 0 and version.stdout.startswith("rankdeck-app 0.")


def test_an_unknown_option_is_refused_with_exit_code_2() -> None:
    done = start_app("--no-such-option")
    assert done.returncode == 2 and "--no-such-option" in done.stderr


@pytest.mark.parametrize("platform", ["offscreen", "minimal", "offscreen:size=800x600"])
def test_headless_platforms_need_no_display(platform: str) -> None:
    assert find_startup_problem({"QT_QPA_PLATFORM": platform}) is None


def test_a_missing_library_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    real = preflight._can_load
    monkeypatch.setattr(preflight, "_can_load", lambda name: name != "libxcb-cursor.so.0" and real(name))
    obstacle = find_startup_problem({"DISPLAY": ":0"})
    assert obstacle is not None and "\n" not in obstacle
    assert "libxcb-cursor.so.0" in obstacle and "apt install libxcb-cursor0" in obstacle


def test_wayland_does_not_need_the_libraries_of_x(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_can_load", lambda name: "xcb" not in name)
    assert find_startup_problem({"WAYLAND_DISPLAY": "wayland-0"}) is None


def test_a_missing_pyside_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight.importlib.util, "find_spec", lambda name: None)
    obstacle = find_startup_problem({"DISPLAY": ":0"})
    assert obstacle is not None and "pip install 'rankdeck[app]'" in obstacle
