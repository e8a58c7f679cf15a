"""Whatever ends a run, and whenever, nothing of it is left and its last word is there."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rankdeck
from rankdeck.base.files import lease_holder, lease_path
from rankdeck.launch import control, guard_launcher
from rankdeck.launch.control import NotRunningError, request_stop, wait_for_end
from rankdeck.launch.guard import KILL_AFTER_S
from rankdeck.launch.guard_launcher import start_guard
from rankdeck.launch.guard_spec import GuardSpec
from rankdeck.launch.processes import kill_leftovers
from rankdeck.run_dir import RunDir, add_attempt, create_run_dir, final_path, list_runs
from tests.helpers import launching
from tests.helpers.launching import (
    FAKE_WORKER,
    launch,
    launch_attached,
    stop_timeout_s,
    supervisor_pid,
    wait_for_ranks,
)
from tests.helpers.processes import processes_of_run
from tests.helpers.waiting import scale_timeout, wait_until

# A run takes about 3 s to begin on two cores; a kill may come before, in the middle or after.
_STARTUP_S = 4.0


def _random_times(count: int, seed: int) -> list[float]:
    """`count` moments spread over a run's first seconds, each at random in its own part of them."""
    pick = random.Random(seed)
    return [round(_STARTUP_S * (index + pick.random()) / count, 3) for index in range(count)]


KillTime = str | float
"""How far a run has come by what it says, or seconds after startup."""
_FEW_TIMES: tuple[Any, ...] = (
    "at once",
    pytest.param("with a supervisor", marks=pytest.mark.slow),
    "with all ranks",
)
_MANY_TIMES = {
    victim: _random_times(20, seed)
    for seed, victim in enumerate(("supervisor", "rank", "guard", "command"), 10)
}


def _wait_for_kill_time(run: RunDir, kill_time: KillTime) -> None:
    if isinstance(kill_time, float):
        due_s = time.monotonic() + kill_time
        wait_until(lambda: time.monotonic() >= due_s, deadline_s=kill_time + 5)
    elif kill_time == "with a supervisor":
        wait_until(lambda: supervisor_pid(run), what="a supervisor")
    elif kill_time == "with all ranks":
        wait_for_ranks(run)


