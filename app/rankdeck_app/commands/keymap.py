"""From keys to commands: the table's defaults, changed by what the person wrote in keymap.toml.

One QShortcut per key sequence, so that Qt matches chords ("Ctrl+K Ctrl+S") and text fields keep their own
keys. Several commands may share a sequence if their `when` differ; the one registered last that applies wins,
and a sequence for which no command applies is left to the focused widget. keymap.toml maps a command's id to
all of its keys; an empty list means none:

    "view.toggleSideBar" = ["Ctrl+B", "Ctrl+K B"]
    "app.quit" = []
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from PySide6.QtCore import QEvent, QObject, Qt, Signal
from PySide6.QtGui import QKeyEvent, QKeySequence, QShortcut
from PySide6.QtWidgets import QApplication, QWidget
from shiboken6 import isValid

from rankdeck.base.files import read_toml, write_atomic
from rankdeck_app.commands.table import CommandTable
from rankdeck_app.io_thread import IoThread
from rankdeck_app.language import tr


def to_sequence(keys: str) -> QKeySequence:
    """'Ctrl+K Ctrl+S' as Qt's sequence; empty when Qt does not know the keys."""
    return QKeySequence(", ".join(keys.split()), QKeySequence.SequenceFormat.PortableText)


def to_keys(sequence: QKeySequence) -> str:
    """The inverse of `to_sequence`: strokes of a chord parted by a space."""
    return sequence.toString(QKeySequence.SequenceFormat.PortableText).replace(", ", " ")


def to_text(keys: str) -> str:
    """As a person reads the keys."""
    return to_sequence(keys).toString(QKeySequence.SequenceFormat.NativeText).replace(", ", " ")


def is_valid_keys(text: object) -> bool:
    """Whether the text names keys that exist, one or two strokes."""
    if not isinstance(text, str):
        return False
    strokes = text.split()
    return 1 <= len(strokes) <= 2 and all(to_keys(to_sequence(stroke)) for stroke in strokes)


class Keymap(QObject):
    """What each command's keys are now. `problem` holds one sentence when keymap.toml could not be read;
    `failed` brings one when it cannot be written: the keys hold until the app ends.
    """

    changed = Signal()
    failed = Signal(str)

    def __init__(self, commands: CommandTable, path: Path, *, io_thread: IoThread | None = None) -> None:
        super().__init__()
        self._io_thread = io_thread or IoThread(self)
        self._commands = commands
        self._path = path
        self.problem: str | None = None
        self._user_keys: dict[str, tuple[str, ...]] = self._read()
        commands.changed.connect(self.changed)

    def _read(self) -> dict[str, tuple[str, ...]]:
        try:
            table = read_toml(self._path)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            self.problem = tr(
                "{path}: {error}. The default keys are used until it is corrected.",
                path=self._path,
                error=error,
            )
            return {}
        own: dict[str, tuple[str, ...]] = {}
        for command_id, keys in table.items():
            if isinstance(keys, list) and all(map(is_valid_keys, keys)):
                own[command_id] = tuple(keys)
            else:
                self.problem = tr(
                    '{path}: "{command}" must list keys such as ["Ctrl+K B"]. Its default is used.',
                    path=self._path,
                    command=command_id,
                )
        return own

    def keys_for(self, command_id: str) -> tuple[str, ...]:
        if command_id in self._user_keys:
            return self._user_keys[command_id]
        return self._commands[command_id].keys if command_id in self._commands else ()

    def text_for(self, command_id: str) -> str:
        """The first shortcut as a person reads it, or ''."""
        keys = self.keys_for(command_id)
        return to_text(keys[0]) if keys else ""

    def is_user_defined(self, command_id: str) -> bool:
        """Whether the keys are the person's, not the table's."""
        return command_id in self._user_keys

    def commands_with_keys(self, keys: str) -> list[str]:
        """Ids of the commands that the keys would reach, whatever their `when`."""
        wanted = to_sequence(keys)
        return [c.id for c in self._commands if wanted in map(to_sequence, self.keys_for(c.id))]

    def set_keys(self, command_id: str, keys: tuple[str, ...]) -> None:
        """Give a command these keys and write the file."""
        self._user_keys[command_id] = keys
        self._write()

    def reset(self, command_id: str) -> None:
        """Back to the table's default keys."""
        if self._user_keys.pop(command_id, None) is not None:
            self._write()

    def _write(self) -> None:
        import tomlkit  # 11 ms: only a person who changes a key pays for it

        text = tomlkit.dumps({key: list(keys) for key, keys in sorted(self._user_keys.items())})
        is_broken, self.problem = self.problem is not None, None

        def write() -> None:
            if is_broken and self._path.exists():
                self._path.replace(
                    self._path.with_name(self._path.name + ".broken")
                )  # not ours to throw away
            write_atomic(self._path, text)

        self._io_thread.submit(write, on_error=self._report_write_error)
        self.changed.emit()

    def _report_write_error(self, error: OSError) -> None:
        text = tr(
            "{path} cannot be written: {error}. The keys hold until the app ends.",
            path=self._path,
            error=error,
        )
        self.failed.emit(text)


