"""Tree of the editor's groups: a QSplitter contains groups and splitters of the other orientation.

This module handles only geometry: inserting and removing groups, and conversion to and from JSON values. A
splitter with a single child is replaced by that child, so that opening and closing groups does not make the
tree grow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QSplitter, QWidget

from rankdeck_app.shell.tab import Tab
from rankdeck_app.shell.tab_group import TabGroup, Zone


def make_splitter(orientation: Qt.Orientation, on_moved: Callable[[], object]) -> QSplitter:
    """Return a splitter with a thin handle; `on_moved` is called when the user drags it."""
    splitter = QSplitter(orientation)
    splitter.setHandleWidth(1)
    splitter.setChildrenCollapsible(False)
    splitter.splitterMoved.connect(lambda _at, _index: on_moved())
    return splitter


class SplitTree:
    """Tree of groups. Put `root` into a layout. `on_moved` is called when the user drags a handle."""

    def __init__(self, on_moved: Callable[[], object]) -> None:
        self._on_moved = on_moved
        self.root = make_splitter(Qt.Orientation.Horizontal, on_moved)

    def groups(self) -> list[TabGroup]:
        """Return the groups from left to right and top to bottom."""
        return _collect_groups(self.root)

    def insert_beside(self, group: TabGroup, zone: Zone, fresh: TabGroup) -> None:
        """Insert `fresh` on the `zone` side of `group`; the two share the space that `group` had."""
        sideways = zone in ("left", "right")
        orientation = Qt.Orientation.Horizontal if sideways else Qt.Orientation.Vertical
        after = int(zone in ("right", "bottom"))
        parent = group.parentWidget()
        assert isinstance(parent, QSplitter)
        # With a single child, either orientation is possible.
        if parent.count() == 1:
            parent.setOrientation(orientation)
        at, sizes = parent.indexOf(group), parent.sizes()
        if parent.orientation() == orientation:
            parent.insertWidget(at + after, fresh)
            half = sizes[at] // 2
            sizes[at : at + 1] = [half, sizes[at] - half]
            parent.setSizes(sizes)
        else:
            nested = make_splitter(orientation, self._on_moved)
            parent.insertWidget(at, nested)
            nested.addWidget(group)
            nested.insertWidget(after, fresh)
            parent.setSizes(sizes)
            # Relative sizes: two equal halves.
            nested.setSizes([500, 500])

    def remove(self, group: TabGroup) -> None:
        """Remove a group. A splitter that then has a single child is replaced by that child."""
        parent = group.parentWidget()
        group.hide()
        # It leaves the splitter now, so that count() below is right.
        group.setParent(None)
        while isinstance(parent, QSplitter) and parent is not self.root and parent.count() == 1:
            above, only = parent.parentWidget(), parent.widget(0)
            assert isinstance(above, QSplitter) and only is not None
            sizes = above.sizes()
            above.insertWidget(above.indexOf(parent), only)
            parent.hide()
            parent.setParent(None)
            parent.deleteLater()
            # Inserting and removing children has changed the sizes.
            above.setSizes(sizes)
            parent = above

    def save_state(self) -> dict[str, Any]:
        """Return the tree as JSON values: orientations, sizes and children, down to the tabs of each
        group."""
        return _save_node(self.root)

    def restore(
        self,
        splitter: QSplitter,
        saved: dict[str, Any],
        new_group: Callable[[], TabGroup],
        tabs_from: Callable[[list[dict[str, Any]]], list[Tab]],
    ) -> None:
        """Rebuild the saved tree inside `splitter`; groups without a restorable tab are left out."""
        vertical = saved.get("orientation") == "vertical"
        splitter.setOrientation(Qt.Orientation.Vertical if vertical else Qt.Orientation.Horizontal)
        sizes: list[int] = []
        for child, size in zip(saved.get("children", []), saved.get("sizes", []), strict=False):
            if "children" in child:
                nested = make_splitter(Qt.Orientation.Horizontal, self._on_moved)
                self.restore(nested, child, new_group, tabs_from)
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


def _child_widgets(splitter: QSplitter) -> list[QWidget | None]:
    return [splitter.widget(index) for index in range(splitter.count())]


def _collect_groups(below: QWidget | None) -> list[TabGroup]:
    if isinstance(below, TabGroup):
        return [below]
    children = _child_widgets(below) if isinstance(below, QSplitter) else []
    return [group for child in children for group in _collect_groups(child)]


def _save_node(below: QWidget | None) -> dict[str, Any]:
    if isinstance(below, TabGroup):
        current = below.current
        tabs = [tab.save_state() for tab in below.tabs]
        return {"tabs": tabs, "current": current.page_id if current else ""}
    assert isinstance(below, QSplitter)
    vertical = below.orientation() == Qt.Orientation.Vertical
    return {
        "orientation": "vertical" if vertical else "horizontal",
        "sizes": below.sizes(),
        "children": [_save_node(child) for child in _child_widgets(below)],
    }
