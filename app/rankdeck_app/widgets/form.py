"""Form fields built from the catalog's schema: one editor per option, identified by its key path.

A field shows the draft's value and emits the user's input as typed: text that is not a number stays text, so
that the engine reports the problem with it. An empty field shows its default in a dim colour. Next, read
draft_form.py, which combines fields into a form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QComboBox, QLineEdit, QSizePolicy, QWidget

from rankdeck.config.catalog import OptionField
from rankdeck_app.language import tr
from rankdeck_app.theme import Theme, set_style_properties
from rankdeck_app.widgets.controls import CheckBox, ComboBox
from rankdeck_app.widgets.layouts import TOP, LayoutPart, column, row, text_label
from rankdeck_app.widgets.painting import IconWidget

KeyPath = tuple[str, ...]
_SHORT_KINDS = ("int", "float")
MIN_EDITOR_WIDTH = 36
"""Minimum width of an editor in pixels: two short editors and their labels fit on a line of the narrowest
side bar."""


@dataclass(frozen=True)
class FormRow:
    """One field. If `editable`, the user can also type a choice that is not listed ("module:factory"). If
    `wide`, the field has a line of its own."""

    key_path: KeyPath
    label: str
    field: OptionField
    editable: bool = False
    wide: bool = False

    @property
    def is_short(self) -> bool:
        return not self.wide and self.field.kind in _SHORT_KINDS

    @property
    def is_check(self) -> bool:
        """Whether the field is a check box, which has a label of its own and takes up the whole line."""
        return self.field.kind == "bool"


def option_label(name: str) -> str:
    """Return the label of an option: 'weight_decay' -> 'Weight decay'."""
    text = name.replace("_", " ")
    return text[:1].upper() + text[1:]


def format_value(value: Any) -> str:
    """Return a value as field text: 0.0003 stays 0.0003, 1e-08 stays 1e-08, commas separate list items."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ", ".join(format_value(item) for item in value)
    if isinstance(value, float):
        # The short form only if it is exact.
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return "" if value is None else str(value)


def parse_value(text: str, kind: str) -> Any:
    """Parse typed text as a value of the kind `kind`. Return text that cannot be parsed unchanged, and None
    for empty text."""
    text = text.strip()
    if not text:
        return None
    if kind == "list":
        return [_parse_number(part.strip()) for part in text.split(",") if part.strip()]
    return _parse_number(text) if kind in ("int", "float") else text


def _parse_number(text: str) -> Any:
    for number in (int, float):
        try:
            return number(text.replace("_", ""))
        except ValueError:
            continue
    return text


