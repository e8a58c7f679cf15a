"""Hand-painted tab bar of the editor, 36 px high: icon, title, close button and an accent on the active tab.

QTabBar provides layout, scrolling, keyboard navigation and accessibility. Dragging a tab starts a QDrag;
tab_group.py handles the drop.
"""

from __future__ import annotations

from PySide6.QtCore import QEvent, QMimeData, QObject, QPoint, QRect, QSize, Qt, Signal
from PySide6.QtGui import (
    QColor,
    QContextMenuEvent,
    QDrag,
    QFont,
    QFontMetricsF,
    QLinearGradient,
    QMouseEvent,
    QPainter,
    QPaintEvent,
)
from PySide6.QtWidgets import QApplication, QTabBar, QToolButton

from rankdeck_app.language import tr
from rankdeck_app.shell.tab import Tab
from rankdeck_app.theme import Theme, draw_icon
from rankdeck_app.widgets.painting import paint_text
from rankdeck_app.widgets.run_names import NameShortener

HEIGHT = 36
ACCENT_HEIGHT = 2
TAB_MIME_TYPE = "application/x-rankdeck-tab"
_MAX_TEXT_WIDTH = 220
_FADE_WIDTH = 20


class EditorTabBar(QTabBar):
    """Tab bar of a group. `dragged` carries a tab just before it is dragged, and None when the drag ends."""

    close_requested = Signal(object)
    pin_requested = Signal(object)
    keep_requested = Signal(object)
    menu_requested = Signal(object, QPoint)
    dragged = Signal(object)

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self.tabs: list[Tab] = []
        self.is_group_focused = True
        self._press_position: QPoint | None = None
        self._hovered_index = -1
        self._is_over_close = False
        self._drop_index = -1
        self.setFont(theme.font(12))
        self.setFixedHeight(HEIGHT)
        self.setDrawBase(False)
        self.setExpanding(False)
        self.setUsesScrollButtons(True)
        self.setElideMode(Qt.TextElideMode.ElideNone)
        self.setMouseTracking(True)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setAccessibleName(tr("Editor tabs"))
        # QTabBar's scroll buttons, which eventFilter paints.
        self._arrows = self.findChildren(QToolButton)
        for arrow in self._arrows:
            arrow.installEventFilter(self)
        theme.changed.connect(self.update)

    def insert_tab(self, index: int, tab: Tab) -> None:
        self.tabs.insert(index, tab)
        self.insertTab(index, tab.display_title())
        self.refresh(tab)

    def remove_tab(self, tab: Tab) -> None:
        index = self.tabs.index(tab)
        del self.tabs[index]
        self.removeTab(index)

    def refresh(self, tab: Tab) -> None:
        """Update the tab's title, tooltip and accessible name."""
        index = self.tabs.index(tab)
        # A single "&" would mark a mnemonic.
        self.setTabText(index, tab.display_title().replace("&", "&&"))
        self.setTabToolTip(index, tab.page.tooltip() if tab.page is not None else tab.display_title())
        state = tr("pinned") if tab.pinned else tr("preview") if tab.preview else ""
        self.setAccessibleTabName(index, ", ".join(filter(None, (tab.display_title(), state))))
        self.update()

    def set_drop_index(self, index: int) -> None:
        """Mark where a dragged tab would be inserted; -1 hides the mark."""
        if index != self._drop_index:
            self._drop_index = index
            self.update()

    def index_for_drop(self, at: QPoint) -> int:
        """Return the index at which a tab dropped at the point `at` would be inserted."""
        for index in range(self.count()):
            if at.x() < self.tabRect(index).center().x():
                return index
        return self.count()

    def tabSizeHint(self, index: int) -> QSize:
        text = self.tabs[index].display_title() if index < len(self.tabs) else ""
        width = min(self.fontMetrics().horizontalAdvance(text), _MAX_TEXT_WIDTH)
        return QSize(width + 74, HEIGHT)

    def minimumTabSizeHint(self, index: int) -> QSize:
        return self.tabSizeHint(index)

    def minimumSizeHint(self) -> QSize:
        return QSize(80, HEIGHT)

    def _close_rect(self, index: int) -> QRect:
        rect = self.tabRect(index)
        return QRect(rect.right() - 28, rect.center().y() - 9, 20, 20)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        at = event.position().toPoint()
        index = self.tabAt(at)
        if event.button() == Qt.MouseButton.RightButton and index >= 0:
            self.menu_requested.emit(self.tabs[index], event.globalPosition().toPoint())
            return
        if event.button() == Qt.MouseButton.LeftButton and index >= 0:
            # A press on the close button neither selects nor drags the tab.
            if self._close_rect(index).contains(at):
                return
            self._press_position = at
        super().mousePressEvent(event)

    def open_menu(self) -> None:
        """Open the current tab's menu below the tab."""
        index = self.currentIndex()
        if index >= 0:
            self.menu_requested.emit(self.tabs[index], self.mapToGlobal(self.tabRect(index).bottomLeft()))

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        if event.reason() == QContextMenuEvent.Reason.Keyboard:  # mousePressEvent handles the mouse
            self.open_menu()

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        at = event.position().toPoint()
        index = self.tabAt(at)
        pressed, self._press_position = self._press_position, None
        if index >= 0 and event.button() == Qt.MouseButton.MiddleButton:
            self.close_requested.emit(self.tabs[index])
        elif (
            index >= 0
            and pressed is None
            and event.button() == Qt.MouseButton.LeftButton
            and self._close_rect(index).contains(at)
        ):
            tab = self.tabs[index]
            (self.pin_requested if tab.pinned else self.close_requested).emit(tab)
        else:
            super().mouseReleaseEvent(event)

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        index = self.tabAt(event.position().toPoint())
        if index >= 0 and event.button() == Qt.MouseButton.LeftButton:
            self.keep_requested.emit(self.tabs[index])

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        at = event.position().toPoint()
        if (
            self._press_position is not None
            and event.buttons() & Qt.MouseButton.LeftButton
            and (at - self._press_position).manhattanLength() > QApplication.startDragDistance()
        ):
            pressed, self._press_position = self._press_position, None
            self._start_drag(self.tabAt(pressed))
            return
        hover = self.tabAt(at)
        over_close = hover >= 0 and self._close_rect(hover).contains(at)
        if (hover, over_close) != (self._hovered_index, self._is_over_close):
            self._hovered_index, self._is_over_close = hover, over_close
            self.update()

    def leaveEvent(self, event: QEvent) -> None:
        self._hovered_index, self._is_over_close = -1, False
        self.update()

    def _start_drag(self, index: int) -> None:
        data = QMimeData()
        data.setData(TAB_MIME_TYPE, self.tabs[index].page_id.encode())
        drag = QDrag(self)
        drag.setMimeData(data)
        drag.setPixmap(self.grab(self.tabRect(index)))
        self.dragged.emit(self.tabs[index])
        # Runs its own event loop until the drop.
        drag.exec(Qt.DropAction.MoveAction)
        self.dragged.emit(None)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setClipRect(self.rect())  # tabs scroll: those at the edges are cut on purpose
        names = NameShortener([tab.display_title() for tab in self.tabs])
        for index in range(self.count()):
            self._paint_tab(painter, index, self.tabRect(index), names)
        if self._drop_index >= 0:
            is_last = self._drop_index == self.count()
            at = (
                self.tabRect(self._drop_index - 1).right()
                if is_last
                else self.tabRect(self._drop_index).left()
            )
            painter.fillRect(QRect(at - 1, 0, 2, HEIGHT), self._theme.color("tab.activeBorderTop"))
        self._paint_fades(painter)
        painter.end()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Paint and isinstance(watched, QToolButton):
            self._paint_arrow(watched)
            return True
        return super().eventFilter(watched, event)

    def _paint_arrow(self, arrow: QToolButton) -> None:
        color, room = self._theme.color, arrow.rect()
        painter = QPainter(arrow)
        painter.fillRect(room, color("editorGroupHeader.tabsBackground"))
        painter.fillRect(room.adjusted(0, HEIGHT - 1, 0, 0), color("editorGroupHeader.tabsBorder"))
        glyph = "chevron-left" if arrow.arrowType() == Qt.ArrowType.LeftArrow else "chevron-right"
        ink = color("icon.foreground" if arrow.isEnabled() else "disabledForeground")
        draw_icon(painter, glyph, room.toRectF().adjusted(2, 0, -2, 0), ink)
        painter.end()

    def _paint_fades(self, painter: QPainter) -> None:
        """Paint a fade over tabs that are partly scrolled out of view."""
        arrows = [arrow.x() for arrow in self._arrows if arrow.isVisible()]
        end = min(arrows, default=self.width())
        for edge, inner in ((0, _FADE_WIDTH), (end, end - _FADE_WIDTH)):
            if any(rect.left() < edge < rect.right() for rect in map(self.tabRect, range(self.count()))):
                ground = QColor(self._theme.color("editorGroupHeader.tabsBackground"))
                fade = QLinearGradient(edge, 0, inner, 0)
                fade.setColorAt(0, ground)
                ground.setAlpha(0)
                fade.setColorAt(1, ground)
                painter.fillRect(QRect(min(edge, inner), 0, _FADE_WIDTH, HEIGHT - 1), fade)

    def _paint_tab(self, painter: QPainter, index: int, rect: QRect, names: NameShortener) -> None:
        color = self._theme.color
        tab = self.tabs[index]
        active = index == self.currentIndex()
        hover = index == self._hovered_index
        if active:
            painter.fillRect(rect, color("tab.activeBackground"))
            accent = "tab.activeBorderTop" if self.is_group_focused else "tab.unfocusedActiveBorderTop"
            painter.fillRect(QRect(rect.x(), rect.y(), rect.width(), ACCENT_HEIGHT), color(accent))
        else:
            painter.fillRect(rect, color("tab.hoverBackground" if hover else "tab.inactiveBackground"))
            line = QRect(rect.x(), rect.bottom(), rect.width(), 1)
            painter.fillRect(line, color("editorGroupHeader.tabsBorder"))
        painter.fillRect(QRect(rect.right(), rect.y(), 1, rect.height()), color("tab.border"))
        icon, icon_color = tab.display_icon()
        draw_icon(
            painter, icon, QRect(rect.x() + 12, rect.center().y() - 7, 16, 16).toRectF(), color(icon_color)
        )
        font = QFont(self.font())
        font.setItalic(tab.preview)
        ink = color("tab.activeForeground" if active else "tab.inactiveForeground")
        room = rect.adjusted(36, 1, -30, 0)
        paint_text(
            painter,
            room,
            names.shorten(tab.display_title(), QFontMetricsF(font), room.width()),
            ink,
            12,
            font=font,
        )
        if active and self.hasFocus():
            painter.setPen(color("focusBorder"))
            painter.drawRect(rect.adjusted(2, 4, -4, -4))
        if active or hover or tab.pinned:
            self._paint_close(painter, index, tab.pinned)

    def _paint_close(self, painter: QPainter, index: int, pinned: bool) -> None:
        box = self._close_rect(index)
        if index == self._hovered_index and self._is_over_close:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(self._theme.color("toolbar.hoverBackground"))
            painter.drawRoundedRect(box, 4, 4)
            painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
        glyph = "pinned" if pinned else "close"
        draw_icon(painter, glyph, box.adjusted(2, 2, -2, -2).toRectF(), self._theme.color("icon.foreground"))