class Shortcuts(QObject):
    """The keymap at work on one window: keeps a QShortcut per sequence and runs the command that applies.

    `chord_changed` carries the first stroke of a chord while the second one is awaited, then ''. Text fields
    claim some first strokes (Ctrl+K deletes to the end of the line there); the focused widget is watched to
    take them back.
    """

    chord_changed = Signal(str)

    def __init__(self, window: QWidget, commands: CommandTable, keymap: Keymap) -> None:
        super().__init__(window)
        self._window = window
        self._commands = commands
        self._keymap = keymap
        self._shortcuts: dict[str, QShortcut] = {}
        self._targets: dict[str, list[str]] = {}
        self._chord_starts: set[str] = set()
        self._pending = ""
        self._is_suspended = False
        self._watched_widget: QWidget | None = None
        keymap.changed.connect(self.rebuild)
        commands.context.changed.connect(self._refresh)
        app = QApplication.instance()
        assert isinstance(app, QApplication)
        app.focusChanged.connect(self._on_focus_changed)
        self.rebuild()

    def rebuild(self) -> None:
        """Make the shortcuts anew from the keymap, keeping those whose sequence is still used."""
        targets: dict[str, list[str]] = {}
        for command in self._commands:
            for keys in filter(None, map(to_keys, map(to_sequence, self._keymap.keys_for(command.id)))):
                targets.setdefault(keys, []).insert(0, command.id)
        for keys in self._shortcuts.keys() - targets.keys():
            shortcut = self._shortcuts.pop(keys)
            shortcut.setEnabled(False)
            shortcut.deleteLater()
        for keys in targets.keys() - self._shortcuts.keys():
            shortcut = QShortcut(to_sequence(keys), self._window, context=Qt.ShortcutContext.WindowShortcut)
            shortcut.setAutoRepeat(False)
            shortcut.activated.connect(partial(self._on_activated, keys))
            self._shortcuts[keys] = shortcut
        self._targets = targets
        self._refresh()

    def set_suspended(self, suspended: bool) -> None:
        """Stop all shortcuts while the person records new keys."""
        self._is_suspended = suspended
        self._refresh()

    def _refresh(self, _facts: object = None) -> None:
        for keys, shortcut in self._shortcuts.items():
            wanted = not self._is_suspended and any(map(self._commands.is_enabled, self._targets[keys]))
            if shortcut.isEnabled() != wanted:
                shortcut.setEnabled(wanted)
        enabled = (keys for keys, shortcut in self._shortcuts.items() if shortcut.isEnabled())
        self._chord_starts = {keys.split()[0] for keys in enabled if " " in keys}

    def _on_activated(self, keys: str) -> None:
        self._set_pending("")
        for command_id in self._targets[keys]:
            if self._commands.run(command_id):
                return

    def _on_focus_changed(self, _old: QWidget | None, new: QWidget | None) -> None:
        """Look at the keys of the focused widget only: a filter on the application would see every event."""
        if self._watched_widget is not None and isValid(self._watched_widget):
            self._watched_widget.removeEventFilter(self)
        inside = new is not None and (new is self._window or self._window.isAncestorOf(new))
        self._watched_widget = new if inside else None
        if self._watched_widget is not None:
            self._watched_widget.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.ShortcutOverride and isinstance(event, QKeyEvent):
            stroke = to_keys(QKeySequence(event.keyCombination()))
            if stroke in self._chord_starts and not self._pending:
                self._set_pending(stroke)
                event.ignore()
                return True
        elif event.type() == QEvent.Type.KeyPress and self._pending:
            self._set_pending("")
        return False

    def _set_pending(self, stroke: str) -> None:
        if stroke != self._pending:
            self._pending = stroke
            self.chord_changed.emit(stroke)
