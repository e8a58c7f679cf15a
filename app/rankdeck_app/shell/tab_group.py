"""A group of tabs: the strip with tabs and buttons, the breadcrumbs, the page on show, and the five zones for
drops.

A tab may be dropped on the strip (it is inserted there), in the middle (it joins this group) or near an edge
(the group is split on that side). The group only tells what was dropped where; editor_area.py moves the tab.
"""

from __future__ import annotations

from typing import Literal

from PySide6.QtCore import QPoint, QRect, QSize, Qt, Signal
from PySide6.QtGui import (
    QDragEnterEvent,
    QDragLeaveEvent,
    QDragMoveEvent,
    QDropEvent,
    QPainter,
    QPaintEvent,
)
from PySide6.QtWidgets import QHBoxLayout, QStackedWidget, QToolButton, QVBoxLayout, QWidget

from rankdeck_app.shell.controls import CommandButton, tool_button, with_keys
from rankdeck_app.shell.page import Page, PageAction
from rankdeck_app.shell.services import Services
from rankdeck_app.shell.tab import Tab
from rankdeck_app.shell.tab_bar import HEIGHT, MIME, EditorTabBar
from rankdeck_app.theme import Theme

Zone = Literal["center", "left", "right", "top", "bottom"]

BREADCRUMBS_HEIGHT = 24
_EDGE = 0.25


def zone_at(at: QPoint, size: QSize) -> Zone:
    """The zone of a point in an area: the nearest edge if the point lies in that edge's outer quarter."""
    x = at.x() / max(1, size.width())
    y = at.y() / max(1, size.height())
    distances: dict[Zone, float] = {"left": x, "right": 1 - x, "top": y, "bottom": 1 - y}
    nearest = min(distances, key=lambda zone: distances[zone])
    return nearest if distances[nearest] < _EDGE else "center"


def zone_rect(zone: Zone, area: QRect) -> QRect:
    """What a drop in the zone would cover."""
    half_w, half_h = area.width() // 2, area.height() // 2
    return {
        "center": area,
        "left": area.adjusted(0, 0, -half_w, 0),
        "right": area.adjusted(half_w, 0, 0, 0),
        "top": area.adjusted(0, 0, 0, -half_h),
        "bottom": area.adjusted(0, half_h, 0, 0),
    }[zone]


class DropOverlay(QWidget):
    """Shows where the tab under the mouse would go."""

    def __init__(self, parent: QWidget, theme: Theme) -> None:
        super().__init__(parent)
        self._theme = theme
        self.zone: Zone = "center"
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.hide()

    def point_at(self, zone: Zone, area: QRect) -> None:
        self.zone = zone
        self.setGeometry(zone_rect(zone, area))
        self.show()
        self.raise_()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.fillRect(self.rect(), self._theme.color("editorGroup.dropBackground"))
        painter.end()


class Breadcrumbs(QWidget):
    """Where the page belongs: words parted by '›', the last one brighter."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self._parts: list[str] = []
        self.setFixedHeight(BREADCRUMBS_HEIGHT)
        self.setFont(theme.font(12))

    def set_parts(self, parts: list[str]) -> None:
        self._parts = parts
        self.setVisible(bool(parts))
        self.setAccessibleName(" › ".join(parts))
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setPen(self._theme.color("breadcrumb.foreground"))
        text = "  ›  ".join(self._parts)
        text = self.fontMetrics().elidedText(text, Qt.TextElideMode.ElideMiddle, self.width() - 32)
        painter.drawText(self.rect().adjusted(16, 0, -16, 0), Qt.AlignmentFlag.AlignVCenter, text)
        painter.end()


class TabStrip(QWidget):
    """The row behind tabs and buttons, with the line that the active tab interrupts."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self.setFixedHeight(HEIGHT)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.fillRect(self.rect(), self._theme.color("editorGroupHeader.tabsBackground"))
        line = QRect(0, HEIGHT - 1, self.width(), 1)
        painter.fillRect(line, self._theme.color("editorGroupHeader.tabsBorder"))
        painter.end()


