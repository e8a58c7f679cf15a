"""Checks side by side, each in a process of its own that is ended when its time is over.

A look at a machine that is ill may never come back: a folder of a server that is gone, a name server that
does not answer, a driver. So each check is forked, tells its rows through a pipe, and is killed with all that
it started. One that comes `after` another begins when that one is over, so that what is measured is measured
alone.
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
"""Nothing here has threads; an interpreter for each check would cost more than all of them."""


@dataclass(frozen=True)
class Check:
    """`run` tells the rows that `names` lists, within `limit_s`.

    `after` is the first row of the check that it waits for; one that `needs_success` it is not tried where
    that one was cut off.
    """

    names: tuple[str, ...]
    run: Callable[[], Iterable[CheckLine]]
    limit_s: float
    after: str | None = None
    needs_success: bool = False


@dataclass
class _RunningCheck:
    """A check that has begun."""

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
        """The next row; None when there will be no more."""
        try:
            line = decode(self.pipe.recv_bytes())
        except (EOFError, OSError):
            return None
        assert isinstance(line, CheckLine)
        self.reported.append(line.name)
        return line

    def kill(self) -> int | None:
        """Kill it and all that it started; its exit code, None where the kernel does not let go of it."""
        try:
            os.killpg(_pid(self.process), signal.SIGKILL)
        except OSError:
            self.process.kill()
        self.pipe.close()
        self.process.join(_KILL_TIMEOUT_S)
        return self.process.exitcode


def run_checks(checks: Sequence[Check]) -> Iterator[CheckLine]:
    """Every row of the checks, as it is known."""
    waiting, running = list(checks), list[_RunningCheck]()
    cut_off: set[str] = set()
    try:
        while waiting or running:
            begun = _ready_checks(waiting, running)
            waiting = [check for check in waiting if check not in begun]
            for check in begun:
                if check.needs_success and check.after in cut_off:
                    cut_off.add(check.names[0])
                    yield from skipped_rows(
                        check.names, phrase("What comes before it did not come to an end.")
                    )
                else:
                    running.append(_start_check(check))
            for look in _wait_for_checks(running):
                if look.remaining_s > 0 and (line := look.read_row()) is not None:
                    yield line
                    continue
                running.remove(look)
                yield from _missing_rows(look, cut_off)
    finally:
        for look in running:
            look.kill()


def _ready_checks(waiting: Sequence[Check], running: Sequence[_RunningCheck]) -> list[Check]:
    """Those that wait for nobody any more."""
    ahead = {check.names[0] for check in [*waiting, *(look.check for look in running)]}
    return [check for check in waiting if check.after not in ahead]


def _start_check(check: Check) -> _RunningCheck:
    reading, writing = _FORK_CONTEXT.Pipe(duplex=False)
    process = _FORK_CONTEXT.Process(target=_run_check, args=(check, reading, writing, os.getpid()))
    process.start()
    writing.close()
    try:
        os.setpgid(_pid(process), _pid(process))
    except OSError:
        pass  # it has done so itself, or has ended
    return _RunningCheck(check, process, reading, time.monotonic())


def _pid(process: BaseProcess) -> int:
    assert process.pid is not None, "it has been started"
    return process.pid


def _run_check(check: Check, reading: Connection, writing: Connection, parent: int) -> None:
    """In the check's own process. Whatever goes wrong in it is told as a row."""
    os.setpgid(0, 0)
    die_with_parent(parent)
    reading.close()
    began_s, told = time.monotonic(), set()
    try:
        for line in check.run():
            line.seconds = round(time.monotonic() - began_s, 3)
            told.add(line.name)
            writing.send_bytes(encode(line))
    except Exception as error:
        why = phrase("It could not be looked at: {error}.", error=f"{type(error).__name__}: {error}")
        for line in skipped_rows((name for name in check.names if name not in told), why):
            writing.send_bytes(encode(line))


def _wait_for_checks(running: Sequence[_RunningCheck]) -> list[_RunningCheck]:
    """Those that have something to tell, have ended, or have had their time; waits for the first."""
    if not running:
        return []
    patience_s = max(0.0, min(look.remaining_s for look in running))
    ready = wait([look.pipe for look in running], patience_s)
    return [look for look in running if look.pipe in ready or look.remaining_s <= 0]


def _missing_rows(look: _RunningCheck, cut_off: set[str]) -> Iterator[CheckLine]:
    """What is to be told in the place of rows that a check did not tell."""
    is_late = look.remaining_s <= 0
    code = look.kill()
    if not look.unreported:
        return
    cut_off.add(look.check.names[0])
    if is_late:
        finding = phrase("It did not answer within {limit:.0f} s.", limit=look.check.limit_s)
        evidence = phrase("ended with all that it had started")
        if code is None:
            evidence = phrase("process {pid} does not end: the kernel waits for it", pid=look.process.pid)
    else:
        finding = phrase("Its process ended without a word.")
        evidence = phrase("exit status {code}", code=code)
    for name in look.unreported:
        yield make_row(name, Verdict.FAILED, finding, evidence)


# The list of checks: which rows each tells, within which time, and what it waits for.
#
# Measured things wait for each other: the disk, then imports of torch, then ranks by gloo, then by NCCL.
# All else is looked at meanwhile. Together they take some seconds, and some minutes where all of them hang.

_FAST_LIMIT_S, _DISK_LIMIT_S, _DNS_LIMIT_S, _DRIVER_LIMIT_S = 5.0, 20.0, 10.0, 60.0


@dataclass(frozen=True)
class CheckTarget:
    """What is looked at beside the machine itself: an interpreter, and the folder that will hold runs."""

    python: ChosenPython
    runs_folder: Path


def build_checks(looked: CheckTarget) -> list[Check]:
    """All of them."""
    interpreter = looked.python.python
    found = [
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
    if not environments.is_rankdeck_environment(interpreter.parent.parent):
        own = ChosenPython(environments.rankdeck_python(), environments.OWN_PYTHON_TEXT)
        found.append(_python_check("own-python", own))
    return found


def _python_check(name: str, chosen: ChosenPython) -> Check:
    return Check((name,), partial(python.check_python, name, chosen), python.PROBE_TIMEOUT_S, after="runs")


def select_checks(checks: list[Check], names: set[str]) -> list[Check]:
    """The checks that tell these rows, all where none is named."""
    return [check for check in checks if not names or names & set(check.names)]
