"""Base class of editor pages. Views subclass `Page`; the window reads their title, path, actions and state.

    class RunPage(Page):
        def __init__(self, page_id, ...):
            super().__init__(page_id, title="gpt-dp · DP", icon="pulse")

A page id is "<kind>:<what>" and stable: it decides which tab gets the focus when an open page is opened
again, and which factory rebuilds the tab after a restart (EditorArea.register_page_kind).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QWidget


class PageUnavailableError(Exception):
    """Raised by a factory that cannot build its page, such as the page of a deleted run. The tab shows the
    error's message instead of the page."""


@dataclass(frozen=True)
class PageAction:
    """A button at the right of the tabs. `command` is a command id or a function."""

    icon: str
    tooltip: str
    command: str | Callable[[], object]


class Page(QWidget):
    """One page of the editor. Subclasses override its defaults, and emit `actions_changed` when `tab_actions`
    changes."""

    title_changed = Signal()
    actions_changed = Signal()

    can_split = True
    """Whether a second copy of the page can be opened next to the first (Split Right)."""

    breadcrumb_command = ""
    """Command that runs when a breadcrumb other than the last is clicked; it shows the view that lists the
    page."""

    def __init__(self, page_id: str, title: str = "", icon: str = "file") -> None:
        super().__init__()
        self.page_id = page_id
        self.title = title
        self.icon = icon
        self.icon_color = "icon.foreground"
        self.setAccessibleName(title)

    @property
    def kind(self) -> str:
        """Part of the id before the colon."""
        return self.page_id.split(":", 1)[0]

    def set_title(self, title: str, icon: str | None = None, icon_color: str | None = None) -> None:
        """Set the title of the tab, and optionally its icon and the colour id of the icon."""
        self.title = title
        self.icon = icon or self.icon
        self.icon_color = icon_color or self.icon_color
        self.setAccessibleName(title)
        self.title_changed.emit()

    def tooltip(self) -> str:
        """Return the tooltip of the tab, usually the full path."""
        return self.title

    def breadcrumbs(self) -> list[str]:
        """Return the path to the page, outermost part first; an empty list hides the breadcrumbs.

        Subclasses emit `title_changed` when the path changes.
        """
        return []

    def tab_actions(self) -> list[PageAction]:
        """Return the buttons right of the tabs; subclasses emit `actions_changed` when the buttons change."""
        return []

    def save_state(self) -> dict[str, Any]:
        """Return what is needed to restore the page after a restart, as JSON values."""
        return {}

    def restore_state(self, state: dict[str, Any]) -> None:
        """Restore the state that `save_state` returned; called once, after the factory has built the page."""
