"""Whatever can be clicked or can have the keyboard has a name that a screen reader says, in every view; and
where a command stands behind it, a tooltip with its keys.
"""

from __future__ import annotations

from PySide6.QtGui import QAccessible
from PySide6.QtWidgets import QAbstractButton, QLineEdit, QWidget

from rankdeck_app.composition import App
from rankdeck_app.shell.page import Page
from tests.helpers.every_view import EveryView, usable_widgets, widget_facts


def accessible_name(widget: QWidget) -> str:
    """What Qt tells a screen reader; of a button its text is the name where it has no other."""
    interface = QAccessible.queryAccessibleInterface(widget)
    return interface.text(QAccessible.Text.Name).strip() if interface is not None else ""


def is_unlabelled(widget: QWidget) -> bool:
    """A symbol without a text that does not say what it does."""
    is_symbol = isinstance(widget, QAbstractButton) and not widget.text() and not widget.icon().isNull()
    return is_symbol and not widget.toolTip()


def test_all_controls_have_accessible_names_and_tooltips(app: App, every: EveryView) -> None:
    """Its name to a screen reader, a symbol its deed, and a command its keys, by the tooltip's first words:
    'Split Right (Ctrl+\\)'.
    """
    titles = {row.label for row in app.window.commands if app.window.keymap.text_for(row.id)}
    wrong, count, views = list[str](), 0, list[str]()
    for view, root in every.walk(app):
        views.append(view)
        path = root.breadcrumb_command if isinstance(root, Page) else ""
        if path and not app.window.commands.is_enabled(path):
            wrong.append(f"{view}: its breadcrumbs lead nowhere: {path}")
        for widget in usable_widgets(root):
            count += 1
            if not (widget.accessibleName() or accessible_name(widget)):
                wrong.append(f"{view}: no name: {widget_facts(widget)}")
            if is_unlabelled(widget):
                wrong.append(f"{view}: no text and no tooltip: {widget_facts(widget)}")
            if widget.toolTip() in titles:
                wrong.append(f"{view}: no keys: {widget_facts(widget)}")
    assert not wrong, "\n".join(dict.fromkeys(wrong))
    assert count > 300 and len(views) >= 23, (count, views)


def test_unnamed_controls_are_detected(app: App) -> None:
    field = QLineEdit(app.window)
    assert field in list(usable_widgets(app.window)) and not accessible_name(field)
