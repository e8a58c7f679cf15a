from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rankdeck_app.shell import preflight
from rankdeck_app.shell.preflight import find_obstacle


def start(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The app as a person starts it, in an environment without a screen unless `env` names one."""
    hidden = ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM")
    clean = {key: value for key, value in os.environ.items() if key not in hidden}
    command = [sys.executable, "-P", "-m", "rankdeck_app", *args]
    return subprocess.run(command, env=clean | env, capture_output=True, text=True, timeout=60)


def test_without_a_screen_the_app_says_so_in_one_line_and_exits_3() -> None:
    done = start()
    assert done.returncode == 3 and done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "neither DISPLAY nor WAYLAND_DISPLAY is set" in done.stderr


def test_help_and_version_need_no_screen() -> None:
    assert start("--help").returncode == 0
    version = start("--version")
    assert version.returncode == 0 and version.stdout.startswith("rankdeck-app 0.")


def test_an_unknown_option_is_refused_with_exit_code_2() -> None:
    done = start("--no-such-option")
    assert done.returncode == 2 and "--no-such-option" in done.stderr


@pytest.mark.parametrize("platform", ["offscreen", "minimal", "offscreen:size=800x600"])
def test_a_platform_without_a_screen_needs_none(platform: str) -> None:
    assert find_obstacle({"QT_QPA_PLATFORM": platform}) is None


def test_a_missing_library_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    real = preflight._loads
    monkeypatch.setattr(preflight, "_loads", lambda name: name != "libxcb-cursor.so.0" and real(name))
    obstacle = find_obstacle({"DISPLAY": ":0"})
    assert obstacle is not None and "\n" not in obstacle
    assert "libxcb-cursor.so.0" in obstacle and "apt install libxcb-cursor0" in obstacle


def test_wayland_does_not_need_the_libraries_of_x(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_loads", lambda name: "xcb" not in name)
    assert find_obstacle({"WAYLAND_DISPLAY": "wayland-0"}) is None


def test_without_pyside_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight.importlib.util, "find_spec", lambda name: None)
    obstacle = find_obstacle({"DISPLAY": ":0"})
    assert obstacle is not None and "pip install 'rankdeck[app]'" in obstacle
