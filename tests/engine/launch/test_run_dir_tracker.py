"""A run whose directory somebody removes ends; one whose directory is moved goes on where it is."""

from __future__ import annotations

import shutil
from pathlib import Path

from rankdeck.checkpoint_files import newest_intact
from rankdeck.launch.control import request_stop, wait_for_end
from rankdeck.run.problems import lost_problem
from rankdeck.run.run_state import read_run_state
from rankdeck.run_dir import RunDir, list_folder
from tests.helpers import killed_runs, launching
from tests.helpers.cli import start_rankdeck
from tests.helpers.launching import launch, wait_for_ranks
from tests.helpers.processes import processes_of_run
from tests.helpers.waiting import scale_timeout, wait_until


def test_a_run_with_a_deleted_folder_ends(tmp_path: Path) -> None:
    run = launch(tmp_path / "runs")
    wait_for_ranks(run)
    shutil.rmtree(run.path)
    wait_until(lambda: not processes_of_run(run.path), deadline_s=12)
    assert not run.path.exists()
    assert lost_problem(run).code == "removed"


_SLOW_AT_FIRST = """
import time
from pathlib import Path
from torch import nn

class SlowAtFirst(nn.Linear):
    steps = 0

    def forward(self, inputs):
        self.steps += 1
        while not Path(__file__).with_name("moved").exists():
            time.sleep(0.05)
            if self.steps < 40:
                break
        return super().forward(inputs.flatten(1))

def model():
    return SlowAtFirst(64, 10)
"""


def test_a_moved_run_continues_and_saves_in_its_new_folder(
    tmp_path: Path,
) -> None:
    """It steps while it is moved, and comes to its end and to a checkpoint only afterwards."""
    (tmp_path / "slow.py").write_text(_SLOW_AT_FIRST)
    train = {"steps": 50, "checkpoint_every": 45, "evaluate_every": 0}
    config = launching.small_config(tmp_path, {"train": train, "model": {"use": "slow.py:model"}})
    (tmp_path / "slow.toml").write_text(config.to_toml())
    with start_rankdeck("train", tmp_path / "slow.toml", "--runs", tmp_path / "runs") as attached:
        (run,) = wait_until(lambda: list_folder(tmp_path / "runs"))
        killed_runs.wait_for_step(run, 2)
        moved = RunDir(run.path.rename(tmp_path / "elsewhere"))
        wait_until(run.path.is_symlink)
        assert run.path.resolve() == moved.path and moved.is_alive()
        step = read_run_state(moved).step or 0
        killed_runs.wait_for_step(moved, step + 3)
        assert attached.poll() is None
        again = RunDir(moved.path.rename(tmp_path / "elsewhere again"))
        wait_until(lambda: run.path.exists())
        (tmp_path / "moved").touch()
        assert attached.wait(scale_timeout(60)) == 0
    assert wait_for_end(again, scale_timeout(60))
    wait_until(lambda: not run.path.is_symlink())
    assert again.outcome() == "completed" and again.weights.exists() and not again.is_alive()
    assert newest_intact(again.checkpoints_folder)[0] is not None and not launching.read_problems(again)


def test_a_moved_run_can_be_stopped(tmp_path: Path) -> None:
    run = launch(tmp_path / "runs")
    wait_for_ranks(run)
    moved = RunDir(run.path.rename(tmp_path / "elsewhere"))
    wait_until(run.path.is_symlink)
    request_stop(moved)
    assert wait_for_end(moved, scale_timeout(20)) and moved.outcome() == "stopped"


def test_a_run_whose_path_is_taken_ends_and_writes_nothing_there(tmp_path: Path) -> None:
    run = launch(tmp_path / "runs")
    wait_for_ranks(run)
    wait_until((run.events_folder / "sampler.0.jsonl").exists, what="the sampler's file")
    moved = RunDir(run.path.rename(tmp_path / "elsewhere"))
    for name in ("events", "checkpoints", "requests"):
        (run.path / name).mkdir(parents=True)
    assert wait_for_end(moved, scale_timeout(20)) and moved.outcome() == "failed"
    (problem,) = launching.read_problems(moved)
    assert problem.code == "run-folder" and f"moved to {moved.path}" in problem.message
    assert not [path for path in run.path.rglob("*") if not path.is_dir()]


def test_a_folder_at_a_moved_runs_old_path_is_kept(tmp_path: Path) -> None:
    run = launch(tmp_path / "runs")
    wait_for_ranks(run)
    # Whoever begins to write later looks for its folder under the first name.
    wait_until((run.events_folder / "sampler.0.jsonl").exists, what="the sampler's file")
    moved = RunDir(run.path.rename(tmp_path / "elsewhere"))
    run.path.mkdir()
    assert wait_for_end(moved, scale_timeout(20)) and moved.outcome() == "failed"
    assert [*run.path.iterdir()] == []
