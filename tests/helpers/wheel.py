"""A notch of the mouse wheel over a widget; negative ones are towards the person."""

from __future__ import annotations

from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtGui import QWheelEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QWidget

from tests.helpers.app_window import process_events


def is_under_pointer(widget: QWidget) -> bool:
    """Whether a pointer at its middle is over it, and over nothing that covers it."""
    top_widget = QApplication.widgetAt(widget.mapToGlobal(widget.rect().center()))
    return top_widget is not None and (top_widget is widget or widget.isAncestorOf(top_widget))


def wheel_over(widget: QWidget, notches: int = -1, *, ctrl: bool = False) -> None:
    """As the window system tells it: what ignores it passes it on to what stands around it."""
    window, keys = widget.window(), Qt.KeyboardModifier.ControlModifier
    at = QPointF(widget.mapTo(window, widget.rect().center()))
    modifiers = keys if ctrl else Qt.KeyboardModifier.NoModifier
    QTest.wheelEvent(window.windowHandle(), at, QPoint(0, 120 * notches), QPoint(), modifiers)
    process_events()


def consumes_wheel(widget: QWidget, notches: int = -1) -> bool:
    """Whether a widget keeps a wheel for itself, seen or not."""
    at = QPointF(widget.rect().center())
    event = QWheelEvent(
        at, widget.mapToGlobal(at), QPoint(), QPoint(0, 120 * notches), Qt.MouseButton.NoButton,
        Qt.KeyboardModifier.NoModifier, Qt.ScrollPhase.NoScrollPhase, False,
    )  # fmt: skip
    QApplication.sendEvent(widget, event)
    return event.isAccepted()
