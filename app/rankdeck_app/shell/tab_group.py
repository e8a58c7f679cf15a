"""Group of tabs: a strip with tabs and buttons, breadcrumbs, the current page and five drop zones.

A tab can be dropped on the strip (to be inserted there), in the middle (to be added to the group) or near an
edge (to split the group on that side). The group only reports the drop; editor_area.py moves the tab.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from PySide6.QtCore import QEvent, QPoint, QRect, QSignalBlocker, QSize, Qt, Signal
from PySide6.QtGui import (
    QDragEnterEvent,
    QDragLeaveEvent,
    QDragMoveEvent,
    QDropEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
)
from PySide6.QtWidgets import QStackedWidget, QToolButton, QWidget

from rankdeck_app.language import tr
from rankdeck_app.shell.controls import CommandButton, with_shortcut
from rankdeck_app.shell.page import Page, PageAction
from rankdeck_app.shell.services import Services
from rankdeck_app.shell.tab import Tab
from rankdeck_app.shell.tab_bar import HEIGHT, TAB_MIME_TYPE, EditorTabBar
from rankdeck_app.widgets.controls import tool_button
from rankdeck_app.widgets.layouts import clear_layout, column, row
from rankdeck_app.widgets.painting import paint_text

Zone = Literal["center", "left", "right", "top", "bottom"]

BREADCRUMBS_HEIGHT = 24
_BREADCRUMBS_MARGIN = 16
_SEPARATOR = "  ›  "
_EDGE_SHARE = 0.25


def zone_at(at: QPoint, size: QSize) -> Zone:
    """Return the drop zone of a point: an edge if the point is in the outer quarter next to it, or else the
    centre."""
    x = at.x() / max(1, size.width())
    y = at.y() / max(1, size.height())
    distances: dict[Zone, float] = {"left": x, "right": 1 - x, "top": y, "bottom": 1 - y}
    nearest = min(distances, key=lambda zone: distances[zone])
    return nearest if distances[nearest] < _EDGE_SHARE else "center"


def zone_rect(zone: Zone, area: QRect) -> QRect:
    """Return the rectangle that a tab dropped in the zone would cover."""
    # A split gives half of the area to the new group.
    half_w, half_h = area.width() // 2, area.height() // 2
    return {
        "center": area,
        "left": area.adjusted(0, 0, -half_w, 0),
        "right": area.adjusted(half_w, 0, 0, 0),
        "top": area.adjusted(0, 0, 0, -half_h),
        "bottom": area.adjusted(0, half_h, 0, 0),
    }[zone]


class Breadcrumbs(QWidget):
    """Path to a page, with parts separated by '›'; all parts except the last form a single link."""

    def __init__(self, services: Services) -> None:
        super().__init__()
        self._services = services
        self._theme = services.theme
        self._parts: list[str] = []
        self._command = ""
        self._is_hovered = False
        self.setFixedHeight(BREADCRUMBS_HEIGHT)
        self.setFont(self._theme.font(12))
        self.setMouseTracking(True)

    def show_page(self, page: Page | None) -> None:
        self._parts = [] if page is None else page.breadcrumbs()
        self._command = "" if page is None else page.breadcrumb_command
        self._set_hovered(False)
        self.setVisible(bool(self._parts))
        self.setAccessibleName(" › ".join(self._parts))
        self.update()

    @property
    def link_width(self) -> int:
        """Width of the clickable parts in pixels."""
        if not self._services.commands.is_enabled(self._command):
            return 0
        return self.fontMetrics().horizontalAdvance(_SEPARATOR.join(self._parts[:-1]))

    def _set_hovered(self, is_lit: bool) -> None:
        if is_lit != self._is_hovered:
            self._is_hovered = is_lit
            self.setCursor(Qt.CursorShape.PointingHandCursor if is_lit else Qt.CursorShape.ArrowCursor)
            self.update()

    def _is_over_link(self, event: QMouseEvent) -> bool:
        return 0 <= event.position().x() - _BREADCRUMBS_MARGIN < self.link_width

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        self._set_hovered(self._is_over_link(event))

    def leaveEvent(self, event: QEvent) -> None:
        self._set_hovered(False)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() == Qt.MouseButton.LeftButton and self._is_over_link(event):
            self._services.commands.run(self._command)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        ink, room = (
            self._theme.color("breadcrumb.foreground"),
            self.rect().adjusted(_BREADCRUMBS_MARGIN, 0, -16, 0),
        )
        text, elide = _SEPARATOR.join(self._parts), Qt.TextElideMode.ElideMiddle
        painted_text = paint_text(painter, room, text, ink, 12, elide=elide, font=self.font())
        if self._is_hovered and painted_text == text:
            room.setWidth(self.link_width + 1)
            lit = self._theme.color("textLink.foreground")
            paint_text(painter, room, _SEPARATOR.join(self._parts[:-1]), lit, 12, font=self.font())
        painter.end()


class TabGroup(QWidget):
    """Group of tabs. `dropped` carries the drop zone and the index on the strip (-1 for a drop off the
    strip).

    `bar` has the signals for mouse actions on tabs.
    """

    current_changed = Signal()
    dropped = Signal(str, int)

    def __init__(self, services: Services) -> None:
        super().__init__()
        self._services = services
        self.setObjectName("tabGroup")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.setAcceptDrops(True)
        self.setMinimumSize(220, 160)
        self.bar = EditorTabBar(services.theme)
        self._actions = row(spacing=2)
        self._strip = QWidget()
        self._strip.setObjectName("tabStrip")
        self._strip.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self._strip.setFixedHeight(HEIGHT)
        strip = row(self.bar, None, self._actions, on=self._strip, margins=(0, 0, 8, 0), spacing=2)
        strip.addWidget(CommandButton(services, "editor.splitRight", "split-horizontal", self._strip))
        strip.addWidget(tool_button(services.theme, "ellipsis", tr("More Actions"), self._open_menu))
        self.visited_tabs: list[Tab] = []
        """Tabs that have been shown, most recent first."""
        self._breadcrumbs = Breadcrumbs(services)
        self._stack = QStackedWidget()
        column(self._strip, self._breadcrumbs, (self._stack, 1), on=self, spacing=0)
        self._overlay = QWidget(self)
        self._overlay.setObjectName("dropOverlay")
        self._overlay.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        # Drag events must still reach the group.
        self._overlay.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        for widget in (self._overlay, self._strip, self._breadcrumbs):
            widget.hide()
        self.bar.currentChanged.connect(self._show_current)
        self.bar.keep_requested.connect(self.keep)

    @property
    def tabs(self) -> list[Tab]:
        """Tabs from left to right, pinned ones first."""
        return self.bar.tabs

    @property
    def current(self) -> Tab | None:
        index = self.bar.currentIndex()
        return self.tabs[index] if 0 <= index < len(self.tabs) else None

    def recent_tabs(self) -> list[Tab]:
        """Return the tabs, most recently shown first; tabs that were never shown come last."""
        return [*self.visited_tabs, *(tab for tab in self.tabs if tab not in self.visited_tabs)]

    def insert(self, tab: Tab, index: int | None = None, *, show: bool = True) -> None:
        """Insert a tab at `index`, by default right of the current tab; pinned tabs stay first."""
        num_pinned = sum(other.pinned for other in self.tabs)
        at = self.bar.currentIndex() + 1 if index is None else index
        at = min(at, num_pinned) if tab.pinned else max(at, num_pinned)
        with QSignalBlocker(self.bar):
            self.bar.insert_tab(min(at, len(self.tabs)), tab)
        self._strip.show()
        if tab.page is not None:
            self._add_page(tab.page)
        if show:
            self.show_tab(tab)

    def insert_replacing_preview(self, tab: Tab) -> None:
        """Insert a tab; if the tab is a preview, it replaces the group's current preview."""
        before = next((other for other in self.tabs if other.preview), None) if tab.preview else None
        self.insert(tab, None if before is None else self.tabs.index(before) + 1, show=before is None)
        if before is not None:
            self.show_tab(tab)
            self._discard(before)

    def insert_moved(self, tab: Tab, index: int) -> None:
        """Insert a moved tab, which replaces any tab of the same page; an `index` of -1 means the default
        position."""
        twins = [other for other in self.tabs if other.page_id == tab.page_id]
        self.insert(tab, index if index >= 0 else None)
        for twin in twins:
            self._discard(twin)

    def _discard(self, tab: Tab) -> None:
        """Remove a tab and delete its page."""
        self.remove(tab)
        if tab.page is not None:
            tab.page.deleteLater()

    def keep(self, tab: Tab) -> None:
        """Make a preview a normal tab."""
        tab.preview = False
        self.bar.refresh(tab)
        self.current_changed.emit()

    def show_tab(self, tab: Tab) -> None:
        """Bring a tab to the front; its page is built on first use."""
        with QSignalBlocker(self.bar):
            self.bar.setCurrentIndex(self.tabs.index(tab))
        self._show_current()

    def remove(self, tab: Tab) -> None:
        """Remove a tab without deleting its page."""
        with QSignalBlocker(self.bar):
            self.bar.remove_tab(tab)
        self.visited_tabs = [other for other in self.visited_tabs if other is not tab]
        if tab.page is not None:
            # The page may move to another group.
            tab.page.title_changed.disconnect(self._on_title_changed)
            tab.page.actions_changed.disconnect(self._rebuild_actions)
            self._stack.removeWidget(tab.page)
            tab.page.setParent(None)
        self._strip.setVisible(bool(self.tabs))
        self._show_current()

    def set_focused(self, focused: bool) -> None:
        """Set whether commands act on this group; the active tab of that group has a bright accent."""
        self.bar.is_group_focused = focused
        self.bar.update()

    def focus_page(self) -> None:
        current = self.current
        if current is not None and current.page is not None:
            page = current.page
            # focusProxy() makes PySide own the returned widget: plots that were asked this way were never
            # freed.
            inner = page.focusProxy() or page
            if inner.focusPolicy() == Qt.FocusPolicy.NoFocus:
                page.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
            inner.setFocus(Qt.FocusReason.OtherFocusReason)

    def _add_page(self, page: Page) -> None:
        self._stack.addWidget(page)
        page.title_changed.connect(self._on_title_changed)
        page.actions_changed.connect(self._rebuild_actions)

    def _show_current(self) -> None:
        tab = self.current
        if tab is not None:
            self.visited_tabs = [tab, *(other for other in self.visited_tabs if other is not tab)]
            if tab.page is None:
                self._add_page(tab.build())
                self.bar.refresh(tab)
            assert tab.page is not None
            self._stack.setCurrentWidget(tab.page)
        self._breadcrumbs.show_page(tab.page if tab else None)
        self._rebuild_actions()
        self.current_changed.emit()

    def _on_title_changed(self) -> None:
        # The signal does not say which page it comes from.
        for tab in self.tabs:
            self.bar.refresh(tab)
        current = self.current
        if current is not None and current.page is not None:
            self._breadcrumbs.show_page(current.page)

    def _rebuild_actions(self) -> None:
        clear_layout(self._actions)
        current = self.current
        for action in current.page.tab_actions() if current and current.page else []:
            self._actions.addWidget(self._action_button(action))

    def _action_button(self, action: PageAction) -> QToolButton:
        command, tooltip = action.command, action.tooltip
        if isinstance(command, str):
            tooltip = with_shortcut(tooltip, self._services.keymap.text_for(command))
            command = partial(self._services.commands.run, command)
        return tool_button(self._services.theme, action.icon, tooltip, command)

    def _open_menu(self) -> None:
        if self.current is not None:
            corner = self._strip.mapToGlobal(QPoint(self._strip.width() - 180, HEIGHT))
            self.bar.menu_requested.emit(self.current, corner)

    def _drop_target(self, at: QPoint) -> tuple[Zone, int, QRect]:
        """Return the zone of a drop, the index on the strip (-1 for a drop off the strip), and the rectangle
        that the dropped tab would cover."""
        # A group without tabs has no strip.
        if self.tabs and at.y() < HEIGHT:
            return "center", self.bar.index_for_drop(self.bar.mapFrom(self, at)), QRect()
        area = self.rect().adjusted(0, HEIGHT if self.tabs else 0, 0, 0)
        zone = zone_at(at - area.topLeft(), area.size())
        return zone, -1, zone_rect(zone, area)

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        if event.mimeData().hasFormat(TAB_MIME_TYPE):
            event.acceptProposedAction()

    def dragMoveEvent(self, event: QDragMoveEvent) -> None:
        _, index, covered = self._drop_target(event.position().toPoint())
        self.bar.set_drop_index(index)
        self._overlay.setGeometry(covered)
        self._overlay.setVisible(index < 0)
        self._overlay.raise_()
        event.acceptProposedAction()

    def dragLeaveEvent(self, event: QDragLeaveEvent) -> None:
        self._end_drag()

    def dropEvent(self, event: QDropEvent) -> None:
        self._end_drag()
        event.acceptProposedAction()
        zone, index, _ = self._drop_target(event.position().toPoint())
        self.dropped.emit(zone, index)

    def _end_drag(self) -> None:
        self._overlay.hide()
        self.bar.set_drop_index(-1)
