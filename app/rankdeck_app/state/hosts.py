"""The GPUs of every host that the next run is for: those of this one always, those of others for as long as
the configuration names them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from PySide6.QtCore import QObject, QTimer, Signal

from rankdeck.config import RunConfig
from rankdeck.remote.ssh import is_here
from rankdeck_app.state.device_choice import DeviceChoice
from rankdeck_app.state.engine_process import Engine
from rankdeck_app.state.gpus import Gpus

LOOK_AFTER_MS = 800
"""A name that is being typed is none yet, and nobody is called by half of it."""


class GpusOfHosts(QObject):
    """`changed`: other hosts are looked at. `told`: that, or one of them has other devices than before."""

    changed = Signal()
    told = Signal()

    def __init__(
        self, engine: Engine, here: Gpus, choice: DeviceChoice, parent: QObject | None = None
    ) -> None:
        super().__init__(parent)
        self.here = here
        self._engine, self._choice = engine, choice
        self._elsewhere: dict[str, Gpus] = {}
        self._held: Counter[str] = Counter()
        self._is_closed = False
        self._later = QTimer(self, singleShot=True, interval=LOOK_AFTER_MS)
        self._later.timeout.connect(self._look)
        choice.changed.connect(self._named)
        here.changed.connect(self.told)
        self.changed.connect(self.told)

    def start(self) -> None:
        """Begin to look at once."""
        self._look()

    def ask(self) -> None:
        """Look again, now, at those that have not answered or have no GPU."""
        for gpus in self.seen:
            gpus.ask()

    @property
    def seen(self) -> list[Gpus]:
        """Of each host that is looked at, this one first."""
        return [self.here, *(self._elsewhere[name] for name in self._wanted() if name in self._elsewhere)]

    def of(self, host: str) -> Gpus | None:
        """Those of a host; None while nobody has looked at it."""
        return self.here if is_here(host) else self._elsewhere.get(host)

    def hold(self, host: str) -> Gpus:
        """Look at a host, "" for this one, until it is released as often, whatever the configuration says."""
        if not host or is_here(host):
            return self.here
        self._held[host] += 1
        if host not in self._elsewhere:
            self._look()
        return self._elsewhere[host]

    def release(self, host: str) -> None:
        if self._held[host] and not self._is_closed:
            self._held[host] -= 1
            self._later.start()

    def num_chosen(self, config: RunConfig) -> int | None:
        """How many devices a configuration is for; None while nobody knows."""
        if not config.hosts.use:
            return self.here.num_chosen(config.selection)
        total = 0
        for name, selection in config.hosts.selections(config.devices).items():
            gpus = self.of(name)
            count = selection.known_count if gpus is None else gpus.num_chosen(selection)
            if count is None:
                return None
            total += count
        return total

    def _wanted(self) -> Sequence[str]:
        named = [name for name in self._choice.hosts if not is_here(name)]
        return [*named, *(host for host in self._held if self._held[host] and host not in named)]

    def _named(self) -> None:
        if set(self._wanted()) != set(self._elsewhere):
            self._later.start()

    def _look(self) -> None:
        wanted = self._wanted()
        for name in self._elsewhere.keys() - set(wanted):
            gone = self._elsewhere.pop(name)
            gone.close()
            gone.deleteLater()
        for name in wanted:
            if name not in self._elsewhere:
                fresh = self._elsewhere[name] = Gpus(self._engine, self, host=name)
                fresh.changed.connect(self.told)
                fresh.ask()
        self.changed.emit()

    def close(self) -> None:
        self._is_closed = True
        self._later.stop()
        for gpus in self._elsewhere.values():
            gpus.close()
