"""A number field between a minus and a plus button."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QEvent, QObject, Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QLineEdit, QToolButton, QWidget

from rankdeck.base.phrases import tr_noop
from rankdeck_app.language import tr
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.controls import tool_button
from rankdeck_app.widgets.layouts import row

MAX_STEPPER = 16


@dataclass(frozen=True)
class StepperTexts:
    """Names and tooltips of a stepper and its buttons."""

    name: str
    tooltip: str
    decrease: str
    increase: str


VIRTUAL_DEVICES = StepperTexts(
    tr_noop("Number of virtual devices"),
    tr_noop("Number of virtual devices, 1 to {most} (Up, Down)"),
    tr_noop("Remove one virtual device"),
    tr_noop("Add one virtual device"),
)
RANKS = StepperTexts(
    tr_noop("Number of ranks"),
    tr_noop("Number of ranks, 1 to {most} (Up, Down)"),
    tr_noop("Remove one rank"),
    tr_noop("Add one rank"),
)


class Stepper(QWidget):
    """A number field between a minus and a plus button; the arrow keys work like the buttons. `changed`
    carries the new number."""

    changed = Signal(int)

    def __init__(self, theme: Theme, texts: StepperTexts = VIRTUAL_DEVICES) -> None:
        super().__init__()
        self.value = 1
        self._maximum = MAX_STEPPER
        self.line_edit = QLineEdit("1")
        self.line_edit.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.line_edit.setProperty("compact", "true")
        self.line_edit.setFixedSize(30, 26)
        self.line_edit.textEdited.connect(self._on_text_edited)
        # Replaces a text that is empty or not valid when the field is left.
        self.line_edit.editingFinished.connect(lambda: self.line_edit.setText(str(self.value)))
        self.line_edit.installEventFilter(self)
        self.decrease_button = self._make_button(theme, "remove", -1)
        self.increase_button = self._make_button(theme, "add", 1)
        row(self.decrease_button, self.line_edit, self.increase_button, on=self, spacing=2)
        self.set_texts(texts)

    def set_texts(self, texts: StepperTexts) -> None:
        """Set the accessible names and tooltips of the number field and the buttons."""
        self.line_edit.setAccessibleName(tr(texts.name))
        self.line_edit.setToolTip(tr(texts.tooltip, most=MAX_STEPPER))
        for button, word in ((self.decrease_button, texts.decrease), (self.increase_button, texts.increase)):
            button.setToolTip(tr(word))
            button.setAccessibleName(button.toolTip())

    def _make_button(self, theme: Theme, icon: str, step: int) -> QToolButton:
        button = tool_button(theme, icon, "", lambda: self._set_value(self.value + step))
        button.setFixedSize(22, 24)
        button.setAutoRepeat(True)
        return button

    def show_value(self, count: int) -> None:
        """Show a number without emitting `changed`; a number from a file may exceed MAX_STEPPER."""
        self.value = count
        self._maximum = max(MAX_STEPPER, count)
        # An emptied field keeps its focus and stays empty until a number is typed.
        if not self.line_edit.hasFocus() or self.line_edit.text() not in ("", str(count)):
            self.line_edit.setText(str(count))
        self.decrease_button.setEnabled(count > 1)
        self.increase_button.setEnabled(count < self._maximum)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if isinstance(event, QKeyEvent) and event.type() == QEvent.Type.KeyPress:
            steps = {Qt.Key.Key_Up: 1, Qt.Key.Key_Down: -1}
            if event.key() in steps:
                self._set_value(self.value + steps[Qt.Key(event.key())])
                return True
        return super().eventFilter(watched, event)

    def _on_text_edited(self, text: str) -> None:
        if text.isdecimal() and 1 <= int(text) <= self._maximum:
            self._set_value(int(text))

    def _set_value(self, count: int) -> None:
        count = max(1, min(self._maximum, count))
        if count != self.value:
            self.show_value(count)
            self.changed.emit(count)
