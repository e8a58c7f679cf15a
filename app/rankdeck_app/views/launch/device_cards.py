"""Paints device cards and chips.

Each card or chip shows an index, the bytes in use, a small bar, a check box, and the GPU's readings or the
processes on the GPU that belong to no run.

Up to eight devices are shown as cards 46 px high in two columns, more than eight as chips 36 px high in four
columns. Unknown values are left blank, never shown as 0 or an empty bar. Stale values are grey; a lost GPU is
still shown, with the time at which it was lost.
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
    """Data of a card. `share` is the fraction of the device's capacity in use or, if the capacity is unknown,
    the device's peak memory as a fraction of the largest peak of any device; None if neither is known.

    `state` is "", "stale" (old readings), "off" (cannot be selected) or "lost". `note` replaces the bytes;
    `lost_text` (the time of the loss) or `used_by` (processes that belong to no run) replaces `readings`.
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
    """Card of one device. Only a GPU's card is checkable: virtual devices cannot be selected individually."""

    def __init__(self, theme: Theme, chip: bool, checkable: bool) -> None:
        super().__init__()
        self._theme = theme
        self._is_chip = chip
        self._data = DeviceCardData("", "")
        self.setCheckable(checkable)
        self.setAttribute(Qt.WidgetAttribute.WA_Hover)
        theme.changed.connect(self.update)
        # The grid's columns decide the width, not the texts.
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.setFixedHeight(CHIP_HEIGHT if chip else CARD_HEIGHT)
        # A card that cannot be selected must not be a stop of the Tab key.
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus if checkable else Qt.FocusPolicy.NoFocus)

    def set_data(self, data: DeviceCardData) -> None:
        if data == self._data:
            return
        self._data = data
        num_bytes = data.used_bytes
        used = "" if num_bytes is None else tr("{used} in use", used=format_bytes(num_bytes))
        self.setAccessibleName(data.label)
        busy = data.used_by and tr("used by {who}", who=data.used_by)
        stale = tr("old readings") if data.state == "stale" else ""
        details = (
            data.lost_text,
            data.note,
            used,
            stale,
            data.readings.replace(READINGS_SEPARATOR, ", "),
            busy,
        )
        self.setAccessibleDescription(", ".join(filter(None, details)))
        self.setToolTip(data.tooltip or data.label)
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

    def _text_color(self, default_key: str) -> QColor:
        """Return the colour of `default_key`, or grey for a device that is stale or cannot be selected."""
        return self._theme.color("disabledForeground" if self._data.state else default_key)

    def _paint_text(self, painter: QPainter, left: float, middle: float) -> None:
        data = self._data
        active = self.isChecked() or not self.isCheckable()
        room = QRectF(left, middle - 10, self.width() - left - (3 if self._is_chip else 8), 20)
        right = data.note or ("" if data.used_bytes is None else format_short_bytes(data.used_bytes))
        bytes_width = 0 if self._is_chip else QFontMetricsF(chart_font(10)).horizontalAdvance(f"{right} ")
        # The short name is better than a name that covers the bytes.
        fits = (
            QFontMetricsF(chart_font(12, bold=True)).horizontalAdvance(data.label) + bytes_width
            <= room.width()
        )
        name = data.label if fits and not self._is_chip else data.short_label
        ink = self._text_color("foreground" if active else "descriptionForeground")
        paint_text(painter, room, name, ink, 12, bold=True)
        if not self._is_chip:
            paint_text(painter, room, right, self._text_color("descriptionForeground"), 10, RIGHT)
        elif data.state == "lost":
            box = QRectF(self.width() - 22, middle - 7, 14, 14)
            draw_icon(painter, "error", box, self._theme.color("errorForeground"))

    def _third_line(self) -> tuple[str, str]:
        """Return (text, colour id) of the third line: the time at which the GPU was lost, the processes on
        the GPU that belong to no run, or the readings."""
        data = self._data
        if data.state == "lost":
            return data.lost_text, "errorForeground"
        if data.used_by:
            return data.used_by, "disabledForeground" if data.state else "rankdeck.leadText"
        return data.readings, "disabledForeground" if data.state else "descriptionForeground"

    def _paint_third_line(self, painter: QPainter) -> None:
        text, ink = self._third_line()
        room, elide = QRectF(8, 29, self.width() - 16, 15), Qt.TextElideMode.ElideRight
        metrics = QFontMetricsF(chart_font(10))
        while READINGS_SEPARATOR in text and metrics.horizontalAdvance(text) > room.width():
            text = text.rpartition(READINGS_SEPARATOR)[0]  # drop whole readings instead of cutting one off
        paint_text(painter, room, text, self._theme.color(ink), 10, elide=elide)

    def _paint_bar(self, painter: QPainter, top: float | None) -> None:
        color, data = self._theme.color, self._data
        height = 4.0 if self._is_chip or top is not None else 6.0
        if top is None:
            top = self.height() - height - (7 if self._is_chip else 9)
        track = QRectF(8, top, self.width() - 16, height)
        paint_rounded_box(painter, self._theme, track, height / 2, color("rankdeck.track"))
        painter.setPen(Qt.PenStyle.NoPen)
        if data.share is not None:
            fill = QRectF(track)
            # At least a dot, or a small share would be invisible.
            fill.setWidth(max(height, track.width() * min(1.0, data.share)))
            painter.setBrush(
                self._text_color("rankdeck.lead" if data.is_lead or data.used_by else "rankdeck.rest")
            )
            painter.drawRoundedRect(fill, height / 2, height / 2)


def format_short_bytes(num_bytes: int) -> str:
    """Format a number of bytes in short form: '57 GiB', '1.4 GiB', '286 MiB'."""
    text = format_bytes(num_bytes, 0)
    return format_bytes(num_bytes, 1) if len(text.split()[0]) == 1 and num_bytes >= 1024 else text


class DeviceGrid(QWidget):
    """Grid of all devices. `toggled` carries a device's index and new state when the user checks or unchecks
    it."""

    toggled = Signal(int, bool)

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self.cards: list[DeviceCard] = []
        self._shape: tuple[int, bool] = (0, False)
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setSpacing(GAP)

    def set_devices(self, devices: Sequence[DeviceCardData], checked: Sequence[bool] | None) -> None:
        """Show the devices, each checked or not; if `checked` is None, they cannot be selected."""
        shape = (len(devices), checked is not None)
        if shape != self._shape:
            self._rebuild(*shape)
        for index, (card, card_data) in enumerate(zip(self.cards, devices, strict=True)):
            card.set_data(card_data)
            if checked is not None:
                card.setChecked(checked[index])
                # A selected device that became unavailable can still be deselected.
                card.setEnabled(card_data.is_selectable or checked[index])

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
            # The default binds this card's index.
            card.clicked.connect(lambda checked, index=index: self.toggled.emit(index, checked))
        if count % columns and count < columns:
            self._grid.setColumnStretch(count, 1)
