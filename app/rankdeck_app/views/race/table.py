"""The race's table: its header and the list of entries."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from PySide6.QtCore import QModelIndex, QRect, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QFontMetrics, QMouseEvent, QPainter, QPaintEvent, QResizeEvent, QWheelEvent
from PySide6.QtWidgets import QStyle, QStyleOptionViewItem, QWidget

from rankdeck.base.phrases import tr_noop
from rankdeck_app.language import tr
from rankdeck_app.theme import Theme, draw_icon
from rankdeck_app.views.race.race_chart_data import LOSS_VERDICTS, RaceRow, max_step_s
from rankdeck_app.widgets.painting import (
    DATA_ROLE,
    LEFT,
    RIGHT,
    Index,
    chart_font,
    paint_text,
    paint_track,
    paint_wrapped_text,
)
from rankdeck_app.widgets.row_list import LIST_HEADER_HEIGHT, RowList, RowListDelegate, paint_list_header

_MIN_ROWS = 3


class RaceTable(RowList):
    """The list of entries. `picked` carries an entry's number on a double click or Enter."""

    picked = Signal(int)

    def __init__(self, theme: Theme) -> None:
        self._delegate = RaceRowDelegate(theme)
        super().__init__(theme, self._delegate, tr("Strategies and their step times"))
        self.activated.connect(self._on_activated)
        self.setMinimumHeight(_MIN_ROWS * ROW_HEIGHT)

    def set_rows(self, rows: Sequence[RaceRow]) -> None:
        """Update the rows. The running entry is current until the user presses a key, clicks or scrolls; from
        then on, the current row and the scroll position do not change, even if rows are reordered."""
        number, top = self.current_key(), self.verticalScrollBar().value()
        end_s = max_step_s(rows)
        drawn = end_s, max(map(name_width, rows), default=0)
        # Scale and name width are shared, so rows with unchanged data need a repaint too.
        is_other = drawn != (self._delegate.end_s, self._delegate.widest_name)
        self._delegate.end_s, self._delegate.widest_name = drawn
        self.row_model.set_rows(rows, repaint=is_other)
        numbers = [race_row.key for race_row in rows]
        running = next((race_row.key for race_row in rows if race_row.progress is not None), None)
        if running is not None and not self.has_moved:
            self.setCurrentIndex(self.row_model.index(numbers.index(running)))
            self._show_current()
        elif numbers:
            row_index = numbers.index(number) if self.has_moved and number in numbers else 0
            self.setCurrentIndex(self.row_model.index(row_index))
            self.verticalScrollBar().setValue(top if self.has_moved else 0)

    def columns(self) -> RaceColumns:
        """Return the columns for the current width of the rows, which a scroll bar reduces."""
        return self._delegate.columns(self.viewport().width())

    def _show_current(self) -> None:
        if not self.has_moved:
            self.scrollTo(self.currentIndex())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._show_current()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self.has_moved = True
        super().mousePressEvent(event)

    def wheelEvent(self, event: QWheelEvent) -> None:
        self.has_moved = True
        super().wheelEvent(event)

    def _on_activated(self, index: QModelIndex) -> None:
        self.picked.emit(self.row_model.rows[index.row()].key)


class RaceHeader(QWidget):
    """The table's header."""

    def __init__(self, theme: Theme, table: RaceTable) -> None:
        super().__init__()
        self._theme = theme
        self._table = table
        self._has_plan = False
        self.setFixedHeight(LIST_HEADER_HEIGHT)
        theme.changed.connect(self.update)

    def set_has_plan(self, has_plan: bool) -> None:
        """Set whether predicted times are shown."""
        self._has_plan = has_plan
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        columns, name = self._table.columns(), {key: tr(name) for key, name in COLUMN_TITLES.items()}
        sign = ICON_WIDTH if columns.has_loss_text else 0
        names = (
            (columns.icon, columns.name_width + 24, name["name"], LEFT),
            (columns.bar, columns.bar_title_width, name["planned" if self._has_plan else "bar"], LEFT),
            (columns.step, columns.step_width, name["step"], RIGHT),
            (columns.peak, columns.peak_width, name["peak"], RIGHT),
            (columns.sent, columns.sent_width, name["sent"], RIGHT),
            (columns.losses + sign, columns.losses_width - sign, name["losses"], LEFT),
        )
        paint_list_header(painter, self._theme, names)
        painter.end()


