"""The panel below the editor: tabs (Problems, Output, ...) with their own tools, built when first shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import QRect, QSignalBlocker, QSize, Qt, Signal
from PySide6.QtGui import QCursor, QPainter, QPaintEvent
from PySide6.QtWidgets import QStackedWidget, QTabBar, QWidget

from rankdeck_app.language import tr, translate
from rankdeck_app.shell.controls import CommandButton
from rankdeck_app.shell.services import Services
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.layouts import column, row
from rankdeck_app.widgets.painting import CENTER, paint_text

HEADER_HEIGHT = 35
DEFAULT_HEIGHT = 180


@dataclass(frozen=True)
class PanelTab:
    """A tab of the panel.

    `id` is stable ("output"); `title` is a phrase ("Output"). `factory` builds the body. `tools` builds the
    widget at the right of the header for this body (a filter, a lock), or is None. A tab with a higher
    `priority` is further left. `keys` is the default shortcut of the command "view.panel.<id>".
    """

    id: str
    title: str
    factory: Callable[[], QWidget]
    tools: Callable[[Any], QWidget] | None = None
    priority: int = 0
    keys: tuple[str, ...] = ()


# Painted by hand: a style sheet has no capitals, no inset line under the title and no focus mark on a tab.
class PanelTabBar(QTabBar):
    """Custom-painted tab bar: 11 px capitals, a line under the current tab, and a badge with a count."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self.setFont(theme.font(11))
        self.setDrawBase(False)
        self.setExpanding(False)
        self.setUsesScrollButtons(False)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setAccessibleName(tr("Panel tabs"))
        theme.changed.connect(self.update)

    def set_badge(self, index: int, count: int, tone: str) -> None:
        """Show a count in the tab, in red if `tone` is "error"; 0 removes the count."""
        self.setTabData(index, (count, tone) if count else None)
        title = self.tabText(index)
        self.setAccessibleTabName(index, f"{title}, {count}" if count else title)
        self.setIconSize(QSize(0, 0))  # makes QTabBar ask tabSizeHint again
        self.updateGeometry()
        self.update()

    def tabSizeHint(self, index: int) -> QSize:
        width = self.fontMetrics().horizontalAdvance(self.tabText(index).upper()) + 20
        if self.tabData(index):
            width += self._badge_width(index) + 6
        return QSize(width, HEADER_HEIGHT)

    def minimumTabSizeHint(self, index: int) -> QSize:
        return self.tabSizeHint(index)

    def _badge_width(self, index: int) -> int:
        return max(16, self.fontMetrics().horizontalAdvance(str(self.tabData(index)[0])) + 9)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setClipRect(self.rect())  # tabs scroll: those at the edges are cut on purpose
        hover = self.tabAt(self.mapFromGlobal(QCursor.pos())) if self.underMouse() else -1
        for index in range(self.count()):
            self._paint_tab(painter, index, self.tabRect(index), hover == index)
        painter.end()

    def _paint_tab(self, painter: QPainter, index: int, rect: QRect, hover: bool) -> None:
        color = self._theme.color
        active = index == self.currentIndex()
        bright = active or hover
        ink = color("panelTitle.activeForeground" if bright else "panelTitle.inactiveForeground")
        text = self.tabText(index).upper()
        paint_text(painter, rect.adjusted(10, 0, 0, 0), text, ink, 11, font=self.font())
        if active:
            line = QRect(rect.x() + 10, rect.bottom() - 4, rect.width() - 20, 1)
            painter.fillRect(line, color("panelTitle.activeBorder"))
        if active and self.hasFocus():
            painter.setPen(color("focusBorder"))
            painter.drawRect(rect.adjusted(3, 5, -4, -8))
        if self.tabData(index):
            self._paint_badge(painter, index, rect)

    def _paint_badge(self, painter: QPainter, index: int, rect: QRect) -> None:
        count, tone = self.tabData(index)
        width = self._badge_width(index)
        box = QRect(rect.right() - 9 - width, rect.center().y() - 7, width, 16)
        hot = tone == "error"
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(self._theme.color("errorForeground" if hot else "badge.background"))
        painter.drawRoundedRect(box, 8, 8)
        ink = self._theme.color("panel.background" if hot else "badge.foreground")
        paint_text(painter, box, str(count), ink, 11, CENTER, font=self.font())


