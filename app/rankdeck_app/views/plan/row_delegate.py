"""Paints a row of the plan: name, one bar per device on a common scale, peak, step time and verdict.

`PlanColumns` positions the columns of the rows and of the header. Read plan_chart_data.py, which builds the
data, first.
"""

from __future__ import annotations

from functools import cache

from PySide6.QtCore import QRect, QRectF, QSize, Qt
from PySide6.QtGui import QBrush, QColor, QFontMetrics, QPainter, QPen
from PySide6.QtWidgets import QStyleOptionViewItem

from rankdeck.base.phrases import tr_noop
from rankdeck.run.plan_lines import CANNOT, DOES_NOT_FIT, FITS, TIGHT
from rankdeck_app.language import tr
from rankdeck_app.theme import Theme, draw_icon
from rankdeck_app.views.plan.plan_chart_data import (
    CONSTANTS,
    LEAST_MEMORY,
    OTHERS,
    RECOMMENDED,
    RESERVED,
    PlanBar,
    PlanRowData,
    Scale,
)
from rankdeck_app.widgets.chart import UNKNOWN
from rankdeck_app.widgets.facts_line import VERIFICATION_ICONS
from rankdeck_app.widgets.painting import (
    CENTER,
    DATA_ROLE,
    RIGHT,
    Index,
    chart_font,
    dashed_pen,
    paint_segments,
    paint_text,
    paint_wrapped_text,
)
from rankdeck_app.widgets.row_list import RowListDelegate

MIN_ROW_HEIGHT = 42
CAPACITY_DASHES = (3, 2)
_PADDING = 12
INDEX_WIDTH = 36
INDEX_FONT_PX = 9
INDEX_HEIGHT = 9
"""Minimum distance in pixels between two index labels, small because digits have no descenders."""
VERDICT_ICONS = {
    FITS: ("pass", "rankdeck.ok"),
    TIGHT: ("warning", "rankdeck.leadText"),
    DOES_NOT_FIT: ("error", "errorForeground"),
    CANNOT: ("circle-slash", "descriptionForeground"),
}


_SHORT_MARKS = {LEAST_MEMORY: tr_noop("Least")}
_MIN_MARK_WIDTH = 36
"""Minimum width in pixels of the text of a mark such as "Recommended", even if the mark then extends beyond
the name column."""

ICON_WIDTH = 21
# (minimum row width, widths of name, peak, step time, verdict)
_COLUMN_WIDTHS = (
    (900, (180, 116, 112, 114)),
    (700, (150, 84, 84, 114)),
    (560, (120, 78, 76, 114)),
    (440, (110, 78, 0, 104)),
    (0, (100, 78, 0, ICON_WIDTH)),
)


# PlanColumns measures texts for every row in every paint.
@cache
def _text_width(text: str, *, bold: bool = False, mono: bool = False) -> int:
    return QFontMetrics(chart_font(11, bold, mono)).horizontalAdvance(text) + 1


class PlanColumns:
    """Left edges and widths of a row's columns, in pixels. A column that does not fit has width 0.

    The step time is dropped first, then the text beside the verdict's icon; the tooltip shows both.
    """

    def __init__(self, width: int) -> None:
        is_narrow = width < 900
        sizes = next(sizes for min_width, sizes in _COLUMN_WIDTHS if width >= min_width)
        self.name_width, peak_width, step_width, self.verdict_width = sizes
        # Numbers must fit in every language.
        above, about = tr("{ratio:.1f}× others", ratio=8.8), tr("about {time}", time="888 ms")
        self.peak_width = max(peak_width, _text_width(above, bold=True))
        self.step_width = max(step_width, _text_width(about, mono=True)) if step_width else 0
        self.verdict = width - _PADDING - self.verdict_width
        self.step = self.verdict - (8 if is_narrow else 14) - self.step_width
        self.peak = self.step - (10 if self.step_width else 0) - self.peak_width
        self.name = 38
        self.bars = self.name + self.name_width + 10
        self.bars_width = max(60, self.peak - 12 - self.bars)


