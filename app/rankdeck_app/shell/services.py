"""Services that all parts of the app share: created once in application.py and passed down.

Views take only what they need as arguments (a theme, the clock, a folder); only composition.py uses all
services.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rankdeck.base import home
from rankdeck.base.home import expand_home
from rankdeck_app.commands.keymap import Keymap
from rankdeck_app.commands.table import CommandTable, Context
from rankdeck_app.io_thread import IoThread
from rankdeck_app.settings import Settings
from rankdeck_app.shell.frame_clock import FrameClock
from rankdeck_app.theme import Theme


@dataclass(frozen=True)
class Services:
    """Services of one window.

    `runs`, `workspace` and `open_path` come from the command line and may be None; the app saves its state in
    `state_folder`.
    """

    settings: Settings
    theme: Theme
    context: Context
    commands: CommandTable
    keymap: Keymap
    clock: FrameClock
    state_folder: Path
    runs: Path | None = None
    workspace: Path | None = None
    open_path: Path | None = None

    @property
    def io_thread(self) -> IoThread:
        return self.settings.io_thread


def open_settings() -> Settings:
    """Open the user's settings; this does not require a QApplication."""
    return Settings(home.config_dir() / "settings.toml")


def make_services(
    runs: Path | None = None,
    workspace: Path | None = None,
    open_path: Path | None = None,
    settings: Settings | None = None,
) -> Services:
    """Create the services of one window without applying the theme. Requires a QApplication."""
    settings = settings or open_settings()
    context = Context()
    commands = CommandTable(context)
    return Services(
        settings=settings,
        theme=Theme(),
        context=context,
        commands=commands,
        keymap=Keymap(commands, home.config_dir() / "keymap.toml", io_thread=settings.io_thread),
        clock=FrameClock(settings.get("window.frame_rate", int)),
        state_folder=home.state_dir() / "app",
        runs=runs,
        workspace=workspace,
        open_path=expand_home(open_path).absolute() if open_path else None,
    )
