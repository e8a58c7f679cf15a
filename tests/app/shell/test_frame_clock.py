from __future__ import annotations

from PySide6.QtCore import QObject
from PySide6.QtGui import QPaintEvent
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot

from rankdeck_app.shell.frame_clock import FrameClock


class FrameCounter(QObject):
    def __init__(self) -> None:
        super().__init__()
        self.frames = 0

    def on_frame(self) -> None:
        self.frames += 1


def test_the_clock_runs_only_with_subscribers(qtbot: QtBot) -> None:
    clock, counter = FrameClock(60), FrameCounter()
    assert not clock._timer.isActive()
    clock.subscribe(counter.on_frame)
    qtbot.waitUntil(lambda: counter.frames >= 3)
    clock.stop()
    clock.stop()
    assert not clock._timer.isActive()
    num_frames = counter.frames
    QApplication.processEvents()
    assert counter.frames == num_frames


def test_a_collected_subscriber_is_removed(qtbot: QtBot) -> None:
    clock, counter = FrameClock(60), FrameCounter()
    clock.subscribe(counter.on_frame)
    del counter
    qtbot.waitUntil(lambda: not clock._timer.isActive())


def test_a_deleted_widget_is_removed(qtbot: QtBot) -> None:
    clock, counter = FrameClock(60), FrameCounter()
    clock.subscribe(counter.on_frame)
    counter.deleteLater()
    qtbot.waitUntil(lambda: not clock._timer.isActive())


def test_a_hidden_window_gets_ten_frames_a_second(qtbot: QtBot) -> None:
    clock = FrameClock(30)
    clock.subscribe(lambda: None)
    assert clock._timer.interval() == 33
    clock.set_slow(True)
    assert clock._timer.interval() == 100
    clock.set_slow(False)
    clock.set_rate(60)
    assert clock._timer.interval() == 17
    clock.stop()


def test_a_frame_time_includes_painting(qtbot: QtBot) -> None:
    class Slow(QWidget):
        def paintEvent(self, event: QPaintEvent) -> None:
            end = QApplication.instance()
            assert end is not None
            total = 0
            for number in range(400_000):
                total += number

    widget = Slow()
    qtbot.addWidget(widget)
    widget.show()
    qtbot.waitExposed(widget)
    clock = FrameClock(30)
    clock.subscribe(widget.update)
    qtbot.waitUntil(lambda: (clock.stats() is not None) and len(clock._frames) > 5)
    stats = clock.stats()
    clock.stop()
    assert stats is not None and stats.p50_ms > 3
    assert stats.p99_ms >= stats.p50_ms


def test_measurements_and_their_end_are_signalled(qtbot: QtBot) -> None:
    clock, measurements = FrameClock(60), list[object]()
    clock.measured.connect(measurements.append)
    clock.subscribe(lambda: None)
    qtbot.waitUntil(lambda: len(measurements) >= 1)
    clock.stop()
    assert measurements[-1] is None
    assert clock.stats() is None