def bar_sizes(num_bars: int) -> tuple[int, int]:
    """Return (height, gap) in pixels for the bars of a row that has `num_bars` bars."""
    for max_bars, sizes in ((4, (7, 2)), (8, (5, 1)), (16, (3, 1)), (32, (2, 1))):
        if num_bars <= max_bars:
            return sizes
    return 1, 0


def labelled_bars(num_bars: int) -> range:
    """Return the indices of the bars to label: every bar or, if labels would overlap, only every second bar,
    every fourth and so on."""
    pitch = sum(bar_sizes(num_bars))
    step = 1
    while step * pitch < INDEX_HEIGHT:
        # Doubled, so that the labels stay at regular numbers such as 0, 4 and 8.
        step *= 2
    return range(0, num_bars if num_bars > 1 else 0, step)


class PlanRowDelegate(RowListDelegate):
    """Delegate that paints the PlanRowData stored in DATA_ROLE; `scale` is the scale of every bar."""

    def __init__(self, theme: Theme) -> None:
        super().__init__(theme)
        self.scale = Scale()

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        data: PlanRowData = index.data(DATA_ROLE)
        num_bars = max(len(data.bars), data.num_tracks)
        height, gap = bar_sizes(num_bars)
        num_lines = max(
            1 + bool(data.options) + bool(data.marks),
            1 + bool(data.peak_note) + bool(data.measured_peak),
            1 + bool(data.step_note) + bool(data.measured_step),
            1 + bool(data.verdict_note) + bool(data.verification_text),
        )
        return QSize(300, max(MIN_ROW_HEIGHT, num_bars * (height + gap) - gap + 14, 16 * num_lines + 10))

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        data: PlanRowData = index.data(DATA_ROLE)
        rect: QRect = option.rect
        columns = PlanColumns(rect.width())
        painter.save()
        # A text that is too long for its row must not cover the next row.
        painter.setClipRect(rect)
        mark = "focusBorder" if data.is_chosen else ""
        self.paint_background(painter, rect, option.state, is_selected=data.is_chosen, mark=mark)
        self._paint_name(painter, rect, columns, data)
        if data.reason:
            left = columns.bars + INDEX_WIDTH
            room = QRect(left, rect.y() + 4, columns.verdict - 14 - left, rect.height() - 8)
            paint_wrapped_text(painter, room, data.reason, self.colors.muted, 11)
        else:
            self._paint_bars(painter, rect, columns, data)
            self._paint_numbers(painter, rect, columns, data)
        self._paint_verdict(painter, rect, columns, data)
        painter.restore()

    def _paint_name(
        self, painter: QPainter, rect: QRect, columns: PlanColumns, row_data: PlanRowData
    ) -> None:
        colors = self.colors
        is_dim = row_data.is_pending or row_data.verdict == CANNOT or not row_data.verdict
        ink = colors.muted if is_dim else colors.foreground
        draw_icon(painter, row_data.icon, QRectF(rect.x() + 14, rect.y(), 16, rect.height()), ink)
        num_lines = 1 + bool(row_data.options) + bool(row_data.marks)
        top = rect.y() + (rect.height() - 16 * num_lines) // 2
        room, elide = QRect(columns.name, top, columns.name_width, 16), Qt.TextElideMode.ElideRight
        paint_text(painter, room, row_data.title, ink, 12, bold=not is_dim, elide=elide)
        if row_data.options:
            top += 16
            paint_text(painter, room.translated(0, 16), row_data.options, colors.muted, 11, elide=elide)
        left = columns.name
        for mark in row_data.marks:
            width = columns.name + columns.name_width - left
            left += self._paint_mark(painter, left, top + 17, width, mark) + 6

    def _paint_mark(self, painter: QPainter, left: int, top: int, room: int, mark: str) -> int:
        """Paint a mark and return its width. The mark "Recommended" is filled, other marks are outlined.
        Shorten the mark if there is little space."""
        metrics, color = QFontMetrics(chart_font(10, bold=True)), self.theme.color
        is_filled = mark == RECOMMENDED
        word = tr(mark)
        if metrics.horizontalAdvance(word) + 10 > room:
            word = tr(_SHORT_MARKS.get(mark, mark))
        word = metrics.elidedText(word, Qt.TextElideMode.ElideRight, max(_MIN_MARK_WIDTH, room - 10))
        width = metrics.horizontalAdvance(word) + 10
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(color("button.background" if is_filled else "descriptionForeground"), 1))
        painter.setBrush(color("button.background") if is_filled else Qt.BrushStyle.NoBrush)
        box = QRectF(left + 0.5, top + 0.5, width, 13)
        painter.drawRoundedRect(box, 3, 3)
        # Off again, because antialiasing would blur the edges of the bars.
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
        ink = color("button.foreground" if is_filled else "descriptionForeground")
        paint_text(painter, box, word, ink, 10, CENTER, bold=True)
        return width

    def _paint_bars(
        self, painter: QPainter, rect: QRect, columns: PlanColumns, row_data: PlanRowData
    ) -> None:
        num_bars = max(len(row_data.bars), row_data.num_tracks)
        height, gap = bar_sizes(num_bars)
        top = rect.y() + (rect.height() - num_bars * (height + gap) + gap) // 2
        left, width = columns.bars + INDEX_WIDTH, columns.bars_width - INDEX_WIDTH
        around = QRectF(left - 1, top - 1, width + 2, num_bars * (height + gap) - gap + 2)
        painter.fillRect(around, self.theme.color("contrastBorder"))  # also visible between the bars
        for bar_index in range(num_bars):
            box = QRectF(left, top + bar_index * (height + gap), width, height)
            painter.fillRect(box, self.colors.track)
            if row_data.bars:
                self._paint_bar(painter, box, row_data.bars[bar_index])
                if bar_index in labelled_bars(len(row_data.bars)):
                    where = QRectF(columns.bars, box.center().y() - 7, INDEX_WIDTH - 6, 14)
                    paint_text(
                        painter,
                        where,
                        row_data.bars[bar_index].index_text,
                        self.colors.muted,
                        INDEX_FONT_PX,
                        RIGHT,
                    )
        self._paint_capacity(painter, QRectF(left, top - 3, width, num_bars * (height + gap) - gap + 6))

    def _paint_bar(self, painter: QPainter, box: QRectF, bar: PlanBar) -> None:
        scale = box.width() / self.scale.end_bytes
        segments = (
            (num_bytes * scale, self.brush(kind, is_lead=bar.is_lead)) for kind, num_bytes in bar.segments
        )
        left = paint_segments(painter, box, segments)
        capacity = self.scale.capacity_bytes
        # A pixel of tolerance, so that rounding does not mark a bar that just fits.
        if capacity is not None and left > box.left() + capacity * scale + 1:
            start = box.left() + capacity * scale
            over = QRectF(start, box.top(), min(left, box.right()) - start, box.height())
            painter.fillRect(over, self.theme.color("errorForeground"))

    def brush(self, kind: str, *, is_lead: bool) -> QBrush:
        """Return the brush for a memory kind: amber for gathered outputs of a lead device, a shade of blue
        for other live memory, grey for memory that is not live."""
        colors = self.colors
        if kind == "gathered" and is_lead:
            return QBrush(colors.hot)
        if kind in colors.kinds:
            return QBrush(colors.kinds[kind])
        # A copy, because theme colours are shared.
        grey = QColor(colors.axis)
        if kind == OTHERS:
            return QBrush(grey, Qt.BrushStyle.BDiagPattern)
        grey.setAlpha({RESERVED: 80, CONSTANTS: 150}.get(kind, 255))
        return QBrush(grey)

    def _paint_capacity(self, painter: QPainter, area: QRectF) -> None:
        scale = self.scale
        if not scale.shows_capacity or scale.capacity_bytes is None:
            return
        painter.setPen(dashed_pen(self.colors.capacity, CAPACITY_DASHES))
        x = round(area.left() + area.width() * scale.capacity_bytes / scale.end_bytes)
        painter.drawLine(x, round(area.top()), x, round(area.bottom()))

    def _paint_numbers(
        self, painter: QPainter, rect: QRect, columns: PlanColumns, row_data: PlanRowData
    ) -> None:
        colors = self.colors
        peak = (columns.peak, columns.peak_width, row_data.peak, row_data.peak_note, row_data.measured_peak)
        step = (columns.step, columns.step_width, row_data.step, row_data.step_note, row_data.measured_step)
        for left, width, text, note, measured in (peak, step):
            is_hot = row_data.is_hot and left == columns.peak
            if not width:
                continue
            num_lines = 1 + bool(note) + bool(measured)
            top = rect.y() + (rect.height() - 16 * num_lines) // 2
            is_peak = left == columns.peak
            is_bold = is_peak and text != UNKNOWN
            ink = colors.foreground if is_bold and not row_data.is_pending else colors.muted
            room = QRect(left, top, width, 16)
            paint_text(painter, room, text, ink, 12 if is_peak else 11, RIGHT, bold=is_bold, mono=True)
            if note:
                ink = colors.lead_text if is_hot else colors.muted
                below, elide = room.translated(0, 16), Qt.TextElideMode.ElideRight
                paint_text(painter, below, note, ink, 11, RIGHT, bold=is_hot, elide=elide)
            if measured:
                self._paint_measured(painter, room.translated(0, 16 * (num_lines - 1)), measured)

    def _paint_measured(self, painter: QPainter, room: QRect, text: str) -> None:
        """Paint a measurement, with the word "measured" if there is room. Where the word is left out, the
        line above the table still states that there are measurements."""
        word = tr("measured")
        word_width = QFontMetrics(chart_font(10)).horizontalAdvance(word) + 5
        if QFontMetrics(chart_font(11, mono=True)).horizontalAdvance(text) + word_width <= room.width():
            paint_text(painter, room, word, self.colors.muted, 10, RIGHT)
            room = room.adjusted(0, 0, -word_width, 0)
        paint_text(painter, room, text, self.colors.rest, 11, RIGHT, mono=True)

    def _paint_verdict(
        self, painter: QPainter, rect: QRect, columns: PlanColumns, row_data: PlanRowData
    ) -> None:
        icon, key = VERDICT_ICONS.get(row_data.verdict, ("", "descriptionForeground"))
        if row_data.verdict == FITS and self.scale.capacity_bytes is None:
            key = "descriptionForeground"  # without a capacity, "fits" means nothing
        ink = self.theme.color(key)
        has_words = columns.verdict_width > ICON_WIDTH
        num_lines = 1 + bool(row_data.verdict_note and has_words) + bool(row_data.verification_text)
        top = rect.y() + (rect.height() - 16 * num_lines) // 2
        left = columns.verdict
        self._paint_verified(painter, columns, top + 16 * (num_lines - 1), row_data)
        if icon:
            draw_icon(painter, icon, QRectF(left, top, 16, 16), ink)
        words_width = columns.verdict_width - ICON_WIDTH
        if not words_width:
            return
        room, elide = QRect(left + ICON_WIDTH, top, words_width, 16), Qt.TextElideMode.ElideRight
        is_bold = row_data.verdict in (TIGHT, DOES_NOT_FIT)
        paint_text(painter, room, row_data.verdict_text, ink, 12, bold=is_bold, elide=elide)
        if row_data.verdict_note:
            note, muted = row_data.verdict_note, self.colors.muted
            paint_text(painter, room.translated(0, 16), note, muted, 11, elide=elide)

    def _paint_verified(
        self, painter: QPainter, columns: PlanColumns, top: int, row_data: PlanRowData
    ) -> None:
        """Paint the verification's icon, and its text if it fits."""
        if not row_data.verification_text:
            return
        icon, tone = VERIFICATION_ICONS.get(row_data.verification, ("sync", "muted"))
        ink, left = self.colors.tone_color(tone), columns.verdict
        draw_icon(painter, icon, QRectF(left + 1, top + 1, 14, 14), ink)
        room = QRect(left + ICON_WIDTH, top, columns.verdict_width - ICON_WIDTH, 16)
        if room.width() > 0:
            ink = ink if tone == "error" else self.colors.muted
            elide = Qt.TextElideMode.ElideRight
            paint_text(painter, room, row_data.verification_text, ink, 11, bold=tone == "error", elide=elide)
