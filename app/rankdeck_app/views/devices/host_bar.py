"""Every host that is looked at, what its GPUs are in few words, and which of them the tab shows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QButtonGroup, QHBoxLayout, QPushButton, QWidget

from rankdeck_app.language import tr
from rankdeck_app.state.gpus import Gpus
from rankdeck_app.state.hosts import GpusOfHosts
from rankdeck_app.widgets.gpu_words import host_state, status_text
from rankdeck_app.widgets.layouts import push_button

_LOOK_EVERY_MS = 1000
_MARGINS = (16, 8, 16, 4)


class HostBar(QWidget):
    """Empty where this machine is the only one. `on_pick` gets the host of a button, "" for this one."""

    def __init__(self, hosts: GpusOfHosts, shown: str, on_pick: Callable[[str], object]) -> None:
        super().__init__()
        self._hosts, self._shown, self._on_pick = hosts, shown, on_pick
        self.buttons: dict[str, QPushButton] = {}
        self._group = QButtonGroup(self)
        self._line = QHBoxLayout(self)
        self._line.setSpacing(0)
        self._line.addStretch(1)
        hosts.changed.connect(self._make)
        self._looking = QTimer(self, interval=_LOOK_EVERY_MS)
        self._looking.timeout.connect(self._refresh)
        self._looking.start()
        self._make()

    def _make(self) -> None:
        for button in self.buttons.values():
            button.hide()
            button.deleteLater()
        self.buttons = {}
        seen = self._hosts.seen
        self._line.setContentsMargins(*_MARGINS if len(seen) > 1 else (0, 0, 0, 0))
        for gpus in seen if len(seen) > 1 else ():
            name = gpus.host or tr("this machine")
            tooltip, pick = tr("Show the GPUs of {host}", host=name), partial(self._pick, gpus.host)
            button = push_button("", tooltip, pick, kind="segment", height=24)
            self._group.addButton(button)
            self._line.insertWidget(len(self.buttons), button)
            self.buttons[gpus.host] = button
        self._refresh()

    def _pick(self, host: str) -> None:
        self._refresh()  # a click leaves this tab's own button pressed
        self._on_pick(host)

    def _refresh(self) -> None:
        for gpus in self._hosts.seen:
            if (button := self.buttons.get(gpus.host)) is not None:
                button.setText(_words(gpus))
                button.setChecked(gpus.host == self._shown)


def _words(gpus: Gpus) -> str:
    is_there = gpus.known and not gpus.refusal
    told = status_text(gpus.whole) if gpus.devices else tr("no GPUs") if is_there else ""
    return " · ".join(filter(None, (gpus.host or tr("this machine"), told, host_state(gpus))))
