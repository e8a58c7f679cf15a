"""What a command leaves of a run that never began: nothing, however it was ended."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rankdeck.base.errors import ConfigError
from rankdeck.launch.locks import lock
from rankdeck.run_dir import create_run_dir
from tests.helpers.launching import small_config

_TERMINATED_COMMAND = """
import os, pathlib, sys
from rankdeck.run_dir import remove_unless_started
with remove_unless_started(pathlib.Path(sys.argv[1])):
    os.kill(os.getpid(), int(sys.argv[2]))
"""


def test_a_full_disk_leaves_no_files_of_a_new_run(tmp_path: Path) -> None:
    config, before = small_config(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(ConfigError, match="Runs cannot be stored in "):
            create_run_dir(tmp_path / "runs", config, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [*(tmp_path / "runs").iterdir()] == []


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_terminated_command_removes_a_run_that_has_not_started(tmp_path: Path, number: int) -> None:
    hidden = create_run_dir(tmp_path, small_config(tmp_path), {}).path
    command = [sys.executable, "-c", _TERMINATED_COMMAND, str(hidden), str(int(number))]
    assert subprocess.run(command, check=False).returncode == 128 + number
    assert not hidden.exists()


def test_the_next_run_removes_leftovers_of_a_killed_command(tmp_path: Path) -> None:
    left, active, fresh = (create_run_dir(tmp_path, small_config(tmp_path), {}, name).path for name in "abc")
    handle = lock(f"{active}/guard.lock", "a guard")
    for path in (left, active):
        os.utime(path, (time.time() - 600,) * 2)
    create_run_dir(tmp_path, small_config(tmp_path), {}, "d")
    os.close(handle)
    assert (left.exists(), active.exists(), fresh.exists()) == (False, True, True)
