from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QKeySequence
from PySide6.QtWidgets import QApplication, QLineEdit, QVBoxLayout, QWidget
from pytestqt.qtbot import QtBot

from rankdeck_app.commands.keymap import Keymap, Shortcuts, to_keys, to_sequence
from rankdeck_app.commands.table import Command, CommandTable, Context

CTRL = Qt.KeyboardModifier.ControlModifier


class KeymapWindow:
    """A window with a text field, a command table and its shortcuts; `ran` notes the commands."""

    def __init__(self, path: Path) -> None:
        self.ran: list[str] = []
        self.context = Context()
        self.commands = CommandTable(self.context)
        self.keymap = Keymap(self.commands, path)
        self.widget = QWidget()
        self.field = QLineEdit()
        QVBoxLayout(self.widget).addWidget(self.field)
        self.shortcuts = Shortcuts(self.widget, self.commands, self.keymap)

    def add(self, command_id: str, *keys: str, when: str = "") -> None:
        self.commands.register(
            Command(command_id, f"Test: {command_id}", lambda: self.ran.append(command_id), keys, when)
        )


@pytest.fixture
def board(qtbot: QtBot, tmp_path: Path) -> KeymapWindow:
    board = KeymapWindow(tmp_path / "keymap.toml")
    qtbot.addWidget(board.widget)
    with qtbot.waitActive(board.widget):
        board.widget.show()
    board.field.setFocus()
    return board


def test_keys_and_sequences_round_trip(qapp: QApplication) -> None:
    for keys in ("Ctrl+B", "Ctrl+K Ctrl+S", "Ctrl+\\", "Ctrl+,", "F1", "Ctrl+K Z", "Escape Escape"):
        sequence = to_sequence(keys)
        assert sequence.count() == len(keys.split())
        assert to_sequence(to_keys(sequence)) == sequence


def test_a_key_runs_its_command(qtbot: QtBot, board: KeymapWindow) -> None:
    board.add("a", "Ctrl+B")
    qtbot.keyClick(board.field, Qt.Key.Key_B, CTRL)
    assert board.ran == ["a"]


def test_a_chord_runs_after_both_strokes_even_in_a_text_field(qtbot: QtBot, board: KeymapWindow) -> None:
    board.add("a", "Ctrl+K Ctrl+S")
    board.add("b", "Ctrl+K Z")
    board.field.setText("some text")
    board.field.setCursorPosition(4)
    strokes: list[str] = []
    board.shortcuts.chord_changed.connect(strokes.append)
    qtbot.keyClick(board.field, Qt.Key.Key_K, CTRL)
    assert board.ran == [] and strokes == ["Ctrl+K"]
    qtbot.keyClick(board.field, Qt.Key.Key_S, CTRL)
    qtbot.keyClick(board.field, Qt.Key.Key_K, CTRL)
    qtbot.keyClick(board.field, Qt.Key.Key_Z)
    assert board.ran == ["a", "b"]
    assert board.field.text() == "some text"
    assert strokes == ["Ctrl+K", "", "Ctrl+K", ""]


def test_an_unknown_chord_is_dropped(qtbot: QtBot, board: KeymapWindow) -> None:
    board.add("a", "Ctrl+K Ctrl+S")
    board.add("b", "Ctrl+B")
    qtbot.keyClick(board.field, Qt.Key.Key_K, CTRL)
    qtbot.keyClick(board.field, Qt.Key.Key_Y, CTRL)
    qtbot.keyClick(board.field, Qt.Key.Key_B, CTRL)
    assert board.ran == ["b"]


def test_a_text_field_keeps_its_own_keys(qtbot: QtBot, board: KeymapWindow) -> None:
    board.add("a", "Ctrl+A", "A")
    board.field.setText("abc")
    qtbot.keyClick(board.field, Qt.Key.Key_A, CTRL)
    assert board.field.selectedText() == "abc"
    assert board.ran == []


def test_one_key_runs_the_command_whose_context_holds(qtbot: QtBot, board: KeymapWindow) -> None:
    board.add("a", "Ctrl+B", when="!running")
    board.add("b", "Ctrl+B", when="running")
    qtbot.keyClick(board.field, Qt.Key.Key_B, CTRL)
    board.context.set("running", True)
    qtbot.keyClick(board.field, Qt.Key.Key_B, CTRL)
    assert board.ran == ["a", "b"]


def test_new_keys_work_at_once_and_after_a_restart(qtbot: QtBot, board: KeymapWindow, tmp_path: Path) -> None:
    board.add("a", "Ctrl+B")
    board.keymap.set_keys("a", ("Ctrl+K B", "F7"))
    qtbot.keyClick(board.field, Qt.Key.Key_B, CTRL)
    assert board.ran == []
    qtbot.keyClick(board.field, Qt.Key.Key_F7)
    assert board.ran == ["a"]
    again = Keymap(board.commands, tmp_path / "keymap.toml")
    assert again.keys_for("a") == ("Ctrl+K B", "F7")
    again.reset("a")
    assert again.keys_for("a") == ("Ctrl+B",)
    assert tomllib.loads((tmp_path / "keymap.toml").read_text()) == {}


def test_an_empty_list_removes_the_keys(qtbot: QtBot, board: KeymapWindow) -> None:
    board.add("a", "Ctrl+B")
    board.keymap.set_keys("a", ())
    qtbot.keyClick(board.field, Qt.Key.Key_B, CTRL)
    assert board.ran == [] and board.keymap.text_for("a") == ""


def test_a_suspended_keymap_runs_nothing(qtbot: QtBot, board: KeymapWindow) -> None:
    board.add("a", "Ctrl+B")
    board.shortcuts.set_suspended(True)
    qtbot.keyClick(board.field, Qt.Key.Key_B, CTRL)
    board.shortcuts.set_suspended(False)
    assert board.ran == []


def test_commands_with_the_same_keys_are_listed(qapp: QApplication, board: KeymapWindow) -> None:
    board.add("a", "Ctrl+B")
    board.add("b", "Ctrl+K Ctrl+B")
    assert board.keymap.commands_with_keys("Ctrl+B") == ["a"]
    assert board.keymap.commands_with_keys("Ctrl+K Ctrl+B") == ["b"]


@pytest.mark.parametrize("text", ["a = [", '"a" = "Ctrl+B"', '"a" = ["Nonsense+Q"]'])
def test_an_invalid_keymap_is_reported_and_the_defaults_apply(
    qapp: QApplication, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "keymap.toml"
    path.write_text(text)
    commands = CommandTable(Context())
    commands.register(Command("a", "Test: A", lambda: None, ("Ctrl+B",)))
    keymap = Keymap(commands, path)
    assert keymap.problem is not None and str(path) in keymap.problem
    assert keymap.keys_for("a") == ("Ctrl+B",)
    assert to_sequence("Ctrl+B") == QKeySequence("Ctrl+B")
