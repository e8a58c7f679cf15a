"""The contents of a run's environment.json: versions, devices, commit and command line."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from collections.abc import Sequence

import msgspec

import rankdeck
from rankdeck.base.parsing import JsonObject
from rankdeck.config import RunConfig
from rankdeck.launch.device_selection import ChosenDevices

_RECORDED_PACKAGES = ("torch", "numpy", "safetensors", "tokenizers", "nvidia-ml-py")


def run_environment(
    config: RunConfig, choice: ChosenDevices, command_line: Sequence[str], started: float
) -> JsonObject:
    """Return the contents of environment.json for a configuration's run, whose ranks use this Python
    environment."""
    facts = script_environment_facts(
        config.folder, choice, command_line, started, reads_files=bool(config.user_code())
    )
    facts["versions"] |= {name: _package_version(name) for name in _RECORDED_PACKAGES}
    return {**facts, "python": platform.python_version()}


def script_environment_facts(
    folder: str | None,
    choice: ChosenDevices,
    command_line: Sequence[str],
    started: float,
    *,
    reads_files: bool = True,
) -> JsonObject:
    """Return the contents of environment.json for a script. The script reports its own package versions after
    importing the packages.

    The entry `problems` contains warnings that the supervisor forwards as events.
    """
    return {
        "versions": {"rankdeck": rankdeck.__version__},
        "devices": msgspec.to_builtins(choice.devices),
        "commit": git_commit(folder, reads_files=reads_files),
        "command_line": list(command_line),
        "started": started,
        "host": platform.node(),
        "problems": msgspec.to_builtins(choice.warnings),
    }


def _package_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def git_commit(folder: str | None, *, reads_files: bool) -> str | None:
    """Return the commit checked out in `folder`, with "+" if files have changed; None outside git.

    To compare files, git executes commands from the repository's own settings (core.fsmonitor, filters). The
    comparison is therefore skipped if `reads_files` is False, as for a folder from which the run executes no
    code.
    """
    if folder is None:
        return None
    command = ["git", "-C", folder, "describe", "--always", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(
            [*command, *(["--dirty=+"] if reads_files else [])],
            capture_output=True,
            text=True,
            timeout=2,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
