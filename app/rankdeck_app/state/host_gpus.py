"""GPUs of the next run's hosts. This machine's GPUs are always observed; another host's GPUs are observed
only while the configuration names that host or a tab has acquired it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from PySide6.QtCore import QObject, QTimer, Signal

from rankdeck.config import RunConfig
from rankdeck.remote.ssh import is_local_host
from rankdeck_app.state.device_choice import DeviceChoice
from rankdeck_app.state.engine_process import Engine
from rankdeck_app.state.gpus import Gpus

TYPING_DELAY_MS = 800
"""Delay before a newly named host is contacted, so that the app does not contact a half-typed name."""


class HostGpus(QObject):
    """GPUs by host.

    `changed` is emitted when the set of observed hosts changes. `devices_changed` is emitted in that case
    too, and when the devices of an observed host change.
    """

    changed = Signal()
    devices_changed = Signal()

    def __init__(
        self, engine: Engine, here: Gpus, choice: DeviceChoice, parent: QObject | None = None
    ) -> None:
        super().__init__(parent)
        self.local = here
        self._engine, self._choice = engine, choice
        self._remote: dict[str, Gpus] = {}
        self._ref_counts: Counter[str] = Counter()
        self._is_closed = False
        self._update_timer = QTimer(self, singleShot=True, interval=TYPING_DELAY_MS)
        self._update_timer.timeout.connect(self._update)
        choice.changed.connect(self._on_choice_changed)
        here.changed.connect(self.devices_changed)
        self.changed.connect(self.devices_changed)

    def start(self) -> None:
        """Start observing the hosts at once."""
        self._update()

    def refresh(self) -> None:
        """Retry hosts that have not answered or have no GPU."""
        for gpus in self.all_gpus:
            gpus.start()

    @property
    def all_gpus(self) -> list[Gpus]:
        """The GPUs of each observed host, this machine's first."""
        return [self.local, *(self._remote[name] for name in self._wanted_hosts() if name in self._remote)]

    def get(self, host: str) -> Gpus | None:
        """Return the GPUs of a host; None if the host is not observed."""
        return self.local if is_local_host(host) else self._remote.get(host)

    def acquire(self, host: str) -> Gpus:
        """Observe a host ("" is this machine) until it has been released as often as it was acquired.

        The configuration need not name the host.
        """
        if not host or is_local_host(host):
            return self.local
        self._ref_counts[host] += 1
        # At once, without the delay for typing: a tab always names a complete host.
        if host not in self._remote:
            self._update()
        return self._remote[host]

    def release(self, host: str) -> None:
        # A page is destroyed later than the window closes, so this may be called after `close`.
        if self._ref_counts[host] and not self._is_closed:
            self._ref_counts[host] -= 1
            self._update_timer.start()

    def count_devices(self, config: RunConfig) -> int | None:
        """Return the number of a configuration's devices on all hosts; None while the number is unknown."""
        if not config.hosts.use:
            return self.local.count_devices(config.selection)
        total = 0
        for name, selection in config.hosts.selections(config.devices).items():
            gpus = self.get(name)
            count = selection.known_count if gpus is None else gpus.count_devices(selection)
            if count is None:
                return None
            total += count
        return total

    def _wanted_hosts(self) -> Sequence[str]:
        named = [name for name in self._choice.hosts if not is_local_host(name)]
        return [*named, *(host for host in self._ref_counts if self._ref_counts[host] and host not in named)]

    def _on_choice_changed(self) -> None:
        if set(self._wanted_hosts()) != set(self._remote):
            self._update_timer.start()

    def _update(self) -> None:
        hosts = self._wanted_hosts()
        for name in self._remote.keys() - set(hosts):
            removed = self._remote.pop(name)
            removed.close()
            removed.deleteLater()
        for name in hosts:
            if name not in self._remote:
                fresh = self._remote[name] = Gpus(self._engine, self, host=name)
                fresh.changed.connect(self.devices_changed)
                fresh.start()
        self.changed.emit()

    def close(self) -> None:
        self._is_closed = True
        self._update_timer.stop()
        for gpus in self._remote.values():
            gpus.close()
