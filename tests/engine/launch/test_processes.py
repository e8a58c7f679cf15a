"""What a process and its children have done is read even where a part of it is hidden."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from rankdeck.launch.processes import ProcessWork, work_of


def test_the_work_of_a_process_includes_its_children() -> None:
    before = work_of(os.getpid())
    busy = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        after = work_of(os.getpid())
        assert after.cpu_s - before.cpu_s >= 0.4 and after.io_bytes > before.io_bytes
        child.communicate(b"\n")
    assert work_of(child.pid) == ProcessWork()


def test_the_cpu_time_counts_where_the_io_counters_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that does not let a process read /proc/<pid>/io."""

    def refuse(process: psutil.Process) -> None:
        raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(psutil.Process, "io_counters", refuse)
    work = work_of(os.getpid())
    assert work.cpu_s > 0 and work.io_bytes == 0
