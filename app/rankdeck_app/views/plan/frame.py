"""What stands around the table: the names of its columns above, the kinds of its segments below."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import QRect, QRectF, QSize, Qt
from PySide6.QtGui import QBrush, QFontMetrics, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy, QWidget

from rankdeck_app.theme import Theme
from rankdeck_app.views.plan.figures import SEGMENT_LABELS
from rankdeck_app.views.plan.table import Columns
from rankdeck_app.widgets.chart_colors import chart_font

_HEIGHT = 20
_LEFT = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
_RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter


class ColumnNames(QWidget):
    """The head of the table. `width_of` tells how wide its rows are beside a scroll bar."""

    def __init__(self, theme: Theme, width_of: Callable[[], int]) -> None:
        super().__init__()
        self._theme = theme
        self._width_of = width_of
        self.setFixedHeight(_HEIGHT)
        theme.changed.connect(self.update)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setFont(chart_font(11))
        painter.setPen(self._theme.color("descriptionForeground"))
        columns = Columns.of(self._width_of())
        for left, width, text, where in (
            (columns.name, columns.name_width, "Strategy", _LEFT),
            (columns.bars + 18, columns.bars_width, "Each device", _LEFT),
            (columns.peak, columns.peak_width, "Fullest", _RIGHT),
            (columns.step, columns.step_width, "Step time", _RIGHT),
            (columns.verdict + 21, columns.verdict_width, "Verdict", _LEFT),
        ):
            painter.drawText(QRect(left, 0, width, _HEIGHT), where, text)
        painter.end()


class Legend(QWidget):
    """The kinds that can be seen, and the sign of the capacity."""

    def __init__(self, theme: Theme, brush: Callable[[str], QBrush]) -> None:
        super().__init__()
        self._theme = theme
        self._brush = brush
        self._kinds: Sequence[str] = ()
        self._has_capacity = False
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        theme.changed.connect(self.update)

    def show_kinds(self, kinds: Sequence[str], *, has_capacity: bool) -> None:
        self._kinds, self._has_capacity = kinds, has_capacity
        self.setAccessibleName("Kinds of memory: " + ", ".join(SEGMENT_LABELS[kind] for kind in kinds))
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(200, _HEIGHT)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setFont(chart_font(11))
        metrics = QFontMetrics(chart_font(11))
        muted = self._theme.color("descriptionForeground")
        left, middle = 4, self.height() / 2
        named = [*self._kinds, *(["capacity"] if self._has_capacity else [])]
        for kind in named:
            text = SEGMENT_LABELS.get(kind, kind)
            if kind == "capacity":
                pen = QPen(self._theme.color("rankdeck.capacity"), 1, Qt.PenStyle.CustomDashLine)
                pen.setDashPattern([3, 2])
                painter.setPen(pen)
                painter.drawLine(left + 4, round(middle - 6), left + 4, round(middle + 6))
            else:
                painter.fillRect(QRectF(left, middle - 4.5, 9, 9), self._brush(kind))
            painter.setPen(muted)
            painter.drawText(QRectF(left + 14, 0, 300, self.height()), _LEFT, text)
            left += 14 + metrics.horizontalAdvance(text) + 12
        painter.end()
