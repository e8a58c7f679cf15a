"""Runs that are started from Python: processes of their own, and Ctrl-C while waiting stops them in order."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import rankdeck
from rankdeck.base.errors import RankdeckError
from rankdeck.run_dir import find_run
from tests.helpers.waiting import scale_timeout, wait_until

TRAIN_SCRIPT = """
import json, os, signal, sys, threading
import rankdeck

asked = ("torch", "numpy", "msgspec", "rankdeck.base")
at_import = [name for name in asked if name in sys.modules]
before = dict(os.environ), list(sys.path), os.getcwd(), signal.getsignal(signal.SIGINT)
tables = {"model": {"use": "mlp"}, "data": {"use": "digits"}, "train": {"steps": 10**6}}
try:
    rankdeck.train(tables, devices="cpu:1", name="long one")
except KeyboardInterrupt:
    run = rankdeck.open_run("last")
    after = dict(os.environ), list(sys.path), os.getcwd(), signal.getsignal(signal.SIGINT)
    print(json.dumps({
        "at_import": at_import, "torch": "torch" in sys.modules, "same": before == after,
        "threads": threading.active_count(), "outcome": run.outcome, "steps": len(run.steps),
        "alive": run._dir.is_alive(),
    }))
"""


def test_ctrl_c_stops_the_run_and_leaves_the_caller_unchanged(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-P", "-c", TRAIN_SCRIPT], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as caller:
        assert caller.stdout is not None
        lines = []
        for line in caller.stdout:
            lines.append(line)
            if line.startswith("step "):
                break
        caller.send_signal(signal.SIGINT)
        remainder = caller.communicate(timeout=scale_timeout(60))[0]
    assert lines[0] == "starting 1 rank\n"
    facts = json.loads(remainder.splitlines()[-1])
    assert facts.pop("steps") > 0
    assert facts == {
        "at_import": [],
        "torch": False,
        "same": True,
        "threads": 1,
        "outcome": "stopped",
        "alive": False,
    }


RUN_SCRIPT = """
import rankdeck, sys
try:
    rankdeck.run("slow.py")
except KeyboardInterrupt:
    run = rankdeck.open_run("last")
    print(run.outcome, run._dir.is_alive(), run.logs().strip())
"""


def test_ctrl_c_stops_a_script_before_it_is_raised(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    with subprocess.Popen(
        [sys.executable, "-P", "-c", RUN_SCRIPT], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as caller:
        assert caller.stdout is not None
        wait_until(lambda: "up" in _last_log(), deadline_s=30)
        caller.send_signal(signal.SIGINT)
        output = caller.communicate(timeout=scale_timeout(60))[0]
    assert output.splitlines()[-1] == "stopped False up"


def _last_log() -> str:
    """What the newest run has written so far."""
    try:
        return rankdeck.open_run("last").logs()
    except RankdeckError:
        return ""


def test_a_detached_run_outlives_its_caller(tmp_path: Path) -> None:
    script = tmp_path / "slow.py"
    script.write_text("import sys, time\nprint(sys.argv[1:], flush=True)\ntime.sleep(600)\n")
    starts = f"import rankdeck; print(rankdeck.run({str(script)!r}, '--lr', 0.1, wait=False).path)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", starts],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=scale_timeout(60),
    )
    run = rankdeck.open_run(done.stdout.strip())
    # Unbuffered, print writes the end of its line by itself.
    wait_until(lambda: any(run.path.glob("logs/rank-0.0.out")) and run.logs().endswith("\n"), deadline_s=30)
    assert run.is_running and run.logs() == "['--lr', '0.1']\n"
    assert run.stop().outcome == "stopped" and run.stop() is run
    assert find_run("last", Path(os.environ["RANKDECK_RUNS"])).path == run.path


def test_an_awaited_run_stops_when_its_caller_is_killed(tmp_path: Path) -> None:
    """A script's; a configuration's, in tests/engine/launch/test_guard.py, is begun in the same way."""
    (tmp_path / "slow.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    with subprocess.Popen([sys.executable, "-P", "-c", RUN_SCRIPT], cwd=tmp_path) as caller:
        wait_until(lambda: "up" in _last_log(), deadline_s=30)
        caller.kill()
    run = rankdeck.open_run("last")
    wait_until(lambda: not run._dir.is_alive(), deadline_s=60)
    assert run.outcome == "stopped"
