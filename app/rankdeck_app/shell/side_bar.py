"""The side bar: one view per activity, built when it is first shown.

A view is registered with an `Activity`. `SideBarView` is a base class for views: collapsible sections in a
scroll area, with a fixed header and footer.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import QEvent, QPoint, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QKeyEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import (
    QAbstractButton,
    QApplication,
    QMenu,
    QScrollArea,
    QSizePolicy,
    QStackedWidget,
    QWidget,
)

from rankdeck_app.language import tr, translate
from rankdeck_app.theme import Theme, draw_icon
from rankdeck_app.widgets.layouts import column, row, text_label
from rankdeck_app.widgets.painting import CENTER, paint_text

DEFAULT_WIDTH = 300
MIN_WIDTH = 240
SECTION_HEIGHT = 26


@dataclass(frozen=True)
class Activity:
    """An icon of the activity bar and its side bar view.

    `id` is stable ("launch"); `title` is a phrase ("Run Configuration"); `icon` is a codicon. `factory`
    builds the view. An activity with a higher `priority` is nearer to the top. `keys` is the default shortcut
    of the command "view.show.<id>".
    """

    id: str
    title: str
    icon: str
    factory: Callable[[], QWidget]
    priority: int = 0
    keys: tuple[str, ...] = ()


class SectionHeader(QAbstractButton):
    """Chevron and title; a click toggles the section. `tools` is a layout for widgets after the title."""

    def __init__(self, title: str, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self.setText(title.upper())
        self.setAccessibleName(title)
        self.setCheckable(True)
        self.setChecked(True)
        self.setFixedHeight(SECTION_HEIGHT)
        self.setFont(theme.font(11, bold=True))
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        # Its tools must not make the header, and with it the form, wider than the side bar.
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        after_title = 26 + self.fontMetrics().horizontalAdvance(self.text()) + 8
        self.tools = row(on=self, margins=(after_title, 0, 12, 0), spacing=4)
        self.tools.addStretch(0)

    def sizeHint(self) -> QSize:
        return QSize(MIN_WIDTH, SECTION_HEIGHT)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        ink = self._theme.color("sideBarSectionHeader.foreground")
        chevron = "chevron-down" if self.isChecked() else "chevron-right"
        draw_icon(painter, chevron, QRectF(5, 0, 16, self.height()), ink)
        paint_text(painter, self.rect().adjusted(24, 0, 0, 0), self.text(), ink, 11, font=self.font())
        if self.hasFocus():
            painter.setPen(self._theme.color("focusBorder"))
            painter.drawRect(self.rect().adjusted(0, 0, -1, -1))
        painter.end()


class SideBarSection(QWidget):
    """A titled section of a SideBarView; `header.tools` is a layout for widgets after the title."""

    def __init__(self, title: str, body: QWidget, theme: Theme) -> None:
        super().__init__()
        self.title = title
        self.body = body
        self.header = SectionHeader(title, theme)
        column(self.header, body, on=self, margins=(0, 0, 0, 4), spacing=0)
        self.header.toggled.connect(body.setVisible)

    @property
    def is_open(self) -> bool:
        return self.header.isChecked()

    def set_open(self, is_open: bool) -> None:
        self.header.setChecked(is_open)


class FormScrollArea(QScrollArea):
    """A scrollable form whose content can expand without making the view jump."""

    def __init__(self, inside: QWidget) -> None:
        super().__init__()
        self._content = inside
        self.setWidgetResizable(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.setWidget(inside)

    def preserve_scroll(self, change: Callable[[], object]) -> None:
        """Call `change` to change the form, and keep the focused widget in place on the screen; if no widget
        of the form has the focus, keep the scroll position."""
        inside, focused = self._content, QApplication.focusWidget()
        anchor = focused if focused is not None and inside.isAncestorOf(focused) else None
        before = None if anchor is None else anchor.mapTo(inside, QPoint()).y()
        change()
        if anchor is not None and before is not None:
            self._update_layout()
            bar = self.verticalScrollBar()
            bar.setValue(bar.value() + anchor.mapTo(inside, QPoint()).y() - before)

    def scroll_to(self, widget: QWidget, rect: QRect | None = None) -> None:
        """Scroll until the widget, or only its part `rect`, is visible with a margin around it."""
        self._update_layout()
        box = widget.rect() if rect is None else rect
        box = QRect(widget.mapTo(self._content, box.topLeft()), box.size())
        # The top last, so that it is visible even if the widget is higher than the area.
        for y in (box.bottom(), box.top()):
            self.ensureVisible(0, y, 0, 40)

    def _update_layout(self) -> None:
        """Apply pending layout changes at once instead of in the next turn of the event loop."""
        # Each pass may request the layout of an outer widget.
        for _ in range(3):
            QApplication.sendPostedEvents(None, QEvent.Type.LayoutRequest)


class SideBarView(QWidget):
    """Sections in a scroll area above an optional footer.

    Sections that the user has collapsed are collapsed again after a restart.
    """

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self.sections: list[SideBarSection] = []
        inside = QWidget()
        self._section_layout = column(None, on=inside, margins=(0, 0, 0, 8), spacing=4)
        self.scroll_area = FormScrollArea(inside)
        self._layout = column((self.scroll_area, 1), on=self, spacing=0)

    def add_section(self, title: str, body: QWidget) -> SideBarSection:
        """Add a section at the end."""
        section = SideBarSection(title, body, self._theme)
        self._section_layout.insertWidget(self._section_layout.count() - 1, section)
        self.sections.append(section)
        return section

    def set_header(self, header: QWidget) -> None:
        """Set a fixed widget above the scroll area, such as the configuration's name."""
        self._layout.insertWidget(0, header)

    def set_footer(self, footer: QWidget) -> None:
        """Set a fixed widget below the scroll area, such as the estimate and the Launch button."""
        footer.setObjectName("sideBarFooter")
        footer.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self._layout.addWidget(footer)

    def save_state(self) -> dict[str, Any]:
        return {"closed": [at for at, section in enumerate(self.sections) if not section.is_open]}

    def restore_state(self, state: dict[str, Any]) -> None:
        closed = state.get("closed", [])
        for at, section in enumerate(self.sections):
            section.set_open(at not in closed)


