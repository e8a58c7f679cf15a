"""Buttons for what can be done next, at the end of a banner's or a summary's row."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from PySide6.QtCore import SignalInstance
from PySide6.QtWidgets import QBoxLayout, QPushButton

from rankdeck_app.shell.page import PageAction
from rankdeck_app.widgets.layouts import push_button


class ActionButtons:
    """They stay the same objects while nothing changes: one of them may have the focus."""

    def __init__(self, row: QBoxLayout, acted: SignalInstance) -> None:
        """`acted` brings the id of the command of the button that was pressed."""
        self.buttons: list[QPushButton] = []
        self._actions: list[PageAction] = []
        self._row, self._acted = row, acted

    def show(self, actions: Sequence[PageAction]) -> None:
        if list(actions) == self._actions:
            return
        self._actions = list(actions)
        for button in self.buttons:
            button.deleteLater()
        self.buttons = [
            push_button(action.tooltip, "", partial(self._acted.emit, action.command), height=24)
            for action in actions
        ]
        for button in self.buttons:
            self._row.addWidget(button)
