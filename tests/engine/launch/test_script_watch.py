"""A script whose ranks stand still is told, once, with where they are; it is never ended for that."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankdeck.base.errors import Problem
from rankdeck.diagnose.hang import PHASE_WARNING_S, STEP_WARNING_S
from rankdeck.launch.control import request_stop
from rankdeck.run_dir import RunDir
from tests.helpers import launching
from tests.helpers.scripts import launch_script, wait_for_script_end
from tests.helpers.waiting import wait_until

_OBSERVED = str(Path(__file__).parents[2] / "helpers" / "observed.py")


def _warning(run: RunDir) -> Problem:
    (problem,) = wait_until(
        lambda: launching.read_problems(run, "warning"), deadline_s=STEP_WARNING_S + 10, what="a warning"
    )
    assert run.exit_record() is None, "the script goes on"
    return problem


@pytest.mark.slow
def test_a_hang_names_the_lines_of_waiting_ranks_only(tmp_path: Path) -> None:
    """All at once, because each takes the patience that a script is given."""
    arguments = {
        "behind": ["0:12:hangs", "1:10:sleeps"],
        "left": ["0:12:hangs", "1:10:leaves"],
        "alone": ["0:5:sleeps"],
        "busy": ["0:5:computes"],
        "beating": ["0:5:works"],
    }
    runs = {
        name: launch_script(tmp_path / name, "", run=_OBSERVED, args=args, ranks=len(args))
        for name, args in arguments.items()
    }
    behind = _warning(runs["behind"])
    assert (behind.code, behind.rank) == ("hang-suspected", 1)
    assert (
        "after step 10, in wait_for_disk (" in behind.message
        and "while the other ranks are waiting" in behind.message
    )
    assert f"rankdeck stop {runs['behind'].name}" in (behind.advice or "")
    left = _warning(runs["left"])
    assert (left.code, left.rank) == ("rank-left", 1)
    assert left.message.startswith("Rank 1 exited with status 0 after step 10, but the other ranks")
    assert "rank 0 in all_reduce (" in left.message
    alone = _warning(runs["alone"])
    assert alone.rank is None and "after step 5, in wait_for_disk (" in alone.message
    for run in runs.values():
        request_stop(run)
    for name, run in runs.items():
        assert wait_for_script_end(run)[0].outcome == "stopped"
        assert len(launching.read_problems(run, "warning")) == (name in ("behind", "left", "alone"))


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_script_without_events_is_not_suspected(tmp_path: Path, ranks: int) -> None:
    """No heartbeat at all: it may be anything."""
    run = launch_script(tmp_path, "print('hello')", ranks=ranks)
    assert wait_for_script_end(run)[0].outcome == "completed"
    assert not launching.read_problems(run, "warning")


@pytest.mark.slow
def test_a_rank_suspended_at_start_is_reported(tmp_path: Path) -> None:
    """It has imported nothing yet that could be observed."""
    early = "import os, signal\nif os.environ.get('RANK') == '1':\n    os.kill(os.getpid(), signal.SIGSTOP)\n"
    alone = "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n"
    beats = "import torch\nfrom torch.optim import SGD\nimport time\ntime.sleep(1000)\n"
    runs = [
        launch_script(tmp_path / "two", early + beats, ranks=2),
        launch_script(tmp_path / "one", alone, ranks=1),
    ]
    for run in runs:
        (problem,) = wait_until(
            lambda run=run: launching.read_problems(run, "warning"),
            deadline_s=PHASE_WARNING_S + 20,
            what="a warning",
        )
        assert problem.code == "rank-suspended" and "at startup, suspended" in problem.message
        request_stop(run)
    for run in runs:
        assert wait_for_script_end(run)[0].outcome == "stopped"
