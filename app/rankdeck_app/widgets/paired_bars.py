"""Bars that compare runs on a common scale: one group per device or metric, with one bar per run.

Groups flow into as many columns as fit, so the height depends on the width.
"""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy

from rankdeck.compare.bar_charts import Bar, BarGroup
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.chart import Chart, paint_tick
from rankdeck_app.widgets.painting import paint_text, paint_track, text_width

_TITLE_HEIGHT, _ROW_HEIGHT, _BAR_HEIGHT = 22, 20, 12
_GAP, _GROUP_GAP = 28, 12
_MIN_GROUP_WIDTH = 280
_LETTER_WIDTH, _NUMBER_WIDTH = 22, 132
_ELIDE_MODE = Qt.TextElideMode.ElideRight


@dataclass(frozen=True)
class PairedBarsData:
    groups: tuple[BarGroup, ...] = ()

    @property
    def has_prediction(self) -> bool:
        return any(bar.predicted_share is not None for group in self.groups for bar in group.bars)


class PairedBars(Chart[PairedBarsData]):
    """Bars of several runs. An amber bar marks a device that stands out in its run; a tick on a bar marks the
    predicted value."""

    def __init__(self, theme: Theme, name: str) -> None:
        super().__init__(theme, PairedBarsData(), name)
        policy = QSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Minimum)
        # Groups wrap, so the height depends on the width.
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)

    def describe(self) -> str:
        return "; ".join(
            f"{group.label}: {', '.join(f'{bar.letter} {bar.text}' for bar in group.bars)}"
            for group in self.data.groups
        )

    def hasHeightForWidth(self) -> bool:
        return True

    def heightForWidth(self, width: int) -> int:
        boxes = self._boxes(width)
        return round(max((box.bottom() for box in boxes), default=40.0)) + 2

    def sizeHint(self) -> QSize:
        return QSize(2 * _MIN_GROUP_WIDTH, self.heightForWidth(max(_MIN_GROUP_WIDTH, self.width())))

    def minimumSizeHint(self) -> QSize:
        return QSize(_MIN_GROUP_WIDTH, 40)

    def _boxes(self, width: float) -> list[QRectF]:
        """Return the rectangles of the groups in a chart `width` pixels wide."""
        groups = self.data.groups
        num_columns = max(1, min(len(groups), int((width + _GAP) // (_MIN_GROUP_WIDTH + _GAP))))
        column_width = (width - _GAP * (num_columns - 1)) / num_columns
        boxes: list[QRectF] = []
        top = 0.0
        # Groups in one row share the height of the highest.
        for first in range(0, len(groups), num_columns):
            together = groups[first : first + num_columns]
            height = _TITLE_HEIGHT + _ROW_HEIGHT * max(len(group.bars) for group in together)
            boxes += [
                QRectF(column * (column_width + _GAP), top, column_width, height)
                for column in range(len(together))
            ]
            top += height + _GROUP_GAP
        return boxes

    def paint(self, painter: QPainter, event: QPaintEvent) -> None:
        for group, box in zip(self.data.groups, self._boxes(self.width()), strict=True):
            title = QRectF(box.left(), box.top(), box.width(), _TITLE_HEIGHT)
            paint_text(painter, title, group.label, self._colors.muted, 12, elide=_ELIDE_MODE)
            for index, bar in enumerate(group.bars):
                row = QRectF(
                    box.left(), box.top() + _TITLE_HEIGHT + index * _ROW_HEIGHT, box.width(), _ROW_HEIGHT
                )
                self._paint_bar(painter, bar, row)

    def _paint_bar(self, painter: QPainter, bar: Bar, row: QRectF) -> None:
        colors = self._colors
        paint_text(
            painter,
            QRectF(row.left(), row.top(), _LETTER_WIDTH, _ROW_HEIGHT),
            bar.letter,
            colors.foreground,
            11,
            bold=True,
        )
        track = QRectF(
            row.left() + _LETTER_WIDTH,
            row.top() + (_ROW_HEIGHT - _BAR_HEIGHT) / 2,
            row.width() - _LETTER_WIDTH - _NUMBER_WIDTH,
            _BAR_HEIGHT,
        )
        paint_track(painter, self._theme, track)
        if bar.share is not None:
            filled = QRectF(track)
            # A value close to 0 stays visible.
            filled.setWidth(max(1.0, track.width() * bar.share / 100))
            painter.fillRect(filled, colors.lead if bar.is_lead else colors.rest)
        if bar.predicted_share is not None:
            paint_tick(painter, colors, track, bar.predicted_share / 100)
        self._paint_number(painter, bar, QRectF(track.right() + 8, row.top(), _NUMBER_WIDTH - 8, _ROW_HEIGHT))

    def _paint_number(self, painter: QPainter, bar: Bar, room: QRectF) -> None:
        paint_text(painter, room, bar.text, self._number_color(bar), 12, bold=bar.is_best, mono=True)
        left = text_width(painter, bar.text) + 8
        note_room = room.adjusted(left, 0, 0, 0)
        paint_text(painter, note_room, bar.note, self._colors.axis, 11, elide=_ELIDE_MODE)

    def _number_color(self, bar: Bar) -> QColor:
        if bar.is_lead:
            return self._colors.lead_text
        if bar.is_best:
            return self._theme.color("rankdeck.ok")
        return self._colors.muted if bar.share is None else self._colors.foreground

    def tooltip_at(self, x: float, y: float) -> str:
        for group, box in zip(self.data.groups, self._boxes(self.width()), strict=True):
            index = int((y - box.top() - _TITLE_HEIGHT) // _ROW_HEIGHT)
            if box.contains(x, y) and 0 <= index < len(group.bars):
                bar = group.bars[index]
                return " ".join(filter(None, (bar.letter, group.label + ":", bar.text, bar.note)))
        return ""
