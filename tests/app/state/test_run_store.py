"""Labels, the trash and the way back, by the disk's thread and in real folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from rankdeck.run_dir import Labels, list_folder, read_labels
from rankdeck_app.io_thread import IoThread
from rankdeck_app.state.run_store import (
    RunStore,
    RunStoreError,
    TrashedRun,
    move_to_trash,
    restore_from_trash,
)
from tests.helpers.written_run import WrittenRun


@pytest.fixture
def keeper(qtbot: QtBot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunStore]:
    """Of a person whose trash is empty."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    disk = IoThread()
    disk.start()
    yield RunStore(disk)
    disk.close()


@pytest.fixture
def run(tmp_path: Path) -> WrittenRun:
    run = WrittenRun(tmp_path / "runs", "first name")
    run.start()
    run.end()
    return run


def test_label_changes_are_applied_in_order_and_signalled(
    qtbot: QtBot, keeper: RunStore, run: WrittenRun
) -> None:
    changes: list[tuple[Path, str, Labels]] = []
    keeper.relabelled.connect(lambda *what: changes.append(what))
    keeper.change_labels([run.path], lambda labels: labels.with_changes(name="mine"))
    keeper.change_labels([run.path], lambda labels: labels.with_changes(tags=("a", "b")))
    keeper.change_labels([run.path], lambda labels: labels.with_changes(name=""))
    qtbot.waitUntil(lambda: len(changes) == 3, timeout=5000)
    assert [title for _, title, _ in changes] == ["mine", "mine", "first name"]
    assert read_labels(run.path) == changes[-1][2] == Labels(tags=("a", "b"))


def test_an_invalid_label_is_refused(qtbot: QtBot, keeper: RunStore, run: WrittenRun) -> None:
    with qtbot.waitSignal(keeper.failed, timeout=5000) as failed:
        keeper.change_labels([run.path], lambda labels: labels.with_changes(name="last"))
    assert '"last" is reserved for the newest run' in failed.args[0] and read_labels(run.path) == Labels()


@pytest.mark.parametrize("has_system_trash", [True, False])
def test_a_trashed_run_is_restored_intact(
    qtbot: QtBot,
    keeper: RunStore,
    run: WrittenRun,
    tmp_path: Path,
    has_system_trash: bool,
) -> None:
    if has_system_trash:
        (tmp_path / "data").mkdir()
    before = {path.relative_to(run.path) for path in run.path.rglob("*")}
    with qtbot.waitSignal(keeper.trashed, timeout=5000) as trashed:
        keeper.trash([run.path])
    ([trashed_run],) = trashed.args
    assert not run.path.exists() and trashed_run.trash_path.is_dir() and list_folder(tmp_path / "runs") == []
    assert (trashed_run.trash_path.parent == tmp_path / "runs" / ".trash") is not has_system_trash
    with qtbot.waitSignal(keeper.restored, timeout=5000):
        keeper.restore([trashed_run])
    assert {path.relative_to(run.path) for path in run.path.rglob("*")} == before
    assert [listed_run.path for listed_run in list_folder(tmp_path / "runs")] == [run.path]
    assert not trashed_run.trash_path.exists() and not list((tmp_path).glob("data/Trash/info/*"))
    assert not (tmp_path / "runs" / ".trash").exists()


def test_live_runs_are_not_trashed(qtbot: QtBot, keeper: RunStore, run: WrittenRun, tmp_path: Path) -> None:
    alive = WrittenRun(tmp_path / "runs", "busy")
    alive.start()
    messages: list[str] = []
    keeper.failed.connect(messages.append)
    with qtbot.waitSignal(keeper.trashed, timeout=5000) as trashed:
        keeper.trash([alive.path, run.path])
    assert [trashed_run.path for trashed_run in trashed.args[0]] == [run.path] and alive.path.is_dir()
    assert messages == ["busy is running. Stop it first, then delete it."]
    alive.lose()


def test_a_failed_restore_is_explained(run: WrittenRun, tmp_path: Path, keeper: RunStore) -> None:
    now_at = move_to_trash(run.path)
    run.path.mkdir()
    with pytest.raises(RunStoreError, match="the path already exists"):
        restore_from_trash(TrashedRun(run.path, now_at))
    run.path.rmdir()
    with pytest.raises(RunStoreError, match="No such file"):
        restore_from_trash(TrashedRun(run.path, tmp_path / "nowhere"))
    with pytest.raises(RunStoreError, match="cannot be moved to the trash"):
        move_to_trash(tmp_path / "nothing")


def test_a_disk_error_does_not_stop_the_other_runs(
    qtbot: QtBot, keeper: RunStore, run: WrittenRun, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    other = WrittenRun(tmp_path / "runs", "other")
    other.end()
    trashed = [TrashedRun(trashed_run.path, move_to_trash(trashed_run.path)) for trashed_run in (run, other)]
    note = tmp_path / "data/Trash/info" / f"{trashed[0].trash_path.name}.trashinfo"
    note.unlink()
    note.mkdir()  # which no unlink takes away
    messages: list[str] = []
    keeper.failed.connect(messages.append)
    with qtbot.waitSignal(keeper.restored, timeout=5000) as restored:
        keeper.restore(trashed)
    assert restored.args == [[other.path]] and len(messages) == 1 and str(note) in messages[0]


def test_an_exception_does_not_stop_later_jobs(qtbot: QtBot, keeper: RunStore, run: WrittenRun) -> None:
    with qtbot.captureExceptions() as raised:
        keeper.change_labels([run.path], lambda labels: labels.with_changes(no_such_label=1))  # type: ignore[call-arg]
        qtbot.waitUntil(lambda: bool(raised), timeout=5000)
    with qtbot.waitSignal(keeper.relabelled, timeout=5000):
        keeper.change_labels([run.path], lambda labels: labels.with_changes(name="mine"))
    assert read_labels(run.path).name == "mine"
