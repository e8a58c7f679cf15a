"""What an editor tab holds. A view subclasses `Page`; the frame asks it for its title, path, actions and
state.

    class RunPage(Page):
        def __init__(self, page_id, ...):
            super().__init__(page_id, title="gpt-dp · DP", icon="pulse")

A page's id is "<kind>:<what>" and stable: it decides which tab is focused when something is opened twice, and
which factory rebuilds the tab after a restart (EditorArea.register_page_kind).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QWidget


class PageUnavailableError(Exception):
    """A factory cannot build its page (the run's folder is gone). The message stands in the tab instead."""


@dataclass(frozen=True)
class PageAction:
    """A button at the right of the tabs. `command` is a command's id, or is called."""

    icon: str
    tooltip: str
    command: str | Callable[[], object]


class Page(QWidget):
    """One tab. Override what differs; emit `title_changed` or `actions_changed` by the setters below."""

    title_changed = Signal()
    actions_changed = Signal()

    can_split = True
    """Whether a second copy of the page may be opened beside the first (Ctrl+\\)."""

    breadcrumb_command = ""
    """What a click on its breadcrumbs, but for the last, runs: it shows where the page is listed."""

    def __init__(self, page_id: str, title: str = "", icon: str = "file") -> None:
        super().__init__()
        self.page_id = page_id
        self.title = title
        self.icon = icon
        self.icon_color = "icon.foreground"
        self.setAccessibleName(title)

    @property
    def kind(self) -> str:
        """The part of the id before the colon."""
        return self.page_id.split(":", 1)[0]

    def set_title(self, title: str, icon: str | None = None, icon_color: str | None = None) -> None:
        """New text for the tab, and if given a new icon and the colour id that it is drawn in."""
        self.title = title
        self.icon = icon or self.icon
        self.icon_color = icon_color or self.icon_color
        self.setAccessibleName(title)
        self.title_changed.emit()

    def tooltip(self) -> str:
        """What the tab's tooltip says: the full path, as a rule."""
        return self.title

    def breadcrumbs(self) -> list[str]:
        """Where the page belongs, from the outside in; empty hides the row.

        Emit title_changed when it changes.
        """
        return []

    def tab_actions(self) -> list[PageAction]:
        """Buttons beside the tabs while this page is active. Emit actions_changed when they change."""
        return []

    def save_state(self) -> dict[str, Any]:
        """What is needed to look the same after a restart, as JSON values."""
        return {}

    def restore_state(self, state: dict[str, Any]) -> None:
        """Called once, after the factory, with what `save_state` returned."""
