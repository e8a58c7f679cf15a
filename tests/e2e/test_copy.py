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
from rankdeck.rundir import RunDir
from tests.helpers.cli import rankdeck, rankdeck_here, start_rankdeck
from tests.helpers.near_hosts import NearHosts
from tests.helpers.waiting import wait_until
from tests.helpers.written_run import WrittenRun


@pytest.fixture
def near(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NearHosts:
    return NearHosts(tmp_path / "hosts", monkeypatch)


@pytest.fixture
def written(near: NearHosts) -> WrittenRun:
    written = WrittenRun(near.runs("box1"))
    written.begin()
    written.steps(0, 1, [1.0] * 20)
    return written


def copied() -> RunDir:
    told = rankdeck_here("--host", "box1", "copy", "last", "--json", code=0).json
    assert told["host"] == "box1"
    return RunDir(Path(told["path"]))


def test_a_copy_knows_where_it_is_from_and_catches_up(written: WrittenRun) -> None:
    copy = copied()
    assert copy.path.is_relative_to(copies_dir()) and copy.name == written.dir.name
    assert copy.copied_from is not None and copy.copied_from.path == str(written.dir.path)
    assert copy.outcome() == "running" and not copy.is_alive(), "nobody here can tell"
    with start_rankdeck("copy", copy.path, "--follow", "--json") as following:
        assert following.stdout is not None
        assert json.loads(following.stdout.readline())["path"] == str(copy.path)
        assert json.loads(following.stdout.readline())["age_s"] < 3
        refused = rankdeck("copy", copy.path, code=1)
        assert "Somebody else here copies" in refused.err
        written.end()
        assert following.wait(timeout=30) == 0, "it ends with the run"
    assert copy.outcome() == "completed"
    assert "20" in rankdeck_here("show", copy.path, code=0).out


def test_a_run_that_was_lost_there_is_lost_here_until_it_goes_on(written: WrittenRun) -> None:
    written.lose()
    assert written.dir.outcome() == "lost" and copied().outcome() == "lost"
    with open(written.path / "guard.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert copied().outcome() == "running"


def test_what_acts_on_a_copy_is_done_on_its_host(near: NearHosts, written: WrittenRun) -> None:
    copy = copied()
    written.end()
    said = rankdeck("stop", copy.path)
    assert "is not running: completed" in said.err + said.out
    assert not (copy.path / "requests").exists()


def test_a_folder_that_only_says_so_is_no_copy(written: WrittenRun, tmp_path: Path) -> None:
    """A run that somebody was given leads to no other host, whatever lies in it."""
    elsewhere = tmp_path / "given" / written.dir.name
    shutil.copytree(copied().path, elsewhere)
    assert RunDir(elsewhere).copied_from is None and RunDir(elsewhere).outcome() == "lost"
    refused = rankdeck_here("copy", elsewhere, code=2)
    assert "is no copy of another host's run" in refused.err
    (copied().path / "copy.json").write_text("[3")
    assert copied().copied_from is not None, "it is written anew"


def test_one_that_follows_ends_with_whoever_asked(written: WrittenRun) -> None:
    copy = copied()
    with start_rankdeck("copy", copy.path, "--follow") as following:
        assert following.stdout is not None
        assert following.stdout.readline().strip() == str(copy.path)
        wait_until(copy.is_alive)
        os.kill(following.pid, signal.SIGINT)
        assert following.wait(timeout=10) == 130
    assert not copy.is_alive() and copy.outcome() == "running"
