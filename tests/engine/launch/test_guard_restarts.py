"""A supervisor that is killed is begun again as often as restarts are left, and what happened is told."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from rankdeck import events
from rankdeck.launch.control import request_stop
from rankdeck.launch.descendants import SUSPENDED, state_and_parent
from rankdeck.run_dir import EventReader, RunDir
from tests.helpers import killed_runs, launching
from tests.helpers.launching import all_events, launch, read_problems, supervisor_pid
from tests.helpers.processes import processes_of_run
from tests.helpers.scripts import launch_script, log
from tests.helpers.waiting import wait_until

_LAUNCH = {"timeout_s": 20}


def kill_supervisor(run: RunDir) -> None:
    pid = supervisor_pid(run)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def wait_for_attempt(run: RunDir, attempt: int, *, ranks: int = 2) -> None:
    """Wait until all its ranks have started."""

    def started_ranks() -> set[int]:
        batches = EventReader(run).batches()
        attempt_events = [event for name, batch in batches if f".{attempt}." in name for event in batch]
        return {event.rank for event in attempt_events if isinstance(event, events.RankStarted)}

    wait_until(
        lambda: len(started_ranks()) == ranks or run.exit_record(), deadline_s=60, what=f"attempt {attempt}"
    )
    assert run.exit_record() is None, run.exit_record()


def end_events(run: RunDir) -> list[tuple[int, str]]:
    end_records = [event for _, event in all_events(run) if isinstance(event, events.RunEnded)]
    return sorted((event.attempt, event.outcome) for event in end_records)


def test_a_killed_supervisor_is_restarted_while_restarts_are_left(tmp_path: Path) -> None:
    run = launch(tmp_path / "runs", {"launch": {**_LAUNCH, "max_restarts": 2}})
    for attempt in range(3):
        wait_for_attempt(run, attempt)
        before = set(processes_of_run(run.path)) - {launching.guard_pid(run)}
        kill_supervisor(run)
        wait_until(lambda before=before: not before & set(processes_of_run(run.path)))
    end = launching.wait_for_exit_record(run)
    assert (end.outcome, end.exit_code) == ("failed", 1) and "SIGKILL" in (end.reason or "")
    warnings = [problem for problem in read_problems(run, "warning") if problem.code == "restarted"]
    assert ["(restart 1 of 2)" in warnings[0].message, "(restart 2 of 2)" in warnings[1].message] == [
        True,
        True,
    ]
    (lost,) = read_problems(run)
    assert lost.code == "supervisor-lost" and lost.as_phrase("message").arguments == {"signal": "SIGKILL"}
    assert end_events(run) == [(0, "failed"), (1, "failed"), (2, "failed")]


def test_a_restarted_run_can_be_stopped_and_a_stop_does_not_restart(tmp_path: Path) -> None:
    run = launch(tmp_path / "runs", {"launch": {**_LAUNCH, "max_restarts": 9}})
    wait_for_attempt(run, 0)
    kill_supervisor(run)
    wait_for_attempt(run, 1)
    request_stop(run)
    assert launching.wait_for_exit_record(run).outcome == "stopped"
    assert end_events(run) == [(0, "failed"), (1, "stopped")]


def test_a_restart_resumes_from_the_newest_checkpoint_bit_for_bit(tmp_path: Path) -> None:
    """The steps behind the checkpoint are trained twice. Beside a run that nobody disturbs:
    tests/e2e/test_resume.py."""
    tables = killed_runs.make_tables({"use": "single"}, 1, None, steps=24)
    run = killed_runs.start_from_tables({**tables, "launch": {"max_restarts": 1}}, tmp_path / "runs")
    killed_runs.wait_for_step(run, 12)
    kill_supervisor(run)
    assert len(killed_runs.wait_for_result(run).losses) == 24
    restored = {event.step for _, event in all_events(run) if isinstance(event, events.Restored)} - {0}
    assert restored <= {8, 16} and restored
    first, again = (_losses(run, attempt) for attempt in (0, 1))
    both = first.keys() & again.keys()
    assert max(restored) + 1 in both and all(first[step] == again[step] for step in both)


def _losses(run: RunDir, attempt: int) -> dict[int, float]:
    """What an attempt told of each of its steps."""
    attempt_events = EventReader(run, first_attempt=attempt, last_attempt=attempt).read()
    return {
        step: loss
        for _, event in attempt_events
        if isinstance(event, events.Steps)
        for step, loss in enumerate(event.loss_sum or [], start=event.first)
    }


_SCRIPT = """
import os, time
print("attempt", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
while os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    time.sleep(9)
"""


def test_a_restarted_script_keeps_its_streams(tmp_path: Path) -> None:
    run = launch_script(tmp_path, _SCRIPT, max_restarts=1)
    wait_until(lambda: log(run) == b"attempt 0\n")
    kill_supervisor(run)
    assert launching.wait_for_exit_record(run).outcome == "completed"
    assert (run.logs_folder / "rank-0.1.out").read_bytes() == b"attempt 1\n"


def test_a_suspended_supervisor_is_reported_each_time_and_can_be_stopped(tmp_path: Path) -> None:
    run = launch(tmp_path / "runs", {"launch": _LAUNCH})
    wait_for_attempt(run, 0)
    pid = supervisor_pid(run)
    assert pid is not None
    for num_warnings in (1, 2):
        os.kill(pid, signal.SIGSTOP)
        warnings = wait_until(
            lambda n=num_warnings: len(problems := read_problems(run, "warning")) == n and problems
        )
        assert warnings[-1].code == "supervisor-suspended" and f"kill -CONT {pid}" in (
            warnings[-1].advice or ""
        )
        if num_warnings == 1:
            os.kill(pid, signal.SIGCONT)
            wait_until(lambda: state_and_parent(pid)[0] != SUSPENDED)
            time.sleep(1.5)  # the guard looks once a second
    request_stop(run)
    assert launching.wait_for_exit_record(run).outcome == "stopped"
