"""The line of a run's time is dragged, walked along with keys, and says its moment in words that fit."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from pytestqt.qtbot import QtBot

from rankdeck_app.theme import BUILT_IN, Theme
from rankdeck_app.widgets.painting import Overflow, watch_overflows
from rankdeck_app.widgets.scrubber import Scrubber, TimeFigure, TimeStretch
from tests.helpers.wheel import takes_wheel

FIGURE = TimeFigure(
    whole_s=100.0,
    at_s=40.0,
    stretches=(TimeStretch(0, 30, 50), TimeStretch(60, 100, 100)),
    words=("0:40 · step 1,234,567 · attempt 2", "0:40 · step 1,234,567", "0:40"),
    widest="8:88:88 · step 8,888,888 · attempt 8",
)


@pytest.fixture
def scrubber(qtbot: QtBot) -> Scrubber:
    scrubber = Scrubber(Theme())
    qtbot.addWidget(scrubber)
    scrubber.resize(700, scrubber.sizeHint().height())
    scrubber.set_figure(FIGURE)
    scrubber.show()
    return scrubber


def test_a_click_and_a_drag_seek_where_the_pointer_is(scrubber: Scrubber) -> None:
    sought: list[float] = []
    scrubber.sought.connect(sought.append)
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


def test_keys_go_from_step_to_step_and_to_both_ends(scrubber: Scrubber) -> None:
    told: list[tuple[str, float]] = []
    for name in ("sought", "stepped", "skipped"):
        getattr(scrubber, name).connect(lambda by, name=name: told.append((name, by)))
    for key in ("Left", "Right", "Home", "End", "PageUp", "PageDown"):
        QTest.keyClick(scrubber, getattr(Qt.Key, f"Key_{key}"))
    QTest.keyClick(scrubber, Qt.Key.Key_Left, Qt.KeyboardModifier.ShiftModifier)
    assert told == [
        ("stepped", -1), ("stepped", 1), ("sought", 0), ("sought", 100), ("skipped", 10), ("skipped", -10),
        ("stepped", -10),
    ]  # fmt: skip


def test_a_wheel_scrolls_the_page_and_not_the_time(scrubber: Scrubber) -> None:
    assert not takes_wheel(scrubber) and scrubber.value() == 40


@pytest.mark.parametrize("width", [120, 200, 300, 420, 700, 2000])
def test_its_words_fit_at_every_width_and_a_screen_reader_hears_all_of_them(
    scrubber: Scrubber, width: int
) -> None:
    overflows: list[Overflow] = []
    scrubber.resize(width, scrubber.height())
    for figure in (FIGURE, TimeFigure(), TimeFigure(whole_s=0.0, words=("now",))):
        scrubber.set_figure(figure)
        with watch_overflows(overflows.append):
            scrubber.grab()
        assert scrubber.accessibleDescription() == figure.words[0]
    assert not overflows and scrubber.accessibleName()


@pytest.mark.parametrize("name", BUILT_IN)
def test_what_was_trained_is_told_from_the_time_between(scrubber: Scrubber, name: str) -> None:
    scrubber._theme.load(name)
    image, color = scrubber.grab().toImage(), scrubber._theme.color
    trained, between = (
        image.pixelColor(round(scrubber.x_of(at)), scrubber.height() // 2) for at in (15.0, 55.0)
    )
    assert trained == color("rankdeck.rest") and between == color("rankdeck.grid")


def test_the_line_keeps_its_length_while_its_words_change(scrubber: Scrubber) -> None:
    before = scrubber.line
    scrubber.set_figure(TimeFigure(100.0, 5.0, words=("0:05 · step 9 · attempt 1",), widest=FIGURE.widest))
    assert scrubber.line == before
