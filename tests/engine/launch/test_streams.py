"""Relays of a script's output: what a process wrote before it ended arrives, however late a relay runs."""

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rankdeck.launch.streams import SharedOutput, StreamRelay, wait_for_relays

_LATE_S = 0.2


class _SlowRelay(StreamRelay):
    """One that the machine lets run late, each time."""

    def _has_unread(self, timeout_s: float | None) -> bool:
        if timeout_s is None:
            time.sleep(_LATE_S)
        return super()._has_unread(timeout_s)


@contextmanager
def _start_relay(
    kind: type[StreamRelay], log: Path, outlet: SharedOutput | None = None
) -> Iterator[tuple[StreamRelay, int]]:
    """One that runs, and the end that a process would write to."""
    ours, theirs = os.pipe()
    relay = kind(ours, [log], outlet or SharedOutput(None))
    relay.start()
    yield relay, theirs
    os.close(theirs)
    relay.join(5)
    assert not relay.is_alive()
    os.close(ours)


@pytest.mark.parametrize("kind", [StreamRelay, _SlowRelay])
def test_output_arrives_though_a_process_keeps_the_stream_open(
    tmp_path: Path, kind: type[StreamRelay]
) -> None:
    with _start_relay(kind, tmp_path / "log") as (relay, theirs):
        for line in (b"saved\n", b"x" * 60_000):
            os.write(theirs, line)
            wait_for_relays([relay], 0)
            assert (tmp_path / "log").read_bytes().endswith(line)


def test_draining_without_waiting_ends_after_its_timeout(tmp_path: Path) -> None:
    with _start_relay(_SlowRelay, tmp_path / "log") as (relay, theirs):
        os.write(theirs, b"saved\n")
        wait_for_relays([relay], 0, waits_for_reader=False)
        assert (tmp_path / "log").read_bytes() == b""


def test_a_stop_lets_written_output_arrive(tmp_path: Path) -> None:
    with _start_relay(_SlowRelay, tmp_path / "log") as (relay, theirs):
        os.write(theirs, b"saved\n")
        wait_for_relays([relay], 60, is_cancelled=lambda: True)
        assert (tmp_path / "log").read_bytes() == b"saved\n"


def test_a_stop_does_not_wait_for_a_blocked_reader(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    full = fcntl.fcntl(writing, fcntl.F_GETPIPE_SZ)
    os.write(writing, b"x" * full)
    with _start_relay(StreamRelay, tmp_path / "log", SharedOutput(writing)) as (relay, theirs):
        os.write(theirs, b"saved\n")
        wait_for_relays([relay], 60, is_cancelled=lambda: True)
        assert relay.is_alive() and not relay.is_idle()
        os.read(reading, full)
    for end in (reading, writing):
        os.close(end)


def test_a_process_that_writes_forever_is_not_waited_for(tmp_path: Path) -> None:
    ends = threading.Event()

    def write() -> None:
        while not ends.is_set():
            os.write(theirs, b"y\n" * 500)

    with _start_relay(StreamRelay, tmp_path / "log") as (relay, theirs):
        writer = threading.Thread(target=write)
        writer.start()
        wait_for_relays([relay], 0)
        ends.set()
        writer.join(5)
        assert relay.is_alive() and not writer.is_alive()
