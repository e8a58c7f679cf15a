"""The line of a run's time is dragged, walked along with keys, and says its moment in words that fit."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from pytestqt.qtbot import QtBot

from rankdeck_app.theme import BUILT_IN_THEMES, Theme
from rankdeck_app.widgets.painting import Overflow, watch_overflows
from rankdeck_app.widgets.scrubber import AttemptInterval, Scrubber, ScrubberData
from tests.helpers.wheel import consumes_wheel

DATA = ScrubberData(
    total_s=100.0,
    viewed_s=40.0,
    intervals=(AttemptInterval(0, 30, 50), AttemptInterval(60, 100, 100)),
    texts=("0:40 · step 1,234,567 · attempt 2", "0:40 · step 1,234,567", "0:40"),
    widest_text="8:88:88 · step 8,888,888 · attempt 8",
)


@pytest.fixture
def scrubber(qtbot: QtBot) -> Scrubber:
    scrubber = Scrubber(Theme())
    qtbot.addWidget(scrubber)
    scrubber.resize(700, scrubber.sizeHint().height())
    scrubber.set_data(DATA)
    scrubber.show()
    return scrubber


def test_clicking_and_dragging_seek(scrubber: Scrubber) -> None:
    sought: list[float] = []
    scrubber.seek_requested.connect(sought.append)
    left, right = scrubber.line
    middle = scrubber.height() // 2
    QTest.mousePress(scrubber, Qt.MouseButton.LeftButton, pos=QPoint(int((left + right) / 2), middle))
    for x in (int(right) + 300, -50):
        QTest.mouseMove(scrubber, QPoint(x, middle))
    QTest.mouseRelease(scrubber, Qt.MouseButton.LeftButton)
    assert sought[0] == pytest.approx(50, abs=0.5)
    assert all(0 <= seconds <= 100 for seconds in sought)
    QTest.mousePress(scrubber, Qt.MouseButton.RightButton, pos=QPoint(5, middle))
    assert sought[-1] != 5 and scrubber.value() == 40, "what is shown is what the figure says"


def test_keys_step_skip_and_seek(scrubber: Scrubber) -> None:
    signals: list[tuple[str, float]] = []
    for name in ("seek_requested", "step_requested", "skip_requested"):
        getattr(scrubber, name).connect(lambda by, name=name: signals.append((name, by)))
    for key in ("Left", "Right", "Home", "End", "PageUp", "PageDown"):
        QTest.keyClick(scrubber, getattr(Qt.Key, f"Key_{key}"))
    QTest.keyClick(scrubber, Qt.Key.Key_Left, Qt.KeyboardModifier.ShiftModifier)
    assert signals == [
        ("step_requested", -1), ("step_requested", 1), ("seek_requested", 0), ("seek_requested", 100),
        ("skip_requested", 10), ("skip_requested", -10), ("step_requested", -10),
    ]  # fmt: skip


def test_the_wheel_does_not_seek(scrubber: Scrubber) -> None:
    assert not consumes_wheel(scrubber) and scrubber.value() == 40


@pytest.mark.parametrize("width", [120, 200, 300, 420, 700, 2000])
def test_the_text_fits_every_width_and_is_accessible(scrubber: Scrubber, width: int) -> None:
    overflows: list[Overflow] = []
    scrubber.resize(width, scrubber.height())
    for data in (DATA, ScrubberData(), ScrubberData(total_s=0.0, texts=("now",))):
        scrubber.set_data(data)
        with watch_overflows(overflows.append):
            scrubber.grab()
        assert scrubber.accessibleDescription() == data.texts[0]
    assert not overflows and scrubber.accessibleName()


@pytest.mark.parametrize("name", BUILT_IN_THEMES)
def test_training_intervals_differ_from_pauses(scrubber: Scrubber, name: str) -> None:
    scrubber._theme.load(name)
    image, color = scrubber.grab().toImage(), scrubber._theme.color
    trained, between = (
        image.pixelColor(round(scrubber.to_x(at)), scrubber.height() // 2) for at in (15.0, 55.0)
    )
    assert trained == color("rankdeck.rest") and between == color("rankdeck.grid")


def test_the_line_keeps_its_length_while_the_text_changes(scrubber: Scrubber) -> None:
    before = scrubber.line
    scrubber.set_data(
        ScrubberData(100.0, 5.0, texts=("0:05 · step 9 · attempt 1",), widest_text=DATA.widest_text)
    )
    assert scrubber.line == before
