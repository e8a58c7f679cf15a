"""The DEVICES section: this machine's devices, or a group for each host that the configuration names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from PySide6.QtCore import QTimer, Signal
from PySide6.QtWidgets import QVBoxLayout, QWidget

from rankdeck.base.errors import Problem
from rankdeck_app.language import tr
from rankdeck_app.state.device_choice import HOSTS_PATH, DeviceChoice
from rankdeck_app.state.draft import Draft
from rankdeck_app.state.gpus import Gpus
from rankdeck_app.state.host_gpus import HostGpus
from rankdeck_app.theme import Theme
from rankdeck_app.views.launch.host_devices import HostDevices, Usage
from rankdeck_app.widgets.controls import FitOrHideLabel
from rankdeck_app.widgets.draft_form import DraftForm
from rankdeck_app.widgets.gpu_text import host_state_text
from rankdeck_app.widgets.layouts import column, row, text_label
from rankdeck_app.widgets.option_rows import hosts_row

_ALL_DEVICES_PATH, _HOST_DEVICES_PREFIX = "devices.use", "hosts.devices."
_REFRESH_INTERVAL_MS = 1000


class HostGroup(QWidget):
    """A host's name, its connection state and its devices."""

    def __init__(self, theme: Theme, choice: DeviceChoice, gpus: Gpus, *, is_coordinator: bool) -> None:
        super().__init__()
        self._gpus, self._is_coordinator = gpus, is_coordinator
        self.devices = HostDevices(theme, choice, gpus)
        self.name_label = text_label(choice.host, wrap=False)
        self.name_label.setProperty("tone", "name")
        self.state_label = FitOrHideLabel()
        self.state_label.setProperty("tone", "dim")
        header = row(
            self.name_label, (self.state_label, 1), *self.devices.tools, spacing=6, margins=(12, 0, 12, 0)
        )
        column(header, self.devices, on=self, spacing=4)
        gpus.changed.connect(self.refresh)
        self.refresh()

    def refresh(self) -> None:
        texts = [tr("coordinator") if self._is_coordinator else "", host_state_text(self._gpus)]
        self.state_label.setText(" · ".join(filter(None, texts)))


class DevicesSection(QWidget):
    """Body of the DEVICES section. `details_requested` carries the name of the host whose GPUs are to be
    shown, or "" for this machine."""

    details_requested = Signal(str)

    def __init__(self, theme: Theme, draft: Draft, choice: DeviceChoice, hosts: HostGpus) -> None:
        super().__init__()
        self._theme, self._choice, self.hosts = theme, choice, hosts
        self._usages: tuple[str, Mapping[str, Usage]] = ("", {})
        self.local_devices = HostDevices(theme, choice, hosts.local)
        self.local_devices.details_requested.connect(lambda: self.details_requested.emit(""))
        self.summary_label = FitOrHideLabel()
        self.summary_label.setParent(self)
        self.summary_label.setProperty("tone", "dim")
        here, (summary, *tools) = QWidget(self), self.local_devices.tools
        row((summary, 1), *tools, on=here, spacing=4)
        self._local_header, self.tools = here, [here, self.summary_label]
        self.groups: dict[str, HostGroup] = {}
        self._groups_layout = QVBoxLayout()
        self._groups_layout.setSpacing(10)
        self.form = DraftForm(theme, draft, lambda: [hosts_row()])
        column(
            self.local_devices,
            self._groups_layout,
            column(self.form, margins=(12, 2, 12, 4)),
            on=self,
            spacing=6,
        )
        hosts.changed.connect(self.refresh)
        choice.changed.connect(self.refresh)
        self._age_timer = QTimer(self, interval=_REFRESH_INTERVAL_MS)
        self._age_timer.timeout.connect(self._show_ages)
        self.refresh()

    def refresh(self) -> None:
        names = [name for name in self._choice.hosts if self.hosts.get(name) is not None]
        if names != list(self.groups):
            self._rebuild(names)
        has_hosts = bool(self._choice.hosts)
        self.local_devices.setVisible(not has_hosts)
        self._local_header.setVisible(not has_hosts)
        self.summary_label.setVisible(has_hosts)
        self.summary_label.setText(tr("{n} hosts", "{n} host", len(self._choice.hosts)))
        # The form only names hosts, and a script runs on this machine.
        self.form.setVisible(not self._choice.is_for_script)

    def _rebuild(self, names: Sequence[str]) -> None:
        for group in self.groups.values():
            group.hide()
            group.deleteLater()
        self.groups = {}
        for name in names:
            gpus = self.hosts.get(name)
            assert gpus is not None
            choice = self._choice.for_host(name, gpus)
            group = self.groups[name] = HostGroup(self._theme, choice, gpus, is_coordinator=name == names[0])
            # The choice is deleted with its group.
            choice.setParent(group)
            group.devices.details_requested.connect(lambda host=gpus.host: self.details_requested.emit(host))
            self._groups_layout.addWidget(group)
        # The new groups need the usage that was set before they existed.
        self.set_usages(*self._usages)
        if names:
            self._age_timer.start()
        else:
            self._age_timer.stop()

    def _show_ages(self) -> None:
        if self.isVisible():
            for group in self.groups.values():
                group.refresh()

    def set_usages(self, kind: str, usages: Mapping[str, Usage]) -> None:
        """Set the current run's memory use per host; the key "" is the host of a single-host run. `kind` is
        the kind of the run's devices: "gpu" or "virtual", "" if there is no live run."""
        self._usages = kind, usages
        self.local_devices.set_usage(kind, usages.get("", {}))
        for name, group in self.groups.items():
            group.devices.set_usage(kind, usages.get(name, {}))

    # Problems

    def find_widget(self, problem: Problem | None) -> QWidget | None:
        """Return the widget in which a problem can be fixed, or None if there is no such widget."""
        path = "" if problem is None else problem.path or ""
        if path == ".".join(HOSTS_PATH):
            return self.form.fields[HOSTS_PATH].editor
        if path == "script.devices" or (path == _ALL_DEVICES_PATH and not self.groups):
            return self.local_devices.first_button
        of_one = (
            self.groups.get(path.removeprefix(_HOST_DEVICES_PREFIX))
            if path.startswith(_HOST_DEVICES_PREFIX)
            else None
        )
        # The devices of all hosts have no widget of their own, so the first host's is used.
        if path == _ALL_DEVICES_PATH:
            of_one = next(iter(self.groups.values()))
        return None if of_one is None else of_one.devices.first_button

    def show_problems(self, problems: Sequence[Problem]) -> None:
        """Show the problems that prevent devices from being used."""
        of_all = next(
            (candidate for candidate in problems if candidate.path in (_ALL_DEVICES_PATH, "script.devices")),
            None,
        )
        self.local_devices.show_problem(of_all)
        for name, group in self.groups.items():
            host_problem = next(
                (candidate for candidate in problems if candidate.path == f"{_HOST_DEVICES_PREFIX}{name}"),
                None,
            )
            group.devices.show_problem(host_problem or of_all)
