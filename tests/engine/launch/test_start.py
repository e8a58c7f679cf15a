"""What can be refused is refused before anything starts, with words and the right exit code."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rankdeck.base.errors import ConfigError, DataError, DeviceError, MachineError, ModelError, RankdeckError
from rankdeck.base.names import MAX_NAME_LENGTH
from rankdeck.config import from_dict
from rankdeck.config.naming import explicit_name
from rankdeck.launch import guard_launcher
from rankdeck.launch.control import request_stop
from rankdeck.launch.device_selection import ChosenDevices
from rankdeck.launch.environment_facts import run_environment
from rankdeck.launch.start import NotResumableError, resume_run
from rankdeck.run_dir import RunDir, list_runs
from tests.helpers import launching
from tests.helpers.launching import launch
from tests.helpers.written_run import WrittenRun


def refused_start(tmp_path: Path, tables: Mapping[str, Any], kind: type[RankdeckError]) -> RankdeckError:
    """The error of a launch that must leave nothing behind."""
    with pytest.raises(kind) as caught:
        launch(tmp_path / "runs", tables)
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())
    return caught.value


def test_a_runs_folder_removed_during_the_start_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    popen = guard_launcher._popen

    def removed(run: RunDir, *args: Any) -> Any:
        shutil.rmtree(run.path.parent)
        return popen(run, *args)

    monkeypatch.setattr(guard_launcher, "_popen", removed)
    error = refused_start(tmp_path, {}, MachineError)
    assert error.code == "removed" and "its folder was removed" in error.message


def test_a_missing_data_path_is_bad_input(tmp_path: Path) -> None:
    tables = {"model": {"use": "gpt"}, "data": {"use": "text", "args": {"path": "nowhere"}}}
    error = refused_start(tmp_path, tables, DataError)
    assert error.exit_code == 2 and str(tmp_path / "nowhere") in error.message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_data_path_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").touch(mode=0)
    tables = {"model": {"use": "gpt"}, "data": {"use": "text", "args": {"path": "secret.txt"}}}
    assert "Permission denied" in refused_start(tmp_path, tables, DataError).message


def test_a_missing_code_file_is_bad_input(tmp_path: Path) -> None:
    error = refused_start(tmp_path, {"model": {"use": "mine.py:make"}}, ModelError)
    assert error.exit_code == 2 and "mine.py does not exist" in error.message


@pytest.mark.parametrize(
    ("name", "why"), [("x" * 121, "121 characters, but the limit is 120"), ("Last", "newest run")]
)
def test_an_invalid_run_name_is_refused(tmp_path: Path, name: str, why: str) -> None:
    error = refused_start(tmp_path, {"name": name}, ConfigError)
    assert why in error.message and error.problem.path == "name"


def test_a_long_file_name_is_cut_in_the_run_name() -> None:
    assert explicit_name({}, "x" * 200) == "x" * MAX_NAME_LENGTH


def test_gpus_without_a_driver_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> list[Any]:
        raise MachineError("No NVIDIA driver found.")

    monkeypatch.setattr("rankdeck.launch.device_selection.list_gpus", no_driver)
    assert refused_start(tmp_path, {"devices": {"use": "gpu:0"}}, MachineError).exit_code == 3


def test_a_machine_without_gpus_refuses_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankdeck.launch.device_selection.list_gpus", list)
    assert refused_start(tmp_path, {"devices": {"use": "gpu:all"}}, DeviceError).exit_code == 2


def test_auto_counts_the_devices_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankdeck.launch.device_selection.list_gpus", list)
    tables = {"devices": {"use": "auto"}, "train": {"global_batch": 33}}
    error = refused_start(tmp_path, tables, ConfigError)
    assert [problem.code for problem in error.problems] == ["batch"]


def test_auto_without_a_gpu_refuses_a_configuration_for_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankdeck.launch.device_selection.list_gpus", list)
    error = refused_start(tmp_path, {"devices": {"use": "auto"}, "train": {"precision": "fp16"}}, ConfigError)
    assert "fp16 is slow on CPUs" in error.message


def test_an_unwritable_runs_folder_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="Runs cannot be stored in"):
        launch(tmp_path / "file" / "runs")


def test_a_started_run_is_locked_named_and_indexed(tmp_path: Path) -> None:
    run = launch(tmp_path / "runs")
    assert run.is_alive() and run.outcome() == "running"
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [run.name]
    assert run.config().name == "small"
    assert run.path in [entry.path for entry in list_runs()]
    request_stop(run, now=True)
    launching.wait_for_exit_record(run, 5)


def test_resume_waits_for_an_ending_run_and_refuses_a_running_one(tmp_path: Path) -> None:
    written = WrittenRun(tmp_path / "runs")
    written.start()

    def code_of_resuming() -> str | None:
        with pytest.raises(NotResumableError) as caught:
            resume_run(written.dir, written.dir.config(), detach=True, command_line=[], started=time.time())
        return caught.value.code

    assert code_of_resuming() == "running"
    written.write_exit_record("stopped")
    releasing = threading.Timer(0.5, written.lose)
    releasing.start()
    assert code_of_resuming() == "no-checkpoint"
    releasing.join()


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_environment_file_is_enough_to_repeat_the_run(tmp_path: Path) -> None:
    git = ["git", "-c", "user.name=me", "-c", "user.email=me@example.org", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "one"], check=True)
    commit = subprocess.run(
        [*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    run = launch(tmp_path / "runs")
    environment = run.environment()
    assert environment["commit"] == commit
    assert environment["command_line"] == ["rankdeck", "train", "small.toml"]
    assert (
        environment["versions"]["torch"]
        and environment["python"]
        and environment["host"]
        and environment["started"]
    )
    assert [device["name"] for device in environment["devices"]] == ["Virtual 0", "Virtual 1"]
    request_stop(run, now=True)
    launching.wait_for_exit_record(run, 5)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_runs_no_hooks_for_a_folder_whose_code_is_not_run(tmp_path: Path) -> None:
    folder, mark = tmp_path / "theirs", tmp_path / "mark"
    git = ["git", "-c", "user.name=me", "-c", "user.email=me@example.org", "-C", str(folder)]
    (folder / "own.py").parent.mkdir()
    (folder / "own.py").touch()
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *arguments], check=True)
    subprocess.run([*git, "config", "core.fsmonitor", f"touch {mark};false"], check=True)

    def commit(**model: str) -> str:
        config = from_dict({"model": model}, folder=folder)
        sha: str = run_environment(config, ChosenDevices([]), [], time.time())["commit"]
        return sha

    assert len(commit(use="mlp")) == 40 and not mark.exists()
    assert len(commit(use="own.py:make")) == 40 and mark.exists(), "its own settings say what git executes"


def test_starting_a_run_does_not_import_torch(tmp_path: Path) -> None:
    script = (
        "import sys, json; import rankdeck.launch.start, rankdeck.launch.control;"
        "print(json.dumps([name for name in ('torch', 'numpy') if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", script], check=True, capture_output=True, text=True)
    assert json.loads(done.stdout) == []
