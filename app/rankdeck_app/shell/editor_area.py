"""The editor area: a tree of splitters whose leaves are groups of tabs.

Views only need `open`. Pages of a registered kind are rebuilt after a restart, can be reopened after closing,
and can be shown twice side by side. In the tree, a QSplitter contains groups and splitters of the other
orientation; a splitter with a single child is replaced by that child.
"""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import QPoint, Qt, QTimer, Signal
from PySide6.QtWidgets import QApplication, QStackedLayout, QWidget

from rankdeck_app.language import tr
from rankdeck_app.shell.page import Page
from rankdeck_app.shell.services import Services
from rankdeck_app.shell.split_tree import SplitTree
from rankdeck_app.shell.tab import PageFactory, PageKinds, Tab, make_tab_menu
from rankdeck_app.shell.tab_group import TabGroup, Zone
from rankdeck_app.shell.watermark import Watermark

MAX_CLOSED_TABS = 30


class EditorArea(QWidget):
    """The editor area. `active_page_changed` carries the page or None; `layout_changed` requests a save."""

    active_page_changed = Signal(object)
    layout_changed = Signal()

    def __init__(self, services: Services) -> None:
        super().__init__()
        self.setObjectName("editorArea")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.setAccessibleName(tr("Editor"))
        self._services = services
        self._page_kinds = PageKinds(services.context)
        self._closed_tabs: list[dict[str, Any]] = []
        self._dragged_tab: Tab | None = None
        self._last_active_page: Page | None = None
        self._tree = SplitTree(self.layout_changed.emit)
        self._watermark = Watermark(services)
        self._layers = QStackedLayout(self)
        self._layers.addWidget(self._watermark)
        self._layers.addWidget(self._tree.root)
        self._active_group = self._make_group()
        self._tree.root.addWidget(self._active_group)
        app = QApplication.instance()
        assert isinstance(app, QApplication)
        app.focusChanged.connect(self._on_focus_changed)
        self._refresh()

    # -- for views --

    def register_page_kind(self, prefix: str, factory: PageFactory, title: str = "") -> None:
        """Register `factory(page_id)`, which rebuilds a page with an id "<prefix>:..." when the page is
        restored at start, reopened or split.

        The factory can raise PageUnavailableError. A `title` replaces the saved title on restore.
        """
        self._page_kinds.register(prefix, factory, title)

    def open(
        self,
        page_id: str,
        factory: PageFactory | None = None,
        *,
        focus: bool = True,
        preview: bool = False,
        beside: Page | None = None,
    ) -> Page:
        """Show the page with that id; build it if necessary, with `factory` or the factory of its kind.

        If `focus` is False, the keyboard focus does not change. A `preview` replaces the previous preview,
        and becomes a normal tab once it is opened without `preview`. If `beside` is set, the page opens in a
        group other than that of `beside`. A page that is open only in the group of `beside` is shown a second
        time, or moved if it cannot be shown twice.
        """
        groups = None if beside is None else self._groups_beside(beside)
        existing = self._find(page_id, groups)
        if existing is not None:
            group, tab = existing
            tab.preview = tab.preview and preview
        else:
            group = groups[0] if groups else self._active_group
            factory = factory or self._page_kinds.get_factory(page_id)
            tab = self._detach_tab(page_id) or Tab(page_id, factory, preview=preview)
            tab.build()
            group.insert_replacing_preview(tab)
        group.show_tab(tab)
        group.bar.refresh(tab)
        if focus:
            self._activate(group)
            group.focus_page()
        elif beside is None:
            self._activate(group)
        self._refresh()
        return tab.build()

    def _groups_beside(self, page: Page) -> list[TabGroup]:
        """Return the groups other than that of `page`, the next one first; if there are none, create one."""
        location, groups = self._find(page.page_id), self.groups()
        at = groups.index(location[0] if location is not None else self._active_group)
        return groups[at + 1 :] + groups[:at] or [self._split(groups[at], "right")]

    def _detach_tab(self, page_id: str) -> Tab | None:
        """Remove and return the tab of an open page that cannot be shown twice; None for other pages."""
        location = self._find(page_id)
        if location is None or location[1].can_split:
            return None
        location[0].remove(location[1])
        return location[1]

    def keep(self) -> None:
        """Make the active preview a normal tab."""
        if self._active_group.current is not None:
            self._active_group.keep(self._active_group.current)

    def page(self, page_id: str) -> Page | None:
        """Return the built page with that id, or None."""
        existing = self._find(page_id)
        return existing[1].page if existing else None

    def pages(self) -> list[Page]:
        """Return every built page, group by group."""
        return [tab.page for group in self.groups() for tab in group.tabs if tab.page is not None]

    def unbuilt_page_ids(self) -> list[str]:
        """Return the ids of tabs whose page has not been shown yet."""
        return [tab.page_id for group in self.groups() for tab in group.tabs if tab.page is None]

    def describe_tab(self, page_id: str, title: str, icon_color: str) -> None:
        """Set the title and icon colour that a tab shows until its page is built."""
        location = self._find(page_id)
        if location is not None and location[1].page is None:
            location[1].title, location[1].icon_color = title, icon_color
            location[0].bar.refresh(location[1])

    def active_page(self) -> Page | None:
        tab = self._active_group.current
        return tab.page if tab else None

    def close_page(self, page_id: str | None = None) -> None:
        """Close the page with this id, if it is open; without an id, close the active page."""
        current = self._active_group.current
        existing = self._find(page_id) if page_id is not None else current and (self._active_group, current)
        if existing:
            self._close_tab(*existing)

    # -- commands of the frame --

    def groups(self) -> list[TabGroup]:
        """Return the groups from left to right and top to bottom."""
        return self._tree.groups()

    @property
    def active_group(self) -> TabGroup:
        return self._active_group

    def close_tabs(self, which: str) -> None:
        """Close tabs of the active group: "all", unpinned "others", or unpinned tabs to the "right"."""
        group, current = self._active_group, self._active_group.current
        if which == "all":
            self._close_group(group)
        elif current is not None:
            for tab in group.tabs[group.tabs.index(current) + 1 :] if which == "right" else group.tabs[:]:
                if tab is not current and not tab.pinned:
                    self._close_tab(group, tab)

    def close_all(self) -> None:
        """Close every tab of every group."""
        for group in self.groups():
            self._close_group(group)

    def _close_group(self, group: TabGroup) -> None:
        """Close all tabs of a group, the current tab last, so that no page is built just to be closed."""
        for tab in sorted(group.tabs, key=lambda tab: tab is group.current):
            self._close_tab(group, tab)

    def reopen_closed(self) -> None:
        """Reopen the most recently closed tab whose page kind is registered."""
        while self._closed_tabs:
            tabs = self._page_kinds.restore_tabs([self._closed_tabs.pop()])
            if tabs and self._find(tabs[0].page_id) is None:
                self._active_group.insert(tabs[0])
                self._active_group.focus_page()
                break
        self._refresh()

    def split(self, zone: Zone) -> None:
        """Show the active page a second time in a new group; a page that cannot be shown twice is moved."""
        group, tab = self._active_group, self._active_group.current
        if tab is None or (not tab.can_split and len(group.tabs) == 1):
            return
        fresh = self._split(group, zone)
        if tab.can_split:
            tab = Tab.from_state(tab.save_state() | {"pinned": False, "preview": False}, tab.factory)
        else:
            group.remove(tab)
        fresh.insert(tab)
        self._activate(fresh)
        fresh.focus_page()
        self._refresh()

    def toggle_pin(self) -> None:
        current = self._active_group.current
        if current is not None:
            self._toggle_pin(self._active_group, current)

    def cycle_tabs(self, step: int) -> None:
        tabs, current = self._active_group.tabs, self._active_group.current
        if current is not None:
            self._active_group.show_tab(tabs[(tabs.index(current) + step) % len(tabs)])
            self._active_group.focus_page()

    def show_tab(self, tab: Tab) -> None:
        """Bring a tab of any group to the front and focus it."""
        for group in self.groups():
            if tab in group.tabs:
                group.show_tab(tab)
                self._activate(group)
                group.focus_page()
                self._refresh()

    def move_tab(self, step: int) -> None:
        """Move the active tab left or right within its group."""
        group, tab = self._active_group, self._active_group.current
        if tab is not None:
            at = group.tabs.index(tab) + step
            if 0 <= at < len(group.tabs) and group.tabs[at].pinned == tab.pinned:
                self._move(tab, group, group, at)

    def focus_group(self, index: int) -> None:
        groups = self.groups()
        if index < len(groups):
            self._activate(groups[index])
            groups[index].focus_page()

    def cycle_groups(self, step: int) -> None:
        groups = self.groups()
        self.focus_group((groups.index(self._active_group) + step) % len(groups))

    # -- restart --

    def save_state(self) -> dict[str, Any]:
        groups = self.groups()
        return {
            "tree": self._tree.save_state(),
            "active": groups.index(self._active_group),
            "closed": self._closed_tabs[-MAX_CLOSED_TABS:],
        }

    def restore_state(self, state: dict[str, Any]) -> None:
        """Restore groups and tabs; tabs of unknown kinds are left out.

        Pages are built when they are first shown.
        """
        self._closed_tabs = [record for record in state.get("closed", []) if isinstance(record, dict)]
        tree = state.get("tree")
        if isinstance(tree, dict) and not any(group.tabs for group in self.groups()):
            empty = self._active_group
            self._tree.restore(self._tree.root, tree, self._make_group, self._page_kinds.restore_tabs)
            if len(self.groups()) > 1:
                self._remove_group(empty)
            groups = self.groups()
            active = state.get("active", 0)
            self._activate(groups[active] if isinstance(active, int) and active < len(groups) else groups[0])
        self._refresh()

    # -- groups and the tree --

    def _find(self, page_id: str, groups: list[TabGroup] | None = None) -> tuple[TabGroup, Tab] | None:
        for group in groups or [self._active_group, *self.groups()]:
            for tab in group.tabs:
                if tab.page_id == page_id:
                    return group, tab
        return None

    def _make_group(self) -> TabGroup:
        group = TabGroup(self._services)
        group.current_changed.connect(self._refresh)
        group.bar.close_requested.connect(lambda tab: self._close_tab(group, tab))
        group.bar.pin_requested.connect(lambda tab: self._toggle_pin(group, tab))
        group.bar.menu_requested.connect(lambda tab, at: self._open_menu(group, tab, at))
        group.bar.dragged.connect(self._set_dragged)
        group.dropped.connect(lambda zone, index: self._on_dropped(group, zone, index))
        return group

    def _split(self, group: TabGroup, zone: Zone) -> TabGroup:
        """Insert an empty group on the `zone` side of `group` and return it."""
        fresh = self._make_group()
        self._tree.insert_beside(group, zone, fresh)
        return fresh

    def _remove_group(self, group: TabGroup) -> None:
        groups = self.groups()
        if len(groups) == 1:
            return
        self._tree.remove(group)
        group.deleteLater()
        if group is self._active_group:
            rest = self.groups()
            self._activate(rest[min(groups.index(group), len(rest) - 1)])

    def _activate(self, group: TabGroup) -> None:
        self._active_group = group
        for other in self.groups():
            other.set_focused(other is group)

    def _on_focus_changed(self, _old: QWidget | None, new: QWidget | None) -> None:
        widget = new
        while widget is not None and not isinstance(widget, TabGroup):
            widget = widget.parentWidget()
        if isinstance(widget, TabGroup) and widget is not self._active_group and widget in self.groups():
            self._activate(widget)
            self._refresh()

    # -- tabs --

    def _close_tab(self, group: TabGroup, tab: Tab) -> None:
        self._closed_tabs.append(tab.save_state())
        del self._closed_tabs[:-MAX_CLOSED_TABS]
        had_focus = group.isAncestorOf(QApplication.focusWidget() or self)
        group.remove(tab)
        if tab.page is not None:
            tab.page.deleteLater()
        if not group.tabs:
            self._remove_group(group)
        # Do not take the focus from another part of the window.
        if had_focus:
            self._active_group.focus_page()
        self._refresh()

    def _toggle_pin(self, group: TabGroup, tab: Tab) -> None:
        group.remove(tab)
        tab.pinned, tab.preview = not tab.pinned, False
        group.insert(tab, sum(other.pinned for other in group.tabs))
        self._refresh()

    def _set_dragged(self, tab: Tab | None) -> None:
        self._dragged_tab = tab

    def _on_dropped(self, target: TabGroup, zone: Zone, index: int) -> None:
        tab = self._dragged_tab
        source = next((group for group in self.groups() if tab in group.tabs), None)
        if tab is not None and source is not None:
            # The drag still runs inside the source's mouse event, which the source's group must outlive.
            QTimer.singleShot(0, self, lambda: self._move_to_zone(tab, source, target, zone, index))

    def _move_to_zone(self, tab: Tab, source: TabGroup, target: TabGroup, zone: Zone, index: int) -> None:
        if tab not in source.tabs or (source is target and zone != "center" and len(source.tabs) == 1):
            return
        if zone != "center":
            target = self._split(target, zone)
        elif source is target and index < 0:
            return
        self._move(tab, source, target, index)

    def _move(self, tab: Tab, source: TabGroup, target: TabGroup, index: int) -> None:
        # Removing the tab shifts the indices after it.
        if source is target and index > source.tabs.index(tab) + 1:
            index -= 1
        tab.preview = False
        source.remove(tab)
        target.insert_moved(tab, index)
        if not source.tabs:
            self._remove_group(source)
        self._activate(target)
        target.focus_page()
        self._refresh()

    def _open_menu(self, group: TabGroup, tab: Tab, at: QPoint) -> None:
        group.show_tab(tab)
        self._activate(group)
        self._refresh()
        make_tab_menu(self._services, self).popup(at)

    def _refresh(self) -> None:
        """Update the context and the watermark, and emit the signals of the editor area."""
        page = self.active_page()
        tab = self._active_group.current
        self._layers.setCurrentWidget(
            self._tree.root if any(g.tabs for g in self.groups()) else self._watermark
        )
        self._services.context.update(
            {
                "editorOpen": tab is not None,
                "activePage": page.kind if page else "",
                "activePageId": page.page_id if page else "",
                "previewOpen": tab is not None and tab.preview,
                "severalTabs": len(self._active_group.tabs) > 1,
                "severalGroups": len(self.groups()) > 1,
                "closedTabs": bool(self._closed_tabs),
            }
        )
        if page is not self._last_active_page:
            self._last_active_page = page
            self.active_page_changed.emit(page)
        self.layout_changed.emit()
