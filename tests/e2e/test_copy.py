"""`rankdeck copy` and what is asked of a copy: the run is read here, and acted on where it is."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from rankdeck.base.home import copies_dir
from rankdeck.run_dir import RunDir
from tests.helpers.cli import rankdeck, rankdeck_in_process, start_rankdeck
from tests.helpers.fake_ssh_hosts import FakeSshHosts
from tests.helpers.waiting import wait_until
from tests.helpers.written_run import WrittenRun


@pytest.fixture
def near(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSshHosts:
    return FakeSshHosts(tmp_path / "hosts", monkeypatch)


@pytest.fixture
def written(near: FakeSshHosts) -> WrittenRun:
    written = WrittenRun(near.runs("box1"))
    written.start()
    written.write_steps(0, 1, [1.0] * 20)
    return written


def copy_last_run() -> RunDir:
    facts = rankdeck_in_process("--host", "box1", "copy", "last", "--json", exit_code=0).json
    assert facts["host"] == "box1"
    return RunDir(Path(facts["path"]))


def test_a_copy_knows_its_origin_and_catches_up(written: WrittenRun) -> None:
    copy = copy_last_run()
    assert copy.path.is_relative_to(copies_dir()) and copy.name == written.dir.name
    assert copy.origin is not None and copy.origin.path == str(written.dir.path)
    assert copy.outcome() == "running" and not copy.is_alive(), "nobody here can tell"
    with start_rankdeck("copy", copy.path, "--follow", "--json") as following:
        assert following.stdout is not None
        assert json.loads(following.stdout.readline())["path"] == str(copy.path)
        assert json.loads(following.stdout.readline())["age_s"] < 3
        refused = rankdeck("copy", copy.path, exit_code=1)
        assert "Another process on this machine is already copying" in refused.err
        written.end()
        assert following.wait(timeout=30) == 0, "it ends with the run"
    assert copy.outcome() == "completed"
    assert "20" in rankdeck_in_process("show", copy.path, exit_code=0).out


def test_a_copy_of_a_lost_run_is_lost_until_the_run_resumes(written: WrittenRun) -> None:
    written.lose()
    assert written.dir.outcome() == "lost" and copy_last_run().outcome() == "lost"
    with open(written.path / "guard.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert copy_last_run().outcome() == "running"


def test_commands_on_a_copy_run_on_its_host(near: FakeSshHosts, written: WrittenRun) -> None:
    copy = copy_last_run()
    written.end()
    result = rankdeck("stop", copy.path)
    assert "is not running: completed" in result.err + result.out
    assert not (copy.path / "requests").exists()


def test_a_forged_origin_file_does_not_make_a_copy(written: WrittenRun, tmp_path: Path) -> None:
    """A run that somebody was given leads to no other host, whatever lies in it."""
    elsewhere = tmp_path / "given" / written.dir.name
    shutil.copytree(copy_last_run().path, elsewhere)
    assert RunDir(elsewhere).origin is None and RunDir(elsewhere).outcome() == "lost"
    refused = rankdeck_in_process("copy", elsewhere, exit_code=2)
    assert "is not a copy of another host's run" in refused.err
    (copy_last_run().path / "copy.json").write_text("[3")
    assert copy_last_run().origin is not None, "it is written anew"


def test_ctrl_c_ends_copy_follow(written: WrittenRun) -> None:
    copy = copy_last_run()
    with start_rankdeck("copy", copy.path, "--follow") as following:
        assert following.stdout is not None
        assert following.stdout.readline().strip() == str(copy.path)
        wait_until(copy.is_alive)
        os.kill(following.pid, signal.SIGINT)
        assert following.wait(timeout=10) == 130
    assert not copy.is_alive() and copy.outcome() == "running"
