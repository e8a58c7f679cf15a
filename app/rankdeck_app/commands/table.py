"""Defines the table that contains every command of the app.

A `Command` has an id, a title, keys, a condition, a menu position and a function. The palette, the menus, the
tool buttons and the keymap are all built from the table, so a command is added in one place:

    window.commands.register(
        Command("run.stop", phrase("Run: Stop"), keys=("Shift+F5",), when="activeRunAlive",
        menu="Run/1_control", run=stop)
    )

`Context` contains the facts that `when` refers to. A command whose `when` condition is not met is not offered
anywhere. This module has no widgets: see keymap.py for keys, shell/title_bar.py for menus and
shell/palette.py for the palette.
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

    `id` is dotted and stable ("view.toggleSideBar"); keymap.toml uses it. `title` is a phrase of the form
    "Category: Action": the palette shows all of it, and menus and tooltips show the part after the colon. The
    title is shown in the window's language; searching also matches the English title. `run` is called without
    arguments. `keys` are the default shortcuts, with chords written as "Ctrl+K Ctrl+S". `when` is a condition
    that joins context facts with &&; "!" before a fact negates it, and an empty `when` is always true. `menu`
    consists of a menu's id and a group's id, as in "View/2_layout"; groups are sorted by id and divided by
    separators. If `menu` is empty, the command is in no menu. `checked` names the fact toggled by the
    command; menus show it as a check mark. If `palette` is False, the palette hides the command (for commands
    that are useful only as shortcuts).
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
        """The display title without its category."""
        return self.display_title.split(": ", 1)[-1]


class Context(QObject):
    """Named facts about the window: what is visible, focused or selected.

    Setting a fact to its current value emits no signal.
    """

    changed = Signal(set)

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, object] = {}

    def set(self, key: str, value: object) -> None:
        self.update({key: value})

    def update(self, facts: dict[str, object]) -> None:
        """Set several facts; emit `changed` once, with the keys of the facts whose values changed."""
        fresh = {key for key, value in facts.items() if self.values.get(key) != value}
        if fresh:
            self.values.update(facts)
            self.changed.emit(fresh)

    def get(self, key: str) -> object:
        return self.values.get(key)


@cache
def parse_when(when: str) -> dict[str, bool]:
    """Parse a `when` condition such as "zenMode && !paletteOpen" into the required value of each fact."""
    # Facts joined by && are all that any row needs; a parser of VS Code's full grammar was removed.
    facts = [fact.strip() for fact in when.split("&&")] if when else []
    assert all(map(_CONTEXT_KEY.fullmatch, facts)), (
        f"when clause {when!r} is not a list of facts joined by &&"
    )
    return {fact.removeprefix("!"): not fact.startswith("!") for fact in facts}


class CommandTable(QObject):
    """The command table, and the only way to run a command.

    `changed` is emitted when rows are added or removed. `ran` carries a command's id after the command has
    run.
    """

    changed = Signal()
    ran = Signal(str)

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.context = context
        self._commands: dict[str, Command] = {}

    def register(self, *commands: Command) -> None:
        """Add commands to the table. A duplicate id or an invalid `when` is a programming error."""
        for command in commands:
            assert command.id not in self._commands, f"command {command.id} is registered twice"
            parse_when(command.when)
            self._commands[command.id] = command
        self.changed.emit()

    def unregister(self, *command_ids: str) -> None:
        """Remove commands from the table."""
        for command_id in command_ids:
            self._commands.pop(command_id, None)
        if command_ids:
            self.changed.emit()

    @contextmanager
    def batch_changes(self) -> Iterator[None]:
        """Emit `changed` only once, at the end of the `with` block, because each `changed` rebuilds the menus
        and shortcuts."""
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
        """Check whether the command exists and applies now."""
        command, facts = self._commands.get(command_id), self.context.values
        return command is not None and all(
            bool(facts.get(fact)) is expected for fact, expected in parse_when(command.when).items()
        )

    def run(self, command_id: str) -> bool:
        """Run a command if it applies now; return whether it ran."""
        if not self.is_enabled(command_id):
            return False
        self._commands[command_id].run()
        self.ran.emit(command_id)
        return True
