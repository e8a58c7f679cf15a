"""The keys of the whole app, as it is put together."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from pytestqt.qtbot import QtBot

from tests.helpers.app_window import close_app, open_app


def test_no_key_is_bound_to_two_commands_in_one_context(qtbot: QtBot, tmp_path: Path) -> None:
    app = open_app(tmp_path / "workspace")
    commands_by_keys = defaultdict(list)
    for command in app.window.commands:
        for keys in command.keys:
            commands_by_keys[keys].append(command)
    close_app(app)
    assert len(commands_by_keys) > 50
    shared = {keys: commands for keys, commands in commands_by_keys.items() if len(commands) > 1}
    assert {
        keys for keys, commands in shared.items() if not all(bound_command.when for bound_command in commands)
    } == set()
    assert set(shared) == {"Ctrl+F", "Shift+F5"}, "what has the keyboard is searched, what is on show stopped"