class SideBar(QWidget):
    """The side bar with one activity's view; `current_id` is the id of that activity, '' for none."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("sideBar")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.setMinimumWidth(MIN_WIDTH)
        self.setAccessibleName(tr("Side bar"))
        self.activities: dict[str, Activity] = {}
        self._views: dict[str, QWidget] = {}
        self._states: dict[str, dict[str, Any]] = {}
        self.current_id = ""
        self._restored_id = ""
        self._title = text_label(tone="small", wrap=False)
        self._title.setFixedHeight(35)
        self._title.setContentsMargins(14, 0, 12, 0)
        self._stack = QStackedWidget()
        column(self._title, (self._stack, 1), on=self, margins=(0, 0, 1, 0), spacing=0)

    def register(self, activity: Activity) -> None:
        """Add an activity without showing its view; `show_initial` shows a view once all are added."""
        assert activity.id not in self.activities, f"activity {activity.id} is registered twice"
        self.activities[activity.id] = activity

    def show_initial(self) -> None:
        """Show the last session's activity if it is registered, or else the topmost one."""
        if self._restored_id in self.activities:
            self.show_activity(self._restored_id)
        elif self.activities:
            self.show_activity(max(self.activities.values(), key=lambda activity: activity.priority).id)

    def show_activity(self, activity_id: str) -> QWidget:
        """Bring the activity's view to the front, building it if necessary, and return it."""
        view = self.get_view(activity_id)
        self._title.setText(translate(self.activities[activity_id].title).upper())
        self._stack.setCurrentWidget(view)
        self.current_id = activity_id
        return view

    def get_view(self, activity_id: str) -> QWidget:
        """Return the activity's view, built on first use."""
        view = self._views.get(activity_id)
        if view is None:
            view = self._views[activity_id] = self.activities[activity_id].factory()
            restore = getattr(view, "restore_state", None)
            if restore is not None and activity_id in self._states:
                restore(self._states[activity_id])
            self._stack.addWidget(view)
        return view

    def save_state(self) -> dict[str, Any]:
        # Views that were not built keep their saved state.
        for activity_id, view in self._views.items():
            save = getattr(view, "save_state", None)
            if save is not None:
                self._states[activity_id] = save()
        return {"shown": self.current_id, "views": self._states}

    def restore_state(self, state: dict[str, Any]) -> None:
        """Remember the saved state; it takes effect when activities are shown and built."""
        self._restored_id = str(state.get("shown", ""))
        self._states = dict(state.get("views", {}))


