"""One line of a form: a label, its editor, and below it what is wrong with what stands there."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtWidgets import QSizePolicy, QWidget

from rankdeck_app.theme import set_look
from rankdeck_app.widgets.layouts import TOP, Part, column, row, text_label


class FormLine(QWidget):
    """`editor` has the accessible name and is marked where it is wrong; `beside` stands at its right."""

    def __init__(
        self, label: str, editor: QWidget, hint: str, *beside: Part, label_width: int = 0, name: str = ""
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
        inside = column(row((editor, 1), *beside, spacing=4), self.problem_label, spacing=3)
        row(self.label, (inside, 1), on=self, spacing=6, align=TOP)
        self._describe()

    def set_problem(self, text: str | None) -> None:
        if text != self._problem:
            self._problem = text
            set_look(self.editor, invalid="true" if text else "false")
            self._show()

    def set_warning(self, text: str | None) -> None:
        """What may be wrong; a problem hides it."""
        if text != self._warning:
            self._warning = text
            self._show()

    def _show(self) -> None:
        text = self._problem or self._warning or ""
        self.problem_label.setText(text)
        self.problem_label.setVisible(bool(text))
        set_look(self.problem_label, tone="error" if self._problem else "warning")
        self._describe()

    def set_hint(self, hint: str) -> None:
        if hint != self._hint:
            self._hint = hint
            self._describe()

    def _describe(self) -> None:
        text = "\n".join(filter(None, (self._problem or self._warning, self._hint)))
        self.editor.setToolTip(text)
        self.editor.setAccessibleDescription(text)


def align_labels(lines: Sequence[FormLine]) -> None:
    """Editors of lines below each other begin where the longest label ends."""
    width = max(line.label.sizeHint().width() for line in lines)
    for line in lines:
        line.label.setFixedWidth(max(width, line.label.width()))