def _leads_session(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


def _kill_after(run: RunDir, victim: str, kill_time: KillTime) -> None:
    """kill -9 of one process of the run, at this moment or as soon as there is such a process."""

    def target() -> int | None:
        if victim == "guard":
            return launching.guard_pid(run)
        supervisor = supervisor_pid(run)
        if victim == "supervisor" or supervisor is None:
            return supervisor
        others = (supervisor, launching.guard_pid(run), launching.sampler_pid(run))
        # A rank has a session of its own; what was forked for a sampler and is not one yet has none.
        run_pids = [pid for pid in processes_of_run(run.path) if _leads_session(pid)]
        ranks = [pid for pid in run_pids if pid not in others]
        return random.Random(kill_time).choice(ranks) if ranks else None

    _wait_for_kill_time(run, kill_time)
    os.kill(wait_until(target, deadline_s=20, what=f"a {victim} to kill"), signal.SIGKILL)


def _check_killed_supervisor_or_rank(tmp_path: Path, victim: str, kill_time: KillTime) -> None:
    run = launch(tmp_path / "runs")
    _kill_after(run, victim, kill_time)
    assert wait_for_end(run, scale_timeout(launching.EXIT_TIMEOUT_S))
    launching.wait_until_gone(run)
    end = run.exit_record()
    assert end is not None and (end.outcome, end.exit_code) == ("failed", 1)
    problems = launching.read_problems(run)
    assert [problem.code for problem in problems] == [
        "supervisor-lost" if victim == "supervisor" else "rank-killed"
    ]
    assert "SIGKILL" in problems[0].message and "SIGKILL" in (end.reason or "")


def _check_killed_guard(tmp_path: Path, kill_time: KillTime) -> None:
    run = launch(tmp_path / "runs")
    _kill_after(run, "guard", kill_time)
    launching.wait_until_gone(run)
    assert run.outcome() == "lost"


def _check_killed_command(tmp_path: Path, kill_time: KillTime) -> None:
    command, run = launch_attached(tmp_path / "runs")
    with command:
        _wait_for_kill_time(run, kill_time)
        command.kill()
    assert wait_for_end(run, scale_timeout(launching.EXIT_TIMEOUT_S))
    launching.wait_until_gone(run)
    end = run.exit_record()
    assert end is not None and (end.outcome, end.exit_code) == ("stopped", 130)


@pytest.mark.parametrize("kill_time", _FEW_TIMES)
def test_killing_the_supervisor_leaves_no_process(tmp_path: Path, kill_time: KillTime) -> None:
    _check_killed_supervisor_or_rank(tmp_path, "supervisor", kill_time)


@pytest.mark.parametrize("kill_time", _FEW_TIMES)
def test_killing_a_rank_ends_the_run_and_names_the_rank(tmp_path: Path, kill_time: KillTime) -> None:
    _check_killed_supervisor_or_rank(tmp_path, "rank", kill_time)


@pytest.mark.parametrize("kill_time", _FEW_TIMES)
def test_killing_the_guard_ends_every_process(tmp_path: Path, kill_time: KillTime) -> None:
    _check_killed_guard(tmp_path, kill_time)


@pytest.mark.parametrize("kill_time", _FEW_TIMES)
def test_killing_the_command_stops_its_run(tmp_path: Path, kill_time: KillTime) -> None:
    _check_killed_command(tmp_path, kill_time)


@pytest.mark.slow
@pytest.mark.parametrize("kill_time", _MANY_TIMES["supervisor"])
def test_killing_the_supervisor_at_any_time_leaves_no_process(tmp_path: Path, kill_time: KillTime) -> None:
    _check_killed_supervisor_or_rank(tmp_path, "supervisor", kill_time)


@pytest.mark.slow
@pytest.mark.parametrize("kill_time", _MANY_TIMES["rank"])
def test_killing_a_rank_at_any_time_ends_the_run(tmp_path: Path, kill_time: KillTime) -> None:
    _check_killed_supervisor_or_rank(tmp_path, "rank", kill_time)


@pytest.mark.slow
@pytest.mark.parametrize("kill_time", _MANY_TIMES["guard"])
def test_killing_the_guard_at_any_time_ends_every_process(tmp_path: Path, kill_time: KillTime) -> None:
    _check_killed_guard(tmp_path, kill_time)


@pytest.mark.slow
@pytest.mark.parametrize("kill_time", _MANY_TIMES["command"])
def test_killing_the_command_at_any_time_stops_its_run(tmp_path: Path, kill_time: KillTime) -> None:
    _check_killed_command(tmp_path, kill_time)


def test_stopping_before_the_ranks_start_is_immediate(
    tmp_path: Path,
) -> None:
    """Also while the supervisor is forked and is not yet itself: one stop of five was lost there."""
    for number in range(8):
        run = launch(tmp_path / f"runs-{number}")
        request_time = time.time()
        request_stop(run)
        end = launching.wait_for_exit_record(run, 5)
        assert end.outcome == "stopped" and end.ended - request_time < KILL_AFTER_S


def test_a_rank_that_ignores_term_is_killed_after_three_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WORKER", "deaf")
    run = launch(tmp_path / "runs")
    wait_for_ranks(run)
    start_s = time.monotonic()
    request_stop(run)
    assert launching.wait_for_exit_record(run, 6).outcome == "stopped"
    assert 2.5 < time.monotonic() - start_s < scale_timeout(4.5)


def test_stop_now_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_WORKER", "deaf")
    run = launch(tmp_path / "runs")
    wait_for_ranks(run)
    start_s = time.monotonic()
    request_stop(run, now=True)
    assert launching.wait_for_exit_record(run, 5).outcome == "stopped"
    assert time.monotonic() - start_s < stop_timeout_s(1.5)


@pytest.mark.parametrize("way", ["done", pytest.param("stop", marks=pytest.mark.slow), "kill"])
def test_detached_child_processes_are_killed_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setenv("FAKE_WORKER", "breeding")
    if way == "done":
        monkeypatch.setenv("FAKE_STEPS", "5")
    run = launch(tmp_path / "runs")
    wait_for_ranks(run)
    if way == "stop":
        request_stop(run)
    elif way == "kill":
        supervisor = supervisor_pid(run)
        assert supervisor is not None
        os.kill(supervisor, signal.SIGKILL)
    assert (
        launching.wait_for_exit_record(run, 5).outcome
        == {"done": "completed", "stop": "stopped", "kill": "failed"}[way]
    )


def test_the_next_start_kills_leftovers_of_a_killed_guard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WORKER", "breeding")
    run = launch(tmp_path / "runs")
    wait_for_ranks(run)
    wait_until(lambda: len(processes_of_run(run.path)) >= 2 + 2 + 8, what="the helpers of both ranks")
    monkeypatch.setenv("FAKE_WORKER", "steps")
    other = launch(tmp_path / "runs")
    os.kill(launching.guard_pid(run), signal.SIGKILL)
    wait_until(lambda: not run.is_alive())
    assert processes_of_run(run.path)
    ended = kill_leftovers()
    launching.wait_until_gone(run)
    assert ended and other.is_alive() and processes_of_run(other.path)
    request_stop(other, now=True)
    launching.wait_for_exit_record(other, 5)


def test_stop_asks_first_and_another_run_continues(tmp_path: Path) -> None:
    first, second = launch(tmp_path / "runs"), launch(tmp_path / "runs")
    wait_for_ranks(first)
    wait_for_ranks(second)
    start_s = time.monotonic()
    request_stop(first)
    end = launching.wait_for_exit_record(first, 5)
    assert (end.outcome, end.exit_code, end.reason) == ("stopped", 130, None)
    assert time.monotonic() - start_s < stop_timeout_s(2)
    assert not launching.read_problems(first)
    assert first.exit_record() is not None
    attempt, _ = add_attempt(first, first.config(), first.environment())
    start_guard(first, [], worker=str(FAKE_WORKER), detach=True, attempt=attempt)
    assert first.is_alive() and first.exit_record() is None, "the word of the attempt before"
    request_stop(first, now=True)
    launching.wait_for_exit_record(first, 5)
    assert second.is_alive() and len(processes_of_run(second.path)) == 5
    assert {run.name for run in list_runs(tmp_path / "runs")} == {first.name, second.name}
    request_stop(second)
    assert launching.wait_for_exit_record(second, 5).outcome == "stopped"


def test_a_run_with_a_path_too_long_for_a_socket_can_be_stopped(tmp_path: Path) -> None:
    folder = tmp_path / ("a long way down " * 6).strip() / "runs"
    run = launch(folder)
    assert len(str(run.path / "control.sock")) > 107
    request_stop(run)
    assert launching.wait_for_exit_record(run, 5).outcome == "stopped"


def test_a_run_without_a_socket_is_stopped_by_a_signal(tmp_path: Path) -> None:
    run = launch(tmp_path / "runs")
    (run.path / "control.sock").unlink()
    request_stop(run)
    assert launching.wait_for_exit_record(run, 5).outcome == "stopped"


def test_a_suspended_guard_receives_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "_ANSWER_TIMEOUT_S", 0.5)
    run = launch(tmp_path / "runs")
    os.kill(int((run.path / "guard.lock").read_text()), signal.SIGSTOP)
    request_stop(run)
    assert launching.wait_for_exit_record(run, 5).outcome == "stopped"