# Paints an entry of a race: position, name, a bar of its step time, memory, bytes, losses.  The bar's length
# is the median step time on a shared scale, with a line over the range of 80 % of the steps; below it, the
# prediction is drawn in the same way, with its range.

ROW_HEIGHT = 44
_BAR_HEIGHT, _BAND_HEIGHT = 10, 3
_LINE_HEIGHT = 16
ICON_WIDTH, _MIN_BAR_WIDTH = 21, 40
_MARGIN = 12
_SELECTED = QStyle.StateFlag.State_Selected
COLUMN_TITLES = {
    "name": tr_noop("Strategy"),
    "bar": tr_noop("Step time, 10th–90th percentile"),
    "planned": tr_noop("Measured (predicted below)"),
    "step": tr_noop("Step"),
    "peak": tr_noop("Fullest device"),
    "sent": tr_noop("Sent per step"),
    "losses": tr_noop("Losses"),
}
"""Column titles by key; if times were predicted, the bar column has the title of "planned", not of "bar"."""


@cache
def _text_width(text: str, px: int = 11, *, bold: bool = False, mono: bool = False) -> int:
    return QFontMetrics(chart_font(px, bold, mono)).horizontalAdvance(text) + 2


def name_width(race_row: RaceRow) -> int:
    """Return the width of a row's title and options in pixels."""
    return max(_text_width(race_row.title, 12, bold=True), _text_width(race_row.options))


class RaceColumns:
    """Left edges and widths of a row's columns in pixels; the bar takes the remaining width. `widest_name` is
    the width of the widest name in any row.

    A column that does not fit has width 0. Columns are dropped in this order: bytes sent, peak, the text
    beside the losses' icon, bar, time. The tooltip shows all of them.
    """

    def __init__(self, width: int, widest_name: int) -> None:
        is_narrow = width < 900
        self._gap = 12 if is_narrow else 18
        title_widths = {key: _text_width(tr(name)) for key, name in COLUMN_TITLES.items()}
        size = _text_width("888.8 MiB", 12, mono=True)
        apart = (tr("{share} apart", share="8e-08"), tr("to the last bit"))
        verdict_width = max(
            *(_text_width(tr(label), 12, bold=True) for _, label, _ in LOSS_VERDICTS.values()),
            *map(_text_width, apart),
        )
        self.step_width = max(title_widths["step"], _text_width(tr("{rate} samples/s", rate="88 888")))
        self.peak_width = max(title_widths["peak"], size, _text_width(tr("plan {size}", size="888.8 MiB")))
        self.sent_width = max(title_widths["sent"], size)
        self.losses_width = ICON_WIDTH + max(title_widths["losses"], verdict_width)
        self.has_loss_text = True
        self.position, self.position_width = 8, 30
        self.icon = self.position + self.position_width + 8
        self.name = self.icon + 24
        max_name_width = 110 if width < 440 else 150 if is_narrow else 196
        self.name_width = min(max(widest_name, title_widths["name"] - 24), max_name_width)
        self.bar = self.name + self.name_width + self._gap
        room = width - _MARGIN - self.bar
        title_width = max(title_widths["bar"], title_widths["planned"])
        if self._remaining_width(room) < title_width:
            self.sent_width = 0
        if self._remaining_width(room) < title_width:
            self.peak_width = 0
        if self._remaining_width(room) < title_width:
            self.losses_width, self.has_loss_text = max(ICON_WIDTH, title_widths["losses"]), False
        self.bar_width = self._remaining_width(room)
        if self.bar_width < _MIN_BAR_WIDTH:
            self.bar_width = 0
            # Without the bar, the gap before the first column is free as well.
            if self._remaining_width(room) + self._gap < 0:
                self.step_width = 0
        self.losses = width - _MARGIN - self.losses_width
        self.sent = self._left_edge(self.losses, self.sent_width)
        self.peak = self._left_edge(self.sent, self.peak_width)
        self.step = self._left_edge(self.peak, self.step_width)
        # The bar's title may extend into the step column, whose title is right-aligned.
        beyond = self._gap + self.step_width - title_widths["step"] - 8 if self.step_width else 0
        self.bar_title_width = self.bar_width + max(0, beyond) if self.bar_width else 0
        self.name_width = min(self.name_width, self.step - self._gap - self.name)
        if not self.bar_width:
            self.bar = min(self.bar, self.step)

    def _remaining_width(self, room: int) -> int:
        """Return the part of `room` that the columns to the right of the bar leave free."""
        widths = (self.step_width, self.peak_width, self.sent_width, self.losses_width)
        return room - sum(width + self._gap for width in widths if width)

    def _left_edge(self, column: int, width: int) -> int:
        return column - (self._gap + width if width else 0)


