"""Nothing outside of a run changes because somebody goes on with it or asks it for something, whoever made
its folder."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rankdeck.base.errors import ConfigError
from rankdeck.cli.race import stop_race
from rankdeck.config import from_dict, load
from rankdeck.launch import locks
from rankdeck.launch.control import request_checkpoint
from rankdeck.launch.guard_launcher import NotResumableError
from rankdeck.launch.resumable import check_resumable, next_title
from rankdeck.run.summary_builder import summarize
from rankdeck.run_dir import RunDir, add_attempt, create_race
from tests.helpers.written_run import WrittenRun


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """One that was lost and has no checkpoint."""
    written = WrittenRun(tmp_path / "runs")
    written.start()
    written.write_steps(0, 1, [1.0])
    written.lose()
    (written.path / "guard.lock").touch()
    (written.path / "checkpoints" / "3").mkdir(parents=True)
    return written.dir


def refusal(run: RunDir) -> NotResumableError:
    with pytest.raises(NotResumableError) as caught:
        check_resumable(run, load(run.config_file))
    return caught.value


def link_to_file(path: Path, elsewhere: Path) -> None:
    path.symlink_to(elsewhere / "file")


def link_to_folder(path: Path, elsewhere: Path) -> None:
    path.symlink_to(elsewhere)


def dangling_link(path: Path, elsewhere: Path) -> None:
    path.symlink_to(elsewhere / "none")


def hard_link(path: Path, elsewhere: Path) -> None:
    path.hardlink_to(elsewhere / "file")


def named_pipe(path: Path, _elsewhere: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("put", [link_to_file, link_to_folder, dangling_link, hard_link, named_pipe])
@pytest.mark.parametrize(
    "name",
    [
        "guard.lock",
        "end.json.part",
        "events/rank-0.1.jsonl",
        "logs/rank-0.1.err",
        "requests",
        "checkpoints/3/x",
    ],
)
def test_resuming_a_run_with_foreign_links_is_refused(
    run: RunDir, tmp_path: Path, name: str, put: Callable[[Path, Path], None]
) -> None:
    elsewhere, path = tmp_path / "elsewhere", run.path / name
    elsewhere.mkdir()
    (elsewhere / "file").write_text("theirs")
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    put(path, elsewhere)
    error = refusal(run)
    assert (error.code, error.problem.path) == ("leads-elsewhere", str(path))
    assert "cp -rL" in str(error.problem.advice)


@pytest.mark.parametrize("put", [link_to_file, link_to_folder, dangling_link, hard_link, named_pipe])
@pytest.mark.parametrize("name", ["requests", "requests/save.request"])
def test_a_save_request_writes_nothing_through_links(
    run: RunDir, tmp_path: Path, name: str, put: Callable[[Path, Path], None]
) -> None:
    elsewhere, path = tmp_path / "elsewhere", run.path / name
    elsewhere.mkdir()
    (elsewhere / "file").write_text("theirs")
    os.utime(elsewhere / "file", (1, 1))
    path.parent.mkdir(exist_ok=True)
    put(path, elsewhere)
    lock = locks.lock(str(run.path / "guard.lock"), "")
    with pytest.raises(ConfigError) as caught:
        request_checkpoint(run)
    os.close(lock)
    assert (caught.value.code, caught.value.problem.path) == ("leads-elsewhere", str(path))
    assert [file.name for file in elsewhere.iterdir()] == ["file"]
    assert (elsewhere / "file").stat().st_mtime == 1


def test_a_run_without_a_socket_gets_a_save_request_file(run: RunDir) -> None:
    lock = locks.lock(str(run.path / "guard.lock"), "")
    request_checkpoint(run)
    request_checkpoint(run)
    assert (run.requests_folder / "save.request").exists()
    shutil.rmtree(run.requests_folder)
    run.requests_folder.touch()
    with pytest.raises(ConfigError, match=r"requests/save.request cannot be written: File exists"):
        request_checkpoint(run)
    os.close(lock)


def test_a_stop_request_of_a_race_writes_nothing_through_links(tmp_path: Path) -> None:
    race = create_race(tmp_path / "runs", "some", "")
    race.stop_request.symlink_to(tmp_path / "theirs")
    with pytest.raises(ConfigError, match="a symbolic link to"):
        stop_race(race, timeout_s=0)
    assert not (tmp_path / "theirs").exists()
    race.stop_request.unlink()
    assert stop_race(race, timeout_s=0) and race.stop_request.exists()


def test_links_that_belong_to_the_run_are_accepted(run: RunDir, tmp_path: Path) -> None:
    """A run's own folder may be a link, its guard may have left a socket, and its weights another name."""
    (run.path / "weights.safetensors").write_bytes(b"")
    (tmp_path / "kept.safetensors").hardlink_to(run.path / "weights.safetensors")
    os.mknod(run.path / "control.sock", 0o140600)
    (tmp_path / "link").symlink_to(run.path)
    assert refusal(RunDir(tmp_path / "link")).code == "no-checkpoint"


@pytest.mark.parametrize(
    "called, becomes",
    [
        ("MLP · DP · 4", "MLP · DDP · 4"),
        ("MLP · DP · 4 · lr 0.1", "MLP · DDP · 4 · lr 0.1"),
        ("the good one", "the good one"),
    ],
)
def test_a_resumed_run_is_named_after_its_new_strategy(tmp_path: Path, called: str, becomes: str) -> None:
    tables = {"name": "", "strategy": {"use": "dp"}}
    run = WrittenRun(tmp_path / "runs", called, tables).dir
    (run.path / "environment.json").write_text(json.dumps({"title": called, "devices": [{}] * 4}))
    other = from_dict({**run.config().to_dict(), "strategy": {"use": "ddp"}}, folder=tmp_path)
    assert next_title(run, other, 4) == becomes
    assert next_title(run, run.config(), 4) == called == run.title
    add_attempt(run, other, {"title": becomes})
    assert run.title == becomes and summarize(run).facts()["title"] == becomes