class TabGroup(QWidget):
    """`dropped` carries the zone, and the index on the strip or -1."""

    current_changed = Signal()
    dropped = Signal(str, int)
    close_requested = Signal(object)
    pin_requested = Signal(object)
    menu_requested = Signal(object, QPoint)
    drag_started = Signal(object)
    drag_ended = Signal()

    def __init__(self, services: Services) -> None:
        super().__init__()
        self._services = services
        self.setObjectName("tabGroup")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.setAcceptDrops(True)
        self.setMinimumSize(160, 100)
        self.bar = EditorTabBar(services.theme)
        self._actions = QHBoxLayout()
        self._actions.setSpacing(2)
        self._strip = TabStrip(services.theme)
        strip = QHBoxLayout(self._strip)
        strip.setContentsMargins(0, 0, 8, 0)
        strip.setSpacing(2)
        strip.addWidget(self.bar, 0)
        strip.addStretch(1)
        strip.addLayout(self._actions)
        strip.addWidget(CommandButton(services, "editor.splitRight", "split-horizontal"))
        strip.addWidget(tool_button(services.theme, "ellipsis", "More Actions", self._open_menu))
        self._breadcrumbs = Breadcrumbs(services.theme)
        self._stack = QStackedWidget()
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        column.addWidget(self._strip)
        column.addWidget(self._breadcrumbs)
        column.addWidget(self._stack, 1)
        self._overlay = DropOverlay(self, services.theme)
        self._strip.hide()
        self._breadcrumbs.hide()
        self._connect()

    def _connect(self) -> None:
        self.bar.currentChanged.connect(self._show_current)
        self.bar.close_requested.connect(lambda at: self.close_requested.emit(self.bar.tabs[at]))
        self.bar.pin_requested.connect(lambda at: self.pin_requested.emit(self.bar.tabs[at]))
        self.bar.menu_requested.connect(lambda at, where: self.menu_requested.emit(self.bar.tabs[at], where))
        self.bar.drag_started.connect(lambda at: self.drag_started.emit(self.bar.tabs[at]))
        self.bar.drag_ended.connect(self.drag_ended)

    @property
    def tabs(self) -> list[Tab]:
        """From left to right; pinned ones come first."""
        return self.bar.tabs

    @property
    def current(self) -> Tab | None:
        index = self.bar.currentIndex()
        return self.tabs[index] if 0 <= index < len(self.tabs) else None

    def insert(self, tab: Tab, index: int | None = None, *, show: bool = True) -> None:
        """Add a tab: at `index`, or right of the current one; never among the pinned ones unless it is
        pinned.
        """
        num_pinned = sum(other.pinned for other in self.tabs)
        at = self.bar.currentIndex() + 1 if index is None else index
        at = min(at, num_pinned) if tab.pinned else max(at, num_pinned)
        blocked = self.bar.blockSignals(True)
        self.bar.insert_tab(min(at, len(self.tabs)), tab)
        self.bar.blockSignals(blocked)
        self._strip.show()
        if tab.page is not None:
            self._adopt(tab.page)
        if show:
            self.show_tab(tab)

    def show_tab(self, tab: Tab) -> None:
        """Bring a tab to the front, building its page if this is the first time."""
        blocked = self.bar.blockSignals(True)
        self.bar.setCurrentIndex(self.tabs.index(tab))
        self.bar.blockSignals(blocked)
        self._show_current()

    def take(self, tab: Tab) -> None:
        """Remove a tab without closing its page."""
        blocked = self.bar.blockSignals(True)
        self.bar.remove_tab(tab)
        self.bar.blockSignals(blocked)
        if tab.page is not None:
            tab.page.title_changed.disconnect(self._retitle)
            tab.page.actions_changed.disconnect(self._rebuild_actions)
            self._stack.removeWidget(tab.page)
            tab.page.setParent(None)
        self._strip.setVisible(bool(self.tabs))
        self._show_current()

    def set_focused(self, focused: bool) -> None:
        """Whether this is the group that commands act on: its accent is bright."""
        self.bar.focused_group = focused
        self.bar.update()

    def focus_page(self) -> None:
        current = self.current
        if current is not None and current.page is not None:
            page = current.page
            inner = page.focusProxy() or page
            if inner.focusPolicy() == Qt.FocusPolicy.NoFocus:
                page.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
            inner.setFocus(Qt.FocusReason.OtherFocusReason)

    def _adopt(self, page: Page) -> None:
        self._stack.addWidget(page)
        page.title_changed.connect(self._retitle)
        page.actions_changed.connect(self._rebuild_actions)

    def _show_current(self) -> None:
        tab = self.current
        if tab is not None:
            if tab.page is None:
                self._adopt(tab.build())
                self.bar.refresh(tab)
            assert tab.page is not None
            self._stack.setCurrentWidget(tab.page)
        self._breadcrumbs.set_parts(tab.page.breadcrumbs() if tab and tab.page else [])
        self._rebuild_actions()
        self.current_changed.emit()

    def _retitle(self) -> None:
        for tab in self.tabs:
            self.bar.refresh(tab)
        current = self.current
        if current is not None and current.page is not None:
            self._breadcrumbs.set_parts(current.page.breadcrumbs())

    def _rebuild_actions(self) -> None:
        while (item := self._actions.takeAt(0)) is not None:
            widget = item.widget()
            if widget is not None:
                widget.hide()
                widget.deleteLater()
        current = self.current
        for action in current.page.tab_actions() if current and current.page else []:
            self._actions.addWidget(self._action_button(action))

    def _action_button(self, action: PageAction) -> QToolButton:
        command = action.command
        if isinstance(command, str):
            keys = self._services.keymap.text_for(command)
            return tool_button(
                self._services.theme,
                action.icon,
                with_keys(action.tooltip, keys),
                lambda: self._services.commands.run(command),
            )
        return tool_button(self._services.theme, action.icon, action.tooltip, command)

    def _open_menu(self) -> None:
        if self.current is not None:
            corner = self._strip.mapToGlobal(QPoint(self._strip.width() - 180, HEIGHT))
            self.menu_requested.emit(self.current, corner)

    def _body_rect(self) -> QRect:
        return self.rect().adjusted(0, HEIGHT if self.tabs else 0, 0, 0)

    def _on_strip(self, at: QPoint) -> bool:
        return bool(self.tabs) and at.y() < HEIGHT

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        if event.mimeData().hasFormat(MIME):
            event.acceptProposedAction()

    def dragMoveEvent(self, event: QDragMoveEvent) -> None:
        at = event.position().toPoint()
        if self._on_strip(at):
            self._overlay.hide()
            self.bar.show_drop_mark(self.bar.index_for_drop(self.bar.mapFrom(self, at)))
        else:
            area = self._body_rect()
            self.bar.show_drop_mark(-1)
            self._overlay.point_at(zone_at(at - area.topLeft(), area.size()), area)
        event.acceptProposedAction()

    def dragLeaveEvent(self, event: QDragLeaveEvent) -> None:
        self._end_drag()

    def dropEvent(self, event: QDropEvent) -> None:
        at = event.position().toPoint()
        self._end_drag()
        event.acceptProposedAction()
        if self._on_strip(at):
            self.dropped.emit("center", self.bar.index_for_drop(self.bar.mapFrom(self, at)))
        else:
            area = self._body_rect()
            self.dropped.emit(zone_at(at - area.topLeft(), area.size()), -1)

    def _end_drag(self) -> None:
        self._overlay.hide()
        self.bar.show_drop_mark(-1)
