"""From keys to commands: the table's defaults, changed by what the person wrote in keymap.toml.

One QShortcut per key sequence, so that Qt matches chords ("Ctrl+K Ctrl+S") and text fields keep their own
keys. Several commands may share a sequence if their `when` differ; the one registered last that applies wins,
and a sequence for which no command applies is left to the focused widget. keymap.toml maps a command's id to
all of its keys; an empty list means none:

    "view.toggleSideBar" = ["Ctrl+B", "Ctrl+K B"]
    "app.quit" = []
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import QWidget

from rankdeck_app.commands import CommandTable
from rankdeck_app.files import write_whole


def to_sequence(keys: str) -> QKeySequence:
    """'Ctrl+K Ctrl+S' as Qt's sequence; empty when Qt does not know the keys."""
    return QKeySequence(", ".join(keys.split()), QKeySequence.SequenceFormat.PortableText)


def to_keys(sequence: QKeySequence) -> str:
    """The inverse of `to_sequence`: strokes of a chord parted by a space."""
    return sequence.toString(QKeySequence.SequenceFormat.PortableText).replace(", ", " ")


@dataclass(frozen=True)
class Binding:
    """The keys of one command; `changed` when they are the person's own."""

    command_id: str
    keys: tuple[str, ...]
    changed: bool


class Keymap(QObject):
    """What each command's keys are now. `problem` holds one sentence when keymap.toml could not be read."""

    changed = Signal()

    def __init__(self, commands: CommandTable, path: Path, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._commands = commands
        self._path = path
        self.problem: str | None = None
        self._own: dict[str, tuple[str, ...]] = self._read()
        commands.changed.connect(self.changed)

    def _read(self) -> dict[str, tuple[str, ...]]:
        try:
            table = tomllib.loads(self._path.read_text("utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            self.problem = f"{self._path}: {error}. The default keys are used until it is corrected."
            return {}
        own: dict[str, tuple[str, ...]] = {}
        for command_id, keys in table.items():
            known = isinstance(keys, list) and all(
                isinstance(k, str) and not to_sequence(k).isEmpty() for k in keys
            )
            if known:
                own[command_id] = tuple(keys)
            else:
                self.problem = (
                    f'{self._path}: "{command_id}" must list keys such as ["Ctrl+K B"]. Its default is used.'
                )
        return own

    def keys_for(self, command_id: str) -> tuple[str, ...]:
        if command_id in self._own:
            return self._own[command_id]
        return self._commands[command_id].keys if command_id in self._commands else ()

    def text_for(self, command_id: str) -> str:
        """The first shortcut as a person reads it, or ''."""
        keys = self.keys_for(command_id)
        if not keys:
            return ""
        return to_sequence(keys[0]).toString(QKeySequence.SequenceFormat.NativeText).replace(", ", " ")

    def bindings(self) -> list[Binding]:
        return [Binding(c.id, self.keys_for(c.id), c.id in self._own) for c in self._commands]

    def commands_on(self, keys: str) -> list[str]:
        """Ids of the commands that the keys would reach, whatever their `when`."""
        wanted = to_sequence(keys)
        return [
            binding.command_id
            for binding in self.bindings()
            if any(to_sequence(own) == wanted for own in binding.keys)
        ]

    def set_keys(self, command_id: str, keys: tuple[str, ...]) -> None:
        """Give a command these keys and write the file.

        Raises:
            OSError: keymap.toml cannot be written.
        """
        self._own[command_id] = keys
        self._write()

    def reset(self, command_id: str) -> None:
        """Back to the table's default keys. Raises OSError as `set_keys` does."""
        if self._own.pop(command_id, None) is not None:
            self._write()

    def _write(self) -> None:
        import tomlkit  # 11 ms: only a person who changes a key pays for it

        write_whole(self._path, tomlkit.dumps({key: list(keys) for key, keys in sorted(self._own.items())}))
        self.problem = None
        self.changed.emit()


class Shortcuts(QObject):
    """The keymap at work on one window: keeps a QShortcut per sequence and runs the command that applies."""

    def __init__(self, window: QWidget, commands: CommandTable, keymap: Keymap) -> None:
        super().__init__(window)
        self._window = window
        self._commands = commands
        self._keymap = keymap
        self._shortcuts: dict[str, QShortcut] = {}
        self._targets: dict[str, list[str]] = {}
        self._suspended = False
        keymap.changed.connect(self.rebuild)
        commands.context.changed.connect(lambda _keys: self._refresh())
        self.rebuild()

    def rebuild(self) -> None:
        """Make the shortcuts anew from the keymap, keeping those whose sequence is still used."""
        targets: dict[str, list[str]] = {}
        for binding in self._keymap.bindings():
            for keys in binding.keys:
                sequence = to_sequence(keys)
                if not sequence.isEmpty():
                    targets.setdefault(to_keys(sequence), []).insert(0, binding.command_id)
        for keys in self._shortcuts.keys() - targets.keys():
            shortcut = self._shortcuts.pop(keys)
            shortcut.setEnabled(False)
            shortcut.deleteLater()
        for keys in targets.keys() - self._shortcuts.keys():
            shortcut = QShortcut(to_sequence(keys), self._window, context=Qt.ShortcutContext.WindowShortcut)
            shortcut.setAutoRepeat(False)
            shortcut.activated.connect(lambda keys=keys: self._fire(keys))
            self._shortcuts[keys] = shortcut
        self._targets = targets
        self._refresh()

    def suspend(self, suspended: bool) -> None:
        """Stop all shortcuts while the person records new keys."""
        self._suspended = suspended
        self._refresh()

    def _refresh(self) -> None:
        for keys, shortcut in self._shortcuts.items():
            wanted = not self._suspended and any(map(self._commands.enabled, self._targets[keys]))
            if shortcut.isEnabled() != wanted:
                shortcut.setEnabled(wanted)

    def _fire(self, keys: str) -> None:
        for command_id in self._targets[keys]:
            if self._commands.run(command_id):
                return
