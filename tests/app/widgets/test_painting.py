"""Text that does not fit its place is told while somebody watches."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QRect, QRectF, Qt
from PySide6.QtGui import QColor, QFontMetrics, QPainter, QPixmap
from PySide6.QtWidgets import QApplication, QStyle

from rankdeck_app.theme import BUILT_IN, Theme
from rankdeck_app.widgets.controls import paint_check
from rankdeck_app.widgets.figure_list import FigureDelegate
from rankdeck_app.widgets.painting import (
    Overflow,
    fitting_words,
    paint_progress,
    paint_text,
    paint_words,
    watch_overflows,
)

BOX = QRect(0, 0, 120, 41)
INK = QColor("white")
WORDS = "seven words that need a wide place"


def overflows(box: QRectF, text: str, **options: Qt.TextElideMode) -> list[Overflow]:
    found: list[Overflow] = []
    pixmap = QPixmap(300, 60)
    painter = QPainter(pixmap)
    with watch_overflows(found.append):
        paint_text(painter, box, text, INK, 12, **options)
    painter.end()
    return found


@pytest.mark.parametrize(
    ("box", "expected"),
    [
        (QRectF(0, 0, 280, 20), 0),
        (QRectF(0, 0, 100, 20), 1),  # too narrow
        (QRectF(0, 0, 280, 5), 1),  # too low
        (QRectF(200, 0, 280, 20), 1),  # out of the widget, whatever the box says
        (QRectF(200, 80, 280, 20), 0),  # nobody sees it
    ],
)
def test_text_that_does_not_fit_is_told(qapp: QApplication, box: QRectF, expected: int) -> None:
    assert len(overflows(box, WORDS)) == expected


def test_text_that_is_shortened_on_purpose_fits(qapp: QApplication) -> None:
    assert not overflows(QRectF(0, 0, 100, 20), WORDS, elide=Qt.TextElideMode.ElideRight)


def test_words_are_wrapped_and_left_out_where_lines_end(qapp: QApplication) -> None:
    found: list[Overflow] = []
    pixmap = QPixmap(300, 60)
    painter = QPainter(pixmap)
    with watch_overflows(found.append):
        paint_words(painter, QRect(0, 0, 90, 34), WORDS, INK, 11)
        assert not found
        paint_words(painter, QRect(0, 0, 30, 34), "unbreakable_words_overflow", INK, 11)
    painter.end()
    assert [overflow.text for overflow in found] == ["unbreakable_words_overflow"]


def test_as_many_words_are_shown_as_fit(qapp: QApplication) -> None:
    metrics, one = QFontMetrics(Theme.font()), QFontMetrics(Theme.font()).lineSpacing()
    longest = metrics.horizontalAdvance(WORDS)
    assert fitting_words(metrics, WORDS, longest + 1, one) == WORDS
    shown = [fitting_words(metrics, WORDS, width, one) for width in range(longest, 10, -1)]
    shorter = [" ".join(WORDS.split()[:count]) + "…" for count in range(6, 0, -1)]
    assert list(dict.fromkeys(shown))[-6:] == shorter, "one word after the other is left out"
    assert all(metrics.horizontalAdvance(text) <= longest for text in shown)


def test_nobody_watches_afterwards(qapp: QApplication) -> None:
    found: list[Overflow] = []
    with watch_overflows(found.append):
        pass
    overflows(QRectF(0, 0, 10, 20), WORDS)
    assert not found


def themed(name: str) -> Theme:
    theme = Theme()
    theme.load(name)
    return theme


@pytest.mark.parametrize("scale", [1.0, 1.5])
def test_a_chosen_row_is_outlined_all_around_in_high_contrast(qapp: QApplication, scale: float) -> None:
    theme = themed("Dark High Contrast")
    pixmap = QPixmap(round(BOX.width() * scale), round(BOX.height() * scale))
    pixmap.setDevicePixelRatio(scale)
    painter = QPainter(pixmap)
    FigureDelegate(theme).paint_ground(
        painter, BOX, QStyle.StateFlag.State_None, is_chosen=True, mark="rankdeck.ok"
    )
    painter.end()
    image, right, bottom = pixmap.toImage(), pixmap.width() - 1, pixmap.height() - 1
    edges = [(0, bottom // 2), (right, bottom // 2), (right // 2, 0), (right // 2, bottom)]
    assert {image.pixelColor(x, y).name() for x, y in edges} == {theme.color("contrastActiveBorder").name()}


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("tone", ["rankdeck.rest", "disabledForeground", "list.activeSelectionForeground"])
def test_what_is_left_of_a_line_is_seen_and_told_from_what_is_done(
    qapp: QApplication, name: str, tone: str
) -> None:
    theme = themed(name)
    ink, ground = theme.color(tone), theme.color("sideBar.background")
    image = QPixmap(100, 2)
    image.fill(ground)
    painter = QPainter(image)
    paint_progress(painter, theme, image.rect(), 0.75, ink)
    painter.end()
    done, left, above = (image.toImage().pixelColor(*at) for at in ((70, 1), (80, 1), (80, 0)))
    assert done == ink and above == ground and left not in (ink, ground)


@pytest.mark.parametrize("name", [name for name, table in BUILT_IN.items() if table.is_high_contrast])
def test_in_high_contrast_a_box_without_its_tick_does_not_look_disabled(
    qapp: QApplication, name: str
) -> None:
    theme, pixmap = themed(name), QPixmap(16, 16)
    painter = QPainter(pixmap)
    paint_check(painter, theme, QRectF(0, 0, 16, 16), False)
    painter.end()
    assert pixmap.toImage().pixelColor(8, 0) == theme.color("contrastBorder")
