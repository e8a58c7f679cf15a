"""Which devices the next run is for: of the configuration, or of the script, whichever Launch would start.

One set of cards serves both, so it reads and writes this and need not know which of the two it is.
"""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal

from rankdeck_app.state.draft import Draft
from rankdeck_app.state.script_draft import ScriptDraft

PLACE = ("devices", "use")


class DeviceChoice(QObject):
    """`use` in the words of config/devices.py."""

    changed = Signal()

    def __init__(self, draft: Draft, script: ScriptDraft, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._draft, self._script = draft, script
        draft.changed.connect(self.changed)
        script.changed.connect(self.changed)

    @property
    def is_of_script(self) -> bool:
        return self._script.is_chosen

    @property
    def use(self) -> object:
        """None where nothing is said; not always text: a configuration can say anything."""
        return self._script.form.devices if self.is_of_script else self._draft.value(PLACE)

    def write(self, use: str) -> None:
        if self.is_of_script:
            self._script.set(devices=use)
        else:
            self._draft.set_value(PLACE, use)
