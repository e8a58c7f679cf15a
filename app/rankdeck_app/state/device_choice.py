"""Which devices the next run is for: of the configuration, or of the script, whichever Launch would start.

One set of cards serves both, so it reads and writes this and need not know which of the two it is. Over
several hosts each of them has a choice of its own.
"""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal

from rankdeck_app.state.draft import Draft
from rankdeck_app.state.script_draft import ScriptDraft

PLACE = ("devices", "use")
HOSTS = ("hosts", "use")


def place_of(host: str) -> tuple[str, ...]:
    """Where a configuration names the devices of a host, or of all."""
    return ("hosts", "devices", host) if host else PLACE


class DeviceChoice(QObject):
    """`use` in the words of config/devices.py; of one of the configuration's hosts, or of all that say
    nothing of their own."""

    changed = Signal()

    def __init__(
        self, draft: Draft, script: ScriptDraft, parent: QObject | None = None, *, host: str = ""
    ) -> None:
        super().__init__(parent)
        self._draft, self._script, self.host = draft, script, host
        draft.changed.connect(self.changed)
        script.changed.connect(self.changed)

    def of_host(self, host: str, parent: QObject) -> DeviceChoice:
        return DeviceChoice(self._draft, self._script, parent, host=host)

    @property
    def is_of_script(self) -> bool:
        return self._script.is_chosen and not self.host

    @property
    def hosts(self) -> list[str]:
        """The hosts of the configuration, once each; none where it is of this one alone, as a script is."""
        named = [] if self._script.is_chosen else self._draft.value(HOSTS)
        return list(dict.fromkeys(filter(None, map(str, named)))) if isinstance(named, list) else []

    @property
    def use(self) -> object:
        """None where nothing is said; not always text: a configuration can say anything."""
        return self._script.form.devices if self.is_of_script else self.use_of(self.host)

    def use_of(self, host: str) -> object:
        """What the configuration says of a host."""
        own = self._draft.value(place_of(host)) if host else None
        return own if own is not None else self._draft.value(PLACE)

    def write(self, use: str) -> None:
        if self.is_of_script:
            self._script.set(devices=use)
        else:
            # What all have is said once.
            is_of_all = bool(self.host) and use == self._draft.value(PLACE)
            self._draft.set_value(place_of(self.host), None if is_of_all else use)
