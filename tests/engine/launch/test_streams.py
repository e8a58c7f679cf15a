"""Relays of a script's output: what a process wrote before it ended arrives, however late a relay runs."""

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rankdeck.launch.streams import Outlet, Relay, finish

_LATE_S = 0.2


class _Late(Relay):
    """One that the machine lets run late, each time."""

    def _has_unread(self, timeout_s: float | None) -> bool:
        if timeout_s is None:
            time.sleep(_LATE_S)
        return super()._has_unread(timeout_s)


@contextmanager
def _relay(kind: type[Relay], log: Path, outlet: Outlet | None = None) -> Iterator[tuple[Relay, int]]:
    """One that runs, and the end that a process would write to."""
    ours, theirs = os.pipe()
    relay = kind(ours, [log], outlet or Outlet(None))
    relay.start()
    yield relay, theirs
    os.close(theirs)
    relay.join(5)
    assert not relay.is_alive()
    os.close(ours)


@pytest.mark.parametrize("kind", [Relay, _Late])
def test_what_was_written_arrives_though_a_process_keeps_the_stream(
    tmp_path: Path, kind: type[Relay]
) -> None:
    with _relay(kind, tmp_path / "log") as (relay, theirs):
        for line in (b"saved\n", b"x" * 60_000):
            os.write(theirs, line)
            finish([relay], 0)
            assert (tmp_path / "log").read_bytes().endswith(line)


def test_an_impatient_end_waits_for_its_time_only(tmp_path: Path) -> None:
    with _relay(_Late, tmp_path / "log") as (relay, theirs):
        os.write(theirs, b"saved\n")
        finish([relay], 0, patient=False)
        assert (tmp_path / "log").read_bytes() == b""


def test_a_stop_lets_what_was_written_arrive(tmp_path: Path) -> None:
    with _relay(_Late, tmp_path / "log") as (relay, theirs):
        os.write(theirs, b"saved\n")
        finish([relay], 60, given_up=lambda: True)
        assert (tmp_path / "log").read_bytes() == b"saved\n"


def test_a_stop_does_not_wait_for_a_reader_that_reads_nothing(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    full = fcntl.fcntl(writing, fcntl.F_GETPIPE_SZ)
    os.write(writing, b"x" * full)
    with _relay(Relay, tmp_path / "log", Outlet(writing)) as (relay, theirs):
        os.write(theirs, b"saved\n")
        finish([relay], 60, given_up=lambda: True)
        assert relay.is_alive() and not relay.is_idle()
        os.read(reading, full)
    for end in (reading, writing):
        os.close(end)


def test_a_process_that_writes_for_ever_is_not_waited_for(tmp_path: Path) -> None:
    ends = threading.Event()

    def write() -> None:
        while not ends.is_set():
            os.write(theirs, b"y\n" * 500)

    with _relay(Relay, tmp_path / "log") as (relay, theirs):
        writer = threading.Thread(target=write)
        writer.start()
        finish([relay], 0)
        ends.set()
        writer.join(5)
        assert relay.is_alive() and not writer.is_alive()
