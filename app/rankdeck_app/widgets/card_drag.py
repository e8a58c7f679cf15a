"""Cards of a grid are moved by their headers: the card that would give its place is outlined, and gives it
when the button is let go. Escape leaves all as it is.
"""

from __future__ import annotations

from collections.abc import Mapping

from PySide6.QtCore import QEvent, QObject, QPoint, Qt, Signal
from PySide6.QtGui import QKeyEvent, QMouseEvent
from PySide6.QtWidgets import QApplication

from rankdeck_app.widgets.card import HEADER_HEIGHT, ChartCard


class CardDrag(QObject):
    """`dropped` carries the card's name and that of the one whose place it gets."""

    dropped = Signal(str, str)

    def __init__(self, cards: Mapping[str, ChartCard], parent: QObject) -> None:
        super().__init__(parent)
        self._cards = cards
        self._name = self._onto = ""
        self._pressed: QPoint | None = None
        for card in cards.values():
            card.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if isinstance(event, QMouseEvent) and isinstance(watched, ChartCard):
            return self._on_mouse(watched, event)
        is_escape = isinstance(event, QKeyEvent) and event.key() == Qt.Key.Key_Escape
        if is_escape and self._name:
            self._end()
            return True
        return False

    def _on_mouse(self, card: ChartCard, event: QMouseEvent) -> bool:
        """Whether the event was about a drag; a click or a double click stays the card's."""
        at = event.position().toPoint()
        if event.type() == QEvent.Type.MouseButtonPress:
            is_grip = event.button() == Qt.MouseButton.LeftButton and at.y() < HEADER_HEIGHT
            self._pressed = at if is_grip else None
            return is_grip
        if self._pressed is None:
            return False
        if event.type() == QEvent.Type.MouseMove:
            if not self._name and (at - self._pressed).manhattanLength() >= QApplication.startDragDistance():
                self._name = next(name for name, one in self._cards.items() if one is card)
                card.setCursor(Qt.CursorShape.ClosedHandCursor)
            if self._name:
                self._aim(event.globalPosition().toPoint())
        elif event.type() == QEvent.Type.MouseButtonRelease:
            name, onto = self._name, self._onto
            self._end()
            if name and onto:
                self.dropped.emit(name, onto)
        return event.type() in (QEvent.Type.MouseMove, QEvent.Type.MouseButtonRelease)

    def _aim(self, at: QPoint) -> None:
        self._mark(
            next(
                (
                    name
                    for name, card in self._cards.items()
                    if name != self._name
                    and card.isVisible()
                    and card.rect().contains(card.mapFromGlobal(at))
                ),
                "",
            )
        )

    def _mark(self, onto: str) -> None:
        for name, card in self._cards.items():
            card.set_target(name == onto)
        self._onto = onto

    def _end(self) -> None:
        self._mark("")
        if self._name:
            self._cards[self._name].unsetCursor()
        self._name, self._pressed = "", None
