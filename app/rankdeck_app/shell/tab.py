"""One tab of the editor: known by its page's id, with the page itself built when the tab is first shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel

from rankdeck_app.shell.page import Page, PageUnavailable
from rankdeck_app.theme.colors import DARK

PageFactory = Callable[[str], Page]


class UnavailablePage(Page):
    """Says in the tab why its page cannot be shown."""

    can_split = False

    def __init__(self, page_id: str, title: str, reason: str) -> None:
        super().__init__(page_id, title=title, icon="warning")
        label = QLabel(reason, self)
        label.setProperty("tone", "dim")
        label.setWordWrap(True)
        label.setAlignment(Qt.AlignmentFlag.AlignCenter)
        label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._label = label

    def resizeEvent(self, event: object) -> None:
        self._label.setGeometry(self.rect().adjusted(40, 40, -40, -40))


@dataclass(eq=False)
class Tab:
    """`state` is what the page saved last time; title, icon and its colour stand in until the page exists.
    The next thing that is looked at takes the place of a `preview`, whose title is slanted.
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
    def from_saved(cls, record: dict[str, Any], factory: PageFactory) -> Tab:
        """The tab that `saved` wrote, its page not built yet."""
        return cls(
            page_id=record["id"],
            factory=factory,
            title=record.get("title", ""),
            icon=record.get("icon", "file"),
            icon_color=color if (color := record.get("icon_color")) in DARK else "icon.foreground",
            pinned=bool(record.get("pinned")),
            preview=bool(record.get("preview")),
            state=record.get("state") or {},
        )

    def build(self) -> Page:
        """The page, made on first use. Never raises for what is gone: then the page says so."""
        if self.page is None:
            try:
                self.page = self.factory(self.page_id)
                if self.state:
                    self.page.restore_state(self.state)
            except PageUnavailable as error:
                self.page = UnavailablePage(self.page_id, self.title or self.page_id, str(error))
        return self.page

    @property
    def can_double(self) -> bool:
        """Whether its page may be shown a second time; of one that is not built nobody knows."""
        return self.page is not None and self.page.can_split

    def shown_title(self) -> str:
        return self.page.title if self.page is not None else self.title or self.page_id

    def shown_icon(self) -> tuple[str, str]:
        """Icon name and colour id."""
        page = self.page
        return (page.icon, page.icon_color) if page is not None else (self.icon, self.icon_color)

    def saved(self) -> dict[str, Any]:
        """The tab as JSON values."""
        if self.page is not None and not isinstance(self.page, UnavailablePage):
            self.state = self.page.save_state()
        return {
            "id": self.page_id,
            "title": self.shown_title(),
            "icon": self.shown_icon()[0],
            "icon_color": self.shown_icon()[1],
            "pinned": self.pinned,
            "preview": self.preview,
            "state": self.state,
        }