def test_the_guard_answers_with_the_maximum_of_connections_open(tmp_path: Path) -> None:
    """With as many callers as a guard takes, and with none of its file descriptors left."""
    run = launch(tmp_path / "runs")
    guard = int((run.path / "guard.lock").read_text())
    with contextlib.ExitStack() as lines:
        for handles in (1024, len(list(Path(f"/proc/{guard}/fd").iterdir())) + 3):
            resource.prlimit(guard, resource.RLIMIT_NOFILE, (handles, handles))
            for _ in range(80):
                caller = lines.enter_context(connect(run))
            caller.sendall(b"{}\n")
            assert json.loads(caller.makefile("rb").readline())["ok"] is False
    request_stop(run, now=True)
    launching.wait_for_exit_record(run, 5)


@contextlib.contextmanager
def connect(run: RunDir) -> Iterator[socket.socket]:
    folder = os.open(run.path, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(scale_timeout(5))
        # Where many wait to be heard, the kernel asks to try again.
        wait_until(lambda: caller.connect_ex(f"/proc/self/fd/{folder}/control.sock") == 0)
        os.close(folder)
        yield caller


def test_the_control_socket_is_private_and_rejects_bad_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = launch(tmp_path / "runs")
    monkeypatch.chdir(run.path)  # the whole path may be longer than a socket's may be
    assert (run.path / "control.sock").stat().st_mode & 0o077 == 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(scale_timeout(5))
        caller.connect("control.sock")
        lines = caller.makefile("rb")
        nonsense = (b"hello\n", b"[]\n", b'{"command": "dance"}\n', b"\xff\xfe\n", b"[" * 60_000 + b"\n")
        for line in nonsense:
            caller.sendall(line)
            assert json.loads(lines.readline())["ok"] is False
        lines.close()
    assert run.is_alive()
    request_stop(run, now=True)
    launching.wait_for_exit_record(run, 5)
    with pytest.raises(NotRunningError, match="stopped"):
        request_stop(run)


def test_a_lease_is_held_during_the_run_and_refuses_another(tmp_path: Path) -> None:
    config = launching.small_config(tmp_path)
    leases = [lease_path("GPU-1234")]
    run = start_guard(
        create_run_dir(tmp_path / "runs", config, {}), leases, worker=str(FAKE_WORKER), detach=True
    )
    assert lease_holder("GPU-1234") == str(run.path)
    with pytest.raises(Exception, match=run.name):
        start_guard(create_run_dir(tmp_path / "runs", config, {}), leases, detach=True)
    request_stop(run, now=True)
    launching.wait_for_exit_record(run, 5)
    assert lease_holder("GPU-1234") is None


def test_a_supervisor_that_fails_to_start_is_reported_in_its_log(tmp_path: Path) -> None:
    hidden = create_run_dir(tmp_path / "runs", launching.small_config(tmp_path), {})
    run = RunDir(final_path(hidden))
    answer_end, ready_end = os.pipe()
    spec: GuardSpec = {
        "hidden": str(hidden.path),
        "final": str(run.path),
        "command": [str(tmp_path / "no-python")],
        "leases": [],
        "attempt": 0,
        "max_restarts": 0,
        "signals": False,
        "stop_s": KILL_AFTER_S,
        "ready_fd": ready_end,
        "tether_fd": None,
        "passed": [],
        "held": [],
        "hosts": None,
    }
    command = [sys.executable, "-I", "-S", "-c", guard_launcher._GUARD_CODE, guard_launcher._ENGINE_FOLDER]
    subprocess.run(command, input=json.dumps(spec).encode(), pass_fds=[ready_end], check=True, timeout=60)
    os.close(ready_end)
    with open(answer_end, "rb") as answer:
        assert "ready" in json.load(answer)
    assert (
        launching.wait_for_exit_record(run, 5).reason
        == "The run's supervisor exited with status 1: see logs/supervisor.*.err."
    )
    (lost,) = launching.read_problems(run)
    assert lost.code == "supervisor-lost" and lost.arguments == {"message": {"status": 1}}
    assert "No such file" in (run.logs_folder / "supervisor.0.err").read_text(encoding="utf-8")


def test_the_guard_imports_only_its_own_files_and_the_standard_library() -> None:
    engine = Path(rankdeck.__file__).parents[1]
    script = (
        "import sys; sys.path.append(sys.argv[1]); import rankdeck.launch.guard; "
        "print(*sorted(name for name in sys.modules if name.startswith('rankdeck')))"
    )
    command = [sys.executable, "-I", "-S", "-c", script, str(engine)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    launch = {
        f"rankdeck.launch.{name}"
        for name in (
            "guard",
            "guard_spec",
            "locks",
            "control_server",
            "descendants",
            "exit_record",
            "save_watch",
            "run_dir_tracker",
        )
    }
    modules = {"rankdeck", "rankdeck.launch", *launch, "rankdeck.observer", "rankdeck.observer.process_title"}
    assert set(done.stdout.split()) == modules
