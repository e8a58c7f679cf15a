"""The app's sampler is begun again when it ends, given up without a driver, and gone with the app."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from PySide6.QtCore import QObject
from pytestqt.qtbot import QtBot

from rankdeck.telemetry.readings import DevicesLine, NoticeLine, encode
from rankdeck_app.state import device_feed
from rankdeck_app.state.device_feed import DeviceFeed
from rankdeck_app.state.engine_process import Engine, EngineStream
from rankdeck_app.state.gpus import Gpus
from tests.helpers import device_lines

WAIT_MS = 20_000


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_feed, "MIN_PAUSE_S", 0.05)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(tmp_path / "launch")
    yield engine
    engine.close()


@pytest.fixture
def feed_of(qtbot: QtBot, engine: Engine) -> Iterator[Callable[[Path], DeviceFeed]]:
    feeds: list[DeviceFeed] = []

    def make(python: Path) -> DeviceFeed:
        engine.python = str(python)
        feeds.append(DeviceFeed(engine, QObject(engine)))
        return feeds[-1]

    yield make
    for feed in feeds:
        feed.close()


def stream_pids(engine: Engine) -> list[int]:
    """Of the commands that are being read."""
    return [stream.pid for stream in engine.findChildren(EngineStream) if stream.pid]


def write_fake_engine(folder: Path, body: str, *lines: bytes) -> Path:
    """An engine whose `devices --follow` writes these lines and then does what `body` says."""
    data = folder / "lines"
    data.write_bytes(b"".join(lines))
    script = folder / "python"
    script.write_text(f"#!/bin/sh\ncat {data}\n{body}\n", encoding="utf-8")
    script.chmod(0o755)
    return script


def test_an_ended_sampler_is_restarted_and_reported(
    qtbot: QtBot, tmp_path: Path, feed_of: Callable[[Path], DeviceFeed]
) -> None:
    line = device_lines.devices(device_lines.gpu(0))
    feed = feed_of(write_fake_engine(tmp_path, "exit 7", encode(line)))
    arrived: list[object] = []
    feed.line_received.connect(arrived.append)
    feed.start()
    qtbot.waitUntil(lambda: sum(isinstance(item, DevicesLine) for item in arrived) >= 2, timeout=WAIT_MS)
    notices = [item for item in arrived if isinstance(item, NoticeLine)]
    assert notices and notices[0].code == "restarted" and "It will restart in" in notices[0].message


def test_without_a_driver_the_sampler_stops_until_restarted(
    qtbot: QtBot, tmp_path: Path, feed_of: Callable[[Path], DeviceFeed], engine: Engine
) -> None:
    notice = device_lines.notice("no-driver", message="No NVIDIA driver found.")
    feed = feed_of(write_fake_engine(tmp_path, "exit 3", encode(notice)))
    with qtbot.waitSignal(feed.unavailable, timeout=WAIT_MS) as given_up:
        feed.start()
    assert given_up.args == ["No NVIDIA driver found."] and stream_pids(engine) == []
    with qtbot.waitSignal(feed.unavailable, timeout=WAIT_MS):
        feed.start()


def test_a_silent_sampler_is_killed_and_restarted(
    qtbot: QtBot, tmp_path: Path, feed_of: Callable[[Path], DeviceFeed], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_feed, "HANG_TIMEOUT_S", 0.3)
    line = device_lines.devices(device_lines.gpu(0))
    feed = feed_of(write_fake_engine(tmp_path, "exec sleep 60", encode(line)))
    arrived: list[object] = []
    feed.line_received.connect(arrived.append)
    feed.start()
    qtbot.waitUntil(lambda: sum(isinstance(item, DevicesLine) for item in arrived) >= 2, timeout=WAIT_MS)
    (advice,) = {item.advice for item in arrived if isinstance(item, NoticeLine)}
    assert advice is not None and "No GPU readings arrived for" in advice


def test_invalid_lines_are_ignored(
    qtbot: QtBot, tmp_path: Path, feed_of: Callable[[Path], DeviceFeed], engine: Engine
) -> None:
    line = encode(device_lines.devices(device_lines.gpu(0)))
    rubbish = [b"\xff\xfe\n", b'{"kind":"from the future"}\n', b"[1]\n", b"\n"]
    feed = feed_of(write_fake_engine(tmp_path, "exec sleep 60", *rubbish, line[:40]))
    feed.start()
    qtbot.waitUntil(lambda: bool(stream_pids(engine)), timeout=WAIT_MS)
    feed.close()
    feed = feed_of(write_fake_engine(tmp_path, "exec sleep 60", *rubbish, line))
    with qtbot.waitSignal(feed.line_received, timeout=WAIT_MS) as arrived:
        feed.start()
    assert isinstance(arrived.args[0], DevicesLine)


def test_closing_ends_the_process_at_once(
    qtbot: QtBot, tmp_path: Path, feed_of: Callable[[Path], DeviceFeed], engine: Engine
) -> None:
    line = device_lines.devices(device_lines.gpu(0))
    feed = feed_of(write_fake_engine(tmp_path, "exec sleep 60", encode(line)))
    with qtbot.waitSignal(feed.line_received, timeout=WAIT_MS):
        feed.start()
    (pid,) = stream_pids(engine)
    assert psutil.pid_exists(pid)
    feed.close()
    assert not psutil.pid_exists(pid) and stream_pids(engine) == []


def test_an_engine_that_fails_to_start_is_reported_and_retried(qtbot: QtBot, engine: Engine) -> None:
    engine.python = "/nowhere/python"
    gpus = Gpus(engine)
    with qtbot.waitSignal(gpus.changed, timeout=WAIT_MS):
        gpus.start()
    assert gpus.is_known and gpus.reason is not None and "It will restart in" in gpus.reason
    gpus.close()


def test_the_real_sampler_reports_devices_or_a_missing_driver(qtbot: QtBot, engine: Engine) -> None:
    engine.python = sys.executable
    gpus = Gpus(engine)
    with qtbot.waitSignal(gpus.changed, timeout=WAIT_MS):
        gpus.start()
    if not Path("/dev/nvidiactl").exists():
        assert gpus.reason == "No NVIDIA driver found"
    gpus.close()
