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
from rankdeck.doctor import gpus, limits, meeting, network, python, room
from rankdeck.doctor.lines import CheckLine, Verdict, decode, encode, not_tried, row

_ENDS_WITHIN_S = 0.5
_FORK = multiprocessing.get_context("fork")
"""Nothing here has threads; an interpreter for each check would cost more than all of them."""


@dataclass(frozen=True)
class Check:
    """`look` tells the rows that `names` lists, within `limit_s`.

    `after` is the first row of the check that it waits for; one that `needs` it is not tried where that one
    was cut off.
    """

    names: tuple[str, ...]
    look: Callable[[], Iterable[CheckLine]]
    limit_s: float
    after: str | None = None
    needs: bool = False


@dataclass
class _Look:
    """A check that has begun."""

    check: Check
    process: BaseProcess
    reading: Connection
    began_s: float
    told: list[str] = field(default_factory=list)

    @property
    def left_s(self) -> float:
        return self.began_s + self.check.limit_s - time.monotonic()

    @property
    def untold(self) -> list[str]:
        return [name for name in self.check.names if name not in self.told]

    def read(self) -> CheckLine | None:
        """The next row; None when there will be no more."""
        try:
            line = decode(self.reading.recv_bytes())
        except (EOFError, OSError):
            return None
        assert isinstance(line, CheckLine)
        self.told.append(line.name)
        return line

    def end(self) -> int | None:
        """Kill it and all that it started; its exit code, None where the kernel does not let go of it."""
        try:
            os.killpg(_pid(self.process), signal.SIGKILL)
        except OSError:
            self.process.kill()
        self.reading.close()
        self.process.join(_ENDS_WITHIN_S)
        return self.process.exitcode


def look_over(checks: Sequence[Check]) -> Iterator[CheckLine]:
    """Every row of the checks, as it is known."""
    waiting, running = list(checks), list[_Look]()
    cut_off: set[str] = set()
    try:
        while waiting or running:
            begun = _ready(waiting, running)
            waiting = [check for check in waiting if check not in begun]
            for check in begun:
                if check.needs and check.after in cut_off:
                    cut_off.add(check.names[0])
                    yield from not_tried(check.names, phrase("What comes before it did not come to an end."))
                else:
                    running.append(_begin(check))
            for look in _heard(running):
                if look.left_s > 0 and (line := look.read()) is not None:
                    yield line
                    continue
                running.remove(look)
                yield from _ended(look, cut_off)
    finally:
        for look in running:
            look.end()


def _ready(waiting: Sequence[Check], running: Sequence[_Look]) -> list[Check]:
    """Those that wait for nobody any more."""
    ahead = {check.names[0] for check in [*waiting, *(look.check for look in running)]}
    return [check for check in waiting if check.after not in ahead]


def _begin(check: Check) -> _Look:
    reading, writing = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_tell, args=(check, reading, writing, os.getpid()))
    process.start()
    writing.close()
    try:
        os.setpgid(_pid(process), _pid(process))
    except OSError:
        pass  # it has done so itself, or has ended
    return _Look(check, process, reading, time.monotonic())


def _pid(process: BaseProcess) -> int:
    assert process.pid is not None, "it has been started"
    return process.pid


def _tell(check: Check, reading: Connection, writing: Connection, parent: int) -> None:
    """In the check's own process. Whatever goes wrong in it is told as a row."""
    os.setpgid(0, 0)
    die_with_parent(parent)
    reading.close()
    began_s, told = time.monotonic(), set()
    try:
        for line in check.look():
            line.seconds = round(time.monotonic() - began_s, 3)
            told.add(line.name)
            writing.send_bytes(encode(line))
    except Exception as error:
        why = phrase("It could not be looked at: {error}.", error=f"{type(error).__name__}: {error}")
        for line in not_tried((name for name in check.names if name not in told), why):
            writing.send_bytes(encode(line))


def _heard(running: Sequence[_Look]) -> list[_Look]:
    """Those that have something to tell, have ended, or have had their time; waits for the first."""
    if not running:
        return []
    patience_s = max(0.0, min(look.left_s for look in running))
    ready = wait([look.reading for look in running], patience_s)
    return [look for look in running if look.reading in ready or look.left_s <= 0]


def _ended(look: _Look, cut_off: set[str]) -> Iterator[CheckLine]:
    """What is to be told in the place of rows that a check did not tell."""
    is_late = look.left_s <= 0
    code = look.end()
    if not look.untold:
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
    for name in look.untold:
        yield row(name, Verdict.BROKEN, finding, evidence)


# The list of checks: which rows each tells, within which time, and what it waits for.
#
# Measured things wait for each other: the disk, then imports of torch, then ranks by gloo, then by NCCL.
# All else is looked at meanwhile. Together they take some seconds, and some minutes where all of them hang.

_SOON_S, _DISK_S, _NAMES_S, _DRIVER_S = 5.0, 20.0, 10.0, 60.0


@dataclass(frozen=True)
class Looked:
    """What is looked at beside the machine itself: an interpreter, and the folder that will hold runs."""

    python: ChosenPython
    runs: Path


def checks_of(looked: Looked) -> list[Check]:
    """All of them."""
    interpreter = looked.python.python
    found = [
        Check(("driver", "gpus", "vram", "order", "peers"), gpus.look_at_gpus, _DRIVER_S),
        Check(("runs",), partial(room.look_at_runs, looked.runs), _DISK_S),
        Check(("state",), partial(room.look_at_state, state_dir()), _DISK_S),
        Check(("shm",), room.look_at_shm, _SOON_S),
        Check(("memory",), limits.look_at_memory, _SOON_S),
        Check(("files",), limits.look_at_files, _SOON_S),
        Check(("processes",), limits.look_at_processes, _SOON_S),
        Check(("threads",), limits.look_at_threads, _SOON_S),
        Check(("loopback",), network.look_at_loopback, _NAMES_S),
        Check(("hostname",), network.look_at_hostname, _NAMES_S),
        Check(("interface",), network.look_at_interface, _SOON_S),
        Check(("clock",), limits.look_at_clock, _SOON_S),
        Check(("logout",), limits.look_at_logout, _SOON_S),
        _python("python", looked.python),
        Check(("gloo",), partial(meeting.look_at_gloo, interpreter), meeting.LIMIT_S, "python", needs=True),
        Check(("nccl",), partial(meeting.look_at_nccl, interpreter), meeting.LIMIT_S, "gloo", needs=True),
    ]
    if not environments.is_own(interpreter.parent.parent):
        own = ChosenPython(environments.own(), environments.OWN)
        found.append(_python("own-python", own))
    return found


def _python(name: str, chosen: ChosenPython) -> Check:
    return Check((name,), partial(python.look_at_python, name, chosen), python.ANSWERS_WITHIN_S, after="runs")


def only(checks: list[Check], names: set[str]) -> list[Check]:
    """The checks that tell these rows, all where none is named."""
    return [check for check in checks if not names or names & set(check.names)]
