"""Hand-painted cells of the table of runs, and the editor for renaming a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from PySide6.QtCore import QRect, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFontMetricsF, QPainter
from PySide6.QtWidgets import (
    QLineEdit,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QTableView,
    QWidget,
)

from rankdeck.run.row import RunInfo
from rankdeck_app.language import tr
from rankdeck_app.theme import Theme, draw_icon
from rankdeck_app.widgets.painting import LEFT, RIGHT, Index, chart_font, paint_progress, paint_text
from rankdeck_app.widgets.run_columns import COLUMNS, RunColumn
from rankdeck_app.widgets.run_list import INDENT, fold_icon, outcome_style, step_progress
from rankdeck_app.widgets.run_table_model import RunGroup, RunTableModel

ROW_HEIGHT = 28
_PADDING = 8
FOLD_ICON_PX = 14
_ELIDE_MODE = Qt.TextElideMode.ElideRight


class RunCellDelegate(QStyledItemDelegate):
    """Delegate that paints a cell. A group header spans all cells of its row; each cell paints its part of
    the header."""

    def __init__(self, theme: Theme, table: QTableView, runs: RunTableModel) -> None:
        super().__init__(table)
        self._theme, self._table, self._runs = theme, table, runs
        self.hovered_row = -1
        """Index of the row under the pointer; -1 for none."""

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        return QSize(COLUMNS[index.column()].width, ROW_HEIGHT)

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        rect, state = option.rect, option.state
        at, column = index.row(), COLUMNS[index.column()]
        row, color = self._runs.rows[at], self._theme.color
        is_chosen = bool(state & QStyle.StateFlag.State_Selected)
        if is_chosen:
            active = "active" if state & QStyle.StateFlag.State_Active else "inactive"
            painter.fillRect(rect, color(f"list.{active}SelectionBackground"))
        elif at == self.hovered_row:
            painter.fillRect(rect, color("list.hoverBackground"))
        chosen = color("list.activeSelectionForeground")
        ink: Callable[[str], QColor] = (lambda _key: chosen) if is_chosen else color
        painter.save()
        painter.setClipRect(rect)  # horizontal scrolling cuts cells at the edges on purpose
        if isinstance(row, RunGroup):
            self._paint_group(painter, rect, row, ink)
        else:
            self._paint_cell(painter, rect, row, column, self._runs.text_at(at, index.column()), ink)
        painter.restore()
        has_keyboard = at == self._table.currentIndex().row() and self._table.hasFocus()
        if has_keyboard or is_chosen:
            line = color("focusBorder" if has_keyboard else "contrastActiveBorder")
            # Only the top and bottom lines: the cells of a row form one frame together.
            painter.fillRect(QRect(rect.left(), rect.top(), rect.width(), 1), line)
            painter.fillRect(QRect(rect.left(), rect.bottom(), rect.width(), 1), line)

    def _paint_group(
        self, painter: QPainter, rect: QRect, group: RunGroup, ink: Callable[[str], QColor]
    ) -> None:
        icon = "chevron-down" if group.is_open else "chevron-right"
        draw_icon(painter, icon, QRectF(4, rect.y() + 6, 16, 16), ink("icon.foreground"))
        box = QRect(24, rect.y(), self._table.viewport().width(), rect.height())
        painted_label = paint_text(painter, box, group.display_label, ink("foreground"), 12, LEFT, bold=True)
        box.setLeft(box.left() + painter.fontMetrics().horizontalAdvance(painted_label) + 10)
        paint_text(painter, box, str(group.count), ink("descriptionForeground"), 11)

    def _paint_cell(
        self,
        painter: QPainter,
        rect: QRect,
        info: RunInfo,
        column: RunColumn,
        text: str,
        ink: Callable[[str], QColor],
    ) -> None:
        box = rect.adjusted(_PADDING, 0, -_PADDING, 0)
        if column.key == "state":
            icon, tone, _ = outcome_style(info.state)
            draw_icon(painter, icon, QRectF(box.x(), box.y() + 7, 14, 14), ink(tone))
            box.setLeft(box.left() + 20)
        elif column.key == "name" and info.race is not None:
            icon = fold_icon(is_open=info.path in self._runs.expanded_races)
            draw_icon(
                painter,
                icon,
                QRectF(box.x() - 4, box.y() + 7, FOLD_ICON_PX, FOLD_ICON_PX),
                ink("icon.foreground"),
            )
            box.setLeft(box.left() + INDENT)
        elif column.key == "name" and info.entry_of is not None:
            box.setLeft(box.left() + 2 * INDENT)
        elif column.key == "tags":
            self._paint_tags(painter, box, info.labels.tags, ink)
            return
        elif column.key == "step" and info.is_alive and (share := step_progress(info)) is not None:
            line = QRect(box.x(), rect.bottom() - 4, box.width(), 2)
            paint_progress(painter, self._theme, line, share, ink("rankdeck.rest"))
        if column.key == "name":
            text = self._runs.names.shorten(text, QFontMetricsF(chart_font(12)), box.width())
        tone = self._text_tone(info, column)
        paint_text(
            painter,
            box,
            text,
            ink(tone),
            12 if column.key == "name" else 11,
            RIGHT if column.is_number else LEFT,
            mono=column.is_number and column.key != "began",
            elide=_ELIDE_MODE,
        )

    def _text_tone(self, info: RunInfo, column: RunColumn) -> str:
        if column.key == "name":
            return "descriptionForeground" if info.labels.is_archived else "foreground"
        if column.key == "imbalance" and info.metrics is not None:
            imbalance = info.metrics.imbalance
            return (
                "rankdeck.leadText"
                if imbalance is not None and imbalance.is_notable
                else "descriptionForeground"
            )
        return (
            "foreground"
            if column.is_number and column.key not in ("began", "lasted")
            else ("descriptionForeground")
        )

    def _paint_tags(
        self, painter: QPainter, box: QRect, tags: Iterable[str], ink: Callable[[str], QColor]
    ) -> None:
        left = box.left()
        for tag in tags:
            room = box.right() - left
            if room < 24:
                break
            # Sets the painter's font, with which the width is measured below.
            paint_text(painter, QRect(0, 0, 0, 0), "", ink("badge.foreground"), 11)
            width = min(painter.fontMetrics().horizontalAdvance(tag) + 12, room)
            pill = QRectF(left, box.center().y() - 8, width, 17)
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(self._theme.color("button.secondaryBackground"))
            painter.drawRoundedRect(pill, 4, 4)
            text = QRect(left + 6, box.y(), int(width) - 11, box.height())
            paint_text(
                painter, text, tag, self._theme.color("button.secondaryForeground"), 11, elide=_ELIDE_MODE
            )
            left += int(width) + 4

    # Renaming in place

    def createEditor(self, parent: QWidget, option: QStyleOptionViewItem, index: Index) -> QWidget:
        editor = QLineEdit(parent)
        editor.setAccessibleName(tr("New name of the run"))
        return editor

    def setEditorData(self, editor: QWidget, index: Index) -> None:
        assert isinstance(editor, QLineEdit)
        # A model update must not overwrite what the user types.
        if not editor.isModified():
            editor.setText(str(index.data(Qt.ItemDataRole.EditRole)))
            editor.selectAll()

    def setModelData(self, editor: QWidget, model: Any, index: Index) -> None:
        assert isinstance(editor, QLineEdit)
        model.setData(index, editor.text())
