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
from rankdeck_app.state.engine_process import Engine, Stream
from rankdeck_app.state.gpus import Gpus
from tests.helpers import device_lines

WAIT_MS = 20_000


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_feed, "FIRST_PAUSE_S", 0.05)


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


def pids(engine: Engine) -> list[int]:
    """Of the commands that are being read."""
    return [stream.pid for stream in engine.findChildren(Stream) if stream.pid]


def sampler(folder: Path, body: str, *lines: bytes) -> Path:
    """An engine whose `devices --follow` writes these lines and then does what `body` says."""
    data = folder / "lines"
    data.write_bytes(b"".join(lines))
    script = folder / "python"
    script.write_text(f"#!/bin/sh\ncat {data}\n{body}\n", encoding="utf-8")
    script.chmod(0o755)
    return script


def test_one_that_ends_is_begun_again_and_says_so(
    qtbot: QtBot, tmp_path: Path, feed_of: Callable[[Path], DeviceFeed]
) -> None:
    line = device_lines.devices(device_lines.gpu(0))
    feed = feed_of(sampler(tmp_path, "exit 7", encode(line)))
    arrived: list[object] = []
    feed.arrived.connect(arrived.append)
    feed.start()
    qtbot.waitUntil(lambda: sum(isinstance(item, DevicesLine) for item in arrived) >= 2, timeout=WAIT_MS)
    notices = [item for item in arrived if isinstance(item, NoticeLine)]
    assert notices and notices[0].code == "restarted" and "begins again" in notices[0].message


def test_without_a_driver_it_is_given_up_until_somebody_asks(
    qtbot: QtBot, tmp_path: Path, feed_of: Callable[[Path], DeviceFeed], engine: Engine
) -> None:
    notice = device_lines.notice("no-driver", message="No NVIDIA driver found.")
    feed = feed_of(sampler(tmp_path, "exit 3", encode(notice)))
    with qtbot.waitSignal(feed.given_up, timeout=WAIT_MS) as given_up:
        feed.start()
    assert given_up.args == ["No NVIDIA driver found."] and pids(engine) == []
    with qtbot.waitSignal(feed.given_up, timeout=WAIT_MS):
        feed.start()


def test_one_that_falls_silent_is_ended_and_begun_again(
    qtbot: QtBot, tmp_path: Path, feed_of: Callable[[Path], DeviceFeed], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_feed, "HANGS_AFTER_S", 0.3)
    line = device_lines.devices(device_lines.gpu(0))
    feed = feed_of(sampler(tmp_path, "exec sleep 60", encode(line)))
    arrived: list[object] = []
    feed.arrived.connect(arrived.append)
    feed.start()
    qtbot.waitUntil(lambda: sum(isinstance(item, DevicesLine) for item in arrived) >= 2, timeout=WAIT_MS)
    (words,) = {item.advice for item in arrived if isinstance(item, NoticeLine)}
    assert words is not None and "have not come" in words


def test_lines_that_are_none_do_no_harm(
    qtbot: QtBot, tmp_path: Path, feed_of: Callable[[Path], DeviceFeed], engine: Engine
) -> None:
    line = encode(device_lines.devices(device_lines.gpu(0)))
    rubbish = [b"\xff\xfe\n", b'{"kind":"from the future"}\n', b"[1]\n", b"\n"]
    feed = feed_of(sampler(tmp_path, "exec sleep 60", *rubbish, line[:40]))
    feed.start()
    qtbot.waitUntil(lambda: bool(pids(engine)), timeout=WAIT_MS)
    feed.close()
    feed = feed_of(sampler(tmp_path, "exec sleep 60", *rubbish, line))
    with qtbot.waitSignal(feed.arrived, timeout=WAIT_MS) as arrived:
        feed.start()
    assert isinstance(arrived.args[0], DevicesLine)


def test_closing_ends_the_process_at_once(
    qtbot: QtBot, tmp_path: Path, feed_of: Callable[[Path], DeviceFeed], engine: Engine
) -> None:
    line = device_lines.devices(device_lines.gpu(0))
    feed = feed_of(sampler(tmp_path, "exec sleep 60", encode(line)))
    with qtbot.waitSignal(feed.arrived, timeout=WAIT_MS):
        feed.start()
    (pid,) = pids(engine)
    assert psutil.pid_exists(pid)
    feed.close()
    assert not psutil.pid_exists(pid) and pids(engine) == []


def test_an_engine_that_cannot_be_started_is_said_and_tried_again(qtbot: QtBot, engine: Engine) -> None:
    engine.python = "/nowhere/python"
    gpus = Gpus(engine)
    with qtbot.waitSignal(gpus.changed, timeout=WAIT_MS):
        gpus.ask()
    assert gpus.known and gpus.reason is not None and "begins again" in gpus.reason
    gpus.close()


def test_the_real_sampler_says_that_there_is_no_driver_or_tells_devices(qtbot: QtBot, engine: Engine) -> None:
    engine.python = sys.executable
    gpus = Gpus(engine)
    with qtbot.waitSignal(gpus.changed, timeout=WAIT_MS):
        gpus.ask()
    if not Path("/dev/nvidiactl").exists():
        assert gpus.reason == "No NVIDIA driver found"
    gpus.close()
