"""Form bound to the draft: it shows the draft's values, writes edits back and marks invalid fields.

Each row has a label and a field; in a wide form, two short fields share a line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from PySide6.QtGui import QFontMetrics, QResizeEvent
from PySide6.QtWidgets import QGridLayout, QLabel, QWidget

from rankdeck.config.checks import CATALOGS
from rankdeck_app.state.draft import Draft
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.form import Field, FormRow, KeyPath, TextField, make_field
from rankdeck_app.widgets.layouts import TOP, text_label
from rankdeck_app.widgets.option_rows import problems_by_field

_INLINE_LABEL_WIDTH = 50
_MIN_TWO_FIELD_WIDTH = 240
"""Smallest form width in pixels at which two fields on a line both show a number like 0.0003 in full."""


class DraftForm(QWidget):
    """Form bound to a draft.

    After every change to the draft, the form calls `rows` again, because the options depend on the chosen
    catalog entries. Rows that are still listed keep their fields.
    """

    def __init__(
        self, theme: Theme, draft: Draft, rows: Callable[[], Sequence[FormRow]], *, label_width: int = 62
    ) -> None:
        super().__init__()
        self._theme, self._draft = theme, draft
        self._make_rows = rows
        self._rows: list[FormRow] = []
        self._labels: dict[KeyPath, QLabel] = {}
        self._is_wide = True
        self.fields: dict[KeyPath, Field] = {}
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setSpacing(6)
        self._grid.setColumnMinimumWidth(0, label_width)
        for column in (1, 3):
            self._grid.setColumnStretch(column, 1)
        draft.changed.connect(self.refresh)
        self.refresh()

    def set_label_width(self, width: int) -> None:
        """Set the minimum width of the label column, so that the fields of stacked forms align."""
        self._grid.setColumnMinimumWidth(0, width)

    def refresh(self) -> None:
        if self._rows and not self._draft.is_toml:
            return  # keep the values and marks of the last valid TOML
        self._set_rows(self._make_rows())
        problems = problems_by_field(self._draft)
        for key_path, field in self.fields.items():
            field.show_value(self._draft.value(key_path))
            field.set_problem(problems[key_path].sentence if key_path in problems else None)

    def _set_rows(self, rows: Sequence[FormRow]) -> None:
        if list(rows) != self._rows:
            self._layout_rows(rows)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if self._is_wide != (self.width() >= _MIN_TWO_FIELD_WIDTH):
            self._is_wide = not self._is_wide
            self._layout_rows(self._rows)

    def _layout_rows(self, rows: Sequence[FormRow]) -> None:
        # Only the layout items go; the fields of remaining rows are reused.
        while self._grid.takeAt(0) is not None:
            pass
        for row in self._rows:
            if row not in rows:
                self._remove_row(row.key_path)
        self._rows = list(rows)
        self._grid.setColumnMinimumWidth(2, _INLINE_LABEL_WIDTH if self._is_wide else 0)
        at, column = 0, 0
        for row in rows:
            field = self.fields.get(row.key_path) or self._make_field(row)
            if column and not (row.is_short and self._fits_inline(row)):
                at, column = at + 1, 0
            self._add_to_grid(row, field, at, column)
            at, column = (at, 2) if row.is_short and not column else (at + 1, 0)
        self._order_tabs()

    def _remove_row(self, key_path: KeyPath) -> None:
        for widget in (self.fields.pop(key_path), self._labels.pop(key_path, None)):
            if widget is not None:
                widget.hide()
                widget.deleteLater()

    def _fits_inline(self, row: FormRow) -> bool:
        # Measured with the theme's font, which a label that was never shown does not have yet.
        width = QFontMetrics(self._theme.font()).horizontalAdvance(row.label)
        return self._is_wide and width <= _INLINE_LABEL_WIDTH

    def _add_to_grid(self, row: FormRow, field: Field, at: int, column: int) -> None:
        if row.is_check:
            self._grid.addWidget(field, at, 0, 1, 4)
            field.show()  # now, not in a later event: the caller may focus it at once
            return
        label = self._labels[row.key_path]
        self._grid.addWidget(label, at, column, TOP)
        self._grid.addWidget(field, at, column + 1, 1, 1 if row.is_short else 3)
        for widget in (label, field):
            widget.show()

    def _make_field(self, row: FormRow) -> Field:
        field = self.fields[row.key_path] = make_field(row, self._theme)
        field.edited.connect(lambda value: self._write(row.key_path, value))
        if not row.is_check:
            label = self._labels[row.key_path] = text_label(row.label, "dim", wrap=False)
            label.setFixedHeight(26)
            label.setBuddy(field.editor)
            label.setToolTip(field.editor.toolTip())
        return field

    def set_tab_after(self, widget: DraftForm | QWidget) -> None:
        """Place the form in the tab order after a widget, or after the last field of another form."""
        self._order_tabs(widget._editors[-1:] if isinstance(widget, DraftForm) else [widget])

    @property
    def _editors(self) -> list[QWidget]:
        return [self.fields[row.key_path].editor for row in self._rows]

    def _order_tabs(self, before: Sequence[QWidget] = ()) -> None:
        """Set the tab order: `before`, then the fields in row order, not in the order of their creation."""
        for editor, next_one in pairwise([*before, *self._editors]):
            QWidget.setTabOrder(editor, next_one)

    def _write(self, key_path: KeyPath, value: Any) -> None:
        if key_path[-1] == "use" and key_path[:-1] in CATALOGS and value is not None:
            self._draft.choose(key_path[:-1], str(value))
        else:
            self._draft.set_value(key_path, value, is_typed=isinstance(self.fields[key_path], TextField))
