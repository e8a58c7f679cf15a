"""Maps keys to commands: the table's defaults, overridden by the user's keymap.toml.

There is one QShortcut per key sequence, so that Qt matches chords ("Ctrl+K Ctrl+S") and text fields keep
their own keys. Several commands may share a sequence if their `when` conditions differ. If several of them
apply, the one registered last wins; if none applies, the sequence goes to the focused widget. keymap.toml
maps a command id to all of the command's keys; an empty list means none:

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
    """Convert 'Ctrl+K Ctrl+S' to a QKeySequence; the sequence is empty if Qt does not recognize the keys."""
    return QKeySequence(", ".join(keys.split()), QKeySequence.SequenceFormat.PortableText)


def to_keys(sequence: QKeySequence) -> str:
    """Convert a QKeySequence to keys, with the strokes of a chord separated by a space; the inverse of
    `to_sequence`."""
    return sequence.toString(QKeySequence.SequenceFormat.PortableText).replace(", ", " ")


def to_text(keys: str) -> str:
    """Return `keys` as text in the platform's notation."""
    return to_sequence(keys).toString(QKeySequence.SequenceFormat.NativeText).replace(", ", " ")


def is_valid_keys(text: object) -> bool:
    """Check whether the text consists of one or two valid keystrokes."""
    if not isinstance(text, str):
        return False
    strokes = text.split()
    return 1 <= len(strokes) <= 2 and all(to_keys(to_sequence(stroke)) for stroke in strokes)


class Keymap(QObject):
    """The current keys of each command.

    `problem` describes an error in keymap.toml, or is None. `failed` carries the reason why the file could
    not be written; the changed keys then apply only until the app closes.
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
                "{path}: {error}. The default keys are used until the file is corrected.",
                path=self._path,
                error=error,
            )
            return {}
        user_keys: dict[str, tuple[str, ...]] = {}
        for command_id, keys in table.items():
            if isinstance(keys, list) and all(map(is_valid_keys, keys)):
                user_keys[command_id] = tuple(keys)
            else:
                self.problem = tr(
                    '{path}: "{command}" must be a list of keys, as in ["Ctrl+K B"]. Its '
                    "default keys are used.",
                    path=self._path,
                    command=command_id,
                )
        return user_keys

    def keys_for(self, command_id: str) -> tuple[str, ...]:
        if command_id in self._user_keys:
            return self._user_keys[command_id]
        return self._commands[command_id].keys if command_id in self._commands else ()

    def text_for(self, command_id: str) -> str:
        """Return the command's first shortcut in readable form, or ''."""
        keys = self.keys_for(command_id)
        return to_text(keys[0]) if keys else ""

    def is_user_defined(self, command_id: str) -> bool:
        """Check whether the user has set the command's keys."""
        return command_id in self._user_keys

    def commands_with_keys(self, keys: str) -> list[str]:
        """Return the ids of the commands with these keys, regardless of their `when` conditions."""
        sequence = to_sequence(keys)
        return [c.id for c in self._commands if sequence in map(to_sequence, self.keys_for(c.id))]

    def set_keys(self, command_id: str, keys: tuple[str, ...]) -> None:
        """Set a command's keys and write the file."""
        self._user_keys[command_id] = keys
        self._write()

    def reset(self, command_id: str) -> None:
        """Restore the command's default keys."""
        if self._user_keys.pop(command_id, None) is not None:
            self._write()

    def _write(self) -> None:
        import tomlkit  # 11 ms: imported only when a key is changed

        text = tomlkit.dumps({key: list(keys) for key, keys in sorted(self._user_keys.items())})
        is_broken, self.problem = self.problem is not None, None

        def write() -> None:
            if is_broken and self._path.exists():
                self._path.replace(
                    self._path.with_name(self._path.name + ".broken")
                )  # the user's file: renamed, not deleted
            write_atomic(self._path, text)

        self._io_thread.submit(write, on_error=self._report_write_error)
        self.changed.emit()

    def _report_write_error(self, error: OSError) -> None:
        text = tr(
            "{path} cannot be written: {error}. The new keys apply only until the app closes.",
            path=self._path,
            error=error,
        )
        self.failed.emit(text)


class Shortcuts(QObject):
    """Applies the keymap to one window: keeps a QShortcut per sequence and runs the command that applies.

    `chord_changed` carries a chord's first stroke when it is pressed, and '' when the chord is complete or
    abandoned. Text fields claim some first strokes (Ctrl+K deletes to the end of the line), so an event
    filter on the focused widget passes these strokes to the shortcuts.
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
        """Rebuild the shortcuts from the keymap, keeping those whose sequence is still used."""
        targets: dict[str, list[str]] = {}
        for command in self._commands:
            # Keys that Qt does not know become empty.
            for keys in filter(None, map(to_keys, map(to_sequence, self._keymap.keys_for(command.id)))):
                # Of commands with the same keys, the one registered last comes first.
                targets.setdefault(keys, []).insert(0, command.id)
        for keys in self._shortcuts.keys() - targets.keys():
            shortcut = self._shortcuts.pop(keys)
            # deleteLater waits for the event loop, but the shortcut must stop now.
            shortcut.setEnabled(False)
            shortcut.deleteLater()
        for keys in targets.keys() - self._shortcuts.keys():
            shortcut = QShortcut(to_sequence(keys), self._window, context=Qt.ShortcutContext.WindowShortcut)
            # Holding the keys must not run the command again.
            shortcut.setAutoRepeat(False)
            shortcut.activated.connect(partial(self._on_activated, keys))
            self._shortcuts[keys] = shortcut
        self._targets = targets
        self._refresh()

    def set_suspended(self, suspended: bool) -> None:
        """Disable or re-enable all shortcuts; they are disabled while the user records new keys."""
        self._is_suspended = suspended
        self._refresh()

    def _refresh(self, _facts: object = None) -> None:
        for keys, shortcut in self._shortcuts.items():
            enable = not self._is_suspended and any(map(self._commands.is_enabled, self._targets[keys]))
            if shortcut.isEnabled() != enable:
                shortcut.setEnabled(enable)
        enabled = (keys for keys, shortcut in self._shortcuts.items() if shortcut.isEnabled())
        self._chord_starts = {keys.split()[0] for keys in enabled if " " in keys}

    def _on_activated(self, keys: str) -> None:
        self._set_pending("")
        for command_id in self._targets[keys]:
            if self._commands.run(command_id):
                return

    def _on_focus_changed(self, _old: QWidget | None, new: QWidget | None) -> None:
        """Install the event filter on the focused widget only: a filter on the application would receive
        every event."""
        # Qt may have deleted the widget while its Python object lives.
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
                # An ignored override leaves the stroke to the QShortcut; accepted, it would go to the text
                # field.
                event.ignore()
                return True
        elif event.type() == QEvent.Type.KeyPress and self._pending:
            self._set_pending("")
        return False

    def _set_pending(self, stroke: str) -> None:
        if stroke != self._pending:
            self._pending = stroke
            self.chord_changed.emit(stroke)
