"""The list of runs: real run directories, found, followed to their end, and looked at no more than needed."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from rankdeck import config, events, run_dir
from rankdeck.run.row import RunMetrics
from rankdeck.run.row_metrics import run_metrics
from rankdeck.run.run_state import read_run_state
from rankdeck_app.state.runs import Runs, RunScan, RunsModel
from tests.helpers.many_runs import write_many
from tests.helpers.written_run import WrittenRun


def make_run(runs: Path, name: str, outcome: str | None = "completed", at: str = "20260101-100000") -> Path:
    """A run's directory as the engine leaves it; without an outcome nobody says how it ended."""
    chosen = config.from_dict({"name": name, "devices": {"use": "cpu:2"}, "strategy": "ddp"}, folder=runs)
    hidden = run_dir.create_run_dir(runs, chosen, {"title": name})
    path = runs / f"{at}-{name}-{hidden.name[-4:]}"
    hidden.path.rename(path)
    writer = run_dir.RunDir(path).writer("supervisor")
    devices = [events.DeviceInfo(index=index, name=f"cpu:{index}", kind="virtual") for index in range(2)]
    writer.write(
        events.RunStarted(
            run=path.name,
            attempt=0,
            strategy="ddp",
            options={},
            world_size=2,
            devices=devices,
            steps=50,
            global_batch=32,
            started=1000.0,
        )
    )
    writer.close()
    (path / "guard.lock").touch()
    if outcome is not None:
        end_run(path, outcome)
    return path


