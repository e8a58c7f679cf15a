"""Small pages and parts that stand in for views in the frame's tests."""

from __future__ import annotations

from typing import Any

from PySide6.QtWidgets import QLineEdit, QVBoxLayout

from rankdeck_app.shell.keys_page import KeysPage
from rankdeck_app.shell.notifications_page import NotificationsPage
from rankdeck_app.shell.page import Page, PageAction, PageUnavailableError
from rankdeck_app.shell.window import MainWindow


class NotePage(Page):
    """A page with a text field whose text is its state. Ids "note:gone..." cannot be built."""

    def __init__(self, page_id: str) -> None:
        if page_id.startswith("note:gone"):
            raise PageUnavailableError(f"{page_id} is gone. Open another one.")
        super().__init__(page_id, title=page_id.split(":")[1].title(), icon="note")
        self.text_field = QLineEdit()
        QVBoxLayout(self).addWidget(self.text_field)
        self.setFocusProxy(self.text_field)
        self.run_actions: list[str] = []

    def breadcrumbs(self) -> list[str]:
        return ["notes", self.title]

    def tab_actions(self) -> list[PageAction]:
        return [PageAction("save", "Save Note", lambda: self.run_actions.append("save"))]

    def save_state(self) -> dict[str, Any]:
        return {"text": self.text_field.text()}

    def restore_state(self, state: dict[str, Any]) -> None:
        self.text_field.setText(state["text"])


def add_frame_pages(window: MainWindow) -> None:
    """The frame's own pages, as the composition registers them."""
    window.editor.register_page_kind("keys", lambda page_id: KeysPage(page_id, window))
    window.editor.register_page_kind("notifications", lambda page_id: NotificationsPage(page_id, window))
    window.start()
