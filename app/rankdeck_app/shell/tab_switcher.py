"""Ctrl+Tab: the tabs of the group, the one that was looked at last first; letting go of Ctrl chooses.

Tab and Shift+Tab, the arrows and the mouse walk; Enter and a click choose, Escape leaves all as it was.
Opened without a held Ctrl (from a menu, the palette) it waits for Enter.
"""

from __future__ import annotations

from functools import partial

from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QFocusEvent, QKeyEvent
from PySide6.QtWidgets import QApplication, QFrame, QGraphicsDropShadowEffect, QListView, QVBoxLayout, QWidget

from rankdeck_app.language import tr
from rankdeck_app.shell.editor_area import EditorArea
from rankdeck_app.shell.palette import ROW_HEIGHT, PaletteRow, QuickItem, RowDelegate, RowModel
from rankdeck_app.shell.services import Services
from rankdeck_app.shell.tab import Tab

WIDTH = 420
MAX_ROWS = 14
_STEPS = {Qt.Key.Key_Tab: 1, Qt.Key.Key_Down: 1, Qt.Key.Key_Backtab: -1, Qt.Key.Key_Up: -1}


class TabSwitcher(QFrame):
    """One box over the window; hidden when not in use."""

    def __init__(self, services: Services, editor: EditorArea, parent: QWidget) -> None:
        super().__init__(parent)
        self._services = services
        self._editor = editor
        self._room = parent
        self._focus_before: QWidget | None = None
        self.setProperty("kind", "floating")
        self.setAccessibleName(tr("Recently used tabs"))
        self.list = QListView()
        self.list.setAccessibleName(tr("Recently used tabs"))
        self.list.setUniformItemSizes(True)
        self.list.setMouseTracking(True)
        self.list.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.model = RowModel(self.list)
        self.list.setModel(self.model)
        self.list.setItemDelegate(RowDelegate(services, self.list))
        self.list.clicked.connect(lambda _index: self.choose())
        column = QVBoxLayout(self)
        column.setContentsMargins(8, 8, 8, 8)
        column.addWidget(self.list)
        self._shadow = QGraphicsDropShadowEffect(self)
        self._shadow.setBlurRadius(24)
        self._shadow.setOffset(0, 6)
        self.setGraphicsEffect(self._shadow)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.hide()

    def step(self, step: int) -> None:
        """Open the list on the tab of before (1) or the oldest (-1); where it is open, go on."""
        if not self.isVisible():
            self._open()
        num_rows = len(self.model.rows)
        row = (self.list.currentIndex().row() + step) % num_rows
        self.list.setCurrentIndex(self.model.index(row))

    def choose(self) -> None:
        """Show the tab that is marked."""
        row = self.list.currentIndex().row()
        callback = self.model.rows[row].item.callback if row >= 0 else None
        self.leave()
        if callback is not None:
            callback()

    def leave(self) -> None:
        """Close it; the keyboard goes back to where it was."""
        if not self.isVisible():
            return
        before, self._focus_before = self._focus_before, None
        self.hide()
        if before is not None and before.isVisible():
            before.setFocus(Qt.FocusReason.PopupFocusReason)

    def _open(self) -> None:
        self.model.set_rows([PaletteRow(self._item(tab)) for tab in self._editor.active_group.recent_tabs()])
        self.list.setCurrentIndex(self.model.index(0))
        room = self._room.size()
        self.list.setFixedHeight(min(len(self.model.rows), MAX_ROWS) * ROW_HEIGHT)
        self.setFixedWidth(min(WIDTH, room.width() - 32))
        self.adjustSize()
        self.move((room.width() - self.width()) // 2, max(6, (room.height() - self.height()) // 3))
        self._shadow.setColor(self._services.theme.color("widget.shadow"))
        self._focus_before = QApplication.focusWidget()
        self.show()
        self.raise_()
        self.setFocus(Qt.FocusReason.PopupFocusReason)

    def _item(self, tab: Tab) -> QuickItem:
        page, icon = tab.page, tab.shown_icon()[0]
        crumbs = page.breadcrumbs() if page is not None else []
        show = partial(self._editor.show_tab, tab)
        return QuickItem(tab.shown_title(), " › ".join(crumbs[:-1]), show, icon=icon)

    def event(self, event: QEvent) -> bool:
        """Tab is a key of ours, also as a shortcut."""
        if event.type() == QEvent.Type.KeyPress and isinstance(event, QKeyEvent):
            self.keyPressEvent(event)
            return True
        return super().event(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        key = Qt.Key(event.key())
        if key == Qt.Key.Key_Tab and event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
            key = Qt.Key.Key_Backtab
        if (step := _STEPS.get(key)) is not None:
            self.step(step)
        elif key in (Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space):
            self.choose()
        elif key == Qt.Key.Key_Escape:
            self.leave()

    def keyReleaseEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Control and not event.isAutoRepeat():
            self.choose()

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        if self.isVisible():
            self._focus_before = None
            self.leave()
