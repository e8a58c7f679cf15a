"""`rankdeck COMMAND` of a damaged run, in a process of its own: how it ends, what it takes and touches."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from hypothesis import strategies as st

from tests.fuzz.example import Case, Place, cases
from tests.fuzz.readers import OUTSIDE_COMMANDS, words_of
from tests.fuzz.watching import MOST_BYTES, drop_rights, facts
from tests.helpers.cli import RANKDECK

MOST_S = 60.0
"""The processor's. Two seconds of them go into importing torch; a run that goes on trains."""
MOST_WAITED_S = 300.0


def command_cases() -> st.SearchStrategy[Case]:
    command = st.integers(0, len(OUTSIDE_COMMANDS) - 1).map(lambda number: (number,))
    return st.tuples(cases(), command).map(lambda both: replace(both[0], commands=both[1]))


def check_command(sandbox: Place, case: Case) -> None:
    """Raises: AssertionError."""
    with sandbox.environment():
        run = sandbox.make(case)
        before = facts(sandbox.folder_of_case)
        for command in map(OUTSIDE_COMMANDS.__getitem__, case.commands):
            # Who names a file to `plan` has said that its code may run.
            canary = {"RANKDECK_CANARY": os.devnull} if command[0] == "plan" else {}
            _check(words_of(command, run, sandbox.seeds[1]), sandbox.folder_of_case, canary)
        assert facts(sandbox.folder_of_case) == before, "something outside of the run was written"


def _check(command: list[str], folder: Path, variables: Mapping[str, str]) -> None:
    with (folder / "said").open("w+b") as file:
        started = subprocess.Popen(
            [*RANKDECK, *command],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env={**os.environ, **variables, "OMP_NUM_THREADS": "1"},
            cwd=folder,
            preexec_fn=_bounded,
            start_new_session=True,
        )
        used, most_bytes = _waited(started)
        file.seek(0)
        output = file.read(1 << 20).decode("utf-8", "replace")
    took = f"{most_bytes} bytes, {used.ru_utime + used.ru_stime:.1f} s"
    report = f"{command}: exit {started.returncode}, {took}\n{output[-4000:]}"
    assert "Traceback" not in output and "Warning" not in output, report
    assert started.returncode in (0, 1, 2, 3, 130), report
    assert most_bytes < MOST_BYTES, report


def _bounded() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (int(MOST_S), int(MOST_S) + 5))
    drop_rights()


def _waited(started: subprocess.Popen[bytes]) -> tuple[resource.struct_rusage, int]:
    """What the process used until it ended, or was ended, and the most memory that it was seen to have.

    The kernel's own figure of that (ru_maxrss) counts what forked it, too.
    """
    deadline, most_bytes = time.monotonic() + MOST_WAITED_S, 0
    while True:
        pid, status, used = os.wait4(started.pid, os.WNOHANG)
        if pid:
            started.returncode = os.waitstatus_to_exitcode(status)
            return used, most_bytes
        if time.monotonic() > deadline:
            os.killpg(started.pid, signal.SIGKILL)
        most_bytes = max(most_bytes, _peak_bytes(started.pid))
        time.sleep(0.02)


def _peak_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)
