"""Cards and chips of devices, painted by hand: index, bytes in use, a small bar, the readings of a GPU or who
else uses it, and a check box.

Up to eight devices are cards of 46 px in two columns; more are chips of 36 px in four. What is not known is
left blank: no 0, no empty bar at full width. What is old is grey; a lost GPU stays, with the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QFontMetricsF, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QAbstractButton, QGridLayout, QSizePolicy, QWidget

from rankdeck.base.units import format_bytes
from rankdeck_app.language import tr
from rankdeck_app.theme import Theme, draw_icon
from rankdeck_app.widgets.controls import paint_check
from rankdeck_app.widgets.layouts import clear_layout
from rankdeck_app.widgets.painting import RIGHT, chart_font, paint_rounded_box, paint_text

MAX_CARDS = 8
CARD_HEIGHT = 46
CHIP_HEIGHT = 36
GAP = 6
READINGS_SEPARATOR = "  "


@dataclass(frozen=True)
class DeviceCardData:
    """What a card shows. `share` is used over capacity (or over the largest peak); None is unknown.

    `state`: "" | stale (old figures) | off (not to be chosen) | lost. `note` stands where the bytes are else;
    `lost_text` (since when it is lost) or `used_by` (who else uses it) where the `readings` are.
    """

    label: str
    short_label: str
    used_bytes: int | None = None
    share: float | None = None
    is_lead: bool = False
    note: str = ""
    tooltip: str = ""
    readings: str = ""
    used_by: str = ""
    lost_text: str = ""
    state: str = ""

    @property
    def is_selectable(self) -> bool:
        return self.state in ("", "stale")


class DeviceCard(QAbstractButton):
    """One device. Checkable when the person chooses among devices (GPUs)."""

    def __init__(self, theme: Theme, chip: bool, checkable: bool) -> None:
        super().__init__()
        self._theme = theme
        self._is_chip = chip
        self._data = DeviceCardData("", "")
        self.setCheckable(checkable)
        self.setAttribute(Qt.WidgetAttribute.WA_Hover)
        theme.changed.connect(self.update)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.setFixedHeight(CHIP_HEIGHT if chip else CARD_HEIGHT)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus if checkable else Qt.FocusPolicy.NoFocus)

    def set_data(self, figure: DeviceCardData) -> None:
        if figure == self._data:
            return
        self._data = figure
        num_bytes = figure.used_bytes
        used = "" if num_bytes is None else tr("{used} in use", used=format_bytes(num_bytes))
        self.setAccessibleName(figure.label)
        busy = figure.used_by and tr("used by {who}", who=figure.used_by)
        stale = tr("old figures") if figure.state == "stale" else ""
        words = (
            figure.lost_text,
            figure.note,
            used,
            stale,
            figure.readings.replace(READINGS_SEPARATOR, ", "),
            busy,
        )
        self.setAccessibleDescription(", ".join(filter(None, words)))
        self.setToolTip(figure.tooltip or figure.label)
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(56 if self._is_chip else 120, self.minimumHeight())

    def paintEvent(self, event: QPaintEvent) -> None:
        color = self._theme.color
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        lit = self.hasFocus() or (self.underMouse() and self.isCheckable() and self.isEnabled())
        painter.setPen(QPen(color("focusBorder" if lit else "dropdown.border"), 1))
        painter.setBrush(color("rankdeck.card.background"))
        painter.drawRoundedRect(QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5), 4, 4)
        left = 4.0 if self._is_chip else 8.0
        has_third_line = not self._is_chip and bool(self._third_line()[0])
        middle = 13.0 if self._is_chip or has_third_line else 14.0
        if self.isCheckable():
            if self._data.is_selectable or self.isChecked():
                paint_check(painter, self._theme, QRectF(left, middle - 8, 16, 16), self.isChecked())
            left += 19 if self._is_chip else 22
        self._paint_text(painter, left, middle)
        if self._data.state not in ("lost", "off"):
            self._paint_bar(painter, 24.0 if has_third_line else None)
        if has_third_line:
            self._paint_third_line(painter)
        painter.end()

    def _text_color(self, usual: str) -> QColor:
        """What is old, or not to be chosen, is grey."""
        return self._theme.color("disabledForeground" if self._data.state else usual)

    def _paint_text(self, painter: QPainter, left: float, middle: float) -> None:
        figure = self._data
        active = self.isChecked() or not self.isCheckable()
        room = QRectF(left, middle - 10, self.width() - left - (3 if self._is_chip else 8), 20)
        right = figure.note or ("" if figure.used_bytes is None else format_short_bytes(figure.used_bytes))
        beside = 0 if self._is_chip else QFontMetricsF(chart_font(10)).horizontalAdvance(f"{right} ")
        fits = (
            QFontMetricsF(chart_font(12, bold=True)).horizontalAdvance(figure.label) + beside <= room.width()
        )
        name = figure.label if fits and not self._is_chip else figure.short_label
        ink = self._text_color("foreground" if active else "descriptionForeground")
        paint_text(painter, room, name, ink, 12, bold=True)
        if not self._is_chip:
            paint_text(painter, room, right, self._text_color("descriptionForeground"), 10, RIGHT)
        elif figure.state == "lost":
            box = QRectF(self.width() - 22, middle - 7, 14, 14)
            draw_icon(painter, "error", box, self._theme.color("errorForeground"))

    def _third_line(self) -> tuple[str, str]:
        """(text, colour id): that it is lost, who else uses it, or its readings."""
        figure = self._data
        if figure.state == "lost":
            return figure.lost_text, "errorForeground"
        if figure.used_by:
            return figure.used_by, "disabledForeground" if figure.state else "rankdeck.leadText"
        return figure.readings, "disabledForeground" if figure.state else "descriptionForeground"

    def _paint_third_line(self, painter: QPainter) -> None:
        words, ink = self._third_line()
        room, elide = QRectF(8, 29, self.width() - 16, 15), Qt.TextElideMode.ElideRight
        metrics = QFontMetricsF(chart_font(10))
        while READINGS_SEPARATOR in words and metrics.horizontalAdvance(words) > room.width():
            words = words.rpartition(READINGS_SEPARATOR)[0]  # a reading is whole or not there
        paint_text(painter, room, words, self._theme.color(ink), 10, elide=elide)

    def _paint_bar(self, painter: QPainter, top: float | None) -> None:
        color, figure = self._theme.color, self._data
        height = 4.0 if self._is_chip or top is not None else 6.0
        if top is None:
            top = self.height() - height - (7 if self._is_chip else 9)
        track = QRectF(8, top, self.width() - 16, height)
        paint_rounded_box(painter, self._theme, track, height / 2, color("rankdeck.track"))
        painter.setPen(Qt.PenStyle.NoPen)
        if figure.share is not None:
            fill = QRectF(track)
            fill.setWidth(max(height, track.width() * min(1.0, figure.share)))
            painter.setBrush(
                self._text_color("rankdeck.lead" if figure.is_lead or figure.used_by else "rankdeck.rest")
            )
            painter.drawRoundedRect(fill, height / 2, height / 2)


def format_short_bytes(num_bytes: int) -> str:
    """'57 GiB', '1.4 GiB', '286 MiB': three digits are enough beside a bar."""
    text = format_bytes(num_bytes, 0)
    return format_bytes(num_bytes, 1) if len(text.split()[0]) == 1 and num_bytes >= 1024 else text


class DeviceGrid(QWidget):
    """All devices. `toggled` carries index and state when a person (un)checks one."""

    toggled = Signal(int, bool)

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self.cards: list[DeviceCard] = []
        self._shape: tuple[int, bool] = (0, False)
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setSpacing(GAP)

    def set_devices(self, figures: Sequence[DeviceCardData], checked: Sequence[bool] | None) -> None:
        """Show these devices; `checked` None means that there is nothing to choose."""
        shape = (len(figures), checked is not None)
        if shape != self._shape:
            self._rebuild(*shape)
        for index, (card, figure) in enumerate(zip(self.cards, figures, strict=True)):
            card.set_data(figure)
            if checked is not None:
                card.setChecked(checked[index])
                card.setEnabled(figure.is_selectable or checked[index])

    def _rebuild(self, count: int, checkable: bool) -> None:
        clear_layout(self._grid)
        self._shape = (count, checkable)
        chip = count > MAX_CARDS
        columns = 4 if chip else 2
        self.cards = [DeviceCard(self._theme, chip, checkable) for _ in range(count)]
        for column in range(4):
            self._grid.setColumnStretch(column, 1 if column < columns else 0)
        for index, card in enumerate(self.cards):
            self._grid.addWidget(card, index // columns, index % columns)
            card.clicked.connect(lambda checked, index=index: self.toggled.emit(index, checked))
        if count % columns and count < columns:
            self._grid.setColumnStretch(count, 1)
