"""The tree of the editor's groups: a QSplitter holds groups and splitters of the other orientation.

Only geometry here: where a new group goes, what happens to the tree when one leaves, and the tree to JSON
values and back. A splitter that is left with one child gives it to its parent, so that the tree never grows
by opening and closing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QSplitter

from rankdeck_app.shell.tab import Tab
from rankdeck_app.shell.tab_group import TabGroup, Zone


class SplitTree:
    """`root` is the splitter to put into a layout. `on_moved` is called when a person drags a handle."""

    def __init__(self, on_moved: Callable[[], object]) -> None:
        self._on_moved = on_moved
        self.root = self.new_splitter(Qt.Orientation.Horizontal)

    def new_splitter(self, orientation: Qt.Orientation) -> QSplitter:
        splitter = QSplitter(orientation)
        splitter.setHandleWidth(1)
        splitter.setChildrenCollapsible(False)
        splitter.splitterMoved.connect(lambda _at, _index: self._on_moved())
        return splitter

    def groups(self) -> list[TabGroup]:
        """Left to right, top to bottom."""
        return _leaves(self.root)

    def insert_beside(self, group: TabGroup, zone: Zone, fresh: TabGroup) -> None:
        """Put `fresh` on that side of `group`; the two share the room that `group` had."""
        sideways = zone in ("left", "right")
        orientation = Qt.Orientation.Horizontal if sideways else Qt.Orientation.Vertical
        after = int(zone in ("right", "bottom"))
        parent = group.parentWidget()
        assert isinstance(parent, QSplitter)
        if parent.count() == 1:
            parent.setOrientation(orientation)
        at, sizes = parent.indexOf(group), parent.sizes()
        if parent.orientation() == orientation:
            parent.insertWidget(at + after, fresh)
            half = sizes[at] // 2
            sizes[at : at + 1] = [half, sizes[at] - half]
            parent.setSizes(sizes)
        else:
            nested = self.new_splitter(orientation)
            parent.insertWidget(at, nested)
            nested.addWidget(group)
            nested.insertWidget(after, fresh)
            parent.setSizes(sizes)
            nested.setSizes([500, 500])

    def remove(self, group: TabGroup) -> None:
        """Take a group out and fold splitters that hold a single child."""
        parent = group.parentWidget()
        group.hide()
        group.setParent(None)
        while isinstance(parent, QSplitter) and parent is not self.root and parent.count() == 1:
            above, only = parent.parentWidget(), parent.widget(0)
            assert isinstance(above, QSplitter) and only is not None
            sizes = above.sizes()
            above.insertWidget(above.indexOf(parent), only)
            parent.hide()
            parent.setParent(None)
            parent.deleteLater()
            above.setSizes(sizes)
            parent = above

    def saved(self) -> dict[str, Any]:
        """Orientation, sizes and children, down to each group's tabs."""
        return _saved(self.root)

    def restore(
        self,
        saved: dict[str, Any],
        new_group: Callable[[], TabGroup],
        tabs_from: Callable[[list[dict[str, Any]]], list[Tab]],
    ) -> None:
        """Rebuild what `saved` says below the root; groups of which no tab is left are left out."""
        self._restore_into(self.root, saved, new_group, tabs_from)

    def _restore_into(
        self,
        splitter: QSplitter,
        saved: dict[str, Any],
        new_group: Callable[[], TabGroup],
        tabs_from: Callable[[list[dict[str, Any]]], list[Tab]],
    ) -> None:
        vertical = saved.get("orientation") == "vertical"
        splitter.setOrientation(Qt.Orientation.Vertical if vertical else Qt.Orientation.Horizontal)
        sizes: list[int] = []
        for child, size in zip(saved.get("children", []), saved.get("sizes", []), strict=False):
            if "children" in child:
                nested = self.new_splitter(Qt.Orientation.Horizontal)
                self._restore_into(nested, child, new_group, tabs_from)
                if nested.count():
                    splitter.addWidget(nested)
                    sizes.append(size)
            elif tabs := tabs_from(child.get("tabs", [])):
                group = new_group()
                splitter.addWidget(group)
                sizes.append(size)
                for tab in tabs:
                    group.insert(tab, len(group.tabs), show=False)
                group.show_tab(next((tab for tab in tabs if tab.page_id == child.get("current")), tabs[0]))
        if sizes and len(sizes) == splitter.count():
            splitter.setSizes(sizes)


def _leaves(splitter: QSplitter) -> list[TabGroup]:
    leaves: list[TabGroup] = []
    for index in range(splitter.count()):
        child = splitter.widget(index)
        if isinstance(child, TabGroup):
            leaves.append(child)
        elif isinstance(child, QSplitter):
            leaves += _leaves(child)
    return leaves


def _saved(splitter: QSplitter) -> dict[str, Any]:
    children: list[dict[str, Any]] = []
    for index in range(splitter.count()):
        child = splitter.widget(index)
        if isinstance(child, TabGroup):
            current = child.current
            tabs = [tab.saved() for tab in child.tabs]
            children.append({"tabs": tabs, "current": current.page_id if current else ""})
        elif isinstance(child, QSplitter):
            children.append(_saved(child))
    vertical = splitter.orientation() == Qt.Orientation.Vertical
    return {
        "orientation": "vertical" if vertical else "horizontal",
        "sizes": splitter.sizes(),
        "children": children,
    }
