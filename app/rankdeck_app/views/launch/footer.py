"""The foot of the side bar that never scrolls away: what is known before a launch, and the button.

While the draft is wrong its first problem stands in the place of the estimate, and the button is off and says
why.
"""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

from rankdeck_app.theme import Theme, set_look

NO_ESTIMATE = "No estimate yet"


class TwoLines(QLabel):
    """Text that takes two lines at most; the rest is in the tooltip."""

    def __init__(self) -> None:
        super().__init__()
        self._full = ""
        self.setWordWrap(True)
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignBottom)

    def show_text(self, text: str) -> None:
        self._full = text
        self._fit()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def sizeHint(self) -> QSize:
        return QSize(100, 2 * self.fontMetrics().lineSpacing() + 2)

    def _fit(self) -> None:
        """Cut at the last word that fits two lines."""
        metrics, words = self.fontMetrics(), self._full.split()
        text = self._full
        while words and self.width() > 20 and self._num_lines(text) > 2:
            words.pop()
            text = " ".join(words) + "…"
        self.setText(text)
        self.setToolTip(self._full if text != self._full else "")
        self.setAccessibleName(self._full)
        self.setFixedHeight(2 * metrics.lineSpacing() + 2)

    def _num_lines(self, text: str) -> int:
        metrics = self.fontMetrics()
        flags = int(Qt.TextFlag.TextWordWrap)
        height = metrics.boundingRect(0, 0, self.width(), 10_000, flags, text).height()
        return round(height / metrics.lineSpacing())


class LaunchFooter(QWidget):
    """`show_state` is told what stands in the way, and what the launch is busy with."""

    def __init__(self, theme: Theme, on_launch: Callable[[], object], keys: Callable[[], str]) -> None:
        super().__init__()
        self._keys = keys
        self._theme = theme
        self.estimate = TwoLines()
        self.estimate.setProperty("tone", "dim")
        self.button = QPushButton()
        self.button.setProperty("kind", "primary")
        self.button.setIconSize(QSize(14, 14))
        self.button.setFixedHeight(30)
        self.button.clicked.connect(on_launch)
        row = QHBoxLayout()
        row.addWidget(self.button)
        column = QVBoxLayout(self)
        column.setContentsMargins(12, 8, 12, 12)
        column.setSpacing(6)
        column.addWidget(self.estimate)
        column.addLayout(row)
        self.show_state(None)

    def show_state(self, blocker: str | None, busy: int = 0) -> None:
        """`blocker` is why nothing can be launched now; `busy` counts launches that have just begun."""
        self.estimate.show_text(blocker or NO_ESTIMATE)
        set_look(self.estimate, tone="error" if blocker else "dim")
        keys = self._keys()
        text = "Launch" if not busy else "Launching…"
        self.button.setText(f" {text}{'   ' + keys if keys else ''}")
        self.button.setEnabled(blocker is None)
        self.button.setIcon(self._theme.icon("play", "button.foreground"))
        self.button.setAccessibleName(text)
        self.button.setToolTip(blocker or f"Start this run{f' ({keys})' if keys else ''}; other runs go on")
