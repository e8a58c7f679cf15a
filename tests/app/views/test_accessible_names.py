"""Whatever can be clicked or can have the keyboard has a name that a screen reader says, in every view; and
where a command stands behind it, a tooltip with its keys.
"""

from __future__ import annotations

from PySide6.QtGui import QAccessible
from PySide6.QtWidgets import QAbstractButton, QLineEdit, QWidget

from rankdeck_app.composition import App
from rankdeck_app.shell.page import Page
from tests.helpers.every_view import EveryView, told, usable


def name_of(widget: QWidget) -> str:
    """What Qt tells a screen reader; of a button its text is the name where it has no other."""
    interface = QAccessible.queryAccessibleInterface(widget)
    return interface.text(QAccessible.Text.Name).strip() if interface is not None else ""


def is_bare(widget: QWidget) -> bool:
    """A symbol without a text that does not say what it does."""
    is_symbol = isinstance(widget, QAbstractButton) and not widget.text() and not widget.icon().isNull()
    return is_symbol and not widget.toolTip()


def test_everything_that_can_be_used_says_what_it_is_and_what_it_does(app: App, every: EveryView) -> None:
    """Its name to a screen reader, a symbol its deed, and a command its keys, by the tooltip's first words:
    'Split Right (Ctrl+\\)'.
    """
    titles = {row.label for row in app.window.commands if app.window.keymap.text_for(row.id)}
    wrong, count, views = list[str](), 0, list[str]()
    for view, root in every.walk(app):
        views.append(view)
        path = root.path_command if isinstance(root, Page) else ""
        if path and not app.window.commands.enabled(path):
            wrong.append(f"{view}: its breadcrumbs lead nowhere: {path}")
        for widget in usable(root):
            count += 1
            if not (widget.accessibleName() or name_of(widget)):
                wrong.append(f"{view}: no name: {told(widget)}")
            if is_bare(widget):
                wrong.append(f"{view}: no text and no tooltip: {told(widget)}")
            if widget.toolTip() in titles:
                wrong.append(f"{view}: no keys: {told(widget)}")
    assert not wrong, "\n".join(dict.fromkeys(wrong))
    assert count > 300 and len(views) >= 23, (count, views)


def test_what_has_no_name_is_found(app: App) -> None:
    field = QLineEdit(app.window)
    assert field in list(usable(app.window)) and not name_of(field)
