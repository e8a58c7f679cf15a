"""Registers the commands that show the active run at an earlier time, and updates the panel.

Output and Problems follow the current run (run_tabs.py) at the viewed time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Signal

from rankdeck.base.phrases import phrase
from rankdeck_app.commands.table import Command
from rankdeck_app.controllers.run_tabs import RunTabs
from rankdeck_app.shell.window import MainWindow

if TYPE_CHECKING:
    from rankdeck_app.state.live_run import LiveRun
    from rankdeck_app.state.time_machine import TimeMachine


class TimeTravel(QObject):
    """Commands that show the active run at another time. `moved` carries the viewed Unix time, or None for
    the present."""

    moved = Signal(object)

    def __init__(self, window: MainWindow, tabs: RunTabs) -> None:
        super().__init__(window)
        self._window, self._tabs = window, tabs
        self._time_machine: TimeMachine | None = None
        tabs.current_changed.connect(self._on_current_run_changed)
        window.editor.active_page_changed.connect(self._on_page_activated)

    @property
    def viewed_time(self) -> float | None:
        return self._time_machine.viewed_time if self._time_machine is not None else None

    def commands(self) -> list[Command]:
        def row(name: str, title: str, act: Callable[[TimeMachine], object], keys: str, when: str) -> Command:
            def run() -> None:
                if (active := self._tabs.active()) is not None:
                    act(active.time_machine)

            return Command(f"time.{name}", title, run, (keys,), when, "Run/6_time")

        return [
            row(
                "back",
                phrase("Time: Step Back"),
                lambda machine: machine.step_by(-1),
                "Alt+Left",
                "activeRun",
            ),
            row(
                "forward",
                phrase("Time: Step Forward"),
                lambda machine: machine.step_by(1),
                "Alt+Right",
                "lookingBack",
            ),
            row(
                "start",
                phrase("Time: Go to the Start"),
                lambda machine: machine.go_to_start(),
                "Alt+Home",
                "activeRun",
            ),
            row(
                "now",
                phrase("Time: Back to Now"),
                lambda machine: machine.go_to_now(),
                "Alt+End",
                "lookingBack",
            ),
            row(
                "play",
                phrase("Time: Play or Pause"),
                lambda machine: machine.toggle_play(),
                "Ctrl+K Ctrl+P",
                "activeRun",
            ),
        ]

    def _on_current_run_changed(self, run: LiveRun | None) -> None:
        if self._time_machine is not None:
            self._time_machine.time_changed.disconnect(self._update_context)
        self._time_machine = None if run is None else run.time_machine
        if self._time_machine is not None:
            self._time_machine.time_changed.connect(self._update_context)
        self._update_context()

    def _on_page_activated(self, _page: object) -> None:
        self._update_context()

    def _update_context(self) -> None:
        active = self._tabs.active()
        self._window.context.set(
            "lookingBack", active is not None and active.time_machine.viewed_time is not None
        )
        self.moved.emit(self.viewed_time)
