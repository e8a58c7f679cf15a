"""A rank beats without ever waiting, whatever the other end does."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from rankdeck.base import heartbeat
from rankdeck.base.heartbeat import FIRST_STEP, SAVING, Beat, HeartbeatPage, HeartbeatReader, HeartbeatWriter


@pytest.fixture
def page() -> Iterator[HeartbeatPage]:
    heartbeat_page = HeartbeatPage(2)
    yield heartbeat_page
    heartbeat_page.close()


@pytest.fixture
def reader(page: HeartbeatPage) -> HeartbeatReader:
    """Of rank 1."""
    return page.readers[1]


def test_the_last_beat_tells_how_many_lines_were_lost(page: HeartbeatPage, reader: HeartbeatReader) -> None:
    writer = HeartbeatWriter(page.path, 1)
    for num_lost, error_number in ((1, errno.EIO), (10**7, errno.EDQUOT)):
        writer.beat(9, heartbeat.finished_phase(num_lost, error_number))
        beat = reader.read()
        assert beat is not None and beat.phase.startswith(heartbeat.FINISHED)
        assert heartbeat.parse_lost_lines(beat.phase) == (min(num_lost, 99_999), os.strerror(error_number))
    assert heartbeat.finished_phase(0, 0) == heartbeat.FINISHED
    assert heartbeat.parse_lost_lines(heartbeat.FINISHED) is None


def test_the_newest_beat_is_read(page: HeartbeatPage, reader: HeartbeatReader) -> None:
    assert reader.read() is None
    writer = HeartbeatWriter(page.path, 1)
    before_s = time.monotonic()
    for step in range(1, 101):
        writer.beat(step, "step")
    beat = reader.read()
    assert beat is not None and (beat.step, beat.phase) == (100, "step")
    assert before_s <= beat.at_s <= time.monotonic()
    writer.close()
    assert reader.read() == beat


def test_a_rank_never_waits_for_its_reader(page: HeartbeatPage, reader: HeartbeatReader) -> None:
    writer = HeartbeatWriter(page.path, 1)
    start_s = time.process_time()
    for step in range(100_000):
        writer.beat(step, "step")
    assert time.process_time() - start_s < 2
    beat = reader.read()
    assert beat is not None and beat.step == 99_999
    writer.beat(100_000, "after the flood")
    assert reader.read() == reader.last != beat
    writer.close()


def test_beating_without_a_reader_is_no_error() -> None:
    page = HeartbeatPage(2)
    writer = HeartbeatWriter(page.path, 1)
    page.close()
    for _ in range(3):
        writer.beat(1, "step")
    HeartbeatWriter("/nowhere/at/all", 0).beat(1, "step")


def test_a_killed_rank_leaves_complete_beats(page: HeartbeatPage, reader: HeartbeatReader) -> None:
    child = os.fork()
    if child == 0:
        writer = HeartbeatWriter(page.path, 1)
        for step in range(1 << 62):
            writer.beat(step, "forever")
    deadline_s = time.monotonic() + 5
    while reader.read() is None and time.monotonic() < deadline_s:
        pass
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert isinstance(reader.read(), Beat) and reader.last is not None and reader.last.phase == "forever"


def test_a_half_written_beat_leaves_the_one_before(page: HeartbeatPage, reader: HeartbeatReader) -> None:
    writer = HeartbeatWriter(page.path, 1)
    for step in (1, 2, 3):
        writer.beat(step, "step")
    with open(page.path, "r+b") as file:  # the third lies where the first lay
        file.seek(heartbeat._SLOT_BYTES + heartbeat._BEAT.size)
        file.write((5).to_bytes(8, "little"))
    assert reader.read() == reader.last and reader.last is not None and reader.last.step == 2


def test_long_phases_are_cut_between_characters(page: HeartbeatPage, reader: HeartbeatReader) -> None:
    writer = HeartbeatWriter(page.path, 1)
    writer.beat(1, "é" * 30)
    assert reader.read() is not None and reader.last is not None and reader.last.phase == "é" * 12
    writer.close()


def test_the_longest_gap_belongs_to_the_same_phase(
    page: HeartbeatPage, reader: HeartbeatReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(heartbeat, "time", SimpleNamespace(monotonic=lambda: now[0]))
    writer = HeartbeatWriter(page.path, 1)
    gaps_s = []
    for phase, seconds in (
        ("loading data", 50.0),
        (FIRST_STEP, 20.0),
        ("step", 2.0),
        ("step", 3.0),
        (SAVING, 40.0),
        ("step", 1.0),
        (SAVING, 1.0),
    ):
        writer.beat(1, phase)
        reader.read()
        gaps_s.append(reader.longest_gap_s)
        now[0] += seconds
    assert gaps_s == [0.0, 0.0, 20.0, 2.0, 20.0, 3.0, 40.0], "a new phase may last as long as the first step"
    writer.close()


def test_each_rank_has_a_slot_within_the_page(page: HeartbeatPage) -> None:
    for rank in (0, 1, 2):
        HeartbeatWriter(page.path, rank).beat(10 + rank, "step")
    assert [reader.read() and reader.last and reader.last.step for reader in page.readers] == [10, 11]
