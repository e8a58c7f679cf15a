"""DEVICES: those of this machine, or a group for each host that the configuration names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from PySide6.QtCore import QTimer, Signal
from PySide6.QtWidgets import QVBoxLayout, QWidget

from rankdeck.base.errors import Problem
from rankdeck_app.language import tr
from rankdeck_app.state.device_choice import HOSTS, DeviceChoice
from rankdeck_app.state.draft import Draft
from rankdeck_app.state.gpus import Gpus
from rankdeck_app.state.hosts import GpusOfHosts
from rankdeck_app.theme import Theme
from rankdeck_app.views.launch.devices import HostDevices, Usage
from rankdeck_app.widgets.controls import WholeLabel
from rankdeck_app.widgets.draft_form import DraftForm
from rankdeck_app.widgets.gpu_words import host_state
from rankdeck_app.widgets.layouts import column, row, text_label
from rankdeck_app.widgets.run_rows import hosts_row

_OF_ALL, _OF_ONE = "devices.use", "hosts.devices."
_LOOK_EVERY_MS = 1000


class HostGroup(QWidget):
    """One host by name, how it answers, and its devices."""

    def __init__(self, theme: Theme, choice: DeviceChoice, gpus: Gpus, *, is_head: bool) -> None:
        super().__init__()
        self._gpus, self._is_head = gpus, is_head
        self.devices = HostDevices(theme, choice, gpus)
        self.name = text_label(choice.host, wrap=False)
        self.name.setProperty("tone", "name")
        self.state = WholeLabel()
        self.state.setProperty("tone", "dim")
        header = row(self.name, (self.state, 1), *self.devices.tools, spacing=6, margins=(12, 0, 12, 0))
        column(header, self.devices, on=self, spacing=4)
        gpus.changed.connect(self.refresh)
        self.refresh()

    def refresh(self) -> None:
        parts = [tr("has the run") if self._is_head else "", host_state(self._gpus)]
        self.state.setText(" · ".join(filter(None, parts)))


class AllDevices(QWidget):
    """The body of the section. `opened` carries the host whose GPUs the person wants to see, "" for here."""

    opened = Signal(str)

    def __init__(self, theme: Theme, draft: Draft, choice: DeviceChoice, hosts: GpusOfHosts) -> None:
        super().__init__()
        self._theme, self._choice, self.hosts = theme, choice, hosts
        self._usages: tuple[str, Mapping[str, Usage]] = ("", {})
        self.here = HostDevices(theme, choice, hosts.here)
        self.here.opened.connect(lambda: self.opened.emit(""))
        self.summary = WholeLabel()
        self.summary.setParent(self)
        self.summary.setProperty("tone", "dim")
        here, (summary, *tools) = QWidget(self), self.here.tools
        row((summary, 1), *tools, on=here, spacing=4)
        self._of_here, self.tools = here, [here, self.summary]
        self.groups: dict[str, HostGroup] = {}
        self._groups = QVBoxLayout()
        self._groups.setSpacing(10)
        self.form = DraftForm(theme, draft, lambda: [hosts_row()])
        column(self.here, self._groups, column(self.form, margins=(12, 2, 12, 4)), on=self, spacing=6)
        hosts.changed.connect(self.refresh)
        choice.changed.connect(self.refresh)
        self._aging = QTimer(self, interval=_LOOK_EVERY_MS)
        self._aging.timeout.connect(self._show_ages)
        self.refresh()

    def refresh(self) -> None:
        names = [name for name in self._choice.hosts if self.hosts.of(name) is not None]
        if names != list(self.groups):
            self._make(names)
        has_hosts = bool(self._choice.hosts)
        self.here.setVisible(not has_hosts)
        self._of_here.setVisible(not has_hosts)
        self.summary.setVisible(has_hosts)
        self.summary.setText(tr("{n} hosts", "{n} host", len(self._choice.hosts)))
        self.form.setVisible(not self._choice.is_of_script)

    def _make(self, names: Sequence[str]) -> None:
        for group in self.groups.values():
            group.hide()
            group.deleteLater()
        self.groups = {}
        for name in names:
            gpus = self.hosts.of(name)
            assert gpus is not None
            choice = self._choice.of_host(name, gpus)
            group = self.groups[name] = HostGroup(self._theme, choice, gpus, is_head=name == names[0])
            choice.setParent(group)
            group.devices.opened.connect(lambda host=gpus.host: self.opened.emit(host))
            self._groups.addWidget(group)
        self.set_usages(*self._usages)
        if names:
            self._aging.start()
        else:
            self._aging.stop()

    def _show_ages(self) -> None:
        if self.isVisible():
            for group in self.groups.values():
                group.refresh()

    def set_usages(self, kind: str, usages: Mapping[str, Usage]) -> None:
        """What the run on show uses on each host, "" where it is of one alone."""
        self._usages = kind, usages
        self.here.set_usage(kind, usages.get("", {}))
        for name, group in self.groups.items():
            group.devices.set_usage(kind, usages.get(name, {}))

    # What is wrong

    def place_of(self, problem: Problem | None) -> QWidget | None:
        """Where a problem can be fixed here."""
        path = "" if problem is None else problem.path or ""
        if path == ".".join(HOSTS):
            return self.form.fields[HOSTS].editor
        if path == "script.devices" or (path == _OF_ALL and not self.groups):
            return self.here.first_button
        of_one = self.groups.get(path.removeprefix(_OF_ONE)) if path.startswith(_OF_ONE) else None
        if path == _OF_ALL:
            of_one = next(iter(self.groups.values()))
        return None if of_one is None else of_one.devices.first_button

    def show_problems(self, problems: Sequence[Problem]) -> None:
        """Why these devices cannot be had."""
        of_all = next((one for one in problems if one.path in (_OF_ALL, "script.devices")), None)
        self.here.show_problem(of_all)
        for name, group in self.groups.items():
            own = next((one for one in problems if one.path == f"{_OF_ONE}{name}"), None)
            group.devices.show_problem(own or of_all)
