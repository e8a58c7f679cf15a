"""Header of the table of runs. The user can show, hide, move and resize columns, and sort and group by
them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from PySide6.QtCore import QRect, QRectF, Qt, Signal
from PySide6.QtGui import QFontMetricsF, QMouseEvent, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QHeaderView, QMenu

from rankdeck_app.language import tr
from rankdeck_app.theme import Theme, draw_icon
from rankdeck_app.widgets.painting import chart_font
from rankdeck_app.widgets.run_columns import COLUMN_INDICES, COLUMNS, NAME_COLUMN

RUN_HEADER_HEIGHT = 28
_MIN_WIDTH, _MAX_WIDTH = 40, 2000
_MAX_NAME_WIDTH = 320
"""Maximum default width of the name column in pixels, so that other columns stay visible."""
_TITLE_PADDING, _TEXT_PADDING, _ICON_WIDTH = 23, 18, 20
_MAX_MEASURED_ROWS = 100
"""Maximum number of new rows that are measured to fit a column."""


class RunHeader(QHeaderView):
    """Header of the table of runs.

    `sort_requested` and `group_requested` carry a column key ("" for no groups); `layout_changed` is emitted
    when the user changes the columns. Columns fit their content until the user resizes one. The name column
    takes the remaining width, but at least the width of its content: if space is short, empty columns shrink
    first, then the table scrolls horizontally. Only the user can make the name column narrower.
    """

    sort_requested = Signal(str)
    group_requested = Signal(str)
    layout_changed = Signal()

    def __init__(self, theme: Theme) -> None:
        super().__init__(Qt.Orientation.Horizontal)
        self._theme = theme
        self._sort: tuple[str, bool] = ("", False)
        self._is_restoring = False
        self.setFont(theme.font(11))
        self._content_widths: dict[int, float] = {}
        """Widths in pixels of the columns' widest texts so far; 0 for a column whose texts are all empty."""
        self._visibility = {at: column.is_shown for at, column in enumerate(COLUMNS)}
        self._widths = {at: self._default_width(at) for at in range(len(COLUMNS))}
        """Column widths, including those of hidden columns."""
        self._is_stretched = self._is_name_stretched = False
        self.setFixedHeight(RUN_HEADER_HEIGHT)
        self.setSectionsMovable(True)
        self.setSectionsClickable(True)
        self.setHighlightSections(False)
        self.setMinimumSectionSize(_MIN_WIDTH)
        self.setAccessibleName(tr("Columns"))
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        self.customContextMenuRequested.connect(
            lambda at: self.build_menu(self.logicalIndexAt(at)).popup(self.mapToGlobal(at))
        )
        self.sectionClicked.connect(lambda at: self.sort_requested.emit(COLUMNS[at].key))
        self.sectionMoved.connect(self._on_changed)
        self.sectionResized.connect(self._on_resized)

    def _default_width(self, at: int) -> int:
        """Return the default width of column `at`: enough for its content, up to a maximum, but always
        enough for its title with the sort icon."""
        column, title = COLUMNS[at], self.fontMetrics().horizontalAdvance(tr(COLUMNS[at].title))
        content_width = math.ceil(self._content_widths.get(at, column.width))
        if at == NAME_COLUMN:
            return min(max(column.width, content_width), _MAX_NAME_WIDTH)
        return max(min(column.width, content_width), title + _TITLE_PADDING)

    def fit_rows(self, first: int, last: int, text_at: Callable[[int, int], str]) -> None:
        """Fit the columns to the new rows from `first` to `last`; `text_at` returns the text at (row,
        column)."""
        for at, column in enumerate(COLUMNS):
            # A column that appears with its first value needs all rows.
            rows = range(first, last + 1)[: None if column.is_shown is None else _MAX_MEASURED_ROWS]
            if rows:
                mono = column.is_number and column.key != "began"
                advance = QFontMetricsF(
                    chart_font(12 if at == NAME_COLUMN else 11, mono=mono)
                ).horizontalAdvance
                widest = max(advance(text) for text in {text_at(row, at) for row in rows})
                sign = _ICON_WIDTH * (column.key in ("state", "tags"))
                content_width = widest + _TEXT_PADDING + sign if widest else 0.0
                self._content_widths[at] = max(content_width, self._content_widths.get(at, 0.0))
        self._fit_columns()

    def _fit_columns(self) -> None:
        self._is_restoring = True
        for at in range(len(COLUMNS)):
            self.setSectionHidden(at, not self._is_column_visible(at))
            if not self._is_stretched and at != NAME_COLUMN:
                self._widths[at] = self._default_width(at)
                if self._is_column_visible(at):
                    self.resizeSection(at, self._widths[at])
        self._is_restoring = False
        self._fit_names()

    def _is_column_visible(self, at: int) -> bool:
        is_visible = self._visibility[at]
        return bool(self._content_widths.get(at)) if is_visible is None else is_visible

    def _on_resized(self, at: int, before: int, width: int) -> None:
        if width:
            self._widths[at] = width
        # A width of 0 is that of a hidden section.
        if before and width and not self._is_restoring:
            self._is_stretched = True
            self._is_name_stretched |= at == NAME_COLUMN
        self._on_changed()

    def _on_changed(self, *_: int) -> None:
        if not self._is_restoring:
            self._fit_names()
            self.layout_changed.emit()

    def _fit_names(self) -> None:
        if self._is_name_stretched:
            return
        self._is_restoring = True
        name_width = self._default_width(NAME_COLUMN)
        if not self._is_stretched:
            self._shrink_empty_columns(name_width)
        self.resizeSection(NAME_COLUMN, max(self._remaining_width(), name_width))
        self._is_restoring = False

    def _remaining_width(self) -> int:
        """Return the width that the other columns leave for names."""
        return self.viewport().width() - self.length() + self.sectionSize(NAME_COLUMN)

    def _shrink_empty_columns(self, name_width: int) -> None:
        """Shrink empty columns if names need more space."""
        empty = [
            at
            for at, content_width in self._content_widths.items()
            if not content_width and not self.isSectionHidden(at)
        ]
        for at in empty:
            self.resizeSection(at, self._default_width(at))
        for at in empty if self._remaining_width() < name_width else ():
            self.resizeSection(at, _MIN_WIDTH)
            self._widths[at] = self._default_width(at)  # resizeSection has stored the minimum

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit_names()

    def set_sort(self, key: str, *, is_descending: bool) -> None:
        """Set the column and the direction of the sort icon."""
        self._sort = key, is_descending
        self.viewport().update()

    # Frozen name column

    @property
    def frozen_width(self) -> int:
        """Width of the name column while the table is scrolled horizontally.

        0 if the table is not scrolled, or if another column is first.
        """
        is_frozen = self.offset() > 0 and self.logicalIndex(0) == NAME_COLUMN
        return self.sectionSize(NAME_COLUMN) if is_frozen else 0

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        painter, height = QPainter(self.viewport()), self.height()
        if width := self.frozen_width:
            box = QRect(0, 0, width, height)
            painter.fillRect(box, self._theme.color("editor.background"))
            self.paintSection(painter, box, NAME_COLUMN)
        # One line across the header: the lines of the sections have gaps on some screens and end at the last
        # section.
        painter.fillRect(0, height - 1, self.width(), 1, self._theme.color("sideBar.border"))
        painter.end()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        """Ignore presses on the frozen name column, so that columns scrolled beneath it do not receive
        them."""
        if not self._is_on_names(event):
            super().mousePressEvent(event)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        if not self._is_on_names(event):
            super().mouseReleaseEvent(event)
        elif event.button() == Qt.MouseButton.LeftButton:
            self.sort_requested.emit(COLUMNS[NAME_COLUMN].key)

    def _is_on_names(self, event: QMouseEvent) -> bool:
        return event.position().x() < self.frozen_width

    def paintSection(self, painter: QPainter, rect: QRect, at: int) -> None:
        painter.save()
        super().paintSection(painter, rect, at)
        painter.restore()
        column, (key, is_descending) = COLUMNS[at], self._sort
        if column.key == key:
            text = self.fontMetrics().horizontalAdvance(tr(column.title))
            left = rect.right() - text - 21 if column.is_number else rect.left() + text + 11
            box = QRectF(max(left, rect.left()), rect.center().y() - 5, 11, 11)
            icon = "chevron-down" if is_descending else "chevron-up"
            draw_icon(painter, icon, box, self._theme.color("foreground"))

    def columns_state(self) -> list[dict[str, Any]]:
        """Return the columns from left to right, as JSON values."""
        # Unless the user has set its width, the name column takes the remaining room again.
        widths = self._widths if self._is_name_stretched else self._widths | {NAME_COLUMN: None}
        state: list[dict[str, Any]] = [
            {"key": COLUMNS[at].key, "width": widths[at], "shown": self._visibility[at]}
            for at in sorted(range(len(COLUMNS)), key=self.visualIndex)
        ]
        if self._is_stretched:
            state[self.visualIndex(NAME_COLUMN)]["stretched"] = True
        return state

    def restore(self, state: object = None) -> None:
        """Restore the columns from `state`, a result of `columns_state`. Missing columns go to the end;
        invalid values are replaced by defaults."""
        entries = [record for record in state if isinstance(record, dict)] if isinstance(state, list) else []
        records = {record["key"]: record for record in entries if record.get("key") in COLUMN_INDICES}
        self._is_restoring = True
        of_name = records.get("name", {})
        self._is_name_stretched = isinstance(of_name.get("width"), int)
        self._is_stretched = self._is_name_stretched or of_name.get("stretched") is True
        for visual, key in enumerate([*records, *(key for key in COLUMN_INDICES if key not in records)]):
            at, record = COLUMN_INDICES[key], records.get(key, {})
            width, is_shown = record.get("width"), record.get("shown", COLUMNS[at].is_shown)
            if not isinstance(width, int) or not _MIN_WIDTH <= width <= _MAX_WIDTH:
                width = self._default_width(at)
            self.moveSection(self.visualIndex(at), visual)
            self.setSectionHidden(at, False)
            self.resizeSection(at, width)
            # The name column is always visible.
            self._visibility[at] = key == "name" or is_shown
        self._fit_columns()

    def reset_columns(self) -> None:
        self.restore()
        self.layout_changed.emit()

    def show_column(self, at: int, is_shown: bool) -> None:
        self._visibility[at] = is_shown
        self.setSectionHidden(at, not is_shown)
        if is_shown:
            self.resizeSection(at, self._widths[at])
        self._on_changed()

    def build_menu(self, at: int) -> QMenu:
        """Return the menu for the column `at` (-1 if there is none), with check marks for the visible
        columns."""
        menu = QMenu(self)
        menu.aboutToHide.connect(menu.deleteLater)
        if at >= 0:
            column, title = COLUMNS[at], tr(COLUMNS[at].title)
            menu.addAction(tr("Sort by {column}", column=title), lambda: self.sort_requested.emit(column.key))
            menu.addAction(
                tr("Group by {column}", column=title), lambda: self.group_requested.emit(column.key)
            )
            menu.addAction(tr("No Groups"), lambda: self.group_requested.emit(""))
            if column.key != "name":
                menu.addAction(tr("Hide {column}", column=title), lambda: self.show_column(at, False))
            menu.addSeparator()
        for index, other in enumerate(COLUMNS):
            if other.key != "name":
                action = menu.addAction(tr(other.title))
                action.setCheckable(True)
                action.setChecked(not self.isSectionHidden(index))
                action.toggled.connect(
                    lambda is_shown, column_index=index: self.show_column(column_index, is_shown)
                )
        menu.addSeparator()
        menu.addAction(tr("Reset Columns"), self.reset_columns)
        return menu
