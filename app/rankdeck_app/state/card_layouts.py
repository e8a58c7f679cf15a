"""How a person arranged the cards of dashboards: one layout per strategy, and one for scripts.

A layout is JSON: `order` and `hidden` name cards, `charts` keeps how a card's curve is drawn.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject

from rankdeck_app.disk import Disk
from rankdeck_app.state.kept_file import KeptFile

SCRIPT = "script"

Layout = dict[str, Any]


class CardLayouts(QObject):
    """Layouts by kind; what was never arranged is empty."""

    def __init__(self, file: Path, parent: QObject | None = None, *, disk: Disk | None = None) -> None:
        super().__init__(parent)
        self._layouts: dict[str, Layout] = {}
        self._kept = KeptFile(file, lambda: dict(self._layouts), self, disk=disk)
        try:
            kept = self._kept.read()
        except (OSError, ValueError):
            kept = {}
        if isinstance(kept, dict):
            self._layouts = {str(kind): one for kind, one in kept.items() if isinstance(one, dict)}

    def of(self, kind: str) -> Layout:
        return self._layouts.get(kind, {})

    def keep(self, kind: str, layout: Layout) -> None:
        """An empty layout is that of a new app."""
        if layout == self.of(kind):
            return
        if layout:
            self._layouts[kind] = layout
        else:
            self._layouts.pop(kind, None)
        self._kept.save_soon()

    def close(self) -> None:
        self._kept.close()
