"""What every part of the app is given: made once in __main__, passed down, never looked up.

Views take what they need of it as arguments (a theme, the clock, a folder); only the composition sees all of
it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from rankdeck.base import home
from rankdeck_app.commands.keymap import Keymap
from rankdeck_app.commands.table import CommandTable, Context
from rankdeck_app.settings import Settings
from rankdeck_app.shell.frame_clock import FrameClock
from rankdeck_app.theme import Theme


@dataclass(frozen=True)
class Folders:
    """Where things are.

    `runs` and `workspace` may not exist yet: nothing is created before the first launch.
    """

    state: Path
    config: Path
    cache: Path
    workspace: Path
    runs: Path


@dataclass(frozen=True)
class Services:
    """`open_path` is the run that the command line asked for, or None."""

    settings: Settings
    theme: Theme
    context: Context
    commands: CommandTable
    keymap: Keymap
    clock: FrameClock
    folders: Folders
    open_path: Path | None = None


def find_folders(settings: Settings, runs: Path | None, workspace: Path | None) -> Folders:
    """Runs: the argument, RANKDECK_RUNS, the setting, then <workspace>/runs.

    Workspace: the argument or ~/Rankdeck.
    """
    work = (workspace or Path.home() / "Rankdeck").expanduser().absolute()
    chosen = runs or os.environ.get("RANKDECK_RUNS") or settings.get_str("runs.dir") or work / "runs"
    return Folders(
        state=home.state_dir() / "app",
        config=home.config_dir(),
        cache=home.cache_dir(),
        workspace=work,
        runs=Path(chosen).expanduser().absolute(),
    )


def make_services(
    runs: Path | None = None, workspace: Path | None = None, open_path: Path | None = None
) -> Services:
    """The services of one window, settings read and theme not yet applied. Needs a QApplication."""
    settings = Settings(home.config_dir() / "settings.toml")
    context = Context()
    commands = CommandTable(context)
    return Services(
        settings=settings,
        theme=Theme(),
        context=context,
        commands=commands,
        keymap=Keymap(commands, home.config_dir() / "keymap.toml"),
        clock=FrameClock(settings.get_int("window.frame_rate")),
        folders=find_folders(settings, runs, workspace),
        open_path=open_path.expanduser().absolute() if open_path else None,
    )
