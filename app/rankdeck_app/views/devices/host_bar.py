"""The bar of hosts in the Devices tab, with a short status of each host's GPUs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QButtonGroup, QHBoxLayout, QPushButton, QWidget

from rankdeck_app.language import tr
from rankdeck_app.state.gpus import Gpus
from rankdeck_app.state.host_gpus import HostGpus
from rankdeck_app.widgets.gpu_text import gpu_status_text, host_state_text
from rankdeck_app.widgets.layouts import push_button

_REFRESH_INTERVAL_MS = 1000
_MARGINS = (16, 8, 16, 4)


class HostBar(QWidget):
    """Row with a button per host, or no buttons if there is only this machine. `on_pick` is called with the
    clicked button's host, "" for this machine."""

    def __init__(self, hosts: HostGpus, current_host: str, on_pick: Callable[[str], object]) -> None:
        super().__init__()
        self._hosts, self._current_host, self._on_pick = hosts, current_host, on_pick
        self.buttons: dict[str, QPushButton] = {}
        self._group = QButtonGroup(self)
        self._layout = QHBoxLayout(self)
        self._layout.setSpacing(0)
        self._layout.addStretch(1)
        hosts.changed.connect(self._rebuild)
        self._timer = QTimer(self, interval=_REFRESH_INTERVAL_MS)
        self._timer.timeout.connect(self._refresh)
        self._timer.start()
        self._rebuild()

    def _rebuild(self) -> None:
        for button in self.buttons.values():
            button.hide()
            button.deleteLater()
        self.buttons = {}
        all_gpus = self._hosts.all_gpus
        # Without margins an empty bar takes no height.
        self._layout.setContentsMargins(*_MARGINS if len(all_gpus) > 1 else (0, 0, 0, 0))
        for gpus in all_gpus if len(all_gpus) > 1 else ():
            name = gpus.host or tr("this machine")
            tooltip, pick = tr("Show the GPUs of {host}", host=name), partial(self._pick, gpus.host)
            button = push_button("", tooltip, pick, kind="segment", height=24)
            self._group.addButton(button)
            self._layout.insertWidget(len(self.buttons), button)
            self.buttons[gpus.host] = button
        self._refresh()

    def _pick(self, host: str) -> None:
        self._refresh()  # the button of this tab's host must stay checked after a click
        self._on_pick(host)

    def _refresh(self) -> None:
        for gpus in self._hosts.all_gpus:
            if (button := self.buttons.get(gpus.host)) is not None:
                button.setText(_button_text(gpus))
                button.setChecked(gpus.host == self._current_host)


def _button_text(gpus: Gpus) -> str:
    is_there = gpus.is_known and not gpus.refusal
    status = gpu_status_text(gpus.physical_gpus) if gpus.devices else tr("no GPUs") if is_there else ""
    return " · ".join(filter(None, (gpus.host or tr("this machine"), status, host_state_text(gpus))))
