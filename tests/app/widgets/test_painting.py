"""Text that does not fit its place is told while somebody watches."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QRect, QRectF, Qt
from PySide6.QtGui import QColor, QFontMetrics, QPainter, QPixmap
from PySide6.QtWidgets import QApplication, QStyle

from rankdeck_app.theme import BUILT_IN_THEMES, Theme
from rankdeck_app.widgets.controls import paint_check
from rankdeck_app.widgets.painting import (
    Overflow,
    elide_wrapped_text,
    paint_progress,
    paint_text,
    paint_wrapped_text,
    watch_overflows,
)
from rankdeck_app.widgets.row_list import RowListDelegate

BOX = QRect(0, 0, 120, 41)
INK = QColor("white")
WORDS = "seven words that need a wide place"


def overflows(box: QRectF, text: str, **options: Qt.TextElideMode) -> list[Overflow]:
    recorded: list[Overflow] = []
    pixmap = QPixmap(300, 60)
    painter = QPainter(pixmap)
    with watch_overflows(recorded.append):
        paint_text(painter, box, text, INK, 12, **options)
    painter.end()
    return recorded


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
def test_text_that_does_not_fit_is_reported(qapp: QApplication, box: QRectF, expected: int) -> None:
    assert len(overflows(box, WORDS)) == expected


def test_elided_text_is_not_reported(qapp: QApplication) -> None:
    assert not overflows(QRectF(0, 0, 100, 20), WORDS, elide=Qt.TextElideMode.ElideRight)


def test_wrapped_text_is_elided_at_the_last_line(qapp: QApplication) -> None:
    recorded: list[Overflow] = []
    pixmap = QPixmap(300, 60)
    painter = QPainter(pixmap)
    with watch_overflows(recorded.append):
        paint_wrapped_text(painter, QRect(0, 0, 90, 34), WORDS, INK, 11)
        assert not recorded
        paint_wrapped_text(painter, QRect(0, 0, 30, 34), "unbreakable_words_overflow", INK, 11)
    painter.end()
    assert [overflow.text for overflow in recorded] == ["unbreakable_words_overflow"]


def test_wrapped_text_shows_as_many_words_as_fit(qapp: QApplication) -> None:
    metrics, line_height = QFontMetrics(Theme.font()), QFontMetrics(Theme.font()).lineSpacing()
    longest = metrics.horizontalAdvance(WORDS)
    assert elide_wrapped_text(metrics, WORDS, longest + 1, line_height) == WORDS
    texts = [elide_wrapped_text(metrics, WORDS, width, line_height) for width in range(longest, 10, -1)]
    shorter = [" ".join(WORDS.split()[:count]) + "…" for count in range(6, 0, -1)]
    assert list(dict.fromkeys(texts))[-6:] == shorter, "one word after the other is left out"
    assert all(metrics.horizontalAdvance(text) <= longest for text in texts)


def test_overflows_are_not_reported_afterwards(qapp: QApplication) -> None:
    recorded: list[Overflow] = []
    with watch_overflows(recorded.append):
        pass
    overflows(QRectF(0, 0, 10, 20), WORDS)
    assert not recorded


def load_theme(name: str) -> Theme:
    theme = Theme()
    theme.load(name)
    return theme


@pytest.mark.parametrize("scale", [1.0, 1.5])
def test_a_selected_row_is_outlined_in_high_contrast(qapp: QApplication, scale: float) -> None:
    theme = load_theme("Dark High Contrast")
    pixmap = QPixmap(round(BOX.width() * scale), round(BOX.height() * scale))
    pixmap.setDevicePixelRatio(scale)
    painter = QPainter(pixmap)
    RowListDelegate(theme).paint_background(
        painter, BOX, QStyle.StateFlag.State_None, is_selected=True, mark="rankdeck.ok"
    )
    painter.end()
    image, right, bottom = pixmap.toImage(), pixmap.width() - 1, pixmap.height() - 1
    edges = [(0, bottom // 2), (right, bottom // 2), (right // 2, 0), (right // 2, bottom)]
    assert {image.pixelColor(x, y).name() for x, y in edges} == {theme.color("contrastActiveBorder").name()}


@pytest.mark.parametrize("name", BUILT_IN_THEMES)
@pytest.mark.parametrize("tone", ["rankdeck.rest", "disabledForeground", "list.activeSelectionForeground"])
def test_remaining_progress_differs_from_completed_progress(qapp: QApplication, name: str, tone: str) -> None:
    theme = load_theme(name)
    ink, ground = theme.color(tone), theme.color("sideBar.background")
    image = QPixmap(100, 2)
    image.fill(ground)
    painter = QPainter(image)
    paint_progress(painter, theme, image.rect(), 0.75, ink)
    painter.end()
    done, left, above = (image.toImage().pixelColor(*at) for at in ((70, 1), (80, 1), (80, 0)))
    assert done == ink and above == ground and left not in (ink, ground)


@pytest.mark.parametrize("name", [name for name, table in BUILT_IN_THEMES.items() if table.is_high_contrast])
def test_an_unchecked_box_does_not_look_disabled_in_high_contrast(qapp: QApplication, name: str) -> None:
    theme, pixmap = load_theme(name), QPixmap(16, 16)
    painter = QPainter(pixmap)
    paint_check(painter, theme, QRectF(0, 0, 16, 16), False)
    painter.end()
    assert pixmap.toImage().pixelColor(8, 0) == theme.color("contrastBorder")