class Panel(QWidget):
    """Panel with tabs, each of which has a body. The window hides the panel while no tab is registered."""

    current_changed = Signal()

    def __init__(self, services: Services) -> None:
        super().__init__()
        self.setObjectName("panel")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.setAccessibleName(tr("Panel"))
        self.setMinimumHeight(HEADER_HEIGHT + 40)
        self.tabs: dict[str, PanelTab] = {}
        self._order: list[str] = []
        self._bodies: dict[str, QWidget] = {}
        self._restored_id = ""
        self._bar = PanelTabBar(services.theme)
        self._bar.currentChanged.connect(self._on_current_changed)
        self._tools = QStackedWidget()
        self._tools.setFixedHeight(26)
        self._no_tools = QWidget()
        self._tools.addWidget(self._no_tools)
        self._tool_widgets: dict[str, QWidget] = {}
        self._stack = QStackedWidget()
        buttons = (
            CommandButton(services, "view.maximizePanel", "chevron-up", self),
            CommandButton(services, "view.restorePanel", "chevron-down", self),
            CommandButton(services, "view.togglePanel", "close", self),
        )
        header = row(self._bar, (self._tools, 1), *buttons, margins=(6, 0, 8, 0), spacing=4)
        column(header, (self._stack, 1), on=self, margins=(0, 1, 0, 0), spacing=0)

    def register(self, tab: PanelTab) -> None:
        """Add a tab. Its body is built when it is first shown."""
        assert tab.id not in self.tabs, f"panel tab {tab.id} is registered twice"
        self.tabs[tab.id] = tab
        # After the tabs of the same priority.
        at = sum(self.tabs[other].priority >= tab.priority for other in self._order)
        self._order.insert(at, tab.id)
        # The first tab becomes current here, but its body must not be built yet.
        with QSignalBlocker(self._bar):
            self._bar.insertTab(at, translate(tab.title))

    @property
    def current_id(self) -> str:
        index = self._bar.currentIndex()
        return self._order[index] if 0 <= index < len(self._order) else ""

    @property
    def body(self) -> QWidget | None:
        """Body of the current tab."""
        return self._bodies.get(self.current_id)

    def show_initial(self) -> None:
        """Show the tab that the last session showed, or else the first tab."""
        if self._order:
            self.show_tab(self._restored_id if self._restored_id in self.tabs else self._order[0])

    def show_tab(self, tab_id: str) -> QWidget:
        """Bring a tab to the front and return its body. (The window decides whether the panel is visible.)"""
        index = self._order.index(tab_id)
        if index == self._bar.currentIndex():
            # setCurrentIndex would not emit currentChanged.
            self._on_current_changed(index)
        else:
            self._bar.setCurrentIndex(index)
        return self._bodies[tab_id]

    def set_badge(self, tab_id: str, count: int | None, tone: str = "normal") -> None:
        """Show a count next to the title, in red if `tone` is "error"; None or 0 removes the count."""
        self._bar.set_badge(self._order.index(tab_id), count or 0, tone)

    def _on_current_changed(self, index: int) -> None:
        if not 0 <= index < len(self._order):
            return
        tab = self.tabs[self._order[index]]
        body = self._bodies.get(tab.id)
        if body is None:
            body = self._bodies[tab.id] = tab.factory()
            self._stack.addWidget(body)
            if tab.tools is not None:
                self._tool_widgets[tab.id] = tab.tools(body)
                self._tools.addWidget(self._tool_widgets[tab.id])
        self._stack.setCurrentWidget(body)
        self._tools.setCurrentWidget(self._tool_widgets.get(tab.id, self._no_tools))
        self.current_changed.emit()

    def save_state(self) -> dict[str, Any]:
        return {"shown": self.current_id}

    def restore_state(self, state: dict[str, Any]) -> None:
        self._restored_id = str(state.get("shown", ""))
