"""Whatever can be clicked or can have the keyboard has a name that a screen reader says, in every view; and
where a command stands behind it, a tooltip with its keys.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtGui import QAccessible
from PySide6.QtWidgets import QAbstractButton, QLineEdit, QWidget

from rankdeck_app.composition import App
from tests.helpers.every_view import EveryView, told, usable


@pytest.fixture
def every(tmp_path: Path) -> Iterator[EveryView]:
    Path(os.environ["RANKDECK_RUNS"]).mkdir(parents=True, exist_ok=True)
    made = EveryView()
    yield made
    made.end()


def name_of(widget: QWidget) -> str:
    """What Qt tells a screen reader; of a button its text is the name where it has no other."""
    interface = QAccessible.queryAccessibleInterface(widget)
    return interface.text(QAccessible.Text.Name).strip() if interface is not None else ""


def test_everything_that_can_be_used_has_a_name(app: App, every: EveryView) -> None:
    nameless, count, views = list[str](), 0, list[str]()
    for view, root in every.walk(app):
        views.append(view)
        for widget in usable(root):
            count += 1
            if not (widget.accessibleName() or name_of(widget)):
                nameless.append(f"{view}: {told(widget)}")
    assert not nameless, "\n".join(dict.fromkeys(nameless))
    assert count > 300 and len(views) >= 23, (count, views)


def test_a_symbol_without_text_says_what_it_does(app: App, every: EveryView) -> None:
    bare = [
        f"{view}: {told(widget)}"
        for view, root in every.walk(app)
        for widget in usable(root)
        if isinstance(widget, QAbstractButton)
        and not widget.text()
        and not widget.icon().isNull()
        and not widget.toolTip()
    ]
    assert not bare, "\n".join(dict.fromkeys(bare))


def test_what_has_no_name_is_found(app: App) -> None:
    field = QLineEdit(app.window)
    assert field in list(usable(app.window)) and not name_of(field)


def test_what_a_command_stands_behind_shows_its_keys(app: App, every: EveryView) -> None:
    """By the tooltip's first words: 'Split Right (Ctrl+\\)'."""
    titles = {row.label: row.id for row in app.window.commands if app.window.keymap.text_for(row.id)}
    silent = [
        f"{view}: {told(widget)}"
        for view, root in every.walk(app)
        for widget in usable(root)
        if widget.toolTip() in titles
    ]
    assert not silent, "\n".join(dict.fromkeys(silent))