def end_run(path: Path, outcome: str) -> None:
    (path / "end.json").write_text(json.dumps({"outcome": outcome, "exit_code": 0, "ended": time.time()}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


def test_a_run_is_described_by_its_directory_alone(folder: Path) -> None:
    path = make_run(folder, "gpt")
    (info,) = RunScan(folder).scan()
    assert (info.path, info.title, info.strategy, info.outcome) == (path, "gpt", "ddp", "completed")
    assert (info.num_devices, info.device_kind, info.steps, info.started) == (2, "virtual", 50, 1000.0)


def test_newest_runs_come_first_and_missing_ends_are_lost(folder: Path) -> None:
    make_run(folder, "old", at="20250101-000000")
    make_run(folder, "new", None, at="20260101-000000")
    assert [(info.title, info.outcome) for info in RunScan(folder).scan()] == [
        ("new", "lost"),
        ("old", "completed"),
    ]


def test_runs_of_other_folders_are_found_by_the_index(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    path = make_run(tmp_path / "elsewhere", "far")
    run_dir.add_to_index(run_dir.RunDir(path))
    assert [info.path for info in RunScan(folder).scan()] == [path]


def test_a_run_is_found_whose_folder_was_listed_within_the_same_tick(folder: Path) -> None:
    scan = RunScan(folder)
    listed = folder.stat().st_mtime_ns
    assert scan.scan() == []
    path = make_run(folder, "late")
    os.utime(folder, ns=(listed, listed))
    assert [info.path for info in scan.scan()] == [path]


def test_a_finished_run_is_not_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(folder, "gpt")
    scan = RunScan(folder)
    before = scan.scan()

    def forbidden(*_: object) -> None:
        raise AssertionError("a finished run was read again")

    monkeypatch.setattr("rankdeck.run.row_index.read_info", forbidden)
    assert scan.scan() == before


def test_a_live_run_is_updated_until_its_end(qtbot: QtBot, folder: Path) -> None:
    path = make_run(folder, "gpt", None)
    lock = os.open(path / "guard.lock", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    runs = Runs(folder)
    try:
        with qtbot.waitSignal(runs.changed, timeout=5000):
            runs.start()
        assert [info.path for info in runs.alive_runs] == [path]
        with qtbot.waitSignal(runs.run_ended, timeout=5000) as ended:
            end_run(path, "stopped")
            os.close(lock)
        assert ended.args[0].outcome == "stopped" and not runs.alive_runs
    finally:
        runs.close()


def test_a_new_run_does_not_move_the_selection(qtbot: QtBot, folder: Path) -> None:
    make_run(folder, "old", at="20250101-000000")
    scan, model = RunScan(folder), RunsModel()
    model.set_infos(scan.scan())
    index = model.index(0)
    from PySide6.QtCore import QPersistentModelIndex

    selected = QPersistentModelIndex(index)
    make_run(folder, "new")
    model.set_infos(scan.scan())
    assert selected.row() == 1 and selected.data(RunsModel.InfoRole).title == "old"


# Thousands of runs, and the figures that all of a run's events tell


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has just been written counts as old enough to be kept."""
    monkeypatch.setattr("rankdeck.run.row_index._SETTLED_NS", 0)


def test_rows_are_read_in_slices_before_their_metrics(
    folder: Path, settled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_many(folder, 6)
    names = [run.name for run in run_dir.list_folder(folder)]
    scan = RunScan(folder)
    assert [info.name for info in scan.scan(timeout_s=0)] == names[:1] and len(scan.unread) == 5
    scan.read_rows(0)
    assert [info.name for info in scan.infos()] == names[:2]
    scan.read_rows(60)
    assert [info.name for info in scan.infos()] == names and not scan.unread
    scan.scan()
    assert [path.name for path in scan.missing_metrics] == names
    scan.read_metrics(60)
    assert not scan.missing_metrics
    for info in scan.infos():
        assert info.metrics == run_metrics(read_run_state(run_dir.RunDir(info.path))) != RunMetrics()
    infos = scan.infos()

    def forbidden(*_: object) -> None:
        raise AssertionError("a run that is known was read again")

    monkeypatch.setattr("rankdeck.run.row_index.read_info", forbidden)
    monkeypatch.setattr("rankdeck_app.state.runs._make_reader", forbidden)
    again = RunScan(folder)
    assert again.scan() == infos and not again.missing_metrics


def test_a_live_run_is_updated_at_every_scan(folder: Path) -> None:
    run = WrittenRun(folder, "mine")
    run.start(steps=50)
    run.write_steps(0, 1, [3.0, 2.5])
    scan = RunScan(folder)
    (info,) = scan.scan()
    assert (info.outcome, info.step, info.steps) == ("running", 2, 50)
    run.write_steps(0, 3, [2.0])
    (info,) = scan.scan()
    assert info.step == 3 and info.metrics is not None and info.metrics.loss == 2.0
    run.write_steps(0, 4, [1.5])
    run.end("stopped")
    (info,) = scan.scan()
    assert (info.outcome, info.step, info.metrics and info.metrics.loss) == ("stopped", 4, 2.0), (
        "as last seen"
    )
    scan.read_metrics(60)
    (info,) = scan.infos()
    assert info.metrics is not None and info.metrics.loss == 1.5


def test_changed_labels_are_read_at_a_full_scan(folder: Path) -> None:
    path = make_run(folder, "gpt")
    scan = RunScan(folder)
    scan.scan()
    run_dir.write_labels(path, run_dir.Labels(name="other", tags=("x",)))
    (info,) = scan.scan(is_full_requested=True)
    assert (info.title, info.labels.tags) == ("other", ("x",))
    for file in sorted(path.rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    path.rmdir()
    assert scan.scan() == []


def test_a_new_name_is_shown_at_once_and_stays(qtbot: QtBot, folder: Path) -> None:
    path = make_run(folder, "gpt")
    runs = Runs(folder)
    try:
        with qtbot.waitSignal(runs.changed, timeout=5000):
            runs.start()
        labels = run_dir.Labels(name="other")
        run_dir.write_labels(path, labels)
        runs.update_labels(path, "other", labels)
        assert runs.get_title(path) == "other"
        qtbot.waitUntil(lambda: runs.infos[0].labels_stamp is not None, timeout=5000)
        assert runs.get_title(path) == "other" and runs.infos[0].labels == labels
    finally:
        runs.close()
