"""Lines as they were written, in a mono face: as high as they are, scrolled sideways where they are long."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QFontMetrics, QResizeEvent, QWheelEvent
from PySide6.QtWidgets import QPlainTextEdit, QSizePolicy

from rankdeck_app.theme import Theme


class TextBlock(QPlainTextEdit):
    def __init__(self, theme: Theme, lines: Sequence[str], accessible_name: str) -> None:
        super().__init__("\n".join(lines))
        self.setReadOnly(True)
        self.setTabChangesFocus(True)
        self.setFont(theme.font(11, mono=True))
        self.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.setAccessibleName(accessible_name)
        self.document().setDocumentMargin(0)
        self.viewport().setAutoFillBackground(False)

    def sizeHint(self) -> QSize:
        metrics = QFontMetrics(self.font())
        bar = self.horizontalScrollBar()
        scrolled = bar.sizeHint().height() if bar.maximum() > 0 else 0
        return QSize(200, self.blockCount() * metrics.lineSpacing() + scrolled + 4)

    minimumSizeHint = sizeHint

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.updateGeometry()

    def wheelEvent(self, event: QWheelEvent) -> None:
        """Up and down is the page's."""
        if event.angleDelta().x():
            super().wheelEvent(event)
        else:
            event.ignore()
