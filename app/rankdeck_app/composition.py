"""The one place that knows both the frame and the views: called once, after the first paint.

Each part of the app is plugged in by a line or a small function here. Views are imported inside the
factories, so that a view costs nothing until somebody looks at it; numpy and pyqtgraph come in with them and
never before the first paint.
"""

from __future__ import annotations

from rankdeck_app.shell.keys_page import KeysPage
from rankdeck_app.shell.notifications_page import NotificationsPage
from rankdeck_app.shell.window import MainWindow


def compose(window: MainWindow) -> None:
    """Register everything, then let the window show it."""
    window.editor.register_page_kind("keys", lambda page_id: KeysPage(page_id, window))
    window.editor.register_page_kind("notifications", lambda page_id: NotificationsPage(page_id, window))
    window.start()
