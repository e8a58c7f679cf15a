"""Everything that a person can make the app do, in one table.

A `Command` says its id, title, keys, when it applies, where in the menus it stands, and what it does. The
palette, the menus, the tool buttons and the keymap are all drawn from the table, so a command is added in one
place:

    window.commands.register(
        Command("run.stop", phrase("Run: Stop"), keys=("Shift+F5",), when="activeRunAlive",
        menu="Run/1_control", run=stop)
    )

`Context` holds the facts that `when` speaks of. A command whose `when` does not hold is not offered anywhere.
No widgets here: read keymap.py for how keys arrive, shell/title_bar.py for menus and shell/palette.py for the
palette.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

from PySide6.QtCore import QObject, QSignalBlocker, Signal

from rankdeck_app.language import translate

_CONTEXT_KEY = re.compile(r"!?\w[\w.]*")


@dataclass(frozen=True)
class Command:
    """One row of the table.

    id: dotted and stable ("view.toggleSideBar"); it is what the keymap file names.
    title: "Category: What it does", a phrase; the palette shows all of it, menus and tooltips the part after
        the colon. It is shown in the window's language, and found by its English, too.
    keys: default shortcuts; chords as "Ctrl+K Ctrl+S".
    when: facts of the context joined by &&, "!" before one that must not hold; empty means always.
    menu: "Menu/group", e.g. "View/2_layout": ids; groups are sorted by name and parted by a line. Empty: in
        no menu.
    run: called without arguments.
    checked: the fact that a command switches; menus show a check mark by it.
    palette: False keeps it out of the palette (one that only makes sense by its key).
    """

    id: str
    title: str
    run: Callable[[], object]
    keys: tuple[str, ...] = ()
    when: str = ""
    menu: str = ""
    checked: str = ""
    palette: bool = True

    @property
    def display_title(self) -> str:
        """The title in the window's language."""
        return translate(self.title)

    @property
    def label(self) -> str:
        """That without its category."""
        return self.display_title.split(": ", 1)[-1]


class Context(QObject):
    """Named facts about the window: what is visible, focused, selected.

    Setting an unchanged fact costs nothing.
    """

    changed = Signal(set)

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, object] = {}

    def set(self, key: str, value: object) -> None:
        self.update({key: value})

    def update(self, facts: dict[str, object]) -> None:
        """Set several facts; `changed` is emitted once, with the keys whose value is new."""
        fresh = {key for key, value in facts.items() if self.values.get(key) != value}
        if fresh:
            self.values.update(facts)
            self.changed.emit(fresh)

    def get(self, key: str) -> object:
        return self.values.get(key)


@cache
def parse_when(when: str) -> dict[str, bool]:
    """The facts that a `when` speaks of and whether each must hold: "zenMode && !paletteOpen"."""
    facts = [fact.strip() for fact in when.split("&&")] if when else []
    assert all(map(_CONTEXT_KEY.fullmatch, facts)), f"when: {when!r} is not facts joined by &&."
    return {fact.removeprefix("!"): not fact.startswith("!") for fact in facts}


class CommandTable(QObject):
    """The table itself, and the only way to run a command.

    `changed` is emitted when rows come or go, `ran` with the id after a command ran.
    """

    changed = Signal()
    ran = Signal(str)

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.context = context
        self._commands: dict[str, Command] = {}

    def register(self, *commands: Command) -> None:
        """Add rows. An id that is taken is an error of ours, a `when` that cannot be read too."""
        for command in commands:
            assert command.id not in self._commands, f"command {command.id} is registered twice"
            parse_when(command.when)
            self._commands[command.id] = command
        self.changed.emit()

    def unregister(self, *command_ids: str) -> None:
        """Take rows out that there is no longer anything behind."""
        for command_id in command_ids:
            self._commands.pop(command_id, None)
        if command_ids:
            self.changed.emit()

    @contextmanager
    def batch_changes(self) -> Iterator[None]:
        """What comes and goes meanwhile is told once, at the end: menus and shortcuts are made anew each
        time.
        """
        with QSignalBlocker(self):
            yield
        self.changed.emit()

    def __iter__(self) -> Iterator[Command]:
        return iter(self._commands.values())

    def __contains__(self, command_id: str) -> bool:
        return command_id in self._commands

    def __getitem__(self, command_id: str) -> Command:
        return self._commands[command_id]

    def is_enabled(self, command_id: str) -> bool:
        """Whether the command exists and applies now."""
        command, facts = self._commands.get(command_id), self.context.values
        return command is not None and all(
            bool(facts.get(fact)) is wanted for fact, wanted in parse_when(command.when).items()
        )

    def run(self, command_id: str) -> bool:
        """Run a command if it applies now; whether it did."""
        if not self.is_enabled(command_id):
            return False
        self._commands[command_id].run()
        self.ran.emit(command_id)
        return True
