"""Tab switcher (Ctrl+Tab): the active group's tabs, the most recently shown first; releasing Ctrl chooses the
current row.

Tab, Shift+Tab, the arrow keys and the mouse move through the list. Enter or a click chooses a row; Escape
cancels. If Ctrl is not held when the switcher is opened (from a menu or the palette), it waits for Enter.
"""

from __future__ import annotations

from functools import partial

from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QFocusEvent, QKeyEvent
from PySide6.QtWidgets import QWidget

from rankdeck_app.language import tr
from rankdeck_app.shell.editor_area import EditorArea
from rankdeck_app.shell.floating_list import TOP_PX, FloatingList, PaletteRow, QuickPickItem
from rankdeck_app.shell.services import Services
from rankdeck_app.shell.tab import Tab
from rankdeck_app.widgets.layouts import column

_KEY_STEPS = {Qt.Key.Key_Tab: 1, Qt.Key.Key_Down: 1, Qt.Key.Key_Backtab: -1, Qt.Key.Key_Up: -1}


class TabSwitcher(FloatingList):
    max_width = 420

    def __init__(self, services: Services, editor: EditorArea, parent: QWidget) -> None:
        name = tr("Recently used tabs")
        super().__init__(services, parent, name, name)
        self._editor = editor
        column(self.list, on=self, margins=(8, 8, 8, 8))
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)

    def step(self, step: int) -> None:
        """Move through the list by `step` rows. If the list is closed, open it and select the previously
        shown tab (`step` 1) or the tab shown longest ago (`step` -1)."""
        if not self.isVisible():
            self._open()
        num_rows = len(self.model.rows)
        row = (self.list.currentIndex().row() + step) % num_rows
        self.list.setCurrentIndex(self.model.index(row))

    def _open(self) -> None:
        self.model.set_rows(
            [PaletteRow(self._make_item(tab)) for tab in self._editor.active_group.recent_tabs()]
        )
        self.list.setCurrentIndex(self.model.index(0))
        self.reposition()
        self.open_with_focus(self)

    def reposition(self) -> None:
        """Place the list in the upper third of the window."""
        super().reposition()
        self.move(self.x(), max(TOP_PX, (self._container.height() - self.height()) // 3))

    def _make_item(self, tab: Tab) -> QuickPickItem:
        page, icon = tab.page, tab.display_icon()[0]
        crumbs = page.breadcrumbs() if page is not None else []
        show = partial(self._editor.show_tab, tab)
        return QuickPickItem(tab.display_title(), " › ".join(crumbs[:-1]), show, icon=icon)

    def event(self, event: QEvent) -> bool:
        """Handle all keys, including Tab, which Qt would otherwise use to move the focus."""
        if event.type() == QEvent.Type.KeyPress and isinstance(event, QKeyEvent):
            self.keyPressEvent(event)
            return True
        return super().event(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        key = Qt.Key(event.key())
        if key == Qt.Key.Key_Tab and event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
            key = Qt.Key.Key_Backtab
        if (step := _KEY_STEPS.get(key)) is not None:
            self.step(step)
        elif key in (Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space):
            self.choose(self.list.currentIndex())
        elif key == Qt.Key.Key_Escape:
            self.dismiss()

    def keyReleaseEvent(self, event: QKeyEvent) -> None:
        # Auto-repeat also sends releases while Ctrl is held.
        if event.key() == Qt.Key.Key_Control and not event.isAutoRepeat():
            self.choose(self.list.currentIndex())

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        if self.isVisible():
            # The user has focused another widget: do not take the focus back.
            self._previous_focus = None
            self.dismiss()