# Activity bar at the left, 48 px wide: a button per activity, menu buttons at the bottom. As in VS Code, a
# click on the active button hides the side bar. Badges count what is pending in a view.

ACTIVITY_BAR_WIDTH = 48


class ActivityButton(QAbstractButton):
    """Button with a 24 px icon, and a 2 px line at the left edge while the activity's view is shown."""

    def __init__(self, icon: str, name: str, theme: Theme) -> None:
        super().__init__()
        self._icon = icon
        self._theme = theme
        self._badge = 0
        self.is_active = False
        self.setFixedSize(ACTIVITY_BAR_WIDTH, ACTIVITY_BAR_WIDTH)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setAttribute(Qt.WidgetAttribute.WA_Hover)
        self.setAccessibleName(name)
        self.setToolTip(name)

    def set_active(self, active: bool) -> None:
        self.is_active = active
        self.setAccessibleDescription(tr("shown") if active else "")
        self.update()

    def set_badge(self, count: int) -> None:
        """Show a count on the icon; 0 removes the count."""
        self._badge = count
        self.update()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self.click()
        else:
            super().keyPressEvent(event)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        lit = self.is_active or self.underMouse() or self.hasFocus()
        ink = self._theme.color("activityBar.foreground" if lit else "activityBar.inactiveForeground")
        draw_icon(painter, self._icon, QRectF(12, 12, 24, 24), ink)
        if self.is_active:
            painter.fillRect(0, 0, 2, self.height(), self._theme.color("activityBar.activeBorder"))
        if self.hasFocus():
            painter.setPen(self._theme.color("focusBorder"))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRoundedRect(QRectF(6.5, 6.5, 35, 35), 4, 4)
        if self._badge:
            self._paint_badge(painter)
        painter.end()

    def _paint_badge(self, painter: QPainter) -> None:
        text = str(self._badge) if self._badge < 100 else "99+"
        painter.setFont(self._theme.font(9, bold=True))
        width = max(16, painter.fontMetrics().horizontalAdvance(text) + 8)
        box = QRectF(ACTIVITY_BAR_WIDTH - 6 - width, 26, width, 16)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(self._theme.color("activityBarBadge.background"))
        painter.drawRoundedRect(box, 8, 8)
        paint_text(painter, box, text, self._theme.color("activityBarBadge.foreground"), 9, CENTER, bold=True)


class ActivityBar(QWidget):
    """Column with one button per activity, and menu buttons at the bottom."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self.setObjectName("activityBar")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.setFixedWidth(ACTIVITY_BAR_WIDTH)
        self.setAccessibleName(tr("Activity bar"))
        self._theme = theme
        self._buttons: dict[str, ActivityButton] = {}
        self._priorities: list[int] = []
        self._column = column(None, on=self, spacing=0)

    def add(self, activity: Activity) -> ActivityButton:
        """Add a button for an activity; the higher its priority, the nearer it is to the top."""
        button = ActivityButton(activity.icon, translate(activity.title), self._theme)
        self._buttons[activity.id] = button
        self._column.insertWidget(bisect_right(self._priorities, -activity.priority), button)
        # Negated, since bisect needs ascending order.
        insort(self._priorities, -activity.priority)
        return button

    def add_menu(self, icon: str, name: str, fill: Callable[[QMenu], None]) -> ActivityButton:
        """Add a button at the bottom that opens a menu; `fill` adds the menu's actions each time it opens."""
        button = ActivityButton(icon, name, self._theme)

        def open_menu() -> None:
            menu = QMenu(button)
            menu.aboutToHide.connect(menu.deleteLater)
            fill(menu)
            # The menu opens upwards at the right of the button.
            corner = button.mapToGlobal(QPoint(ACTIVITY_BAR_WIDTH, ACTIVITY_BAR_WIDTH))
            menu.popup(corner - QPoint(0, menu.sizeHint().height()))

        button.clicked.connect(open_menu)
        self._column.addWidget(button)
        return button

    def set_active(self, activity_id: str) -> None:
        """Mark the activity whose view is shown; '' marks none, for a hidden side bar."""
        for own_id, button in self._buttons.items():
            button.set_active(own_id == activity_id)

    def get_button(self, activity_id: str) -> ActivityButton:
        return self._buttons[activity_id]
