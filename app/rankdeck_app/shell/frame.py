"""The whole frame: the window, the frame's own commands, and what comes back after a restart."""

from __future__ import annotations

from rankdeck_app.shell.services import Services
from rankdeck_app.shell.shell_commands import shell_commands
from rankdeck_app.shell.window import MainWindow
from rankdeck_app.shell.window_state import WindowState


def open_window(services: Services) -> MainWindow:
    """A window where it was the last time, with no view in it yet."""
    window = MainWindow(services)
    window.commands.register(*shell_commands(window))
    WindowState(window, services.state_folder / "window.json").restore_frame()
    return window
