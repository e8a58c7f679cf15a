"""The list of runs: real run directories, found, followed to their end, and looked at no more than needed."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from rankdeck import config, events, rundir
from rankdeck.run.fold import read_fold
from rankdeck.run.row import RunFigures
from rankdeck.run.row_figures import figures_of
from rankdeck_app.state.runs import Runs, RunScan, RunsModel
from tests.helpers.many_runs import write_many
from tests.helpers.written_run import WrittenRun


def make_run(runs: Path, name: str, outcome: str | None = "completed", at: str = "20260101-100000") -> Path:
    """A run's directory as the engine leaves it; without an outcome nobody says how it ended."""
    chosen = config.from_dict({"name": name, "devices": {"use": "cpu:2"}, "strategy": "ddp"}, folder=runs)
    hidden = rundir.create(runs, chosen, {"title": name})
    path = runs / f"{at}-{name}-{hidden.name[-4:]}"
    hidden.path.rename(path)
    writer = rundir.RunDir(path).writer("supervisor")
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
    (info,) = RunScan(folder).look()
    assert (info.path, info.title, info.strategy, info.outcome) == (path, "gpt", "ddp", "completed")
    assert (info.num_devices, info.device_kind, info.steps, info.started) == (2, "virtual", 50, 1000.0)


def test_newest_runs_come_first_and_an_unexplained_end_is_lost(folder: Path) -> None:
    make_run(folder, "old", at="20250101-000000")
    make_run(folder, "new", None, at="20260101-000000")
    assert [(info.title, info.outcome) for info in RunScan(folder).look()] == [
        ("new", "lost"),
        ("old", "completed"),
    ]


def test_runs_of_other_folders_are_found_by_the_index(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    path = make_run(tmp_path / "elsewhere", "far")
    rundir.enter_in_index(rundir.RunDir(path))
    assert [info.path for info in RunScan(folder).look()] == [path]


def test_a_finished_run_is_not_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(folder, "gpt")
    scan = RunScan(folder)
    before = scan.look()

    def forbidden(*_: object) -> None:
        raise AssertionError("a finished run was read again")

    monkeypatch.setattr("rankdeck.run.row_index.read_info", forbidden)
    assert scan.look() == before


def test_a_living_run_is_followed_to_its_end(qtbot: QtBot, folder: Path) -> None:
    path = make_run(folder, "gpt", None)
    lock = os.open(path / "guard.lock", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    runs = Runs(folder)
    try:
        with qtbot.waitSignal(runs.changed, timeout=5000):
            runs.start()
        assert [info.path for info in runs.alive] == [path]
        with qtbot.waitSignal(runs.ended, timeout=5000) as ended:
            end_run(path, "stopped")
            os.close(lock)
        assert ended.args[0].outcome == "stopped" and not runs.alive
    finally:
        runs.close()


def test_a_new_run_does_not_move_the_selection(qtbot: QtBot, folder: Path) -> None:
    make_run(folder, "old", at="20250101-000000")
    scan, model = RunScan(folder), RunsModel()
    model.set_infos(scan.look())
    kept = model.index(0)
    from PySide6.QtCore import QPersistentModelIndex

    selected = QPersistentModelIndex(kept)
    make_run(folder, "new")
    model.set_infos(scan.look())
    assert selected.row() == 1 and selected.data(RunsModel.InfoRole).title == "old"


# Thousands of runs, and the figures that all of a run's events tell


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has just been written counts as old enough to be kept."""
    monkeypatch.setattr("rankdeck.run.row_index._SETTLED_NS", 0)


def test_rows_come_newest_first_a_part_at_a_time_and_then_their_figures(
    folder: Path, settled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_many(folder, 6)
    names = [run.name for run in rundir.list_folder(folder)]
    scan = RunScan(folder)
    assert [info.name for info in scan.look(for_s=0)] == names[:1] and len(scan.unread) == 5
    scan.read_on(0)
    assert [info.name for info in scan.infos()] == names[:2]
    scan.read_on(60)
    assert [info.name for info in scan.infos()] == names and not scan.unread
    scan.look()
    assert [path.name for path in scan.unfolded] == names
    scan.fold_on(60)
    assert not scan.unfolded
    for info in scan.infos():
        assert info.figures == figures_of(read_fold(rundir.RunDir(info.path))) != RunFigures()
    shown = scan.infos()

    def forbidden(*_: object) -> None:
        raise AssertionError("a run that is known was read again")

    monkeypatch.setattr("rankdeck.run.row_index.read_info", forbidden)
    monkeypatch.setattr("rankdeck_app.state.runs._follow", forbidden)
    again = RunScan(folder)
    assert again.look() == shown and not again.unfolded


def test_a_run_that_goes_on_tells_its_step_and_its_figures_at_every_look(folder: Path) -> None:
    run = WrittenRun(folder, "mine")
    run.begin(steps=50)
    run.steps(0, 1, [3.0, 2.5])
    scan = RunScan(folder)
    (info,) = scan.look()
    assert (info.outcome, info.step, info.steps) == ("running", 2, 50)
    run.steps(0, 3, [2.0])
    (info,) = scan.look()
    assert info.step == 3 and info.figures is not None and info.figures.loss == 2.0
    run.steps(0, 4, [1.5])
    run.end("stopped")
    (info,) = scan.look()
    assert (info.outcome, info.step, info.figures and info.figures.loss) == ("stopped", 4, 2.0), (
        "as last seen"
    )
    scan.fold_on(60)
    (info,) = scan.infos()
    assert info.figures is not None and info.figures.loss == 1.5


def test_what_is_said_of_a_run_is_seen_at_a_look_at_all_of_them(folder: Path) -> None:
    path = make_run(folder, "gpt")
    scan = RunScan(folder)
    scan.look()
    rundir.write_labels(path, rundir.Labels(name="other", tags=("x",)))
    (info,) = scan.look(everything=True)
    assert (info.title, info.labels.tags) == ("other", ("x",))
    for file in sorted(path.rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    path.rmdir()
    assert scan.look() == []


def test_a_new_name_is_shown_at_once_and_stays(qtbot: QtBot, folder: Path) -> None:
    path = make_run(folder, "gpt")
    runs = Runs(folder)
    try:
        with qtbot.waitSignal(runs.changed, timeout=5000):
            runs.start()
        labels = rundir.Labels(name="other")
        rundir.write_labels(path, labels)
        runs.relabel(path, "other", labels)
        assert runs.title_of(path) == "other"
        qtbot.waitUntil(lambda: runs.infos[0].labels_stamp is not None, timeout=5000)
        assert runs.title_of(path) == "other" and runs.infos[0].labels == labels
    finally:
        runs.close()
