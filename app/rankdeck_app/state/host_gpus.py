"""The GPUs of every host that the next run is for: those of this one always, those of others for as long as
the configuration names them.
"""

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
"""A name that is being typed is none yet, and nobody is called by half of it."""


class HostGpus(QObject):
    """`changed`: other hosts are looked at. `devices_changed`: that, or one of them has other devices than
    before."""

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
        """Begin to look at once."""
        self._update()

    def refresh(self) -> None:
        """Look again, now, at those that have not answered or have no GPU."""
        for gpus in self.all_gpus:
            gpus.start()

    @property
    def all_gpus(self) -> list[Gpus]:
        """Of each host that is looked at, this one first."""
        return [self.local, *(self._remote[name] for name in self._wanted_hosts() if name in self._remote)]

    def get(self, host: str) -> Gpus | None:
        """Those of a host; None while nobody has looked at it."""
        return self.local if is_local_host(host) else self._remote.get(host)

    def acquire(self, host: str) -> Gpus:
        """Look at a host, "" for this one, until it is released as often, whatever the configuration says."""
        if not host or is_local_host(host):
            return self.local
        self._ref_counts[host] += 1
        if host not in self._remote:
            self._update()
        return self._remote[host]

    def release(self, host: str) -> None:
        if self._ref_counts[host] and not self._is_closed:
            self._ref_counts[host] -= 1
            self._update_timer.start()

    def count_devices(self, config: RunConfig) -> int | None:
        """How many devices a configuration is for; None while nobody knows."""
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
        wanted = self._wanted_hosts()
        for name in self._remote.keys() - set(wanted):
            gone = self._remote.pop(name)
            gone.close()
            gone.deleteLater()
        for name in wanted:
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