class RaceRowDelegate(RowListDelegate):
    """Delegate that paints the RaceRow stored in DATA_ROLE; `end_s` is the upper end of the step time
    scale."""

    def __init__(self, theme: Theme) -> None:
        super().__init__(theme)
        self.end_s = 1.0
        self.widest_name = 0

    def columns(self, width: int) -> RaceColumns:
        """Return the columns of a row of this width."""
        return RaceColumns(width, self.widest_name)

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        return QSize(300, ROW_HEIGHT)

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        race_row: RaceRow = index.data(DATA_ROLE)
        rect: QRect = option.rect
        columns = self.columns(rect.width())
        painter.save()
        painter.setClipRect(rect)
        painter.translate(rect.topLeft())
        rect = QRect(0, 0, rect.width(), rect.height())
        mark, is_chosen = "rankdeck.ok" if race_row.is_fastest else "", bool(option.state & _SELECTED)
        self.paint_background(painter, rect, option.state, is_selected=is_chosen, mark=mark)
        self._paint_name(painter, rect, columns, race_row)
        if race_row.status:
            self._paint_status(painter, rect, columns, race_row)
        elif race_row.progress is not None:
            self._paint_progress(painter, rect, columns, race_row.progress)
        else:
            self._paint_bar(painter, rect, columns, race_row)
            self._paint_numbers(painter, rect, columns, race_row)
        painter.restore()

    def _paint_name(self, painter: QPainter, rect: QRect, columns: RaceColumns, race_row: RaceRow) -> None:
        ink = self.colors.muted if race_row.is_dim else self.colors.foreground
        # The sign of a shared position is painted separately, so that the digits align.
        number, room = (
            race_row.position.rstrip("="),
            QRect(columns.position, 0, columns.position_width, rect.height()),
        )
        paint_text(painter, room.adjusted(0, 0, -11, 0), number, ink, 13, RIGHT, bold=race_row.is_fastest)
        if number != race_row.position:
            paint_text(painter, room, "=", self.colors.muted, 12, RIGHT)
        draw_icon(painter, race_row.icon, QRectF(columns.icon, 0, 16, rect.height()), ink)
        room = _first_line(rect, columns.name, columns.name_width, 1 + bool(race_row.options))
        elide = Qt.TextElideMode.ElideRight
        paint_text(painter, room, race_row.title, ink, 12, bold=not race_row.is_dim, elide=elide)
        if race_row.options:
            muted = self.colors.muted
            paint_text(painter, room.translated(0, _LINE_HEIGHT), race_row.options, muted, 11, elide=elide)

    def _paint_status(self, painter: QPainter, rect: QRect, columns: RaceColumns, race_row: RaceRow) -> None:
        """Paint the status in up to two lines; the tooltip has its full text."""
        room = QRect(columns.bar, 5, rect.width() - 12 - columns.bar, rect.height() - 10)
        paint_wrapped_text(painter, room, race_row.status, self.colors.tone_color(race_row.status_tone), 11)

    def _paint_progress(self, painter: QPainter, rect: QRect, columns: RaceColumns, share: float) -> None:
        box = self._track_rect(rect, columns)
        paint_track(painter, self.theme, box)
        done = QRectF(box.x(), box.y(), box.width() * min(1.0, share), box.height())
        painter.fillRect(done, self.theme.color("button.background"))
        text = f"{share * 100:.0f} %" if share else tr("starting")
        room = QRect(columns.step, 0, columns.step_width, rect.height())
        if columns.step_width:
            paint_text(painter, room, text, self.colors.muted, 11, RIGHT)

    def _track_rect(self, rect: QRect, columns: RaceColumns) -> QRectF:
        return QRectF(columns.bar, (rect.height() - _BAR_HEIGHT) // 2, columns.bar_width, _BAR_HEIGHT)

    def _paint_bar(self, painter: QPainter, rect: QRect, columns: RaceColumns, race_row: RaceRow) -> None:
        box, colors = self._track_rect(rect, columns), self.colors
        paint_track(painter, self.theme, box)
        if race_row.step_s is None or not columns.bar_width:
            return
        scale = box.width() / self.end_s
        painter.fillRect(QRectF(box.x(), box.y(), race_row.step_s * scale, box.height()), colors.rest)
        if race_row.low_s is not None and race_row.high_s is not None:
            left, width = box.x() + race_row.low_s * scale, (race_row.high_s - race_row.low_s) * scale
            if width >= 2:  # a shorter line looks like dirt
                painter.fillRect(QRectF(left, box.center().y() - 1, width, 2), colors.foreground)
        if race_row.predicted_s is not None:
            low, high = (min(1.0, time / self.end_s) * box.width() for time in race_row.predicted_s)
            band = QRectF(box.x(), box.bottom() + 2, (low + high) / 2, _BAND_HEIGHT)
            painter.fillRect(band, colors.axis)
            painter.fillRect(QRectF(box.x() + low, band.y() + 1, high - low, 1), colors.foreground)

    def _paint_numbers(self, painter: QPainter, rect: QRect, columns: RaceColumns, race_row: RaceRow) -> None:
        colors = self.colors
        for left, width, text, note, is_main in (
            (columns.step, columns.step_width, race_row.time, race_row.rate, True),
            (columns.peak, columns.peak_width, race_row.peak, race_row.predicted_peak, False),
            (columns.sent, columns.sent_width, race_row.sent, "", False),
        ):
            if not width:
                continue
            room = _first_line(rect, left, width, 1 + bool(note))
            paint_text(painter, room, text, colors.foreground, 12, RIGHT, bold=is_main, mono=True)
            if note:
                elide = Qt.TextElideMode.ElideRight
                paint_text(
                    painter, room.translated(0, _LINE_HEIGHT), note, colors.muted, 11, RIGHT, elide=elide
                )
        self._paint_losses(painter, rect, columns, race_row)

    def _paint_losses(self, painter: QPainter, rect: QRect, columns: RaceColumns, race_row: RaceRow) -> None:
        if not race_row.losses:
            return
        ink, elide = self.colors.tone_color(race_row.tone), Qt.TextElideMode.ElideRight
        words_width = columns.losses_width - ICON_WIDTH
        num_lines = 1 + bool(race_row.losses_note and columns.has_loss_text)
        room = _first_line(rect, columns.losses + ICON_WIDTH, words_width, num_lines)
        draw_icon(painter, race_row.losses_icon, QRectF(columns.losses, room.y(), 16, _LINE_HEIGHT), ink)
        if not columns.has_loss_text:
            return
        is_bold = race_row.tone == "error"
        paint_text(painter, room, race_row.losses, ink, 12, bold=is_bold, elide=elide)
        if race_row.losses_note:
            note, muted = race_row.losses_note, self.colors.muted
            paint_text(painter, room.translated(0, _LINE_HEIGHT), note, muted, 11, elide=elide)


def _first_line(rect: QRect, left: int, width: int, num_lines: int) -> QRect:
    """Return the rectangle of the first of `num_lines` text lines that are centred vertically in the row."""
    return QRect(left, (rect.height() - _LINE_HEIGHT * num_lines) // 2, width, _LINE_HEIGHT)
