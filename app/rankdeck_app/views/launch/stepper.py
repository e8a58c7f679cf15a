"""A number between two buttons."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QEvent, QObject, Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QLineEdit, QToolButton, QWidget

from rankdeck.base.phrases import marked
from rankdeck_app.language import tr
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.controls import tool_button
from rankdeck_app.widgets.layouts import row

MAX_STEPPER = 16


@dataclass(frozen=True)
class StepperWords:
    """What a stepper and its buttons are called."""

    name: str
    bounds: str
    fewer: str
    more: str


VIRTUAL_DEVICES = StepperWords(
    marked("Number of virtual devices"),
    marked("Number of virtual devices, 1 to {most} (Up, Down)"),
    marked("One virtual device fewer"),
    marked("One virtual device more"),
)
RANKS = StepperWords(
    marked("Number of ranks"),
    marked("Number of ranks, 1 to {most} (Up, Down)"),
    marked("One rank fewer"),
    marked("One rank more"),
)


class Stepper(QWidget):
    """A number between two buttons; the arrow keys step it too. `changed` carries the new one."""

    changed = Signal(int)

    def __init__(self, theme: Theme, words: StepperWords = VIRTUAL_DEVICES) -> None:
        super().__init__()
        self.value = 1
        self._maximum = MAX_STEPPER
        self.box = QLineEdit("1")
        self.box.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.box.setProperty("compact", "true")
        self.box.setFixedSize(30, 26)
        self.box.textEdited.connect(self._typed)
        self.box.editingFinished.connect(lambda: self.box.setText(str(self.value)))
        self.box.installEventFilter(self)
        self.fewer = self._button(theme, "remove", -1)
        self.more = self._button(theme, "add", 1)
        row(self.fewer, self.box, self.more, on=self, spacing=2)
        self.name(words)

    def name(self, words: StepperWords) -> None:
        """After what is counted."""
        self.box.setAccessibleName(tr(words.name))
        self.box.setToolTip(tr(words.bounds, most=MAX_STEPPER))
        for button, word in ((self.fewer, words.fewer), (self.more, words.more)):
            button.setToolTip(tr(word))
            button.setAccessibleName(button.toolTip())

    def _button(self, theme: Theme, icon: str, step: int) -> QToolButton:
        button = tool_button(theme, icon, "", lambda: self._set(self.value + step))
        button.setFixedSize(22, 24)
        button.setAutoRepeat(True)
        return button

    def show_value(self, count: int) -> None:
        """Show a number without telling anybody; a file may ask for more than the stepper offers."""
        self.value = count
        self._maximum = max(MAX_STEPPER, count)
        if not self.box.hasFocus() or self.box.text() not in ("", str(count)):
            self.box.setText(str(count))
        self.fewer.setEnabled(count > 1)
        self.more.setEnabled(count < self._maximum)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if isinstance(event, QKeyEvent) and event.type() == QEvent.Type.KeyPress:
            steps = {Qt.Key.Key_Up: 1, Qt.Key.Key_Down: -1}
            if event.key() in steps:
                self._set(self.value + steps[Qt.Key(event.key())])
                return True
        return super().eventFilter(watched, event)

    def _typed(self, text: str) -> None:
        if text.isdecimal() and 1 <= int(text) <= self._maximum:
            self._set(int(text))

    def _set(self, count: int) -> None:
        count = max(1, min(self._maximum, count))
        if count != self.value:
            self.show_value(count)
            self.changed.emit(count)
