"""Run checks in parallel, each in a process that is killed at its time limit.

A check may block forever, for example on a file server that is gone, a name server that does not answer, or a
faulty driver. So each check is forked, sends its rows through a pipe, and is killed with all processes that
it started. A check whose `after` names another check starts when that check has ended, so that measurements
do not disturb each other.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from rankdeck.base.heartbeat import die_with_parent
from rankdeck.base.home import state_dir
from rankdeck.base.phrases import phrase
from rankdeck.config import environments
from rankdeck.config.interpreters import ChosenPython
from rankdeck.doctor import disk_space, gpus, limits, network, python, rendezvous
from rankdeck.doctor.lines import CheckLine, Verdict, decode, encode, make_row, skipped_rows

_KILL_TIMEOUT_S = 0.5
_FORK_CONTEXT = multiprocessing.get_context("fork")
"""Fork is safe because this process has a single thread; starting a new interpreter for each check would take
longer than the checks themselves."""


@dataclass(frozen=True)
class Check:
    """A check: `run` yields the rows called `names`, within `limit_s` seconds.

    `after` is the name of another check's first row; that check must end before this one starts. If
    `needs_success` is True, this check is skipped if the other check did not finish.
    """

    names: tuple[str, ...]
    run: Callable[[], Iterable[CheckLine]]
    limit_s: float
    after: str | None = None
    needs_success: bool = False


@dataclass
class _RunningCheck:
    """A check that has started."""

    check: Check
    process: BaseProcess
    pipe: Connection
    started_s: float
    reported: list[str] = field(default_factory=list)

    @property
    def remaining_s(self) -> float:
        return self.started_s + self.check.limit_s - time.monotonic()

    @property
    def unreported(self) -> list[str]:
        return [name for name in self.check.names if name not in self.reported]

    def read_row(self) -> CheckLine | None:
        """Return the next row; None if there are no more."""
        try:
            line = decode(self.pipe.recv_bytes())
        except (EOFError, OSError):
            return None
        assert isinstance(line, CheckLine)
        self.reported.append(line.name)
        return line

    def kill(self) -> int | None:
        """Kill the check's process group and return the exit code; None if the process does not end after
        SIGKILL."""
        try:
            os.killpg(_pid(self.process), signal.SIGKILL)
        except OSError:
            self.process.kill()
        self.pipe.close()
        # A process that is blocked in the kernel ignores even SIGKILL until the blocking call returns, so the
        # wait has a limit.
        self.process.join(_KILL_TIMEOUT_S)
        return self.process.exitcode


def run_checks(checks: Sequence[Check]) -> Iterator[CheckLine]:
    """Yield every row of the checks as soon as it is known."""
    waiting, running = list(checks), list[_RunningCheck]()
    cut_off: set[str] = set()
    try:
        while waiting or running:
            ready = _ready_checks(waiting, running)
            waiting = [check for check in waiting if check not in ready]
            for check in ready:
                if check.needs_success and check.after in cut_off:
                    cut_off.add(check.names[0])
                    yield from skipped_rows(
                        check.names, phrase("The check on which this one depends did not finish.")
                    )
                else:
                    running.append(_start_check(check))
            for running_check in _wait_for_checks(running):
                # A check at its limit is not read any more: a check that keeps sending rows would otherwise
                # never be cut off.
                if running_check.remaining_s > 0 and (line := running_check.read_row()) is not None:
                    yield line
                    continue
                running.remove(running_check)
                yield from _missing_rows(running_check, cut_off)
    finally:
        for running_check in running:
            running_check.kill()


def _ready_checks(waiting: Sequence[Check], running: Sequence[_RunningCheck]) -> list[Check]:
    """Return the checks that no longer have to wait for another check."""
    unfinished_names = {
        check.names[0] for check in [*waiting, *(running_check.check for running_check in running)]
    }
    return [check for check in waiting if check.after not in unfinished_names]


def _start_check(check: Check) -> _RunningCheck:
    reading, writing = _FORK_CONTEXT.Pipe(duplex=False)
    process = _FORK_CONTEXT.Process(target=_run_check, args=(check, reading, writing, os.getpid()))
    process.start()
    # With this end open, the pipe would not end with the child.
    writing.close()
    try:
        # The child does this too: whichever is first, `kill` finds the group.
        os.setpgid(_pid(process), _pid(process))
    except OSError:
        pass  # the child has done so itself, or has ended
    return _RunningCheck(check, process, reading, time.monotonic())


def _pid(process: BaseProcess) -> int:
    assert process.pid is not None, "the process has not been started"
    return process.pid


def _run_check(check: Check, reading: Connection, writing: Connection, parent: int) -> None:
    """Run the check in its own process. If it raises an exception, report that in each row that is still
    missing."""
    os.setpgid(0, 0)
    die_with_parent(parent)
    reading.close()
    began_s, reported = time.monotonic(), set()
    try:
        for line in check.run():
            line.seconds = round(time.monotonic() - began_s, 3)
            reported.add(line.name)
            writing.send_bytes(encode(line))
    # Rows that were already sent keep their verdicts: only the missing ones become "skipped".
    except Exception as error:
        why = phrase("The check failed with {error}.", error=f"{type(error).__name__}: {error}")
        for line in skipped_rows((name for name in check.names if name not in reported), why):
            writing.send_bytes(encode(line))


def _wait_for_checks(running: Sequence[_RunningCheck]) -> list[_RunningCheck]:
    """Wait until at least one check has sent a row, has ended, or has reached its time limit; return every
    check that has."""
    if not running:
        return []
    patience_s = max(0.0, min(running_check.remaining_s for running_check in running))
    ready = wait([running_check.pipe for running_check in running], patience_s)
    return [
        running_check
        for running_check in running
        if running_check.pipe in ready or running_check.remaining_s <= 0
    ]


def _missing_rows(running_check: _RunningCheck, cut_off: set[str]) -> Iterator[CheckLine]:
    """Kill the check; if rows are unreported, yield a failed row for each and add the check to `cut_off`."""
    is_late = running_check.remaining_s <= 0
    code = running_check.kill()
    if not running_check.unreported:
        return
    cut_off.add(running_check.check.names[0])
    if is_late:
        finding = phrase("The check did not finish within {limit:.0f} s.", limit=running_check.check.limit_s)
        evidence = phrase("the check's process and its child processes were killed")
        if code is None:
            evidence = phrase(
                "process {pid} cannot be killed: it is blocked in the kernel", pid=running_check.process.pid
            )
    else:
        finding = phrase("The check's process exited without a result.")
        evidence = phrase("exit status {code}", code=code)
    for name in running_check.unreported:
        yield make_row(name, Verdict.FAILED, finding, evidence)


# The list of checks: the rows that each one reports, its time limit, and the check that it waits for.
# Measurements wait for each other: the disk, then importing torch, then ranks with gloo, then with NCCL. All
# other checks run meanwhile. Together they take some seconds, or some minutes if all of them hang.

_FAST_LIMIT_S, _DISK_LIMIT_S, _DNS_LIMIT_S, _DRIVER_LIMIT_S = 5.0, 20.0, 10.0, 60.0


@dataclass(frozen=True)
class CheckTarget:
    """Targets to check besides the machine: an interpreter, and the folder that will contain the runs."""

    python: ChosenPython
    runs_folder: Path


def build_checks(looked: CheckTarget) -> list[Check]:
    """Return all checks of the machine and of the targets in `looked`."""
    interpreter = looked.python.python
    checks = [
        Check(("driver", "gpus", "vram", "order", "peers"), gpus.check_gpus, _DRIVER_LIMIT_S),
        Check(("runs",), partial(disk_space.check_runs_folder, looked.runs_folder), _DISK_LIMIT_S),
        Check(("state",), partial(disk_space.check_state_folder, state_dir()), _DISK_LIMIT_S),
        Check(("shm",), disk_space.check_shared_memory, _FAST_LIMIT_S),
        Check(("memory",), limits.check_memory, _FAST_LIMIT_S),
        Check(("files",), limits.check_open_files, _FAST_LIMIT_S),
        Check(("processes",), limits.check_process_limit, _FAST_LIMIT_S),
        Check(("threads",), limits.check_threads, _FAST_LIMIT_S),
        Check(("loopback",), network.check_loopback, _DNS_LIMIT_S),
        Check(("hostname",), network.check_hostname, _DNS_LIMIT_S),
        Check(("interface",), network.check_interface, _FAST_LIMIT_S),
        Check(("clock",), limits.check_clock, _FAST_LIMIT_S),
        Check(("logout",), limits.check_logout, _FAST_LIMIT_S),
        _python_check("python", looked.python),
        Check(
            ("gloo",),
            partial(rendezvous.check_gloo, interpreter),
            rendezvous.LIMIT_S,
            "python",
            needs_success=True,
        ),
        Check(
            ("nccl",),
            partial(rendezvous.check_nccl, interpreter),
            rendezvous.LIMIT_S,
            "gloo",
            needs_success=True,
        ),
    ]
    # A configured run's ranks always use Rankdeck's own interpreter, a script's ranks the chosen one. If they
    # differ, both need a working torch.
    if not environments.is_rankdeck_environment(interpreter.parent.parent):
        own_python = ChosenPython(environments.rankdeck_python(), environments.OWN_PYTHON_TEXT)
        checks.append(_python_check("own-python", own_python))
    return checks


def _python_check(name: str, chosen: ChosenPython) -> Check:
    return Check((name,), partial(python.check_python, name, chosen), python.PROBE_TIMEOUT_S, after="runs")


def select_checks(checks: list[Check], names: set[str]) -> list[Check]:
    """Return the checks that report the rows `names`; all checks if `names` is empty."""
    return [check for check in checks if not names or names & set(check.names)]
