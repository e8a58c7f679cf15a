"""A tab of the editor, identified by its page id; its page is built when the tab is first shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QMenu, QWidget

from rankdeck_app.commands.table import Context
from rankdeck_app.shell.page import Page, PageUnavailableError
from rankdeck_app.shell.services import Services
from rankdeck_app.theme.colors import DARK
from rankdeck_app.widgets.layouts import text_label

PageFactory = Callable[[str], Page]


class UnavailablePage(Page):
    """Page that explains why the real page cannot be shown."""

    can_split = False

    def __init__(self, page_id: str, title: str, reason: str) -> None:
        super().__init__(page_id, title=title, icon="warning")
        self._label = text_label(reason, "dim", selectable=True)
        self._label.setParent(self)
        self._label.setAlignment(Qt.AlignmentFlag.AlignCenter)

    def resizeEvent(self, event: object) -> None:
        self._label.setGeometry(self.rect().adjusted(40, 40, -40, -40))


@dataclass(eq=False)
class Tab:
    """A tab of the editor.

    `state` is the saved state of the page; `title` and `icon` are those shown before the page is built. A tab
    whose `preview` is True has an italic title and is replaced by the next preview that is opened.
    """

    page_id: str
    factory: PageFactory
    title: str = ""
    icon: str = "file"
    icon_color: str = "icon.foreground"
    pinned: bool = False
    preview: bool = False
    state: dict[str, Any] = field(default_factory=dict)
    page: Page | None = None

    @classmethod
    def from_state(cls, record: dict[str, Any], factory: PageFactory) -> Tab:
        """Return a tab restored from the values that `save_state` returned; its page is not built yet."""
        return cls(
            page_id=record["id"],
            factory=factory,
            title=record.get("title", ""),
            icon=record.get("icon", "file"),
            # A colour id saved by another version may be unknown.
            icon_color=color if (color := record.get("icon_color")) in DARK else "icon.foreground",
            pinned=bool(record.get("pinned")),
            preview=bool(record.get("preview")),
            state=record.get("state") or {},
        )

    def build(self) -> Page:
        """Return the page, built on first use. If the page is unavailable, return a page that explains
        why."""
        if self.page is None:
            try:
                self.page = self.factory(self.page_id)
                if self.state:
                    self.page.restore_state(self.state)
            except PageUnavailableError as error:
                self.page = UnavailablePage(self.page_id, self.title or self.page_id, str(error))
        return self.page

    @property
    def can_split(self) -> bool:
        """Whether a second tab can show the page at the same time; False until the page is built."""
        return self.page is not None and self.page.can_split

    def display_title(self) -> str:
        return self.page.title if self.page is not None else self.title or self.page_id

    def display_icon(self) -> tuple[str, str]:
        """Return the icon's name and colour id."""
        page = self.page
        return (page.icon, page.icon_color) if page is not None else (self.icon, self.icon_color)

    def save_state(self) -> dict[str, Any]:
        """Return the tab as JSON values."""
        # Keep the saved state of a page that is only unavailable now.
        if self.page is not None and not isinstance(self.page, UnavailablePage):
            self.state = self.page.save_state()
        return {
            "id": self.page_id,
            "title": self.display_title(),
            "icon": self.display_icon()[0],
            "icon_color": self.display_icon()[1],
            "pinned": self.pinned,
            "preview": self.preview,
            "state": self.state,
        }


# Page kinds and their factories: "run:/path" is the id of a page of kind "run".


class PageKinds:
    """Registered page kinds. Registering a kind sets the context fact "pageKind.<prefix>"."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._kinds: dict[str, tuple[PageFactory, str]] = {}

    def register(self, prefix: str, factory: PageFactory, title: str = "") -> None:
        assert prefix not in self._kinds, f"page kind {prefix} is registered twice"
        self._kinds[prefix] = factory, title
        self._context.set(f"pageKind.{prefix}", True)

    def get_factory(self, page_id: str) -> PageFactory:
        kind = self._find(page_id)
        assert kind is not None, f"no factory for {page_id}: pass one or register its kind"
        return kind[0]

    def restore_tabs(self, records: list[dict[str, Any]]) -> list[Tab]:
        """Return the saved tabs of known kinds. If a kind has a title, its tabs get that title, because the
        saved title may be in another language."""
        tabs = list[Tab]()
        for record in records:
            if (kind := self._find(record.get("id", ""))) is not None:
                factory, title = kind
                tabs.append(Tab.from_state(record | {"title": title} if title else record, factory))
        return tabs

    def _find(self, page_id: str) -> tuple[PageFactory, str] | None:
        return self._kinds.get(page_id.split(":", 1)[0])


# Context menu of a tab: commands of the frame with their shortcuts.

_MENU_GROUPS = "close closeOthers closeRight closeAll", "keep togglePin", "splitRight splitDown"


def make_tab_menu(services: Services, parent: QWidget) -> QMenu:
    """Return the context menu of the active tab; it deletes itself when it is hidden."""
    menu = QMenu(parent)
    menu.aboutToHide.connect(menu.deleteLater)
    for row in _MENU_GROUPS:
        for command_id in (f"editor.{name}" for name in row.split()):
            if services.commands.is_enabled(command_id):
                label = services.commands[command_id].label
                keys = services.keymap.text_for(command_id)
                menu.addAction(f"{label}\t{keys}", partial(services.commands.run, command_id))
        menu.addSeparator()
    return menu
