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
from rankdeck_app.widgets.layouts import clear
from rankdeck_app.widgets.painting import RIGHT, chart_font, paint_plate, paint_text

MAX_CARDS = 8
CARD_HEIGHT = 46
CHIP_HEIGHT = 36
GAP = 6
GAP_OF_READINGS = "  "


@dataclass(frozen=True)
class DeviceFigure:
    """What a card shows. `share` is used over capacity (or over the largest peak); None is unknown.

    `state`: "" | stale (old figures) | off (not to be chosen) | lost. `note` stands where the bytes are else;
    `gone` (since when it is lost) or `busy` (who else uses it) where the `readings` are.
    """

    label: str
    short_label: str
    used_bytes: int | None = None
    share: float | None = None
    is_lead: bool = False
    note: str = ""
    tooltip: str = ""
    readings: str = ""
    busy: str = ""
    gone: str = ""
    state: str = ""

    @property
    def is_choosable(self) -> bool:
        return self.state in ("", "stale")


class DeviceCard(QAbstractButton):
    """One device. Checkable when the person chooses among devices (GPUs)."""

    def __init__(self, theme: Theme, chip: bool, checkable: bool) -> None:
        super().__init__()
        self._theme = theme
        self._chip = chip
        self._figure = DeviceFigure("", "")
        self.setCheckable(checkable)
        self.setAttribute(Qt.WidgetAttribute.WA_Hover)
        theme.changed.connect(self.update)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.setFixedHeight(CHIP_HEIGHT if chip else CARD_HEIGHT)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus if checkable else Qt.FocusPolicy.NoFocus)

    def set_figure(self, figure: DeviceFigure) -> None:
        if figure == self._figure:
            return
        self._figure = figure
        num_bytes = figure.used_bytes
        used = "" if num_bytes is None else tr("{used} in use", used=format_bytes(num_bytes))
        self.setAccessibleName(figure.label)
        busy = figure.busy and tr("used by {who}", who=figure.busy)
        stale = tr("old figures") if figure.state == "stale" else ""
        words = (figure.gone, figure.note, used, stale, figure.readings.replace(GAP_OF_READINGS, ", "), busy)
        self.setAccessibleDescription(", ".join(filter(None, words)))
        self.setToolTip(figure.tooltip or figure.label)
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(56 if self._chip else 120, self.minimumHeight())

    def paintEvent(self, event: QPaintEvent) -> None:
        color = self._theme.color
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        lit = self.hasFocus() or (self.underMouse() and self.isCheckable() and self.isEnabled())
        painter.setPen(QPen(color("focusBorder" if lit else "dropdown.border"), 1))
        painter.setBrush(color("rankdeck.card.background"))
        painter.drawRoundedRect(QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5), 4, 4)
        left = 4.0 if self._chip else 8.0
        has_third_line = not self._chip and bool(self._third_line()[0])
        middle = 13.0 if self._chip or has_third_line else 14.0
        if self.isCheckable():
            if self._figure.is_choosable or self.isChecked():
                paint_check(painter, self._theme, QRectF(left, middle - 8, 16, 16), self.isChecked())
            left += 19 if self._chip else 22
        self._paint_text(painter, left, middle)
        if self._figure.state not in ("lost", "off"):
            self._paint_bar(painter, 24.0 if has_third_line else None)
        if has_third_line:
            self._paint_third_line(painter)
        painter.end()

    def _ink(self, usual: str) -> QColor:
        """What is old, or not to be chosen, is grey."""
        return self._theme.color("disabledForeground" if self._figure.state else usual)

    def _paint_text(self, painter: QPainter, left: float, middle: float) -> None:
        figure = self._figure
        active = self.isChecked() or not self.isCheckable()
        room = QRectF(left, middle - 10, self.width() - left - (3 if self._chip else 8), 20)
        right = figure.note or ("" if figure.used_bytes is None else short_bytes(figure.used_bytes))
        beside = 0 if self._chip else QFontMetricsF(chart_font(10)).horizontalAdvance(f"{right} ")
        fits = (
            QFontMetricsF(chart_font(12, bold=True)).horizontalAdvance(figure.label) + beside <= room.width()
        )
        name = figure.label if fits and not self._chip else figure.short_label
        ink = self._ink("foreground" if active else "descriptionForeground")
        paint_text(painter, room, name, ink, 12, bold=True)
        if not self._chip:
            paint_text(painter, room, right, self._ink("descriptionForeground"), 10, RIGHT)
        elif figure.state == "lost":
            box = QRectF(self.width() - 22, middle - 7, 14, 14)
            draw_icon(painter, "error", box, self._theme.color("errorForeground"))

    def _third_line(self) -> tuple[str, str]:
        """(text, colour id): that it is lost, who else uses it, or its readings."""
        figure = self._figure
        if figure.state == "lost":
            return figure.gone, "errorForeground"
        if figure.busy:
            return figure.busy, "disabledForeground" if figure.state else "rankdeck.leadText"
        return figure.readings, "disabledForeground" if figure.state else "descriptionForeground"

    def _paint_third_line(self, painter: QPainter) -> None:
        words, ink = self._third_line()
        room, elide = QRectF(8, 29, self.width() - 16, 15), Qt.TextElideMode.ElideRight
        metrics = QFontMetricsF(chart_font(10))
        while GAP_OF_READINGS in words and metrics.horizontalAdvance(words) > room.width():
            words = words.rpartition(GAP_OF_READINGS)[0]  # a reading is whole or not there
        paint_text(painter, room, words, self._theme.color(ink), 10, elide=elide)

    def _paint_bar(self, painter: QPainter, top: float | None) -> None:
        color, figure = self._theme.color, self._figure
        height = 4.0 if self._chip or top is not None else 6.0
        if top is None:
            top = self.height() - height - (7 if self._chip else 9)
        track = QRectF(8, top, self.width() - 16, height)
        paint_plate(painter, self._theme, track, height / 2, color("rankdeck.track"))
        painter.setPen(Qt.PenStyle.NoPen)
        if figure.share is not None:
            fill = QRectF(track)
            fill.setWidth(max(height, track.width() * min(1.0, figure.share)))
            painter.setBrush(self._ink("rankdeck.lead" if figure.is_lead or figure.busy else "rankdeck.rest"))
            painter.drawRoundedRect(fill, height / 2, height / 2)


def short_bytes(num_bytes: int) -> str:
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

    def set_devices(self, figures: Sequence[DeviceFigure], checked: Sequence[bool] | None) -> None:
        """Show these devices; `checked` None means that there is nothing to choose."""
        shape = (len(figures), checked is not None)
        if shape != self._shape:
            self._rebuild(*shape)
        for index, (card, figure) in enumerate(zip(self.cards, figures, strict=True)):
            card.set_figure(figure)
            if checked is not None:
                card.setChecked(checked[index])
                card.setEnabled(figure.is_choosable or checked[index])

    def _rebuild(self, count: int, checkable: bool) -> None:
        clear(self._grid)
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
