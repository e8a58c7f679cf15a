"""Nothing outside of a run changes because somebody goes on with it, whoever made its folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rankdeck.config import load
from rankdeck.launch.resumable import check_resumable
from rankdeck.launch.under_guard import NotResumableError
from rankdeck.rundir import RunDir
from tests.helpers.written_run import WrittenRun


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """One that was lost and has no checkpoint."""
    written = WrittenRun(tmp_path / "runs")
    written.begin()
    written.steps(0, 1, [1.0])
    written.lose()
    (written.path / "guard.lock").touch()
    (written.path / "checkpoints" / "3").mkdir(parents=True)
    return written.dir


def refusal(run: RunDir) -> NotResumableError:
    with pytest.raises(NotResumableError) as caught:
        check_resumable(run, load(run.config_file))
    return caught.value


def to_a_file(path: Path, elsewhere: Path) -> None:
    path.symlink_to(elsewhere / "file")


def to_a_folder(path: Path, elsewhere: Path) -> None:
    path.symlink_to(elsewhere)


def to_nothing(path: Path, elsewhere: Path) -> None:
    path.symlink_to(elsewhere / "none")


def as_another_name(path: Path, elsewhere: Path) -> None:
    path.hardlink_to(elsewhere / "file")


def as_a_pipe(path: Path, _elsewhere: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("put", [to_a_file, to_a_folder, to_nothing, as_another_name, as_a_pipe])
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
def test_what_leads_elsewhere_is_refused(
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


def test_what_is_its_own_is_not(run: RunDir, tmp_path: Path) -> None:
    """A run's own folder may be a link, its guard may have left a socket, and its weights another name."""
    (run.path / "weights.safetensors").write_bytes(b"")
    (tmp_path / "kept.safetensors").hardlink_to(run.path / "weights.safetensors")
    os.mknod(run.path / "control.sock", 0o140600)
    (tmp_path / "link").symlink_to(run.path)
    assert refusal(RunDir(tmp_path / "link")).code == "no-checkpoint"