class Field(QWidget):
    """Base class of the editors below. `edited` carries the new value, as typed."""

    edited = Signal(object)
    _mark_gap = 6
    """Gap in pixels between the problem mark and the right edge of the field."""

    def __init__(self, row: FormRow, theme: Theme, editor: QWidget) -> None:
        super().__init__()
        self.row = row
        self.editor = editor
        self._hint = row.field.text
        # Two fields on a line have equal widths, whatever their content.
        editor.setMinimumWidth(MIN_EDITOR_WIDTH)
        editor.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        column(editor, on=self)
        self._mark = IconWidget(theme, "error", "errorForeground", QSize(16, 16), 14)
        self._mark.setParent(self)
        # Clicks on the mark go to the editor.
        self._mark.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        editor.setAccessibleName(row.label)
        self.setFocusProxy(editor)
        self.set_problem(None)

    def show_value(self, value: Any) -> None:
        """Show the draft's value (None: not set) without emitting `edited`."""
        raise NotImplementedError

    def set_problem(self, message: str | None) -> None:
        """Mark the field as invalid, with the reason in its tooltip; None removes the mark."""
        set_style_properties(self.editor, invalid="true" if message else "false")
        self._mark.setVisible(message is not None)
        text = message or self._hint
        dotted = ".".join(self.row.key_path)
        self.editor.setToolTip(f"{text}\n{dotted}" if text else dotted)
        self.editor.setAccessibleDescription(text)

    @property
    def is_marked(self) -> bool:
        return not self._mark.isHidden()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        right = self.width() - self._mark.width() - self._mark_gap
        self._mark.move(right, (self.editor.height() - self._mark.height()) // 2)


class TextField(Field):
    """A line edit for numbers, lists and paths."""

    def __init__(self, row: FormRow, theme: Theme) -> None:
        default = format_value(row.field.default)
        self._line = QLineEdit(placeholderText=default or (tr("auto") if row.field.optional else ""))
        super().__init__(row, theme, self._line)
        self._line.textEdited.connect(lambda text: self.edited.emit(parse_value(text, row.field.kind)))

    def set_problem(self, message: str | None) -> None:
        super().set_problem(message)
        # The text must not run below the mark.
        self._line.setTextMargins(0, 0, self._mark.width() if message else 0, 0)

    def show_value(self, value: Any) -> None:
        if self._line.hasFocus() and parse_value(self._line.text(), self.row.field.kind) == value:
            return  # do not overwrite "1e-" while "1e-3" is typed
        if self._line.text() != format_value(value):
            self._line.setText(format_value(value))
            # Show the start of a long value.
            self._line.setCursorPosition(0)


class ChoiceField(Field):
    """A combo box that offers "auto" if the field is optional. If the row is `editable`, the user can also
    type a value."""

    _mark_gap = 24  # left of the chevron

    def __init__(self, row: FormRow, theme: Theme) -> None:
        self._combo = ComboBox(theme)
        super().__init__(row, theme, self._combo)
        self._combo.setEditable(row.editable)
        self._combo.setInsertPolicy(QComboBox.InsertPolicy.NoInsert)
        self._unset_text = tr("auto") if row.field.optional else format_value(row.field.default)
        if row.field.optional:
            self._combo.addItem(self._unset_text, None)
        for choice in row.field.choices:
            self._combo.addItem(format_value(choice), choice)
        self._combo.activated.connect(lambda _index: self.edited.emit(self._value()))
        line = self._combo.lineEdit()
        if row.editable and line is not None:
            line.textEdited.connect(lambda text: self.edited.emit(text.strip() or None))
            line.setAccessibleName(row.label)

    def _value(self) -> Any:
        # In an editable combo box, the current index may not match the typed text.
        index = self._combo.findText(self._combo.currentText())
        return self._combo.itemData(index) if index >= 0 else self._combo.currentText()

    def show_value(self, value: Any) -> None:
        text = self._unset_text if value is None else format_value(value)
        if self._combo.currentText() == text:
            return
        index = self._combo.findText(text)
        self._combo.setCurrentIndex(index)
        if index < 0 and self.row.editable:
            self._combo.setEditText(text)


class BoolField(Field):
    """A check box."""

    def __init__(self, row: FormRow, theme: Theme) -> None:
        self._box = CheckBox(theme, row.label)
        super().__init__(row, theme, self._box)
        self._box.clicked.connect(lambda checked: self.edited.emit(checked))

    def show_value(self, value: Any) -> None:
        self._box.setChecked(bool(self.row.field.default if value is None else value))


def make_field(row: FormRow, theme: Theme) -> Field:
    if row.field.kind == "bool":
        return BoolField(row, theme)
    return ChoiceField(row, theme) if row.field.kind == "choice" else TextField(row, theme)


# One line of a form: a label, its editor, and the problem below it.


class FormLine(QWidget):
    """A label, its editor, and the text of a problem or warning below the editor. `trailing` are widgets or
    layouts to the right of the editor."""

    def __init__(
        self,
        label: str,
        editor: QWidget,
        hint: str,
        *trailing: LayoutPart,
        label_width: int = 0,
        name: str = "",
    ) -> None:
        super().__init__()
        self.editor = editor
        self._hint = hint
        self._problem: str | None = None
        self._warning: str | None = None
        self.label = text_label(label, "dim", wrap=False)
        self.label.setFixedHeight(26)
        self.label.setFixedWidth(max(label_width, self.label.sizeHint().width()))
        self.label.setBuddy(editor)
        self.label.setToolTip(hint)
        editor.setMinimumWidth(40)
        policy = editor.sizePolicy()
        editor.setSizePolicy(QSizePolicy.Policy.Ignored, policy.verticalPolicy())
        editor.setAccessibleName(name or label)
        self.problem_label = text_label(tone="error")
        self.problem_label.hide()
        inside = column(row((editor, 1), *trailing, spacing=4), self.problem_label, spacing=3)
        row(self.label, (inside, 1), on=self, spacing=6, align=TOP)
        self._update_tooltip()

    def set_problem(self, text: str | None) -> None:
        if text != self._problem:
            self._problem = text
            set_style_properties(self.editor, invalid="true" if text else "false")
            self._update_problem()

    def set_warning(self, text: str | None) -> None:
        """Show a warning below the editor; if the line has a problem, the problem is shown instead."""
        if text != self._warning:
            self._warning = text
            self._update_problem()

    def _update_problem(self) -> None:
        text = self._problem or self._warning or ""
        self.problem_label.setText(text)
        self.problem_label.setVisible(bool(text))
        set_style_properties(self.problem_label, tone="error" if self._problem else "warning")
        self._update_tooltip()

    def set_hint(self, hint: str) -> None:
        if hint != self._hint:
            self._hint = hint
            self._update_tooltip()

    def _update_tooltip(self) -> None:
        text = "\n".join(filter(None, (self._problem or self._warning, self._hint)))
        self.editor.setToolTip(text)
        self.editor.setAccessibleDescription(text)


def align_labels(lines: Sequence[FormLine]) -> None:
    """Give the labels of stacked lines the width of the longest label, so that the editors align."""
    width = max(line.label.sizeHint().width() for line in lines)
    for line in lines:
        line.label.setFixedWidth(max(width, line.label.width()))
