"""Sends a desktop notification when one of this window's runs ends while the window is not active.

Notifications are sent with the desktop's own program `notify-send`; without it, nothing is sent. Runs that
end together share a notification.
"""

from __future__ import annotations

import html
import shutil

from PySide6.QtCore import QObject, QProcess, QTimer

from rankdeck.run.row import RunInfo
from rankdeck_app.controllers.run_tabs import PAGE_KIND, RunTabs
from rankdeck_app.language import tr
from rankdeck_app.shell.window import APP_NAME, MainWindow
from rankdeck_app.state.runs import Runs
from rankdeck_app.widgets.run_list import outcome_style

PROGRAM = "notify-send"
_BATCH_MS = 500
_MAX_NAMED = 5
_FAILED_OUTCOMES = ("failed", "lost")


class DesktopNotifications(QObject):
    """Notifies the user when a run ends while the window is not active, if this window launched the run or
    shows it in a tab."""

    def __init__(self, window: MainWindow, runs: Runs, tabs: RunTabs) -> None:
        super().__init__(window)
        self._window = window
        self._tabs = tabs
        self._pending: list[RunInfo] = []
        self._timer = QTimer(self, interval=_BATCH_MS, singleShot=True)
        self._timer.timeout.connect(self._send)
        runs.run_ended.connect(self._on_run_ended)
        window.closing.connect(self._timer.stop)

    def _on_run_ended(self, info: RunInfo) -> None:
        editor, page_id = self._window.editor, f"{PAGE_KIND}:{info.path}"
        has_tab = editor.page(page_id) is not None or page_id in editor.unbuilt_page_ids()
        is_ours = info.path in self._tabs.launched or has_tab
        is_window_active = self._window.isVisible() and self._window.isActiveWindow()
        if is_ours and not is_window_active and self._window.settings.get("notifications.desktop", bool):
            self._pending.append(info)
            self._timer.start()

    def _send(self) -> None:
        infos, self._pending = self._pending, []
        program = shutil.which(PROGRAM)
        if program is None or not infos:
            return
        urgency = "critical" if any(info.outcome in _FAILED_OUTCOMES for info in infos) else "normal"
        arguments = [
            f"--app-name={APP_NAME}",
            f"--urgency={urgency}",
            "--icon=rankdeck",
            # A run's title may start with a dash.
            "--",
            *notification_text(infos),
        ]
        QProcess.startDetached(program, arguments)


def notification_text(infos: list[RunInfo]) -> tuple[str, str]:
    """Return (headline, text) for the runs; the text is escaped, because desktops parse it as markup."""
    lines = [tr("{run}: {state}", run=info.title, state=outcome_style(info.state)[2]) for info in infos]
    if len(infos) == 1:
        return lines[0], html.escape(infos[0].reason or "", quote=False)
    more = len(lines) - _MAX_NAMED
    shown_lines = lines[:_MAX_NAMED] + ([tr("and {n} more", "and {n} more", more)] if more > 0 else [])
    headline = tr("{n} runs ended", "{n} run ended", len(infos))
    return headline, html.escape("\n".join(shown_lines), quote=False)
