"""One line of short facts, each with an icon; the tooltip lists all of them with details."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QFontMetricsF, QPainter, QPaintEvent

from rankdeck import events
from rankdeck.run.verified import (
    DIFFERS,
    EQUAL,
    NOTED,
    ONE_DEVICE,
    UNCHECKED,
    compared_text,
    verified_detail,
    verified_text,
)
from rankdeck_app.language import tr, translate
from rankdeck_app.theme import Theme, draw_icon
from rankdeck_app.widgets.chart import Chart
from rankdeck_app.widgets.painting import chart_font, paint_text

HEIGHT = 22
_ICON_SIZE = 14.0
_GAP = 18.0
_FONT_PX = 12


@dataclass(frozen=True)
class Fact:
    """A fact with its icon.

    `name` labels the fact for screen readers and in the tooltip; `detail` is shown only in the tooltip.
    `tone` is a tone that ChartColors.tone_color accepts; "ok" colours only the icon.
    """

    icon: str
    name: str
    text: str
    detail: str = ""
    tone: str = ""


class FactsLine(Chart[tuple[Fact, ...]]):
    """Facts from left to right, as many as fit; the last visible fact is elided if necessary."""

    is_opaque = False  # it is on a page, not in a card

    def __init__(self, theme: Theme, name: str) -> None:
        super().__init__(theme, (), name)
        self.setFixedHeight(HEIGHT)

    def describe(self) -> str:
        return ", ".join(f"{fact.name} {fact.text}" for fact in self.data)

    def sizeHint(self) -> QSize:
        return QSize(600, HEIGHT)

    def minimumSizeHint(self) -> QSize:
        return QSize(120, HEIGHT)

    def paint(self, painter: QPainter, event: QPaintEvent) -> None:
        colors, metrics = self._colors, QFontMetricsF(chart_font(_FONT_PX))
        left = 0.0
        for fact in self.data:
            room = self.width() - left - _ICON_SIZE - 5
            # Less room than for a few characters.
            if room < 40:
                break
            ink = colors.tone_color(fact.tone or "muted")
            draw_icon(
                painter, fact.icon, QRectF(left, (HEIGHT - _ICON_SIZE) / 2, _ICON_SIZE, _ICON_SIZE), ink
            )
            ink = colors.foreground if fact.tone == "ok" else colors.tone_color(fact.tone)
            box = QRectF(left + _ICON_SIZE + 5, 0, room, HEIGHT)
            paint_text(painter, box, fact.text, ink, _FONT_PX, elide=Qt.TextElideMode.ElideRight)
            left += _ICON_SIZE + 5 + metrics.horizontalAdvance(fact.text) + _GAP

    def tooltip_at(self, x: float, y: float) -> str:
        rows = "".join(
            f"<tr><td>{escape(fact.name)}</td><td>&nbsp;&nbsp;{escape(fact.text)}"
            + "".join(f"<br>&nbsp;&nbsp;{escape(line)}" for line in fact.detail.splitlines())
            + "</td></tr>"
            for fact in self.data
        )
        return rows and f"<table>{rows}</table>"


# Icons of the comparison of a strategy with one device, the same in every view.

VERIFICATION_ICONS: Mapping[str, tuple[str, str]] = {
    EQUAL: ("verified", "ok"),
    NOTED: ("info", "muted"),
    DIFFERS: ("error", "error"),
    UNCHECKED: ("question", "muted"),
    "failed": ("circle-slash", "muted"),
}
"""The icon and the tone of each verification outcome."""


def verification_fact(verified: events.Verified) -> Fact:
    """Return a fact that states the result of a run's verification, for the run's header."""
    icon, tone = VERIFICATION_ICONS.get(verified.outcome, VERIFICATION_ICONS[UNCHECKED])
    more = map(translate, (verified_detail(verified), compared_text(verified)))
    return Fact(icon, tr(ONE_DEVICE), translate(verified_text(verified)), "\n".join(filter(None, more)), tone)
